//! Clients on the wire: cursors, gaps, ends, requests.

use reeve_protocol::event::Kind;
use reeve_protocol::peer::kind;
use reeve_protocol::stream::{
    Answer, End, FollowFrom, Gap, GapReason, Joined, Op, OverlayChanged, Res, Sub, Subbed,
};
use reeve_protocol::{Batch, Code, Seq, State, frame};
use reeve_tests::wire::{Granted, Wire, description, id};
use reeve_tests::{resident, until};

use crate::{Served, completed, progress};

fn running(served: &Served, number: u32) -> (Wire, Granted) {
    let mut worker = Wire::worker(&served.socket);
    let mut granted = worker.attach(id(number), description("test.wire"));
    worker.report(&mut granted, &[Kind::Started {}]);
    (worker, granted)
}

fn follow(served: &Served, number: u32, after: u64) -> (Wire, Subbed) {
    let mut reader = Wire::client(&served.socket);
    let from = FollowFrom { execution: id(number), after: Seq(after) };
    reader.send(kind::SUB, &Sub { executions: vec![from], ..Sub::default() });
    let subbed = reader.expect(kind::SUBBED);
    (reader, subbed)
}

/// Reads to the end and returns the positions that came, checked to be without a hole.
fn to_the_end(reader: &mut Wire, mut at: Seq) -> (Vec<u64>, Vec<Gap>, End) {
    let (mut seen, mut gaps) = (Vec::new(), Vec::new());
    loop {
        match reader.recv() {
            Some((kind::BATCH, body)) => {
                let batch = Batch::parse(body).expect("a good batch");
                assert_eq!(batch.first(), at.next(), "no hole, no repeat");
                seen.extend(batch.first().0..=batch.last().0);
                at = batch.last();
            }
            Some((kind::GAP, body)) => {
                let gap: Gap = frame::decode(&body).expect("a good gap");
                at = gap.resume_after;
                gaps.push(gap);
            }
            Some((kind::END, body)) => {
                return (seen, gaps, frame::decode(&body).expect("a good end"));
            }
            Some(_) => {}
            None => panic!("the stream was cut"),
        }
    }
}

fn wait_for(served: &Served, number: u32, last: u64) {
    let mut client = Wire::client(&served.socket);
    until("the history to grow", || {
        let shown = client.ask(Op::Get { id: id(number) }).ok()?;
        (shown["last_sequence"].as_u64() >= Some(last)).then_some(())
    });
}

#[test]
fn a_reader_gets_the_history_and_then_what_happens() {
    let served = Served::plain();
    let (mut worker, mut granted) = running(&served, 1);
    wait_for(&served, 1, 3);
    let (mut reader, subbed) = follow(&served, 1, 0);
    assert_eq!((subbed.executions[0].last, subbed.executions[0].state), (Seq(3), State::Running));
    for n in 0..50 {
        worker.report(&mut granted, &[progress(n)]);
    }
    worker.report(&mut granted, &[completed()]);
    let (seen, gaps, end) = to_the_end(&mut reader, Seq::NONE);
    assert_eq!(seen, (1..=54).collect::<Vec<_>>());
    assert!(gaps.is_empty());
    assert_eq!((end.last, end.state), (Seq(54), State::Succeeded));
}

#[test]
fn a_cursor_is_gone_on_from_by_anybody() {
    let served = Served::plain();
    let (mut worker, mut granted) = running(&served, 2);
    let events: Vec<Kind> = (0..200).map(progress).collect();
    worker.report(&mut granted, &events);
    worker.report(&mut granted, &[completed()]);
    wait_for(&served, 2, 204);
    for after in [0, 1, 3, 50, 203] {
        let (mut reader, _) = follow(&served, 2, after);
        let (seen, _, _) = to_the_end(&mut reader, Seq(after));
        assert_eq!(seen, (after + 1..=204).collect::<Vec<_>>(), "after {after}");
    }
}

#[test]
fn a_cursor_ahead_of_the_history_is_answered_at_once() {
    let served = Served::plain();
    let (mut worker, mut granted) = running(&served, 3);
    wait_for(&served, 3, 3);
    let (mut reader, _) = follow(&served, 3, 1_000);
    let gap: Gap = reader.expect(kind::GAP);
    assert_eq!(gap.reason, GapReason::Ahead);
    assert_eq!((gap.from, gap.to, gap.resume_after), (Seq(4), Seq(1_000), Seq(3)));
    worker.report(&mut granted, &[completed()]);
    let (seen, _, _) = to_the_end(&mut reader, Seq(3));
    assert_eq!(seen, [4]);
    let page = Wire::client(&served.socket)
        .ask(Op::Events { id: id(3), after: Seq(1_000), limit: None })
        .expect("the history is held");
    assert_eq!(page["ahead"]["head"], 4);
    assert_eq!((&page["more"], &page["last_sequence"]), (&false.into(), &4.into()));
}

#[test]
fn a_cursor_of_another_history_starts_from_the_beginning() {
    let served = Served::plain();
    let (mut worker, mut granted) = running(&served, 4);
    worker.report(&mut granted, &[progress(1), completed()]);
    wait_for(&served, 4, 5);
    let mut reader = Wire::client(&served.socket);
    let from = FollowFrom { execution: id(4), after: Seq(4) };
    let epoch = Some("another".to_owned());
    reader.send(kind::SUB, &Sub { executions: vec![from], all: false, epoch });
    let gap: Gap = reader.expect(kind::GAP);
    assert_eq!((gap.reason, gap.resume_after), (GapReason::Epoch, Seq::NONE));
    let (seen, _, _) = to_the_end(&mut reader, Seq::NONE);
    assert_eq!(seen, [1, 2, 3, 4, 5]);
}

#[test]
fn a_reader_of_everything_sees_what_begins_after_it_came() {
    let served = Served::plain();
    let (mut worker, mut granted) = running(&served, 5);
    worker.report(&mut granted, &[completed()]);
    wait_for(&served, 5, 4);
    let mut reader = Wire::client(&served.socket);
    reader.send(kind::SUB, &Sub { all: true, ..Sub::default() });
    let subbed: Subbed = reader.expect(kind::SUBBED);
    assert!(subbed.executions.is_empty(), "what is over is not followed");
    let (mut worker, mut granted) = running(&served, 6);
    worker.report(&mut granted, &[completed()]);
    let joined: Joined = reader.expect(kind::JOINED);
    assert_eq!((joined.followed.execution, joined.followed.after), (id(6), Seq::NONE));
    let (seen, _, _) = to_the_end(&mut reader, Seq::NONE);
    assert_eq!(seen, [1, 2, 3, 4]);
}

#[test]
fn an_execution_that_nobody_knows_is_named_as_such() {
    let served = Served::plain();
    let (_, subbed) = follow(&served, 999, 0);
    assert_eq!(subbed.unknown, [id(999)]);
    let fault =
        Wire::client(&served.socket).ask(Op::Get { id: id(999) }).expect_err("nobody holds it");
    assert_eq!(fault.code, Code::NotFound);
    assert!(fault.message.contains(id(999).as_str()));
}

#[test]
fn a_change_beside_the_events_is_pushed() {
    let served = Served::plain();
    let (_worker, _) = running(&served, 7);
    wait_for(&served, 7, 3);
    let (mut reader, _) = follow(&served, 7, 3);
    let cancel = Op::Cancel { id: id(7), by: "tester".to_owned(), force: false };
    Wire::client(&served.socket).ask(cancel).expect("it can be asked");
    loop {
        let changed: OverlayChanged = reader.expect(kind::OVERLAY);
        if changed.overlay.cancel_requested_at.is_some() {
            return;
        }
    }
}

#[test]
fn the_number_of_followed_executions_has_a_bound() {
    let served = Served::with(&[("max_followed", "2")]);
    let mut reader = Wire::client(&served.socket);
    let from = |number| FollowFrom { execution: id(number), after: Seq::NONE };
    let executions = vec![from(1), from(2), from(3)];
    reader.send(kind::SUB, &Sub { executions, ..Sub::default() });
    let res: Res = reader.expect(kind::RES);
    let Answer::Err(fault) = res.result else { panic!("it is refused") };
    assert!(fault.message.contains("max_followed is 2"), "{}", fault.message);
}

#[test]
fn a_limit_is_clamped_and_zero_is_refused() {
    let served = Served::with(&[("max_page", "3"), ("max_list", "2")]);
    let (mut worker, mut granted) = running(&served, 8);
    worker.report(&mut granted, &[progress(1), progress(2), completed()]);
    wait_for(&served, 8, 6);
    drop((running(&served, 9), running(&served, 10)));
    wait_for(&served, 10, 2);
    let mut client = Wire::client(&served.socket);
    let page = |after, limit| Op::Events { id: id(8), after: Seq(after), limit };
    let first = client.ask(page(0, Some(1_000))).expect("the history is held");
    assert_eq!(first["events"].as_array().map(Vec::len), Some(3));
    assert_eq!((&first["more"], &first["last_sequence"]), (&true.into(), &3.into()));
    let rest = client.ask(page(3, None)).expect("the history is held");
    assert_eq!((&rest["more"], &rest["last_sequence"]), (&false.into(), &6.into()));
    let zero = client.ask(page(0, Some(0))).expect_err("zero asks for nothing");
    assert_eq!(zero.code, Code::InvalidRequest);
    let list = |before| Op::List { state: None, capability: None, limit: Some(99), before };
    let newest = client.ask(list(None)).expect("there is a list");
    assert_eq!(newest["executions"].as_array().map(Vec::len), Some(2));
    let next = newest["next"].as_str().expect("there is more").parse().expect("an id");
    let older = client.ask(list(Some(next))).expect("there is a list");
    assert_eq!(older["executions"].as_array().map(Vec::len), Some(1));
    assert!(older.get("next").is_none());
}

#[test]
fn a_reader_that_takes_nothing_is_dropped_and_slows_nobody() {
    let served = Served::with(&[("write_deadline", "500ms"), ("max_events", "5000")]);
    let (mut worker, mut granted) = running(&served, 11);
    wait_for(&served, 11, 3);
    let (stuck, _) = follow(&served, 11, 0);
    let (mut reader, _) = follow(&served, 11, 0);
    let reading = std::thread::spawn(move || to_the_end(&mut reader, Seq::NONE));
    let before = resident(served.broker.pid());
    let noise = "z".repeat(1_000);
    for n in 0..4_000 {
        let message = Some(format!("{n}{noise}"));
        worker.report(&mut granted, &[Kind::Progress { current: n, total: None, message }]);
    }
    worker.report(&mut granted, &[completed()]);
    let (seen, _, end) = reading.join().expect("the reader reads to the end");
    assert_eq!((end.last, seen), (Seq(4_004), (1..=4_004).collect::<Vec<_>>()));
    let grown = resident(served.broker.pid()).saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    until("the stuck reader to be dropped", || {
        let status = Wire::client(&served.socket).ask(Op::Status {}).ok()?;
        (status["watchers"].as_u64() <= Some(1)).then_some(())
    });
    drop(stuck);
}
