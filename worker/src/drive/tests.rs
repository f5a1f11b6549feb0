#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use reeve_protocol::capability::{CapabilityKind, Effect as Changes, OnWorkerLoss};
use reeve_protocol::lease::{Lease, SCHEMA};
use reeve_protocol::peer::{Ack, Attach, Attached, Cancel, Fenced, Grant, Late, Welcome};
use reeve_protocol::snapshot::{Actor, ActorKind, Description, Repository};
use reeve_protocol::{
    Batch, Class, Entry, ExecutionId, Fence, Handle, Limits, Seq, Stamped, Timestamp, frame,
};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

mod handlers;

use super::*;
use crate::process::{OutputMode, StdinSource};

/// How long anything may take before a test is stuck; no test measures time by it.
const STUCK: Duration = Duration::from_secs(60);

fn id() -> ExecutionId {
    "x-20260908T010203Z-0a1b2c3d".parse().unwrap()
}

fn call(directory: &Path, script: &str) -> Call {
    Call {
        execution: id(),
        description: Description {
            capability: "tests.unit".parse().unwrap(),
            title: "Unit tests".to_owned(),
            kind: CapabilityKind::Process,
            effect: Changes::Write,
            cancellable: true,
            lock: None,
            on_worker_loss: OnWorkerLoss::End,
            cancel_grace_ms: 10_000,
            input: json!({}),
            actor: Actor { kind: ActorKind::Cli, peer: None, pid: None },
            repository: Repository::default(),
            parent_id: None,
        },
        work: Work::Process(ProcessCall {
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            cwd: directory.to_owned(),
            checkout: directory.to_owned(),
            env_caller: std::env::vars_os().collect(),
            env_allow: Vec::new(),
            env_set: BTreeMap::new(),
            stdin: StdinSource::Null,
            output: OutputMode::Capture,
            events: true,
            launcher: None,
            cgroup: false,
            grace: Duration::from_secs(10),
            timeout: None,
        }),
        limits: Limits { attach: Duration::from_millis(300), ..Limits::default() },
        role: "run".to_owned(),
        build: "test".to_owned(),
        seed: 1,
        bound: false,
        secrets: Vec::new(),
    }
}

fn process(call: &mut Call) -> &mut ProcessCall {
    match &mut call.work {
        Work::Process(process) => process,
        Work::Handler(_) => panic!("this is a process"),
    }
}

/// What a broker of these tests does beside taking reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Manner {
    /// It does everything right.
    #[default]
    Good,
    /// It takes connections and never reads.
    Stopped,
    /// It dies when this word is in the output.
    DiesAt(&'static str),
    /// It asks to stop when this word is in the output.
    CancelsAt(&'static str),
    /// It ends the execution itself when this word is in the output.
    FencesAt(&'static str),
}

/// What reached a broker.
#[derive(Clone, Debug, Default)]
struct Taken {
    kinds: Vec<Kind>,
    lines: Vec<String>,
    count: u64,
    fence: Fence,
    late: Option<Late>,
    trees: usize,
    released: bool,
    bye: bool,
}

impl Taken {
    fn tags(&self) -> Vec<&str> {
        self.kinds.iter().map(Kind::tag).collect()
    }
}

type Shared = Arc<Mutex<Taken>>;

/// Serves one socket until the manner says otherwise; returns what was taken.
async fn broker(listener: UnixListener, manner: Manner, fence: Fence, taken: Shared) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        if manner == Manner::Stopped {
            std::mem::forget(stream);
            continue;
        }
        taken.lock().unwrap().fence = fence;
        if serve(stream, manner, &taken).await {
            return;
        }
    }
}

/// Serves one connection; returns whether the broker died.
async fn serve(mut stream: UnixStream, manner: Manner, taken: &Shared) -> bool {
    let mut buffer = BytesMut::new();
    let mut acted = false;
    loop {
        while let Some((kind, body)) = frame::take(&mut buffer).unwrap() {
            let mut out = BytesMut::new();
            let line = answer(kind, &body, taken, &mut out);
            let seen = |word: &str| line.iter().any(|line| line.contains(word));
            match manner {
                Manner::DiesAt(word) if seen(word) => return true,
                Manner::CancelsAt(word) if seen(word) && !acted => {
                    acted = true;
                    let cancel = Cancel { execution: id(), by: "http".into(), force: false };
                    frame::put_message(&mut out, peer::kind::CANCEL, &cancel);
                }
                Manner::FencesAt(word) if seen(word) && !acted => {
                    acted = true;
                    let last = Seq(taken.lock().unwrap().count + 1);
                    let (state, error) = (State::Failed, None);
                    let fenced = Fenced { execution: id(), state, last, error };
                    frame::put_message(&mut out, peer::kind::FENCED, &fenced);
                }
                Manner::DiesAt(_)
                | Manner::CancelsAt(_)
                | Manner::FencesAt(_)
                | Manner::Good
                | Manner::Stopped => {}
            }
            if stream.write_all(&out).await.is_err() {
                return false;
            }
        }
        match stream.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return false,
            Ok(_) => {}
        }
    }
}

/// Takes a frame and writes the answer; returns the lines that came with it.
fn answer(kind: u8, body: &bytes::Bytes, taken: &Shared, out: &mut BytesMut) -> Vec<String> {
    let mut taken = taken.lock().unwrap();
    let mut lines = Vec::new();
    match kind {
        peer::kind::HELLO => {
            let welcome = Welcome {
                proto: peer::PROTO,
                epoch: "e".into(),
                instance: "i".into(),
                pid: 1,
                build: "b".into(),
                durability: "memory".into(),
                limits: Limits::default(),
            };
            frame::put_message(out, peer::kind::WELCOME, &welcome);
        }
        peer::kind::ATTACH => on_attach(&mut taken, body, out),
        peer::kind::BATCH => lines = on_batch(&mut taken, body, out),
        peer::kind::TREE => taken.trees += 1,
        peer::kind::RELEASED => taken.released = true,
        peer::kind::LATE => taken.late = Some(frame::decode(body).unwrap()),
        peer::kind::BYE => taken.bye = true,
        _ => {}
    }
    lines
}

fn on_attach(taken: &mut Taken, body: &[u8], out: &mut BytesMut) {
    let attach: Attach = frame::decode(body).unwrap();
    let attached = Attached { execution: id(), ahead: 0, waiting_on: None };
    frame::put_message(out, peer::kind::ATTACHED, &attached);
    let mut events = Vec::new();
    if attach.fence.is_none() && attach.last == Seq::NONE {
        let Description { capability, title, input, .. } = attach.description;
        let created = Kind::Created { capability, title, input };
        for kind in [created, Kind::Queued { ahead: 0 }] {
            taken.kinds.push(kind.clone());
            events.push(Stamped { at: Timestamp::from_micros(7), kind });
        }
        taken.count = 2;
    }
    let (handle, fence, next) = (Handle(1), taken.fence, Seq(taken.count + 1));
    let grant = Grant { execution: id(), handle, fence, next, events };
    frame::put_message(out, peer::kind::GRANT, &grant);
}

fn on_batch(taken: &mut Taken, body: &bytes::Bytes, out: &mut BytesMut) -> Vec<String> {
    let batch = Batch::parse(body.clone()).unwrap();
    assert_eq!(batch.fence(), taken.fence);
    assert!(batch.first().0 <= taken.count + 1, "no gap on a stream");
    let mut lines = Vec::new();
    if let Some(batch) = batch.after(Seq(taken.count)) {
        taken.count = batch.last().0;
        if batch.class() == Class::Lost {
            lines.push("(lost)".to_owned());
        }
        for entry in batch.entries().unwrap() {
            match entry {
                Entry::Event(event) => taken.kinds.push(event.kind),
                Entry::Log(chunk) => lines.extend(chunk.iter().map(|(line, _)| line.to_owned())),
            }
        }
        taken.lines.extend(lines.iter().cloned());
    }
    let ack = Ack { handle: Handle(1), through: Seq(taken.count), resend_from: None };
    frame::put_message(out, peer::kind::ACK, &ack);
    lines
}

/// What a caller saw of one run.
struct Seen {
    outcome: Outcome,
    facts: Vec<Local>,
    notices: Vec<Notice>,
}

impl Seen {
    fn lines(&self) -> Vec<String> {
        let chunks = self.facts.iter().filter_map(|fact| match &fact.entry {
            Entry::Log(chunk) => Some(chunk),
            Entry::Event(_) => None,
        });
        chunks.flat_map(|chunk| chunk.iter().map(|(line, _)| line.to_owned())).collect()
    }

    fn tags(&self) -> Vec<String> {
        let events = self.facts.iter().filter_map(|fact| match &fact.entry {
            Entry::Event(event) => Some(event.kind.tag().to_owned()),
            Entry::Log(_) => None,
        });
        events.collect()
    }
}

fn lease(socket: &Path) -> Lease {
    Lease {
        schema: SCHEMA.to_owned(),
        pid: 1,
        start_ticks: 1,
        boot_id: String::new(),
        host_id: String::new(),
        root: "/".into(),
        socket: socket.to_owned(),
        url: None,
        instance: "i".to_owned(),
        version: "0".to_owned(),
        started_at: Timestamp::default(),
    }
}

async fn watch(call: Call, discover: Discover, interrupts: mpsc::UnboundedReceiver<()>) -> Seen {
    let facts = Rc::new(RefCell::new(Vec::new()));
    let notices = Rc::new(RefCell::new(Vec::new()));
    let (local, notice) = (Rc::clone(&facts), Rc::clone(&notices));
    let hooks = Hooks {
        discover,
        interrupts,
        on_local: Box::new(move |fact| local.borrow_mut().push(fact)),
        on_notice: Box::new(move |said| notice.borrow_mut().push(said)),
        paused: Box::new(|| false),
    };
    let outcome = timeout(STUCK, run(call, hooks)).await.expect("a run comes to its end");
    let facts = facts.take();
    Seen { outcome, facts, notices: notices.take() }
}

/// Runs a script beside one broker.
async fn run_beside(manner: Manner, change: impl FnOnce(&mut Call), script: &str) -> (Seen, Taken) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let taken = Shared::default();
    let listener = UnixListener::bind(&socket).unwrap();
    let serving = tokio::spawn(broker(listener, manner, Fence(1), Arc::clone(&taken)));
    let mut call = call(directory.path(), script);
    change(&mut call);
    let found = lease(&socket);
    let (_tx, interrupts) = mpsc::unbounded_channel();
    let seen = watch(call, Box::new(move || Some(found.clone())), interrupts).await;
    let goodbye = async {
        while !taken.lock().unwrap().bye {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if manner != Manner::Stopped {
        timeout(STUCK, goodbye).await.expect("a worker says goodbye");
    }
    serving.abort();
    let taken = taken.lock().unwrap().clone();
    (seen, taken)
}

async fn run_alone(change: impl FnOnce(&mut Call), script: &str) -> Seen {
    let directory = tempfile::tempdir().unwrap();
    let mut call = call(directory.path(), script);
    change(&mut call);
    let (_tx, interrupts) = mpsc::unbounded_channel();
    watch(call, Box::new(|| None), interrupts).await
}

#[tokio::test]
async fn a_call_is_reported_from_grant_to_completed() {
    let (seen, taken) =
        run_beside(Manner::Good, |_| {}, "echo one; echo two >&2; echo three").await;
    assert_eq!(seen.outcome.state, State::Succeeded);
    assert_eq!(seen.outcome.reported, Reported::ToBroker);
    assert_eq!(seen.outcome.output, Some(json!({ "exit": { "code": 0 } })));
    assert_eq!(taken.tags(), ["created", "queued", "started", "completed"]);
    assert_eq!((taken.trees, taken.released, taken.bye), (1, true, true));
    let mut lines = taken.lines.clone();
    lines.sort();
    assert_eq!(lines, ["one", "three", "two"]);
    assert_eq!(seen.lines(), taken.lines);
    assert_eq!(seen.tags(), taken.tags());
    assert!(seen.notices.is_empty());
}

#[tokio::test]
async fn a_secret_is_in_nothing_that_is_reported_not_even_in_the_name_of_a_process() {
    let secret = "hunter2-Zebra";
    let change = |call: &mut Call| {
        process(call).stdin = StdinSource::Bytes(secret.as_bytes().to_vec());
        call.secrets = vec![reeve_protocol::secret::Secret::new(secret)];
        assert!(!format!("{call:?}").contains("hunter2"), "{call:?}");
    };
    let script = r#"read -r it; echo "<$it>"; cp "$(command -v sh)" "$it"
        "./$it" -c 'while :; do sleep 1; done' >&- 2>&- &
        until test "$(cat "/proc/$!/comm")" = "$it"; do sleep 0.01; done"#;
    let (seen, taken) = run_beside(Manner::Good, change, script).await;
    assert_eq!(taken.lines, ["<[redacted]>"]);
    let told = format!("{:?} {taken:?} {:?}", seen.facts, seen.outcome);
    assert!(!told.contains("hunter2"), "{told}");
    assert!(told.contains("outlived it and were ended: [redacted] (pid"), "{told}");
}

#[tokio::test]
async fn without_a_broker_everything_is_numbered_here() {
    let seen = run_alone(|_| {}, "echo one; exit 3").await;
    assert_eq!(seen.outcome.state, State::Failed);
    assert_eq!(seen.outcome.exit.and_then(|exit| exit.code), Some(3));
    assert_eq!(
        seen.outcome.error.as_ref().map(|error| &*error.message),
        Some("exited with code 3")
    );
    assert_eq!(seen.outcome.reported, Reported::Alone);
    assert_eq!(seen.notices, [Notice::Alone]);
    let seqs: Vec<u64> = seen.facts.iter().map(|fact| fact.seq.unwrap().0).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_missing_program_never_starts() {
    let seen = run_alone(|call| process(call).program = "no-such-program".into(), "").await;
    assert_eq!(seen.tags(), ["created", "queued", "failed"]);
    let error = seen.outcome.error.unwrap();
    assert_eq!(error.code, Code::ActionUnavailable);
    assert_eq!(error.correlation_id, id().to_string());
}

#[tokio::test]
async fn a_broker_that_never_answers_delays_nothing_for_long() {
    let (seen, _) = run_beside(Manner::Stopped, |_| {}, "echo one").await;
    assert_eq!(seen.outcome.state, State::Succeeded);
    assert_eq!(seen.outcome.reported, Reported::Alone);
    assert_eq!(seen.notices, [Notice::Quiet]);
    assert_eq!(seen.lines(), ["one"]);
}

#[tokio::test]
async fn a_successor_gets_the_whole_history() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("1"), directory.path().join("2"));
    let (before, after) = (Shared::default(), Shared::default());
    let dies = broker(
        UnixListener::bind(&first).unwrap(),
        Manner::DiesAt("one"),
        Fence(1),
        Arc::clone(&before),
    );
    let lives =
        broker(UnixListener::bind(&second).unwrap(), Manner::Good, Fence(9), Arc::clone(&after));
    let alive = Arc::new(Mutex::new(first));
    let now_serving = Arc::clone(&alive);
    let go = directory.path().join("go");
    let trigger = go.clone();
    let brokers = tokio::spawn(async move {
        dies.await;
        *now_serving.lock().unwrap() = second;
        std::fs::write(trigger, "").unwrap();
        lives.await;
    });
    let script = "echo one; while ! test -e go; do sleep 0.01; done; echo two";
    let call = call(directory.path(), script);
    let discover: Discover = Box::new(move || Some(lease(&alive.lock().unwrap())));
    let (_tx, interrupts) = mpsc::unbounded_channel();
    let seen = watch(call, discover, interrupts).await;
    brokers.abort();
    assert_eq!(seen.outcome.reported, Reported::ToBroker);
    let after = after.lock().unwrap().clone();
    assert_eq!(after.tags(), ["created", "queued", "started", "completed"]);
    assert_eq!(after.lines, ["one", "two"]);
    assert_eq!(before.lock().unwrap().lines, ["one"]);
    assert!(go.exists());
}

#[tokio::test]
async fn a_cancelled_process_is_asked_to_end() {
    let script = "echo ready; while :; do sleep 0.01; done";
    let (seen, taken) = run_beside(Manner::CancelsAt("ready"), |_| {}, script).await;
    assert_eq!(seen.outcome.state, State::Cancelled);
    assert_eq!(taken.tags(), ["created", "queued", "started", "cancelling", "cancelled"]);
    assert_eq!(seen.outcome.exit.and_then(|exit| exit.signal), Some(15));
}

#[tokio::test]
async fn a_process_that_completes_although_it_was_cancelled_has_completed() {
    let script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let (seen, _) = run_beside(Manner::CancelsAt("ready"), |_| {}, script).await;
    assert_eq!(seen.outcome.state, State::Succeeded);
}

#[tokio::test]
async fn a_process_that_ignores_the_wish_is_killed_after_its_grace() {
    let script = "trap '' TERM; echo ready; while :; do sleep 0.01; done";
    let grace = |call: &mut Call| process(call).grace = Duration::from_millis(50);
    let (seen, _) = run_beside(Manner::CancelsAt("ready"), grace, script).await;
    assert_eq!(seen.outcome.state, State::Cancelled);
    assert_eq!(seen.outcome.exit.and_then(|exit| exit.signal), Some(9));
}

#[tokio::test]
async fn a_second_interrupt_kills() {
    let directory = tempfile::tempdir().unwrap();
    let script = "trap '' TERM; touch ready; while :; do sleep 0.01; done";
    let (tx, interrupts) = mpsc::unbounded_channel();
    let ready = directory.path().join("ready");
    let person = tokio::spawn(async move {
        while !ready.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tx.send(()).unwrap();
        tx.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    let seen = watch(call(directory.path(), script), Box::new(|| None), interrupts).await;
    person.abort();
    assert_eq!(seen.outcome.state, State::Cancelled);
    assert_eq!(seen.outcome.exit.and_then(|exit| exit.signal), Some(9));
}

#[tokio::test]
async fn a_process_whose_time_is_over_fails() {
    let limit = |call: &mut Call| process(call).timeout = Some(Duration::from_millis(50));
    let seen = run_alone(limit, "sleep 600").await;
    assert_eq!(seen.outcome.error.unwrap().reason.as_deref(), Some("timeout"));
}

#[tokio::test]
async fn what_outlives_the_first_process_is_named_and_ended() {
    let seen = run_alone(|_| {}, "sleep 613 >/dev/null 2>&1 & echo $!").await;
    assert_eq!(seen.outcome.state, State::Succeeded);
    assert_eq!(seen.tags(), ["created", "queued", "started", "diagnostic", "completed"]);
    let pid: i32 = seen.lines()[0].parse().unwrap();
    assert!(Member::of(pid).is_none_or(|member| member.comm != "sleep"));
}

#[tokio::test]
async fn a_fenced_worker_ends_its_work_and_reports_late() {
    let script = "echo ready; sleep 0.3; echo more; exit 4";
    let (seen, taken) = run_beside(Manner::FencesAt("ready"), |_| {}, script).await;
    assert_eq!(seen.outcome.state, State::Failed);
    assert_eq!(seen.outcome.exit.and_then(|exit| exit.code), Some(4));
    assert!(matches!(seen.outcome.reported, Reported::Fenced(_)));
    let late = taken.late.unwrap();
    assert_eq!((late.state, late.fence), (State::Failed, Fence(1)));
    assert!(late.unsent_events > 0);
    assert_eq!(seen.lines(), ["ready", "more"]);
}

#[tokio::test]
async fn what_a_process_says_is_reported() {
    let script = r#"
        say() { echo "$1" >"/dev/fd/$REEVE_EVENTS_FD"; }
        say '{"type":"execution.step.started","data":{"name":"a","title":"A"}}'
        say '{"type":"execution.step.completed","data":{"name":"a","ok":true}}'
        say '{"type":"execution.output","data":{"answer":42}}'
    "#;
    let (seen, taken) = run_beside(Manner::Good, |_| {}, script).await;
    assert_eq!(seen.outcome.output, Some(json!({ "answer": 42 })));
    let tags = ["created", "queued", "started", "step.started", "step.completed", "completed"];
    assert_eq!(taken.tags(), tags);
}

#[tokio::test]
async fn a_broker_that_keeps_up_gets_every_line() {
    let script = "head -c 20000000 /dev/zero | tr '\\0' x | fold -w 99";
    let (seen, taken) = run_beside(Manner::Good, |_| {}, script).await;
    assert_eq!(seen.outcome.reported, Reported::ToBroker);
    assert_eq!(taken.lines.len(), 20_000_000_usize.div_ceil(99));
    // On a busy machine it takes so long that what it uses is reported, too.
    assert!(taken.count >= taken.lines.len() as u64 + 4);
}

/// A broker that takes everything into its socket and reads nothing of it.
#[tokio::test]
async fn a_broker_that_stops_reading_slows_nothing() {
    let script = "i=0; while [ $i -lt 50 ]; do head -c 1000000 /dev/zero | tr '\\0' x | fold -w 99; i=$((i+1)); done";
    let (seen, _) = run_beside(Manner::Stopped, |_| {}, script).await;
    assert_eq!(seen.outcome.state, State::Succeeded);
    assert_eq!(seen.lines().iter().map(|line| line.len() as u64).sum::<u64>(), 50_000_000);
}
