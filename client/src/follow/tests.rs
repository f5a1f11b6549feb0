//! Whatever is cut, repeated or lost on the wire, a reader is offered each position once.

use reeve_protocol::batch::{Builder, LogChunk, Output};
use reeve_protocol::event::{Kind, Stamped};
use reeve_protocol::frame::encode;
use reeve_protocol::id::Fence;
use reeve_protocol::time::Timestamp;

use super::*;

fn id(n: u32) -> ExecutionId {
    ExecutionId::mint(Timestamp::from_micros(0), n)
}

fn progress(current: u64) -> Stamped {
    Stamped {
        at: Timestamp::default(),
        kind: Kind::Progress { current, total: None, message: None },
    }
}

/// A batch whose events name their positions.
fn batch(handle: u32, first: u64, last: u64) -> Bytes {
    let events: Vec<Stamped> = (first..=last).map(progress).collect();
    Batch::of_events(Handle(handle), Fence(1), Seq(first), &events).bytes().clone()
}

fn lines(handle: u32, first: u64, last: u64) -> Bytes {
    let text: String = (first..=last).map(|n| format!("{n}\n")).collect();
    let mut builder = Builder::new(Class::Bytes);
    builder.log(&LogChunk {
        at: Timestamp::default(),
        stream: Output::Stdout,
        lines: u32::try_from(last - first + 1).unwrap(),
        text: text.into(),
    });
    builder.finish(Handle(handle), Fence(1), Seq(first)).bytes().clone()
}

fn followed(n: u32, handle: u32, after: u64, last: u64) -> Followed {
    Followed {
        execution: id(n),
        handle: Handle(handle),
        capability: "demo.x".parse().unwrap(),
        after: Seq(after),
        last: Seq(last),
        state: State::Running,
    }
}

fn subbed(follower: &mut Follower, epoch: &str, executions: Vec<Followed>) {
    let subbed = Subbed { epoch: epoch.to_owned(), executions, unknown: Vec::new() };
    follower.handle_frame(kind::SUBBED, encode(&subbed).into()).unwrap();
}

fn gap(handle: u32, from: u64, to: u64, reason: GapReason, resume_after: u64) -> Bytes {
    let gap = Gap {
        handle: Handle(handle),
        from: Seq(from),
        to: Seq(to),
        reason,
        resume_after: Seq(resume_after),
    };
    encode(&gap).into()
}

fn end(handle: u32, last: u64) -> Bytes {
    encode(&End { handle: Handle(handle), last: Seq(last), state: State::Succeeded }).into()
}

/// What was offered, in words: `join 0`, `1-3`, `gap 4-5`, `end 5`.
fn told(follower: &mut Follower) -> Vec<String> {
    std::iter::from_fn(|| follower.poll_offer())
        .map(|offer| match offer {
            Offer::Joined { after, .. } => format!("join {after}"),
            Offer::Events { batch, .. } => format!("{}-{}", batch.first(), batch.last()),
            Offer::Gap { from, to, reason, .. } => format!("{reason:?} {from}-{to}").to_lowercase(),
            Offer::Overlay { overlay, .. } => format!("overlay {}", overlay.revision),
            Offer::End { last, .. } => format!("end {last}"),
            Offer::Unknown { .. } => "unknown".to_owned(),
        })
        .collect()
}

fn one() -> Follower {
    let mut follower = Follower::of([FollowFrom { execution: id(1), after: Seq::NONE }]);
    let sub = follower.handle_connected();
    assert_eq!(sub.executions, [FollowFrom { execution: id(1), after: Seq::NONE }]);
    assert_eq!(sub.epoch, None);
    follower
}

#[test]
fn an_execution_is_followed_to_its_end() {
    let mut follower = one();
    subbed(&mut follower, "e", vec![followed(1, 7, 0, 2)]);
    follower.handle_frame(kind::BATCH, batch(7, 1, 2)).unwrap();
    follower.handle_frame(kind::BATCH, lines(7, 3, 5)).unwrap();
    follower.handle_frame(kind::GAP, gap(7, 6, 8, GapReason::Retention, 8)).unwrap();
    let lost = Batch::lost(Handle(7), Fence(1), Seq(9), 2);
    follower.handle_frame(kind::BATCH, lost.bytes().clone()).unwrap();
    assert!(!follower.is_done());
    follower.handle_frame(kind::END, end(7, 10)).unwrap();
    let overlay = Overlay { revision: 4, ..Overlay::default() };
    let late = OverlayChanged { handle: Handle(7), overlay };
    follower.handle_frame(kind::OVERLAY, encode(&late).into()).unwrap();
    assert_eq!(
        told(&mut follower),
        ["join 0", "1-2", "3-5", "retention 6-8", "shed 9-10", "end 10", "overlay 4"]
    );
    assert!(follower.is_done());
}

#[test]
fn after_a_cut_it_goes_on_where_it_was_under_a_new_handle() {
    let mut follower = one();
    subbed(&mut follower, "e", vec![followed(1, 7, 0, 9)]);
    follower.handle_frame(kind::BATCH, batch(7, 1, 4)).unwrap();
    let sub = follower.handle_connected();
    assert_eq!(sub.executions, [FollowFrom { execution: id(1), after: Seq(4) }]);
    assert_eq!(sub.epoch.as_deref(), Some("e"));
    assert!(follower.handle_frame(kind::BATCH, batch(7, 5, 6)).is_err(), "an old handle");
    // The broker goes back further than was asked: nothing is offered twice.
    subbed(&mut follower, "e", vec![followed(1, 3, 2, 9)]);
    follower.handle_frame(kind::BATCH, lines(3, 3, 6)).unwrap();
    follower.handle_frame(kind::BATCH, batch(3, 7, 9)).unwrap();
    follower.handle_frame(kind::END, end(3, 9)).unwrap();
    assert_eq!(told(&mut follower), ["join 0", "1-4", "5-6", "7-9", "end 9"]);
}

#[test]
fn a_broken_order_is_answered_by_subscribing_again() {
    for wrong in [
        (kind::BATCH, batch(7, 6, 6)),
        (kind::BATCH, batch(7, 2, 6)),
        (kind::GAP, gap(7, 9, 12, GapReason::Shed, 12)),
        (kind::GAP, gap(7, 5, 8, GapReason::Shed, 7)),
        (kind::END, end(7, 9)),
    ] {
        let mut follower = one();
        subbed(&mut follower, "e", vec![followed(1, 7, 0, 9)]);
        follower.handle_frame(kind::BATCH, batch(7, 1, 4)).unwrap();
        follower.handle_frame(wrong.0, wrong.1).unwrap();
        // What still comes under the old subscription counts for nothing.
        follower.handle_frame(kind::BATCH, batch(7, 5, 9)).unwrap();
        let sub = follower.poll_sub().unwrap();
        assert_eq!(sub.executions, [FollowFrom { execution: id(1), after: Seq(4) }]);
        assert_eq!(follower.poll_sub(), None);
        subbed(&mut follower, "e", vec![followed(1, 7, 4, 9)]);
        follower.handle_frame(kind::BATCH, batch(7, 5, 9)).unwrap();
        assert_eq!(told(&mut follower), ["join 0", "1-4", "5-9"]);
    }
}

#[test]
fn a_sender_that_never_keeps_the_order_is_left() {
    let mut follower = one();
    subbed(&mut follower, "e", vec![followed(1, 7, 0, 9)]);
    let refused = (0..100).find(|_| {
        let refused = follower.handle_frame(kind::BATCH, batch(7, 5, 6)).is_err();
        if follower.poll_sub().is_some() {
            subbed(&mut follower, "e", vec![followed(1, 7, 0, 9)]);
        }
        refused
    });
    assert_eq!(refused, Some(VIOLATIONS_MAX as usize));
}

#[test]
fn another_history_is_said_and_then_read_from_its_start() {
    for broker_says_so in [true, false] {
        let mut follower = one();
        subbed(&mut follower, "e", vec![followed(1, 7, 0, 9)]);
        follower.handle_frame(kind::BATCH, batch(7, 1, 4)).unwrap();
        follower.handle_connected();
        subbed(&mut follower, "f", vec![followed(1, 2, 0, 2)]);
        if broker_says_so {
            let gap = gap(2, 1, 4, GapReason::Epoch, 0);
            follower.handle_frame(kind::GAP, gap).unwrap();
        }
        follower.handle_frame(kind::BATCH, batch(2, 1, 2)).unwrap();
        assert_eq!(told(&mut follower), ["join 0", "1-4", "epoch 1-4", "1-2"]);
        assert_eq!(follower.handle_connected().epoch.as_deref(), Some("f"));
    }
}

#[test]
fn a_cursor_beyond_the_end_is_taken_back() {
    let mut follower = Follower::of([FollowFrom { execution: id(1), after: Seq(50) }]);
    follower.handle_connected();
    subbed(&mut follower, "e", vec![followed(1, 7, 3, 3)]);
    follower.handle_frame(kind::GAP, gap(7, 4, 50, GapReason::Ahead, 3)).unwrap();
    follower.handle_frame(kind::BATCH, batch(7, 4, 5)).unwrap();
    assert_eq!(told(&mut follower), ["join 3", "ahead 4-50", "4-5"]);
}

#[test]
fn a_name_that_nobody_holds_is_asked_for_again_only_on_demand() {
    let mut follower = one();
    let unknown = Subbed { epoch: "e".to_owned(), executions: vec![], unknown: vec![id(1), id(2)] };
    follower.handle_frame(kind::SUBBED, encode(&unknown).into()).unwrap();
    assert_eq!(told(&mut follower), ["unknown"]);
    assert_eq!(follower.poll_sub(), None);
    follower.handle_retry();
    assert_eq!(follower.poll_sub().unwrap().executions.len(), 1);
    assert!(!follower.is_done());
}

#[test]
fn whoever_follows_everything_meets_nothing_twice() {
    let mut follower = Follower::of_all();
    assert!(follower.handle_connected().all);
    subbed(&mut follower, "e", vec![]);
    let joined = Joined { followed: followed(1, 1, 0, 0) };
    follower.handle_frame(kind::JOINED, encode(&joined).into()).unwrap();
    follower.handle_frame(kind::BATCH, batch(1, 1, 3)).unwrap();
    follower.handle_frame(kind::END, end(1, 3)).unwrap();
    let sub = follower.handle_connected();
    assert!(sub.all && sub.executions.is_empty(), "what has ended is not asked for again");
    subbed(&mut follower, "e", vec![]);
    follower.handle_frame(kind::JOINED, encode(&joined).into()).unwrap();
    follower.handle_frame(kind::BATCH, batch(1, 1, 3)).unwrap();
    follower.handle_frame(kind::END, end(1, 3)).unwrap();
    assert_eq!(told(&mut follower), ["join 0", "1-3", "end 3"]);
    assert!(!follower.is_done());
}

#[test]
fn handles_of_forgotten_executions_are_forgotten() {
    let mut follower = Follower::of_all();
    follower.handle_connected();
    subbed(&mut follower, "e", Vec::new());
    for n in 0..12_000 {
        let joined = Joined { followed: followed(n, n, 3, 3) };
        let body = frame::encode(&joined).into();
        follower.handle_frame(kind::JOINED, body).unwrap();
        follower.handle_frame(kind::END, end(n, 3)).unwrap();
    }
    assert_eq!((follower.ended.len(), follower.handles.len()), (ENDED_MAX, ENDED_MAX));
}

#[test]
fn frames_that_are_none_change_nothing() {
    let mut follower = one();
    subbed(&mut follower, "e", vec![followed(1, 7, 0, 9)]);
    for kind in [kind::BATCH, kind::GAP, kind::END, kind::SUBBED, kind::JOINED, kind::OVERLAY] {
        assert!(follower.handle_frame(kind, Bytes::from_static(b"\xc1")).is_err(), "{kind}");
    }
    follower.handle_frame(200, Bytes::from_static(b"\xc1")).unwrap();
    assert_eq!(follower.cursor(id(1)), Some(Seq::NONE));
}

/// A small generator, so that a seed is a number in a message.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The sending side of one execution: a history of `last` positions, some of them gone.
struct Sender {
    last: u64,
    gone: std::ops::RangeInclusive<u64>,
    handle: u32,
    sent: u64,
}

impl Sender {
    fn answer(&mut self, follower: &mut Follower, sub: &Sub, dice: &mut Dice) {
        let after = sub.executions[0].after.0;
        // A broker may go back, as far as it likes.
        self.sent = after - dice.below(after + 1).min(dice.below(3));
        self.handle += u32::try_from(dice.below(2)).unwrap();
        subbed(follower, "e", vec![followed(1, self.handle, self.sent, self.last)]);
    }

    fn send(&mut self, follower: &mut Follower, dice: &mut Dice) {
        let first = self.sent + 1;
        if first > self.last {
            follower.handle_frame(kind::END, end(self.handle, self.last)).unwrap();
            return;
        }
        if self.gone.contains(&first) {
            let to = (*self.gone.end()).min(self.last);
            let gap = gap(self.handle, first, to, GapReason::Retention, to);
            follower.handle_frame(kind::GAP, gap).unwrap();
            self.sent = to;
            return;
        }
        let mut last = (first + dice.below(4)).min(self.last);
        if *self.gone.start() > first {
            last = last.min(*self.gone.start() - 1);
        }
        let body = if dice.below(2) == 0 { batch } else { lines }(self.handle, first, last);
        follower.handle_frame(kind::BATCH, body).unwrap();
        self.sent = last;
    }
}

#[test]
fn every_position_is_offered_once_or_named_as_a_gap() {
    for seed in 0..3_000 {
        let mut dice = Dice(seed);
        let last = 1 + dice.below(30);
        let gone_from = 1 + dice.below(last + 5);
        let gone = gone_from..=gone_from + dice.below(5);
        let mut sender = Sender { last, gone: gone.clone(), handle: 1, sent: 0 };
        let mut follower = one();
        let first = Sub {
            executions: vec![FollowFrom { execution: id(1), after: Seq(0) }],
            ..Sub::default()
        };
        sender.answer(&mut follower, &first, &mut dice);
        let mut steps = 0;
        while !follower.cursors.is_empty() {
            steps += 1;
            assert!(steps < 10_000, "seed {seed}");
            match dice.below(12) {
                0 => {
                    let sub = follower.handle_connected();
                    sender.answer(&mut follower, &sub, &mut dice);
                }
                // One frame is lost, or sent again.
                1 => sender.sent = (sender.sent + 1).min(last),
                2 => sender.sent = sender.sent.saturating_sub(1),
                _ => sender.send(&mut follower, &mut dice),
            }
            if let Some(sub) = follower.poll_sub() {
                if follower.violations >= VIOLATIONS_MAX {
                    let sub = follower.handle_connected();
                    sender.answer(&mut follower, &sub, &mut dice);
                } else {
                    sender.answer(&mut follower, &sub, &mut dice);
                }
            }
        }
        check(&mut follower, last, &gone, seed);
    }
}

fn check(follower: &mut Follower, last: u64, gone: &std::ops::RangeInclusive<u64>, seed: u64) {
    let mut next = 1;
    let mut ended = false;
    while let Some(offer) = follower.poll_offer() {
        assert!(!ended, "seed {seed}: something after the end");
        match offer {
            Offer::Events { id: of, batch } => {
                assert_eq!(batch.first(), Seq(next), "seed {seed}");
                for event in batch.events(of, Seq::NONE).unwrap() {
                    assert!(!gone.contains(&next), "seed {seed}");
                    assert_eq!(event.sequence, Seq(next), "seed {seed}");
                    match event.kind {
                        Kind::Progress { current, .. } => assert_eq!(current, next, "seed {seed}"),
                        Kind::Log { message, .. } => assert_eq!(message, next.to_string()),
                        other => panic!("seed {seed}: {other:?}"),
                    }
                    next += 1;
                }
            }
            Offer::Gap { from, to, .. } => {
                assert_eq!(from, Seq(next), "seed {seed}");
                assert!(gone.contains(&from.0) && gone.contains(&to.0), "seed {seed}");
                next = to.0 + 1;
            }
            Offer::End { last: at, .. } => {
                assert_eq!((at, next), (Seq(last), last + 1), "seed {seed}");
                ended = true;
            }
            Offer::Joined { .. } => assert_eq!(next, 1, "seed {seed}"),
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(ended, "seed {seed}");
}
