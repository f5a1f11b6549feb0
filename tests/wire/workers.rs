//! Workers on the wire: applied once and in order, fenced, lost, late.

use std::time::Duration;

use reeve_protocol::batch::{Builder, Class};
use reeve_protocol::event::Kind;
use reeve_protocol::peer::{Ack, Attach, Attached, Cancel, Fenced, Late, kind};
use reeve_protocol::stream::Op;
use reeve_protocol::{Batch, Code, Fence, LogChunk, Output, Seq, State, Timestamp};
use reeve_tests::until;
use reeve_tests::wire::{Granted, Wire, description, id, stamped};
use serde_json::{Value, json};

use crate::{Served, completed, progress};

fn get(served: &Served, number: u32) -> Value {
    let got = Wire::client(&served.socket).ask(Op::Get { id: id(number) });
    got.expect("the execution is held")
}

fn sequences(served: &Served, number: u32) -> Vec<u64> {
    let page = Wire::client(&served.socket)
        .ask(Op::Events { id: id(number), after: Seq::NONE, limit: None })
        .expect("the history is held");
    let events = page["events"].as_array().expect("a page has events");
    events.iter().map(|event| event["sequence"].as_u64().expect("a position")).collect()
}

fn running(served: &Served, number: u32) -> (Wire, Granted) {
    let mut worker = Wire::worker(&served.socket);
    let mut granted = worker.attach(id(number), description("test.wire"));
    worker.report(&mut granted, &[Kind::Started {}]);
    (worker, granted)
}

fn through(worker: &mut Wire, wanted: Seq) -> Ack {
    loop {
        let ack: Ack = worker.expect(kind::ACK);
        if ack.through >= wanted {
            return ack;
        }
    }
}

#[test]
fn a_worker_reports_from_begin_to_end() {
    let served = Served::plain();
    let (mut worker, mut granted) = running(&served, 1);
    assert_eq!(granted.next, Seq(4));
    worker.report(&mut granted, &[progress(1), progress(2)]);
    worker.report(&mut granted, &[completed()]);
    through(&mut worker, Seq(6));
    let shown = get(&served, 1);
    assert_eq!(shown["state"], "succeeded");
    assert_eq!(shown["output"], json!({ "ok": true }));
    assert_eq!(shown["event_count"], 6);
    assert_eq!(shown["actor"]["kind"], "cli");
    assert!(shown.get("error").is_none(), "absent is absent: {shown}");
    assert_eq!(sequences(&served, 1), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_batch_counts_once_however_often_it_comes() {
    let served = Served::plain();
    let (mut worker, granted) = running(&served, 2);
    let five = granted.batch(&[progress(1), progress(2), progress(3), progress(4), progress(5)]);
    worker.batch(&five);
    worker.batch(&five);
    let overlapping = Granted { next: Seq(6), ..granted };
    worker.batch(&overlapping.batch(&[
        progress(3),
        progress(4),
        progress(5),
        progress(6),
        progress(7),
        progress(8),
    ]));
    assert_eq!(through(&mut worker, Seq(11)).through, Seq(11));
    assert_eq!(sequences(&served, 2), (1..=11).collect::<Vec<_>>());
}

#[test]
fn a_gap_is_not_applied_and_is_asked_for() {
    let served = Served::plain();
    let (mut worker, granted) = running(&served, 3);
    through(&mut worker, Seq(3));
    let beyond = Granted { next: Seq(7), ..granted };
    worker.batch(&beyond.batch(&[progress(7)]));
    let ack = loop {
        let ack: Ack = worker.expect(kind::ACK);
        if ack.resend_from.is_some() {
            break ack;
        }
    };
    assert_eq!((ack.through, ack.resend_from), (Seq(3), Some(Seq(4))));
    assert_eq!(sequences(&served, 3), [1, 2, 3]);
}

#[test]
fn nothing_follows_the_end() {
    let served = Served::plain();
    let (mut worker, mut granted) = running(&served, 4);
    worker.report(&mut granted, &[completed(), progress(9), completed()]);
    let fenced: Fenced = worker.expect(kind::FENCED);
    assert_eq!((fenced.state, fenced.last), (State::Succeeded, Seq(4)));
    assert_eq!(sequences(&served, 4), [1, 2, 3, 4]);
    let status = Wire::client(&served.socket).ask(Op::Status {}).expect("it answers");
    assert_eq!(status["refused_events"], 2);
}

#[test]
fn an_end_without_a_beginning_is_refused() {
    let served = Served::plain();
    let mut worker = Wire::worker(&served.socket);
    let mut granted = worker.attach(id(5), description("test.wire"));
    worker.report(&mut granted, &[completed()]);
    assert!(worker.closed().contains("cannot become"));
    assert_eq!(get(&served, 5)["state"], "queued");
}

#[test]
fn a_checksum_that_does_not_match_closes_that_connection_alone() {
    let served = Served::plain();
    let (mut worker, granted) = running(&served, 6);
    let (other, _) = running(&served, 7);
    let mut bytes = granted.batch(&[progress(1)]).bytes().to_vec();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    worker.raw(&reeve_protocol::frame::prefix(kind::BATCH, bytes.len()));
    worker.raw(&bytes);
    assert!(worker.closed().contains("checksum"));
    assert_eq!(get(&served, 7)["state"], "running");
    drop(other);
}

#[test]
fn a_batch_over_the_bound_is_refused_whole() {
    let served = Served::with(&[("max_batch_events", "10")]);
    let (mut worker, granted) = running(&served, 8);
    let events: Vec<Kind> = (0..11).map(progress).collect();
    worker.batch(&granted.batch(&events));
    assert!(worker.closed().contains("max_batch_events is 10"));
    assert_eq!(sequences(&served, 8), [1, 2, 3]);
}

#[test]
fn text_that_a_worker_left_dirty_reaches_nobody() {
    let served = Served::with(&[("max_line_chars", "100")]);
    let (mut worker, mut granted) = running(&served, 9);
    let title = "a\u{1b}]0;evil\u{7}b\u{202e}c".to_owned();
    worker.report(&mut granted, &[Kind::StepStarted { name: "s".to_owned(), title }]);
    let long = "y".repeat(150);
    worker.report(&mut granted, &[Kind::StepStarted { name: "t".to_owned(), title: long }]);
    let mut builder = Builder::new(Class::Bytes);
    builder.log(&LogChunk {
        at: Timestamp::default(),
        stream: Output::Stdout,
        lines: 1,
        text: bytes::Bytes::from_static(b"red \x1b[31mtext\x1b[0m \x00\x07 end\n"),
    });
    worker.batch(&builder.finish(granted.handle, granted.fence, granted.next));
    through(&mut worker, Seq(6));
    let page = Wire::client(&served.socket)
        .ask(Op::Events { id: id(9), after: Seq(3), limit: None })
        .expect("the history is held");
    assert_eq!(page["events"][0]["data"]["title"], "ab⟦U+202E⟧c");
    assert_eq!(page["events"][1]["data"]["title"].as_str().map(|t| t.chars().count()), Some(100));
    assert_eq!(page["events"][2]["data"]["message"], "red text    end");
}

#[test]
fn an_unknown_kind_of_event_is_kept_and_shown() {
    let served = Served::plain();
    let (mut worker, mut granted) = running(&served, 10);
    let data = json!({ "colour": "blue" });
    worker.report(&mut granted, &[Kind::Unknown { tag: "painted".to_owned(), data: data.clone() }]);
    through(&mut worker, Seq(4));
    let page = Wire::client(&served.socket)
        .ask(Op::Events { id: id(10), after: Seq(3), limit: None })
        .expect("the history is held");
    assert_eq!(page["events"][0]["type"], "execution.painted");
    assert_eq!(page["events"][0]["data"], data);
}

#[test]
fn an_old_fence_writes_nothing() {
    let served = Served::plain();
    let (mut worker, granted) = running(&served, 11);
    through(&mut worker, Seq(3));
    let old = Batch::of_events(granted.handle, Fence(0), Seq(4), &[stamped(progress(1))]);
    worker.batch(&old);
    let fenced: Fenced = worker.expect(kind::FENCED);
    assert_eq!(fenced.state, State::Running);
    assert_eq!(sequences(&served, 11), [1, 2, 3]);
}

#[test]
fn a_worker_whose_connection_broke_comes_back_to_where_it_was() {
    let served = Served::plain();
    let (mut worker, mut granted) = running(&served, 12);
    worker.report(&mut granted, &[progress(1)]);
    through(&mut worker, Seq(4));
    drop(worker);
    let mut again = Wire::worker(&served.socket);
    again.send(
        kind::ATTACH,
        &Attach {
            execution: id(12),
            fence: Some(granted.fence),
            description: description("test.wire"),
            last: Seq(6),
            tree: None,
        },
    );
    let grant: reeve_protocol::peer::Grant = again.expect(kind::GRANT);
    assert_eq!((grant.next, grant.fence), (Seq(5), granted.fence));
    let mut granted = Granted { next: grant.next, ..granted };
    again.report(&mut granted, &[progress(2), completed()]);
    through(&mut again, Seq(6));
    assert_eq!(sequences(&served, 12), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_worker_that_stays_away_has_lost_its_execution_and_may_only_say_so() {
    let served = Served::with(&[("reattach", "200ms"), ("heartbeat", "100ms")]);
    let (mut worker, granted) = running(&served, 13);
    through(&mut worker, Seq(3));
    drop(worker);
    until("the execution to fail", || (get(&served, 13)["state"] == "failed").then_some(()));
    let shown = get(&served, 13);
    assert_eq!(shown["error"]["code"], "unavailable");
    assert_eq!(shown["error"]["side_effect"], "unknown");
    let message = shown["error"]["message"].as_str().expect("a message");
    assert!(message.contains(&format!("process {}", std::process::id())), "{message}");

    let mut again = Wire::worker(&served.socket);
    again.send(
        kind::ATTACH,
        &Attach {
            execution: id(13),
            fence: Some(granted.fence),
            description: description("test.wire"),
            last: Seq(9),
            tree: None,
        },
    );
    let fenced: Fenced = again.expect(kind::FENCED);
    assert_eq!(fenced.state, State::Failed);
    again.send(
        kind::LATE,
        &Late {
            execution: id(13),
            fence: granted.fence,
            state: State::Succeeded,
            message: "it went well".to_owned(),
            unsent_events: 6,
        },
    );
    until("the late report", || {
        let shown = get(&served, 13);
        (shown["overlay"]["late_report"]["state"] == "succeeded").then_some(())
    });
    assert_eq!(get(&served, 13)["state"], "failed", "the final state never moves");
}

#[test]
fn silence_ends_an_execution_at_the_limit_and_a_heartbeat_does_not() {
    let served = Served::with(&[("heartbeat", "100ms"), ("silence", "1s")]);
    let (silent, _) = running(&served, 14);
    let (mut alive, _) = running(&served, 15);
    until("the silent one to fail", || {
        alive.send(kind::HEARTBEAT, &reeve_protocol::peer::Heartbeat::default());
        answer_pings(&mut alive);
        (get(&served, 14)["state"] == "failed").then_some(())
    });
    assert_eq!(get(&served, 14)["error"]["reason"], "silent");
    assert_eq!(get(&served, 15)["state"], "running");
    drop(silent);
}

/// Answers the pings that have come so far.
fn answer_pings(worker: &mut Wire) {
    let ping: reeve_protocol::peer::Ping = worker.expect(kind::PING);
    worker.send(kind::PONG, &ping);
}

#[test]
fn a_worker_that_takes_no_commands_is_not_taken_for_alive() {
    let served = Served::with(&[("heartbeat", "100ms"), ("silence", "1s")]);
    let (mut deaf, _) = running(&served, 16);
    until("the deaf one to fail", || {
        deaf.send(kind::HEARTBEAT, &reeve_protocol::peer::Heartbeat::default());
        (get(&served, 16)["state"] == "failed").then_some(())
    });
    assert_eq!(get(&served, 16)["error"]["reason"], "deaf");
}

#[test]
fn who_holds_a_lock_lets_the_next_one_begin() {
    let served = Served::plain();
    let locked = || {
        let mut description = description("test.serial");
        description.lock = Some("lock target".to_owned());
        description
    };
    let mut first = Wire::worker(&served.socket);
    let mut granted = first.attach(id(20), locked());
    first.report(&mut granted, &[Kind::Started {}]);
    let mut second = Wire::worker(&served.socket);
    let attach = Attach {
        execution: id(21),
        fence: None,
        description: locked(),
        last: Seq::NONE,
        tree: None,
    };
    second.send(kind::ATTACH, &attach);
    let attached: Attached = second.expect(kind::ATTACHED);
    let waits = attached.waiting_on.expect("it waits for something");
    assert_eq!((waits.kind.as_str(), waits.execution_id), ("lock", Some(id(20))));
    assert_eq!(get(&served, 21)["overlay"]["waiting_on"]["kind"], "lock");
    first.report(&mut granted, &[completed()]);
    let grant: reeve_protocol::peer::Grant = second.expect(kind::GRANT);
    assert_eq!(grant.next, Seq(3));
}

#[test]
fn what_waits_is_cancelled_at_once_and_never_begins() {
    let served = Served::plain();
    let mut lock = description("test.serial");
    lock.lock = Some("lock target".to_owned());
    let mut first = Wire::worker(&served.socket);
    first.attach(id(22), lock.clone());
    let mut second = Wire::worker(&served.socket);
    let attach =
        Attach { execution: id(23), fence: None, description: lock, last: Seq::NONE, tree: None };
    second.send(kind::ATTACH, &attach);
    let _: Attached = second.expect(kind::ATTACHED);
    let cancel = Op::Cancel { id: id(23), by: "tester".to_owned(), force: false };
    let answer = Wire::client(&served.socket).ask(cancel).expect("it can be asked");
    assert_eq!(answer["outcome"], "requested");
    let fenced: Fenced = second.expect(kind::FENCED);
    assert_eq!(fenced.state, State::Cancelled);
    let shown = get(&served, 23);
    assert!(shown.get("started_at").is_none() && shown.get("duration_ms").is_none());
    assert!(shown.get("finished_at").is_some());
    assert_eq!(shown["error"]["code"], "cancelled");
}

#[test]
fn a_cancel_reaches_the_worker_once_and_is_told_from_then_on() {
    let served = Served::plain();
    let (mut worker, mut granted) = running(&served, 24);
    let mut client = Wire::client(&served.socket);
    let cancel = || Op::Cancel { id: id(24), by: "tester".to_owned(), force: false };
    assert_eq!(client.ask(cancel()).expect("it can be asked")["outcome"], "requested");
    assert!(get(&served, 24)["overlay"]["cancel_requested_at"].is_string());
    let asked: Cancel = worker.expect(kind::CANCEL);
    assert_eq!((asked.by.as_str(), asked.force), ("tester", false));
    assert_eq!(client.ask(cancel()).expect("it can be asked")["outcome"], "already_requested");
    let cancelling = Kind::Cancelling { by: asked.by };
    worker.report(&mut granted, &[cancelling, Kind::Cancelled { receipt: None }]);
    through(&mut worker, Seq(5));
    assert_eq!(client.ask(cancel()).expect("it can be asked")["outcome"], "already_finished");
    assert!(get(&served, 24)["overlay"].get("cancel_requested_at").is_none());
}

#[test]
fn too_many_at_once_are_refused_and_finished_ones_make_room() {
    let served = Served::with(&[("max_active", "2"), ("max_executions", "3")]);
    let (first, _) = running(&served, 30);
    let (mut second, mut granted) = running(&served, 31);
    let mut third = Wire::worker(&served.socket);
    let attach = Attach {
        execution: id(32),
        fence: None,
        description: description("test.wire"),
        last: Seq::NONE,
        tree: None,
    };
    third.send(kind::ATTACH, &attach);
    let fenced: Fenced = third.expect(kind::FENCED);
    let error = fenced.error.expect("it says why");
    assert_eq!(error.code, Code::Busy);
    assert!(error.message.contains("max_active is 2"), "{}", error.message);

    second.report(&mut granted, &[completed()]);
    through(&mut second, Seq(4));
    for number in 33..40 {
        let (mut worker, mut granted) = running(&served, number);
        worker.report(&mut granted, &[completed()]);
        through(&mut worker, Seq(4));
    }
    let mut client = Wire::client(&served.socket);
    let list = client
        .ask(Op::List { state: None, capability: None, limit: None, before: None })
        .expect("there is a list");
    assert_eq!(list["remembered"], 3);
    let ids: Vec<&str> = list["executions"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["id"].as_str())
        .collect();
    assert!(ids.contains(&id(30).as_str()), "a running one is never forgotten");
    let gone = client.ask(Op::Get { id: id(31) }).expect_err("it was forgotten");
    assert_eq!(gone.code, Code::NotFound);
    drop(first);
}

#[test]
fn history_keeps_its_newest_events_and_says_what_is_gone() {
    let served = Served::with(&[("max_events", "10")]);
    let (mut worker, mut granted) = running(&served, 50);
    for n in 0..8 {
        worker.report(&mut granted, &[progress(n)]);
    }
    through(&mut worker, Seq(11));
    let page = Wire::client(&served.socket)
        .ask(Op::Events { id: id(50), after: Seq::NONE, limit: None })
        .expect("the history is held");
    assert_eq!(page["truncated"], true);
    assert_eq!(page["gaps"], json!([{ "from": 1, "to": 1, "reason": "retention" }]));
    assert_eq!(page["events"][0]["sequence"], 2);
    let shown = get(&served, 50);
    assert_eq!((&shown["events_truncated"], &shown["event_count"]), (&json!(true), &json!(11)));
}

#[test]
fn snapshots_count_what_they_do_not_list() {
    let served = Served::with(&[("max_steps", "3"), ("max_diagnostics", "2")]);
    let (mut worker, mut granted) = running(&served, 51);
    let step = |n: u64| Kind::StepStarted { name: n.to_string(), title: n.to_string() };
    let finding = |n: u64| Kind::Diagnostic {
        severity: reeve_protocol::event::Severity::Info,
        code: n.to_string(),
        summary: "found".to_owned(),
        detail: None,
        suggestion: None,
    };
    worker.report(&mut granted, &(0..5).map(step).collect::<Vec<_>>());
    worker.report(&mut granted, &(0..5).map(finding).collect::<Vec<_>>());
    through(&mut worker, Seq(13));
    let shown = get(&served, 51);
    assert_eq!(shown["steps"].as_array().map(Vec::len), Some(3));
    assert_eq!(shown["steps_omitted"], 2);
    assert_eq!(shown["diagnostics"].as_array().map(Vec::len), Some(2));
    assert_eq!(shown["diagnostics_omitted"], 3);
}

#[test]
fn ten_thousand_heartbeats_change_nothing() {
    let served = Served::plain();
    let (mut worker, mut granted) = running(&served, 52);
    for _ in 0..10_000 {
        worker.send(kind::HEARTBEAT, &reeve_protocol::peer::Heartbeat::default());
    }
    worker.report(&mut granted, &[completed()]);
    worker.stream().set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout can be set");
    through(&mut worker, Seq(4));
    assert_eq!(sequences(&served, 52), [1, 2, 3, 4]);
}

#[test]
fn a_fence_that_no_broker_grants_closes_that_connection_alone() {
    let served = Served::with(&[("reattach", "200ms")]);
    for (number, fence) in [(60, u64::MAX), (61, u64::MAX / 2 + 1)] {
        let mut worker = Wire::worker(&served.socket);
        worker.send(
            kind::ATTACH,
            &Attach {
                execution: id(number),
                fence: Some(Fence(fence)),
                description: description("test.wire"),
                last: Seq(3),
                tree: None,
            },
        );
        let reason = worker.closed();
        assert!(reason.starts_with("bad_frame: "), "{reason}");
        served.still_answers();
    }
}

#[test]
fn a_worker_that_goes_away_before_it_has_shown_its_history_has_failed() {
    let served = Served::with(&[("reattach", "200ms")]);
    for (number, fence) in [(62, None), (63, Some(Fence(u64::MAX / 2)))] {
        let mut worker = Wire::worker(&served.socket);
        worker.send(
            kind::ATTACH,
            &Attach {
                execution: id(number),
                fence,
                description: description("test.wire"),
                last: Seq(7),
                tree: None,
            },
        );
        let grant: reeve_protocol::peer::Grant = worker.expect(kind::GRANT);
        assert_eq!(grant.next, Seq(1));
        drop(worker);
        until("the execution to fail", || {
            let got = Wire::client(&served.socket).ask(Op::Get { id: id(number) });
            got.is_ok_and(|shown| shown["state"] == "failed").then_some(())
        });
        served.still_answers();
        assert_eq!(sequences(&served, number), [1, 2]);
    }
}

#[test]
fn what_came_before_a_frame_that_cannot_be_taken_counts() {
    let served = Served::plain();
    let (mut worker, granted) = running(&served, 64);
    through(&mut worker, Seq(3));
    let batch = granted.batch(&[progress(1), completed()]);
    let mut bytes = bytes::BytesMut::new();
    reeve_protocol::frame::put(&mut bytes, kind::BATCH, batch.bytes());
    bytes.extend_from_slice(&[0, 0, 0, 0]);
    worker.raw(&bytes);
    assert!(worker.closed().contains("bad_frame"));
    assert_eq!(get(&served, 64)["state"], "succeeded");
    assert_eq!(sequences(&served, 64), [1, 2, 3, 4, 5]);
}

#[test]
fn workers_and_clients_are_told_that_a_broker_ends() {
    let served = Served::plain();
    let (mut worker, _) = running(&served, 65);
    let mut client = Wire::client(&served.socket);
    client.ask(Op::Status {}).expect("it answers");
    Wire::client(&served.socket).ask(Op::Stop { force: false }).expect("it can be asked to stop");
    let mut drained = false;
    let mut reason = String::new();
    while let Some((frame_kind, body)) = worker.recv() {
        drained |= frame_kind == kind::DRAIN;
        if frame_kind == kind::BYE {
            let bye: reeve_protocol::peer::Bye =
                reeve_protocol::frame::decode(&body).expect("a goodbye is good");
            reason = bye.reason;
        }
    }
    assert!(drained && reason.starts_with("stopping: "), "{drained} {reason}");
    assert!(client.closed().starts_with("stopping: "));
}
