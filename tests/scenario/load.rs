//! Many at once, and readers that do not read.

use std::io::Read;
use std::process::Stdio;

use reeve_tests::{Running, until};
use serde_json::Value;

use crate::{assert_dense, checkout, documents, id_of, shell};

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).unwrap_or(0)
}

#[test]
fn a_reader_that_never_reads_costs_the_others_nothing_heavy() {
    let script = "echo begun; until test -e go; do sleep 0.01; done; seq 1 20000";
    let checkout = checkout(&shell("flood", script, ""));
    let broker = checkout.serve(&[("write_deadline", "2s")]);
    let run = checkout.spawn(["run", "flood"]);
    let id = id_of(&checkout.until_state("flood", "running")).to_owned();
    let args = ["executions", "watch", &id, "--format", "ndjson"];
    let mut deaf = checkout.command(args);
    let mut deaf = deaf.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let readers: Vec<Running> = (0..4).map(|_| checkout.spawn(args)).collect();
    until("everybody to watch", || (checkout.json(["status"])["watchers"] == 5).then_some(()));
    checkout.write("go", "");
    let ran = run.wait();
    assert_eq!((ran.stdout.lines().count(), ran.code()), (20_001, 0));
    let history = checkout.history(&id);
    assert_dense(&history);
    for reader in readers {
        let read = reader.wait();
        assert_eq!(read.code(), 0, "{}", read.stderr);
        let seen: Vec<Value> =
            documents(&read.stdout).into_iter().filter(|it| it["sequence"].is_u64()).collect();
        assert!(seen == history, "what a reader saw is the history");
    }
    // It reads at last, from where it was, and misses nothing either.
    let mut late = String::new();
    deaf.stdout.take().expect("piped").read_to_string(&mut late).expect("it can be read");
    assert!(deaf.wait().expect("it ends").success());
    let seen: Vec<Value> =
        documents(&late).into_iter().filter(|it| it["sequence"].is_u64()).collect();
    assert!(seen == history, "nor does who reads late");
    until("nobody to watch", || (checkout.json(["status"])["watchers"] == 0).then_some(()));
    assert!(reeve_tests::lives(broker.pid()));
}

#[test]
fn twenty_at_once_all_end_right_heavy() {
    let checkout = checkout(&shell(
        "one",
        "cat; echo end",
        "stdin = 'input'\ninput.properties.n.type = 'integer'",
    ));
    let _broker = checkout.serve(&[]);
    let runs: Vec<Running> =
        (0..20).map(|n| checkout.spawn(["run", "one", "--set", &format!("n={n}")])).collect();
    for (n, run) in runs.into_iter().enumerate() {
        let ran = run.wait();
        assert_eq!(ran.code(), 0, "{ran:?}");
        assert_eq!(ran.stdout.replace('\n', ""), format!("{{\"n\":{n}}}end"));
    }
    let list = checkout.list();
    assert_eq!(list.len(), 20);
    assert!(list.iter().all(|one| one["state"] == "succeeded"));
}

#[test]
fn hundreds_one_after_another_leave_nothing_open_heavy() {
    let checkout = checkout(&shell("one", "true", ""));
    let broker = checkout.serve(&[("max_executions", "20")]);
    checkout.run(["run", "one"]);
    let idle = || {
        let status = checkout.json(["status"]);
        (status["workers"] == 0 && status["executions"]["active"] == 0).then_some(())
    };
    until("the first to be forgotten", idle);
    let before = descriptors(broker.pid());
    for _ in 0..30 {
        let runs: Vec<Running> = (0..10).map(|_| checkout.spawn(["run", "one"])).collect();
        for run in runs {
            assert_eq!(run.wait().code(), 0);
        }
    }
    until("the last to be forgotten", idle);
    until("its descriptors to be closed", || {
        (descriptors(broker.pid()) <= before + 10).then_some(())
    });
    assert_eq!(checkout.json(["executions", "list"])["remembered"], 20);
}
