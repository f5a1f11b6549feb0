//! A broker that is killed, stopped, suspended or replaced: work and readers go on.

use std::os::unix::fs::MetadataExt;

use reeve_tests::{Checkout, Running, until};
use rustix::process::Signal;
use serde_json::Value;

use crate::{assert_dense, checkout, documents, id_of, lines_of, pid_in, shell};

const STEPS: &str = "for n in 1 2 3; do echo $n; until test -e go$n; do sleep 0.01; done; done
echo $$ > pid; exit 5";

fn running(checkout: &Checkout, format: &str) -> (Running, String) {
    let run = checkout.spawn(["run", "steps", "--format", format]);
    run.until_stdout("1");
    (run, id_of(&checkout.until_state("steps", "running")).to_owned())
}

/// Waits until the broker knows an execution again, and its worker with it.
fn until_known(checkout: &Checkout, id: &str) {
    until("the worker to come back", || {
        checkout.list().iter().find(|one| id_of(one) == id && one["state"] == "running").map(|_| ())
    });
}

/// Checks that what a run told as documents is what the broker keeps.
fn assert_told(checkout: &Checkout, run: Running, first: &str, id: &str) {
    let ran = run.wait();
    assert_eq!(ran.code(), 1, "{ran:?}");
    let history = checkout.history(id);
    assert_dense(&history);
    assert_eq!(lines_of(&history, "stdout"), ["1", "2", "3"]);
    let mut told = documents(&format!("{first}{}", ran.stdout));
    told.sort_by_key(|event: &Value| event["sequence"].as_u64());
    let tail = history.len() - told.len();
    assert_eq!(told, history[tail..]);
    assert_eq!(checkout.show(id)["state"], "failed");
}

#[test]
fn a_killed_broker_costs_a_run_nothing() {
    let checkout = checkout(&shell("steps", STEPS, ""));
    let mut broker = checkout.serve(&[]);
    let (run, id) = running(&checkout, "ndjson");
    broker.kill();
    checkout.write("go1", "");
    let second = run.until_stdout("\"2\"");
    let _broker = checkout.serve(&[]);
    until_known(&checkout, &id);
    checkout.write("go2", "");
    checkout.write("go3", "");
    assert_told(&checkout, run, &second, &id);
}

#[test]
fn a_run_goes_on_through_a_stop_and_a_start() {
    let checkout = checkout(&shell("steps", STEPS, ""));
    let broker = checkout.serve(&[]);
    let (run, id) = running(&checkout, "ndjson");
    let stopped = checkout.run(["stop"]);
    assert_eq!(stopped.code(), 0, "{stopped:?}");
    assert_eq!(broker.wait().code(), 0);
    checkout.write("go1", "");
    checkout.write("go2", "");
    let third = run.until_stdout("\"3\"");
    let _broker = checkout.serve(&[]);
    until_known(&checkout, &id);
    checkout.write("go3", "");
    assert_told(&checkout, run, &third, &id);
}

#[test]
fn a_run_ends_by_itself_when_its_broker_is_gone_for_good() {
    let checkout = checkout(&shell("steps", STEPS, ""));
    let mut broker = checkout.serve(&[]);
    let (run, _) = running(&checkout, "text");
    broker.kill();
    ["go1", "go2", "go3"].iter().for_each(|go| checkout.write(go, ""));
    let ran = run.wait();
    assert_eq!(ran.code(), 1, "{ran:?}");
    assert!(ran.stdout.ends_with("2\n3\n"), "{ran:?}");
}

#[test]
fn a_suspended_broker_neither_slows_nor_changes_a_run() {
    let checkout = checkout(&shell("steps", STEPS, ""));
    let broker = checkout.serve(&[]);
    let (run, id) = running(&checkout, "text");
    broker.signal(Signal::STOP);
    ["go1", "go2", "go3"].iter().for_each(|go| checkout.write(go, ""));
    pid_in(&checkout, "pid");
    let ran = run.wait();
    broker.signal(Signal::CONT);
    assert_eq!(ran.code(), 1, "{ran:?}");
    let failed = until("the end to be known", || {
        Some(checkout.show(&id)).filter(|shown| shown["state"] == "failed")
    });
    assert_eq!(failed["error"]["reason"], "exit_code", "the broker takes what was sent to it");
    assert_eq!(lines_of(&checkout.history(&id), "stdout"), ["1", "2", "3"]);
}

#[test]
fn a_run_that_begins_while_the_broker_is_suspended_runs() {
    let checkout = checkout(&shell("quick", "echo ran", ""));
    let broker = checkout.serve(&[]);
    broker.signal(Signal::STOP);
    let ran = checkout.run(["run", "quick"]);
    broker.signal(Signal::CONT);
    assert_eq!((ran.stdout.as_str(), ran.code()), ("ran\n", 0), "{ran:?}");
}

#[test]
fn two_runs_at_once_are_two_executions() {
    let script = "until test -e go; do sleep 0.01; done";
    let checkout = checkout(&shell("twin", script, ""));
    let _broker = checkout.serve(&[]);
    let runs = [checkout.spawn(["run", "twin"]), checkout.spawn(["run", "twin"])];
    let list = until("both to run", || {
        let list = checkout.list();
        (list.iter().filter(|one| one["state"] == "running").count() == 2).then_some(list)
    });
    assert_ne!(list[0]["id"], list[1]["id"]);
    let mut seen: Vec<_> = list.iter().filter_map(|one| one["actor"]["pid"].as_u64()).collect();
    let mut pids: Vec<u64> = runs.iter().map(|run| run.pid().into()).collect();
    seen.sort_unstable();
    pids.sort_unstable();
    assert_eq!(seen, pids);
    checkout.write("go", "");
    runs.into_iter().for_each(|run| assert_eq!(run.wait().code(), 0));
}

#[test]
fn a_watcher_goes_on_from_its_cursor_at_the_next_broker() {
    let checkout = checkout(&shell("steps", STEPS, ""));
    let mut broker = checkout.serve(&[]);
    let (run, id) = running(&checkout, "text");
    let watch = checkout.spawn(["executions", "watch", &id, "--format", "ndjson"]);
    let mut seen = watch.until_stdout("\"1\"");
    broker.kill();
    watch.until_stderr("connecting again");
    checkout.write("go1", "");
    let _broker = checkout.serve(&[]);
    until_known(&checkout, &id);
    checkout.write("go2", "");
    seen.push_str(&watch.until_stdout("\"3\""));
    checkout.write("go3", "");
    assert_eq!(run.wait().code(), 1);
    let watched = watch.wait();
    assert_eq!(watched.code(), 1, "{watched:?}");
    seen.push_str(&watched.stdout);
    let positions: Vec<u64> =
        documents(&seen).iter().filter_map(|event| event["sequence"].as_u64()).collect();
    assert!(positions.is_sorted_by(|one, next| one < next), "nothing twice: {positions:?}");
    let last = checkout.history(&id).len() as u64;
    assert_eq!(positions.last(), Some(&last));
}

#[test]
fn a_watcher_that_is_cut_off_for_good_does_not_look_like_one_that_saw_the_end() {
    let checkout = checkout(&shell("steps", STEPS, ""));
    let mut broker = checkout.serve(&[]);
    let (_run, id) = running(&checkout, "text");
    let watch = checkout.spawn(["executions", "watch", &id, "--patience", "300ms"]);
    watch.until_stdout("1");
    broker.kill();
    let watched = watch.wait();
    assert_eq!(watched.code(), 75, "{watched:?}");
    assert!(watched.stderr.contains("may go on"), "{watched:?}");
}

#[test]
fn a_lock_that_a_run_holds_is_held_at_the_next_broker_too() {
    let script = "echo x >> begun; until test -e go; do sleep 0.01; done";
    let checkout = checkout(&shell("one", script, "overlap = 'serial'"));
    let mut broker = checkout.serve(&[]);
    let first = checkout.spawn(["run", "one"]);
    let holder = checkout.until_state("one", "running");
    until("it to begin", || checkout.read("begun"));
    broker.kill();
    let _broker = checkout.serve(&[]);
    until_known(&checkout, id_of(&holder));
    let second = checkout.spawn(["run", "one"]);
    let waiting = checkout.until_state("one", "queued");
    assert_eq!(waiting["overlay"]["waiting_on"]["execution_id"], holder["id"]);
    assert_eq!(checkout.read("begun").as_deref(), Some("x\n"));
    checkout.write("go", "");
    assert_eq!((first.wait().code(), second.wait().code()), (0, 0));
    assert_eq!(checkout.read("begun").as_deref(), Some("x\nx\n"));
}

/// What a broker knows of tokens and inputs stays in it: no core file, nothing for other processes
/// of its user under `/proc`.
#[test]
fn a_broker_keeps_its_memory_to_itself() {
    let checkout = checkout("");
    let broker = checkout.serve(&[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", broker.pid()));
    let limits = limits.expect("its limits can be read");
    let core = limits.lines().find(|line| line.starts_with("Max core file size"));
    let soft = core.and_then(|line| line.split_whitespace().nth(4));
    assert_eq!(soft, Some("0"), "{limits}");
    let environ = format!("/proc/{}/environ", broker.pid());
    let owner = std::fs::metadata(environ).expect("it is there").uid();
    assert_eq!(owner, 0, "it belongs to root, whoever serves");
    // Whoever must find the broker still does.
    assert_eq!(checkout.json(["status"])["serving"], true);
}
