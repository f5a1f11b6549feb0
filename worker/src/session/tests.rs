#![allow(clippy::unwrap_used, reason = "a test may panic")]

use bytes::BytesMut;
use proptest::prelude::*;
use reeve_protocol::capability::{CapabilityKind, Effect as Changes, OnWorkerLoss};
use reeve_protocol::event::Severity;
use reeve_protocol::peer::{Ack, Attach, Attached, Cancel, Fenced, Grant, Late as LateSaid, Ping};
use reeve_protocol::snapshot::{Actor, ActorKind, Repository};
use reeve_protocol::{Batch, Code, Output, Timestamp, frame};
use serde_json::{Value, json};

use super::*;

fn description() -> Description {
    Description {
        capability: "tests.unit".parse().unwrap(),
        title: "Unit tests".to_owned(),
        kind: CapabilityKind::Process,
        effect: Changes::Write,
        cancellable: true,
        lock: None,
        on_worker_loss: OnWorkerLoss::End,
        cancel_grace_ms: 10_000,
        input: json!({}),
        actor: Actor { kind: ActorKind::Cli, peer: None, pid: None },
        repository: Repository::default(),
        parent_id: None,
    }
}

fn id() -> ExecutionId {
    "x-20260908T010203Z-0a1b2c3d".parse().unwrap()
}

fn at(ms: u64) -> Now {
    let wall = Timestamp::from_micros(1_788_829_323_000_000 + i64::try_from(ms).unwrap() * 1_000);
    Now { mono: Duration::from_millis(ms), wall }
}

fn log(lines: u32, width: usize, now: Now) -> LogChunk {
    let text: String = (0..lines).map(|n| format!("{n:0width$}\n")).collect();
    LogChunk { at: now.wall, stream: Output::Stdout, lines, text: text.into() }
}

fn diagnostic(summary: &str) -> Kind {
    Kind::Diagnostic {
        severity: Severity::Info,
        code: "note".to_owned(),
        summary: summary.to_owned(),
        detail: None,
        suggestion: None,
    }
}

fn progress(current: u64) -> Kind {
    Kind::Progress { current, total: None, message: None }
}

fn completed() -> Kind {
    Kind::Completed { output: Value::Null, receipt: None }
}

/// What stands at one position, without its time.
#[derive(Clone, Debug, PartialEq)]
enum Slot {
    Event(Box<Kind>),
    Line(String),
    Lost,
}

fn slots(entry: Entry) -> Vec<Slot> {
    match entry {
        Entry::Event(event) => vec![Slot::Event(Box::new(event.kind))],
        Entry::Log(chunk) => chunk.iter().map(|(line, _)| Slot::Line(line.to_owned())).collect(),
    }
}

/// A broker that keeps what it is sent and answers by the rules.
struct Broker {
    store: Vec<Slot>,
    fence: Fence,
    granted: bool,
    hold_grant: bool,
    answers: VecDeque<FromBroker>,
    late: Option<LateSaid>,
    heartbeats: usize,
    pongs: Vec<u64>,
    trees: usize,
    attaches: Vec<Attach>,
}

impl Broker {
    fn new() -> Self {
        Self {
            store: Vec::new(),
            fence: Fence(0),
            granted: false,
            hold_grant: false,
            answers: VecDeque::new(),
            late: None,
            heartbeats: 0,
            pongs: Vec::new(),
            trees: 0,
            attaches: Vec::new(),
        }
    }

    fn take(&mut self, bytes: &Bytes) {
        let mut buffer = BytesMut::from(&bytes[..]);
        let (kind, body) = frame::take(&mut buffer).unwrap().expect("effects carry whole frames");
        assert!(buffer.is_empty(), "one frame per effect");
        match kind {
            peer::kind::ATTACH => self.on_attach(frame::decode(&body).unwrap()),
            peer::kind::BATCH => {
                assert!(bytes.len() <= BATCH_MAX, "a batch frame of {} bytes", bytes.len());
                self.on_batch(&Batch::parse(body).unwrap());
            }
            peer::kind::HEARTBEAT => self.heartbeats += 1,
            peer::kind::PONG => self.pongs.push(frame::decode::<Ping>(&body).unwrap().nonce),
            peer::kind::TREE => self.trees += 1,
            peer::kind::LATE => self.late = Some(frame::decode(&body).unwrap()),
            _ => {}
        }
    }

    fn on_attach(&mut self, attach: Attach) {
        self.granted = false;
        let (offered, own) = (attach.last, attach.fence.is_some());
        self.attaches.push(attach);
        self.answers.push_back(FromBroker::Attached(Attached {
            execution: id(),
            ahead: 0,
            waiting_on: None,
        }));
        let mut events = Vec::new();
        if !own && offered == Seq::NONE && self.store.is_empty() {
            let Description { capability, title, input, .. } = description();
            for kind in [Kind::Created { capability, title, input }, Kind::Queued { ahead: 0 }] {
                events.push(Stamped { at: Timestamp::from_micros(7), kind: kind.clone() });
                self.store.push(Slot::Event(Box::new(kind)));
            }
        }
        if !self.hold_grant {
            self.grant(events);
        }
    }

    fn grant(&mut self, events: Vec<Stamped>) {
        self.granted = true;
        self.fence = self.fence.next();
        self.answers.push_back(FromBroker::Grant(Grant {
            execution: id(),
            handle: Handle(u32::try_from(self.fence.0).unwrap()),
            fence: self.fence,
            next: Seq(self.store.len() as u64 + 1),
            events,
        }));
    }

    fn on_batch(&mut self, batch: &Batch) {
        if !self.granted || batch.fence() != self.fence {
            return;
        }
        assert!(batch.entry_count() <= Limits::default().max_batch_events);
        let stored = Seq(self.store.len() as u64);
        let mut resend_from = None;
        if batch.first() > stored.next() {
            resend_from = Some(stored.next());
        } else if let Some(rest) = batch.after(stored) {
            let entries = rest.entries().unwrap();
            let lost = if rest.class() == Class::Lost { rest.count() as usize } else { 0 };
            self.store.extend(std::iter::repeat_n(Slot::Lost, lost));
            self.store.extend(entries.into_iter().flat_map(slots));
        }
        self.ack(resend_from);
    }

    fn ack(&mut self, resend_from: Option<Seq>) {
        self.answers.push_back(FromBroker::Ack(Ack {
            handle: Handle(u32::try_from(self.fence.0).unwrap()),
            through: Seq(self.store.len() as u64),
            resend_from,
        }));
    }
}

/// A session, a broker and the wire between them.
struct World {
    session: Session,
    broker: Broker,
    wire: VecDeque<Bytes>,
    seen: Vec<Slot>,
    others: Vec<Effect>,
    ms: u64,
    connected: bool,
}

impl World {
    fn new(limits: Limits, broker_in_sight: bool) -> Self {
        let mut world = Self {
            session: Session::new(id(), description(), limits),
            broker: Broker::new(),
            wire: VecDeque::new(),
            seen: Vec::new(),
            others: Vec::new(),
            ms: 1_000,
            connected: false,
        };
        world.session.start(broker_in_sight, at(1_000));
        world.drain();
        world
    }

    fn attached() -> Self {
        let mut world = Self::new(Limits::default(), true);
        world.connect();
        world.settle();
        world.emit(Kind::Started {});
        world.settle();
        world
    }

    fn now(&self) -> Now {
        at(self.ms)
    }

    fn connect(&mut self) {
        if self.connected {
            return;
        }
        self.connected = true;
        self.session.handle_connected(self.now());
        let welcome = peer::Welcome {
            proto: peer::PROTO,
            epoch: "e".to_owned(),
            instance: "i".to_owned(),
            pid: 1,
            build: "b".to_owned(),
            durability: "memory".to_owned(),
            limits: Limits::default(),
        };
        self.session.handle_message(FromBroker::Welcome(Box::new(welcome)), self.now());
        self.drain();
    }

    fn cut(&mut self) {
        if self.connected {
            self.connected = false;
            self.wire.clear();
            self.broker.answers.clear();
            self.broker.granted = false;
            self.session.handle_disconnected(self.now());
            self.drain();
        }
    }

    fn drain(&mut self) {
        while let Some(effect) = self.session.poll_effect() {
            match effect {
                Effect::Send(bytes) if self.connected => self.wire.push_back(bytes),
                Effect::Send(_) => panic!("nothing is sent without a connection"),
                other => self.others.push(other),
            }
        }
        while let Some(local) = self.session.poll_local() {
            if let Some(seq) = local.seq {
                assert_eq!(seq.0, self.seen.len() as u64 + 1, "local facts are dense");
                self.seen.extend(slots(local.entry));
            }
        }
    }

    fn emit(&mut self, kind: Kind) {
        let _ = self.session.emit(kind, self.now());
        self.drain();
    }

    fn log(&mut self, lines: u32, width: usize) {
        let _ = self.session.emit_log(log(lines, width, self.now()), self.now());
        self.drain();
    }

    fn finish(&mut self, kind: Kind) {
        self.session.finish(kind, self.now()).unwrap();
        self.drain();
    }

    fn say(&mut self, message: FromBroker) {
        self.session.handle_message(message, self.now());
        self.drain();
    }

    fn advance(&mut self, ms: u64) {
        self.ms += ms;
        for _ in 0..100 {
            if self.session.poll_timeout().is_none_or(|due| due > self.now().mono) {
                return;
            }
            self.session.handle_timeout(self.now());
            self.drain();
        }
        panic!("a timer stays due");
    }

    fn deliver(&mut self, frames: usize) {
        for _ in 0..frames {
            let Some(bytes) = self.wire.pop_front() else { break };
            self.broker.take(&bytes);
        }
    }

    fn answer(&mut self, frames: usize) {
        for _ in 0..frames {
            let Some(message) = self.broker.answers.pop_front() else { break };
            self.say(message);
        }
    }

    fn settle(&mut self) {
        while !self.wire.is_empty() || !self.broker.answers.is_empty() {
            self.deliver(usize::MAX);
            self.answer(usize::MAX);
        }
    }

    fn has(&self, effect: &Effect) -> bool {
        self.others.contains(effect)
    }
}

#[test]
fn the_worker_takes_the_brokers_first_events_as_its_own() {
    let mut world = World::attached();
    world.finish(completed());
    world.settle();
    assert!(world.session.is_done());
    assert_eq!(world.session.reported(), Reported::ToBroker);
    assert_eq!(world.broker.store, world.seen);
    assert_eq!(world.seen.len(), 4);
    assert!(world.others.iter().all(|effect| *effect == Effect::Begin));
}

#[test]
fn nothing_begins_while_the_execution_waits() {
    let mut world = World::new(Limits::default(), true);
    world.broker.hold_grant = true;
    world.connect();
    world.settle();
    world.advance(60_000);
    assert!(!world.has(&Effect::Begin));
    assert!(world.session.emit(Kind::Started {}, world.now()).is_err());
    world.broker.grant(Vec::new());
    world.settle();
    assert!(world.has(&Effect::Begin));
}

#[test]
fn without_an_answer_the_worker_goes_on_and_offers_again() {
    let mut world = World::new(Limits::default(), true);
    world.connect();
    world.advance(1_999);
    assert!(!world.has(&Effect::Begin));
    world.advance(1);
    assert!(world.has(&Effect::Begin));
    assert!(world.has(&Effect::Notice(Notice::Quiet)));
    world.emit(Kind::Started {});
    world.settle();
    assert_eq!(world.broker.attaches.len(), 2);
    assert_eq!(world.broker.attaches[1].last, Seq(2));
    world.finish(completed());
    world.settle();
    assert_eq!(world.broker.store, world.seen);
}

#[test]
fn without_a_broker_the_worker_numbers_from_1_and_says_so_once() {
    let mut world = World::new(Limits::default(), false);
    world.emit(Kind::Started {});
    world.session.handle_unreachable(world.now());
    world.finish(completed());
    assert!(world.session.is_done());
    assert_eq!(world.session.reported(), Reported::Alone);
    assert_eq!(world.others, [Effect::Notice(Notice::Alone), Effect::Begin]);
    assert_eq!(world.seen.len(), 4);
}

#[test]
fn a_connection_lost_in_the_queue_lets_the_work_begin() {
    let mut world = World::new(Limits::default(), true);
    world.broker.hold_grant = true;
    world.connect();
    world.settle();
    world.cut();
    assert!(world.has(&Effect::Begin));
    world.broker = Broker::new();
    world.connect();
    world.settle();
    assert!(world.has(&Effect::Notice(Notice::Reattached)));
    assert_eq!(world.broker.store, world.seen);
}

#[test]
fn a_cancelled_execution_never_begins() {
    let mut world = World::new(Limits::default(), true);
    world.broker.hold_grant = true;
    world.connect();
    world.settle();
    world.session.handle_cancel("cli", false, world.now());
    world.finish(Kind::Cancelled { receipt: None });
    assert!(!world.has(&Effect::Begin));
    world.broker.hold_grant = false;
    world.settle();
    assert_eq!(world.broker.store, world.seen);
    assert!(world.session.is_done());
}

#[test]
fn a_cancel_passes_once_and_a_forced_one_after_it() {
    let mut world = World::attached();
    let cancel = |force| FromBroker::Cancel(Cancel { execution: id(), by: "http".into(), force });
    for force in [false, false, true, true, false] {
        world.say(cancel(force));
    }
    let asked: Vec<bool> = world
        .others
        .iter()
        .filter_map(|effect| match effect {
            Effect::Cancel { force, .. } => Some(*force),
            _ => None,
        })
        .collect();
    assert_eq!(asked, [false, true]);
    let cancelling = Kind::Cancelling { by: "http".into() };
    assert_eq!(world.seen[3], Slot::Event(Box::new(cancelling)));
    assert_eq!(world.seen.len(), 4);
}

#[test]
fn only_the_last_of_many_values_is_numbered() {
    let mut world = World::attached();
    for n in 0..50 {
        world.emit(progress(n));
        world.advance(1);
    }
    world.finish(completed());
    world.settle();
    let tags: Vec<Slot> = world.broker.store[3..].to_vec();
    let event = |kind| Slot::Event(Box::new(kind));
    assert_eq!(tags, [event(progress(0)), event(progress(49)), event(completed())]);
}

#[test]
fn a_ping_is_echoed_and_heartbeats_go_on() {
    let mut world = World::attached();
    world.say(FromBroker::Ping(Ping { nonce: 42 }));
    for _ in 0..5 {
        world.advance(2_000);
    }
    world.settle();
    assert_eq!(world.broker.pongs, [42]);
    assert_eq!(world.broker.heartbeats, 5);
}

#[test]
fn a_fenced_worker_counts_on_and_reports_late() {
    let mut world = World::attached();
    let fenced = Fenced { execution: id(), state: State::Failed, last: Seq(4), error: None };
    world.say(FromBroker::Fenced(fenced.clone()));
    world.log(10, 20);
    world.finish(completed());
    world.deliver(usize::MAX);
    assert!(world.session.is_done());
    let late = world.broker.late.clone().unwrap();
    assert_eq!((late.state, late.unsent_events), (State::Succeeded, 10));
    assert_eq!(late.fence, world.broker.fence);
    assert!(matches!(world.session.reported(), Reported::Fenced(ended) if ended.last == Seq(4)));
}

#[test]
fn an_end_whose_acknowledgement_was_lost_is_reported() {
    let mut world = World::attached();
    world.finish(completed());
    world.deliver(usize::MAX);
    world.cut();
    world.broker.hold_grant = true;
    world.connect();
    let fenced = Fenced { execution: id(), state: State::Succeeded, last: Seq(4), error: None };
    world.say(FromBroker::Fenced(fenced));
    assert!(world.session.is_done());
    assert_eq!(world.session.reported(), Reported::ToBroker);
}

#[test]
fn a_broker_without_room_lets_the_work_go_on() {
    let mut world = World::new(Limits::default(), true);
    world.broker.hold_grant = true;
    world.connect();
    let fenced = Fenced { execution: id(), state: State::Queued, last: Seq::NONE, error: None };
    world.say(FromBroker::Fenced(fenced));
    assert_eq!(world.others, [Effect::Notice(Notice::Unwatched), Effect::Begin]);
    world.finish(Kind::Cancelled { receipt: None });
    assert!(world.session.is_done());
}

#[test]
fn a_worker_fenced_before_it_began_never_begins() {
    let mut world = World::new(Limits::default(), true);
    world.broker.hold_grant = true;
    world.connect();
    world.settle();
    let fenced = Fenced { execution: id(), state: State::Cancelled, last: Seq(3), error: None };
    world.say(FromBroker::Fenced(fenced));
    world.cut();
    world.advance(10_000);
    assert!(!world.has(&Effect::Begin));
    assert!(matches!(world.others[0], Effect::Fenced(_)));
}

#[test]
fn a_stopped_broker_is_given_up_at_the_end() {
    let mut world = World::attached();
    world.finish(completed());
    assert!(!world.session.is_done());
    world.advance(1_999);
    assert!(!world.session.is_done());
    world.advance(1);
    assert!(world.session.is_done());
    assert_eq!(world.session.reported(), Reported::Alone);
}

#[test]
fn output_pauses_only_while_the_broker_keeps_up() {
    let mut world = World::attached();
    while !world.session.wants_pause() {
        world.log(1_000, 100);
        assert!(world.seen.len() < 100_000, "a pause was never asked for");
    }
    world.advance(250);
    assert!(!world.session.wants_pause(), "a broker that says nothing slows nothing");
    world.deliver(4);
    world.answer(1);
    world.log(10_000, 100);
    assert!(world.session.wants_pause(), "one that makes progress does");
    world.settle();
    assert!(!world.session.wants_pause());
}

#[test]
fn what_a_stopped_broker_does_not_take_is_bounded_and_accounted_for() {
    let mut world = World::attached();
    for _ in 0..60 {
        world.log(10_000, 100);
    }
    let on_the_way: usize = world.wire.iter().map(Bytes::len).sum();
    assert!(on_the_way as u64 <= WINDOW + BATCH_MAX as u64, "{on_the_way}");
    world.finish(completed());
    world.settle();
    assert!(world.session.is_done());
    assert_eq!(world.broker.store.len(), world.seen.len());
    let lost = world.broker.store.iter().filter(|slot| **slot == Slot::Lost).count();
    assert!(lost > 300_000 && lost < world.seen.len(), "{lost}");
    assert_ne!(world.broker.store[10], Slot::Lost, "the beginning stays");
    assert_ne!(world.broker.store[world.seen.len() - 2], Slot::Lost, "the end stays");
}

#[test]
fn a_million_events_without_a_broker_are_bounded_and_accounted_for() {
    let limits = Limits { max_events: 1_000, ..Limits::default() };
    let mut world = World::new(limits, false);
    world.emit(Kind::Started {});
    for n in 0..1_000_000 {
        let _ = world.session.emit(diagnostic("found"), world.now());
        while world.session.poll_local().is_some() {}
        world.ms += u64::from(n % 100 == 0) * 11;
        if n % 100 == 0 {
            world.session.handle_timeout(world.now());
        }
    }
    let (batches, events) = world.session.history.kept();
    assert!(events <= 1_250 + 500 && batches < 100, "{events} events in {batches} batches");
    let _ = world.session.finish(completed(), world.now());
    world.seen = vec![Slot::Lost; usize::try_from(world.session.last.0).unwrap()];
    while world.session.poll_local().is_some() {}
    world.connect();
    world.settle();
    let store = &world.broker.store;
    assert_eq!(store.len(), 1_000_004);
    let kept = store.iter().filter(|slot| **slot != Slot::Lost).count();
    assert!((500..2_000).contains(&kept), "{kept}");
    for state in [&store[0], &store[1], &store[2], &store[1_000_002], &store[1_000_003]] {
        assert_ne!(*state, Slot::Lost, "states and the newest stay");
    }
    assert!(world.session.is_done());
}

#[test]
fn large_events_are_bounded_by_bytes() {
    let limits = Limits { max_log_bytes: 1 << 20, ..Limits::default() };
    let mut world = World::new(limits, false);
    world.emit(Kind::Started {});
    for n in 0..1_000 {
        world.emit(diagnostic(&"x".repeat(10_000)));
        world.log(1, 1_000 + n);
    }
    let (_, events) = world.session.history.kept();
    assert!((100..=140).contains(&events), "{events}");
    world.finish(completed());
    world.connect();
    world.settle();
    assert_eq!(world.broker.store.len(), world.seen.len());
}

#[test]
fn a_broker_that_is_full_takes_no_work_from_a_worker_that_has_it() {
    let mut world = World::attached();
    world.cut();
    world.broker.hold_grant = true;
    world.connect();
    world.deliver(usize::MAX);
    world.broker.answers.clear();
    let error = Some(Fault::new(Code::Busy, "there is no room"));
    let fenced = Fenced { execution: id(), state: State::Failed, last: Seq(4), error };
    world.say(FromBroker::Fenced(fenced));
    assert!(world.has(&Effect::Notice(Notice::Unwatched)));
    assert!(!world.others.iter().any(|effect| matches!(effect, Effect::Fenced(_))));
    world.emit(diagnostic("it goes on"));
    world.cut();
    world.broker.hold_grant = false;
    world.connect();
    world.settle();
    world.finish(completed());
    world.settle();
    assert_eq!(world.session.reported(), Reported::ToBroker);
    assert_eq!(world.broker.store, world.seen);
}

#[test]
fn a_value_that_no_frame_can_hold_is_withheld() {
    let mut world = World::attached();
    world.finish(Kind::Completed { output: json!("x".repeat(2 << 20)), receipt: None });
    world.settle();
    let Some(Slot::Event(kind)) = world.broker.store.last() else { panic!("an event") };
    let Kind::Completed { output, .. } = &**kind else { panic!("the end") };
    assert_eq!(output["withheld"], "too_large");
}

#[test]
fn a_value_of_too_many_parts_is_withheld() {
    let mut world = World::attached();
    let many: Vec<u8> = vec![1; 60_000];
    world.finish(Kind::Completed { output: json!(many), receipt: None });
    world.settle();
    assert!(world.session.is_done());
}

#[test]
fn a_frame_that_cannot_be_read_closes_the_connection() {
    let mut world = World::attached();
    world.session.handle_frame(peer::kind::ACK, b"\xc1", world.now());
    world.drain();
    assert!(matches!(world.others.last(), Some(Effect::Disconnect { .. })));
}

#[derive(Clone, Debug)]
enum Op {
    Progress(u64),
    Diagnostic,
    Log(u32, usize),
    Advance(u64),
    Deliver(usize),
    Answer(usize),
    LoseAnswers(usize),
    RepeatAck,
    AskAgain(u64),
    Refuse,
    Cut,
    Connect,
    NewBroker,
    Cancel(bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => any::<u64>().prop_map(Op::Progress),
        2 => Just(Op::Diagnostic),
        4 => (1_u32..400, 1_usize..80).prop_map(|(lines, width)| Op::Log(lines, width)),
        1 => (1_u32..200, 1_500_usize..4_000).prop_map(|(lines, width)| Op::Log(lines, width)),
        3 => (0_u64..300).prop_map(Op::Advance),
        4 => (1_usize..6).prop_map(Op::Deliver),
        4 => (1_usize..6).prop_map(Op::Answer),
        1 => (1_usize..3).prop_map(Op::LoseAnswers),
        1 => Just(Op::RepeatAck),
        1 => (0_u64..50).prop_map(Op::AskAgain),
        2 => Just(Op::Refuse),
        1 => Just(Op::Cut),
        2 => Just(Op::Connect),
        1 => Just(Op::NewBroker),
        1 => any::<bool>().prop_map(Op::Cancel),
    ]
}

fn apply(world: &mut World, op: Op) {
    match op {
        Op::Progress(n) => world.emit(progress(n)),
        Op::Diagnostic => world.emit(diagnostic("something was found")),
        Op::Log(lines, width) => world.log(lines, width),
        Op::Advance(ms) => world.advance(ms),
        Op::Deliver(frames) => world.deliver(frames),
        Op::Answer(frames) => world.answer(frames),
        Op::LoseAnswers(frames) => {
            let mut lost = 0;
            world.broker.answers.retain(|answer| {
                let lose = lost < frames && matches!(answer, FromBroker::Ack(_));
                lost += usize::from(lose);
                !lose
            });
        }
        Op::RepeatAck if world.broker.granted => world.broker.ack(None),
        Op::AskAgain(back) if world.broker.granted => {
            // Only what is not stored can be asked for; everything before is answered as it is.
            let keep = world.broker.store.len().saturating_sub(usize::try_from(back).unwrap());
            world.broker.ack(Some(Seq(keep as u64 + 1)));
        }
        Op::Refuse if world.broker.granted => {
            // The store failed: the batch is gone, and the broker asks for it again.
            if world.wire.pop_front_if(|bytes| bytes[4] == peer::kind::BATCH).is_some() {
                let next = Seq(world.broker.store.len() as u64 + 1);
                world.broker.ack(Some(next));
            }
        }
        Op::RepeatAck | Op::AskAgain(_) | Op::Refuse => {}
        Op::Cut => world.cut(),
        Op::Connect => world.connect(),
        Op::NewBroker => {
            world.cut();
            let fence = Fence(world.broker.fence.0 * 7 + 1);
            world.broker = Broker { fence, ..Broker::new() };
        }
        Op::Cancel(force) => {
            world.session.handle_cancel("cli", force, world.now());
            world.drain();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is cut, lost or repeated, the broker ends with what the session numbered.
    #[test]
    fn a_broker_ends_with_what_was_numbered(
        in_sight: bool,
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let limits = Limits { max_log_bytes: 2 << 20, ..Limits::default() };
        let mut world = World::new(limits, in_sight);
        world.connect();
        world.settle();
        if in_sight {
            prop_assert!(world.has(&Effect::Begin));
        }
        world.emit(Kind::Started {});
        for op in ops {
            apply(&mut world, op);
        }
        world.finish(completed());
        world.connect();
        for _ in 0..5 {
            world.settle();
            world.advance(100);
        }
        world.settle();
        prop_assert!(world.session.is_done());
        prop_assert_eq!(world.session.reported(), Reported::ToBroker);
        prop_assert_eq!(world.broker.store.len(), world.seen.len());
        for (stored, seen) in world.broker.store.iter().zip(&world.seen) {
            let lost_line = *stored == Slot::Lost && matches!(seen, Slot::Line(_));
            prop_assert!(lost_line || stored == seen, "{stored:?} is not {seen:?}");
        }
    }

    /// A divided chunk says what the whole one said.
    #[test]
    fn a_divided_chunk_has_every_line(lines in 1_u32..700, width in 1_usize..1_500) {
        let whole = log(lines, width, at(0));
        let parts = outbox::divide(whole.clone());
        let text: Vec<u8> = parts.iter().flat_map(|part| part.text.to_vec()).collect();
        prop_assert_eq!(text, whole.text.to_vec());
        prop_assert_eq!(parts.iter().map(|part| part.lines).sum::<u32>(), lines);
    }
}

#[test]
fn a_worker_of_the_brokers_own_begins_with_its_grant_only() {
    let bound = || {
        let mut world = World::new(Limits::default(), true);
        world.session = Session::new(id(), description(), Limits::default());
        world.session.start_bound(world.now());
        world.drain();
        world
    };
    let gave_up = |world: &World| {
        world.session.last() == Seq::NONE
            && matches!(world.session.reported(), Reported::Fenced(Ended { error: Some(error), .. })
                if error.side_effect == SideEffect::None)
    };

    let mut granted = bound();
    granted.connect();
    granted.settle();
    granted.emit(Kind::Started {});
    assert_eq!(granted.session.state(), State::Running);

    let mut nobody = bound();
    nobody.session.handle_unreachable(nobody.now());
    assert!(gave_up(&nobody), "no broker");

    let mut silent = bound();
    let late = at(silent.ms + 60_000);
    silent.session.handle_timeout(late);
    assert!(gave_up(&silent), "no answer");

    let mut cut = bound();
    cut.connect();
    cut.cut();
    assert!(gave_up(&cut), "cut before the grant");

    let mut stopped = bound();
    stopped.session.finish(Kind::Cancelled { receipt: None }, at(1_001)).unwrap();
    assert!(gave_up(&stopped), "stopped before the grant");
}
