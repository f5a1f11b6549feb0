//! The broker's shell in the simulation: the real plane, store and pumps, and everything around
//! them that the real shell does, without a thread.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reeve_broker::plane::{
    Effect, Input, Plane, Record, Reply, RequestId, Seen, Shown, SubscriberId, Sweep, ToWorker,
    WorkerFrame, WorkerId, WorkerProcess,
};
use reeve_broker::pump::{Pump, Wanted};
use reeve_broker::store::memory::Memory;
use reeve_protocol::frame;
use reeve_protocol::peer::{Bye, Hello, PROTO, Ping, Role, Welcome, kind};
use reeve_protocol::stream::{Sub, Subbed};
use reeve_protocol::{Batch, ExecutionId, Handle, Limits, Seq};

use crate::faults::MS;
use crate::net::{ConnId, Peer, Way};
use crate::rng::Rng;
use crate::world::{Event, World};

/// Bytes that wait for a reader before its edge waits too.
const BACKLOG: usize = 16 << 10;

/// Everybody's view, as the board has it.
#[derive(Default)]
pub struct Board {
    shown: BTreeMap<Handle, Shown>,
}

/// The edge of one reader.
pub struct Edge {
    pub subscriber: SubscriberId,
    pub pump: Pump,
    woken: BTreeSet<Handle>,
    answered: Option<(Subbed, Option<Handle>, Vec<ExecutionId>)>,
    requests: VecDeque<Sub>,
    asked: Option<(bool, Vec<ExecutionId>)>,
    reading: Option<(Wanted, Seq)>,
    out: BytesMut,
    scheduled: bool,
    blocked_since: Option<u64>,
}

/// A reader that has said hello, or has not.
pub enum Door {
    /// Nothing was said.
    Greeting,
    /// A worker.
    Worker(WorkerId),
    /// A reader.
    Reader(Box<Edge>),
    /// Closed from this side.
    Closed,
}

/// One life of the broker.
pub struct Broker {
    pub life: u64,
    pub plane: Plane,
    pub store: Memory,
    pub board: Board,
    pub doors: BTreeMap<ConnId, Door>,
    pub workers: BTreeMap<WorkerId, ConnId>,
    /// Which process each worker connection belongs to, for as long as this life lasts.
    pub watched: BTreeMap<WorkerId, usize>,
    appending: Option<(Vec<Record>, bool)>,
    pub sweeps: BTreeMap<ExecutionId, (Sweep, bool)>,
    numbers: [u64; 3],
    armed: Option<Duration>,
    timers: u64,
    pub stopped_until: Option<u64>,
    pub up: bool,
    pub rng: Rng,
}

impl Broker {
    pub fn new(life: u64, limits: &Limits, seed: u64) -> Self {
        Self {
            life,
            plane: Plane::new(limits.clone(), format!("epoch-{life}")),
            store: Memory::new(limits.clone()),
            board: Board::default(),
            doors: BTreeMap::new(),
            workers: BTreeMap::new(),
            watched: BTreeMap::new(),
            appending: None,
            sweeps: BTreeMap::new(),
            numbers: [0; 3],
            armed: None,
            timers: 0,
            stopped_until: None,
            up: true,
            rng: Rng::of(seed, "broker", life),
        }
    }

    pub fn epoch(&self) -> String {
        format!("epoch-{}", self.life)
    }

    pub fn number(&mut self, which: usize) -> u64 {
        self.numbers[which] += 1;
        self.numbers[which]
    }
}

/// Which counter a number comes from: they are apart so that readers change no worker's.
pub const WORKERS: usize = 0;
const SUBSCRIBERS: usize = 1;
pub const REQUESTS: usize = 2;

impl World {
    /// Hands one input to the plane and performs what it leads to.
    pub fn post(&mut self, input: Input) {
        self.decisions += 1;
        self.ledger.on_input(self.broker.life, &input, &self.broker.watched, self.now);
        self.trace(|| format!("-> {input:?}"));
        let now = self.reading();
        self.broker.plane.handle_input(input, now);
        self.drain();
    }

    pub fn drain(&mut self) {
        while let Some(effect) = self.broker.plane.poll_effect() {
            self.trace(|| format!("   <- {effect:?}"));
            self.perform(effect);
        }
        self.ledger.on_gauges(self.broker.plane.gauges(), &self.plan.limits);
        self.arm();
    }

    fn arm(&mut self) {
        let due = self.broker.plane.poll_timeout();
        if due == self.broker.armed {
            return;
        }
        self.broker.armed = due;
        self.broker.timers += 1;
        if let Some(due) = due {
            let late = if !self.healing && self.broker.rng.chance(self.plan.late_timer) {
                self.broker.rng.below(700 * MS)
            } else {
                0
            };
            let at = micros(due).max(self.now) + late;
            let event = Event::BrokerTimer { life: self.broker.life, timer: self.broker.timers };
            self.at(at, event);
        }
    }

    pub fn on_broker_timer(&mut self, timer: u64) {
        if timer != self.broker.timers {
            return;
        }
        self.broker.armed = None;
        self.decisions += 1;
        self.trace(|| "-> timeout".to_owned());
        self.ledger.on_timeout();
        let now = self.reading();
        self.broker.plane.handle_timeout(now);
        self.drain();
    }

    fn perform(&mut self, effect: Effect) {
        let life = self.broker.life;
        match effect {
            Effect::Append(records) => self.append(records),
            Effect::Publish(shown) => {
                self.ledger.on_publish(life, &shown);
                self.broker.board.shown.insert(shown.handle, shown);
            }
            Effect::Unpublish { handle, .. } => {
                self.ledger.on_unpublish(life, handle);
                self.broker.board.shown.remove(&handle);
            }
            Effect::Send { worker, message } => self.say(worker, &message),
            Effect::Close { worker, reason } => {
                self.ledger.on_close(&reason);
                self.close_worker(worker, &reason);
            }
            Effect::Wake { subscriber, handle } => self.wake(subscriber, handle),
            Effect::Reply { request, reply } => self.reply(request, reply),
            Effect::Look { worker } => {
                let at = self.now + 1 + self.broker.rng.below(5 * MS);
                self.at(at, Event::Look { life, worker });
            }
            Effect::Sweep(sweep) => {
                self.ledger.on_sweep(&sweep);
                let id = sweep.id;
                self.broker.sweeps.insert(id, (sweep, false));
                let at = self.now + 1 + self.broker.rng.below(100 * MS);
                self.at(at, Event::SweepPoll { life, id });
            }
            Effect::Launch { id, attempt } => {
                self.ledger.on_launch(life, id, &self.trees);
                let at = self.now + 1 + self.broker.rng.below(50 * MS);
                self.at(at, Event::Launch { life, id, attempt });
            }
        }
    }

    fn append(&mut self, records: Vec<Record>) {
        self.ledger.on_append(self.broker.life, &records, self.now);
        for record in &records {
            if let Record::Events(batch) = record {
                self.note(batch.bytes());
                self.history = crate::rng::digest(self.history, batch.bytes());
            }
        }
        let slow = !self.healing && self.broker.rng.chance(self.plan.slow_store);
        if !slow {
            return self.stored(records, true);
        }
        // What is on its way may be in the store already, or not be there before the end.
        let early = self.broker.rng.chance(500);
        self.broker.appending = Some((records, early));
        if early {
            let (records, _) = self.broker.appending.clone().expect("it was just set");
            self.early = Some(self.broker.store.append_now(records));
        }
        let at = self.now + 1 + self.broker.rng.below(40 * MS);
        self.at(at, Event::StoreDone { life: self.broker.life });
    }

    pub fn on_store_done(&mut self) {
        let (records, early) = self.broker.appending.take().expect("an append is under way");
        self.stored(records, !early);
        self.drain();
    }

    fn stored(&mut self, records: Vec<Record>, apply: bool) {
        let appended = if apply {
            self.broker.store.append_now(records)
        } else {
            self.early.take().expect("it was kept when it came")
        };
        self.ledger.on_stored(self.broker.life, &appended);
        self.decisions += 1;
        let input = Input::Stored { trimmed: appended.trimmed, bytes: appended.bytes };
        self.trace(|| format!("-> {input:?}"));
        let now = self.reading();
        self.broker.plane.handle_input(input, now);
    }

    fn say(&mut self, worker: WorkerId, message: &ToWorker) {
        let owner = self.broker.watched.get(&worker).copied();
        self.ledger.on_send(self.broker.life, worker, owner, message, &self.trees);
        let Some(&conn) = self.broker.workers.get(&worker) else { return };
        let mut out = BytesMut::new();
        match message {
            ToWorker::Attached(attached) => {
                frame::put_message(&mut out, kind::ATTACHED, attached);
            }
            ToWorker::Grant(grant) => frame::put_message(&mut out, kind::GRANT, grant),
            ToWorker::Ack(ack) => frame::put_message(&mut out, kind::ACK, ack),
            ToWorker::Cancel(cancel) => frame::put_message(&mut out, kind::CANCEL, cancel),
            ToWorker::Fenced(fenced) => frame::put_message(&mut out, kind::FENCED, fenced),
            ToWorker::Ping(nonce) => {
                frame::put_message(&mut out, kind::PING, &Ping { nonce: *nonce });
            }
        }
        self.write(conn, Way::Down, out.freeze());
    }

    fn close_worker(&mut self, worker: WorkerId, reason: &str) {
        let Some(&conn) = self.broker.workers.get(&worker) else { return };
        let mut out = BytesMut::new();
        frame::put_message(&mut out, kind::BYE, &Bye { reason: reason.to_owned() });
        self.write(conn, Way::Down, out.freeze());
        self.shut_door(conn);
    }

    /// Closes a connection from the broker's side.
    pub fn shut_door(&mut self, conn: ConnId) {
        let door = self.broker.doors.insert(conn, Door::Closed);
        self.close(conn, Way::Down, usize::MAX);
        self.close(conn, Way::Up, usize::MAX);
        match door {
            Some(Door::Worker(worker)) => {
                self.broker.workers.remove(&worker);
                // The edge's task notices after the actor's turn.
                let life = self.broker.life;
                self.at(self.now + 1, Event::DoorClosed { life, worker });
            }
            Some(Door::Reader(edge)) => {
                let subscriber = edge.subscriber;
                self.post(Input::Unsubscribe { subscriber, executions: Vec::new() });
            }
            Some(Door::Greeting | Door::Closed) | None => {}
        }
    }

    /// Takes what arrived at the broker.
    pub fn on_arrival(&mut self, conn: ConnId) {
        if self.conns[conn].life != self.broker.life || !self.broker.up {
            return;
        }
        let mut frames = Vec::new();
        loop {
            match frame::take(&mut self.conns[conn].up.inbox) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return self.ledger.fail("honest peers", error.to_string()),
            }
        }
        let mut frames = frames.into_iter();
        if matches!(self.broker.doors.get(&conn), Some(Door::Greeting))
            && let Some((first, body)) = frames.next()
        {
            self.greet(conn, first, &body);
        }
        match self.broker.doors.get(&conn) {
            Some(Door::Worker(worker)) => {
                let worker = *worker;
                self.take_frames(worker, frames.collect());
            }
            Some(Door::Reader(_)) => {
                for (kind, body) in frames {
                    self.take_request(conn, kind, &body);
                }
            }
            Some(Door::Greeting | Door::Closed) | None => {}
        }
        if self.conns[conn].up.ended {
            self.hang_up(conn);
        }
    }

    fn greet(&mut self, conn: ConnId, first: u8, body: &Bytes) {
        assert_eq!(first, kind::HELLO, "everybody says hello first");
        let hello: Hello = frame::decode(body).expect("a hello");
        let welcome = Welcome {
            proto: PROTO,
            epoch: self.broker.epoch(),
            instance: self.broker.epoch(),
            pid: 1,
            build: "sim".to_owned(),
            durability: "memory".to_owned(),
            limits: self.plan.limits.clone(),
        };
        let mut out = BytesMut::new();
        frame::put_message(&mut out, kind::WELCOME, &welcome);
        self.write(conn, Way::Down, out.freeze());
        if hello.role == Role::Worker {
            let worker = WorkerId(self.broker.number(WORKERS));
            let Peer::Worker(process) = self.conns[conn].peer else { unreachable!("by its role") };
            self.broker.doors.insert(conn, Door::Worker(worker));
            self.broker.workers.insert(worker, conn);
            self.broker.watched.insert(worker, process);
            let pid = hello.pid;
            let (start_ticks, name) = (hello.start_ticks, hello.name);
            let process = WorkerProcess { pid, start_ticks, name };
            self.post(Input::WorkerJoined { worker, process });
            self.watch(worker);
            return;
        }
        let subscriber = SubscriberId(self.broker.number(SUBSCRIBERS));
        let edge = Edge {
            subscriber,
            pump: Pump::default(),
            woken: BTreeSet::new(),
            answered: None,
            requests: VecDeque::new(),
            asked: None,
            reading: None,
            out: BytesMut::new(),
            scheduled: false,
            blocked_since: None,
        };
        self.broker.doors.insert(conn, Door::Reader(Box::new(edge)));
    }

    /// Tells of the end of a process that was gone before it was watched.
    fn watch(&mut self, worker: WorkerId) {
        let process = self.broker.watched[&worker];
        if !self.processes[process].alive {
            let at = self.now + 20 * MS + self.broker.rng.below(100 * MS);
            self.at(at, Event::Gone { life: self.broker.life, worker });
        }
    }

    fn take_frames(&mut self, worker: WorkerId, frames: Vec<(u8, Bytes)>) {
        let mut decoded = Vec::with_capacity(frames.len());
        for (frame_kind, body) in frames {
            match decode(frame_kind, body) {
                Ok(Some(frame)) => decoded.push(frame),
                Ok(None) => {}
                Err(error) => return self.ledger.fail("honest peers", error.to_string()),
            }
        }
        if decoded.iter().any(|frame| matches!(frame, WorkerFrame::Attach(_))) {
            let process = self.broker.watched[&worker];
            self.processes[process].attached = true;
        }
        if !decoded.is_empty() {
            self.post(Input::Frames { worker, frames: decoded });
        }
    }

    /// Takes the end of a connection.
    fn hang_up(&mut self, conn: ConnId) {
        let door = self.broker.doors.insert(conn, Door::Closed);
        self.close(conn, Way::Down, usize::MAX);
        match door {
            Some(Door::Worker(worker)) => {
                self.broker.workers.remove(&worker);
                self.post(Input::Closed { worker });
            }
            Some(Door::Reader(edge)) => {
                let subscriber = edge.subscriber;
                self.post(Input::Unsubscribe { subscriber, executions: Vec::new() });
            }
            Some(Door::Greeting | Door::Closed) | None => {}
        }
    }

    fn take_request(&mut self, conn: ConnId, frame_kind: u8, body: &Bytes) {
        if frame_kind != kind::SUB {
            return;
        }
        let sub: Sub = frame::decode(body).expect("a subscription");
        if let Some(Door::Reader(edge)) = self.broker.doors.get_mut(&conn) {
            edge.requests.push_back(sub);
            self.schedule_edge(conn);
        }
    }

    /// Asks the plane the next thing that a reader asked; one at a time.
    fn ask(&mut self, conn: ConnId) {
        let epoch = self.broker.epoch();
        let Some(Door::Reader(edge)) = self.broker.doors.get_mut(&conn) else { return };
        if edge.asked.is_some() || edge.answered.is_some() || edge.reading.is_some() {
            return;
        }
        let Some(sub) = edge.requests.pop_front() else { return };
        let subscriber = edge.subscriber;
        let request = RequestId(self.broker.number(REQUESTS));
        let differs = sub.epoch.as_ref().is_some_and(|of| *of != epoch);
        let foreign: Vec<_> =
            sub.executions.iter().filter(|_| differs).map(|from| from.execution).collect();
        if let Some(Door::Reader(edge)) = self.broker.doors.get_mut(&conn) {
            edge.asked = Some((sub.all, foreign));
        }
        self.subscribing.insert(request, conn);
        if let Peer::Reader(reader) = self.conns[conn].peer
            && sub.all
        {
            self.ledger.subscribed_at.insert(reader, self.now);
        }
        let Sub { executions, all, .. } = sub;
        self.post(Input::Subscribe { request, subscriber, executions, all });
    }

    fn reply(&mut self, request: RequestId, reply: Reply) {
        self.ledger.on_reply(self.broker.life, request, &reply);
        let Some(conn) = self.subscribing.remove(&request) else { return };
        let Some(Door::Reader(edge)) = self.broker.doors.get_mut(&conn) else { return };
        let Reply::Subbed { subbed, horizon } = reply else { return };
        let (all, foreign) = edge.asked.take().expect("it was asked");
        edge.answered = Some((subbed, all.then_some(horizon), foreign));
        self.schedule_edge(conn);
    }

    fn wake(&mut self, subscriber: SubscriberId, handle: Handle) {
        let conn = self.broker.doors.iter_mut().find_map(|(conn, door)| match door {
            Door::Reader(edge) if edge.subscriber == subscriber => {
                edge.woken.insert(handle);
                Some(*conn)
            }
            Door::Reader(_) | Door::Greeting | Door::Worker(_) | Door::Closed => None,
        });
        if let Some(conn) = conn {
            self.schedule_edge(conn);
        }
    }

    fn schedule_edge(&mut self, conn: ConnId) {
        let Some(Door::Reader(edge)) = self.broker.doors.get_mut(&conn) else { return };
        if !std::mem::replace(&mut edge.scheduled, true) {
            let pause = self.conns[conn].rng.below(3 * MS);
            let life = self.broker.life;
            self.at(self.now + pause, Event::EdgeRun { life, conn });
        }
    }

    /// One turn of a reader's edge: an answer, what woke it, and one page.
    pub fn on_edge_run(&mut self, conn: ConnId) {
        let page_bytes = self.plan.page_bytes;
        let backlog = self.conns[conn].down.bytes;
        let late = self.conns[conn].rng.chance(300);
        let Some(Door::Reader(edge)) = self.broker.doors.get_mut(&conn) else { return };
        edge.scheduled = false;
        if backlog > BACKLOG {
            let since = *edge.blocked_since.get_or_insert(self.now);
            if self.now - since > micros(self.plan.limits.write_deadline) {
                return self.shut_door(conn);
            }
            edge.scheduled = true;
            let life = self.broker.life;
            return self.at(self.now + 50 * MS, Event::EdgeRun { life, conn });
        }
        edge.blocked_since = None;
        let board = &self.broker.board.shown;
        let mut more = false;
        if let Some((wanted, visible)) = edge.reading.take() {
            let page = self.broker.store.read_now(wanted.handle, wanted.after, page_bytes);
            edge.pump.page(wanted, &page, visible, &mut edge.out);
            more = true;
        } else {
            if let Some((subbed, all, foreign)) = edge.answered.take() {
                edge.pump.subscribe(&subbed, all, &foreign, &mut edge.out);
            }
            for handle in std::mem::take(&mut edge.woken) {
                edge.pump.wake(handle);
            }
            if let Some(wanted) = edge.pump.next(|h| board.get(&h).cloned(), &mut edge.out) {
                let visible = board.get(&wanted.handle).map(|shown| shown.last);
                let visible = visible.unwrap_or_default();
                more = true;
                if late {
                    edge.reading = Some((wanted, visible));
                } else {
                    let page = self.broker.store.read_now(wanted.handle, wanted.after, page_bytes);
                    edge.pump.page(wanted, &page, visible, &mut edge.out);
                }
            }
        }
        let out = edge.out.split().freeze();
        more |= !edge.requests.is_empty();
        self.write(conn, Way::Down, out);
        self.ask(conn);
        if more {
            self.decisions += 1;
            self.schedule_edge(conn);
        }
    }

    /// Answers the plane about a process.
    pub fn on_look(&mut self, worker: WorkerId) {
        let Some(process) = self.broker.watched.get(&worker) else { return };
        let process = &self.processes[*process];
        let seen = if !process.alive {
            Seen::Gone
        } else if process.stopped_until.is_some() {
            Seen::Stopped
        } else {
            Seen::Alive
        };
        self.post(Input::Looked { worker, seen, how: None });
    }

    /// Sees to a lost process tree, once.
    pub fn on_sweep_poll(&mut self, id: ExecutionId) {
        let life = self.broker.life;
        let Some((sweep, asked)) = self.broker.sweeps.get(&id).cloned() else { return };
        let gone = !self.processes.iter().any(|process| {
            process.alive && process.pid == sweep.pid && process.start_ticks == sweep.start_ticks
        });
        let empty = !self.trees.contains_key(&id);
        if empty {
            self.broker.sweeps.remove(&id);
            return self.post(Input::TreeEmpty { id });
        }
        if gone && sweep.end && !asked {
            let at = self.now + 1 + self.broker.rng.below(sweep.grace_ms.min(500) * MS);
            self.at(at, Event::TreeDies { id });
            self.broker.sweeps.insert(id, (sweep, true));
        }
        self.at(self.now + 100 * MS, Event::SweepPoll { life, id });
    }
}

impl Board {
    pub fn all(&self) -> impl Iterator<Item = &Shown> {
        self.shown.values()
    }
}

fn decode(frame_kind: u8, body: Bytes) -> Result<Option<WorkerFrame>, frame::BadFrame> {
    Ok(Some(match frame_kind {
        kind::ATTACH => WorkerFrame::Attach(Box::new(frame::decode(&body)?)),
        kind::BATCH => WorkerFrame::Batch(Batch::parse(body)?),
        kind::HEARTBEAT => WorkerFrame::Heartbeat,
        kind::PONG => WorkerFrame::Pong(frame::decode::<Ping>(&body)?.nonce),
        kind::TREE => WorkerFrame::Tree(frame::decode(&body)?),
        kind::RELEASED => WorkerFrame::Released(frame::decode(&body)?),
        kind::LATE => WorkerFrame::Late(frame::decode(&body)?),
        kind::BYE => WorkerFrame::Bye,
        _ => return Ok(None),
    }))
}

/// Returns a reading of the monotonic clock in the world's unit.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).expect("a run is shorter")
}
