//! Trust, from outside: what the broker runs for others, and what it does not.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use reeve_tests::{Checkout, Running, until};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};

use crate::{Answer, MANIFEST, Served, start};

const URL: &str = "/api/v1/executions/start";

fn checkout(manifest: &str) -> Checkout {
    Checkout::new(env!("CARGO_BIN_EXE_reeve-under-test"), manifest)
}

/// Serves a checkout that nobody has trusted.
fn untrusted() -> Served {
    let checkout = checkout(MANIFEST);
    let broker = checkout.serve_as_it_is(&[]);
    Served::by(checkout, broker)
}

/// Says whether a start got past the question of trust.
fn is_past_trust(answer: &Answer) -> bool {
    answer.status == 200 || !["untrusted", "changed"].contains(&answer.reason().as_str())
}

fn standing(checkout: &Checkout) -> Value {
    let listed = checkout.json(["capabilities", "list"])["trust"].clone();
    assert_eq!(checkout.json(["status"])["trust"], listed, "status and list agree");
    listed
}

#[test]
fn what_nobody_trusted_runs_for_nobody_else() {
    let served = untrusted();
    let checkout = &served.checkout;
    assert_eq!(standing(checkout), "untrusted");
    let refused = served.post(URL, &start(0));
    assert_eq!(refused.status, 409, "{refused:?}");
    let fault = refused.json()["error"].clone();
    assert_eq!(fault["code"], "ACTION_UNAVAILABLE");
    assert_eq!(fault["reason"], "untrusted");
    assert_eq!((&fault["stage"], &fault["side_effect"]), (&json!("usable"), &json!("none")));
    assert!(fault["suggestion"].as_str().is_some_and(|it| it.contains("reeve trust")), "{fault}");
    served.still_fine();
    // What is wrong with the call itself is told first.
    assert_eq!(served.post(URL, &start(61)).status, 400);

    let unasked = checkout.run(["trust"]);
    assert_eq!(unasked.code(), 4, "{unasked:?}");
    assert!(unasked.stderr.contains("--yes"), "{unasked:?}");
    assert!(unasked.stderr.contains("test (read): [\"sleep\", \"{seconds}\"]"), "{unasked:?}");
    assert_eq!(served.post(URL, &start(0)).reason(), "untrusted");

    let trusted = checkout.run(["trust", "--yes"]);
    assert_eq!(trusted.code(), 0, "{trusted:?}");
    assert_eq!(standing(checkout), "trusted");
    let answer = served.post(URL, &start(0));
    assert!(is_past_trust(&answer), "the broker asks at each start: {answer:?}");
    let again = checkout.json(["trust"]);
    assert_eq!(again["before"], "trusted", "what is trusted needs no answer");
}

/// Starts a command on a terminal, at which this is typed.
fn on_terminal(checkout: &Checkout, args: &[&str], typed: &[u8]) -> (Running, OwnedFd) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("it can be used");
    let name = ptsname(&terminal, Vec::new()).expect("it has a name");
    let name = name.into_string().expect("its name is text");
    let end = File::options().read(true).write(true).open(name).expect("its other end");
    rustix::io::write(&terminal, typed).expect("somebody can type");
    let mut command = checkout.command(args);
    command.stdin(end.try_clone().expect("one more")).stderr(end).stdout(Stdio::piped());
    let child = command.spawn().expect("the binary under test starts");
    (Running::of(child), terminal)
}

#[test]
fn a_person_at_a_terminal_is_asked_once() {
    let checkout = checkout(MANIFEST);
    for (typed, code, after) in
        [("n\n", 4, "untrusted"), ("\n", 4, "untrusted"), ("y\n", 0, "trusted")]
    {
        let (trust, _terminal) = on_terminal(&checkout, &["trust"], typed.as_bytes());
        assert_eq!(trust.wait().code(), code, "{typed:?}");
        assert_eq!(standing(&checkout), after, "{typed:?}");
    }
    for (typed, after) in [("n\n", "changed"), ("y\n", "trusted")] {
        checkout.write("reeve.toml", &format!("# changed\n{MANIFEST}"));
        let (broker, _terminal) = on_terminal(&checkout, &["serve"], typed.as_bytes());
        until("the broker's lease", || checkout.lease());
        assert_eq!(standing(&checkout), after, "{typed:?}");
        assert_eq!(checkout.run(["stop"]).code(), 0);
        assert_eq!(broker.wait().code(), 0);
    }
}

#[test]
fn a_change_ends_trust_and_is_shown() {
    let served = Served::new();
    let checkout = &served.checkout;
    assert!(is_past_trust(&served.post(URL, &start(0))));
    checkout.write("reeve.toml", &MANIFEST.replace("\"sleep\", \"{s", "\"nap\", \"{s"));
    let refused = until("the change to be taken up", || {
        Some(served.post(URL, &start(0))).filter(|answer| !is_past_trust(answer))
    });
    assert_eq!(refused.reason(), "changed");
    let message = refused.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("- command = [\"sleep\""), "{message}");
    assert!(message.contains("+ command = [\"nap\""), "{message}");
    assert_eq!(standing(checkout), "changed");
    let shown = checkout.run(["trust"]);
    assert_eq!(shown.code(), 4);
    assert!(shown.stderr.contains("+ command = [\"nap\""), "{shown:?}");

    assert_eq!(checkout.run(["trust", "--yes"]).code(), 0);
    assert!(is_past_trust(&served.post(URL, &start(0))));
    // The old text is trusted no longer.
    checkout.write("reeve.toml", MANIFEST);
    until("the old text to be taken up", || {
        (!is_past_trust(&served.post(URL, &start(0)))).then_some(())
    });
}

#[test]
fn a_persons_own_run_needs_no_trust() {
    let checkout = checkout("[capability.hello]\ncommand = [\"echo\", \"hello\"]\n");
    let _broker = checkout.serve_as_it_is(&[]);
    let ran = checkout.run(["run", "hello"]);
    assert_eq!((ran.code(), ran.stdout.contains("hello")), (0, true), "{ran:?}");
    assert_eq!(checkout.run(["exec", "--", "true"]).code(), 0);
    assert_eq!(standing(&checkout), "untrusted");
}

#[test]
fn what_init_wrote_is_trusted() {
    let checkout = checkout("");
    fs::remove_file(checkout.root().join("reeve.toml")).expect("a file can be removed");
    assert_eq!(checkout.run(["init"]).code(), 0);
    assert_eq!(standing(&checkout), "trusted");
    let text = checkout.read("reeve.toml").expect("it was written");
    checkout.write("reeve.toml", &format!("# mine\n{text}"));
    assert_eq!(standing(&checkout), "changed");
}

#[test]
fn a_manifest_that_others_may_write_is_trusted_only_on_demand() {
    let checkout = checkout(MANIFEST);
    let path = checkout.root().join("reeve.toml");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).expect("a mode can be set");
    let refused = checkout.run(["trust", "--yes"]);
    assert_eq!(refused.code(), 4, "{refused:?}");
    assert!(refused.stderr.contains("--trust-writable"), "{refused:?}");
    assert_eq!(standing(&checkout), "untrusted");
    let ran = checkout.run(["run", "test", "--set", "seconds=0"]);
    assert_eq!(ran.code(), 0);
    assert!(ran.stderr.contains("other users may write"), "a run warns: {ran:?}");
    assert_eq!(checkout.run(["trust", "--yes", "--trust-writable"]).code(), 0);
    assert_eq!(standing(&checkout), "trusted");
}

/// A record is this checkout's: copied to another one it says nothing, and nothing in a checkout
/// can say that it is trusted.
#[test]
fn nothing_inside_a_checkout_moves_trust() {
    let checkout = checkout(MANIFEST);
    for key in
        ["trust = true", "[trust]\nyes = true", "[policy]\ntrust = \"allow\"", "bind = \"x\""]
    {
        checkout.write("reeve.toml", &format!("{key}\n{MANIFEST}"));
        let refused = checkout.run(["trust", "--yes"]);
        assert_eq!(refused.code(), 2, "{key}: {refused:?}");
        assert!(refused.stderr.contains("unknown"), "{key}: {refused:?}");
    }
    checkout.write("reeve.toml", MANIFEST);
    assert_eq!(checkout.run(["trust", "--yes"]).code(), 0);
    let states = fs::read_dir(checkout.home().join("state")).expect("there is state");
    let record = states.flatten().map(|entry| entry.path().join("trust.json"));
    let record = record.filter(|path| path.exists()).collect::<Vec<_>>().remove(0);
    let mode = fs::metadata(&record).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert!(!record.starts_with(checkout.root()));
    // The checkout becomes another one: its git directory lies elsewhere now.
    assert_eq!(standing(&checkout), "trusted");
    let moved = checkout.home().join("elsewhere.git");
    fs::rename(checkout.root().join(".git"), &moved).expect("it can be moved");
    checkout.write(".git", &format!("gitdir: {}\n", moved.display()));
    assert_eq!(standing(&checkout), "untrusted");
}

#[test]
fn what_a_person_has_to_agree_to_is_denied_where_none_can_be_asked() {
    let manifest = r#"
[capability.deploy]
command = ["sleep", "{seconds}"]
effect = "dangerous"
input = { required = ["seconds"], properties.seconds = { type = "integer" } }
[capability.always]
command = ["true"]
effect = "read"
confirm = "always"
"#;
    let served = Served::of(manifest, &[]);
    for (id, input) in [("deploy", json!({ "seconds": 0 })), ("always", json!({}))] {
        let denied = served.post(URL, &json!({ "capability": id, "input": input }));
        assert_eq!(denied.status, 403, "{denied:?}");
        let fault = denied.json()["error"].clone();
        assert_eq!(
            (&fault["code"], &fault["reason"]),
            (&json!("PERMISSION_DENIED"), &json!("no_channel"))
        );
        assert_eq!((&fault["stage"], &fault["side_effect"]), (&json!("confirm"), &json!("none")));
    }
    let invalid = served.post(URL, &json!({ "capability": "deploy", "input": {} }));
    assert_eq!(invalid.status, 400, "an input is checked first: {invalid:?}");
    served.still_fine();
    assert_eq!(served.checkout.run(["run", "deploy", "--set", "seconds=0"]).code(), 0);
}
