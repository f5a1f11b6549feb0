//! The queue: who may begin. Named locks bind every execution; slots only those that the broker
//! makes workers for.
//!
//! First come, first served per lock and among those that need a slot; an execution that waits
//! for one thing never holds up another that waits for something else.

use std::collections::BTreeSet;

use reeve_protocol::mutant;
use reeve_protocol::peer::{Attached, Grant};
use reeve_protocol::snapshot::WaitingOn;
use reeve_protocol::{ExecutionId, Handle, Kind, Now, Seq};

use super::Plane;
use super::effect::{Effect, ToWorker};
use super::execution::Writer;

impl Plane {
    pub(super) fn enqueue(&mut self, handle: Handle, now: Now) {
        if mutant::on("last come, first served") {
            self.queue.push_front(handle);
        } else {
            self.queue.push_back(handle);
        }
        self.grant_waiting(now);
    }

    /// Takes an execution out of the queue: it waits for nothing any more.
    pub(super) fn dequeue(&mut self, handle: Handle) {
        self.queue.retain(|waiting| *waiting != handle);
        let execution = self.executions.get_mut(&handle).expect("the queue names executions");
        if execution.snapshot.overlay.waiting_on.is_some() {
            execution.overlay(|overlay| overlay.waiting_on = None);
            self.pending.touched.insert(handle);
        }
    }

    /// Lets everybody begin who may, and tells the others what they wait for.
    pub(super) fn grant_waiting(&mut self, now: Now) {
        let mut blocked_locks = BTreeSet::new();
        let mut slots_blocked = false;
        for handle in Vec::from(std::mem::take(&mut self.queue)) {
            let execution = &self.executions[&handle];
            let lock = execution.description.lock.clone();
            let waits = match &lock {
                Some(lock) if blocked_locks.contains(lock) || self.is_held(lock) => {
                    Some(self.lock_wait(lock))
                }
                _ if execution.launched && (slots_blocked || self.slots_used >= self.slots()) => {
                    slots_blocked = true;
                    Some(self.slot_wait())
                }
                _ if !execution.launched && execution.worker.is_none() => Some(WaitingOn {
                    kind: "worker".to_owned(),
                    detail: "its worker's connection ended; it has a moment to come back"
                        .to_owned(),
                    execution_id: None,
                }),
                _ => None,
            };
            match waits {
                Some(waits) => {
                    blocked_locks.extend(lock);
                    self.queue.push_back(handle);
                    self.tell_wait(handle, waits);
                }
                None => self.begin(handle, now),
            }
        }
    }

    /// Takes the lock and the slot, and hands the execution to its worker.
    fn begin(&mut self, handle: Handle, now: Now) {
        self.hold_lock(handle);
        let execution = self.executions.get_mut(&handle).expect("the queue names executions");
        if execution.snapshot.overlay.waiting_on.is_some() {
            execution.overlay(|overlay| overlay.waiting_on = None);
            self.pending.touched.insert(handle);
        }
        if !execution.launched {
            return self.grant(handle);
        }
        execution.slot_held = true;
        execution.launches += 1;
        execution.heard_at = now.mono;
        self.slots_used += 1;
        self.pending.after.push(Effect::Launch { id: execution.id, attempt: execution.launches });
    }

    pub(super) fn hold_lock(&mut self, handle: Handle) {
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        if let Some(lock) = &execution.description.lock {
            execution.lock_held = true;
            self.locks.entry(lock.clone()).or_default().insert(handle);
        }
    }

    /// Gives the lock of a final execution back, unless its process tree may live.
    pub(super) fn free_lock(&mut self, handle: Handle, now: Now) {
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        let early = mutant::on("lock freed before its tree is empty");
        if (execution.tree.is_some() || execution.sweeping) && !early {
            return;
        }
        if execution.snapshot.overlay.held.is_some() {
            execution.overlay(|overlay| overlay.held = None);
            self.pending.touched.insert(handle);
        }
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        if std::mem::take(&mut execution.lock_held) {
            let lock = execution.description.lock.as_ref().expect("it held one");
            let holders = self.locks.get_mut(lock).expect("a held lock is listed");
            holders.remove(&handle);
            if holders.is_empty() {
                self.locks.remove(lock);
            }
        }
        self.evict();
        self.grant_waiting(now);
    }

    /// Makes the worker the writer, once that is stored.
    pub(super) fn grant(&mut self, handle: Handle) {
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        execution.fence = execution.fence.next();
        execution.writer = Writer::Worker;
        execution.granted = true;
        self.send_grant(handle);
    }

    /// Tells the worker that it is the writer, and where to go on.
    pub(super) fn send_grant(&mut self, handle: Handle) {
        let execution = &self.executions[&handle];
        let Some(worker) = execution.worker else { return };
        let grant = Grant {
            execution: execution.id,
            handle,
            fence: execution.fence,
            next: execution.last.next(),
            events: execution.broker_events.clone(),
        };
        self.pending.after.push(Effect::Send { worker, message: ToWorker::Grant(Box::new(grant)) });
    }

    fn tell_wait(&mut self, handle: Handle, waits: WaitingOn) {
        let ahead = self.queue.iter().take_while(|waiting| **waiting != handle).count() as u64;
        let execution = self.executions.get_mut(&handle).expect("the queue names executions");
        if execution.snapshot.overlay.waiting_on.as_ref() == Some(&waits) {
            return;
        }
        execution.overlay(|overlay| overlay.waiting_on = Some(waits.clone()));
        self.pending.touched.insert(handle);
        if let Some(worker) = execution.worker {
            let message = ToWorker::Attached(Attached {
                execution: execution.id,
                ahead,
                waiting_on: Some(waits),
            });
            self.pending.after.push(Effect::Send { worker, message });
        }
    }

    fn is_held(&self, lock: &str) -> bool {
        let ignored = mutant::on("lock is ignored");
        self.locks.get(lock).is_some_and(|holders| !holders.is_empty() && !ignored)
    }

    fn lock_wait(&self, lock: &str) -> WaitingOn {
        let holder = self.locks.get(lock).and_then(|holders| holders.first());
        let Some(execution) = holder.map(|handle| &self.executions[handle]) else {
            return WaitingOn {
                kind: "lock".to_owned(),
                detail: format!("{lock}: another execution waits for it first"),
                execution_id: None,
            };
        };
        let (kind, detail) = if execution.snapshot.state.is_final() {
            let pid = execution.tree.map(|tree| tree.pgid).unwrap_or_default();
            ("lost_tree", format!("{lock}: held by lost execution {} (pid {pid})", execution.id))
        } else {
            ("lock", format!("{lock}: held by {}", execution.id))
        };
        WaitingOn { kind: kind.to_owned(), detail, execution_id: Some(execution.id) }
    }

    fn slots(&self) -> usize {
        self.limits.max_running + usize::from(mutant::on("one slot more"))
    }

    fn slot_wait(&self) -> WaitingOn {
        WaitingOn {
            kind: "slot".to_owned(),
            detail: format!("{} of {} slots are taken", self.slots_used, self.limits.max_running),
            execution_id: None,
        }
    }

    pub(super) fn on_launch_failed(
        &mut self,
        id: ExecutionId,
        attempt: u8,
        message: &str,
        now: Now,
    ) {
        let Some(&handle) = self.by_id.get(&id) else { return };
        let execution = &self.executions[&handle];
        let launching = execution.launched && execution.slot_held && !execution.granted;
        if !launching || execution.process.is_some() || execution.launches != attempt {
            return;
        }
        if execution.cancel.is_some() {
            self.write(handle, [Kind::Cancelled { receipt: None }], now);
            return self.settle(handle, now);
        }
        if execution.launches < 2 {
            return self.requeue(handle, now);
        }
        let fault = reeve_protocol::Fault::new(
            reeve_protocol::Code::Internal,
            format!("no worker could be started: {message}"),
        );
        self.write(handle, [Kind::Failed { error: fault.about(id), receipt: None }], now);
        self.settle(handle, now);
    }

    /// Puts an execution whose worker was lost before it was granted back into the queue, once.
    pub(super) fn requeue(&mut self, handle: Handle, now: Now) {
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        execution.worker = None;
        execution.process = None;
        execution.slot_held = false;
        self.slots_used -= 1;
        let lock_was_held = std::mem::take(&mut execution.lock_held);
        if lock_was_held {
            let lock = execution.description.lock.as_ref().expect("it held one");
            self.locks.get_mut(lock).expect("a held lock is listed").remove(&handle);
        }
        self.write(handle, [Kind::Queued { ahead: self.queue.len() as u64 }], now);
        debug_assert!(self.executions[&handle].last > Seq::NONE);
        self.enqueue(handle, now);
    }
}
