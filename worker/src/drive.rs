//! The drive: carries one process call out, from its first event to its last acknowledgement.
//!
//! A shell around the session and the escalation: one loop that hands them what the process, the
//! broker, the person in front of it and the clock bring, and does what they ask. The rule: the
//! process is never slowed down or stopped because a broker is slow, stopped or gone, and nothing
//! of it is left running. What an end means is decided in [`verdict`], not here.

mod sampler;
#[cfg(test)]
mod tests;
pub mod verdict;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use reeve_protocol::event::{ChildEvent, Severity};
use reeve_protocol::peer::{self, Hello, Role};
use reeve_protocol::secret::Secret;
use reeve_protocol::snapshot::Description;
use reeve_protocol::{Code, ExecutionId, Fault, Kind, Limits, Now, Snapshot, State};
use rustix::process::Signal;
use serde_json::Value;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::mpsc;

use crate::clock::{self, Clock};
use crate::link::{Discover, Link, LinkEvent};
use crate::process::env::{self, Mark};
use crate::process::escalate::{self, Ask, Escalation};
use crate::process::{
    ChildOutput, Exit, Member, OutputMode, Running, Spec, StdinSource, Tree, resolve_program,
};
use crate::scrub::Scrubber;
use crate::session::{self};
use crate::session::{Ended, Local, Notice, Reported, Session};
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

/// One call of a process capability.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its name, minted by the caller.
    pub execution: ExecutionId,
    /// What it is.
    pub description: Description,
    /// What is run.
    pub process: ProcessCall,
    /// The bounds until a broker says its own.
    pub limits: Limits,
    /// What kind of worker this is: `run`, `exec`, `pool`.
    pub role: String,
    /// The version of this program.
    pub build: String,
    /// Spreads the attempts to reach a broker.
    pub seed: u64,
    /// What is taken out of everything that is reported.
    pub secrets: Vec<Secret>,
}

/// What a process call runs.
#[derive(Clone, Debug)]
pub struct ProcessCall {
    /// The program, as its capability names it.
    pub program: OsString,
    /// The arguments after `argv[0]`.
    pub args: Vec<OsString>,
    /// The directory it starts in, absolute.
    pub cwd: PathBuf,
    /// The root of the checkout.
    pub checkout: PathBuf,
    /// The variables of the caller.
    pub env_caller: Vec<(OsString, OsString)>,
    /// Which of them are taken over, beside the base set; `*` alone takes all.
    pub env_allow: Vec<String>,
    /// Variables that are set.
    pub env_set: BTreeMap<String, String>,
    /// What it reads on its standard input.
    pub stdin: StdinSource,
    /// Where its output goes.
    pub output: OutputMode,
    /// Whether it gets a descriptor for events.
    pub events: bool,
    /// Our own executable, needed for a terminal only.
    pub launcher: Option<PathBuf>,
    /// Whether to give it a cgroup, where one can be made.
    pub cgroup: bool,
    /// How long after SIGTERM its tree is killed.
    pub grace: Duration,
    /// How long it may run.
    pub timeout: Option<Duration>,
}

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
}

/// Runs one call to its end, on a current-thread runtime with time and I/O.
pub async fn run(call: Call, hooks: Hooks<'_>) -> Outcome {
    let clock = Clock::start();
    let Hooks { discover, interrupts, on_local, on_notice, paused } = hooks;
    let in_sight = discover().is_some();
    let link = Link::start(discover, hello(&call), call.seed);
    let mut session = Session::new(call.execution, call.description.clone(), call.limits.clone());
    session.start(in_sight, clock.now());
    let mut drive = Drive {
        clock,
        session,
        link,
        on_local,
        on_notice,
        paused,
        interrupts: Interrupts { rx: interrupts, count: 0, impatient: false },
        work: Work::Waiting,
        escalation: Escalation::new(),
        stop: Stop::No,
        by_now: None,
        sampler: Sampler::new(),
        exit: None,
        output: None,
        ended: None,
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
    work: Work,
    escalation: Escalation,
    stop: Stop,
    /// Until when the process may run.
    by_now: Option<Duration>,
    sampler: Sampler,
    exit: Option<Exit>,
    output: Option<Value>,
    /// How the execution was ended before this worker began.
    ended: Option<Ended>,
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

/// Where the process stands.
enum Work {
    /// It may not begin yet.
    Waiting,
    /// `started` is written; the process comes next.
    Entered(Box<Spec>),
    /// It runs.
    Running(Box<Running>),
    /// Its first process has ended; others of its tree may use the rest of their grace.
    Ending { tree: Tree, until: Duration, look_at: Duration },
    /// Nothing runs any more.
    Over,
}

/// What woke the drive.
enum Woken {
    Link(LinkEvent),
    Child(Option<ChildOutput>),
    Interrupt,
    Continued,
    Timer,
}

impl Drive<'_> {
    /// Does what is asked and waits for the next thing; returns whether more is to come.
    async fn turn(&mut self) -> bool {
        self.perform();
        if matches!(self.work, Work::Entered(_)) {
            // The word of it goes out before the deed.
            tokio::task::yield_now().await;
            self.launch();
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
        let running = matches!(self.work, Work::Running(_));
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
        let child = async {
            match &mut self.work {
                Work::Running(running) if !paused => running.next().await,
                Work::Waiting
                | Work::Entered(_)
                | Work::Running(_)
                | Work::Ending { .. }
                | Work::Over => std::future::pending().await,
            }
        };
        tokio::select! {
            () = timer => Woken::Timer,
            event = self.link.next() => Woken::Link(event),
            Some(()) = self.interrupts.rx.recv() => Woken::Interrupt,
            Some(()) = continued => Woken::Continued,
            output = child => Woken::Child(output),
        }
    }

    fn deadline(&self) -> Option<Duration> {
        let running = matches!(self.work, Work::Running(_));
        let look_at = match &self.work {
            Work::Ending { look_at, .. } => Some(*look_at),
            Work::Waiting | Work::Entered(_) | Work::Running(_) | Work::Over => None,
        };
        [
            self.session.poll_timeout(),
            look_at,
            self.by_now.filter(|_| running),
            self.escalation.poll_timeout().filter(|_| running),
            running.then(|| self.sampler.due()),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn is_done(&self) -> bool {
        let over = matches!(self.work, Work::Over);
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
                    if matches!(self.work, Work::Waiting | Work::Entered(_)) {
                        self.work = Work::Over;
                        self.ended = Some(ended);
                    }
                }
            }
        }
    }

    /// Enters the work: what cannot run is refused before, and nothing has happened then.
    fn begin(&mut self) {
        if !matches!(self.work, Work::Waiting) {
            return;
        }
        let spec = match self.spec() {
            Ok(spec) => spec,
            Err(error) => return self.finish(Kind::Failed { error: *error, receipt: None }),
        };
        match self.session.emit(Kind::Started {}, self.clock.now()) {
            Ok(()) => self.work = Work::Entered(Box::new(spec)),
            Err(refused) => {
                let error = Fault::new(Code::Internal, refused.to_string());
                let error = error.about(self.call.execution);
                self.finish(Kind::Failed { error, receipt: None });
            }
        }
    }

    /// Starts the process.
    fn launch(&mut self) {
        let Work::Entered(spec) = std::mem::replace(&mut self.work, Work::Over) else { return };
        match Running::spawn(*spec, clock::wall) {
            Ok(mut running) => {
                let leader = running.tree().leader();
                let pgid = u32::try_from(leader.pid).expect("a pid is positive");
                let tree = peer::Tree { pgid, start_ticks: leader.start_ticks };
                let now = self.clock.now();
                self.session.handle_tree(tree, now);
                self.by_now = self.call.process.timeout.map(|timeout| now.mono + timeout);
                self.sampler.start(now.mono);
                self.work = Work::Running(Box::new(running));
            }
            Err(error) => {
                let error = verdict::not_started(&self.call.process.program, &error)
                    .about(self.call.execution);
                self.finish(Kind::Failed { error, receipt: None });
            }
        }
    }

    /// Returns what the process is started with; refuses what cannot run at all.
    fn spec(&self) -> Result<Spec, Box<Fault>> {
        let process = &self.call.process;
        let mark = Mark {
            execution: self.call.execution,
            fence: self.session.fence().unwrap_or_default(),
            checkout: process.checkout.as_os_str(),
        };
        let caller = process.env_caller.iter().cloned();
        let env = env::environment(caller, &process.env_allow, &process.env_set, mark);
        let path = env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
        let refuse =
            |message: String| Box::new(verdict::unusable(message).about(self.call.execution));
        if !process.cwd.is_dir() {
            return Err(refuse(format!("{} is not a directory", self.shown(&process.cwd))));
        }
        let real = std::fs::canonicalize(&process.cwd).unwrap_or_else(|_| process.cwd.clone());
        let root = std::fs::canonicalize(&process.checkout);
        if root.is_ok_and(|root| !real.starts_with(root)) {
            let cwd = self.shown(&process.cwd);
            return Err(refuse(format!("{cwd} leads out of the checkout")));
        }
        let program: &OsStr = &process.program;
        let program = resolve_program(program, path, &process.cwd)
            .map_err(|error| refuse(verdict::no_program(&process.program, &error)))?;
        Ok(Spec {
            program,
            args: process.args.clone(),
            cwd: process.cwd.clone(),
            env,
            stdin: process.stdin.clone(),
            output: process.output,
            events: process.events,
            line_chars: self.call.limits.max_line_chars,
            scrubber: self.scrubber.clone(),
            launcher: process.launcher.clone(),
            cgroup: process.cgroup,
        })
    }

    /// Returns a path as others may see it: relative to the checkout.
    fn shown(&self, path: &std::path::Path) -> String {
        let relative = path.strip_prefix(&self.call.process.checkout).unwrap_or(path);
        let shown = relative.display().to_string();
        if shown.is_empty() { ".".to_owned() } else { shown }
    }

    fn on_link(&mut self, event: LinkEvent, now: Now) {
        match event {
            LinkEvent::Connected => self.session.handle_connected(now),
            LinkEvent::Frame { kind, body } => self.session.handle_frame(kind, &body, now),
            LinkEvent::Disconnected => self.session.handle_disconnected(now),
            LinkEvent::Unreachable => self.session.handle_unreachable(now),
        }
    }

    fn on_child(&mut self, output: ChildOutput, now: Now) {
        match output {
            ChildOutput::Log(chunk) => self.note(|session| session.emit_log(chunk, now)),
            ChildOutput::Said(events) => {
                for event in events {
                    match event {
                        ChildEvent::Kind(kind) => self.note(|session| session.emit(kind, now)),
                        ChildEvent::Output(value) => self.output = Some(value),
                    }
                }
            }
            ChildOutput::Exited(exit) => self.exit = Some(exit),
        }
    }

    fn on_interrupt(&mut self, now: Now) {
        self.interrupts.count += 1;
        self.interrupts.impatient |= matches!(self.work, Work::Over);
        self.session.handle_cancel(TERMINAL, self.interrupts.count > 1, now);
    }

    fn on_cancel(&mut self, force: bool) {
        let now = self.clock.now().mono;
        let grace = if force { Duration::ZERO } else { self.call.process.grace };
        match &mut self.work {
            Work::Waiting | Work::Entered(_) => self.finish(Kind::Cancelled { receipt: None }),
            Work::Running(_) => {
                self.stop = self.stop.or(Stop::Cancelled);
                self.escalation.handle_cancel(now, grace);
            }
            Work::Ending { until, .. } => *until = (*until).min(now + grace),
            Work::Over => {}
        }
    }

    /// Does what is due.
    async fn on_time(&mut self, now: Now) {
        self.session.handle_timeout(now);
        if let Work::Running(running) = &mut self.work {
            if self.sampler.due() <= now.mono
                && let Some(kind) = self.sampler.sample(running.tree().usage(), now.mono)
            {
                self.note(|session| session.emit(kind, now));
            }
            if self.by_now.is_some_and(|at| at <= now.mono) {
                self.by_now = None;
                self.stop = self.stop.or(Stop::TimedOut);
                self.escalation.handle_cancel(now.mono, self.call.process.grace);
            }
            self.escalation.handle_timeout(now.mono);
            self.escalate(now).await;
        }
        if let Work::Ending { look_at, .. } = &self.work
            && *look_at <= now.mono
        {
            self.on_look(now).await;
        }
    }

    /// Does to the tree what the escalation asks for.
    async fn escalate(&mut self, now: Now) {
        while let Some(effect) = self.escalation.poll_effect() {
            let Work::Running(running) = &mut self.work else { return };
            match effect {
                escalate::Effect::SignalTree(Ask::Term) => running.tree().signal(Signal::TERM),
                escalate::Effect::SignalTree(Ask::Int) => running.tree().signal(Signal::INT),
                escalate::Effect::KillTree => {
                    if running.tree().kill().await.is_empty() {
                        self.escalation.handle_empty();
                    }
                }
                escalate::Effect::Done if running.tree().is_empty() => {}
                escalate::Effect::Done => {
                    let Work::Running(running) = std::mem::replace(&mut self.work, Work::Over)
                    else {
                        return;
                    };
                    let survivors = running.into_tree().leave();
                    self.conclude(survivors, now);
                }
            }
        }
    }

    /// The first process has ended and was read out.
    async fn on_end(&mut self, now: Now) {
        let Work::Running(running) = std::mem::replace(&mut self.work, Work::Over) else { return };
        let tree = running.into_tree();
        let until = match self.stop {
            Stop::No => now.mono,
            // Asked to stop: the others have what is left of the grace.
            Stop::Cancelled | Stop::TimedOut => self.escalation.poll_timeout().unwrap_or(now.mono),
        };
        self.work = Work::Ending { tree, until, look_at: now.mono };
    }

    /// Ends what is left of the tree, when its time is over.
    async fn on_look(&mut self, now: Now) {
        let Work::Ending { mut tree, until, .. } = std::mem::replace(&mut self.work, Work::Over)
        else {
            return;
        };
        let members = tree.members();
        if !members.is_empty() && now.mono < until {
            let look_at = (now.mono + LOOK).min(until);
            self.work = Work::Ending { tree, until, look_at };
            return;
        }
        if !members.is_empty() && self.stop == Stop::No {
            let summary = format!("processes outlived it and were ended: {}", named(&members));
            self.diagnose("leftover", summary, now);
        }
        let survivors = if members.is_empty() { members } else { tree.kill().await };
        if !survivors.is_empty() {
            tree.leave();
        }
        self.conclude(survivors, self.clock.now());
    }

    /// Nothing more can be done to the tree: reports it and the end.
    fn conclude(&mut self, survivors: Vec<Member>, now: Now) {
        if !survivors.is_empty() {
            let summary = format!("processes could not be ended: {}", named(&survivors));
            self.diagnose("survivor", summary, now);
        }
        let names = survivors.iter().map(|member| format!("{} {}", member.pid, member.comm));
        let mut names: Vec<String> = names.collect();
        names.iter_mut().for_each(|name| self.scrubber.text(name));
        self.session.handle_released(names, now);
        let timeout = self.call.process.timeout;
        let end = verdict::of(self.exit, self.stop, timeout, self.output.take());
        self.finish(verdict::about(end, self.call.execution));
    }

    fn finish(&mut self, kind: Kind) {
        self.work = Work::Over;
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
        Outcome { state, exit: self.exit, error, output, reported, snapshot }
    }
}

fn named(members: &[Member]) -> String {
    let named: Vec<String> = members
        .iter()
        .take(NAMED_MAX)
        .map(|member| format!("{} (pid {})", member.comm, member.pid))
        .collect();
    let more = members.len().saturating_sub(NAMED_MAX);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    named.join(", ") + &tail
}
