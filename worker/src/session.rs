//! One execution's reporting: numbers every event, and brings all of them to a broker.
//!
//! Owns the numbering, the history and the conversation about one execution. The rule: a fact
//! gets its position once and keeps it, whoever is or is not there to take it; a broker is
//! brought up to date from the history, and work never waits for one that does not answer.
//! Knows no clock, no I/O, no process and no random number: the same code runs in the drive of
//! a real process and in simulation.

mod broker_frame;
mod conversation;
mod fit;
mod history;
mod outbox;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reeve_protocol::peer::{self, Tree};
use reeve_protocol::snapshot::{Description, Refused};
use reeve_protocol::{
    Class, Code, Entry, ExecutionId, Fault, Fence, Handle, Kind, Limits, LogChunk, Now, Seq,
    SideEffect, Snapshot, Stamped, State,
};

pub use broker_frame::FromBroker;
use history::History;
pub use outbox::BATCH_MAX;
use outbox::Outbox;

/// Bytes of batches on their way without an acknowledgement, at most.
pub const WINDOW: u64 = 4 << 20;
/// Bytes without an acknowledgement above which output is not read while the broker keeps up.
pub const PAUSE_ABOVE: u64 = 4 << 20;
/// How long a broker may acknowledge nothing and still slow the work down.
pub const KEEPS_UP: Duration = Duration::from_millis(250);
/// The shortest time between two coalesced events of one kind.
const PACE: Duration = Duration::from_millis(100);
/// How long the end waits for a broker that makes no progress.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a cut connection goes unmentioned.
const UNMENTIONED: Duration = Duration::from_secs(1);
/// The shortest time between two resends from the same position.
const REWIND_PACE: Duration = Duration::from_millis(100);

/// What a session asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Hand this frame to the connection.
    Send(Bytes),
    /// Close the connection: the broker broke the protocol.
    Disconnect {
        /// How.
        reason: String,
    },
    /// The session is the writer: the work may begin.
    Begin,
    /// Stop the work.
    Cancel {
        /// Who asks.
        by: String,
        /// Whether to kill at once.
        force: bool,
    },
    /// The execution was ended without this worker; if nothing has begun, nothing may.
    Fenced(Ended),
    /// Tell the person in front of it.
    Notice(Notice),
}

/// How an execution that was taken from its worker stands for everybody else.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Its state.
    pub state: State,
    /// The last position of its history.
    pub last: Seq,
    /// Why it ended.
    pub error: Option<Fault>,
}

/// What a person should know about the broker; each is said once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// No broker serves this checkout.
    Alone,
    /// The broker stopped answering; work goes on.
    Quiet,
    /// The broker does not take this execution.
    Unwatched,
    /// A broker has taken the execution up again.
    Reattached,
    /// The work may not begin yet, and why.
    Waits(String),
}

impl Notice {
    /// Returns the sentence for people.
    pub fn text(&self) -> Cow<'static, str> {
        let text = match self {
            Self::Waits(detail) => return format!("waits: {detail}").into(),
            Self::Alone => {
                "no broker serves this checkout, so this execution is visible to this process only"
            }
            Self::Quiet => "the broker stopped answering; the work goes on and is reported later",
            Self::Unwatched => {
                "the broker takes no further execution; this one runs on without being watched"
            }
            Self::Reattached => "re-attached to the broker",
        };
        text.into()
    }
}

/// One numbered fact, for whoever watches in this process.
#[derive(Clone, Debug, PartialEq)]
pub struct Local {
    /// Its first position; absent once the execution was taken from this worker.
    pub seq: Option<Seq>,
    /// What it is.
    pub entry: Entry,
}

/// Where the reports went.
#[derive(Clone, Debug, PartialEq)]
pub enum Reported {
    /// A broker has acknowledged all of them.
    ToBroker,
    /// This process alone has all of them.
    Alone,
    /// The execution was ended without this worker.
    Fenced(Ended),
}

/// The reporting of one execution.
pub struct Session {
    id: ExecutionId,
    description: Description,
    limits: Limits,
    /// The last readings of the clocks that came in.
    now: Now,
    snapshot: Snapshot,
    /// The last position that was given out.
    last: Seq,
    history: History,
    outbox: Outbox,
    progress: Paced,
    resources: Paced,
    local: VecDeque<Local>,
    effects: VecDeque<Effect>,
    /// Whether this session is or was the writer.
    begun: bool,
    /// Whether its work may begin only once a broker has granted it.
    bound: bool,
    finished_at: Option<Duration>,
    cancel: Asked,
    tree: Option<Tree>,
    released: Option<Vec<String>>,
    peer: Peer,
    fenced: Option<Ended>,
    late: Late,
    /// How it failed after it had been taken away.
    own_error: Option<Fault>,
    said: Said,
}

/// A kind of which only the last value counts.
#[derive(Default)]
struct Paced {
    waiting: Option<Kind>,
    at: Option<Duration>,
}

impl Paced {
    fn due(&self) -> Option<Duration> {
        self.waiting.as_ref()?;
        Some(self.at.map_or(Duration::ZERO, |at| at + PACE))
    }
}

/// What was asked of the execution so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Asked {
    Nothing,
    Cancel,
    Kill,
}

/// The conversation with a broker.
struct Peer {
    standing: Standing,
    fence: Option<Fence>,
    handle: Handle,
    /// Until when the first broker may answer before the session goes on by itself.
    answer_by: Option<Duration>,
    /// Whether it let that time pass.
    unanswered: bool,
    /// The last position that was sent on this connection.
    sent: Seq,
    acked: Seq,
    /// The bytes up to `acked`.
    acked_offset: u64,
    flight: VecDeque<(Seq, u64)>,
    flight_bytes: u64,
    /// When an acknowledgement last told something new.
    progress_at: Duration,
    /// Since when nobody takes what there is.
    quiet_since: Option<Duration>,
    heartbeat_at: Option<Duration>,
    rewound: Option<(Seq, Duration)>,
    rewind_again: Option<(Seq, Duration)>,
    disconnected_at: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Offline,
    /// Connected; the broker has not said what it is.
    Greeting,
    /// The execution was offered.
    Offered,
    /// The broker knows it.
    Waiting,
    /// This session is the writer.
    Granted,
    /// The broker has closed the book on it.
    Fenced,
    /// Nothing more is said about it on this connection.
    Closed,
}

/// The report of a worker whose execution was ended without it.
#[derive(Default)]
struct Late {
    outcome: Option<(State, String)>,
    events: u64,
    sent: bool,
}

/// Which notices were given.
#[derive(Default)]
struct Said {
    alone: bool,
    quiet: bool,
    unwatched: bool,
    reattached: bool,
    waits: String,
}

impl Session {
    /// Makes the session of one execution; nothing is said or written before [`Session::start`].
    pub fn new(id: ExecutionId, description: Description, limits: Limits) -> Self {
        let description = fit::description(id, description, &limits);
        let snapshot = Snapshot::new(id, &description, reeve_protocol::Timestamp::default());
        Self {
            id,
            snapshot,
            description,
            now: Now::default(),
            last: Seq::NONE,
            history: History::new(limits.max_log_bytes, limits.max_events),
            limits,
            outbox: Outbox::new(),
            progress: Paced::default(),
            resources: Paced::default(),
            local: VecDeque::new(),
            effects: VecDeque::new(),
            begun: false,
            bound: false,
            finished_at: None,
            cancel: Asked::Nothing,
            tree: None,
            released: None,
            peer: Peer::new(),
            fenced: None,
            late: Late::default(),
            own_error: None,
            said: Said::default(),
        }
    }

    /// Begins: with a broker in sight it waits for its answer, without one it is the writer.
    pub fn start(&mut self, broker_in_sight: bool, now: Now) {
        self.now = now;
        if broker_in_sight {
            self.peer.answer_by = Some(now.mono + self.limits.attach);
        } else {
            self.notice(Notice::Alone);
            self.begin_alone();
        }
    }

    /// Begins as a worker of a broker's own: without that broker's grant nothing may begin, and
    /// where none comes the session is fenced.
    pub fn start_bound(&mut self, now: Now) {
        self.now = now;
        self.bound = true;
        self.peer.answer_by = Some(now.mono + self.limits.attach);
    }

    /// Numbers an event, or holds it back where only the last value of its kind counts.
    ///
    /// # Errors
    ///
    /// [`Refused`] when it may not follow; it then takes no position.
    pub fn emit(&mut self, kind: Kind, now: Now) -> Result<(), Refused> {
        self.now = now;
        if let Kind::Log { stream, message, cut } = &kind {
            return self.emit_log(fit::line(*stream, message, *cut, now), now);
        }
        self.may_write()?;
        self.snapshot.admits(&kind)?;
        if kind.is_info() {
            let paced = self.paced(&kind);
            let early = paced.at.is_some_and(|at| now.mono < at + PACE);
            paced.waiting = Some(kind);
            if !early {
                self.release_paced(|due| due <= now.mono);
            }
        } else {
            self.release_paced(|_| true);
            self.number(kind)?;
        }
        self.pump();
        Ok(())
    }

    /// Numbers lines of output.
    ///
    /// # Errors
    ///
    /// [`Refused`] when nothing runs.
    pub fn emit_log(&mut self, chunk: LogChunk, now: Now) -> Result<(), Refused> {
        self.now = now;
        self.may_write()?;
        for chunk in outbox::divide(chunk) {
            self.snapshot.fold_log(&chunk)?;
            let lines = u64::from(chunk.lines);
            if let Some(first) = self.position(lines, Entry::Log(chunk.clone())) {
                let payload = outbox::payload_of(&chunk);
                self.make_room(Class::Bytes, payload);
                self.outbox.log(first, &chunk, now.mono);
            }
        }
        self.pump();
        Ok(())
    }

    /// Numbers the final event; afterwards [`Session::is_done`] says when to leave.
    ///
    /// Before a grant it makes the session its own writer: an execution that never began can end.
    ///
    /// # Errors
    ///
    /// [`Refused`] when the event is not a legal end.
    pub fn finish(&mut self, kind: Kind, now: Now) -> Result<(), Refused> {
        self.now = now;
        let outcome = (kind.moves_to().unwrap_or_default(), kind.summary());
        if !self.begun && self.fenced.is_none() {
            self.begin_alone();
            self.effects.retain(|effect| *effect != Effect::Begin);
        }
        if self.fenced.is_some() {
            self.finished_at.get_or_insert(now.mono);
            if let Kind::Failed { error, .. } = &kind {
                self.own_error = Some(error.clone());
            }
            let stamped = Stamped { at: now.wall, kind };
            self.local.push_back(Local { seq: None, entry: Entry::Event(stamped) });
            self.late(outcome);
            return Ok(());
        }
        self.emit(kind, now)?;
        self.finished_at.get_or_insert(now.mono);
        Ok(())
    }

    /// Takes a request to stop from this process; the same way as one from the broker.
    pub fn handle_cancel(&mut self, by: &str, force: bool, now: Now) {
        self.now = now;
        self.on_cancel(by, force);
        self.pump();
    }

    /// Takes the process tree that runs from now on.
    pub fn handle_tree(&mut self, tree: Tree, now: Now) {
        self.now = now;
        self.tree = Some(tree);
        if self.peer.standing == Standing::Granted {
            self.say_tree();
        }
    }

    /// Takes the end of the process tree, with the processes that nothing could end.
    pub fn handle_released(&mut self, survivors: Vec<String>, now: Now) {
        self.now = now;
        if survivors.is_empty() {
            self.tree = None;
        }
        self.released = Some(survivors);
        if matches!(self.peer.standing, Standing::Granted | Standing::Fenced) {
            self.say_released();
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Now) {
        self.now = now;
        if self.peer.answer_by.is_some_and(|by| by <= now.mono) {
            self.peer.unanswered = true;
            self.notice(Notice::Quiet);
            self.begin_alone();
        }
        self.release_paced(|due| due <= now.mono);
        if self.outbox.since().is_some_and(|since| since + self.limits.linger <= now.mono) {
            self.flush();
        }
        self.on_peer_timeout();
        self.pump();
    }

    /// Returns the next thing to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the next numbered fact, in order.
    pub fn poll_local(&mut self) -> Option<Local> {
        self.local.pop_front()
    }

    /// Returns the monotonic reading at which [`Session::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let later = |at: &Duration| *at > self.now.mono;
        let linger = self.outbox.since().map(|since| since + self.limits.linger);
        [
            self.peer.answer_by,
            linger,
            self.progress.due(),
            self.resources.due(),
            self.peer.heartbeat_at,
            self.peer.rewind_again.map(|(_, at)| at),
            self.quiet_at(),
            self.full_peer().then(|| self.peer.progress_at + KEEPS_UP).filter(later),
            self.patience_until().filter(later),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Returns whether output should not be read for now: the broker keeps up, but not so fast.
    pub fn wants_pause(&self) -> bool {
        self.full_peer() && self.now.mono < self.peer.progress_at + KEEPS_UP
    }

    /// Returns whether nothing is left to wait for.
    pub fn is_done(&self) -> bool {
        if self.finished_at.is_none() {
            return false;
        }
        let told = if self.fenced.is_some() { self.late.sent } else { self.all_acked() };
        told || self.patience_until().is_none_or(|until| until <= self.now.mono)
    }

    /// Returns where the reports went.
    pub fn reported(&self) -> Reported {
        match &self.fenced {
            Some(ended) => Reported::Fenced(ended.clone()),
            None if self.all_acked() => Reported::ToBroker,
            None => Reported::Alone,
        }
    }

    /// Returns the execution's name.
    pub fn id(&self) -> ExecutionId {
        self.id
    }

    /// Returns the fold of everything that was numbered here.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Returns the state; after a fence still as this worker sees it.
    pub fn state(&self) -> State {
        self.late.outcome.as_ref().map_or(self.snapshot.state, |(state, _)| *state)
    }

    /// Returns why it failed, as this worker sees it.
    pub fn error(&self) -> Option<Fault> {
        self.own_error.clone().or_else(|| self.snapshot.error.clone())
    }

    /// Returns the right that a broker has granted, if one has.
    pub fn fence(&self) -> Option<Fence> {
        self.peer.fence
    }

    /// Returns the last position that was given out.
    pub fn last(&self) -> Seq {
        self.last
    }

    /// Returns the last position that a broker has acknowledged.
    pub fn acked(&self) -> Seq {
        self.peer.acked
    }

    fn all_acked(&self) -> bool {
        self.peer.fence.is_some() && self.last != Seq::NONE && self.peer.acked >= self.last
    }

    /// Becomes the writer without a broker; tells one that is there.
    fn begin_alone(&mut self) {
        self.peer.answer_by = None;
        if self.begun || self.fenced.is_some() {
            return;
        }
        if self.bound {
            return self.give_up();
        }
        self.begun = true;
        let Description { capability, title, input, .. } = self.description.clone();
        self.number(Kind::Created { capability, title, input }).expect("it is the first event");
        self.number(Kind::Queued { ahead: 0 }).expect("it follows the first event");
        self.effects.push_back(Effect::Begin);
        if matches!(self.peer.standing, Standing::Offered | Standing::Waiting) {
            self.offer();
        }
    }

    /// Lets go of an execution that no broker has granted; nothing has begun.
    fn give_up(&mut self) {
        let error = Fault::new(Code::Unavailable, "the broker did not grant this execution")
            .with_effect(SideEffect::None)
            .about(self.id);
        let ended = Ended { state: State::Queued, last: Seq::NONE, error: Some(error) };
        self.fenced = Some(ended.clone());
        self.effects.push_back(Effect::Fenced(ended));
    }

    fn may_write(&self) -> Result<(), Refused> {
        if self.begun { Ok(()) } else { Err(Refused::Early(State::Queued)) }
    }

    fn paced(&mut self, kind: &Kind) -> &mut Paced {
        if matches!(kind, Kind::Progress { .. }) { &mut self.progress } else { &mut self.resources }
    }

    /// Numbers the held back values whose time `is_due`.
    fn release_paced(&mut self, is_due: impl Fn(Duration) -> bool) {
        let now = self.now.mono;
        let release = |paced: &mut Paced| {
            if !paced.due().is_some_and(&is_due) {
                return None;
            }
            paced.at = Some(now);
            paced.waiting.take()
        };
        let waiting = [release(&mut self.progress), release(&mut self.resources)];
        for kind in waiting.into_iter().flatten() {
            if self.number(kind).is_err() {
                tracing::trace!("a held back value came after the end");
            }
        }
    }

    fn number(&mut self, kind: Kind) -> Result<(), Refused> {
        let is_state = kind.moves_to().is_some();
        let stamped = fit::event(self.id, Stamped { at: self.now.wall, kind }, &self.limits);
        self.snapshot.fold(&stamped, &self.limits)?;
        if let Some(seq) = self.position(1, Entry::Event(stamped.clone())) {
            let size = reeve_protocol::frame::encode(&stamped).len();
            self.make_room(Class::Events, size);
            self.outbox.event(seq, &stamped, self.now.mono);
        }
        if is_state {
            self.flush();
        }
        Ok(())
    }

    /// Gives out positions; none once the execution was taken away.
    fn position(&mut self, count: u64, entry: Entry) -> Option<Seq> {
        if self.fenced.is_some() {
            self.late.events += count;
            self.local.push_back(Local { seq: None, entry });
            return None;
        }
        let first = self.last.next();
        self.last = self.last.plus(count);
        self.local.push_back(Local { seq: Some(first), entry });
        Some(first)
    }

    fn make_room(&mut self, class: Class, payload: usize) {
        if let Some(batch) = self.outbox.make_room(class, payload, self.limits.max_batch_events) {
            self.history.push(batch);
        }
    }

    fn flush(&mut self) {
        if let Some(batch) = self.outbox.take() {
            self.history.push(batch);
        }
    }

    fn notice(&mut self, notice: Notice) {
        let said = match notice {
            Notice::Alone => &mut self.said.alone,
            Notice::Quiet => &mut self.said.quiet,
            Notice::Unwatched => &mut self.said.unwatched,
            Notice::Reattached => &mut self.said.reattached,
            Notice::Waits(detail) => {
                if self.said.waits != detail {
                    self.said.waits.clone_from(&detail);
                    self.effects.push_back(Effect::Notice(Notice::Waits(detail)));
                }
                return;
            }
        };
        if !std::mem::replace(said, true) {
            self.effects.push_back(Effect::Notice(notice));
        }
    }

    fn send<T: serde::Serialize>(&mut self, kind: u8, message: &T) {
        let mut frame = BytesMut::new();
        reeve_protocol::frame::put_message(&mut frame, kind, message);
        self.effects.push_back(Effect::Send(frame.freeze()));
    }

    fn say_tree(&mut self) {
        if let Some(tree) = self.tree {
            let message = peer::TreeStarted { execution: self.id, tree };
            self.send(peer::kind::TREE, &message);
        }
    }

    fn say_released(&mut self) {
        if let Some(survivors) = self.released.clone() {
            let message = peer::Released { execution: self.id, survivors };
            self.send(peer::kind::RELEASED, &message);
        }
    }
}
