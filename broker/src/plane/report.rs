//! Reports: what workers bring, applied once and in order.

use reeve_protocol::mutant;
use reeve_protocol::peer::{Ack, Attach, Fenced, Late, Released};
use reeve_protocol::snapshot::{LateReport, ProcessSeen, WorkerSeen};
use reeve_protocol::{Batch, Code, Fault, Fence, Handle, Now, Seq, State};

use super::Plane;
use super::effect::{Effect, Record, ToWorker};
use super::execution::{Accepted, Writer};
use super::input::{WorkerFrame, WorkerId};

/// The highest fence that a worker may bring: every broker counts up from 1.
const FENCE_MAX: Fence = Fence(u64::MAX / 2);

/// Processes that survived and are named, at most.
const SURVIVORS_MAX: usize = 10;
/// Characters of the name of each.
const SURVIVOR_CHARS_MAX: usize = 100;

impl Plane {
    pub(super) fn on_frame(&mut self, worker: WorkerId, frame: WorkerFrame, now: Now) {
        if !self.workers.get(&worker).is_some_and(|known| known.connected) {
            return;
        }
        self.heard(worker, now);
        match frame {
            WorkerFrame::Attach(attach) => self.on_attach(worker, *attach, now),
            WorkerFrame::Batch(batch) => self.on_batch(worker, &batch, now),
            WorkerFrame::Heartbeat => {}
            WorkerFrame::Pong(nonce) => self.on_pong(worker, nonce),
            WorkerFrame::Tree(started) => {
                if let Some(handle) = self.own(worker, started.execution) {
                    let execution = self.executions.get_mut(&handle).expect("it was looked up");
                    execution.tree = Some(started.tree);
                }
            }
            WorkerFrame::Released(released) => self.on_released(worker, &released, now),
            WorkerFrame::Late(late) => self.on_late(late, now),
            WorkerFrame::Bye => {
                if let Some(known) = self.workers.get_mut(&worker) {
                    known.bye = true;
                }
            }
        }
    }

    fn on_attach(&mut self, worker: WorkerId, mut attach: Attach, now: Now) {
        if attach.fence.is_some_and(|fence| fence > FENCE_MAX) {
            let reason = format!("bad_frame: no broker grants a fence above {FENCE_MAX}");
            return self.close(worker, reason);
        }
        if let Some(&(state, last)) = self.forgotten.get(&attach.execution) {
            return self.fence_off(worker, &attach, state, last, None);
        }
        match self.by_id.get(&attach.execution) {
            Some(&handle) => self.on_attach_known(worker, handle, attach, now),
            None if self.active >= self.limits.max_active => {
                let fault = Fault::new(
                    Code::Busy,
                    format!(
                        "max_active is {}: no further execution is taken",
                        self.limits.max_active
                    ),
                )
                .because("too_many_active")
                .hint("it runs on without being watched; try again when some have ended");
                self.fence_off(worker, &attach, State::Queued, Seq::NONE, Some(fault));
            }
            None => {
                attach.description.clean(attach.execution, &self.limits);
                self.on_attach_new(worker, attach, now);
            }
        }
    }

    fn on_attach_new(&mut self, worker: WorkerId, attach: Attach, now: Now) {
        let handle = self.create(attach.execution, attach.description, now);
        self.own_it(worker, handle);
        if attach.fence.is_none() && attach.last == Seq::NONE {
            self.announce(handle, now);
            return self.enqueue(handle, now);
        }
        // It has a history that no broker holds any more: the worker sends it from 1.
        let execution = self.executions.get_mut(&handle).expect("it was just made");
        execution.fence = attach.fence.unwrap_or_default();
        execution.tree = attach.tree;
        self.hold_lock(handle);
        self.grant(handle);
    }

    fn on_attach_known(&mut self, worker: WorkerId, handle: Handle, attach: Attach, now: Now) {
        let process = self.workers[&worker].process.clone();
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        let state = execution.snapshot.state;
        let same = execution.process.as_ref().is_some_and(|known| {
            known.pid == process.pid && known.start_ticks == process.start_ticks
        });
        // A grant may have been lost with its connection: the same process is told once more.
        let stale = !same && attach.fence.is_some_and(|fence| fence < execution.fence);
        if state.is_final() || stale {
            let (last, error) = (execution.last, execution.snapshot.error.clone());
            return self.fence_off(worker, &attach, state, last, error);
        }
        let launching = execution.launched && execution.process.is_none();
        if launching && execution.is_waiting() {
            let fault = Fault::new(Code::Fenced, "another worker is to be made for this execution");
            let last = execution.last;
            return self.fence_off(worker, &attach, State::Failed, last, Some(fault));
        }
        if !launching && !same {
            let fault = Fault::new(Code::Forbidden, "another process runs this execution");
            let last = execution.last;
            return self.fence_off(worker, &attach, State::Failed, last, Some(fault));
        }
        let newer = execution.worker.filter(|current| *current > worker);
        if newer.is_some_and(|current| self.workers.get(&current).is_some_and(|it| it.connected)) {
            return; // It has come back since: this was said on a connection that it has given up.
        }
        if let Some(at) = execution.reattach_by.take() {
            self.reattach.remove(&(at, handle));
        }
        execution.tree = attach.tree.or(execution.tree);
        let waiting = execution.is_waiting();
        // Whoever was not granted and has numbered something has begun by itself.
        let has_begun = attach.last > Seq::NONE;
        let before = execution.worker;
        if let Some(before) = before.filter(|before| *before != worker) {
            self.disown(before, handle);
        }
        self.own_it(worker, handle);
        if waiting && has_begun && !mutant::on("waits while it runs") {
            self.dequeue(handle);
            self.hold_lock(handle);
            self.grant(handle);
        } else if waiting {
            self.grant_waiting(now);
        } else if launching {
            self.grant(handle);
        } else {
            self.send_grant(handle);
        }
        if !mutant::on("cancel lost on coming back") {
            self.send_cancel(handle);
        }
    }

    fn own_it(&mut self, worker: WorkerId, handle: Handle) {
        let known = self.workers.get_mut(&worker).expect("only known workers are heard");
        known.executions.insert(handle);
        let process = known.process.clone();
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        let old = execution.worker.replace(worker);
        let snapshot = std::sync::Arc::make_mut(&mut execution.snapshot);
        snapshot.worker = Some(WorkerSeen { pid: process.pid, role: process.name.clone() });
        if snapshot.overlay.process != ProcessSeen::Alive {
            execution.overlay(|overlay| overlay.process = ProcessSeen::Alive);
        }
        execution.process = Some(process);
        self.pending.touched.insert(handle);
        let stale: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(id, other)| **id != worker && other.executions.contains(&handle))
            .map(|(id, _)| *id)
            .collect();
        for other in stale.into_iter().chain(old.filter(|old| *old != worker)) {
            self.disown(other, handle);
        }
    }

    fn on_batch(&mut self, worker: WorkerId, batch: &Batch, now: Now) {
        let handle = batch.handle();
        let Some(execution) = self.executions.get_mut(&handle) else {
            if handle.0 < self.next_handle {
                return; // Resent, and forgotten since: nothing is forgotten that is not stored.
            }
            let reason = format!("no execution has the handle {}; attach first", handle.0);
            return self.close(worker, reason);
        };
        let duplicate = batch.fence() == execution.fence
            && batch.last() <= execution.last
            && !mutant::on("no dedupe");
        let its_own = execution.worker == Some(worker);
        if duplicate && its_own {
            self.pending.acks.insert((worker, handle));
            return;
        }
        let open = execution.writer == Writer::Worker || mutant::on("event after the end");
        let writes = open && its_own;
        let stale = batch.fence() != execution.fence
            && !mutant::on("no fence check")
            && !(execution.snapshot.state.is_final() && mutant::on("event after the end"));
        if !writes || stale {
            return self.refuse_batch(worker, handle, u64::from(batch.count()));
        }
        if batch.entry_count() > self.limits.max_batch_events {
            let reason = format!(
                "a batch of {} entries; max_batch_events is {}: send the rest in the next one",
                batch.entry_count(),
                self.limits.max_batch_events
            );
            return self.close(worker, reason);
        }
        if batch.first() > execution.last.next() && !mutant::on("apply after a gap") {
            let beside = u64::from(mutant::on("resend from beside"));
            let resend_from = Some(execution.last.next().plus(beside));
            return self.ack(worker, handle, resend_from);
        }
        match execution.accept(batch, &self.limits) {
            Accepted::All(taken) => self.take(worker, handle, taken, now),
            Accepted::Prefix(taken, refused) => {
                let kept = taken.as_ref().map_or(0, |taken| u64::from(taken.count()));
                self.refused_events += u64::from(batch.count()) - kept;
                self.take(worker, handle, taken, now);
                if self.executions[&handle].snapshot.state.is_final() {
                    self.tell_fenced(handle);
                } else {
                    self.close(worker, refused.to_string());
                }
            }
            Accepted::Malformed(what) => self.close(worker, what),
        }
    }

    fn take(&mut self, worker: WorkerId, handle: Handle, taken: Option<Batch>, now: Now) {
        self.pending.acks.insert((worker, handle));
        let Some(batch) = taken else { return };
        self.pending.records.push(Record::Events(batch));
        self.pending.touched.insert(handle);
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        if execution.snapshot.state.is_final() {
            execution.writer = Writer::Broker;
            self.settle(handle, now);
        }
    }

    fn refuse_batch(&mut self, worker: WorkerId, handle: Handle, count: u64) {
        self.refused_events += count;
        let execution = &self.executions[&handle];
        let message = ToWorker::Fenced(Box::new(Fenced {
            execution: execution.id,
            state: execution.snapshot.state,
            last: execution.last,
            error: execution.snapshot.error.clone(),
        }));
        self.pending.after.push(Effect::Send { worker, message });
    }

    fn on_released(&mut self, worker: WorkerId, released: &Released, now: Now) {
        let Some(handle) = self.own(worker, released.execution) else { return };
        let execution = self.executions.get_mut(&handle).expect("it was looked up");
        if released.survivors.is_empty() {
            execution.tree = None;
        } else {
            let named = released.survivors.iter().take(SURVIVORS_MAX);
            let named: Vec<String> = named
                .map(|name| reeve_protocol::sanitise::text(name, SURVIVOR_CHARS_MAX))
                .collect();
            let held = format!("processes survived: {}", named.join(", "));
            execution.overlay(|overlay| overlay.held = Some(held));
            self.pending.touched.insert(handle);
        }
        self.settle(handle, now);
    }

    fn on_late(&mut self, late: Late, now: Now) {
        let Some(&handle) = self.by_id.get(&late.execution) else { return };
        let execution = self.executions.get_mut(&handle).expect("an id names an execution");
        if !execution.snapshot.state.is_final() || late.fence > execution.fence {
            return;
        }
        let report = LateReport {
            at: now.wall,
            state: late.state,
            message: reeve_protocol::sanitise::text(&late.message, self.limits.max_line_chars),
            unsent_events: late.unsent_events,
        };
        execution.overlay(|overlay| overlay.late_report = Some(report));
        self.pending.touched.insert(handle);
    }

    /// Returns the execution if it is this worker's.
    fn own(&self, worker: WorkerId, id: reeve_protocol::ExecutionId) -> Option<Handle> {
        let handle = *self.by_id.get(&id)?;
        self.workers.get(&worker)?.executions.contains(&handle).then_some(handle)
    }

    fn fence_off(
        &mut self,
        worker: WorkerId,
        attach: &Attach,
        state: State,
        last: Seq,
        error: Option<Fault>,
    ) {
        let message =
            ToWorker::Fenced(Box::new(Fenced { execution: attach.execution, state, last, error }));
        self.pending.after.push(Effect::Send { worker, message });
    }

    pub(super) fn ack(&mut self, worker: WorkerId, handle: Handle, resend_from: Option<Seq>) {
        let Some(execution) = self.executions.get(&handle) else { return };
        if !self.workers.get(&worker).is_some_and(|known| known.connected) {
            return;
        }
        let early = mutant::on("ack before store");
        let through = if early { execution.last } else { execution.stored };
        let message = ToWorker::Ack(Ack { handle, through, resend_from });
        self.effects.push_back(Effect::Send { worker, message });
    }

    fn close(&mut self, worker: WorkerId, reason: String) {
        self.pending.after.push(Effect::Close { worker, reason });
    }
}
