//! The manifest: what is wrong with one is told at its place, and a broker never loses its own.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use reeve_tests::{Checkout, until};
use serde_json::Value;

use crate::{checkout, shell};

fn declared(checkout: &Checkout) -> Vec<String> {
    let list = checkout.json(["capabilities", "list"]);
    let all = list["capabilities"].as_array().expect("a list");
    let processes = all.iter().filter(|one| one["kind"] == "process");
    processes.filter_map(|one| one["id"].as_str().map(str::to_owned)).collect()
}

#[test]
fn everything_that_is_wrong_is_told_with_its_place_and_what_was_meant() {
    let checkout = checkout(
        "[capability.one]\ncommand = ['true']\ntimout = '1s'\n\n[capability.Two]\ncommand = ['true']\n\n[capability.three]\ncommand = ['true']\ncwd = '../elsewhere'\n",
    );
    for args in [&["run", "one"][..], &["capabilities", "list"]] {
        let refused = checkout.run(args);
        assert_eq!(refused.code(), 2, "{refused:?}");
        let said = &refused.stderr;
        assert!(
            said.contains("reeve.toml:3:1:") && said.contains("did you mean \"timeout\"?"),
            "{said}"
        );
        assert!(said.contains("reeve.toml:5:") && said.contains("reeve.toml:10:"), "{said}");
        assert!(said.contains("^^^^^^"), "{said}");
    }
}

#[test]
fn what_is_no_manifest_at_all_is_refused_and_nothing_runs() {
    let valid = shell("one", "echo ran > ran", "");
    let deep = format!("x = {}{}", "[".repeat(200), "]".repeat(200));
    let twice = format!("{valid}{valid}");
    let huge = format!("{valid}#{}", "x".repeat(2 << 20));
    let many: String =
        (0..1_001).map(|n| format!("[capability.c{n}]\ncommand = ['true']\n")).collect();
    for (text, part) in [
        ("[capability", "reeve.toml:1:"),
        (&deep, "reeve.toml:1:"),
        (&twice, "reeve.toml:"),
        (&huge, "larger than 1 MiB"),
        (&many, "1000"),
        ("a = \"\u{0}\"", "reeve.toml:1:"),
    ] {
        let checkout = checkout(text);
        let refused = checkout.run(["run", "one"]);
        assert_eq!(refused.code(), 2, "{part}");
        assert!(
            refused.stderr.replace([',', '_'], "").contains(part),
            "{part}: {}",
            refused.stderr
        );
        assert!(checkout.read("ran").is_none());
    }
}

#[test]
fn what_is_no_file_of_the_checkout_is_refused_at_once() {
    let checkout = checkout("");
    let path = checkout.root().join("reeve.toml");
    fs::remove_file(&path).expect("it is there");
    let none = checkout.run(["run", "one"]);
    assert_eq!((none.code(), none.stderr.contains("reeve init")), (3, true), "{none:?}");
    let refused = |what: &str| {
        let ran = checkout.run(["run", "one"]);
        assert_eq!(ran.code(), 2, "{what}: {ran:?}");
        ran.stderr
    };
    fs::create_dir(&path).expect("a directory can be made");
    assert!(refused("a directory").contains("no regular file"));
    fs::remove_dir(&path).expect("it is there");
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &path, fifo, rustix::fs::Mode::RUSR, 0).expect("a FIFO");
    assert!(refused("a FIFO").contains("no regular file"));
    fs::remove_file(&path).expect("it is there");
    fs::write(checkout.home().join("outside.toml"), shell("one", "true", "")).expect("written");
    symlink("../outside.toml", &path).expect("a link can be made");
    assert!(refused("a link").contains("out of the checkout"));
    fs::remove_file(&path).expect("it is there");
    fs::write(&path, b"\xff\xfe[\0c\0").expect("written");
    assert!(refused("UTF-16").contains("UTF-8"));
}

#[test]
fn a_manifest_that_others_may_write_is_taken_with_a_warning() {
    let checkout = checkout(&shell("one", "true", ""));
    let path = checkout.root().join("reeve.toml");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("its mode can be set");
    let ran = checkout.run(["run", "one"]);
    assert_eq!(ran.code(), 0, "{ran:?}");
    assert!(ran.stderr.contains("other users may write"), "{ran:?}");
    let trusted = checkout.run(["run", "one", "--trust-writable"]);
    assert!(!trusted.stderr.contains("other users may write"), "{trusted:?}");
}

#[test]
fn an_edit_is_seen_and_a_bad_one_takes_nothing_away() {
    let checkout = checkout(&shell("first", "true", ""));
    let _broker = checkout.serve(&[]);
    assert!(declared(&checkout).contains(&"first".to_owned()));
    checkout.write("reeve.toml", &shell("second", "true", ""));
    until("the edit to be seen", || {
        let now = declared(&checkout);
        (now.contains(&"second".to_owned()) && !now.contains(&"first".to_owned())).then_some(())
    });
    checkout.write("reeve.toml", "[capability.third]\ncomand = ['true']\n");
    let problems = until("the problem to be told", || {
        let problems = checkout.json(["status"])["manifest_problems"].clone();
        problems.as_array().is_some_and(|it| !it.is_empty()).then_some(problems)
    });
    assert!(problems.to_string().contains("reeve.toml:2:1"), "{problems}");
    assert!(declared(&checkout).contains(&"second".to_owned()), "the last good one stands");
    assert!(checkout.run(["capabilities", "list"]).stderr.contains("reeve.toml:2:1"));
    // As an editor does it: a new file takes the name.
    checkout.write("new.toml", &shell("fourth", "true", ""));
    fs::rename(checkout.root().join("new.toml"), checkout.root().join("reeve.toml"))
        .expect("renamed");
    until("the third edit to be seen", || {
        declared(&checkout).contains(&"fourth".to_owned()).then_some(())
    });
    assert_eq!(checkout.json(["status"])["manifest_problems"], Value::Array(Vec::new()));
}

#[test]
fn a_manifest_that_is_deleted_stops_no_work() {
    let script = "echo begun; until test -e go; do sleep 0.01; done";
    let checkout = checkout(&shell("slow", script, ""));
    let _broker = checkout.serve(&[]);
    let run = checkout.spawn(["run", "slow"]);
    checkout.until_state("slow", "running");
    fs::remove_file(checkout.root().join("reeve.toml")).expect("it is there");
    until("the declaration to be gone", || {
        (!declared(&checkout).contains(&"slow".to_owned())).then_some(())
    });
    checkout.write("go", "");
    assert_eq!(run.wait().code(), 0);
    assert_eq!(checkout.list()[0]["state"], "succeeded");
}

#[test]
fn what_init_writes_can_be_listed_and_run() {
    let has = |tool: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(tool).is_file())
    };
    for (file, content, tool, part) in [
        (
            "Cargo.toml",
            "[package]\nname = \"x\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[lib]\npath = \"x.rs\"\n",
            "cargo",
            "cargo",
        ),
        ("package.json", r#"{ "scripts": { "test": "true", "build:all": "true" } }"#, "npm", "npm"),
        (
            "pyproject.toml",
            "[project]\nname = \"x\"\nversion = \"1\"\n[tool.pytest.ini_options]\n",
            "pytest",
            "py",
        ),
        ("Makefile", "all:\n\t@echo made\n\ntest: all\n\t@echo tested\n", "make", "make"),
        ("justfile", "build:\n    echo built\n", "just", "just"),
    ] {
        let checkout = checkout("");
        fs::remove_file(checkout.root().join("reeve.toml")).expect("it is there");
        checkout.write(file, content);
        checkout.write("x.rs", "");
        let ran = checkout.run(["init"]);
        assert_eq!(ran.code(), 0, "{file}: {ran:?}");
        let own: Vec<String> =
            declared(&checkout).into_iter().filter(|id| id != "process.exec").collect();
        assert!(!own.is_empty(), "{file}");
        let written = checkout.read("reeve.toml").expect("it was written");
        assert!(written.contains(part), "{file}: {written}");
        let again = checkout.run(["init"]);
        assert_eq!((again.code(), again.stderr.contains("--force")), (2, true), "{again:?}");
        if file == "Makefile" && has(tool) {
            let made = checkout
                .run(["run", own.iter().find(|id| id.contains("test")).expect("it is declared")]);
            assert_eq!((made.stdout.as_str(), made.code()), ("made\ntested\n", 0), "{made:?}");
        }
    }
}

#[test]
fn a_directory_that_leads_out_of_the_checkout_is_refused() {
    let checkout = checkout(&shell("out", "pwd", "cwd = 'way.out'"));
    symlink("..", checkout.root().join("way.out")).expect("a link can be made");
    let ran = checkout.run(["run", "out"]);
    assert_eq!((ran.stdout.as_str(), ran.code()), ("", 4), "{ran:?}");
    assert!(ran.stderr.contains("way.out leads out of the checkout"), "{ran:?}");
}
