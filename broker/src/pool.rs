//! The workers of the broker's own: their processes, their pipes, and what they are handed.
//!
//! A shell around [`core::Pool`], which decides. Owns the processes and, for as long as an
//! execution is not final, what its worker needs to carry it out: the real input never enters the
//! plane. Everything here runs on the Arbiter's thread; starting and reaping a process, which may
//! take long, runs on the blocking pool.

mod core;
mod process;

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use actix::Addr;
use reeve_protocol::pool::{Assignment, DirectCall, FromPool, ToPool};
use reeve_protocol::{Code, ExecutionId, Fault, SideEffect};
use serde_json::Value;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

use self::core::{CallId, Effect, Job, Pool, PoolId};
use crate::actor::{BrokerActor, Post};
use crate::clock::Clock;
use crate::plane::Input;

/// Calls without an execution that are answered at once, at most.
const CALLS_MAX: usize = 4;
/// How long the status of a worker of our own is waited for, once its end was seen.
const STATUS_WITHIN: Duration = Duration::from_millis(200);
/// How often it is looked for.
const STATUS_EVERY: Duration = Duration::from_millis(2);
/// Ends of workers that are remembered until whoever watches them asks.
const ENDS_MAX: usize = 64;
/// Lines that wait for a worker's pipe.
const LINES_MAX: usize = 4;

/// How a worker of the broker's own is started.
#[derive(Clone, Debug)]
pub struct WorkerCommand {
    /// The program, as an absolute path.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Where it is started: the checkout.
    pub dir: PathBuf,
}

/// The workers of the broker's own. Cheap to clone.
#[derive(Clone)]
pub struct Workers(Arc<Inner>);

struct Inner {
    /// Absent in a broker that makes no workers.
    command: Option<WorkerCommand>,
    clock: Clock,
    addr: OnceLock<Addr<BrokerActor>>,
    state: Mutex<State>,
    rearm: Notify,
    calls: Semaphore,
    /// Told whenever an execution of ours is over.
    over: Notify,
}

struct State {
    pool: Pool,
    hands: HashMap<PoolId, Hand>,
    /// What the executions that are not final need.
    assignments: HashMap<ExecutionId, Arc<Assignment>>,
    /// Calls without an execution, and who waits for their answers.
    calls: HashMap<CallId, Waiting>,
    /// How workers ended, by pid and start.
    ends: VecDeque<(u32, u64, String)>,
    next_call: u64,
}

/// A call without an execution, until it is handed out, and who waits for its answer.
type Waiting = (Option<Box<DirectCall>>, oneshot::Sender<Result<Value, Fault>>);

/// What is held of one worker's process.
struct Hand {
    process: Arc<process::Handle>,
    lines: Option<mpsc::Sender<ToPool>>,
    call: Option<CallId>,
}

impl Workers {
    /// Makes the workers' shell; without a command it makes none.
    pub fn new(command: Option<WorkerCommand>, max_running: usize, clock: Clock) -> Self {
        let state = State {
            // One more than can run is warm, and calls have workers of their own.
            pool: Pool::new(max_running + CALLS_MAX + 1),
            hands: HashMap::new(),
            assignments: HashMap::new(),
            calls: HashMap::new(),
            ends: VecDeque::new(),
            next_call: 1,
        };
        Self(Arc::new(Inner {
            command,
            clock,
            addr: OnceLock::new(),
            state: Mutex::new(state),
            rearm: Notify::new(),
            calls: Semaphore::new(CALLS_MAX),
            over: Notify::new(),
        }))
    }

    /// Says whom to tell what is seen, and starts to keep time.
    pub fn bind(&self, addr: Addr<BrokerActor>) {
        assert!(self.0.addr.set(addr).is_ok(), "workers are bound once");
        let workers = self.clone();
        actix::spawn(async move { workers.keep_time().await });
    }

    /// Makes the worker that is kept warm.
    pub fn warm_up(&self) {
        if self.0.command.is_some() {
            self.step(|pool, now| pool.handle_start(now));
        }
    }

    /// Keeps what an execution's worker will need, before the plane hears of it.
    pub fn keep(&self, assignment: Assignment) {
        self.lock().assignments.insert(assignment.execution, Arc::new(assignment));
    }

    /// Forgets what an execution's worker needed; all the same where there is nothing.
    pub fn forget(&self, id: ExecutionId) {
        if self.lock().assignments.remove(&id).is_some() {
            self.0.over.notify_waiters();
        }
    }

    /// Returns the executions that were started here and are not final.
    pub fn under_way(&self) -> Vec<ExecutionId> {
        self.lock().assignments.keys().copied().collect()
    }

    /// Waits until nothing that was started here is under way.
    pub async fn until_over(&self) {
        loop {
            let over = self.0.over.notified();
            if self.lock().assignments.is_empty() {
                return;
            }
            over.await;
        }
    }

    /// Makes a worker carry an execution out.
    pub fn launch(&self, id: ExecutionId, attempt: u8) {
        if self.0.command.is_none() {
            let why = "this broker makes no workers of its own".to_owned();
            return self.fail(Job::Run(id, attempt), why);
        }
        self.step(|pool, now| pool.handle_job(Job::Run(id, attempt), now));
    }

    /// Sees to it that an execution that is to be killed is, whatever its worker does.
    pub fn force(&self, id: ExecutionId) {
        self.step(|pool, now| pool.handle_force(id, now));
    }

    /// Has a call answered by a worker; when its future is dropped the call is abandoned.
    ///
    /// # Errors
    ///
    /// `busy` when too many are under way, `unavailable` when its worker ended, `timeout` when it
    /// took too long, and what the call itself refuses with.
    pub async fn call(&self, call: DirectCall, within: Duration) -> Result<Value, Fault> {
        if self.0.command.is_none() {
            return Err(Fault::new(Code::Unavailable, "this broker makes no workers of its own"));
        }
        let Ok(_turn) = self.0.calls.try_acquire() else {
            let message = format!("{CALLS_MAX} calls are being answered, which is the bound");
            return Err(Fault::new(Code::Busy, message)
                .because("too_many_calls")
                .hint("call again in a moment, or start it as an execution, which waits"));
        };
        let (tell, told) = oneshot::channel();
        let id = {
            let mut state = self.lock();
            let id = CallId(state.next_call);
            state.next_call += 1;
            state.calls.insert(id, (Some(Box::new(call)), tell));
            id
        };
        let abandon = Abandon { workers: self.clone(), id };
        self.step(|pool, now| pool.handle_job(Job::Call(id), now));
        let answer = tokio::time::timeout(within, told).await;
        drop(abandon);
        match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Fault::new(Code::Unavailable, "the broker is ending")),
            Err(_) => {
                let message = format!("no answer within {} s", within.as_secs());
                Err(Fault::new(Code::Timeout, message)
                    .hint("start it as an execution, which may take its time"))
            }
        }
    }

    /// Lets go of every worker that has nothing to do, and makes no further one.
    pub fn close(&self) {
        self.step(|pool, now| pool.handle_close(now));
    }

    /// Returns how a process that is gone ended, as the rest of a sentence, where it was one of
    /// ours: that is known once it was waited for, a moment after its end is seen.
    pub async fn how_ended(&self, pid: u32, start_ticks: u64) -> Option<String> {
        let mut waited = Duration::ZERO;
        while waited < STATUS_WITHIN && self.is_waited_for(pid, start_ticks) {
            tokio::time::sleep(STATUS_EVERY).await;
            waited += STATUS_EVERY;
        }
        self.end_of(pid, start_ticks)
    }

    fn end_of(&self, pid: u32, start_ticks: u64) -> Option<String> {
        let state = self.lock();
        let mut ends = state.ends.iter().rev();
        ends.find(|end| (end.0, end.1) == (pid, start_ticks)).map(|end| end.2.clone())
    }

    /// Returns whether a process is one of ours whose end is not known yet.
    fn is_waited_for(&self, pid: u32, start_ticks: u64) -> bool {
        let is_it =
            |hand: &Hand| (hand.process.pid, hand.process.start_ticks) == (pid, start_ticks);
        self.end_of(pid, start_ticks).is_none() && self.lock().hands.values().any(is_it)
    }

    /// Hands the pool something and does what it asks for.
    fn step(&self, input: impl FnOnce(&mut Pool, Duration)) {
        let now = self.0.clock.now().mono;
        let effects: Vec<Effect> = {
            let mut state = self.lock();
            input(&mut state.pool, now);
            std::iter::from_fn(|| state.pool.poll_effect()).collect()
        };
        for effect in effects {
            match effect {
                Effect::Spawn(worker) => self.spawn(worker),
                Effect::Give(worker, job) => self.give(worker, job),
                Effect::Dismiss(worker) => {
                    if let Some(hand) = self.lock().hands.get_mut(&worker) {
                        hand.lines = None;
                    }
                }
                Effect::Kill(worker) => {
                    if let Some(hand) = self.lock().hands.get(&worker) {
                        hand.process.kill();
                    }
                }
                Effect::Fail(job, why) => self.fail(job, why),
            }
        }
        self.0.rearm.notify_one();
    }

    async fn keep_time(&self) {
        loop {
            let rearm = self.0.rearm.notified();
            let due = self.lock().pool.poll_timeout();
            let timer = async {
                match due {
                    Some(at) => {
                        let after = at.saturating_sub(self.0.clock.now().mono);
                        tokio::time::sleep(after).await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = timer => self.step(|pool, now| pool.handle_timeout(now)),
                () = rearm => {}
            }
        }
    }

    fn spawn(&self, worker: PoolId) {
        let command = self.0.command.clone().expect("only a pool with a command gets work");
        let workers = self.clone();
        actix::spawn(async move {
            match process::start(command).await {
                Ok(started) => workers.attend(worker, started).await,
                Err(error) => {
                    tracing::error!(%error, "a worker cannot be made");
                    let how = format!("could not be made: {error}");
                    workers.step(|pool, now| pool.handle_ended(worker, &how, now));
                }
            }
        });
    }

    /// Hears a worker until its process has ended.
    async fn attend(&self, worker: PoolId, started: process::Started) {
        let process::Started { process, stdin, stdout, child } = started;
        let process = Arc::new(process);
        let (lines, waiting) = mpsc::channel(LINES_MAX);
        let hand = Hand { process: Arc::clone(&process), lines: Some(lines), call: None };
        self.lock().hands.insert(worker, hand);
        let writing = actix::spawn(process::write(stdin, waiting));
        let hears = process::read(stdout, |said| self.hear(worker, said));
        let end = process::until_ended(&process, child, hears).await;
        writing.abort();
        tracing::debug!(pid = process.pid, end, "a worker of the broker's own has ended");
        self.remember_end(&process, &end);
        // What it had written to the socket before is read first.
        tokio::time::sleep(crate::machine::SOCKET_FIRST).await;
        let hand = self.lock().hands.remove(&worker);
        if let Some(call) = hand.and_then(|hand| hand.call) {
            self.answer(
                call,
                Err(Fault::new(Code::Unavailable, format!("the worker that was to answer {end}"))
                    .with_effect(SideEffect::Unknown)),
            );
        }
        self.step(|pool, now| pool.handle_ended(worker, &end, now));
    }

    fn hear(&self, worker: PoolId, said: FromPool) {
        match said {
            FromPool::Ready => self.step(|pool, now| pool.handle_ready(worker, now)),
            FromPool::Taken => self.step(|pool, _| pool.handle_taken(worker)),
            FromPool::Answer(value) => self.answered(worker, Ok(value)),
            FromPool::Refused(fault) => self.answered(worker, Err(*fault)),
        }
    }

    fn answered(&self, worker: PoolId, answer: Result<Value, Fault>) {
        let call = self.lock().hands.get_mut(&worker).and_then(|hand| hand.call.take());
        if let Some(call) = call {
            self.answer(call, answer);
        }
    }

    fn answer(&self, call: CallId, answer: Result<Value, Fault>) {
        if let Some((_, tell)) = self.lock().calls.remove(&call) {
            drop(tell.send(answer));
        }
    }

    /// Writes down what a worker is to do; what cannot be is given back.
    fn give(&self, worker: PoolId, job: Job) {
        let mut state = self.lock();
        let line = match job {
            Job::Run(id, _) => {
                state.assignments.get(&id).map(|it| ToPool::Run(Box::new(Assignment::clone(it))))
            }
            Job::Call(id) => {
                let call = state.calls.get_mut(&id).and_then(|(call, _)| call.take());
                call.map(ToPool::Call)
            }
        };
        let Some(line) = line else {
            // Nobody waits for it any more.
            drop(state);
            return self.step(|pool, now| pool.handle_ready(worker, now));
        };
        let is_call = matches!(line, ToPool::Call(_));
        let Some(hand) = state.hands.get_mut(&worker) else { return };
        hand.call = match job {
            Job::Call(id) => Some(id),
            Job::Run(..) => None,
        };
        if hand.lines.as_ref().is_none_or(|lines| lines.try_send(line).is_err()) {
            // It takes nothing any more; once it has ended the work goes to another one.
            return hand.process.kill();
        }
        drop(state);
        if is_call {
            self.step(|pool, _| pool.handle_taken(worker));
        }
    }

    /// Tells whoever waits that nobody did it.
    fn fail(&self, job: Job, why: String) {
        match job {
            Job::Call(id) => {
                self.answer(id, Err(Fault::new(Code::Unavailable, why)));
            }
            Job::Run(id, attempt) => {
                let Some(addr) = self.0.addr.get().cloned() else { return };
                actix::spawn(async move {
                    let input = Input::LaunchFailed { id, attempt, message: why };
                    if addr.send(Post(input)).await.is_err() {
                        tracing::debug!(%id, "it failed after the plane had ended");
                    }
                });
            }
        }
    }

    fn remember_end(&self, process: &process::Handle, end: &str) {
        let mut state = self.lock();
        state.ends.push_back((process.pid, process.start_ticks, end.to_owned()));
        if state.ends.len() > ENDS_MAX {
            state.ends.pop_front();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Abandons a call when whoever waits for it is gone; nothing happens once it is answered.
struct Abandon {
    workers: Workers,
    id: CallId,
}

impl Drop for Abandon {
    fn drop(&mut self) {
        if self.workers.lock().calls.remove(&self.id).is_some() {
            let id = self.id;
            self.workers.step(|pool, _| pool.handle_abandoned(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_status_of_one_of_ours_is_waited_for_and_of_no_other() {
        let workers = Workers::new(None, 1, Clock::start());
        let (program, dir) = ("/bin/true".into(), "/".into());
        let command = WorkerCommand { program, args: Vec::new(), dir };
        let started = process::start(command).await.unwrap();
        let process = Arc::new(started.process);
        let (pid, start_ticks) = (process.pid, process.start_ticks);
        assert_eq!(workers.how_ended(pid, start_ticks).await, None, "it is not held yet");
        let hand = Hand { process: Arc::clone(&process), lines: None, call: None };
        workers.lock().hands.insert(PoolId(1), hand);
        let known = async { workers.remember_end(&process, "exited with status 0") };
        let (how, ()) = tokio::join!(workers.how_ended(pid, start_ticks), known);
        assert_eq!(how.as_deref(), Some("exited with status 0"));
        assert_eq!(workers.how_ended(pid, start_ticks + 1).await, None, "another of this number");
        let mut child = started.child;
        tokio::task::spawn_blocking(move || child.wait()).await.unwrap().unwrap();
    }
}
