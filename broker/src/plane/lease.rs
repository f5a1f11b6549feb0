//! Leases: which worker speaks for an execution, and until when.
//!
//! A worker is lost when its process ended, when its connection ended and it does not come back,
//! when it says nothing for a number of checks in a row, or when its command loop answers no ping
//! for as many. A check counts only if it ran on time: a broker that was itself stopped or
//! starved says nothing about its workers. Whoever was lost is fenced from then on.

use std::collections::BTreeSet;
use std::time::Duration;

use reeve_protocol::mutant;
use reeve_protocol::peer::Fenced;
use reeve_protocol::snapshot::ProcessSeen;
use reeve_protocol::{Code, Fault, Handle, Kind, Now, Seq, SideEffect};

use super::Plane;
use super::effect::{Effect, Sweep, ToWorker};
use super::execution::Writer;
use super::input::{Seen, WorkerId, WorkerProcess};

/// Checks without a word after which a worker's process is looked at.
const LOOK_AFTER: u32 = 3;

/// How long after a worker's process ended what it had sent may still be on its way.
const LAST_WORDS: Duration = Duration::from_millis(100);

pub(super) struct Worker {
    pub process: WorkerProcess,
    pub connected: bool,
    /// Whether it said that it leaves.
    pub bye: bool,
    /// Whether its process has ended while its connection had not.
    pub gone: bool,
    /// How its process ended, as the rest of a sentence, where that is known.
    pub end: Option<String>,
    /// Whether a frame came since the last check.
    pub heard: bool,
    /// Checks in a row that heard nothing.
    pub misses: u32,
    /// Checks in a row whose ping was not answered.
    pub deaf: u32,
    pub executions: BTreeSet<Handle>,
}

/// How a worker was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// Its process ended.
    Gone,
    /// It said goodbye and left an execution unfinished.
    Left,
    /// Its connection ended and it did not come back.
    Away,
    /// It said nothing for too long.
    Silent,
    /// It lives and reports, but takes no commands.
    Deaf,
}

impl Plane {
    pub(super) fn on_worker_joined(&mut self, worker: WorkerId, process: WorkerProcess, now: Now) {
        self.workers.insert(
            worker,
            Worker {
                process,
                connected: true,
                bye: false,
                gone: false,
                end: None,
                heard: true,
                misses: 0,
                deaf: 0,
                executions: BTreeSet::new(),
            },
        );
        self.next_check.get_or_insert(now.mono + self.limits.heartbeat);
    }

    /// Notes that a worker was heard.
    pub(super) fn heard(&mut self, worker: WorkerId, now: Now) {
        let Some(known) = self.workers.get_mut(&worker) else { return };
        known.heard = true;
        let was_silent = std::mem::take(&mut known.misses) >= LOOK_AFTER;
        for handle in known.executions.clone() {
            let execution = self.executions.get_mut(&handle).expect("a worker's own");
            execution.heard_at = now.mono;
            if was_silent && execution.snapshot.overlay.suspended_at.is_some() {
                execution.overlay(|overlay| overlay.suspended_at = None);
                self.pending.touched.insert(handle);
            }
        }
    }

    pub(super) fn on_pong(&mut self, worker: WorkerId, nonce: u64) {
        // An answer that comes late still says how far its command loop has come.
        let Some(behind) = self.checks.checked_sub(nonce) else { return };
        if let Some(known) = self.workers.get_mut(&worker) {
            known.deaf = known.deaf.min(u32::try_from(behind).unwrap_or(u32::MAX));
        }
    }

    pub(super) fn on_closed(&mut self, worker: WorkerId, now: Now) {
        let Some(known) = self.workers.get_mut(&worker) else { return };
        known.connected = false;
        let lost = match (known.bye, known.gone) {
            (true, _) => Some(Lost::Left),
            (false, true) => Some(Lost::Gone),
            (false, false) => None,
        };
        for handle in known.executions.clone() {
            // The end of one may make the plane forget another.
            let Some(execution) = self.executions.get_mut(&handle) else { continue };
            if execution.snapshot.state.is_final() {
                self.sweep_finished(handle, now);
            } else if let Some(how) = lost {
                self.lose(handle, how, now);
            } else {
                let by = now.mono + self.limits.reattach;
                execution.reattach_by = Some(by);
                execution.worker = None;
                self.reattach.insert((by, handle));
            }
        }
        self.grant_waiting(now);
        self.drop_worker_if_done(worker);
    }

    pub(super) fn on_looked(
        &mut self,
        worker: WorkerId,
        seen: Seen,
        how: Option<String>,
        now: Now,
    ) {
        let Some(known) = self.workers.get_mut(&worker) else { return };
        known.end = known.end.take().or(how);
        if seen == Seen::Gone && known.connected {
            // What it had sent, perhaps its outcome, is read first: its connection ends with it,
            // unless something else holds it open.
            known.gone = true;
            let by = now.mono + LAST_WORDS;
            for handle in known.executions.clone() {
                let Some(execution) = self.executions.get_mut(&handle) else { continue };
                let done = execution.snapshot.state.is_final() && execution.tree.is_none();
                if !done && execution.reattach_by.is_none() {
                    execution.reattach_by = Some(by);
                    self.reattach.insert((by, handle));
                }
            }
            return;
        }
        for handle in known.executions.clone() {
            let Some(execution) = self.executions.get_mut(&handle) else { continue };
            let suspended = execution.snapshot.overlay.suspended_at.is_some();
            match seen {
                Seen::Gone if execution.snapshot.state.is_final() => {
                    self.sweep_finished(handle, now);
                }
                Seen::Gone => self.lose(handle, Lost::Gone, now),
                Seen::Stopped if !suspended && !execution.snapshot.state.is_final() => {
                    execution.overlay(|overlay| overlay.suspended_at = Some(now.wall));
                    self.pending.touched.insert(handle);
                }
                Seen::Alive if suspended => {
                    execution.overlay(|overlay| overlay.suspended_at = None);
                    self.pending.touched.insert(handle);
                }
                Seen::Stopped | Seen::Alive => {}
            }
        }
        self.drop_worker_if_done(worker);
    }

    /// Counts a check for every worker, and fails what was silent for too many.
    pub(super) fn check_silence(&mut self, now: Now) {
        let Some(due) = self.next_check.filter(|due| *due <= now.mono) else { return };
        let late = now.mono - due;
        self.checks += 1;
        self.next_check = (!self.workers.is_empty()).then(|| now.mono + self.limits.heartbeat);
        if late > self.limits.heartbeat && !mutant::on("late checks count") {
            self.void_checks(late);
            return;
        }
        let bound = self.limits.silent_checks();
        let mut lost = Vec::new();
        for (id, worker) in &mut self.workers {
            if !worker.connected {
                continue;
            }
            let heard = std::mem::take(&mut worker.heard) && !mutant::on("silent while heard");
            worker.misses = if heard { 0 } else { worker.misses + 1 };
            worker.deaf += 1;
            if worker.misses >= bound {
                lost.push((*id, Lost::Silent));
            } else if worker.deaf > bound {
                lost.push((*id, Lost::Deaf));
            } else if worker.misses >= LOOK_AFTER {
                self.effects.push_back(Effect::Look { worker: *id });
            }
            let message = ToWorker::Ping(self.checks);
            self.effects.push_back(Effect::Send { worker: *id, message });
        }
        for (worker, how) in lost {
            self.lose_worker(worker, how, now);
        }
    }

    /// Starts every count anew: the broker itself did not run.
    fn void_checks(&mut self, late: Duration) {
        self.late_checks += 1;
        for worker in self.workers.values_mut() {
            worker.misses = 0;
            worker.deaf = 0;
        }
        for (at, handle) in std::mem::take(&mut self.reattach) {
            let by = at + late;
            let execution = self.executions.get_mut(&handle).expect("a deadline's own");
            execution.reattach_by = Some(by);
            self.reattach.insert((by, handle));
        }
    }

    pub(super) fn check_reattach(&mut self, now: Now) {
        while let Some(&(at, handle)) = self.reattach.first()
            && at <= now.mono
            && !mutant::on("waits for ever for who left")
        {
            self.reattach.pop_first();
            let execution = self.executions.get_mut(&handle).expect("a deadline's own");
            execution.reattach_by = None;
            if execution.snapshot.state.is_final() {
                self.sweep_finished(handle, now);
                continue;
            }
            let gone = execution.worker.and_then(|worker| self.workers.get(&worker));
            let how = if gone.is_some_and(|it| it.gone) { Lost::Gone } else { Lost::Away };
            self.lose(handle, how, now);
        }
    }

    fn lose_worker(&mut self, worker: WorkerId, how: Lost, now: Now) {
        let Some(known) = self.workers.get(&worker) else { return };
        for handle in known.executions.clone() {
            let execution = self.executions.get(&handle);
            let again = mutant::on("end twice");
            if execution.is_some_and(|execution| again || !execution.snapshot.state.is_final()) {
                self.lose(handle, how, now);
            }
        }
    }

    /// Ends an execution without its worker, or lets another one try if nothing has begun.
    fn lose(&mut self, handle: Handle, how: Lost, now: Now) {
        self.no_deadline(handle);
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        let was_waiting = execution.is_waiting();
        let granted = execution.granted && !mutant::on("second try after a grant");
        execution.fence = execution.fence.next();
        execution.writer = Writer::Broker;
        if execution.launched && !granted && execution.launches < 2 && execution.cancel.is_none() {
            self.disown_everywhere(handle);
            return self.requeue(handle, now);
        }
        if execution.last == Seq::NONE {
            // It was brought by a worker that had a history and has shown none of it.
            self.write_created(handle, now);
        }
        let execution = &self.executions[&handle];
        let mut its = self.workers.values().filter(|known| known.executions.contains(&handle));
        let end = its.find_map(|known| known.end.clone());
        let error = execution_lost(execution, how, end.as_deref(), now);
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        let seen = if how == Lost::Gone { ProcessSeen::Gone } else { ProcessSeen::Unknown };
        execution.overlay(|overlay| overlay.process = seen);
        if was_waiting {
            self.dequeue(handle);
        }
        self.write(handle, [Kind::Failed { error, receipt: None }], now);
        self.tell_fenced(handle);
        self.start_sweep(handle);
        self.settle(handle, now);
    }

    /// Sees to the tree of an execution that ended well and whose worker left without a word.
    fn sweep_finished(&mut self, handle: Handle, now: Now) {
        self.no_deadline(handle);
        if self.executions[&handle].tree.is_some() {
            self.start_sweep(handle);
        }
        if let Some(worker) = self.executions[&handle].worker {
            self.disown(worker, handle);
        }
        self.settle(handle, now);
    }

    /// Waits no longer for an execution's worker.
    pub(super) fn no_deadline(&mut self, handle: Handle) {
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        if let Some(at) = execution.reattach_by.take() {
            self.reattach.remove(&(at, handle));
        }
    }

    fn start_sweep(&mut self, handle: Handle) {
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        // What its worker said about a tree may have been lost with it.
        let granted = execution.granted;
        let Some(process) = execution.process.clone().filter(|_| granted && !execution.sweeping)
        else {
            return;
        };
        execution.sweeping = true;
        if execution.lock_held {
            let detail = format!("the process tree of lost execution {} may live", execution.id);
            execution.overlay(|overlay| overlay.held = Some(detail));
        }
        let end = execution.description.on_worker_loss;
        let sweep = Sweep {
            id: execution.id,
            pid: process.pid,
            start_ticks: process.start_ticks,
            tree: execution.tree,
            end: end == reeve_protocol::capability::OnWorkerLoss::End,
            grace_ms: execution.description.cancel_grace_ms,
        };
        self.pending.touched.insert(handle);
        self.pending.after.push(Effect::Sweep(sweep));
    }

    pub(super) fn on_tree_left(&mut self, id: reeve_protocol::ExecutionId, pids: &[u32]) {
        let Some(&handle) = self.by_id.get(&id) else { return };
        let execution = self.executions.get_mut(&handle).expect("an id names an execution");
        if !execution.sweeping {
            return;
        }
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let held = format!("processes of lost execution {id} live: {}", pids.join(", "));
        execution.overlay(|overlay| overlay.held = Some(held));
        self.pending.touched.insert(handle);
    }

    pub(super) fn on_tree_empty(&mut self, id: reeve_protocol::ExecutionId, now: Now) {
        let Some(&handle) = self.by_id.get(&id) else { return };
        let execution = self.executions.get_mut(&handle).expect("an id names an execution");
        execution.sweeping = false;
        execution.tree = None;
        self.settle(handle, now);
    }

    /// Tells a worker how its execution stands for everybody else.
    pub(super) fn tell_fenced(&mut self, handle: Handle) {
        let execution = &self.executions[&handle];
        let Some(worker) = execution.worker else { return };
        let message = ToWorker::Fenced(Box::new(Fenced {
            execution: execution.id,
            state: execution.snapshot.state,
            last: execution.last,
            error: execution.snapshot.error.clone(),
        }));
        self.pending.after.push(Effect::Send { worker, message });
    }

    /// Takes an execution out of a worker's hands.
    pub(super) fn disown(&mut self, worker: WorkerId, handle: Handle) {
        if let Some(known) = self.workers.get_mut(&worker) {
            known.executions.remove(&handle);
        }
        self.drop_worker_if_done(worker);
    }

    /// Takes an execution out of every hand: that of a connection that ended, too.
    pub(super) fn disown_everywhere(&mut self, handle: Handle) {
        let holders: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(_, known)| known.executions.contains(&handle))
            .map(|(worker, _)| *worker)
            .collect();
        for worker in holders {
            self.disown(worker, handle);
        }
    }

    pub(super) fn drop_worker_if_done(&mut self, worker: WorkerId) {
        let executions = &self.executions;
        if let Some(known) = self.workers.get(&worker)
            && !known.connected
            && known
                .executions
                .iter()
                .all(|handle| executions.get(handle).is_none_or(|execution| execution.settled))
        {
            self.workers.remove(&worker);
        }
    }
}

fn execution_lost(
    execution: &super::execution::Execution,
    how: Lost,
    end: Option<&str>,
    now: Now,
) -> Fault {
    let pid = execution.process.as_ref().map_or(0, |process| process.pid);
    let quiet = now.mono.saturating_sub(execution.heard_at);
    let what = match how {
        Lost::Gone => {
            format!("{} without reporting an outcome", end.unwrap_or("ended"))
        }
        Lost::Left => "left before it had reported an outcome".to_owned(),
        Lost::Away => "lost its connection and did not come back".to_owned(),
        Lost::Silent => format!("has not reported for {:.1} s", quiet.as_secs_f64()),
        Lost::Deaf => "no longer answers the broker".to_owned(),
    };
    let message = format!(
        "process {pid}, which ran this execution and reported it here, {what}; \
         its last event was #{} {:.1} s ago",
        execution.last,
        quiet.as_secs_f64()
    );
    // A worker that waits begins by itself once it has lost its broker.
    let alone = !execution.launched && matches!(how, Lost::Away | Lost::Silent | Lost::Deaf);
    let begun = execution.granted || alone;
    Fault::new(Code::Unavailable, message)
        .with_effect(if begun { SideEffect::Unknown } else { SideEffect::None })
        .because(match how {
            Lost::Gone => "process_gone",
            Lost::Left => "process_left",
            Lost::Away => "connection_lost",
            Lost::Silent => "silent",
            Lost::Deaf => "deaf",
        })
        .hint(if begun {
            "see what it did before starting it again; the terminal that ran it may have the outcome"
        } else {
            "nothing had begun; starting it again is safe"
        })
        .about(execution.id)
}
