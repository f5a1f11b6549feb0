//! The command line: what is typed wrongly, what is read by other programs, and no broker at all.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use crate::{checkout, shell};

const NOBODY: &str = "x-20260908T010203Z-0a1b2c3d";

#[test]
fn what_is_typed_wrongly_is_a_usage_error_that_starts_nothing() {
    let checkout = checkout(&shell("one", "echo ran > ran", ""));
    for args in [
        &["run", "one", "--input", "{"][..],
        &["run", "one", "--input", "[]"],
        &["run", "one", "--input", r#"{"a": 1, "a": 2}"#],
        &["run", "one", "--input", "@no-such-file"],
        &["run", "one", "--set", "novalue"],
        &["run", ""],
        &["run", "-x"],
        &["executions", "show", ""],
        &["executions", "show", "-x"],
        &["executions", "show", "../../etc/passwd"],
        &["executions", "events", "x-20260908T010203Z-0a1b2c3"],
        &["executions", "cancel", "y-20260908T010203Z-0a1b2c3d"],
        &["executions", "list", "--state", "starting"],
        &["nonsense"],
    ] {
        let ran = checkout.run(args);
        assert_eq!((ran.code(), ran.stdout.as_str()), (2, ""), "{args:?} {ran:?}");
        assert!(!ran.stderr.contains("panicked") && !ran.stderr.is_empty(), "{args:?}");
    }
    let wrong = checkout.run(["run", "one", "--input", "{"]);
    assert!(wrong.stderr.contains("INVALID_ARGS"), "{wrong:?}");
    assert!(checkout.read("ran").is_none());
}

#[test]
fn an_input_that_is_too_large_is_refused_before_anything_begins() {
    let more = "stdin = 'input'\ninput.properties.text.type = 'string'";
    let checkout = checkout(&shell("reads", "echo ran > ran; wc -c", more));
    checkout.write("large.json", &format!("{{\"text\": \"{}\"}}", "x".repeat(2 << 20)));
    let ran = checkout.run(["run", "reads", "--input", "@large.json"]);
    assert_eq!(ran.code(), 2, "{ran:?}");
    assert!(ran.stderr.contains("too_large"), "{ran:?}");
    assert!(checkout.read("ran").is_none());
    checkout.write("fits.json", &format!("{{\"text\": \"{}\"}}", "x".repeat(700_000)));
    let ran = checkout.run(["run", "reads", "--input", "@fits.json"]);
    assert_eq!((ran.stdout.trim(), ran.code()), ("700011", 0), "{}", ran.stderr);
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let checkout = checkout(&(shell("one", "true", "") + &shell("many", "seq 1 100000", "")));
    let _broker = checkout.serve(&[]);
    (0..5).for_each(|_| assert_eq!(checkout.run(["run", "one"]).code(), 0));
    for args in [&["executions", "list"][..], &["run", "many"]] {
        let mut command = checkout.command(args);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary under test starts");
        let mut first = String::new();
        let mut stdout = BufReader::with_capacity(16, child.stdout.take().expect("piped"));
        stdout.read_line(&mut first).expect("there is a line");
        drop(stdout);
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{args:?} {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn without_a_broker_every_command_says_so() {
    let checkout = checkout(&shell("one", "true", ""));
    let list = checkout.run(["executions", "list"]);
    assert_eq!((list.code(), list.stdout.as_str()), (0, ""));
    assert!(list.stderr.contains("no broker serves this checkout"), "{list:?}");
    assert_eq!(checkout.json(["executions", "list"])["count"], 0);
    assert_eq!(checkout.json(["status"])["serving"], false);
    assert_eq!(checkout.json(["stop"])["stopped"], false);
    assert!(checkout.run(["capabilities", "list"]).stdout.contains("one"));
    for args in [
        &["executions", "show", NOBODY][..],
        &["executions", "events", NOBODY],
        &["executions", "cancel", NOBODY],
        &["executions", "watch"],
    ] {
        let ran = checkout.run(args);
        assert_eq!(ran.code(), 5, "{args:?} {ran:?}");
        assert!(ran.stderr.contains("reeve serve"), "{args:?} {ran:?}");
    }
    assert!(!checkout.home().join("state").exists(), "who only looks makes no directory");
}

#[test]
fn an_execution_that_nobody_knows_is_named() {
    let checkout = checkout("");
    let _broker = checkout.serve(&[]);
    for args in [
        &["executions", "show", NOBODY][..],
        &["executions", "events", NOBODY],
        &["executions", "cancel", NOBODY],
        &["executions", "watch", NOBODY],
    ] {
        let ran = checkout.run(args);
        assert_eq!((ran.code(), ran.stdout.as_str()), (3, ""), "{args:?} {ran:?}");
        assert!(ran.stderr.contains(NOBODY), "{args:?} {ran:?}");
    }
}

#[test]
fn help_is_data_and_is_there_for_every_command() {
    let checkout = checkout("");
    for args in [
        &[][..],
        &["run"],
        &["serve"],
        &["executions"],
        &["executions", "watch"],
        &["capabilities"],
        &["init"],
        &["stop"],
        &["status"],
        &["exec"],
    ] {
        let ran = checkout.run([args, &["--help"]].concat());
        assert_eq!(ran.code(), 0, "{args:?} {ran:?}");
        assert!(ran.stdout.contains("Usage:") && ran.stderr.is_empty(), "{args:?} {ran:?}");
    }
}

#[test]
fn what_is_no_utf_8_is_repeated_without_its_power() {
    let checkout = checkout("");
    let ran = checkout.run([OsStr::new("run"), OsStr::from_bytes(b"a\xff\x1b[2J")]);
    assert_eq!(ran.code(), 2);
    assert!(ran.stderr.contains("a\\xff\\x1b[2J") && !ran.stderr.contains('\u{1b}'), "{ran:?}");
    let ran = checkout.run(["run", "\u{1b}[2J"]);
    assert!(ran.code() == 2 && !ran.stderr.contains('\u{1b}'), "{ran:?}");
}

#[test]
fn colour_goes_to_terminals_that_want_it() {
    let checkout = checkout(&shell("one", "exit 1", ""));
    let on_terminal = |env: &[(&str, &str)]| {
        let reeve = env!("CARGO_BIN_EXE_reeve-under-test");
        let mut command = checkout.command(["exec", "--pty", "--", reeve, "run", "one"]);
        command.env("TERM", "xterm").envs(env.iter().copied());
        // What a terminal shows is cleaned on its way, so the colour is looked for at its source.
        command.output().map(|output| output.stdout).expect("it runs")
    };
    let plain = checkout.run(["run", "one"]);
    assert!(!plain.stderr.contains('\u{1b}'), "{plain:?}");
    let coloured = String::from_utf8_lossy(&on_terminal(&[])).into_owned();
    let uncoloured = String::from_utf8_lossy(&on_terminal(&[("NO_COLOR", "1")])).into_owned();
    assert_eq!(coloured, uncoloured);
    assert!(coloured.contains("exited with code 1"), "{coloured}");
}

#[test]
fn pages_of_any_size_are_read_to_their_end() {
    let script = "printf '%01900d\\n' $(seq 1 1500)";
    let checkout = checkout(&(shell("wide", script, "") + &shell("many", "seq 1 7000", "")));
    let _broker = checkout.serve(&[("max_page", "5000")]);
    for (capability, lines) in [("wide", 1_500), ("many", 7_000)] {
        assert_eq!(checkout.run(["run", capability]).code(), 0);
        let id = checkout.list()[0]["id"].as_str().expect("it has an id").to_owned();
        let history = checkout.history(&id);
        crate::assert_dense(&history);
        assert_eq!(crate::lines_of(&history, "stdout").len(), lines);
        let some = checkout.json(["executions", "events", &id, "--after", "5", "--limit", "7"]);
        let some: Vec<_> = some["events"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|it| it["sequence"].as_u64())
            .collect();
        assert_eq!(some, (6..=12).map(Some).collect::<Vec<_>>());
    }
}

#[test]
fn a_list_is_narrowed_and_paged() {
    let checkout = checkout(&(shell("good", "true", "") + &shell("bad", "false", "")));
    let _broker = checkout.serve(&[]);
    for capability in ["good", "bad", "good", "bad", "good"] {
        checkout.run(["run", capability]);
    }
    let count = |args: &[&str]| {
        let list = checkout.json([&["executions", "list"], args].concat());
        assert_eq!(list["remembered"], 5);
        list["executions"].as_array().expect("a list").len()
    };
    assert_eq!(count(&[]), 5);
    assert_eq!(count(&["--state", "failed"]), 2);
    assert_eq!(count(&["--capability", "good"]), 3);
    assert_eq!(count(&["--capability", "good", "--state", "failed"]), 0);
    let all = checkout.list();
    assert!(
        all.is_sorted_by(|one, next| one["created_at"].as_str() >= next["created_at"].as_str())
    );
    assert_eq!(count(&["--limit", "2"]), 2);
    let before = all[1]["id"].as_str().expect("it has an id");
    let rest = checkout.json(["executions", "list", "--before", before]);
    assert_eq!(rest["executions"][0]["id"], all[2]["id"]);
    assert!(checkout.run(["executions", "list", "--limit", "0"]).code() == 2);
}

#[test]
fn completions_pages_and_the_schema_need_no_checkout() {
    let checkout = checkout("");
    let nowhere = checkout.home().join("nowhere-yet");
    std::fs::create_dir(&nowhere).expect("a directory can be made");
    let from = |args: &[&str]| {
        let ran = checkout.command(args).current_dir(&nowhere).output().expect("it starts");
        assert!(ran.status.success(), "{args:?}: {ran:?}");
        String::from_utf8(ran.stdout).expect("it is text")
    };
    for shell in ["bash", "zsh", "fish"] {
        let script = from(&["completions", shell]);
        assert!(script.contains("executions") && script.contains("cancel"), "{shell}");
    }
    let page = from(&["man"]);
    assert!(page.starts_with(".ie") || page.contains(".TH reeve"), "{page}");
    from(&["man", "--dir", "pages"]);
    assert!(nowhere.join("pages/reeve-run.1").is_file());
    let schema: serde_json::Value = serde_json::from_str(&from(&["schema"])).expect("JSON");
    assert_eq!(schema["title"], "reeve.toml");
}
