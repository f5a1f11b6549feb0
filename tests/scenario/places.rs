//! Which broker serves where: one per checkout, found by every path, whatever lies in its way.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use reeve_tests::{Checkout, Running, until};
use rustix::process::Signal;

use crate::{checkout, id_of, shell};

fn serving_pid(checkout: &Checkout, dir: &Path) -> Option<u64> {
    let dir = dir.to_str().expect("a test's path is UTF-8");
    checkout.json(["-C", dir, "status"])["pid"].as_u64()
}

#[test]
fn of_many_that_start_together_exactly_one_serves_heavy() {
    let checkout = checkout("");
    let mut brokers: Vec<Running> = (0..30).map(|_| checkout.spawn(["serve"])).collect();
    until("one to be left", || {
        (brokers.iter_mut().filter_map(|it| it.is_running().then_some(())).count() == 1)
            .then_some(())
    });
    let pid = serving_pid(&checkout, checkout.root()).expect("one serves");
    for broker in brokers {
        let serves = u64::from(broker.pid()) == pid;
        if serves {
            assert_eq!(checkout.run(["stop"]).code(), 0);
        }
        let ran = broker.wait();
        assert_eq!(ran.code(), 0, "{ran:?}");
        assert_eq!(ran.stderr.contains("already served"), !serves, "{ran:?}");
    }
}

#[test]
fn every_path_to_a_checkout_leads_to_its_broker() {
    let checkout = checkout(&shell("where", "pwd", ""));
    let below = checkout.root().join("a/b");
    fs::create_dir_all(&below).expect("directories can be made");
    symlink(checkout.root(), checkout.home().join("link")).expect("a link can be made");
    let broker = checkout.serve(&[]);
    let link = checkout.home().join("link");
    for dir in [checkout.root(), &below, &link, &link.join("a"), &below.join("../..")] {
        assert_eq!(serving_pid(&checkout, dir), Some(broker.pid().into()), "{}", dir.display());
    }
    let mut run = checkout.command(["run", "where"]);
    let ran = run.current_dir(&below).output().expect("it runs");
    let root = fs::canonicalize(checkout.root()).expect("it is there");
    assert_eq!(String::from_utf8_lossy(&ran.stdout).trim_end(), root.to_string_lossy());
}

#[test]
fn a_linked_worktree_is_a_checkout_of_its_own() {
    let checkout = checkout("");
    fs::remove_dir_all(checkout.root().join(".git")).expect("it is there");
    let git = |args: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=t", "-c", "user.email=t@t.invalid"]).args(args);
        let output = git.current_dir(checkout.root()).env("HOME", checkout.home()).output();
        assert!(output.as_ref().is_ok_and(|it| it.status.success()), "{args:?} {output:?}");
    };
    git(&["init", "-q", "-b", "main"]);
    git(&["add", "reeve.toml"]);
    git(&["commit", "-q", "-m", "first"]);
    git(&["worktree", "add", "-q", "-b", "side", "../linked"]);
    let linked = checkout.home().join("linked");
    let first = checkout.serve(&[]);
    assert_eq!(serving_pid(&checkout, &linked), None);
    let mut second = checkout.command(["serve"]);
    let second = Running::spawn(second.current_dir(&linked));
    let pid = until("the second broker", || serving_pid(&checkout, &linked));
    assert_eq!(pid, u64::from(second.pid()));
    assert_eq!(serving_pid(&checkout, checkout.root()), Some(first.pid().into()));
    let exec = checkout.command(["exec", "--", "true"]).current_dir(&linked).status();
    assert!(exec.is_ok_and(|status| status.success()));
    let list =
        |dir: &Path| checkout.json(["-C", dir.to_str().expect("UTF-8"), "executions", "list"]);
    assert_eq!(
        (list(checkout.root())["count"].as_u64(), list(&linked)["count"].as_u64()),
        (Some(0), Some(1))
    );
    assert_eq!(list(&linked)["executions"][0]["repository"]["branch"], "side");
}

#[test]
fn a_long_path_is_no_obstacle() {
    let checkout = checkout("");
    let long = checkout.root().join(format!("{0}/{0}", "d".repeat(150)));
    fs::create_dir_all(long.join(".git")).expect("a long path can be made");
    fs::write(long.join(".git/HEAD"), "ref: refs/heads/main\n").expect("written");
    fs::write(long.join("reeve.toml"), shell("one", "echo ran", "")).expect("written");
    let mut broker = checkout.command(["serve"]);
    let broker = Running::spawn(broker.current_dir(&long));
    until("the broker", || serving_pid(&checkout, &long));
    let ran = checkout.command(["run", "one"]).current_dir(&long).output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "ran\n", "{ran:?}");
    assert!(!String::from_utf8_lossy(&ran.stderr).contains("no broker"));
    let list = checkout.json(["-C", long.to_str().expect("UTF-8"), "executions", "list"]);
    assert_eq!(list["count"], 1);
    drop(broker);
}

#[test]
fn a_dead_brokers_leavings_stand_in_nobodys_way() {
    let checkout = checkout("");
    let mut broker = checkout.serve(&[]);
    let lease = checkout.lease().expect("it serves");
    broker.kill();
    let status = checkout.run(["status"]);
    assert!(status.stderr.contains(&format!("pid {}", lease.pid)), "{status:?}");
    let state = fs::read_dir(checkout.home().join("state")).expect("it is there").flatten();
    let file = state.map(|it| it.path()).next().expect("one checkout").join("lease.json");
    let foreign = serde_json::to_string(&lease)
        .expect("JSON")
        .replace(&format!("\"pid\":{}", lease.pid), &format!("\"pid\":{}", std::process::id()));
    for debris in ["", "garbage \u{0}", "{}", &foreign, &"x".repeat(100_000)] {
        fs::write(&file, debris).expect("written");
        let ran = checkout.run(["exec", "--", "true"]);
        assert_eq!(ran.code(), 0, "{ran:?}");
        let mut broker = checkout.serve(&[]);
        assert_eq!(serving_pid(&checkout, checkout.root()), Some(broker.pid().into()));
        broker.kill();
        assert!(lease.socket.exists(), "what is killed leaves its socket");
    }
}

#[test]
fn a_socket_that_is_deleted_under_a_living_broker_comes_back() {
    let checkout = checkout(&shell("one", "true", ""));
    let broker = checkout.serve(&[]);
    let lease = checkout.lease().expect("it serves");
    fs::remove_file(&lease.socket).expect("it is there");
    let mut second = checkout.spawn(["serve"]);
    assert_eq!(serving_pid(&checkout, checkout.root()), Some(broker.pid().into()));
    until("the second to leave", || (!second.is_running()).then_some(()));
    assert_eq!(checkout.run(["run", "one"]).code(), 0);
    assert_eq!(checkout.list()[0]["state"], "succeeded");
}

#[test]
fn a_broker_is_found_with_nothing_but_a_home() {
    let checkout = checkout(&shell("one", "true", ""));
    let bare = |args: &[&str]| {
        let mut command = checkout.command(args);
        command.env_clear().env("HOME", checkout.home()).env("PATH", "/usr/bin:/bin");
        command
    };
    let broker = Running::spawn(&mut bare(&["serve"]));
    until("the broker", || {
        let output = bare(&["status", "--format", "json"]).output().expect("it runs");
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        (status["pid"] == broker.pid()).then_some(())
    });
    let mut session = bare(&["run", "one"]);
    let output = session.env("XDG_RUNTIME_DIR", checkout.home()).output().expect("it runs");
    assert!(
        output.status.success() && !String::from_utf8_lossy(&output.stderr).contains("no broker")
    );
}

#[test]
fn whatever_the_mask_its_files_are_its_users_alone() {
    let checkout = checkout("");
    let reeve = env!("CARGO_BIN_EXE_reeve-under-test");
    let command = checkout.command(["serve"]);
    let mut masked = Command::new("sh");
    masked.args(["-c", "umask 000; exec \"$0\" serve", reeve]).current_dir(checkout.root());
    masked.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    masked.stdin(Stdio::null());
    let _broker = Running::spawn(&mut masked);
    let lease = until("the lease", || checkout.lease());
    let mode = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o777;
    assert_eq!(mode(&lease.socket), 0o600);
    assert_eq!(mode(lease.socket.parent().expect("it has one")), 0o700);
    let state = fs::read_dir(checkout.home().join("state")).expect("it is there").flatten();
    for place in state.map(|it| it.path()) {
        assert_eq!(mode(&place), 0o700);
        for file in fs::read_dir(&place).expect("it is a directory").flatten() {
            assert_eq!(mode(&file.path()), 0o600, "{}", file.path().display());
        }
    }
}

#[test]
fn a_place_that_others_may_write_is_refused() {
    let checkout = checkout("");
    checkout.serve(&[]).kill();
    let state = fs::read_dir(checkout.home().join("state")).expect("it is there").flatten();
    let place = state.map(|it| it.path()).next().expect("one checkout");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).expect("its mode can be set");
    let refused = checkout.run(["serve"]);
    assert_eq!(refused.code(), 1, "{refused:?}");
    assert!(refused.stderr.contains("chmod 700"), "{refused:?}");
}

#[test]
fn a_suspended_broker_is_never_taken_over_and_is_named() {
    let checkout = checkout(&shell("one", "true", ""));
    let broker = checkout.serve(&[]);
    broker.signal(Signal::STOP);
    let second = checkout.run(["serve"]);
    assert_eq!(second.code(), 0, "{second:?}");
    assert!(second.stderr.contains(&format!("pid {}", broker.pid())), "{second:?}");
    let status = checkout.run(["status"]);
    assert_eq!(status.code(), 5, "{status:?}");
    let named = format!("pid {}, state T", broker.pid());
    assert!(status.stderr.contains(&named) && status.stderr.contains("--force"), "{status:?}");
    broker.signal(Signal::CONT);
    assert_eq!(serving_pid(&checkout, checkout.root()), Some(broker.pid().into()));
}

#[test]
fn force_ends_a_broker_that_does_not_answer() {
    let checkout = checkout("");
    let mut broker = checkout.serve(&[]);
    broker.signal(Signal::STOP);
    let stopped = checkout.run(["stop", "--force"]);
    assert_eq!(stopped.code(), 0, "{stopped:?}");
    assert!(!broker.is_running());
    assert!(checkout.serve(&[]).is_running());
}

#[test]
fn an_idle_broker_leaves_and_one_with_work_does_not() {
    let script = "echo begun; until test -e go; do sleep 0.01; done";
    let checkout = checkout(&shell("slow", script, ""));
    let mut broker = checkout.spawn(["serve", "--idle", "1s"]);
    until("the lease", || checkout.lease());
    let run = checkout.spawn(["run", "slow"]);
    let slow = checkout.until_state("slow", "running");
    // Longer than it may be idle: what it must not do in that time has no other mark.
    std::thread::sleep(std::time::Duration::from_millis(2_500));
    assert!(broker.is_running());
    assert_eq!(checkout.show(id_of(&slow))["state"], "running");
    checkout.write("go", "");
    assert_eq!(run.wait().code(), 0);
    assert_eq!(broker.wait().code(), 0);
    assert!(checkout.lease().is_none(), "it takes its lease with it");
}
