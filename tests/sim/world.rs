//! The world: one clock, one list of what happens next, and everybody in it.
//!
//! A run is a function of its seed. While a process is stopped, what would happen to it waits in
//! order; the clock goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use reeve_broker::plane::{Input, RequestId, Seen, WorkerId};
use reeve_broker::store::Appended;
use reeve_protocol::snapshot::Description;
use reeve_protocol::{ExecutionId, Now, Timestamp};

use crate::broker::{Broker, Door, REQUESTS};
use crate::faults::{Fault, MS, Plan, SECOND};
use crate::net::{Conn, ConnId, Pace, Peer, Pipe, Way};
use crate::process::{Act, Process, describe};
use crate::properties::{Ledger, Violation};
use crate::reader::{CATCH_UP, Reader};
use crate::rng::{Rng, digest};

/// Where the wall clock starts.
const WALL: i64 = 1_788_829_323_000_000;
/// How long the world has to come to rest once nothing strikes any more.
const REST: u64 = 90 * SECOND;
/// What may be decided in one second, at most.
const DECISIONS_MAX: u64 = 8_000;

/// What happens.
#[derive(Clone, Debug)]
pub enum Event {
    Arrival { conn: ConnId, way: Way },
    BrokerTimer { life: u64, timer: u64 },
    StoreDone { life: u64 },
    Look { life: u64, worker: WorkerId },
    Gone { life: u64, worker: WorkerId },
    DoorClosed { life: u64, worker: WorkerId },
    SweepPoll { life: u64, id: ExecutionId },
    Launch { life: u64, id: ExecutionId, attempt: u8 },
    LaunchDied { life: u64, process: usize },
    EdgeRun { life: u64, conn: ConnId },
    Start { index: usize },
    Cancel { id: ExecutionId, force: bool },
    ProcessNew { index: usize },
    ProcessStart { process: usize },
    ProcessConnect { process: usize },
    ProcessExit { process: usize },
    SessionTimer { process: usize, work: usize, timer: u64 },
    Act { process: usize, work: usize, act: u64 },
    ProcessContinue { process: usize },
    BrokerContinue,
    BrokerUp,
    TreeDies { id: ExecutionId },
    CheckDead { life: u64, process: usize, since: u64 },
    ReaderConnect { reader: usize },
    ReaderRetry { reader: usize },
    Strike { index: usize },
    Heal,
    Rest,
    End,
}

/// Everybody, and what happens next.
pub struct World {
    pub seed: u64,
    pub plan: Plan,
    pub now: u64,
    wall: i64,
    next: BTreeMap<(u64, u64), Event>,
    order: u64,
    pub conns: Vec<Conn>,
    pub broker: Broker,
    pub early: Option<Appended>,
    pub subscribing: BTreeMap<RequestId, ConnId>,
    pub processes: Vec<Process>,
    pub readers: Vec<Reader>,
    pub trees: BTreeMap<ExecutionId, usize>,
    pub ids: Vec<ExecutionId>,
    pub descriptions: BTreeMap<ExecutionId, Description>,
    groups: Vec<Vec<ExecutionId>>,
    opened: BTreeMap<(bool, usize), u64>,
    pub ledger: Ledger,
    /// A digest of everything that anybody was sent and everything that was kept.
    pub outputs: u64,
    /// A digest of what was kept.
    pub history: u64,
    pub decisions: u64,
    pub worker_turns: u64,
    second: u64,
    pub healing: bool,
    /// Since when the broker has run without a stop.
    pub calm_since: u64,
    strikes: Rng,
    tracing: bool,
    rests: bool,
    over: bool,
    pub steps: u64,
}

impl World {
    /// Makes the world of a seed, with its readers or without.
    pub fn new(seed: u64, with_readers: bool, tracing: bool) -> Self {
        let mut plan = Plan::of(seed);
        if !with_readers {
            plan.readers = 0;
        }
        let mut world = Self {
            broker: Broker::new(1, &plan.limits, seed),
            ledger: Ledger::new(&plan),
            seed,
            now: 0,
            wall: WALL,
            next: BTreeMap::new(),
            order: 1,
            conns: Vec::new(),
            early: None,
            subscribing: BTreeMap::new(),
            processes: Vec::new(),
            readers: Vec::new(),
            trees: BTreeMap::new(),
            ids: Vec::new(),
            descriptions: BTreeMap::new(),
            groups: Vec::new(),
            opened: BTreeMap::new(),
            outputs: 0,
            history: 0,
            decisions: 0,
            worker_turns: 0,
            second: 0,
            healing: false,
            calm_since: 0,
            strikes: Rng::of(seed, "strikes", 0),
            tracing,
            rests: false,
            over: false,
            steps: 0,
            plan,
        };
        world.trace(|| "plan".to_owned());
        if tracing {
            println!("{:#?}", world.plan);
        }
        world.populate();
        world
    }

    fn populate(&mut self) {
        let mut rng = Rng::of(self.seed, "people", 0);
        for index in 0..self.plan.workers + self.plan.starts {
            let mut group = Vec::new();
            let twice = index < self.plan.workers && rng.chance(250);
            for _ in 0..=u64::from(twice) {
                let random = u32::try_from(rng.next() & 0xffff_ffff).expect("32 bits");
                let id = ExecutionId::mint(Timestamp::from_micros(WALL), random);
                let description = describe(&mut rng);
                self.ledger.on_described(id, description.lock.clone());
                self.descriptions.insert(id, description);
                self.ids.push(id);
                group.push(id);
            }
            self.groups.push(group);
            let at = rng.below(self.plan.safety * 2 / 3);
            let event = if index < self.plan.workers {
                Event::ProcessNew { index }
            } else {
                Event::Start { index }
            };
            self.at(at, event);
        }
        for _ in 0..self.plan.cancels {
            let id = self.ids[rng.index(self.ids.len())];
            let (at, force) = (rng.below(self.plan.safety), rng.chance(200));
            self.at(at, Event::Cancel { id, force });
            if rng.chance(300) {
                self.at(at + rng.below(SECOND), Event::Cancel { id, force: rng.chance(500) });
            }
        }
        for index in 0..self.plan.strikes.len() {
            self.strike_later(index);
        }
        self.at(self.plan.safety, Event::Heal);
        self.add_readers();
    }

    /// Returns a reading of both clocks.
    pub fn reading(&self) -> Now {
        let micros = i64::try_from(self.now).expect("a run is shorter");
        Now {
            mono: Duration::from_micros(self.now),
            wall: Timestamp::from_micros(self.wall.saturating_add(micros)),
        }
    }

    /// Lets something happen at a time.
    pub fn at(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.next.insert((at.max(self.now), self.order), event);
    }

    /// Prints a line of the trace, if there is one.
    pub fn trace(&self, line: impl FnOnce() -> String) {
        if self.tracing {
            println!("{:>10.3} {}", self.now as f64 / 1_000.0, line());
        }
    }

    /// Takes bytes into the digest of all outputs.
    pub fn note(&mut self, bytes: &[u8]) {
        self.outputs = digest(self.outputs, bytes);
    }

    /// Runs to the end.
    ///
    /// # Errors
    ///
    /// The first property that did not hold.
    pub fn run(&mut self) -> Result<(), Violation> {
        while !self.over {
            let Some(((at, order), event)) = self.next.pop_first() else { break };
            self.now = at;
            if let Some(until) = self.held_until(&event) {
                self.next.insert((until.max(at + 1), order), event);
                continue;
            }
            self.steps += 1;
            self.count();
            self.happen(event);
            if let Some(violation) = self.ledger.violation.take() {
                return Err(violation);
            }
        }
        Ok(())
    }

    /// Checks that nobody turns in circles.
    fn count(&mut self) {
        let second = self.now / SECOND;
        if second != self.second {
            self.second = second;
            self.decisions = 0;
            self.worker_turns = 0;
        } else if self.decisions > DECISIONS_MAX || self.worker_turns > DECISIONS_MAX {
            let text = format!("{} and {} turns", self.decisions, self.worker_turns);
            self.ledger.fail("no livelock", text);
            self.decisions = 0;
        }
    }

    /// Returns until when an event waits because whom it happens to is stopped.
    fn held_until(&self, event: &Event) -> Option<u64> {
        let process = match event {
            Event::Arrival { way: Way::Up, .. }
            | Event::BrokerTimer { .. }
            | Event::StoreDone { .. }
            | Event::Look { .. }
            | Event::Gone { .. }
            | Event::DoorClosed { .. }
            | Event::SweepPoll { .. }
            | Event::Launch { .. }
            | Event::LaunchDied { .. }
            | Event::EdgeRun { .. }
            | Event::Start { .. }
            | Event::Cancel { .. } => return self.broker.stopped_until,
            Event::Arrival { conn, way: Way::Down } => match self.conns[*conn].peer {
                Peer::Worker(process) => process,
                Peer::Reader(_) => return None,
            },
            Event::ProcessStart { process }
            | Event::ProcessConnect { process }
            | Event::ProcessExit { process }
            | Event::SessionTimer { process, .. }
            | Event::Act { process, .. } => *process,
            _ => return None,
        };
        self.processes[process].stopped_until
    }

    fn happen(&mut self, event: Event) {
        let life = self.broker.life;
        match event {
            Event::Arrival { conn, way } => self.on_pipe_arrival(conn, way),
            Event::BrokerTimer { life: of, timer } if of == life => self.on_broker_timer(timer),
            Event::StoreDone { life: of } if of == life => self.on_store_done(),
            Event::Look { life: of, worker } if of == life => self.on_look(worker),
            Event::Gone { life: of, worker } if of == life => {
                self.post(Input::Looked { worker, seen: Seen::Gone, how: None });
            }
            Event::DoorClosed { life: of, worker } if of == life => {
                self.post(Input::Closed { worker });
            }
            Event::SweepPoll { life: of, id } if of == life => self.on_sweep_poll(id),
            Event::Launch { life: of, id, attempt } if of == life => self.on_launch(id, attempt),
            Event::LaunchDied { life: of, process } if of == life => self.on_launch_died(process),
            Event::EdgeRun { life: of, conn } if of == life => self.on_edge_run(conn),
            Event::Start { index } => self.on_start(index),
            Event::Cancel { id, force } => self.on_cancel(id, force),
            Event::ProcessNew { index } => {
                let group = self.groups[index].clone();
                let works =
                    group.into_iter().map(|id| (id, self.descriptions[&id].clone())).collect();
                self.add_process(works, None);
            }
            Event::ProcessStart { process } if self.processes[process].alive => {
                self.on_process_start(process);
            }
            Event::ProcessConnect { process } if self.processes[process].alive => {
                self.on_process_connect(process);
            }
            Event::ProcessExit { process } => self.end_process(process, usize::MAX),
            Event::SessionTimer { process, work, timer } if self.processes[process].alive => {
                self.on_session_timer(process, work, timer);
            }
            Event::Act { process, work, act } if self.processes[process].alive => {
                self.on_act(process, work, act);
            }
            Event::ProcessContinue { process } => self.processes[process].stopped_until = None,
            Event::BrokerContinue if self.broker.stopped_until == Some(self.now) => {
                self.broker_continues();
            }
            Event::BrokerUp => self.broker.up = true,
            Event::TreeDies { id } => {
                let owner = self.trees.get(&id);
                if owner.is_some_and(|process| !self.processes[*process].alive) {
                    self.trees.remove(&id);
                }
            }
            Event::CheckDead { life: of, process, since } => self.check_dead(of, process, since),
            Event::ReaderConnect { reader } => self.on_reader_connect(reader),
            Event::ReaderRetry { reader } => self.on_reader_retry(reader),
            Event::Strike { index } => self.on_strike(index),
            Event::Heal => self.heal(),
            Event::Rest => self.on_rest(),
            Event::End => self.end(),
            // What belonged to an earlier life of the broker, or to a process that is gone.
            _ => {}
        }
    }

    fn on_start(&mut self, index: usize) {
        if !self.broker.up {
            return;
        }
        let id = self.groups[index][0];
        let description = Box::new(self.descriptions[&id].clone());
        let request = RequestId(self.broker.number(REQUESTS));
        self.post(Input::Start { request, id, description, key: None });
    }

    fn on_cancel(&mut self, id: ExecutionId, force: bool) {
        if !self.broker.up {
            return;
        }
        let request = RequestId(self.broker.number(REQUESTS));
        self.ledger.on_cancel(self.broker.life, request, id);
        self.post(Input::Cancel { request, id, by: "somebody".to_owned(), force });
    }

    fn on_launch(&mut self, id: ExecutionId, attempt: u8) {
        let life = self.broker.life;
        let fails = !self.healing && self.broker.rng.chance(self.plan.launch_fails);
        if fails && self.broker.rng.chance(500) {
            let message = "no such program".to_owned();
            return self.post(Input::LaunchFailed { id, attempt, message });
        }
        let process = self.add_process(vec![(id, self.descriptions[&id].clone())], Some(life));
        self.processes[process].attempt = attempt;
        if fails {
            // It ends before or after it has said something.
            let at = self.now + self.broker.rng.below(150 * MS);
            self.at(at, Event::ProcessExit { process });
        }
    }

    /// Opens a connection to the broker.
    pub fn open(&mut self, peer: Peer) -> ConnId {
        let conn = self.conns.len();
        let key = match peer {
            Peer::Worker(index) => (true, index),
            Peer::Reader(index) => (false, index),
        };
        let nth = self.opened.entry(key).or_default();
        *nth += 1;
        let index = (key.1 as u64) << 32 | *nth;
        let rng = Rng::of(self.seed, if key.0 { "worker link" } else { "reader link" }, index);
        let life = self.broker.life;
        self.conns.push(Conn { peer, life, up: Pipe::default(), down: Pipe::default(), rng });
        self.broker.doors.insert(conn, Door::Greeting);
        conn
    }

    fn pace(&self) -> Pace {
        let split = if self.healing { 0 } else { self.plan.split };
        Pace { latency: self.plan.latency, split }
    }

    /// Writes bytes to a connection.
    pub fn write(&mut self, conn: ConnId, way: Way, bytes: Bytes) {
        self.note(&bytes);
        let (pace, now) = (self.pace(), self.now);
        let (pipe, rng) = self.conns[conn].pipe(way);
        for at in pipe.write(bytes, pace, now, rng) {
            self.at(at, Event::Arrival { conn, way });
        }
    }

    /// Ends one direction of a connection after `keep` of the bytes that are on their way.
    pub fn close(&mut self, conn: ConnId, way: Way, keep: usize) {
        let (pace, now) = (self.pace(), self.now);
        let (pipe, rng) = self.conns[conn].pipe(way);
        if let Some(at) = pipe.close(keep, pace, now, rng) {
            self.at(at, Event::Arrival { conn, way });
        }
    }

    /// Draws how much of what is on its way survives a cut.
    pub fn keep(&mut self, conn: ConnId, way: Way) -> usize {
        let (pipe, rng) = self.conns[conn].pipe(way);
        let bytes = pipe.bytes;
        rng.index(bytes + 1)
    }

    fn on_pipe_arrival(&mut self, conn: ConnId, way: Way) {
        let (pipe, _) = self.conns[conn].pipe(way);
        if !pipe.arrive() {
            return;
        }
        match (way, self.conns[conn].peer) {
            (Way::Up, _) => self.on_arrival(conn),
            (Way::Down, Peer::Worker(process)) if self.processes[process].alive => {
                self.on_process_arrival(process, conn);
            }
            (Way::Down, Peer::Reader(reader)) => self.on_reader_arrival(reader, conn),
            (Way::Down, Peer::Worker(_)) => {}
        }
    }

    fn strike_later(&mut self, index: usize) {
        let mean = self.plan.strikes[index].1;
        let at = self.now + mean / 4 + self.strikes.below(mean * 3 / 2);
        self.at(at, Event::Strike { index });
    }

    fn on_strike(&mut self, index: usize) {
        if self.healing {
            return;
        }
        self.strike_later(index);
        let fault = self.plan.strikes[index].0;
        self.trace(|| format!("** {fault:?}"));
        match fault {
            Fault::CutWorker | Fault::Kill | Fault::StopWorker => self.strike_worker(fault),
            Fault::CutReader => {
                // Drawn from a stream of its own, since readers may be left out of a run.
                if !self.readers.is_empty() {
                    let at = self.now as usize % self.readers.len();
                    self.cut_reader(at);
                }
            }
            Fault::Stall => {
                let until = (self.now + self.strikes.below(3 * SECOND)).min(self.plan.safety);
                let way = if self.strikes.chance(500) { Way::Up } else { Way::Down };
                if let Some(conn) = self.some_worker().and_then(|at| self.processes[at].conn) {
                    self.conns[conn].pipe(way).0.stall(until);
                }
                if !self.readers.is_empty() {
                    let at = self.now as usize % self.readers.len();
                    if let Some(conn) = self.readers[at].conn {
                        self.conns[conn].pipe(way).0.stall(until);
                    }
                }
            }
            Fault::StopBroker => {
                let until = (self.now + self.strikes.below(8 * SECOND)).min(self.plan.safety);
                if self.broker.up && self.broker.stopped_until.is_none() {
                    self.broker.stopped_until = Some(until);
                    self.ledger.on_broker_stop(self.now, until);
                    self.at(until, Event::BrokerContinue);
                }
            }
            Fault::Restart => self.restart(),
            Fault::WallJump => {
                let jump = i64::try_from(self.strikes.below(20 * 365 * 86_400)).expect("it fits");
                let sign = if self.strikes.chance(500) { -1 } else { 1 };
                self.wall = WALL + sign * jump * 1_000_000;
            }
        }
    }

    fn some_worker(&mut self) -> Option<usize> {
        let alive: Vec<usize> =
            (0..self.processes.len()).filter(|at| self.processes[*at].alive).collect();
        let at = self.strikes.index(alive.len());
        alive.get(at).copied()
    }

    fn strike_worker(&mut self, fault: Fault) {
        let Some(process) = self.some_worker() else { return };
        let whole = self.strikes.chance(500);
        match fault {
            Fault::Kill => {
                let conn = self.processes[process].conn;
                let keep = conn.filter(|_| !whole).map(|conn| self.keep(conn, Way::Up));
                self.end_process(process, keep.unwrap_or(usize::MAX));
            }
            Fault::StopWorker => {
                let until = (self.now + self.strikes.below(7 * SECOND)).min(self.plan.safety);
                if self.processes[process].stopped_until.is_none() {
                    self.processes[process].stopped_until = Some(until);
                    self.at(until, Event::ProcessContinue { process });
                }
            }
            _ => {
                if let Some(conn) = self.processes[process].conn {
                    for way in [Way::Up, Way::Down] {
                        let keep = self.keep(conn, way);
                        self.close(conn, way, keep);
                    }
                }
            }
        }
    }

    fn restart(&mut self) {
        if !self.broker.up {
            return;
        }
        self.cut_everything();
        let life = self.broker.life + 1;
        self.ledger.on_restart(self.broker.life);
        self.broker = Broker::new(life, &self.plan.limits, self.seed);
        self.early = None;
        self.subscribing.clear();
        self.broker.up = false;
        self.calm_since = self.now;
        let at = self.now + self.strikes.below(SECOND);
        self.at(at, Event::BrokerUp);
    }

    fn cut_everything(&mut self) {
        for conn in 0..self.conns.len() {
            for way in [Way::Up, Way::Down] {
                if self.conns[conn].pipe(way).0.is_open() {
                    let keep = self.keep(conn, way);
                    self.close(conn, way, keep);
                }
            }
        }
    }

    fn broker_continues(&mut self) {
        self.broker.stopped_until = None;
        self.calm_since = self.now;
        // A timer that is due may come before what was waiting to be read.
        if self.strikes.chance(500) {
            let now = self.reading();
            self.ledger.on_timeout();
            self.broker.plane.handle_timeout(now);
            self.drain();
        }
    }

    /// Nothing strikes any more.
    fn heal(&mut self) {
        self.trace(|| "** heal".to_owned());
        self.healing = true;
        for conn in &mut self.conns {
            conn.up.heal();
            conn.down.heal();
        }
        for process in &mut self.processes {
            process.stopped_until = None;
        }
        if self.broker.stopped_until.is_some() {
            self.ledger.on_broker_continue(self.now);
            self.broker_continues();
        }
        self.broker.up = true;
        self.at(self.now + SECOND, Event::Rest);
    }

    /// Looks whether everything has come to rest.
    fn on_rest(&mut self) {
        self.ask_everybody_to_stop();
        let gauges = self.broker.plane.gauges();
        let alive = self.processes.iter().any(|process| process.alive);
        let rests = !alive && self.trees.is_empty() && gauges.active == 0;
        if rests || self.now > self.plan.safety + REST {
            self.rests = rests;
            self.trace(|| "** rest".to_owned());
            return self.at(self.now + CATCH_UP, Event::End);
        }
        self.at(self.now + SECOND, Event::Rest);
    }

    /// Asks what goes on for ever to stop: through the broker, or at its terminal where that has
    /// given it up.
    fn ask_everybody_to_stop(&mut self) {
        let now = self.reading();
        for process in 0..self.processes.len() {
            for work in 0..self.processes[process].works.len() {
                let alive = self.processes[process].alive;
                let this = &mut self.processes[process].works[work];
                if !alive || this.dropped || this.script.front() != Some(&Act::Forever) {
                    continue;
                }
                if this.fenced {
                    this.session.handle_cancel("terminal", false, now);
                    self.settle_process(process);
                } else {
                    let id = this.id;
                    self.at(self.now, Event::Cancel { id, force: false });
                }
            }
        }
    }

    fn end(&mut self) {
        self.over = true;
        if !self.rests {
            let gauges = self.broker.plane.gauges();
            let alive: Vec<usize> =
                (0..self.processes.len()).filter(|at| self.processes[*at].alive).collect();
            let text = format!("{gauges:?}, processes {alive:?}, trees {:?}", self.trees);
            return self.ledger.fail("liveness", text);
        }
        let broker = &self.broker;
        self.ledger.at_end(broker.life, &broker.store, &broker.board, broker.plane.gauges());
        for (index, reader) in self.readers.iter().enumerate() {
            self.ledger.reader_at_end(index, reader, self.broker.life);
        }
    }

    fn check_dead(&mut self, life: u64, process: usize, since: u64) {
        let disturbed = self.calm_since != since || self.broker.stopped_until.is_some();
        if life != self.broker.life || disturbed {
            return;
        }
        let ids: Vec<ExecutionId> =
            self.processes[process].works.iter().map(|work| work.id).collect();
        self.ledger.dead_is_final(life, process, &ids);
    }
}
