//! Asking something to stop: it does, all of it, and what happened is told.

use reeve_tests::{Checkout, Running, lives, until};
use rustix::process::Signal;
use serde_json::Value;

use crate::{checkout, id_of, lines_of, pid_in, shell, types_of, until_gone};

/// Starts a capability, waits until its process has written `pid`, and returns its id.
fn running(checkout: &Checkout, capability: &str) -> (Running, String) {
    let run = checkout.spawn(["run", capability]);
    let running = checkout.until_state(capability, "running");
    pid_in(checkout, "pid");
    (run, id_of(&running).to_owned())
}

fn cancel(checkout: &Checkout, id: &str) -> Value {
    checkout.json(["executions", "cancel", id])
}

#[test]
fn a_cancel_is_asked_once_and_ends_as_one() {
    let checkout = checkout(&shell("slow", "echo $$ > pid; exec sleep 600", ""));
    let _broker = checkout.serve(&[]);
    let (run, id) = running(&checkout, "slow");
    let asked = cancel(&checkout, &id);
    assert_eq!((&asked["outcome"], &asked["cancellable"]), (&"requested".into(), &true.into()));
    let ran = run.wait();
    assert_eq!(ran.code(), 130, "{ran:?}");
    let shown = checkout.show(&id);
    assert_eq!(
        (&shown["state"], &shown["error"]["code"]),
        (&"cancelled".into(), &"cancelled".into())
    );
    let history = checkout.history(&id);
    let cancelling: Vec<_> =
        history.iter().filter(|event| event["type"] == "execution.cancelling").collect();
    assert_eq!(cancelling.len(), 1);
    assert!(cancelling[0]["data"]["by"].as_str().is_some_and(|by| by.starts_with("cli (pid ")));
    assert_eq!(cancel(&checkout, &id)["outcome"], "already_finished");
    assert_eq!(checkout.history(&id), history, "nothing follows a final state");
    until_gone(pid_in(&checkout, "pid"));
}

#[test]
fn a_second_cancel_changes_nothing() {
    let script = "trap 'until test -e go; do sleep 0.01; done; exit 1' TERM; echo $$ > pid
while :; do sleep 0.01; done";
    let checkout = checkout(&shell("stubborn", script, "cancel_grace = '10m'"));
    let _broker = checkout.serve(&[]);
    let (run, id) = running(&checkout, "stubborn");
    assert_eq!(cancel(&checkout, &id)["outcome"], "requested");
    checkout.until_state("stubborn", "cancelling");
    assert_eq!(cancel(&checkout, &id)["outcome"], "already_requested");
    checkout.write("go", "");
    assert_eq!(run.wait().code(), 130);
    let history = checkout.history(&id);
    let asked = types_of(&history).into_iter().filter(|it| *it == "cancelling").count();
    assert_eq!(asked, 1);
}

#[test]
fn what_waits_is_cancelled_and_never_begins() {
    let script = "echo $$ > pid; echo x >> begun; until test -e go; do sleep 0.01; done";
    let checkout = checkout(&shell("one", script, "overlap = 'serial'"));
    let _broker = checkout.serve(&[]);
    let (first, _) = running(&checkout, "one");
    let second = checkout.spawn(["run", "one"]);
    let waiting = checkout.until_state("one", "queued");
    let asked = cancel(&checkout, id_of(&waiting));
    assert_eq!(asked["outcome"], "requested");
    assert_eq!(second.wait().code(), 130);
    let shown = checkout.show(id_of(&waiting));
    assert_eq!(shown["state"], "cancelled");
    assert!(shown.get("started_at").is_none() && shown.get("finished_at").is_some());
    checkout.write("go", "");
    assert_eq!(first.wait().code(), 0);
    assert_eq!(checkout.read("begun").as_deref(), Some("x\n"));
}

#[test]
fn a_process_has_time_to_clean_up() {
    let script = "trap 'echo cleaned > cleaned; exit 1' TERM; echo $$ > pid
while :; do sleep 0.01; done";
    let checkout = checkout(&shell("tidy", script, ""));
    let _broker = checkout.serve(&[]);
    let (run, id) = running(&checkout, "tidy");
    cancel(&checkout, &id);
    assert_eq!(run.wait().code(), 130);
    assert_eq!(checkout.read("cleaned").as_deref(), Some("cleaned\n"));
}

#[test]
fn who_ignores_the_request_is_killed_after_its_grace_and_force_waits_for_none() {
    let script = "trap '' TERM INT; echo $$ > pid; while :; do sleep 0.05; done";
    let manifest = shell("deaf", script, "cancel_grace = '1s'")
        + &shell("deaf.long", script, "cancel_grace = '10m'");
    let checkout = checkout(&manifest);
    let _broker = checkout.serve(&[]);
    let (run, id) = running(&checkout, "deaf");
    cancel(&checkout, &id);
    assert_eq!(run.wait().code(), 130);
    until_gone(pid_in(&checkout, "pid"));
    std::fs::remove_file(checkout.root().join("pid")).expect("it is there");
    let (run, id) = running(&checkout, "deaf.long");
    cancel(&checkout, &id);
    checkout.until_state("deaf.long", "cancelling");
    checkout.run(["executions", "cancel", &id, "--force"]);
    assert_eq!(run.wait().code(), 130);
    until_gone(pid_in(&checkout, "pid"));
}

#[test]
fn nothing_of_a_cancelled_tree_is_left() {
    let script = "sleep 611 & echo $! > child
(sleep 612 & echo $! > grandchild)
setsid sh -c 'echo $$ > escaped; exec sleep 613' &
(setsid sh -c '(trap \"\" TERM; echo $$ > hidden; while :; do sleep 0.05; done) &' &)
until test -s escaped && test -s hidden; do sleep 0.01; done
echo $$ > pid
wait";
    let checkout = checkout(&shell("family", script, "cancel_grace = '500ms'"));
    let _broker = checkout.serve(&[]);
    let (run, id) = running(&checkout, "family");
    let pids: Vec<u32> =
        ["pid", "child", "grandchild", "escaped"].map(|file| pid_in(&checkout, file)).into();
    cancel(&checkout, &id);
    assert_eq!(run.wait().code(), 130);
    for pid in pids {
        assert!(!lives(pid), "pid {pid} outlived its execution");
    }
    assert_eq!(marked_with(&id), Vec::<u32>::new());
}

#[test]
fn a_tree_that_grows_all_the_time_ends_too() {
    let script = "echo $$ > pid; while :; do (sleep 614 & sleep 0.02) & sleep 0.01; done";
    let checkout = checkout(&shell("grows", script, "cancel_grace = '200ms'"));
    let _broker = checkout.serve(&[]);
    let (run, id) = running(&checkout, "grows");
    until("some of them", || (marked_with(&id).len() > 20).then_some(()));
    cancel(&checkout, &id);
    assert_eq!(run.wait().code(), 130);
    assert_eq!(marked_with(&id), Vec::<u32>::new());
}

#[test]
fn a_tree_with_a_cgroup_of_its_own_ends_whole_and_leaves_none_behind() {
    let script = "setsid sh -c 'echo $$ > escaped; exec sleep 615' & echo $$ > pid; wait";
    let checkout = checkout(&shell("grouped", script, "cancel_grace = '200ms'"));
    let _broker = checkout.serve(&[]);
    let mut command = checkout.command(["run", "grouped"]);
    let run = Running::spawn(command.env("REEVE_CGROUP", "1"));
    let id = id_of(&checkout.until_state("grouped", "running")).to_owned();
    let escaped = pid_in(&checkout, "escaped");
    cancel(&checkout, &id);
    assert_eq!(run.wait().code(), 130);
    assert!(!lives(escaped), "pid {escaped} outlived its execution");
    assert_eq!(marked_with(&id), Vec::<u32>::new());
}

/// Returns the living processes that were started for an execution.
pub fn marked_with(id: &str) -> Vec<u32> {
    let mark = format!("REEVE_EXECUTION={id}");
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("there is a /proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let marked = environ.split(|byte| *byte == 0).any(|one| one == mark.as_bytes());
        if marked && lives(pid) {
            pids.push(pid);
        }
    }
    pids
}

#[test]
fn an_interrupt_cancels_and_a_second_one_kills() {
    let deaf = "trap 'echo asked > asked' INT TERM; echo $$ > pid; while :; do sleep 0.02; done";
    let manifest = shell("calm", "echo $$ > pid; exec sleep 615", "")
        + &shell("deaf", deaf, "cancel_grace = '10m'");
    let checkout = checkout(&manifest);
    let run = checkout.spawn(["run", "calm"]);
    let pid = pid_in(&checkout, "pid");
    run.signal(Signal::INT);
    let ran = run.wait();
    assert_eq!(ran.code(), 130, "{ran:?}");
    assert!(!lives(pid));
    std::fs::remove_file(checkout.root().join("pid")).expect("it is there");
    let run = checkout.spawn(["run", "deaf"]);
    let pid = pid_in(&checkout, "pid");
    run.signal(Signal::INT);
    until("the first to arrive", || checkout.read("asked"));
    assert!(lives(pid), "one interrupt asks and does not kill");
    run.signal(Signal::INT);
    assert_eq!(run.wait().code(), 130);
    assert!(!lives(pid));
}

#[test]
fn a_timeout_fails_with_its_reason() {
    let checkout = checkout(&shell("late", "echo begun; exec sleep 616", "timeout = '300ms'"));
    let _broker = checkout.serve(&[]);
    let ran = checkout.run(["run", "late"]);
    assert_eq!((ran.stdout.as_str(), ran.code()), ("begun\n", 1), "{ran:?}");
    let shown = checkout.show(id_of(&checkout.until_state("late", "failed")));
    assert_eq!(
        (&shown["error"]["code"], &shown["error"]["reason"]),
        (&"EXECUTION_FAILED".into(), &"timeout".into())
    );
}

#[test]
fn who_ends_well_while_it_is_asked_to_stop_has_succeeded() {
    let script = "trap 'echo finishing; exit 0' TERM; echo $$ > pid; while :; do sleep 0.01; done";
    let checkout = checkout(&shell("finishes", script, ""));
    let _broker = checkout.serve(&[]);
    let (run, id) = running(&checkout, "finishes");
    let wait = checkout.run(["executions", "cancel", &id, "--wait"]);
    assert_eq!(wait.code(), 0, "{wait:?}");
    assert_eq!(run.wait().code(), 0);
    let shown = checkout.show(&id);
    assert_eq!(
        (&shown["state"], &shown["output"]["exit"]["code"]),
        (&"succeeded".into(), &0.into())
    );
    let history = checkout.history(&id);
    assert_eq!(lines_of(&history, "stdout"), ["finishing"]);
    let (types, last) = (types_of(&history), history.len() - 1);
    let asked = types.iter().position(|it| *it == "cancelling").expect("it was asked");
    assert!(asked < last && types[last] == "completed", "{types:?}");
}

#[test]
fn a_process_that_is_stopped_by_a_signal_can_be_cancelled() {
    let checkout =
        checkout(&shell("frozen", "echo $$ > pid; kill -STOP $$", "cancel_grace = '300ms'"));
    let _broker = checkout.serve(&[]);
    let (run, id) = running(&checkout, "frozen");
    cancel(&checkout, &id);
    assert_eq!(run.wait().code(), 130);
    assert!(!lives(pid_in(&checkout, "pid")));
}

#[test]
fn what_cannot_be_cancelled_runs_to_its_end_unless_it_is_forced() {
    let script = "echo $$ > pid; until test -e go; do sleep 0.01; done; echo end";
    let checkout = checkout(&shell("fixed", script, "cancellable = false"));
    let _broker = checkout.serve(&[]);
    let (run, id) = running(&checkout, "fixed");
    let asked = checkout.run(["executions", "cancel", &id, "--format", "json"]);
    assert!(asked.stdout.contains("\"cancellable\": false"), "{asked:?}");
    assert!(asked.stderr.contains("may run to its end"), "{asked:?}");
    until("the wish to be on record", || {
        (checkout.show(&id)["state"] == "cancelling").then_some(())
    });
    checkout.write("go", "");
    assert_eq!(run.wait().code(), 0);
    assert_eq!(checkout.show(&id)["state"], "succeeded");

    std::fs::remove_file(checkout.root().join("go")).expect("it can be removed");
    let (run, id) = running(&checkout, "fixed");
    checkout.run(["executions", "cancel", &id]);
    checkout.run(["executions", "cancel", &id, "--force"]);
    assert_eq!(run.wait().code(), 130);
    assert_eq!(checkout.show(&id)["state"], "cancelled");
}

#[test]
fn what_was_started_to_ignore_a_hangup_goes_on_and_other_work_ends() {
    let script = "echo $$ > pid; until test -e go; do sleep 0.01; done; echo end";
    let checkout = checkout(&shell("long", script, ""));
    let reeve = checkout.command(["run", "long"]);
    let mut command = checkout.command(["run", "long"]);
    let mut wrapped = std::process::Command::new("sh");
    wrapped.args(["-c", "trap '' HUP; exec \"$0\" run long"]).arg(reeve.get_program());
    wrapped.current_dir(checkout.root()).env_clear();
    wrapped.envs(reeve.get_envs().filter_map(|(name, value)| Some((name, value?))));
    wrapped.stdin(std::process::Stdio::null());
    let run = Running::spawn(&mut wrapped);
    pid_in(&checkout, "pid");
    run.signal(Signal::HUP);
    std::thread::sleep(std::time::Duration::from_millis(100));
    checkout.write("go", "");
    let ran = run.wait();
    assert_eq!((ran.code(), ran.stdout.as_str()), (0, "end\n"), "{ran:?}");
    for file in ["pid", "go"] {
        std::fs::remove_file(checkout.root().join(file)).expect("it is there");
    }
    let run = Running::spawn(&mut command);
    pid_in(&checkout, "pid");
    run.signal(Signal::HUP);
    assert_eq!(run.wait().code(), 130);
}
