//! Worker processes in the simulation: real sessions, a script of what their work does, and the
//! shell around them that a real worker has.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use reeve_broker::plane::Input;
use reeve_protocol::capability::{CapabilityKind, Effect as Changes, OnWorkerLoss};
use reeve_protocol::event::Severity;
use reeve_protocol::frame;
use reeve_protocol::peer::{Bye, Fenced, Hello, PROTO, Role, Tree, kind};
use reeve_protocol::snapshot::{Actor, ActorKind, Description, Repository};
use reeve_protocol::{Code, ExecutionId, Fault, Kind, LogChunk, Output, State};
use reeve_worker::session::{Effect, Notice, Reported, Session};

use crate::broker::micros;
use crate::faults::{MS, SECOND};
use crate::net::{ConnId, Peer, Way};
use crate::rng::Rng;
use crate::world::{Event, World};

/// One thing that work does.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    TreeUp,
    Started,
    Log(u32),
    Progress(u64),
    Step(bool),
    Diagnostic,
    /// Goes on until it is asked to stop.
    Forever,
    /// Ends the tree while something of it survives for a moment.
    Survivors,
    TreeDown,
    Finish(State),
}

/// One execution as its process sees it.
pub struct Work {
    pub session: Session,
    pub id: ExecutionId,
    pub script: VecDeque<Act>,
    pub begun: bool,
    pub granted: bool,
    /// Nothing is done any more, and nothing is reported.
    pub dropped: bool,
    /// It was told that it is over for everybody else.
    pub fenced: bool,
    pub ending: bool,
    checked: bool,
    tolerant: bool,
    stubborn: bool,
    armed: Option<u64>,
    timer: u64,
    acts: u64,
}

/// A worker's process.
pub struct Process {
    pub pid: u32,
    pub start_ticks: u64,
    pub alive: bool,
    pub stopped_until: Option<u64>,
    /// Which life of the broker made it.
    pub launched: Option<u64>,
    /// For which attempt it was made.
    pub attempt: u8,
    /// Whether the broker that made it has heard of it.
    pub attached: bool,
    pub conn: Option<ConnId>,
    pub works: Vec<Work>,
    pub leaving: bool,
    pub died_at: u64,
    held: Option<Bytes>,
    ghosts: bool,
    pub rng: Rng,
}

/// Draws what an execution is.
pub fn describe(rng: &mut Rng) -> Description {
    let lock = rng.chance(600).then(|| format!("lock-{}", rng.below(2)));
    Description {
        capability: "sim.work".parse().expect("a capability's name"),
        title: "Work".to_owned(),
        kind: CapabilityKind::Process,
        effect: Changes::Write,
        cancellable: true,
        lock,
        on_worker_loss: if rng.chance(700) { OnWorkerLoss::End } else { OnWorkerLoss::Leave },
        cancel_grace_ms: 300,
        input: serde_json::Value::Null,
        actor: Actor { kind: ActorKind::Cli, peer: None, pid: None },
        repository: Repository::default(),
        parent_id: None,
    }
}

/// Draws what an execution does.
fn script(rng: &mut Rng) -> VecDeque<Act> {
    let mut acts = VecDeque::new();
    let tree = rng.chance(600);
    if tree {
        acts.push_back(Act::TreeUp);
    }
    if rng.chance(100) {
        // It fails before it was entered.
        return VecDeque::from([Act::Finish(State::Failed)]);
    }
    acts.push_back(Act::Started);
    for n in 0..rng.below(14) {
        acts.push_back(match rng.below(6) {
            0..=2 => Act::Log(1 + u32::try_from(rng.below(3)).expect("few")),
            3 => Act::Progress(n),
            4 => Act::Step(rng.chance(800)),
            _ => Act::Diagnostic,
        });
    }
    if rng.chance(150) {
        acts.push_back(Act::Forever);
    }
    let end = if rng.chance(700) { State::Succeeded } else { State::Failed };
    match (tree, rng.below(4)) {
        (false, _) => acts.push_back(Act::Finish(end)),
        (true, 0) => acts.extend([Act::Finish(end), Act::TreeDown]),
        (true, 1) => acts.extend([Act::Survivors, Act::Finish(end), Act::TreeDown]),
        (true, _) => acts.extend([Act::TreeDown, Act::Finish(end)]),
    }
    acts
}

impl World {
    /// Makes a process with sessions that have not started yet.
    pub fn add_process(
        &mut self,
        executions: Vec<(ExecutionId, Description)>,
        launched: Option<u64>,
    ) -> usize {
        let index = self.processes.len();
        let mut rng = Rng::of(self.seed, "process", index as u64);
        let works = executions
            .into_iter()
            .map(|(id, description)| Work {
                session: Session::new(id, description, session_limits(&self.plan.limits)),
                id,
                script: script(&mut rng),
                begun: false,
                granted: false,
                dropped: false,
                fenced: false,
                ending: false,
                checked: false,
                tolerant: rng.chance(500),
                stubborn: rng.chance(200),
                armed: None,
                timer: 0,
                acts: 0,
            })
            .collect();
        // Few pids, so that they are used again.
        let pid = 100 + u32::try_from(rng.below(12)).expect("a pid");
        self.processes.push(Process {
            pid,
            start_ticks: 1_000 + index as u64,
            alive: true,
            stopped_until: None,
            launched,
            attempt: 0,
            attached: false,
            conn: None,
            works,
            leaving: false,
            died_at: 0,
            held: None,
            ghosts: false,
            rng,
        });
        let at = self.now + 1 + self.processes[index].rng.below(20 * MS);
        self.at(at, Event::ProcessStart { process: index });
        index
    }

    pub fn on_process_start(&mut self, process: usize) {
        let in_sight = self.broker.up || self.processes[process].rng.chance(300);
        let now = self.reading();
        for work in 0..self.processes[process].works.len() {
            let this = &mut self.processes[process];
            match this.launched {
                Some(_) => this.works[work].session.start_bound(now),
                None => this.works[work].session.start(in_sight, now),
            }
        }
        self.settle_process(process);
        if in_sight {
            let at = self.now + 1 + self.processes[process].rng.below(10 * MS);
            self.at(at, Event::ProcessConnect { process });
        } else {
            self.connect_later(process);
        }
    }

    fn connect_later(&mut self, process: usize) {
        let at = self.now + 20 * MS + self.processes[process].rng.below(250 * MS);
        self.at(at, Event::ProcessConnect { process });
    }

    pub fn on_process_connect(&mut self, process: usize) {
        if self.processes[process].conn.is_some() || self.processes[process].leaving {
            return;
        }
        let now = self.reading();
        if !self.broker.up {
            for work in &mut self.processes[process].works {
                work.session.handle_unreachable(now);
            }
            self.settle_process(process);
            return self.connect_later(process);
        }
        let conn = self.open(Peer::Worker(process));
        let this = &mut self.processes[process];
        this.conn = Some(conn);
        this.held = None;
        let hello = Hello {
            proto: PROTO,
            role: Role::Worker,
            name: "run".to_owned(),
            pid: this.pid,
            start_ticks: this.start_ticks,
            build: "sim".to_owned(),
            instance: None,
        };
        for work in this.works.iter_mut().filter(|work| !work.dropped) {
            work.session.handle_connected(now);
        }
        let mut out = BytesMut::new();
        frame::put_message(&mut out, kind::HELLO, &hello);
        self.write(conn, Way::Up, out.freeze());
        self.settle_process(process);
    }

    /// Takes what arrived at a worker.
    pub fn on_process_arrival(&mut self, process: usize, conn: ConnId) {
        if self.processes[process].conn != Some(conn) {
            return;
        }
        loop {
            match frame::take(&mut self.conns[conn].down.inbox) {
                Ok(Some((frame_kind, body))) => self.process_frame(process, frame_kind, &body),
                Ok(None) => break,
                Err(error) => return self.ledger.fail("honest peers", error.to_string()),
            }
        }
        if self.processes[process].conn == Some(conn) && self.conns[conn].down.ended {
            self.lose_connection(process);
        }
        self.settle_process(process);
    }

    fn process_frame(&mut self, process: usize, frame_kind: u8, body: &Bytes) {
        let now = self.reading();
        let this = &mut self.processes[process];
        if frame_kind == kind::FENCED {
            let fenced: Fenced = frame::decode(body).expect("a fenced");
            if this.ghosts && !fenced.state.is_final() && fenced.error.is_none() {
                return; // The answer to a ghost, which the session knows nothing about.
            }
            self.ledger.on_fenced_heard(process, &fenced);
        }
        for work in this.works.iter_mut().filter(|work| !work.dropped) {
            if frame_kind == kind::GRANT
                && frame::decode::<reeve_protocol::peer::Grant>(body)
                    .is_ok_and(|grant| grant.execution == work.id)
            {
                work.granted = true;
            }
            work.session.handle_frame(frame_kind, body, now);
        }
        self.settle_process(process);
    }

    fn lose_connection(&mut self, process: usize) {
        let Some(conn) = self.processes[process].conn.take() else { return };
        self.close(conn, Way::Up, usize::MAX);
        let now = self.reading();
        for work in self.processes[process].works.iter_mut().filter(|work| !work.dropped) {
            work.session.handle_disconnected(now);
        }
        self.connect_later(process);
    }

    pub fn on_session_timer(&mut self, process: usize, work: usize, timer: u64) {
        let now = self.reading();
        let this = &mut self.processes[process].works[work];
        if timer != this.timer || this.dropped {
            return;
        }
        this.armed = None;
        this.session.handle_timeout(now);
        self.worker_turns += 1;
        self.settle_process(process);
    }

    /// Performs what the sessions of a process ask for, until they ask for nothing.
    pub fn settle_process(&mut self, process: usize) {
        for work in 0..self.processes[process].works.len() {
            while let Some(effect) = self.processes[process].works[work].session.poll_effect() {
                self.process_effect(process, work, effect);
            }
            while self.processes[process].works[work].session.poll_local().is_some() {}
            self.arm_session(process, work);
            self.check_done(process, work);
        }
        self.leave_if_done(process);
    }

    fn arm_session(&mut self, process: usize, work: usize) {
        let this = &mut self.processes[process].works[work];
        let due = this.session.poll_timeout().map(micros).filter(|_| !this.dropped);
        if due == this.armed {
            return;
        }
        this.armed = due;
        this.timer += 1;
        let timer = this.timer;
        if let Some(due) = due {
            let at = due.max(self.now);
            self.at(at, Event::SessionTimer { process, work, timer });
        }
    }

    fn process_effect(&mut self, process: usize, work: usize, effect: Effect) {
        self.trace(|| format!("P{process}.{work}: {}", show_effect(&effect)));
        if !self.processes[process].alive {
            return;
        }
        match effect {
            Effect::Send(bytes) => self.process_write(process, bytes),
            Effect::Disconnect { reason } => {
                self.ledger.on_disconnect(&reason);
                self.lose_connection(process);
            }
            Effect::Begin => self.begin(process, work),
            Effect::Cancel { force, .. } => self.asked_to_stop(process, work, force),
            Effect::Fenced(ended) => {
                let this = &mut self.processes[process].works[work];
                this.fenced = true;
                if !this.begun {
                    this.dropped = true;
                    this.script.clear();
                } else if !this.tolerant && ended.state.is_final() && !this.ending {
                    self.end_early(process, work, State::Failed);
                }
            }
            Effect::Notice(notice) => {
                // Nobody can stop from elsewhere what no broker watches.
                self.processes[process].works[work].fenced |= notice == Notice::Unwatched;
            }
        }
    }

    fn begin(&mut self, process: usize, work: usize) {
        let this = &mut self.processes[process];
        this.works[work].begun = true;
        let (launched, id) = (this.launched.is_some(), this.works[work].id);
        self.ledger.on_begin(process, id, launched);
        self.act_later(process, work, 0);
    }

    fn act_later(&mut self, process: usize, work: usize, least: u64) {
        let this = &mut self.processes[process];
        let pause = least + [2 * MS, 60 * MS, 600 * MS][this.rng.index(3)];
        let at = self.now + 1 + this.rng.below(pause);
        this.works[work].acts += 1;
        let act = this.works[work].acts;
        self.at(at, Event::Act { process, work, act });
    }

    fn asked_to_stop(&mut self, process: usize, work: usize, force: bool) {
        let this = &self.processes[process].works[work];
        if this.ending || this.dropped || (this.stubborn && !force && !this.waits_for_ever()) {
            return;
        }
        self.end_early(process, work, State::Cancelled);
    }

    fn end_early(&mut self, process: usize, work: usize, end: State) {
        let id = self.processes[process].works[work].id;
        let this = &mut self.processes[process].works[work];
        this.ending = true;
        this.script = VecDeque::from([Act::Finish(end)]);
        if self.trees.contains_key(&id) {
            this.script.push_front(Act::TreeDown);
        }
        self.act_later(process, work, 0);
    }

    /// Does the next thing of a script.
    pub fn on_act(&mut self, process: usize, work: usize, act: u64) {
        if self.processes[process].works[work].acts != act {
            return;
        }
        let paused = self.processes[process].works[work].session.wants_pause();
        let Some(next) = self.processes[process].works[work].script.pop_front() else { return };
        self.trace(|| format!("P{process}.{work}: {next:?}"));
        if paused && matches!(next, Act::Log(_)) {
            self.processes[process].works[work].script.push_front(next);
            return self.act_later(process, work, 50 * MS);
        }
        if next == Act::Forever {
            self.processes[process].works[work].script.push_front(next);
            return;
        }
        self.do_act(process, work, &next);
        if !self.processes[process].works[work].script.is_empty() {
            self.act_later(process, work, 0);
        }
        self.settle_process(process);
    }

    fn do_act(&mut self, process: usize, work: usize, act: &Act) {
        let now = self.reading();
        let pid = self.processes[process].pid;
        let ticks = self.processes[process].start_ticks;
        let this = &mut self.processes[process].works[work];
        let id = this.id;
        let refused = match act {
            Act::TreeUp => {
                this.session.handle_tree(Tree { pgid: pid + 1_000, start_ticks: ticks }, now);
                self.trees.insert(id, process);
                self.ledger.tree_since.insert(id, self.now);
                Ok(())
            }
            Act::TreeDown => {
                this.session.handle_released(Vec::new(), now);
                self.trees.remove(&id);
                Ok(())
            }
            Act::Survivors => {
                this.session.handle_released(vec!["4711 daemon".to_owned()], now);
                Ok(())
            }
            Act::Started => this.session.emit(Kind::Started {}, now),
            Act::Log(lines) => {
                let text: String =
                    (0..*lines).map(|n| format!("line {n} at {}\n", self.now)).collect();
                let (at, lines) = (now.wall, *lines);
                let chunk = LogChunk { at, stream: Output::Stdout, lines, text: text.into() };
                this.session.emit_log(chunk, now)
            }
            Act::Progress(current) => {
                let kind = Kind::Progress { current: *current, total: Some(20), message: None };
                this.session.emit(kind, now)
            }
            Act::Step(ok) => {
                let (name, detail) = ("step".to_owned(), None);
                this.session.emit(Kind::StepCompleted { name, ok: *ok, detail }, now)
            }
            Act::Diagnostic => {
                let kind = Kind::Diagnostic {
                    severity: Severity::Info,
                    code: "note".to_owned(),
                    summary: "a finding".to_owned(),
                    detail: None,
                    suggestion: None,
                };
                this.session.emit(kind, now)
            }
            Act::Finish(end) => {
                this.ending = true;
                this.session.finish(end_of(*end, id), now).or_else(|_| {
                    // It was asked to stop before it had started, and had started since.
                    this.session.finish(end_of(State::Failed, id), now)
                })
            }
            Act::Forever => Ok(()),
        };
        if let Err(refused) = refused {
            self.ledger.fail("honest work is taken", format!("{id}: {act:?}: {refused}"));
        }
    }

    /// Writes one frame of a session, as the faults of the day have it.
    fn process_write(&mut self, process: usize, bytes: Bytes) {
        let this = &mut self.processes[process];
        let Some(conn) = this.conn else { return };
        let mut out = Vec::new();
        let calm = self.healing;
        if bytes[4] == kind::BATCH && !calm {
            let fence = u64::from_be_bytes(bytes[9..17].try_into().expect("eight bytes"));
            if fence > 1 && this.rng.chance(self.plan.ghost) {
                let mut ghost = BytesMut::from(&bytes[..]);
                ghost[9..17].copy_from_slice(&(fence - 1).to_be_bytes());
                out.push(ghost.freeze());
                this.ghosts = true;
            }
            if this.held.is_none() && this.rng.chance(self.plan.reorder) {
                this.held = Some(bytes);
            } else {
                if this.rng.chance(self.plan.duplicate) {
                    out.push(bytes.clone());
                }
                // What was overtaken comes late, or not at all: what follows tells of the gap.
                let lost = this.rng.chance(300);
                let follows = |held: &Bytes| bytes[17..25] > held[17..25];
                let late = this.held.take().filter(|held| !(lost && follows(held)));
                out.push(bytes.clone());
                out.extend(late);
            }
        } else {
            out.push(bytes);
            out.extend(this.held.take());
        }
        for bytes in out {
            self.write(conn, Way::Up, bytes);
        }
    }

    /// Checks what a session says once it has nothing to wait for.
    fn check_done(&mut self, process: usize, work: usize) {
        let this = &mut self.processes[process].works[work];
        if this.checked || this.dropped || !this.session.is_done() {
            return;
        }
        this.checked = true;
        let reported = this.session.reported();
        let (id, last) = (this.id, this.session.last());
        let error = this.session.snapshot().error.as_ref().map(|error| error.code);
        let state = this.session.snapshot().state;
        if reported == Reported::ToBroker {
            self.ledger.on_reported(id, state, last, error);
        } else if let Reported::Fenced(ended) = reported {
            self.ledger.on_reported_fenced(id, state, &ended);
        }
    }

    /// Says goodbye once everything is over.
    fn leave_if_done(&mut self, process: usize) {
        let trees = &self.trees;
        let this = &mut self.processes[process];
        let done = this
            .works
            .iter()
            .all(|work| work.dropped || (work.session.is_done() && work.script.is_empty()));
        let tree = this.works.iter().any(|work| trees.get(&work.id) == Some(&process));
        if !this.alive || this.leaving || !done || tree {
            return;
        }
        this.leaving = true;
        if let Some(conn) = this.conn {
            let mut out = BytesMut::new();
            frame::put_message(&mut out, kind::BYE, &Bye { reason: "done".to_owned() });
            self.write(conn, Way::Up, out.freeze());
        }
        let at = self.now + 1 + self.processes[process].rng.below(5 * MS);
        self.at(at, Event::ProcessExit { process });
    }

    /// Ends a process; `keep` says how much of what it had written arrives.
    pub fn end_process(&mut self, process: usize, keep: usize) {
        let this = &mut self.processes[process];
        if !this.alive {
            return;
        }
        this.alive = false;
        this.stopped_until = None;
        this.died_at = self.now;
        let conn = this.conn.take();
        let ids: Vec<_> = this.works.iter().map(|work| work.id).collect();
        let (launched, attached) = (this.launched, this.attached);
        if let Some(conn) = conn {
            self.close(conn, Way::Up, keep);
            self.close(conn, Way::Down, 0);
        }
        for id in &ids {
            if self.trees.get(id) == Some(&process) {
                let lives = self.processes[process].rng.below(3 * SECOND);
                let at = if self.processes[process].rng.chance(500) { lives } else { 0 };
                self.at(self.now + at, Event::TreeDies { id: *id });
            }
        }
        let life = self.broker.life;
        let watched: Vec<_> = self.broker.watched.iter().map(|(w, p)| (*w, *p)).collect();
        for (worker, owner) in watched {
            if owner == process {
                let at = self.now + 20 * MS + self.broker.rng.below(100 * MS);
                self.at(at, Event::Gone { life, worker });
            }
        }
        if launched == Some(life) && !attached {
            let at = self.now + 20 * MS + self.broker.rng.below(100 * MS);
            self.at(at, Event::LaunchDied { life, process });
        }
        self.at(self.now + 8 * SECOND, Event::CheckDead { life, process, since: self.calm_since });
    }

    pub fn on_launch_died(&mut self, process: usize) {
        if self.processes[process].attached {
            return;
        }
        let (id, attempt) = (self.processes[process].works[0].id, self.processes[process].attempt);
        let message = "it ended before it said anything".to_owned();
        self.post(Input::LaunchFailed { id, attempt, message });
    }
}

impl Work {
    fn waits_for_ever(&self) -> bool {
        self.script.front() == Some(&Act::Forever) || self.script.contains(&Act::Forever)
    }
}

/// The bounds of a session before it has met a broker, which are not the broker's.
fn session_limits(broker: &reeve_protocol::Limits) -> reeve_protocol::Limits {
    reeve_protocol::Limits {
        attach: broker.attach,
        reattach: broker.reattach,
        max_log_bytes: broker.max_log_bytes.max(600),
        ..reeve_protocol::Limits::default()
    }
}

fn end_of(state: State, id: ExecutionId) -> Kind {
    match state {
        State::Succeeded => Kind::Completed { output: serde_json::Value::Null, receipt: None },
        State::Cancelled => Kind::Cancelled { receipt: None },
        State::Queued | State::Running | State::Cancelling | State::Failed => Kind::Failed {
            error: Fault::new(Code::ExecutionFailed, "it failed").about(id),
            receipt: None,
        },
    }
}

fn show_effect(effect: &Effect) -> String {
    match effect {
        Effect::Send(bytes) if bytes[4] == kind::BATCH => {
            let batch = reeve_protocol::Batch::parse(bytes.slice(5..)).expect("a batch");
            format!("sends {}..{} {:?}", batch.first(), batch.last(), batch.fence())
        }
        Effect::Send(bytes) => format!("sends kind {}", bytes[4]),
        other => format!("{other:?}"),
    }
}
