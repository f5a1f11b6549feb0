//! A worker that is killed, stopped or starved: everybody sees the same, and only what is true.

use reeve_tests::{Checkout, Running, until};
use rustix::process::Signal;

use crate::cancel::marked_with;
use crate::{assert_dense, checkout, id_of, lines_of, pid_in, shell, types_of, until_gone};

const WAITS: &str = "echo $$ > pid; echo begun; until test -e go; do sleep 0.01; done; echo end";

fn running(checkout: &Checkout, capability: &str) -> (Running, String) {
    let run = checkout.spawn(["run", capability]);
    let running = checkout.until_state(capability, "running");
    pid_in(checkout, "pid");
    (run, id_of(&running).to_owned())
}

#[test]
fn a_killed_worker_ends_as_unavailable_for_everybody_and_leaves_nothing() {
    let script = "sleep 621 & echo $! > below; echo $$ > pid; echo begun; wait";
    let checkout = checkout(&shell("killed", script, ""));
    let _broker = checkout.serve(&[]);
    let (mut run, id) = running(&checkout, "killed");
    let watch = checkout.spawn(["executions", "watch", &id]);
    watch.until_stdout("begun");
    run.kill();
    let watched = watch.wait();
    assert_eq!(watched.code(), 1, "{watched:?}");
    assert!(watched.stderr.contains(&format!("process {}", run.pid())), "{watched:?}");
    let shown = checkout.show(&id);
    let error = &shown["error"];
    assert_eq!((&shown["state"], &error["code"]), (&"failed".into(), &"unavailable".into()));
    assert_eq!(
        (&error["reason"], &error["side_effect"]),
        (&"process_gone".into(), &"unknown".into())
    );
    assert_eq!(error["correlation_id"], id.as_str());
    until_gone(pid_in(&checkout, "pid"));
    until_gone(pid_in(&checkout, "below"));
    let history = checkout.history(&id);
    assert_dense(&history);
    assert_eq!(types_of(&history).last(), Some(&"failed"));
    assert_eq!(lines_of(&history, "stdout"), ["begun"]);
}

#[test]
fn a_stopped_worker_is_shown_as_suspended_and_goes_on() {
    let checkout = checkout(&shell("stopped", WAITS, ""));
    let _broker = checkout.serve(&[("heartbeat", "100ms"), ("silence", "10m")]);
    let (run, id) = running(&checkout, "stopped");
    run.signal(Signal::STOP);
    until("it to be seen as stopped", || {
        checkout.show(&id)["overlay"]["suspended_at"].is_string().then_some(())
    });
    assert_eq!(checkout.show(&id)["state"], "running");
    run.signal(Signal::CONT);
    until("it to be seen as going on", || {
        checkout.show(&id)["overlay"].get("suspended_at").is_none().then_some(())
    });
    checkout.write("go", "");
    let ran = run.wait();
    assert_eq!((ran.stdout.as_str(), ran.code()), ("begun\nend\n", 0), "{ran:?}");
    assert_eq!(checkout.show(&id)["state"], "succeeded");
    let history = checkout.history(&id);
    let stopped = history.iter().position(|event| event["type"] == "execution.suspended");
    let at = stopped.expect("the worker says itself that it was stopped");
    assert_eq!(history[at + 1]["type"], "execution.resumed");
    assert!(history[at + 1]["data"]["suspended_ms"].as_u64() > Some(0));
}

#[test]
fn a_worker_that_comes_back_too_late_is_told_and_moves_nothing() {
    let checkout = checkout(&shell("late", WAITS, "on_worker_loss = 'leave'"));
    let _broker = checkout.serve(&[("heartbeat", "100ms"), ("silence", "600ms")]);
    let (run, id) = running(&checkout, "late");
    run.signal(Signal::STOP);
    let failed = checkout.until_state("late", "failed");
    assert_eq!(
        (&failed["error"]["code"], &failed["error"]["reason"]),
        (&"unavailable".into(), &"silent".into())
    );
    let before = checkout.history(&id);
    checkout.write("go", "");
    run.signal(Signal::CONT);
    let ran = run.wait();
    assert!(ran.stdout.ends_with("end\n"), "its own terminal still sees what it did: {ran:?}");
    let late = until("the late report", || {
        Some(checkout.show(&id)).filter(|shown| shown["overlay"]["late_report"].is_object())
    });
    assert_eq!(late["state"], "failed");
    assert_eq!(late["overlay"]["late_report"]["state"], "succeeded");
    assert_eq!(checkout.history(&id), before);
}

#[test]
fn what_a_silent_worker_runs_is_ended_once_it_is_gone() {
    let checkout = checkout(&shell("silent", WAITS, "cancel_grace = '200ms'"));
    let _broker = checkout.serve(&[("heartbeat", "100ms"), ("silence", "600ms")]);
    let (mut run, id) = running(&checkout, "silent");
    run.signal(Signal::STOP);
    checkout.until_state("silent", "failed");
    assert!(!marked_with(&id).is_empty(), "who may come back is not robbed of its processes");
    run.kill();
    until("its tree to be gone", || marked_with(&id).is_empty().then_some(()));
    assert_eq!(checkout.show(&id)["state"], "failed");
}

#[test]
fn a_broker_and_a_worker_that_sleep_together_wake_as_before() {
    let checkout = checkout(&shell("asleep", WAITS, ""));
    let broker = checkout.serve(&[("heartbeat", "100ms"), ("silence", "1s")]);
    let (run, id) = running(&checkout, "asleep");
    run.signal(Signal::STOP);
    broker.signal(Signal::STOP);
    // Far beyond the silence: there is nothing else to wait for than time itself.
    std::thread::sleep(std::time::Duration::from_secs(2));
    broker.signal(Signal::CONT);
    run.signal(Signal::CONT);
    checkout.write("go", "");
    let ran = run.wait();
    assert_eq!(ran.code(), 0, "{ran:?}");
    assert_eq!(checkout.show(&id)["state"], "succeeded");
}

#[test]
fn a_busy_machine_loses_nobody_heavy() {
    let script = "n=0; while test $n -lt 100; do echo $n; n=$((n + 1)); sleep 0.02; done";
    let checkout = checkout(&shell("busy", script, ""));
    let _broker = checkout.serve(&[("heartbeat", "200ms"), ("silence", "4s")]);
    let mut spin = std::process::Command::new("sh");
    spin.args(["-c", "while :; do :; done"]);
    let _busy: Vec<Running> = (0..8).map(|_| Running::spawn(&mut spin)).collect();
    let ran = checkout.run(["run", "busy"]);
    assert_eq!((ran.stdout.lines().count(), ran.code()), (100, 0), "{ran:?}");
    assert_eq!(checkout.list()[0]["state"], "succeeded");
}
