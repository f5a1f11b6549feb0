//! Handlers in the drive: what each end means, and what a flag does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use reeve_protocol::{Output, SideEffect};
use serde_json::{Value, json};

use super::*;
use crate::handler::tests::site;
use crate::handler::{Ctx, Handler};

/// Lines that are more than the channel holds, and more than the drive takes at once.
const MANY: usize = 20_000;

/// Has the call call this.
fn calling<F>(function: F) -> impl FnOnce(&mut Call)
where
    F: Fn(&Ctx) -> Result<Value, Fault> + Send + Sync + 'static,
{
    move |call| {
        let of_any = move |ctx: &Ctx, _: serde_json::Map<String, Value>| function(ctx);
        call.description.kind = CapabilityKind::Handler;
        call.work = Work::Handler(HandlerCall {
            handler: Arc::new(Handler::new("test.any", "Any", of_any)),
            input: json!({}),
            site: Arc::new(site(Path::new("/"))),
            grace: Duration::from_secs(3_600),
            timeout: None,
        });
    }
}

fn handler(call: &mut Call) -> &mut HandlerCall {
    match &mut call.work {
        Work::Handler(handler) => handler,
        Work::Process(_) => panic!("this is a handler"),
    }
}

/// Spins without a look at any flag, until the test is over.
fn deaf(ctx: &Ctx) -> ! {
    ctx.progress.log("ready");
    loop {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn until_cancelled(ctx: &Ctx) {
    ctx.progress.log("ready");
    while !ctx.progress.cancelled() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn asked(message: &str) -> Fault {
    Fault::new(Code::ExecutionFailed, message)
}

#[tokio::test]
async fn what_a_handler_reports_is_told_in_order_and_its_value_is_the_output() {
    let report = |ctx: &Ctx| {
        let progress = &ctx.progress;
        assert!(progress.observed() && ctx.execution() == Some(id()));
        progress.step("a", "A");
        progress.stream(Output::Stderr, "one\n\u{1b}[31mtwo");
        progress.diagnostic(Severity::Warning, "w", "odd", Some("why"), Some("so"));
        progress.progress(1, Some(2), "half");
        progress.step_done("a", false, Some("no"));
        Ok(json!({ "answer": 42 }))
    };
    let (seen, taken) = run_beside(Manner::Good, calling(report), "").await;
    let tags = [
        "created",
        "queued",
        "started",
        "step.started",
        "diagnostic",
        "progress",
        "step.completed",
        "completed",
    ];
    assert_eq!(seen.tags(), tags);
    assert_eq!(taken.tags(), tags);
    assert_eq!(taken.lines, ["one", "two"]);
    assert_eq!(seen.outcome.output, Some(json!({ "answer": 42 })));
    assert_eq!(seen.outcome.reported, Reported::ToBroker);
    assert!(!seen.outcome.abandoned && seen.outcome.exit.is_none());
    assert_eq!((taken.trees, taken.released), (0, true));
}

#[tokio::test]
async fn a_handler_that_reports_faster_than_it_is_listened_to_waits_and_loses_nothing() {
    let most = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&most);
    let many = move |ctx: &Ctx| {
        for n in 1..=MANY {
            ctx.progress.log(&format!("line {n}"));
            told.store(n, Ordering::SeqCst);
        }
        Ok(Value::Null)
    };
    let mut call = call(Path::new("/"), "");
    calling(many)(&mut call);
    let (_tx, interrupts) = mpsc::unbounded_channel();
    let (mut lines, mut ahead) = (0, 0);
    let looks = Arc::clone(&most);
    let hooks = Hooks {
        discover: Box::new(|| None),
        interrupts,
        on_local: Box::new(|local: Local| {
            if let Entry::Log(chunk) = &local.entry {
                lines += chunk.lines as usize;
                ahead = ahead.max(looks.load(Ordering::SeqCst).saturating_sub(lines));
            }
        }),
        on_notice: Box::new(drop),
        paused: Box::new(|| false),
    };
    let outcome = timeout(STUCK, run(call, hooks)).await.expect("a run comes to its end");
    assert_eq!((outcome.state, lines), (State::Succeeded, MANY));
    // What waits in the channel, what was taken at once, and the one in its hand.
    let bound = crate::handler::WAITING_MAX + crate::handler::AT_ONCE + 1;
    assert!(ahead <= bound, "{ahead} lines were under way");
}

#[tokio::test]
async fn a_pause_of_the_reader_holds_the_handler_up() {
    let (go, wait) = channel();
    let reports = move |ctx: &Ctx| {
        (0..MANY).for_each(|n| ctx.progress.log(&n.to_string()));
        go.send(()).expect("the test waits");
        Ok(Value::Null)
    };
    let mut call = call(Path::new("/"), "");
    calling(reports)(&mut call);
    let (_tx, interrupts) = mpsc::unbounded_channel();
    let looks = AtomicUsize::new(0);
    let hooks = Hooks {
        discover: Box::new(|| None),
        interrupts,
        on_local: Box::new(drop),
        on_notice: Box::new(drop),
        paused: Box::new(|| {
            let looked = looks.fetch_add(1, Ordering::SeqCst);
            assert!(looked > 10 || wait.try_recv().is_err(), "it did not wait");
            looked < 10
        }),
    };
    let outcome = timeout(STUCK, run(call, hooks)).await.expect("a run comes to its end");
    assert_eq!(outcome.state, State::Succeeded);
}

#[tokio::test]
async fn a_fault_fails_and_names_the_execution() {
    let fails = |_: &Ctx| Err(asked("no luck").because("luck"));
    let seen = run_alone(calling(fails), "").await;
    let error = seen.outcome.error.clone().expect("it failed");
    assert_eq!((error.code, error.reason.as_deref()), (Code::ExecutionFailed, Some("luck")));
    assert_eq!(error.correlation_id, id().to_string());
    // It may write, and has not said what it did.
    assert_eq!(error.side_effect, SideEffect::Unknown);
    assert_eq!(seen.tags(), ["created", "queued", "started", "failed"]);
}

#[tokio::test]
async fn a_panic_is_internal_and_tells_nobody_its_text() {
    let breaks = |_: &Ctx| -> Result<Value, Fault> { panic!("secret at /home/me") };
    let (seen, taken) = run_beside(Manner::Good, calling(breaks), "").await;
    let error = seen.outcome.error.expect("it failed");
    assert_eq!((error.code, error.correlation_id), (Code::Internal, id().to_string()));
    assert!(error.suggestion.is_some());
    let told = format!("{:?} {:?}", taken.kinds, seen.facts);
    assert!(!told.contains("secret") && !told.contains("/home") && !told.contains(".rs"), "{told}");
    assert!(!seen.outcome.abandoned, "the process is as good as before");
}

#[tokio::test]
async fn a_panic_while_it_stops_is_internal_too() {
    let breaks = |ctx: &Ctx| -> Result<Value, Fault> {
        until_cancelled(ctx);
        panic!("too late")
    };
    let (seen, _) = run_beside(Manner::CancelsAt("ready"), calling(breaks), "").await;
    assert_eq!(seen.outcome.error.map(|error| error.code), Some(Code::Internal));
}

#[tokio::test]
async fn whatever_fault_comes_after_the_flag_it_was_cancelled() {
    for own in [false, true] {
        let stops = move |ctx: &Ctx| {
            until_cancelled(ctx);
            ctx.checkpoint().map_err(|fault| if own { asked("other") } else { fault })?;
            Ok(Value::Null)
        };
        let (seen, taken) = run_beside(Manner::CancelsAt("ready"), calling(stops), "").await;
        assert_eq!(seen.outcome.state, State::Cancelled);
        assert_eq!(taken.tags(), ["created", "queued", "started", "cancelling", "cancelled"]);
    }
}

#[tokio::test]
async fn a_value_that_comes_while_it_is_asked_to_stop_counts() {
    let ends = |ctx: &Ctx| {
        until_cancelled(ctx);
        Ok(json!(7))
    };
    let (seen, taken) = run_beside(Manner::CancelsAt("ready"), calling(ends), "").await;
    assert_eq!((seen.outcome.state, seen.outcome.output), (State::Succeeded, Some(json!(7))));
    assert_eq!(taken.tags(), ["created", "queued", "started", "cancelling", "completed"]);
}

#[tokio::test]
async fn who_ignores_the_flag_is_given_up_after_its_grace() {
    let change = |call: &mut Call| {
        calling(|ctx: &Ctx| deaf(ctx))(call);
        handler(call).grace = Duration::from_millis(50);
    };
    let (seen, taken) = run_beside(Manner::CancelsAt("ready"), change, "").await;
    assert_eq!(seen.outcome.state, State::Cancelled);
    assert!(seen.outcome.abandoned, "its process is good for nothing any more");
    let tags = ["created", "queued", "started", "cancelling", "diagnostic", "cancelled"];
    assert_eq!(taken.tags(), tags);
    assert!(!taken.released, "its thread goes on until the process ends");
    let Kind::Diagnostic { code, summary, .. } = &taken.kinds[4] else { panic!("{taken:?}") };
    assert!(code == "abandoned" && summary.contains("ignored its flag"), "{summary}");
}

#[tokio::test]
async fn force_waits_for_nobody() {
    let (tx, interrupts) = mpsc::unbounded_channel();
    let person = Arc::new(Mutex::new(Some(tx.clone())));
    let interrupted = move |ctx: &Ctx| -> Result<Value, Fault> {
        let tx = person.lock().unwrap().take().unwrap();
        tx.send(()).unwrap();
        until_cancelled(ctx);
        tx.send(()).unwrap();
        deaf(ctx)
    };
    let mut call = call(Path::new("/"), "");
    calling(interrupted)(&mut call);
    let seen = watch(call, Box::new(|| None), interrupts).await;
    assert_eq!((seen.outcome.state, seen.outcome.abandoned), (State::Cancelled, true));
    drop(tx);
}

#[tokio::test]
async fn a_deadline_sets_the_flag_and_then_waits_no_longer_than_the_grace() {
    for deaf_one in [false, true] {
        let change = |call: &mut Call| {
            calling(move |ctx: &Ctx| {
                if deaf_one {
                    deaf(ctx);
                }
                until_cancelled(ctx);
                ctx.checkpoint().map(|()| Value::Null)
            })(call);
            handler(call).timeout = Some(Duration::from_millis(50));
            if deaf_one {
                handler(call).grace = Duration::from_millis(50);
            }
        };
        let seen = run_alone(change, "").await;
        let error = seen.outcome.error.expect("it failed");
        assert_eq!(error.code, Code::ExecutionFailed);
        assert_eq!(error.reason.as_deref(), Some("timeout"));
        assert_eq!(error.message.contains("ignored its flag"), deaf_one, "{}", error.message);
        assert_eq!(seen.outcome.abandoned, deaf_one);
    }
}

#[tokio::test]
async fn what_was_reported_before_it_was_given_up_is_kept() {
    let change = |call: &mut Call| {
        calling(|ctx: &Ctx| {
            until_cancelled(ctx);
            (0..10).for_each(|n| ctx.progress.log(&format!("late {n}")));
            deaf(ctx)
        })(call);
        handler(call).grace = Duration::from_millis(200);
    };
    let (seen, taken) = run_beside(Manner::CancelsAt("ready"), change, "").await;
    assert!(seen.outcome.abandoned);
    assert_eq!(taken.lines.iter().filter(|line| line.starts_with("late")).count(), 10);
}

#[tokio::test]
async fn a_fenced_handler_reports_late() {
    let goes_on = |ctx: &Ctx| {
        ctx.progress.log("ready");
        std::thread::sleep(Duration::from_millis(300));
        ctx.progress.log("more");
        Ok(json!(1))
    };
    let (seen, taken) = run_beside(Manner::FencesAt("ready"), calling(goes_on), "").await;
    assert!(matches!(seen.outcome.reported, Reported::Fenced(_)));
    assert_eq!(taken.late.map(|late| late.state), Some(State::Succeeded));
}
