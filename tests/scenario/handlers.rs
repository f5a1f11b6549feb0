//! Handlers: functions of the program, run like everything else.

use reeve_tests::{Running, until};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{assert_dense, checkout, documents, id_of, lines_of, shell, types_of};

/// Returns the types that a demonstration of so many steps has, up to its end.
fn demonstrated(steps: usize, end: &[&'static str]) -> Vec<&'static str> {
    let step = ["step.started", "log", "step.completed", "progress"];
    let steps = std::iter::repeat_n(step, steps).flatten();
    ["created", "queued", "started"].into_iter().chain(steps).chain(end.iter().copied()).collect()
}

#[test]
fn a_demonstration_has_exactly_the_events_of_its_steps() {
    let checkout = checkout("");
    let _broker = checkout.serve(&[]);
    for (steps, delay_ms) in [(0, 0), (2, 20), (100, 0)] {
        let input = json!({ "steps": steps, "delay_ms": delay_ms }).to_string();
        let args = ["run", "executions.demonstrate", "--input", &input, "--format", "ndjson"];
        let ran = checkout.run(args);
        assert_eq!(ran.code(), 0, "{ran:?}");
        let told = documents(&ran.stdout);
        assert_eq!(types_of(&told), demonstrated(steps, &["completed"]));
        let id = told[0]["execution_id"].as_str().expect("an event names its execution");
        let history = checkout.history(id);
        assert_eq!(told, history);
        assert_dense(&history);
        let shown = checkout.show(id);
        assert_eq!(shown["state"], "succeeded");
        assert_eq!(
            (&shown["output"]["steps"], &shown["output"]["observed"]),
            (&json!(steps), &json!(true))
        );
    }
}

#[test]
fn a_demonstration_that_fails_at_a_step_says_at_which() {
    let checkout = checkout("");
    for at in [1, 3] {
        let set = format!("fail_at={at}");
        let args = ["run", "executions.demonstrate", "--set", &set, "--format", "ndjson"];
        let ran = checkout.run(args);
        assert_eq!(ran.code(), 1, "{ran:?}");
        let told = documents(&ran.stdout);
        assert_eq!(told.len(), 4 * at + 3);
        let end = ["step.started", "log", "step.completed", "failed"];
        assert_eq!(types_of(&told), demonstrated(at - 1, &end));
        let [.., step, failed] = &told[..] else { panic!("{told:?}") };
        assert_eq!(step["data"]["ok"], false);
        assert!(step["data"]["detail"].is_string(), "{step}");
        assert_eq!(failed["data"]["error"]["code"], "EXECUTION_FAILED");
    }
}

#[test]
fn a_demonstration_stops_when_it_is_asked_to() {
    let checkout = checkout("");
    let _broker = checkout.serve(&[]);
    let run = checkout.spawn(["run", "executions.demonstrate", "--set", "delay_ms=10000"]);
    let id = id_of(&checkout.until_state("executions.demonstrate", "running")).to_owned();
    let asked = checkout.json(["executions", "cancel", &id]);
    assert_eq!((&asked["outcome"], &asked["cancellable"]), (&json!("requested"), &json!(true)));
    assert_eq!(run.wait().code(), 130);
    let history = checkout.history(&id);
    let tail = ["cancelling", "cancelled"];
    assert_eq!(types_of(&history)[types_of(&history).len() - 2..], tail);
    assert_eq!(checkout.show(&id)["state"], "cancelled");
}

#[test]
fn an_interrupt_sets_the_flag_and_a_second_one_waits_for_nobody() {
    let checkout = checkout("");
    let run = checkout.spawn(["run", "executions.demonstrate", "--set", "delay_ms=10000"]);
    run.until_stderr("step 1");
    run.signal(Signal::INT);
    assert_eq!(run.wait().code(), 130);
    let manifest = "[limits]\ncancel_grace = '10m'\n";
    checkout.write("reeve.toml", manifest);
    let run = checkout.spawn(["run", "test.deaf", "--format", "ndjson"]);
    run.until_stdout("ready");
    run.signal(Signal::INT);
    run.until_stdout("execution.cancelling");
    run.signal(Signal::INT);
    let ran = run.wait();
    assert_eq!(ran.code(), 130, "{ran:?}");
}

#[test]
fn who_ignores_its_flag_ends_with_its_process() {
    let checkout = checkout("");
    let _broker = checkout.serve(&[]);
    let run = checkout.spawn(["run", "test.spin"]);
    let id = id_of(&checkout.until_state("test.spin", "running")).to_owned();
    let asked = checkout.json(["executions", "cancel", &id]);
    assert_eq!(asked["cancellable"], false, "it says that it does not look");
    let pid = run.pid();
    assert_eq!(run.wait().code(), 130);
    assert!(!reeve_tests::lives(pid));
    let history = checkout.history(&id);
    let types = types_of(&history);
    assert_eq!(types[types.len() - 3..], ["cancelling", "diagnostic", "cancelled"]);
    let summary = history[history.len() - 2]["data"]["summary"].as_str().expect("a summary");
    assert!(summary.contains("ignored its flag"), "{summary}");
}

#[test]
fn a_deadline_fails_whoever_ignores_it() {
    let checkout = checkout("");
    let ran = checkout.run(["run", "test.late", "--format", "json"]);
    assert_eq!(ran.code(), 1, "{ran:?}");
    let shown: Value = serde_json::from_str(&ran.stdout).expect("a snapshot");
    assert_eq!(
        (&shown["error"]["code"], &shown["error"]["reason"]),
        (&json!("EXECUTION_FAILED"), &json!("timeout"))
    );
}

#[test]
fn a_panic_reaches_the_person_in_front_of_it_and_no_client() {
    let checkout = checkout("");
    let _broker = checkout.serve(&[]);
    let ran = checkout.run(["run", "test.panic", "--format", "ndjson"]);
    assert_eq!(ran.code(), 1, "{ran:?}");
    assert!(ran.stderr.contains("a secret of "), "{ran:?}");
    assert!(!ran.stderr.contains('\u{1b}') && !ran.stderr.contains("stack backtrace"), "{ran:?}");
    let told = documents(&ran.stdout);
    let id = told[0]["execution_id"].as_str().expect("an event names its execution");
    let shown = checkout.show(id);
    assert_eq!(
        (&shown["error"]["code"], &shown["error"]["correlation_id"]),
        (&json!("internal"), &json!(id))
    );
    assert!(shown["error"]["suggestion"].is_string(), "{shown}");
    let seen = format!("{told:?} {shown} {:?}", checkout.history(id));
    let root = checkout.root().to_str().expect("a path");
    for hidden in ["secret", ".rs", root] {
        assert!(!seen.contains(hidden), "{hidden} is in {seen}");
    }
    assert_eq!(checkout.run(["run", "executions.demonstrate"]).code(), 0);
}

#[test]
fn who_takes_its_process_along_is_lost_and_everybody_sees_it() {
    let checkout = checkout("");
    let _broker = checkout.serve(&[]);
    for (capability, signal) in [("test.abort", 6), ("test.segfault", 11)] {
        let ran = checkout.run(["run", capability]);
        let died = std::os::unix::process::ExitStatusExt::signal(&ran.status);
        assert_eq!(died, Some(signal), "{ran:?}");
        let shown = checkout.until_state(capability, "failed");
        let shown = checkout.show(id_of(&shown));
        assert_eq!(shown["error"]["code"], "unavailable", "{shown}");
    }
}

#[test]
fn handlers_stand_beside_what_the_manifest_declares() {
    let checkout = checkout(&shell("mine", "true", ""));
    let offline = checkout.json(["capabilities", "list"]);
    let _broker = checkout.serve(&[]);
    let online = checkout.json(["capabilities", "list"]);
    assert_eq!(offline["capabilities"], online["capabilities"]);
    let all = online["capabilities"].as_array().expect("a list");
    let of = |id: &str| all.iter().find(|one| one["id"] == id).unwrap_or_else(|| panic!("no {id}"));
    assert_eq!(of("executions.demonstrate")["provenance"], "built-in");
    assert_eq!(of("test.sleep")["output"]["properties"]["pid"]["type"], "integer");
    let shown = checkout.run(["capabilities", "show", "test.sleep"]).stdout;
    let (before, output) = shown.split_once("\noutput:\n").expect("its schemas are shown");
    assert!(before.contains("\"ms\"") && output.contains("\"pid\""), "{shown}");
    assert_eq!(of("mine")["kind"], "process");
    std::fs::remove_file(checkout.root().join("reeve.toml")).expect("it is there");
    assert_eq!(checkout.run(["run", "test.sleep", "--set", "ms=1"]).code(), 0);
    let wrong = checkout.run(["run", "test.slep", "--set", "ms=1"]);
    assert_eq!(wrong.code(), 3, "{wrong:?}");
}

#[test]
fn a_manifest_cannot_take_the_name_of_a_handler() {
    let clash = shell("mine", "true", "") + &shell("test.sleep", "true", "");
    let checkout = checkout(&clash);
    let ran = checkout.run(["run", "mine"]);
    assert_eq!(ran.code(), 2, "{ran:?}");
    let expected = "reeve.toml:4:13: the id \"test.sleep\" belongs to";
    assert!(ran.stderr.contains(expected), "{ran:?}");
    // The handler itself runs all the same, and the person is told.
    let ran = checkout.run(["run", "test.sleep", "--set", "ms=1"]);
    assert_eq!(ran.code(), 0, "{ran:?}");
    assert!(ran.stderr.contains(expected), "{ran:?}");
    let _broker: Running = checkout.serve(&[]);
    let declared = until("the capabilities", || {
        let declared = checkout.json(["capabilities", "list"]);
        (declared["count"] != 0).then_some(declared)
    });
    assert!(declared["problems"][0].as_str().is_some_and(|it| it.contains(expected)), "{declared}");
    let all = declared["capabilities"].as_array().expect("a list");
    assert!(all.iter().any(|one| one["id"] == "test.sleep" && one["kind"] == "handler"));
    assert!(!all.iter().any(|one| one["id"] == "mine"), "a manifest with an error is not taken");
}

#[test]
fn standard_output_has_the_value_of_a_handler_and_its_lines_stand_beside_it() {
    let checkout = checkout("");
    let _broker = checkout.serve(&[]);
    let args = ["run", "executions.demonstrate", "--set", "steps=2"];
    let ran = checkout.run(args);
    let value: Value = serde_json::from_str(&ran.stdout).expect("the value alone");
    assert_eq!((&value["steps"], &value["observed"]), (&json!(2), &json!(true)));
    assert!(ran.stderr.contains("\nstep 2 is at work\n"), "{ran:?}");
    let quiet = checkout.run(args.into_iter().chain(["--quiet"]));
    assert!(serde_json::from_str::<Value>(&quiet.stdout).is_ok(), "{quiet:?}");
    assert_eq!(quiet.stderr, "step 1 is at work\nstep 2 is at work\n");
    let failed = checkout.run(args.into_iter().chain(["--set", "fail_at=1"]));
    assert_eq!((failed.code(), failed.stdout.as_str()), (1, ""), "{failed:?}");
    let id = id_of(&checkout.list()[0]).to_owned();
    assert_eq!(lines_of(&checkout.history(&id), "stdout"), ["step 1 is at work"]);
}

/// Runs a capability with this input and returns its snapshot.
fn ran(checkout: &reeve_tests::Checkout, capability: &str, input: &Value) -> Value {
    let args = ["run", capability, "--input", &input.to_string(), "--format", "json"];
    let ran = checkout.run(args);
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {ran:?}"))
}

#[test]
fn verifying_tells_every_fault_with_its_place_and_progress_with_a_total() {
    let checkout = checkout("[capability.one]\ncomand = ['true']\n");
    checkout.write("bad.json", "{\n  \"a\": }\n");
    checkout.write("bad.toml", "a = 1\nb =\n");
    checkout.write("bad.yaml", "a: 1\nb: [\n");
    checkout.write("bad.md", "[gone](nowhere)\n");
    checkout.write("bad.txt", "<<<<<<< a\n=======\n>>>>>>> b\n");
    std::os::unix::fs::symlink("gone", checkout.root().join("bad.link")).expect("a link");
    let _broker = checkout.serve(&[]);
    let shown = ran(&checkout, "objects.verify", &json!({}));
    assert_eq!(shown["state"], "succeeded", "{shown}");
    let output = &shown["output"];
    assert_eq!((&output["ok"], &output["files"]), (&json!(false), &json!(7)));
    let id = id_of(&checkout.list()[0]).to_owned();
    let history = checkout.history(&id);
    let found: Vec<String> = history
        .iter()
        .filter(|event| event["type"] == "execution.diagnostic")
        .map(|event| {
            let text = |name: &str| event["data"][name].as_str().expect("a text");
            let place: Vec<&str> = text("summary").splitn(3, ':').take(2).collect();
            format!("{} {}", text("code"), place.join(":"))
        })
        .collect();
    let expected = [
        "manifest reeve.toml:2",
        "json bad.json:2",
        "symlink bad.link: the symbolic link to \"gone\" leads nowhere",
        "markdown bad.md:1",
        "toml bad.toml:2",
        "conflict bad.txt:1",
        "yaml bad.yaml:3",
    ];
    assert!(expected.iter().all(|one| found.contains(&(*one).to_owned())), "{found:?}");
    assert_eq!(output["found"], found.len());
    let last = history.iter().rfind(|event| event["type"] == "execution.progress");
    let last = &last.expect("it tells how far it is")["data"];
    assert_eq!((&last["current"], &last["total"]), (&json!(7), &json!(7)));
    assert!(!shown.to_string().contains(checkout.root().to_str().expect("a path")), "{shown}");
}

#[test]
fn verifying_a_checkout_in_order_finds_nothing() {
    let checkout = checkout(&shell("one", "true", ""));
    checkout.write("README.md", "[m](reeve.toml) [n](https://example.org)\n");
    let shown = ran(&checkout, "objects.verify", &json!({}));
    assert_eq!((&shown["output"]["ok"], &shown["output"]["found"]), (&json!(true), &json!(0)));
    let only = ran(&checkout, "objects.verify", &json!({ "kind": "markdown", "limit": 1 }));
    assert_eq!(only["output"]["verified"], json!({ "markdown": 1 }));
    let wrong = checkout.run(["run", "objects.verify", "--set", "kind=rule"]);
    assert_eq!(wrong.code(), 2, "{wrong:?}");
}

#[test]
fn what_the_broker_knows_is_asked_for_as_a_capability() {
    let checkout = checkout(&shell("one", "true", ""));
    let alone = checkout.run(["run", "executions.list"]);
    assert!(alone.code() == 1 && alone.stderr.contains("reeve serve"), "{alone:?}");
    let offline = ran(&checkout, "capabilities.list", &json!({}));
    let _broker = checkout.serve(&[]);
    let online = ran(&checkout, "capabilities.list", &json!({}));
    assert_eq!(offline["output"], online["output"]);
    let mut listed = checkout.json(["capabilities", "list"]);
    assert_eq!(listed["trust"], "trusted", "who asks here is told that, too");
    listed.as_object_mut().expect("an object").remove("trust");
    assert_eq!(online["output"], listed);
    assert_eq!(checkout.run(["run", "one"]).code(), 0);
    let query = json!({ "capability": "one" });
    let listed = ran(&checkout, "executions.list", &query);
    let id = id_of(&listed["output"]["executions"][0]).to_owned();
    let of_id = json!({ "id": id });
    assert_eq!(ran(&checkout, "executions.get", &of_id)["output"], checkout.show(&id));
    let events = ran(&checkout, "executions.events", &json!({ "id": id, "after": 2, "limit": 1 }));
    assert_eq!(types_of(events["output"]["events"].as_array().expect("a page")), ["started"]);
    let over = ran(&checkout, "executions.cancel", &of_id);
    assert_eq!(over["output"]["outcome"], "already_finished");
    let protocol = ran(&checkout, "executions.protocol", &json!({}));
    assert_eq!(protocol["output"]["limits"]["max_running"], 4);
    let nobody = json!({ "id": "x-20260908T010203Z-0a1b2c3d" });
    assert_eq!(ran(&checkout, "executions.get", &nobody)["error"]["code"], "not_found");
}

#[test]
fn an_execution_can_be_stopped_by_another() {
    let checkout = checkout("");
    let _broker = checkout.serve(&[]);
    let run = checkout.spawn(["run", "test.sleep", "--set", "ms=600000"]);
    let id = id_of(&checkout.until_state("test.sleep", "running")).to_owned();
    let asked = ran(&checkout, "executions.cancel", &json!({ "id": id }));
    assert_eq!(asked["output"]["outcome"], "requested", "{asked}");
    assert_eq!(run.wait().code(), 130);
    let history = checkout.history(&id);
    let by = history.iter().find(|event| event["type"] == "execution.cancelling");
    let by = by.expect("it was asked")["data"]["by"].as_str().expect("a text");
    assert!(by.starts_with("execution x-"), "{by}");
}

#[test]
fn the_health_is_reported_with_and_without_a_broker() {
    let checkout = checkout("");
    let alone = ran(&checkout, "health.report", &json!({}));
    assert_eq!(alone["output"]["broker"], json!({ "serving": false }));
    assert_eq!(alone["output"]["checkout"]["branch"], "main");
    let mut broker = checkout.serve(&[]);
    let served = ran(&checkout, "health.report", &json!({}));
    let status = &served["output"]["broker"]["status"];
    assert_eq!(
        (&status["pid"], &status["executions"]["active"]),
        (&json!(broker.pid()), &json!(1))
    );
    assert_eq!(served["output"]["ok"], true, "{served}");
    checkout.write("reeve.toml", "nonsense = 1\n");
    until("the broken manifest to be seen", || {
        let problems = &ran(&checkout, "health.report", &json!({}))["output"]["problems"];
        problems[0].as_str().filter(|it| it.contains("reeve.toml:1:1")).map(drop)
    });
    broker.kill();
}

#[test]
fn the_worked_example_is_a_capability_like_any_other() {
    let checkout = checkout("");
    checkout.write("a.md", "1\n2\n");
    checkout.write("b.md", "3\n");
    let shown = ran(&checkout, "lines.count", &json!({ "ending": "md" }));
    assert_eq!(shown["output"], json!({ "files": 2, "lines": 3 }));
    let listed = checkout.json(["capabilities", "show", "lines.count"]);
    assert_eq!(listed["provenance"], "this program");
}
