//! Rust handlers over HTTP: started as executions, and called without one.

use reeve_tests::{lives, until};
use serde_json::{Value, json};

use crate::Served;
use crate::start::worker_of;

fn served() -> Served {
    Served::of("", &[("max_running", "2")])
}

fn demonstrate(served: &Served, input: &Value) -> String {
    let body = json!({ "capability": "executions.demonstrate", "input": input });
    let answer = served.post("/api/v1/executions/start", &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["id"].as_str().expect("an id").to_owned()
}

#[test]
fn a_handler_reports_what_it_does_event_by_event() {
    let served = served();
    let id = demonstrate(&served, &json!({ "steps": 2, "delay_ms": 5 }));
    let end = served.until(&id, "succeeded");
    assert_eq!((&end["output"]["steps"], &end["output"]["observed"]), (&json!(2), &json!(true)));
    let step = ["step.started", "log", "step.completed", "progress"];
    let words = ["created", "queued", "started"].iter().chain(&step).chain(&step);
    let mut types: Vec<String> = words.map(|word| format!("execution.{word}")).collect();
    types.push("execution.completed".to_owned());
    assert_eq!(served.types(&id), types);

    let id = demonstrate(&served, &json!({ "steps": 3, "fail_at": 2 }));
    let end = served.until(&id, "failed");
    assert_eq!(served.types(&id).len(), 11);
    assert_eq!(end["steps"][1]["state"], "failed", "{end}");
    assert!(end["steps"][1]["detail"].is_string());
}

#[test]
fn a_handler_that_looks_at_its_flag_stops() {
    let served = served();
    let id = demonstrate(&served, &json!({ "steps": 100, "delay_ms": 10_000 }));
    served.until(&id, "running");
    let cancelled = served.cancel(&id, false);
    assert_eq!(
        (&cancelled["outcome"], &cancelled["cancellable"]),
        (&json!("requested"), &json!(true))
    );
    let end = served.until(&id, "cancelled");
    assert_eq!(end["error"]["code"], "cancelled");
    assert!(served.types(&id).contains(&"execution.cancelling".to_owned()));
}

#[test]
fn a_handler_that_panics_fails_alone_and_tells_nobody_how() {
    let served = served();
    let id = served.started("test.panic");
    let end = served.until(&id, "failed");
    assert_eq!(end["error"]["code"], "internal", "{end}");
    assert_eq!(end["error"]["correlation_id"], json!(id));
    assert!(end["error"]["suggestion"].is_string());
    assert!(!end.to_string().contains("secret") && !end.to_string().contains(".rs"), "{end}");
    let worker = worker_of(&end);
    let next = demonstrate(&served, &json!({ "steps": 1 }));
    served.until(&next, "succeeded");
    assert!(lives(worker), "a panic costs no worker");
}

#[test]
fn a_handler_that_takes_its_process_along_ends_its_execution_only() {
    let served = served();
    let bystander = demonstrate(&served, &json!({ "steps": 100, "delay_ms": 10_000 }));
    served.until(&bystander, "running");
    for (capability, how) in [("test.abort", "SIGABRT"), ("test.segfault", "SIGSEGV")] {
        let id = served.started(capability);
        let end = served.until(&id, "failed");
        assert_eq!(end["error"]["code"], "unavailable", "{end}");
        let message = end["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(how), "{message}");
    }
    assert_eq!(served.snapshot(&bystander)["state"], "running");
}

#[test]
fn a_handler_that_never_ends_is_stopped_with_its_worker_and_frees_its_slot() {
    let served = served();
    for (capability, force, state) in [
        ("test.spin", false, "cancelled"),
        ("test.deaf", true, "cancelled"),
        ("test.late", false, "failed"),
    ] {
        let id = served.started(capability);
        let worker = worker_of(&until("it runs", || {
            Some(served.snapshot(&id)).filter(|it| it["state"] != "queued")
        }));
        if capability != "test.late" {
            served.cancel(&id, force);
        }
        let end = served.until(&id, state);
        assert!(end.to_string().contains("flag"), "it says that the flag was ignored: {end}");
        until("its worker to be gone", || (!lives(worker)).then_some(()));
    }
    // Both slots are free again.
    for _ in 0..2 {
        let id = demonstrate(&served, &json!({ "steps": 100, "delay_ms": 10_000 }));
        served.until(&id, "running");
    }
}

#[test]
fn a_call_without_an_execution_returns_the_same_and_leaves_nothing() {
    let served = served();
    let answer = served.get("/api/v1/executions/demonstrate?steps=2&delay_ms=1");
    assert_eq!(answer.status, 200, "{answer:?}");
    let value = answer.json();
    assert_eq!((&value["steps"], &value["observed"]), (&json!(2), &json!(false)));
    assert_eq!(served.get("/api/v1/executions").json()["count"], 0, "nothing was created");

    for (target, status, code) in [
        ("demonstrate?steps=many", 400, "INVALID_PARAMS"),
        ("demonstrate?stepps=1", 400, "invalid_request"),
        ("demonstrate?steps=1&steps=2", 400, "invalid_request"),
        ("demonstrate/x", 404, "not_found"),
    ] {
        let answer = served.get(&format!("/api/v1/executions/{target}"));
        assert_eq!(
            (answer.status, answer.json()["error"]["code"].as_str()),
            (status, Some(code)),
            "{target}"
        );
    }
    let posted = served.post("/api/v1/executions/demonstrate", &json!({}));
    assert_eq!((posted.status, posted.header("allow")), (405, Some("GET, HEAD")));
    let failed = served.get("/api/v1/executions/demonstrate?fail_at=1");
    let code = failed.json()["error"]["code"].clone();
    assert_eq!((failed.status, code), (422, json!("EXECUTION_FAILED")), "no success: {failed:?}");
    let broken = served.get("/api/v1/test/panic");
    assert_eq!((broken.status, broken.json()["error"]["code"].as_str()), (500, Some("internal")));
    let dead = served.get("/api/v1/test/abort");
    assert_eq!((dead.status, dead.json()["error"]["code"].as_str()), (503, Some("unavailable")));
    assert_eq!(served.get("/api/v1/executions/demonstrate?steps=1").status, 200);
}

#[test]
fn whoever_hangs_up_ends_the_call() {
    use std::io::Write;

    let served = served();
    let mut stream = served.connect();
    let head = served.head("GET /api/v1/test/spin", "");
    stream.write_all(head.as_bytes()).unwrap();
    let spinning = until("a worker that answers", || {
        let workers = crate::start::workers(&served.broker);
        (workers.len() >= 2).then_some(workers)
    });
    drop(stream);
    until("one of them to be killed", || spinning.iter().any(|pid| !lives(*pid)).then_some(()));
}
