//! What may run beside what.

use reeve_tests::until;
use rustix::process::Signal;

use crate::{checkout, id_of, pid_in, shell, until_gone};

const HOLDS: &str = "echo $$ > pid; echo 1 >> order; until test -e go; do sleep 0.01; done";

#[test]
fn a_serial_capability_waits_for_itself_and_says_for_whom() {
    let checkout = checkout(&shell("serial", HOLDS, "overlap = 'serial'"));
    let _broker = checkout.serve(&[]);
    let first = checkout.spawn(["run", "serial"]);
    let holder = checkout.until_state("serial", "running");
    pid_in(&checkout, "pid");
    let second = checkout.spawn(["run", "serial"]);
    let waiting = checkout.until_state("serial", "queued");
    let on = &waiting["overlay"]["waiting_on"];
    assert_eq!((&on["kind"], &on["execution_id"]), (&"lock".into(), &holder["id"]));
    second.until_stderr("waits");
    checkout.write("go", "");
    assert_eq!((first.wait().code(), second.wait().code()), (0, 0));
    let (first, second) = (checkout.show(id_of(&holder)), checkout.show(id_of(&waiting)));
    let ended = first["finished_at"].as_str().expect("it ended");
    assert!(second["started_at"].as_str().expect("it began") >= ended);
    assert!(second["overlay"].get("waiting_on").is_none());
}

#[test]
fn a_lock_is_one_for_all_capabilities_that_name_it_and_none_for_others() {
    let more = "overlap = { lock = 'target' }";
    let manifest = shell("first", HOLDS, more)
        + &shell("second", "echo 2 >> order", more)
        + &shell("other", "true", "overlap = { lock = 'elsewhere' }");
    let checkout = checkout(&manifest);
    let _broker = checkout.serve(&[]);
    let first = checkout.spawn(["run", "first"]);
    pid_in(&checkout, "pid");
    let second = checkout.spawn(["run", "second"]);
    checkout.until_state("second", "queued");
    assert_eq!(checkout.run(["run", "other"]).code(), 0, "another lock is in nobody's way");
    assert_eq!(checkout.run(["exec", "--", "true"]).code(), 0);
    checkout.until_state("second", "queued");
    checkout.write("go", "");
    assert_eq!((first.wait().code(), second.wait().code()), (0, 0));
    assert_eq!(checkout.read("order").as_deref(), Some("1\n2\n"));
}

#[test]
fn a_lost_execution_holds_its_lock_while_its_tree_lives() {
    let more = "overlap = 'serial'\non_worker_loss = 'leave'";
    let checkout = checkout(&shell("left", HOLDS, more));
    let _broker = checkout.serve(&[]);
    let mut first = checkout.spawn(["run", "left"]);
    let pid = pid_in(&checkout, "pid");
    let lost = checkout.until_state("left", "running");
    first.kill();
    checkout.until_state("left", "failed");
    assert!(reeve_tests::lives(pid), "it is left alone");
    let second = checkout.spawn(["run", "left"]);
    let on = until("the second to wait for the tree", || {
        let waiting = checkout.until_state("left", "queued");
        let on = waiting["overlay"]["waiting_on"].clone();
        (on["kind"] == "lost_tree").then_some(on)
    });
    assert_eq!(on["execution_id"], lost["id"]);
    assert!(on["detail"].as_str().is_some_and(|it| it.contains(&format!("pid {pid}"))), "{on}");
    assert!(checkout.show(id_of(&lost))["overlay"]["held"].is_string());
    checkout.write("go", "");
    until_gone(pid);
    assert_eq!(second.wait().code(), 0);
    assert!(checkout.show(id_of(&lost))["overlay"].get("held").is_none());
}

#[test]
fn a_lost_execution_lets_go_once_its_tree_was_ended() {
    let checkout = checkout(&shell("ended", HOLDS, "overlap = 'serial'\ncancel_grace = '200ms'"));
    let _broker = checkout.serve(&[]);
    let mut first = checkout.spawn(["run", "ended"]);
    let pid = pid_in(&checkout, "pid");
    let second = checkout.spawn(["run", "ended"]);
    checkout.until_state("ended", "queued");
    first.kill();
    until_gone(pid);
    until("the second to begin", || (pid_in(&checkout, "pid") != pid).then_some(()));
    checkout.write("go", "");
    assert_eq!(second.wait().code(), 0);
}

#[test]
fn who_waits_and_is_killed_makes_room_for_the_next() {
    let checkout = checkout(&shell("serial", HOLDS, "overlap = 'serial'"));
    let _broker = checkout.serve(&[]);
    let first = checkout.spawn(["run", "serial"]);
    pid_in(&checkout, "pid");
    let second = checkout.spawn(["run", "serial"]);
    let gone = checkout.until_state("serial", "queued");
    let third = checkout.spawn(["run", "serial"]);
    until("both to wait", || {
        (checkout.list().iter().filter(|one| one["state"] == "queued").count() == 2).then_some(())
    });
    second.signal(Signal::KILL);
    let failed = checkout.until_state("serial", "failed");
    assert_eq!((&failed["id"], &failed["error"]["side_effect"]), (&gone["id"], &"none".into()));
    checkout.write("go", "");
    assert_eq!((first.wait().code(), third.wait().code()), (0, 0));
    assert_eq!(checkout.read("order").as_deref(), Some("1\n1\n"));
}
