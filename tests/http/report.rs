//! The report bridge: runs that report by HTTP, applied once and in order.

use reeve_tests::until;
use reeve_tests::wire::id;
use serde_json::{Value, json};

use crate::api::running;
use crate::{Answer, Served};

const URL: &str = "/api/v1/executions/report";

fn event(tag: &str, data: Value) -> Value {
    json!({ "type": format!("execution.{tag}"), "data": data })
}

fn created() -> Value {
    event("created", json!({ "capability": "test", "title": "Tests", "input": { "seconds": 1 } }))
}

fn log(message: &str) -> Value {
    event("log", json!({ "stream": "stdout", "message": message }))
}

fn body(number: u32, first: u64, events: &[Value]) -> Value {
    json!({
        "id": id(number), "pid": 4242, "first": first, "events": events,
        "description": { "capability": "test", "title": "Tests", "input": { "seconds": 1 } },
    })
}

fn report(served: &Served, number: u32, first: u64, events: &[Value]) -> Answer {
    served.post(URL, &body(number, first, events))
}

#[track_caller]
fn through(answer: &Answer) -> u64 {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["through"].as_u64().expect("a position")
}

fn shown(served: &Served, number: u32) -> Value {
    served.get(&format!("/api/v1/executions/get?id={}", id(number))).json()
}

fn messages(served: &Served, number: u32) -> Vec<String> {
    let page = served.get(&format!("/api/v1/executions/events?id={}", id(number))).json();
    let events = page["events"].as_array().cloned().expect("events");
    assert!(events.iter().zip(1..).all(|(event, at)| event["sequence"] == at), "{events:?}");
    events.iter().filter_map(|one| Some(one["data"]["message"].as_str()?.to_owned())).collect()
}

#[test]
fn what_is_reported_is_there_once_and_in_order() {
    let served = Served::new();
    let begun = [created(), event("queued", json!({ "ahead": 0 })), event("started", json!({}))];
    assert_eq!(through(&report(&served, 1, 1, &begun)), 3);
    let lines =
        [log("a"), log("b\u{1b}[31m"), event("progress", json!({ "current": 1 })), log("c")];
    assert_eq!(through(&report(&served, 1, 4, &lines)), 7);
    assert_eq!(through(&report(&served, 1, 4, &lines)), 7, "sent twice, taken once");
    let rest = [&lines[2..], &[log("d")]].concat();
    assert_eq!(through(&report(&served, 1, 6, &rest)), 8, "what is new of it is taken");
    let gap = report(&served, 1, 12, &[log("late")]);
    assert_eq!((through(&gap), gap.json()["resend_from"].clone()), (8, json!(9)));
    assert_eq!(messages(&served, 1), ["a", "b", "c", "d"]);
    let one = shown(&served, 1);
    assert_eq!((&one["state"], &one["actor"]["kind"]), (&json!("running"), &json!("cli")));
    assert_eq!((&one["actor"]["pid"], &one["worker"]["role"]), (&json!(4242), &json!("report")));
    let long = log(&"x".repeat(900 << 10));
    assert_eq!(through(&report(&served, 1, 9, &[long])), 9);
    assert_eq!(messages(&served, 1).last().map(|line| line.chars().count()), Some(2_000));
    let end = [event("completed", json!({ "output": { "ok": true } })), log("after the end")];
    let ended = report(&served, 1, 10, &end);
    assert_eq!((through(&ended), &ended.json()["state"]), (10, &json!("succeeded")));
    assert_eq!(shown(&served, 1)["output"], json!({ "ok": true }));
    let again = report(&served, 1, 10, &end[..1]);
    assert_eq!((through(&again), &again.json()["state"]), (10, &json!("succeeded")));
}

#[test]
fn a_stop_comes_back_with_the_next_answer() {
    let served = Served::new();
    let begun = [created(), event("started", json!({}))];
    let first = report(&served, 1, 1, &begun).json();
    assert_eq!((&first["through"], &first["cancel"]), (&json!(2), &json!(false)));
    let asked = served.post("/api/v1/executions/cancel", &json!({ "id": id(1) }));
    assert_eq!(asked.json()["outcome"], "requested");
    let next = report(&served, 1, 3, &[]).json();
    assert_eq!((&next["cancel"], &next["by"]), (&json!(true), &json!("http")));
    let end = [event("cancelling", json!({ "by": "http" })), event("cancelled", json!({}))];
    let done = report(&served, 1, 3, &end).json();
    assert_eq!((&done["state"], &done["cancel"]), (&json!("cancelled"), &json!(false)));
}

#[test]
fn a_report_that_is_none_changes_nothing() {
    let served = Served::new();
    let begun = [created(), event("started", json!({}))];
    assert_eq!(through(&report(&served, 1, 1, &begun)), 2);
    let with = |change: &dyn Fn(&mut Value)| {
        let mut body = body(1, 3, &[log("x")]);
        change(&mut body);
        served.post(URL, &body)
    };
    let foreign = id(2);
    for (row, answer, status) in [
        ("no pid", with(&|it| it["pid"] = Value::Null), 400),
        ("a pid of zero", with(&|it| it["pid"] = json!(0)), 400),
        ("another pid", with(&|it| it["pid"] = json!(7)), 409),
        ("sequence 0", with(&|it| it["first"] = json!(0)), 400),
        ("sequence -1", with(&|it| it["first"] = json!(-1)), 400),
        ("sequence 1.0", with(&|it| it["first"] = json!(1.5)), 400),
        ("a sequence of text", with(&|it| it["first"] = json!("1")), 400),
        ("another sequence", with(&|it| it["events"][0]["sequence"] = json!(9)), 400),
        ("another execution", with(&|it| it["events"][0]["execution_id"] = json!(foreign)), 400),
        ("no type", with(&|it| it["events"][0]["type"] = json!("execution.pwned")), 400),
        ("no data", with(&|it| it["events"][0]["data"] = json!({})), 400),
        ("a member", with(&|it| it["events"][0]["x"] = json!(1)), 400),
        ("a member outside", with(&|it| it["x"] = json!(1)), 400),
        ("501 events", report(&served, 1, 3, &vec![log("x"); 501]), 413),
        ("a second start", report(&served, 1, 3, &[event("started", json!({}))]), 409),
    ] {
        assert_eq!(answer.status, status, "{row}: {answer:?}");
        assert_eq!(shown(&served, 1)["last_sequence"], 2, "{row}");
    }
    let many = report(&served, 1, 3, &vec![log("x"); 501]);
    assert_eq!(many.reason(), "too_many_events");
    assert_eq!(through(&report(&served, 1, 3, &vec![log("x"); 500])), 502);
}

#[test]
fn what_nobody_knows_is_asked_for_from_the_beginning() {
    let served = Served::with(&[("max_executions", "2")]);
    for (first, events) in [(5, vec![log("x")]), (1, vec![]), (1, vec![log("x")])] {
        let answer = report(&served, 1, first, &events).json();
        assert_eq!((&answer["through"], &answer["resend_from"]), (&json!(0), &json!(1)));
    }
    served.still_fine();
    let whole =
        [created(), event("started", json!({})), event("completed", json!({ "output": 1 }))];
    for number in 1..=4 {
        assert_eq!(through(&report(&served, number, 1, &whole)), 3);
    }
    let forgotten = report(&served, 1, 1, &whole);
    assert_eq!((forgotten.status, forgotten.reason().as_str()), (409, "gone"));
    let (_worker, _) = running(&served, 9, &[]);
    let foreign = until("another worker's execution", || {
        let answer = report(&served, 9, 1, &whole);
        (answer.status != 200).then_some(answer)
    });
    assert_eq!(foreign.status, 409, "{foreign:?}");
}

#[test]
fn a_reporter_that_falls_silent_is_given_up_and_told_so_when_it_comes_back() {
    let served = Served::with(&[("silence", "600ms"), ("heartbeat", "100ms")]);
    let begun = [created(), event("started", json!({}))];
    assert_eq!(through(&report(&served, 1, 1, &begun)), 2);
    for _ in 0..20 {
        assert_eq!(report(&served, 1, 3, &[]).json()["state"], "running", "reports keep it alive");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    until("it to be given up", || (shown(&served, 1)["state"] == "failed").then_some(()));
    assert_eq!(shown(&served, 1)["error"]["code"], "unavailable");
    let late = report(&served, 1, 3, &[log("I live")]).json();
    assert_eq!((&late["state"], &late["through"]), (&json!("failed"), &json!(3)));
    assert!(late["fenced"].is_object(), "{late}");
}

#[test]
fn a_description_of_another_shape_is_refused_and_creates_nothing() {
    let served = Served::new();
    for (name, value) in [
        ("title", json!({})),
        ("cancellable", json!("no")),
        ("input", json!([])),
        ("pid", json!(1)),
    ] {
        let mut sent = body(1, 1, &[created()]);
        sent["description"][name] = value;
        let answer = served.post(URL, &sent);
        assert_eq!(answer.status, 400, "{name}: {answer:?}");
    }
    served.still_fine();
}
