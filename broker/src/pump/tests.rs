//! Unit tests of the pump: what a reader is sent, and in which order.

use std::sync::Arc;

use reeve_protocol::snapshot::{Actor, ActorKind, Description, Repository, Snapshot};
use reeve_protocol::{Batch, Fence, Kind, Stamped, State, Timestamp};

use super::*;

fn id(n: u32) -> ExecutionId {
    ExecutionId::mint(Timestamp::from_micros(1_788_829_323_000_000), n)
}

fn shown(n: u32, last: u64, state: State) -> Shown {
    let description = Description {
        capability: "tests.unit".parse().unwrap(),
        title: "Unit tests".to_owned(),
        kind: reeve_protocol::capability::CapabilityKind::Process,
        effect: reeve_protocol::capability::Effect::Write,
        cancellable: true,
        lock: None,
        on_worker_loss: reeve_protocol::capability::OnWorkerLoss::End,
        cancel_grace_ms: 1_000,
        input: serde_json::Value::Null,
        actor: Actor { kind: ActorKind::Cli, peer: None, pid: None },
        repository: Repository::default(),
        parent_id: None,
    };
    let mut snapshot = Snapshot::new(id(n), &description, Timestamp::default());
    snapshot.state = state;
    Shown { handle: Handle(n), snapshot: Arc::new(snapshot), last: Seq(last), truncated: false }
}

fn followed(n: u32) -> Followed {
    Followed {
        execution: id(n),
        handle: Handle(n),
        capability: "tests.unit".parse().unwrap(),
        after: Seq::NONE,
        last: Seq(1),
        state: State::Running,
    }
}

fn subbed(numbers: std::ops::RangeInclusive<u32>) -> Subbed {
    let executions = numbers.map(followed).collect();
    Subbed { epoch: "epoch".to_owned(), executions, ..Subbed::default() }
}

fn page(wanted: Wanted) -> Page {
    let event = Stamped { at: Timestamp::default(), kind: Kind::Queued { ahead: 0 } };
    let batch = Batch::of_events(wanted.handle, Fence(1), wanted.after.next(), &[event]);
    Page { items: vec![Item::Batch(batch)], ..Page::default() }
}

fn kinds(mut out: BytesMut) -> Vec<u8> {
    std::iter::from_fn(|| frame::take(&mut out).unwrap().map(|(kind, _)| kind)).collect()
}

#[test]
fn who_floods_does_not_keep_the_end_of_another_from_coming() {
    let mut pump = Pump::default();
    let mut out = BytesMut::new();
    pump.subscribe(&subbed(1..=2), None, &[], &mut out);
    let mut last = 1;
    for _ in 0..8 {
        // The first has always one more than was read of it.
        last += 1;
        let show = |handle: Handle| {
            let first = handle == Handle(1);
            Some(if first { shown(1, last, State::Running) } else { shown(2, 2, State::Succeeded) })
        };
        pump.wake(Handle(1));
        if let Some(wanted) = pump.next(show, &mut out) {
            pump.page(wanted, &page(wanted), Seq(last), &mut out);
        }
    }
    assert!(pump.is_dirty(), "the first is never done");
    assert!(kinds(out).contains(&kind::END));
}

#[test]
fn a_subscription_to_many_is_answered_in_frames_that_fit() {
    let mut pump = Pump::default();
    let mut out = BytesMut::new();
    pump.subscribe(&subbed(1..=16_384), None, &[id(16_000)], &mut out);
    let mut joined = 0;
    let mut named = 0;
    while let Some((frame_kind, body)) = frame::take(&mut out).unwrap() {
        match frame_kind {
            kind::SUBBED => named += frame::decode::<Subbed>(&body).unwrap().executions.len(),
            kind::JOINED => joined += 1,
            other => panic!("a frame of kind {other}"),
        }
    }
    assert_eq!((named, joined), (SUBBED_MAX, 16_384 - SUBBED_MAX));
}

#[test]
fn what_a_reader_of_everything_has_left_does_not_join_again() {
    let mut pump = Pump::default();
    let mut out = BytesMut::new();
    pump.subscribe(&subbed(1..=1), Some(Handle(1)), &[], &mut out);
    pump.unsubscribe(&[Handle(1)]);
    pump.wake(Handle(1));
    let show = |handle: Handle| Some(shown(handle.0, 1, State::Running));
    assert_eq!(pump.next(show, &mut out), None);
    pump.wake(Handle(2));
    assert_eq!(pump.next(show, &mut out).map(|wanted| wanted.handle), Some(Handle(2)));
    assert_eq!(kinds(out), [kind::SUBBED, kind::JOINED]);
    let mut out = BytesMut::new();
    pump.subscribe(&subbed(1..=1), None, &[], &mut out);
    assert!(pump.next(show, &mut out).is_some(), "it is followed again by name");
}

#[test]
fn what_a_reader_has_left_is_not_remembered_beyond_its_execution() {
    let mut pump = Pump::default();
    let mut out = BytesMut::new();
    pump.subscribe(&subbed(1..=1), Some(Handle(1)), &[], &mut out);
    pump.unsubscribe(&[Handle(1)]);
    pump.wake(Handle(1));
    assert_eq!(pump.next(|_| None, &mut out), None);
    assert!(pump.left.is_empty());
    assert_eq!(kinds(out), [kind::SUBBED], "of what was left nothing is told");
}
