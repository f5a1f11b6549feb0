//! The answers of the routes, held against their own description.

use reeve_protocol::Kind;
use reeve_tests::until;
use reeve_tests::wire::{Granted, Wire, description, id};
use serde_json::{Value, json};

use crate::{Answer, Served};

/// Returns the schema of an answer, with everything that it refers to.
fn schema(document: &Value, path: &str, method: &str) -> Value {
    let answer = &document["paths"][path][method]["responses"]["200"];
    let mut schema = answer["content"]["application/json"]["schema"].clone();
    assert!(schema.is_object(), "{method} {path} has a schema");
    schema["components"] = document["components"].clone();
    schema
}

#[track_caller]
fn fits(document: &Value, path: &str, method: &str, answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    let value = answer.json();
    let schema = schema(document, path, method);
    let validator = jsonschema::validator_for(&schema).expect("a good schema");
    let problems: Vec<String> = validator
        .iter_errors(&value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(problems.is_empty(), "{path}: {problems:?}\n{value:#}");
    value
}

/// Runs an execution over the local wire to some position.
pub fn running(served: &Served, number: u32, kinds: &[Kind]) -> (Wire, Granted) {
    let socket = served.checkout.lease().expect("a broker serves").socket;
    let mut worker = Wire::worker(&socket);
    let mut granted = worker.attach(id(number), description("test.wire"));
    worker.report(&mut granted, &[Kind::Started {}]);
    if !kinds.is_empty() {
        worker.report(&mut granted, kinds);
    }
    (worker, granted)
}

/// Waits until the history has this many events.
pub fn until_last(served: &Served, number: u32, last: u64) -> Value {
    until("the history to grow", || {
        let answer = served.get(&format!("/api/v1/executions/get?id={}", id(number)));
        let value = (answer.status == 200).then(|| answer.json())?;
        (value["last_sequence"].as_u64() >= Some(last)).then_some(value)
    })
}

pub fn progress(current: u64) -> Kind {
    Kind::Progress { current, total: Some(100), message: None }
}

#[test]
fn every_operation_has_a_name_of_its_own_and_every_reference_leads_somewhere() {
    let document = Served::new().get("/openapi.json").json();
    let paths = document["paths"].as_object().expect("paths");
    let operations = paths.values().flat_map(|path| path.as_object().expect("methods").values());
    let mut names: Vec<&str> =
        operations.map(|one| one["operationId"].as_str().expect("a name")).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(paths.contains_key("/api/v1/objects/verify"));
    let mut references = Vec::new();
    collect(&document, &mut references);
    assert!(references.iter().any(|one| one.contains("objects.verify")), "{references:?}");
    for reference in references {
        let pointer = reference.strip_prefix('#').expect("it leads into this document");
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
}

/// Collects every reference of a document.
fn collect(value: &Value, references: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, references)),
        Value::Object(members) => {
            references.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
            members.values().for_each(|member| collect(member, references));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_answer_is_as_the_description_says() {
    let served = Served::with(&[("max_events", "20")]);
    let document = served.get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let events: Vec<Kind> = (0..40).map(progress).collect();
    let (mut worker, mut granted) = running(&served, 1, &events);
    until_last(&served, 1, 43);
    let (_other, _) = running(&served, 2, &[]);
    until_last(&served, 2, 3);
    let one = id(1);
    let check = |path: &str, query: &str| {
        fits(&document, path, "get", &served.get(&format!("{path}{query}")))
    };
    check("/healthz", "");
    check("/api/v1/instance", "?nonce=abcdefgh");
    check("/api/v1/executions/protocol", "");
    check("/api/v1/capabilities", "");
    check("/api/v1/capabilities/get", "?id=test");
    let list = check("/api/v1/executions", "?limit=1");
    assert_eq!((&list["count"], &list["remembered"]), (&json!(1), &json!(2)));
    assert_eq!(list["executions"][0]["id"], json!(id(2)), "newest first");
    let next = list["next"].as_str().expect("there is more").to_owned();
    let rest = check("/api/v1/executions", &format!("?before={next}"));
    assert_eq!(rest["executions"][0]["id"], json!(one));
    let filtered = check("/api/v1/executions", "?state=running&capability=test.wire");
    assert_eq!(filtered["count"], 2);
    assert_eq!(check("/api/v1/executions", "?state=failed")["count"], 0);
    let page = check("/api/v1/executions/events", &format!("?id={one}&after=30&limit=5"));
    let sequences: Vec<u64> = page["events"]
        .as_array()
        .expect("events")
        .iter()
        .filter_map(|event| event["sequence"].as_u64())
        .collect();
    assert_eq!(sequences, [31, 32, 33, 34, 35]);
    let truncated = check("/api/v1/executions/events", &format!("?id={one}"));
    assert_eq!(truncated["truncated"], true);
    let ahead = check("/api/v1/executions/events", &format!("?id={one}&after=1000"));
    assert_eq!(ahead["ahead"]["head"], 43);
    let cancelled = fits(
        &document,
        "/api/v1/executions/cancel",
        "post",
        &served.post("/api/v1/executions/cancel", &json!({ "id": one })),
    );
    assert_eq!(cancelled["outcome"], "requested");
    let by = "http".to_owned();
    worker.report(&mut granted, &[Kind::Cancelling { by }, Kind::Cancelled { receipt: None }]);
    let done = until("it to be cancelled", || {
        let shown = check("/api/v1/executions/get", &format!("?id={one}"));
        (shown["state"] == "cancelled").then_some(shown)
    });
    assert_eq!(done["links"]["events"], format!("/api/v1/executions/events?id={one}"));
    let again = served.post("/api/v1/executions/cancel", &json!({ "id": one })).json();
    assert_eq!(again["outcome"], "already_finished");
    fits(&document, "/api/v1/ticket", "post", &served.post_text("/api/v1/ticket", b""));
}

#[test]
fn a_start_that_cannot_be_is_told_at_its_stage_and_creates_nothing() {
    let served = Served::new();
    let url = "/api/v1/executions/start";
    let input = |value: Value| json!({ "capability": "test", "input": value });
    for (row, body, status, code) in [
        ("unknown", json!({ "capability": "tset" }), 404, "ACTION_NOT_FOUND"),
        ("not executable", json!({ "capability": "process.exec" }), 400, "invalid_request"),
        ("missing", json!({ "capability": "test" }), 400, "INVALID_PARAMS"),
        ("null", input(Value::Null), 400, "INVALID_PARAMS"),
        ("an array", input(json!([])), 400, "INVALID_ARGS"),
        ("a text", input(json!({ "seconds": "many" })), 400, "INVALID_PARAMS"),
        ("too many", input(json!({ "seconds": 61 })), 400, "INVALID_PARAMS"),
        ("an enum", input(json!({ "seconds": 1, "mode": "x" })), 400, "INVALID_PARAMS"),
        ("not declared", input(json!({ "seconds": 1, "x": 1 })), 400, "INVALID_PARAMS"),
        (
            "a key of another type",
            json!({ "capability": "test", "idempotency_key": 1 }),
            400,
            "INVALID_ARGS",
        ),
    ] {
        let answer = served.post(url, &body);
        assert_eq!(answer.status, status, "{row}: {answer:?}");
        assert_eq!(answer.json()["error"]["code"], code, "{row}");
        assert_eq!(answer.json()["error"]["side_effect"], "none", "{row}");
    }
    let unknown = served.post(url, &json!({ "capability": "tset" })).json();
    let nearest = unknown["error"]["suggestion"].as_str().expect("a suggestion");
    assert!(nearest.starts_with("available: test"), "{nearest}");
    assert!(!nearest.contains("process.exec"), "{nearest}");
    let problem = served.post(url, &input(json!({ "seconds": "many" }))).json();
    assert_eq!(problem["error"]["problems"][0]["pointer"], "/seconds");
    let hostile = json!({ "seconds": 1, "name": format!("{}!", "a".repeat(50_000)) });
    assert_eq!(served.post(url, &input(hostile)).status, 400, "patterns run in linear time");
    served.still_fine();
}

#[test]
fn the_port_is_remembered_and_a_forced_one_is_not_exchanged() {
    let mut served = Served::new();
    let port = served.port;
    served.broker.kill();
    let _again = served.checkout.serve(&[]);
    let url = served.checkout.lease().expect("a broker serves").url.expect("it serves HTTP");
    assert_eq!(url, format!("http://127.0.0.1:{port}"));
    assert_eq!(served.get("/healthz").status, 200, "the token outlives its broker");
    let other = reeve_tests::Checkout::new(env!("CARGO_BIN_EXE_reeve-under-test"), "");
    let refused = other.run(["serve", "--port", &port.to_string()]);
    assert_eq!(refused.code(), 1);
    assert!(refused.stderr.contains(&port.to_string()), "{refused:?}");
    assert!(other.lease().is_none());
}
