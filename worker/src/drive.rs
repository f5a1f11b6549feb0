//! The drive: carries one call out, from its first event to its last acknowledgement.
//!
//! A shell around the session and the escalation: one loop that hands them what the work, the
//! broker, the person in front of it and the clock bring, and does what they ask. The rule: the
//! work is never slowed down or stopped because a broker is slow, stopped or gone, and nothing
//! of a process is left running; a handler that does not stop takes its process with it. What an
//! end means is decided in [`verdict`], not here.

mod call;
mod handling;
mod processing;
mod sampler;
#[cfg(test)]
mod tests;
pub mod verdict;

use std::ffi::OsString;
use std::time::Duration;

use reeve_protocol::event::Severity;
use reeve_protocol::peer::{self, Hello, Role};
use reeve_protocol::{Code, Fault, Kind, Now, Snapshot, State};
use rustix::process::Signal;
use serde_json::Value;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::mpsc;

pub use call::{Call, HandlerCall, ProcessCall, Work};

use crate::clock::Clock;
use crate::handler::Report;
use crate::link::{Discover, Link, LinkEvent};
use crate::process::{ChildOutput, Escalation, Exit, Member, Running, Spec, Tree};
use crate::scrub::Scrubber;
use crate::session::{self};
use crate::session::{Ended, Local, Notice, Reported, Session};
use handling::Handling;
use sampler::Sampler;
use verdict::Stop;

/// How often a tree that is ending is looked at, and a reader that takes nothing.
const LOOK: Duration = Duration::from_millis(20);
/// How long ago a wait may have ended that a signal to continue is about: what had come in the
/// meantime is sometimes seen before the signal.
const MOMENT: Duration = Duration::from_millis(500);
/// Who asks when a person interrupts.
const TERMINAL: &str = "terminal";
/// Processes that one diagnostic names.
const NAMED_MAX: usize = 10;

/// What connects a drive to whoever called it.
pub struct Hooks<'a> {
    /// Looks for the broker of the checkout.
    pub discover: Discover,
    /// Interrupts of a person: the first cancels, the second kills; once everything is over,
    /// another one leaves without waiting for the broker.
    pub interrupts: mpsc::UnboundedReceiver<()>,
    /// Takes every numbered fact, in order, as it happens.
    pub on_local: Box<dyn FnMut(Local) + 'a>,
    /// Takes what a person should know, each at most once.
    pub on_notice: Box<dyn FnMut(Notice) + 'a>,
    /// Says whether output should stay unread for now, as whoever shows it has enough. Looked at
    /// again and again; once the process is asked to stop, it is read to its end all the same.
    pub paused: Box<dyn Fn() -> bool + 'a>,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The final state, as this process saw it.
    pub state: State,
    /// How its first process ended, if it ran and ended.
    pub exit: Option<Exit>,
    /// Why it failed.
    pub error: Option<Fault>,
    /// What it returned.
    pub output: Option<Value>,
    /// Where the reports went.
    pub reported: Reported,
    /// The fold of everything that was numbered here.
    pub snapshot: Snapshot,
    /// Whether something of its tree could not be ended.
    pub survived: bool,
    /// Whether a handler that ignored its flag still runs in this process: it is good for nothing
    /// else any more and has to end.
    pub abandoned: bool,
}

/// Runs one call to its end, on a current-thread runtime with time and I/O.
pub async fn run(call: Call, hooks: Hooks<'_>) -> Outcome {
    let clock = Clock::start();
    let Hooks { discover, interrupts, on_local, on_notice, paused } = hooks;
    let in_sight = discover().is_some();
    let link = Link::start(discover, hello(&call), call.seed);
    let mut session = Session::new(call.execution, call.description.clone(), call.limits.clone());
    if call.bound {
        session.start_bound(clock.now());
    } else {
        session.start(in_sight, clock.now());
    }
    let mut drive = Drive {
        clock,
        session,
        link,
        on_local,
        on_notice,
        paused,
        interrupts: Interrupts { rx: interrupts, count: 0, impatient: false },
        phase: Phase::Waiting,
        escalation: Escalation::new(),
        stop: Stop::No,
        by_now: None,
        sampler: Sampler::new(),
        exit: None,
        survived: false,
        output: None,
        ended: None,
        abandoned: false,
        continued: signal(SignalKind::from_raw(Signal::CONT.as_raw())).ok(),
        wait: Wait::default(),
        scrubber: Scrubber::new(&call.secrets),
        call,
    };
    while drive.turn().await {}
    drive.leave().await
}

fn hello(call: &Call) -> Hello {
    let pid = std::process::id();
    let own = i32::try_from(pid).ok().and_then(Member::of);
    Hello {
        proto: peer::PROTO,
        role: Role::Worker,
        name: call.role.clone(),
        pid,
        start_ticks: own.map_or(0, |own| own.start_ticks),
        build: call.build.clone(),
        instance: None,
    }
}

struct Drive<'a> {
    call: Call,
    clock: Clock,
    session: Session,
    link: Link,
    on_local: Box<dyn FnMut(Local) + 'a>,
    on_notice: Box<dyn FnMut(Notice) + 'a>,
    paused: Box<dyn Fn() -> bool + 'a>,
    interrupts: Interrupts,
    phase: Phase,
    escalation: Escalation,
    stop: Stop,
    /// Until when the work may run.
    by_now: Option<Duration>,
    sampler: Sampler,
    exit: Option<Exit>,
    /// Whether something of its tree could not be ended.
    survived: bool,
    output: Option<Value>,
    /// How the execution was ended before this worker began.
    ended: Option<Ended>,
    /// Whether a handler is waited for no longer.
    abandoned: bool,
    /// Tells that this process continued after a signal had stopped it.
    continued: Option<Signals>,
    /// Takes the secrets out of what is reported.
    scrubber: Scrubber,
    /// The longest wait that ended a moment ago: where a stop was in it, it hid there.
    wait: Wait,
}

/// One wait of the drive.
#[derive(Clone, Copy, Default)]
struct Wait {
    from: Now,
    to: Duration,
}

impl Wait {
    fn length(&self) -> Duration {
        self.to.saturating_sub(self.from.mono)
    }
}

struct Interrupts {
    rx: mpsc::UnboundedReceiver<()>,
    count: u32,
    /// Whether one came after everything was over.
    impatient: bool,
}

/// Where the work stands.
enum Phase {
    /// It may not begin yet.
    Waiting,
    /// `started` is written; the work comes next.
    Entered(Box<Entry>),
    /// A process runs.
    Running(Box<Running>),
    /// Its first process has ended; others of its tree may use the rest of their grace.
    Ending { tree: Tree, until: Duration, look_at: Duration },
    /// A handler runs.
    Handling(Handling),
    /// Nothing runs any more, or is waited for.
    Over,
}

/// Work that passed every check.
enum Entry {
    /// A process, and the program as its capability names it.
    Process(Spec, OsString),
    /// A handler.
    Handler(HandlerCall),
}

/// What woke the drive.
enum Woken {
    Link(LinkEvent),
    Child(Option<ChildOutput>),
    Reports(Vec<Report>),
    Interrupt,
    Continued,
    Timer,
}

impl Drive<'_> {
    /// Does what is asked and waits for the next thing; returns whether more is to come.
    async fn turn(&mut self) -> bool {
        self.perform();
        if matches!(self.phase, Phase::Entered(_)) {
            // The word of it goes out before the deed.
            tokio::task::yield_now().await;
            self.go();
            self.perform();
        }
        if self.is_done() {
            return false;
        }
        let before = self.clock.now();
        let woken = self.wake().await;
        let now = self.clock.now();
        let wait = Wait { from: before, to: now.mono };
        if wait.length() >= self.wait.length() || now.mono > self.wait.to + MOMENT {
            self.wait = wait;
        }
        match woken {
            Woken::Link(event) => self.on_link(event, now),
            Woken::Child(Some(output)) => self.on_child(output, now),
            Woken::Child(None) => self.on_end(now).await,
            Woken::Reports(reports) => self.on_reports(reports, now),
            Woken::Interrupt => self.on_interrupt(now),
            Woken::Continued => self.on_continued(now),
            Woken::Timer => {}
        }
        self.on_time(self.clock.now()).await;
        true
    }

    /// Tells everybody who watches why nothing came for a while.
    fn on_continued(&mut self, now: Now) {
        let suspended_ms = u64::try_from(self.wait.length().as_millis()).unwrap_or(u64::MAX);
        for kind in [Kind::Suspended { at: self.wait.from.wall }, Kind::Resumed { suspended_ms }] {
            if let Err(refused) = self.session.emit(kind, now) {
                tracing::debug!(%refused, "it continued while nothing ran");
            }
        }
    }

    async fn wake(&mut self) -> Woken {
        let running = matches!(self.phase, Phase::Running(_) | Phase::Handling(_));
        let shown_later = running && self.stop == Stop::No && (self.paused)();
        let again = shown_later.then(|| self.clock.now().mono + LOOK);
        let deadline = self.deadline().into_iter().chain(again).min();
        let deadline = deadline.map(|at| self.clock.instant(at));
        let paused = shown_later || self.session.wants_pause();
        let timer = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let continued = async {
            match &mut self.continued {
                Some(signals) => signals.recv().await,
                None => std::future::pending().await,
            }
        };
        let work = async {
            match &mut self.phase {
                Phase::Running(running) if !paused => Woken::Child(running.next().await),
                Phase::Handling(handling) if !paused => Woken::Reports(handling.next().await),
                Phase::Waiting
                | Phase::Entered(_)
                | Phase::Running(_)
                | Phase::Handling(_)
                | Phase::Ending { .. }
                | Phase::Over => std::future::pending().await,
            }
        };
        tokio::select! {
            () = timer => Woken::Timer,
            event = self.link.next() => Woken::Link(event),
            Some(()) = self.interrupts.rx.recv() => Woken::Interrupt,
            Some(()) = continued => Woken::Continued,
            woken = work => woken,
        }
    }

    fn deadline(&self) -> Option<Duration> {
        let of_work = match &self.phase {
            Phase::Running(_) => {
                [self.by_now, self.escalation.poll_timeout(), Some(self.sampler.due())]
            }
            Phase::Handling(handling) => [self.by_now, handling.give_up_at(), None],
            Phase::Ending { look_at, .. } => [Some(*look_at), None, None],
            Phase::Waiting | Phase::Entered(_) | Phase::Over => [None; 3],
        };
        of_work.into_iter().chain([self.session.poll_timeout()]).flatten().min()
    }

    fn is_done(&self) -> bool {
        let over = matches!(self.phase, Phase::Over);
        self.ended.is_some() || over && (self.session.is_done() || self.interrupts.impatient)
    }

    /// Does what the session asks for.
    fn perform(&mut self) {
        loop {
            while let Some(local) = self.session.poll_local() {
                (self.on_local)(local);
            }
            let Some(effect) = self.session.poll_effect() else { return };
            match effect {
                session::Effect::Send(bytes) => self.link.send(bytes),
                session::Effect::Disconnect { reason } => self.link.disconnect(&reason),
                session::Effect::Notice(notice) => (self.on_notice)(notice),
                session::Effect::Begin => self.begin(),
                session::Effect::Cancel { force, .. } => self.on_cancel(force),
                session::Effect::Fenced(ended) => {
                    if matches!(self.phase, Phase::Waiting | Phase::Entered(_)) {
                        self.phase = Phase::Over;
                        self.ended = Some(ended);
                    }
                }
            }
        }
    }

    /// Enters the work: what cannot run is refused before, and nothing has happened then.
    fn begin(&mut self) {
        if !matches!(self.phase, Phase::Waiting) {
            return;
        }
        let entry = match &self.call.work {
            Work::Process(process) => {
                self.spec(process).map(|(spec, declared)| Entry::Process(spec, declared))
            }
            Work::Handler(handler) => Ok(Entry::Handler(handler.clone())),
        };
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return self.finish(Kind::Failed { error: *error, receipt: None }),
        };
        match self.session.emit(Kind::Started {}, self.clock.now()) {
            Ok(()) => self.phase = Phase::Entered(Box::new(entry)),
            Err(refused) => {
                let error = Fault::new(Code::Internal, refused.to_string());
                let error = error.about(self.call.execution);
                self.finish(Kind::Failed { error, receipt: None });
            }
        }
    }

    /// Does what was entered.
    fn go(&mut self) {
        let Phase::Entered(entry) = std::mem::replace(&mut self.phase, Phase::Over) else { return };
        match *entry {
            Entry::Process(spec, declared) => self.launch(spec, &declared),
            Entry::Handler(call) => self.enter(call),
        }
    }

    fn on_link(&mut self, event: LinkEvent, now: Now) {
        match event {
            LinkEvent::Connected => self.session.handle_connected(now),
            LinkEvent::Frame { kind, body } => self.session.handle_frame(kind, &body, now),
            LinkEvent::Disconnected => self.session.handle_disconnected(now),
            LinkEvent::Unreachable => self.session.handle_unreachable(now),
        }
    }

    fn on_interrupt(&mut self, now: Now) {
        self.interrupts.count += 1;
        self.interrupts.impatient |= matches!(self.phase, Phase::Over);
        self.session.handle_cancel(TERMINAL, self.interrupts.count > 1, now);
    }

    fn on_cancel(&mut self, force: bool) {
        let now = self.clock.now().mono;
        let grace = if force { Duration::ZERO } else { self.call.work.grace() };
        match &mut self.phase {
            Phase::Waiting | Phase::Entered(_) => self.finish(Kind::Cancelled { receipt: None }),
            // Declared to be of no use: the wish is on record, and only force goes against it.
            Phase::Running(_) | Phase::Ending { .. }
                if !force && !self.call.description.cancellable => {}
            Phase::Running(_) => {
                self.stop = self.stop.or(Stop::Cancelled);
                self.escalation.handle_cancel(now, grace);
            }
            Phase::Ending { until, .. } => *until = (*until).min(now + grace),
            Phase::Handling(handling) => {
                self.stop = self.stop.or(Stop::Cancelled);
                handling.ask_to_stop(now, grace);
            }
            Phase::Over => {}
        }
    }

    /// Does what is due.
    async fn on_time(&mut self, now: Now) {
        self.session.handle_timeout(now);
        if let Phase::Running(running) = &mut self.phase {
            if self.sampler.due() <= now.mono
                && let Some(kind) = self.sampler.sample(running.tree().usage(), now.mono)
            {
                self.note(|session| session.emit(kind, now));
            }
            if self.by_now.is_some_and(|at| at <= now.mono) {
                self.by_now = None;
                self.stop = self.stop.or(Stop::TimedOut);
                self.escalation.handle_cancel(now.mono, self.call.work.grace());
            }
            self.escalation.handle_timeout(now.mono);
            self.escalate(now).await;
        }
        self.on_handler_time(now);
        if let Phase::Ending { look_at, .. } = &self.phase
            && *look_at <= now.mono
        {
            self.on_look(now).await;
        }
    }

    fn finish(&mut self, kind: Kind) {
        self.phase = Phase::Over;
        let kind = self.scrubber.kind(kind);
        if let Kind::Completed { output, .. } = &kind {
            self.output = Some(output.clone());
        }
        let now = self.clock.now();
        self.note(|session| session.finish(kind, now));
    }

    fn diagnose(&mut self, code: &str, summary: String, now: Now) {
        let kind = Kind::Diagnostic {
            severity: Severity::Warning,
            code: code.to_owned(),
            summary,
            detail: None,
            suggestion: None,
        };
        let kind = self.scrubber.kind(kind);
        self.note(|session| session.emit(kind, now));
    }

    /// Reports something; what may not follow is left out.
    fn note<E: std::fmt::Display>(&mut self, report: impl FnOnce(&mut Session) -> Result<(), E>) {
        if let Err(error) = report(&mut self.session) {
            tracing::debug!(%error, "something is not reported");
        }
    }

    /// Says goodbye and returns how it went.
    async fn leave(self) -> Outcome {
        let reported = self.session.reported();
        let (state, error) = match self.ended {
            Some(ended) => (ended.state, ended.error),
            None => (self.session.state(), self.session.error()),
        };
        let output = self.output.filter(|_| state == State::Succeeded);
        let snapshot = self.session.snapshot().clone();
        self.link.close("done").await;
        let (survived, abandoned) = (self.survived, self.abandoned);
        Outcome { state, exit: self.exit, error, output, reported, snapshot, survived, abandoned }
    }
}
