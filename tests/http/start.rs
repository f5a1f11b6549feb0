//! Starts over HTTP: what the broker's own workers carry out.

use reeve_tests::{Running, lives, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::Served;

const MANIFEST: &str = r#"
[capability.tick]
title = "Three ticks"
command = ["sh", "-c", "echo 1; echo 2; echo 3"]
effect = "read"

[capability.wait]
command = ["sh", "-c", "echo begun; exec sleep 600"]
effect = "read"
cancel_grace = "1s"

[capability.deaf]
command = ["sh", "-c", "trap '' TERM; echo begun; sleep 600 & wait; wait"]
effect = "read"
cancel_grace = "2s"

[capability.alone]
command = ["sh", "-c", "exec sleep 600"]
effect = "read"
overlap = "serial"

[capability.echo]
command = ["sh", "-c", "cat; echo; echo \"$0\"; env", "{word}"]
effect = "read"
stdin = "input"
[capability.echo.input]
properties.word = { type = "string" }
required = ["word"]

[capability.large]
command = ["sh", "-c", "cat > /dev/null"]
effect = "read"
stdin = "input"
[capability.large.input]
properties.word = { type = "string" }
properties.more = { type = "array" }

[capability.gone]
command = ["no-such-program-anywhere"]
effect = "read"
"#;

fn served(limits: &[(&str, &str)]) -> Served {
    Served::of(MANIFEST, limits)
}

impl Served {
    /// Starts a capability and returns its snapshot.
    #[track_caller]
    pub fn start(&self, capability: &str, input: &Value) -> Value {
        let body = json!({ "capability": capability, "input": input });
        let answer = self.post("/api/v1/executions/start", &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// Starts a capability without any input and returns its id.
    #[track_caller]
    pub fn started(&self, capability: &str) -> String {
        self.start(capability, &json!({}))["id"].as_str().expect("an id").to_owned()
    }

    /// Returns an execution's snapshot.
    pub fn snapshot(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/executions/get?id={id}")).json()
    }

    /// Waits until an execution is in a state.
    #[track_caller]
    pub fn until(&self, id: &str, state: &str) -> Value {
        until(&format!("{id} to be {state}"), || {
            let snapshot = self.snapshot(id);
            let is = snapshot["state"] == state;
            assert!(is || snapshot.get("finished_at").is_none(), "it is not {state}: {snapshot}");
            is.then_some(snapshot)
        })
    }

    /// Waits until an execution has begun to print.
    #[track_caller]
    pub fn until_begun(&self, id: &str) -> Value {
        until(&format!("{id} to print"), || {
            let snapshot = self.until(id, "running");
            (snapshot["last_sequence"].as_u64() > Some(3)).then_some(snapshot)
        })
    }

    /// Returns the types of an execution's events.
    pub fn types(&self, id: &str) -> Vec<String> {
        let page = self.get(&format!("/api/v1/executions/events?id={id}")).json();
        let events = page["events"].as_array().cloned().unwrap_or_default();
        events.iter().map(|event| event["type"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Returns the lines of an execution.
    pub fn logs(&self, id: &str) -> Vec<String> {
        let page = self.get(&format!("/api/v1/executions/events?id={id}")).json();
        let events = page["events"].as_array().cloned().unwrap_or_default();
        let logs = events.iter().filter(|event| event["type"] == "execution.log");
        logs.map(|log| log["data"]["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Cancels an execution.
    pub fn cancel(&self, id: &str, force: bool) -> Value {
        let answer = self.post("/api/v1/executions/cancel", &json!({ "id": id, "force": force }));
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }
}

/// Returns the worker of an execution.
pub fn worker_of(snapshot: &Value) -> u32 {
    let pid = snapshot["worker"]["pid"].as_u64().expect("its worker is named");
    pid.try_into().expect("a pid")
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().expect("a pid")).expect("a pid");
    kill_process(pid, signal).expect("it can be signalled");
}

/// Returns the living workers of a broker.
pub fn workers(broker: &Running) -> Vec<u32> {
    // A child is listed with the thread that made it.
    let threads = std::fs::read_dir(format!("/proc/{}/task", broker.pid()));
    let lists =
        threads.into_iter().flatten().flatten().map(|thread| thread.path().join("children"));
    let lists = lists.map(|list| std::fs::read_to_string(list).unwrap_or_default());
    let pids = lists.flat_map(|list| {
        let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
        pids.collect::<Vec<u32>>()
    });
    pids.filter(|pid| lives(*pid)).collect()
}

#[test]
fn a_start_answers_at_once_and_its_execution_is_like_any_other() {
    let served = served(&[]);
    let begun = served.start("tick", &json!({}));
    let id = begun["id"].as_str().unwrap();
    assert_eq!((&begun["state"], &begun["last_sequence"]), (&json!("queued"), &json!(2)));
    assert_eq!(begun["actor"], json!({ "kind": "http" }));
    for link in ["self", "events"] {
        let target = begun["links"][link].as_str().unwrap();
        assert_eq!(served.get(target).status, 200, "{target}");
    }
    let end = served.until(id, "succeeded");
    assert_eq!(end["worker"]["role"], "pool");
    assert_eq!(
        served.types(id),
        ["created", "queued", "started", "log", "log", "log", "completed"]
            .map(|word| format!("execution.{word}"))
    );
    assert_eq!(served.checkout.history(id).len(), 7, "the command line sees the same");
    // Without an input is with an empty one.
    let bare = served.post("/api/v1/executions/start", &json!({ "capability": "tick" })).json();
    assert_eq!(bare["input"], json!({}));
}

#[test]
fn input_reaches_the_work_and_the_brokers_environment_does_not() {
    let served = served(&[]);
    let begun = served.start("echo", &json!({ "word": "a b'\"$HOME" }));
    let id = begun["id"].as_str().unwrap();
    served.until(id, "succeeded");
    let lines = served.logs(id);
    assert_eq!(lines[0], r#"{"word":"a b'\"$HOME"}"#);
    assert_eq!(lines[1], "a b'\"$HOME", "one argument, and no shell has seen it");
    assert!(lines.iter().any(|line| *line == format!("REEVE_EXECUTION={id}")));
    assert!(!lines.iter().any(|line| line.starts_with("REEVE_STATE_DIR=")), "{lines:?}");
}

#[test]
fn no_input_is_an_input_without_members() {
    let served = served(&[]);
    for input in [None, Some(Value::Null), Some(json!({}))] {
        let mut body = json!({ "capability": "tick" });
        if let Some(input) = input {
            body["input"] = input;
        }
        let answer = served.post("/api/v1/executions/start", &body);
        assert_eq!((answer.status, &answer.json()["input"]), (200, &json!({})), "{body}");
    }
}

#[test]
fn a_large_input_is_kept_whole_and_told_on_the_channel_by_its_size() {
    let served = served(&[]);
    let word = "y".repeat(100 << 10);
    let input = json!({ "word": word, "more": [word, word] });
    let id = served.start("large", &input)["id"].as_str().expect("an id").to_owned();
    served.until(&id, "succeeded");
    assert_eq!(served.snapshot(&id)["input"], input);
    let first = &served.checkout.history(&id)[0];
    assert_eq!(first["data"]["input"], input);
    let created = crate::channel::first_event(&served, &id);
    assert_eq!((&created["type"], &created["sequence"]), (&first["type"], &json!(1)));
    let told = &created["data"]["input"];
    assert_eq!((&told["withheld"], &told["limit"]), (&json!("too_large"), &json!(262_144)));
    assert_eq!(told["bytes"], input.to_string().len());
}

#[test]
fn so_many_run_at_once_and_the_next_waits_for_a_slot() {
    let served = served(&[("max_running", "2")]);
    let first = served.started("wait");
    let second = served.started("wait");
    let third = served.started("tick");
    served.until_begun(&first);
    served.until_begun(&second);
    let waits = served.snapshot(&third);
    assert_eq!(waits["overlay"]["waiting_on"]["kind"], "slot", "{waits}");
    served.cancel(&first, false);
    served.until(&third, "succeeded");
    let end = served.until(&first, "cancelled");
    assert!(end["duration_ms"].is_u64());
    assert_eq!(served.snapshot(&second)["state"], "running");
}

#[test]
fn a_serial_one_waits_though_slots_are_free_and_can_be_cancelled_waiting() {
    let served = served(&[]);
    let first = served.started("alone");
    served.until(&first, "running");
    let second = served.started("alone");
    let third = served.started("alone");
    let waits = served.snapshot(&second);
    assert_eq!(waits["overlay"]["waiting_on"]["kind"], "lock", "{waits}");
    assert_eq!(waits["overlay"]["waiting_on"]["execution_id"], json!(first));
    let cancelled = served.cancel(&second, false);
    assert_eq!(cancelled["outcome"], "requested");
    let end = served.until(&second, "cancelled");
    assert!(end.get("started_at").is_none() && end["finished_at"].is_string(), "{end}");
    served.cancel(&first, false);
    served.until(&third, "running");
}

#[test]
fn a_full_queue_refuses_and_says_when_to_come_back() {
    let served = served(&[("max_running", "1"), ("max_queued", "1")]);
    let first = served.started("wait");
    served.until_begun(&first);
    served.started("tick");
    let answer = served.post("/api/v1/executions/start", &json!({ "capability": "tick" }));
    assert_eq!((answer.status, answer.reason().as_str()), (429, "queue_full"), "{answer:?}");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(served.get("/api/v1/executions").json()["count"], 2);
}

#[test]
fn one_key_starts_once_whatever_else_it_is_used_for() {
    let served = served(&[]);
    let start = |key: &str, word: &str| {
        let input = json!({ "word": word });
        let body = json!({ "capability": "echo", "input": input, "idempotency_key": key });
        served.post("/api/v1/executions/start", &body)
    };
    let first = start("k", "one").json();
    let id = first["id"].as_str().unwrap();
    assert_eq!(start("k", "one").json()["id"], json!(id));
    served.until(id, "succeeded");
    assert_eq!(start("k", "one").json()["id"], json!(id), "after its end, too");
    let other = start("k", "two");
    assert_eq!((other.status, other.reason().as_str()), (409, "idempotency_conflict"));
    assert_ne!(start("l", "one").json()["id"], json!(id));
    assert_eq!(served.get("/api/v1/executions").json()["count"], 2);
}

#[test]
fn the_end_of_a_worker_ends_its_own_execution_only_and_is_told_as_it_was() {
    let served = served(&[]);
    let bystander = served.started("wait");
    served.until_begun(&bystander);
    for (kill, name) in [(Signal::KILL, "SIGKILL"), (Signal::ABORT, "SIGABRT")] {
        let ids: Vec<String> = (0..3).map(|_| served.started("wait")).collect();
        let pids: Vec<u32> = ids.iter().map(|id| worker_of(&served.until_begun(id))).collect();
        pids.iter().for_each(|pid| signal(*pid, kill));
        for (id, pid) in ids.iter().zip(pids) {
            let end = served.until(id, "failed");
            let error = &end["error"];
            assert_eq!(
                (&error["code"], &error["side_effect"]),
                (&json!("unavailable"), &json!("unknown"))
            );
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(name) && message.contains(&pid.to_string()), "{message}");
        }
    }
    assert_eq!(served.snapshot(&bystander)["state"], "running");
    served.until(&served.started("tick"), "succeeded");
}

#[test]
fn what_cannot_run_fails_without_having_begun() {
    let served = served(&[]);
    let id = served.started("gone");
    let end = served.until(&id, "failed");
    assert_eq!(end["error"]["side_effect"], "none", "{end}");
    assert!(end.get("started_at").is_none());
    served.until(&served.started("tick"), "succeeded");
}

#[test]
fn a_worker_that_is_stopped_is_killed_with_its_work_on_force() {
    let served = served(&[("cancel_grace", "500ms")]);
    let id = served.started("wait");
    let pid = worker_of(&served.until_begun(&id));
    signal(pid, Signal::STOP);
    served.cancel(&id, true);
    let end = served.until(&id, "failed");
    assert_eq!(end["error"]["code"], "unavailable");
    until("the worker to be gone", || (!lives(pid)).then_some(()));
}

#[test]
fn workers_are_used_again_and_one_is_always_warm() {
    let served = served(&[]);
    until("a warm worker", || (workers(&served.broker).len() == 1).then_some(()));
    let mut pids: Vec<u32> =
        (0..6).map(|_| worker_of(&served.until(&served.started("tick"), "succeeded"))).collect();
    pids.sort_unstable();
    pids.dedup();
    assert!(pids.len() <= 3, "six executions had {} workers", pids.len());
    // A warm worker that dies is replaced.
    for pid in workers(&served.broker) {
        signal(pid, Signal::KILL);
    }
    until("a new warm worker", || {
        workers(&served.broker).iter().any(|pid| !pids.contains(pid)).then_some(())
    });
    served.until(&served.started("tick"), "succeeded");
}

#[test]
fn a_worker_is_watched_by_one_descriptor_however_much_it_carries_out() {
    let served = served(&[]);
    for _ in 0..40 {
        served.until(&served.started("tick"), "succeeded");
    }
    let files = std::fs::read_dir(format!("/proc/{}/fd", served.broker.pid()));
    let links =
        files.into_iter().flatten().flatten().filter_map(|file| file.path().read_link().ok());
    let processes = links.filter(|link| link.to_string_lossy().contains("pidfd")).count();
    assert!(processes < 20, "{processes} descriptors of processes");
}

#[test]
fn a_stop_ends_what_the_broker_started_and_leaves_what_others_run() {
    let served = served(&[]);
    let mine = served.checkout.spawn(["run", "wait"]);
    let run = served.checkout.until_state("wait", "running")["id"].clone();
    let id = served.started("wait");
    let worker = worker_of(&served.until_begun(&id));
    let ran = served.checkout.run(["stop"]);
    assert_eq!(ran.code(), 0, "{ran:?}");
    until("its worker to be gone", || (!lives(worker)).then_some(()));
    assert!(lives(mine.pid()), "a run is its caller's");
    let _broker = served.checkout.serve(&[]);
    let again = served.checkout.until_state("wait", "running");
    assert_eq!(again["id"], run, "it has attached again");
}

#[test]
fn a_broker_that_ends_starts_nothing_more() {
    let served = served(&[("cancel_grace", "1s")]);
    let id = served.started("deaf");
    served.until_begun(&id);
    let stop = served.checkout.spawn(["stop"]);
    until("it to be asked to stop", || {
        (served.snapshot(&id)["state"] == "cancelling").then_some(())
    });
    let refused = served.post("/api/v1/executions/start", &json!({ "capability": "tick" }));
    assert_eq!((refused.status, refused.reason().as_str()), (503, "stopping"), "{refused:?}");
    assert_eq!(served.get("/api/v1/executions").json()["count"], 1);
    assert_eq!(stop.wait().code(), 0);
}

#[test]
fn a_stop_cancels_what_waits_and_nothing_of_it_fails() {
    let served = served(&[]);
    let args = ["executions", "watch", "--format", "ndjson", "--patience", "10ms"];
    let watch = served.checkout.spawn(args);
    until("somebody to watch", || {
        (served.checkout.json(["status"])["watchers"].as_u64() >= Some(1)).then_some(())
    });
    let ids: Vec<String> = (0..100).map(|_| served.started("wait")).collect();
    served.until_begun(&ids[0]);
    watch.until_stdout(&ids[99]);
    let ran = served.checkout.run(["stop"]);
    assert_eq!(ran.code(), 0, "{ran:?}");
    let seen = watch.wait().stdout;
    for id in &ids {
        let of_it = format!("\"event_id\":\"{id}#");
        let last = seen.lines().rfind(|line| line.contains(&of_it));
        assert!(last.is_some_and(|it| it.contains("execution.cancelled")), "{last:?} in {seen}");
    }
}

#[test]
fn work_outlives_a_broker_that_was_killed() {
    let mut served = served(&[]);
    let id = served.started("wait");
    let before = served.until_begun(&id);
    let worker = worker_of(&before);
    served.broker.kill();
    let broker = served.checkout.serve(&[]);
    let adopted = served.checkout.until_state("wait", "running");
    assert_eq!((&adopted["id"], worker_of(&adopted)), (&json!(id), worker));
    assert_eq!(adopted["actor"], json!({ "kind": "http" }));
    assert_eq!(served.checkout.history(&id)[3]["data"]["message"], "begun");
    let ran = served.checkout.run(["executions", "cancel", &id]);
    assert_eq!(ran.code(), 0, "{ran:?}");
    served.checkout.until_state("wait", "cancelled");
    until("its worker to end with its last work", || (!lives(worker)).then_some(()));
    drop(broker);
}

#[test]
fn idle_workers_end_with_their_broker_however_it_ends() {
    let mut served = served(&[]);
    let pids =
        until("a warm worker", || Some(workers(&served.broker)).filter(|pids| !pids.is_empty()));
    served.broker.kill();
    until("the warm worker to be gone", || (!pids.iter().any(|pid| lives(*pid))).then_some(()));
}

#[test]
fn nobody_but_a_broker_starts_a_worker() {
    let served = served(&[]);
    let ran = served.checkout.run(["worker"]);
    assert_eq!(ran.code(), 2, "{ran:?}");
    assert!(ran.stderr.contains("reeve serve"), "{ran:?}");
}

#[test]
fn many_starts_at_once_are_all_carried_out_once() {
    let served = served(&[]);
    let ids: Vec<String> = (0..40).map(|_| served.started("tick")).collect();
    for id in &ids {
        served.until(id, "succeeded");
        let started = served.types(id).iter().filter(|it| *it == "execution.started").count();
        assert_eq!(started, 1, "{id}");
    }
    assert!(workers(&served.broker).len() <= 9);
}

#[test]
fn what_was_printed_can_be_downloaded_and_says_what_is_missing() {
    let served = Served::of(
        r#"
[capability.both]
command = ["sh", "-c", "echo out; echo err >&2; echo '<script>'"]
effect = "read"
[capability.much]
command = ["seq", "1", "200000"]
effect = "read"
"#,
        &[("max_log_bytes", "262144")],
    );
    let both = served.started("both");
    served.until(&both, "succeeded");
    let raw = |id: &str, more: &str| served.get(&format!("/api/v1/executions/raw?id={id}{more}"));
    let out = raw(&both, "&stream=stdout");
    assert_eq!((out.status, out.body.as_str()), (200, "out\n<script>\n"), "{out:?}");
    assert_eq!(out.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(out.header("reeve-truncated"), Some("false"));
    assert_eq!(raw(&both, "&stream=stderr").body, "err\n");
    assert_eq!(raw(&both, "").body.len(), "out\nerr\n<script>\n".len());

    let much = served.started("much");
    served.until(&much, "succeeded");
    let cut = raw(&much, "");
    assert_eq!(cut.header("reeve-truncated"), Some("true"));
    assert!(cut.body.starts_with("1\n2\n") && cut.body.ends_with("199999\n200000\n"));
    assert!(cut.body.contains("are no longer kept]\n"), "{} bytes", cut.body.len());
    for (target, status) in [("&stream=x", 400), ("&streem=stdout", 400)] {
        assert_eq!(raw(&both, target).status, status, "{target}");
    }
    assert_eq!(raw("x-20000101T000000Z-00000000", "").status, 404);
}
