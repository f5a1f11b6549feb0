//! Who of the broker's own workers does what: kept warm, handed work, replaced, given up.
//!
//! Owns the list of these workers and the work that waits for one. The rule: one worker does one
//! thing at a time, the end of one concerns only what it was doing, and workers that end as soon
//! as they start are not made for ever. Knows no process, no pipe and no clock.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use reeve_protocol::ExecutionId;

/// How long a worker may take from its start to its first word, and from being handed work to
/// being granted it.
pub const ANSWER: Duration = Duration::from_secs(20);
/// How long a worker that was told to kill its work has before it is killed itself.
pub const FORCE: Duration = Duration::from_secs(3);
/// How long a worker beyond the one that is kept warm stays without work.
pub const IDLE: Duration = Duration::from_secs(10);
/// Workers kept without work for as long as the broker lives.
const WARM: usize = 1;
/// Workers that may end without having been handed anything, within [`WINDOW`].
pub const INTENSITY: usize = 5;
/// The time over which these ends are counted.
pub const WINDOW: Duration = Duration::from_secs(10);
/// How often work is handed out that its worker has not begun when it ended.
const HANDED_MAX: u8 = 3;
/// How long no further worker is made after too many such ends: doubled each time, up to the last.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// One worker of the broker's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub u64);

/// One call of a handler that is no execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// What a worker is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Carry an execution out; the number tells its first attempt from its second.
    Run(ExecutionId, u8),
    /// Answer a call.
    Call(CallId),
}

impl Job {
    fn is_run(self, wanted: ExecutionId) -> bool {
        matches!(self, Self::Run(id, _) if id == wanted)
    }
}

/// What the pool asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make a worker.
    Spawn(PoolId),
    /// Hand this to a worker that has nothing to do.
    Give(PoolId, Job),
    /// Let a worker that has nothing to do end.
    Dismiss(PoolId),
    /// Kill a worker.
    Kill(PoolId),
    /// No worker did this, and none will.
    Fail(Job, String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It was made and has not said that it is ready.
    Starting { by: Duration },
    /// It has nothing to do.
    Idle { since: Duration },
    /// It was handed work that the broker has not granted it yet.
    Given { job: Job, handed: u8, by: Duration },
    /// It works; it is killed at a time when it was told to kill its work.
    Busy { job: Job, by: Option<Duration> },
    /// It is to end, and is killed where it does not by a time.
    Ending { by: Option<Duration> },
}

/// The workers of the broker's own.
pub struct Pool {
    workers_max: usize,
    workers: BTreeMap<PoolId, State>,
    /// With how often each was handed out.
    waiting: VecDeque<(Job, u8)>,
    next: u64,
    /// When workers ended without having been handed anything.
    ends: VecDeque<Duration>,
    pause: Duration,
    paused_until: Option<Duration>,
    /// Why the last one ended.
    last_end: String,
    closing: bool,
    effects: VecDeque<Effect>,
}

impl Pool {
    /// Makes a pool of so many workers at most, without any.
    pub fn new(workers_max: usize) -> Self {
        Self {
            workers_max: workers_max.max(1),
            workers: BTreeMap::new(),
            waiting: VecDeque::new(),
            next: 1,
            ends: VecDeque::new(),
            pause: PAUSE.0,
            paused_until: None,
            last_end: String::new(),
            closing: false,
            effects: VecDeque::new(),
        }
    }

    /// Makes the worker that is kept warm.
    pub fn handle_start(&mut self, now: Duration) {
        self.refill(now);
    }

    /// Takes work.
    pub fn handle_job(&mut self, job: Job, now: Duration) {
        if self.closing {
            let why = "this broker is ending".to_owned();
            return self.effects.push_back(Effect::Fail(job, why));
        }
        self.waiting.push_back((job, 0));
        self.hand_out(now);
    }

    /// Takes that a worker has nothing to do.
    pub fn handle_ready(&mut self, worker: PoolId, now: Duration) {
        match self.workers.get_mut(&worker) {
            None | Some(State::Ending { .. }) => return,
            // It let go of what it was handed before that was granted.
            Some(State::Given { job, .. }) => {
                let why = "its worker could not take it".to_owned();
                self.effects.push_back(Effect::Fail(*job, why));
            }
            Some(State::Starting { .. }) => self.pause = PAUSE.0,
            Some(State::Idle { .. } | State::Busy { .. }) => {}
        }
        self.workers.insert(worker, State::Idle { since: now });
        self.hand_out(now);
        self.shrink(now);
    }

    /// Takes that a worker was granted what it was handed.
    pub fn handle_taken(&mut self, worker: PoolId) {
        if let Some(state) = self.workers.get_mut(&worker)
            && let State::Given { job, .. } = *state
        {
            *state = State::Busy { job, by: None };
        }
    }

    /// Takes that a worker's process ended, or could not be made.
    pub fn handle_ended(&mut self, worker: PoolId, how: &str, now: Duration) {
        let Some(state) = self.workers.remove(&worker) else { return };
        match state {
            // It has begun nothing: it had ended, or was about to, when it was handed out.
            State::Given { job, handed, .. } if handed < HANDED_MAX => {
                self.waiting.push_front((job, handed));
            }
            State::Given { job, .. } | State::Busy { job, .. } => {
                self.effects.push_back(Effect::Fail(job, format!("its worker {how}")));
            }
            State::Starting { .. } | State::Idle { .. } => {
                how.clone_into(&mut self.last_end);
                self.count_end(now);
            }
            State::Ending { .. } => {}
        }
        self.hand_out(now);
    }

    /// Takes that an execution is to be killed: a worker that does not see to it is killed.
    pub fn handle_force(&mut self, id: ExecutionId, now: Duration) {
        for state in self.workers.values_mut() {
            match state {
                State::Given { job, by, .. } if job.is_run(id) => *by = (*by).min(now + FORCE),
                State::Busy { job, by } if job.is_run(id) => {
                    by.get_or_insert(now + FORCE);
                }
                State::Starting { .. }
                | State::Idle { .. }
                | State::Given { .. }
                | State::Busy { .. }
                | State::Ending { .. } => {}
            }
        }
    }

    /// Takes that nobody waits for a call any more: what answers it has no other use.
    pub fn handle_abandoned(&mut self, call: CallId) {
        self.waiting.retain(|(job, _)| *job != Job::Call(call));
        let busy = self.workers.iter().find(|(_, state)| {
            matches!(state, State::Given { job, .. } | State::Busy { job, .. } if *job == Job::Call(call))
        });
        if let Some(worker) = busy.map(|(worker, _)| *worker) {
            self.workers.insert(worker, State::Ending { by: None });
            self.effects.push_back(Effect::Kill(worker));
        }
    }

    /// Takes that the broker ends: who has nothing to do ends, and nothing more is taken.
    pub fn handle_close(&mut self, now: Duration) {
        self.closing = true;
        for (worker, state) in &mut self.workers {
            if matches!(state, State::Idle { .. } | State::Starting { .. }) {
                *state = State::Ending { by: Some(now + ANSWER) };
                self.effects.push_back(Effect::Dismiss(*worker));
            }
        }
        self.fail_waiting("this broker is ending");
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Duration) {
        let late: Vec<PoolId> = self
            .workers
            .iter()
            .filter(|(_, state)| state.kill_at().is_some_and(|by| by <= now))
            .map(|(worker, _)| *worker)
            .collect();
        for worker in late {
            self.effects.push_back(Effect::Kill(worker));
            self.on_late(worker, now);
        }
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
        }
        self.shrink(now);
        self.hand_out(now);
    }

    /// Returns when [`Pool::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let spare = self.spare().map(|(_, since)| since + IDLE);
        let kills = self.workers.values().filter_map(State::kill_at).min();
        [spare, kills, self.paused_until].into_iter().flatten().min()
    }

    /// Returns the next thing to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Keeps what a worker that is being killed was doing, until its end is seen.
    fn on_late(&mut self, worker: PoolId, now: Duration) {
        let Some(state) = self.workers.get_mut(&worker) else { return };
        *state = match *state {
            State::Starting { .. } => {
                "did not start in time".clone_into(&mut self.last_end);
                State::Ending { by: None }
            }
            State::Idle { .. } | State::Ending { .. } => {
                return *state = State::Ending { by: None };
            }
            State::Given { job, .. } | State::Busy { job, .. } => {
                return *state = State::Busy { job, by: None };
            }
        };
        self.count_end(now);
    }

    fn hand_out(&mut self, now: Duration) {
        while !self.waiting.is_empty() {
            let idle = self.workers.iter().find(|(_, state)| matches!(state, State::Idle { .. }));
            let Some(worker) = idle.map(|(worker, _)| *worker) else { break };
            let (job, handed) = self.waiting.pop_front().expect("something waits");
            let (by, handed) = (now + ANSWER, handed + 1);
            self.workers.insert(worker, State::Given { job, handed, by });
            self.effects.push_back(Effect::Give(worker, job));
        }
        self.refill(now);
    }

    /// Makes workers for what waits, and the one that is kept warm.
    fn refill(&mut self, now: Duration) {
        if self.closing {
            return;
        }
        if self.paused_until.is_some() {
            if self.workers.values().all(|state| matches!(state, State::Ending { .. })) {
                let why =
                    format!("workers end as soon as they start: the last one {}", self.last_end);
                self.fail_waiting(&why);
            }
            return;
        }
        let free = |state: &&State| matches!(state, State::Starting { .. } | State::Idle { .. });
        while self.workers.values().filter(free).count() < self.waiting.len().max(WARM)
            && self.workers.len() < self.workers_max
        {
            let worker = PoolId(self.next);
            self.next += 1;
            self.workers.insert(worker, State::Starting { by: now + ANSWER });
            self.effects.push_back(Effect::Spawn(worker));
        }
    }

    /// Lets workers go that had nothing to do for long.
    fn shrink(&mut self, now: Duration) {
        while let Some((worker, since)) = self.spare()
            && since + IDLE <= now
        {
            self.workers.insert(worker, State::Ending { by: Some(now + ANSWER) });
            self.effects.push_back(Effect::Dismiss(worker));
        }
    }

    /// Returns the worker to let go next, and since when it has nothing to do.
    fn spare(&self) -> Option<(PoolId, Duration)> {
        let idle = self.workers.iter().filter_map(|(worker, state)| match state {
            State::Idle { since } => Some((*worker, *since)),
            State::Starting { .. }
            | State::Given { .. }
            | State::Busy { .. }
            | State::Ending { .. } => None,
        });
        let mut idle: Vec<_> = idle.collect();
        idle.sort_by_key(|(_, since)| *since);
        if idle.len() > WARM { idle.first().copied() } else { None }
    }

    fn count_end(&mut self, now: Duration) {
        self.ends.push_back(now);
        while self.ends.front().is_some_and(|at| *at + WINDOW < now) {
            self.ends.pop_front();
        }
        if self.ends.len() >= INTENSITY {
            self.ends.clear();
            self.paused_until = Some(now + self.pause);
            self.pause = (self.pause * 2).min(PAUSE.1);
        }
    }

    fn fail_waiting(&mut self, why: &str) {
        for (job, _) in std::mem::take(&mut self.waiting) {
            self.effects.push_back(Effect::Fail(job, why.to_owned()));
        }
    }
}

impl State {
    fn kill_at(&self) -> Option<Duration> {
        match self {
            Self::Starting { by } | Self::Given { by, .. } => Some(*by),
            Self::Busy { by, .. } | Self::Ending { by } => *by,
            Self::Idle { .. } => None,
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
