//! The plane: the state machine that owns executions, leases, the queue and subscriptions.
//!
//! Every move of every execution is made here. An input is handled to its end at once; what it
//! leads to comes out as effects, in order. Nothing is shown, acknowledged or answered before
//! the store has it: what an input produced waits beside its records until `Stored` comes back,
//! and one append is under way at a time, so that commits group by themselves.
//!
//! Never does I/O, reads a clock, draws a number, waits or iterates in an order of chance. Time
//! and names are handed in, so a simulation drives the same code that runs.

mod effect;
mod execution;
mod input;
mod lease;
mod queue;
mod report;
mod subscriber;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use reeve_protocol::mutant;
use reeve_protocol::{
    Code, ExecutionId, Fault, Fence, Handle, Kind, Limits, Now, Seq, Stamped, State,
};

pub use self::effect::{Effect, Record, Reply, Shown, Sweep, ToWorker};
pub use self::input::{
    Input, RequestId, Seen, StartKey, SubscriberId, WorkerFrame, WorkerId, WorkerProcess,
};

use self::execution::Execution;
use self::lease::Worker;
use self::subscriber::Interest;

/// Ids of forgotten executions that are remembered, so that none is ever used again.
const TOMBSTONES_MAX: usize = 10_000;

/// An answer that waits until what it tells is stored.
enum Waiting {
    Started(Handle),
    Cancelled(Handle, &'static str),
}

/// What inputs have led to since the last append, and what must wait for it.
#[derive(Default)]
struct Pending {
    records: Vec<Record>,
    touched: BTreeSet<Handle>,
    acks: BTreeSet<(WorkerId, Handle)>,
    after: Vec<Effect>,
    replies: Vec<(RequestId, Waiting)>,
}

/// What is under way to the store, and what will be shown once it is there.
struct InFlight {
    pending: Pending,
    shown: Vec<Shown>,
}

/// How a plane is, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Executions remembered.
    pub remembered: usize,
    /// Executions that are not final.
    pub active: usize,
    /// Executions that wait.
    pub queued: usize,
    /// Connections of workers.
    pub workers: usize,
    /// Connections that follow something.
    pub subscribers: usize,
    /// Events that were refused: illegal moves, events after the end.
    pub refused_events: u64,
    /// Checks of silence that were void because the broker itself had not run.
    pub late_checks: u64,
}

/// The state machine inside the broker.
pub struct Plane {
    limits: Limits,
    epoch: String,
    executions: BTreeMap<Handle, Execution>,
    by_id: BTreeMap<ExecutionId, Handle>,
    forgotten: BTreeMap<ExecutionId, (State, Seq)>,
    forgotten_order: VecDeque<ExecutionId>,
    next_handle: u32,
    workers: BTreeMap<WorkerId, Worker>,
    /// The callers' names for starts, as long as what they started is remembered.
    keys: BTreeMap<String, (Handle, [u8; 32])>,
    queue: VecDeque<Handle>,
    locks: BTreeMap<String, BTreeSet<Handle>>,
    slots_used: usize,
    active: usize,
    reattach: BTreeSet<(Duration, Handle)>,
    next_check: Option<Duration>,
    checks: u64,
    interest: Interest,
    pending: Pending,
    in_flight: Option<InFlight>,
    effects: VecDeque<Effect>,
    refused_events: u64,
    late_checks: u64,
}

impl Plane {
    /// Makes a plane that knows nothing yet.
    pub fn new(limits: Limits, epoch: String) -> Self {
        Self {
            limits,
            epoch,
            executions: BTreeMap::new(),
            by_id: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            forgotten_order: VecDeque::new(),
            next_handle: 1,
            workers: BTreeMap::new(),
            keys: BTreeMap::new(),
            queue: VecDeque::new(),
            locks: BTreeMap::new(),
            slots_used: 0,
            active: 0,
            reattach: BTreeSet::new(),
            next_check: None,
            checks: 0,
            interest: Interest::default(),
            pending: Pending::default(),
            in_flight: None,
            effects: VecDeque::new(),
            refused_events: 0,
            late_checks: 0,
        }
    }

    /// Takes what happened.
    pub fn handle_input(&mut self, input: Input, now: Now) {
        match input {
            Input::WorkerJoined { worker, process } => self.on_worker_joined(worker, process, now),
            Input::Frames { worker, frames } => {
                for frame in frames {
                    self.on_frame(worker, frame, now);
                }
            }
            Input::Closed { worker } => self.on_closed(worker, now),
            Input::Looked { worker, seen, how } => self.on_looked(worker, seen, how, now),
            Input::Start { request, id, description, key } => {
                self.on_start(request, id, *description, key, now);
            }
            Input::LaunchFailed { id, attempt, message } => {
                self.on_launch_failed(id, attempt, &message, now);
            }
            Input::Cancel { request, id, by, force } => {
                self.on_cancel(request, id, &by, force, now);
            }
            Input::Subscribe { request, subscriber, executions, all } => {
                self.on_subscribe(request, subscriber, &executions, all);
            }
            Input::Unsubscribe { subscriber, executions } => {
                self.on_unsubscribe(subscriber, &executions);
            }
            Input::Stored { trimmed, bytes } => self.on_stored(&trimmed, bytes),
            Input::TreeLeft { id, pids } => self.on_tree_left(id, &pids),
            Input::TreeEmpty { id } => self.on_tree_empty(id, now),
        }
        self.flush();
    }

    /// Takes that time has passed; to be called at or after `poll_timeout`.
    pub fn handle_timeout(&mut self, now: Now) {
        self.check_silence(now);
        self.check_reattach(now);
        self.flush();
    }

    /// Returns the next thing to be done.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns when `handle_timeout` is due, as a reading of the monotonic clock.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let reattach = self.reattach.first().map(|(at, _)| *at);
        [self.next_check, reattach].into_iter().flatten().min()
    }

    /// Returns how the plane is.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            remembered: self.executions.len(),
            active: self.active,
            queued: self.queue.len(),
            workers: self.workers.values().filter(|worker| worker.connected).count(),
            subscribers: self.interest.subscribers(),
            refused_events: self.refused_events,
            late_checks: self.late_checks,
        }
    }

    /// Returns whether nothing runs, waits or watches.
    pub fn is_idle(&self) -> bool {
        self.active == 0 && self.interest.subscribers() == 0
    }

    fn on_start(
        &mut self,
        request: RequestId,
        id: ExecutionId,
        mut description: reeve_protocol::snapshot::Description,
        key: Option<StartKey>,
        now: Now,
    ) {
        if let Some(known) = key.as_ref().and_then(|key| self.keys.get(&key.name)) {
            let (handle, digest) = *known;
            if key.is_some_and(|key| key.digest == digest) {
                self.pending.touched.insert(handle);
                return self.pending.replies.push((request, Waiting::Started(handle)));
            }
            let first = self.executions[&handle].id;
            let message = format!("this idempotency key has started something else: {first}");
            let fault = Fault::new(Code::InvalidRequest, message).because("idempotency_conflict");
            return self.refuse(request, fault.hint("take a new key for a new start"));
        }
        if self.by_id.contains_key(&id) || self.forgotten.contains_key(&id) {
            let fault = Fault::new(Code::Internal, "the minted id is taken").because("id_taken");
            return self.refuse(request, fault.hint("start it again"));
        }
        if self.active >= self.limits.max_active {
            let fault = Fault::new(
                Code::Busy,
                format!("no further execution is taken: max_active is {}", self.limits.max_active),
            );
            return self.refuse(
                request,
                fault.because("too_many_active").hint("start it again when some have ended"),
            );
        }
        let waiting = self.queue.iter().filter(|handle| self.executions[*handle].launched).count();
        if waiting >= self.limits.max_queued {
            let fault = Fault::new(
                Code::Busy,
                format!("the queue is full: max_queued is {}", self.limits.max_queued),
            );
            return self.refuse(
                request,
                fault.because("queue_full").hint("start it again when some have ended"),
            );
        }
        description.clean(id, &self.limits);
        let handle = self.create(id, description, now);
        let execution = self.executions.get_mut(&handle).expect("it was just made");
        execution.launched = true;
        if let Some(StartKey { name, digest }) = key {
            execution.key = Some(name.clone());
            self.keys.insert(name, (handle, digest));
        }
        self.announce(handle, now);
        self.pending.replies.push((request, Waiting::Started(handle)));
        self.enqueue(handle, now);
    }

    fn on_cancel(&mut self, request: RequestId, id: ExecutionId, by: &str, force: bool, now: Now) {
        let Some(&handle) = self.by_id.get(&id) else {
            return self.refuse(request, not_found(id));
        };
        let execution = self.executions.get_mut(&handle).expect("an id names an execution");
        let outcome = if execution.snapshot.state.is_final() {
            "already_finished"
        } else if execution.cancel.is_some() && !force {
            "already_requested"
        } else {
            "requested"
        };
        if outcome == "requested" {
            self.ask_to_stop(handle, by, force, now);
        }
        self.pending.touched.insert(handle);
        self.pending.replies.push((request, Waiting::Cancelled(handle, outcome)));
    }

    fn ask_to_stop(&mut self, handle: Handle, by: &str, force: bool, now: Now) {
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        execution.cancel = Some((by.to_owned(), force));
        if execution.is_waiting() {
            self.dequeue(handle);
            self.write(handle, [Kind::Cancelled { receipt: None }], now);
            self.tell_fenced(handle);
            self.settle(handle, now);
            return;
        }
        if execution.snapshot.overlay.cancel_requested_at.is_none() {
            execution.overlay(|overlay| overlay.cancel_requested_at = Some(now.wall));
        }
        self.pending.touched.insert(handle);
        self.send_cancel(handle);
    }

    fn send_cancel(&mut self, handle: Handle) {
        let execution = &self.executions[&handle];
        let (Some(worker), Some((by, force))) = (execution.worker, &execution.cancel) else {
            return;
        };
        let message = ToWorker::Cancel(reeve_protocol::peer::Cancel {
            execution: execution.id,
            by: by.clone(),
            force: *force,
        });
        self.pending.after.push(Effect::Send { worker, message });
    }

    /// Makes an execution that has no event yet.
    fn create(
        &mut self,
        id: ExecutionId,
        description: reeve_protocol::snapshot::Description,
        now: Now,
    ) -> Handle {
        let handle = Handle(self.next_handle);
        self.next_handle = self.next_handle.checked_add(1).expect("a broker's life is shorter");
        self.by_id.insert(id, handle);
        self.executions.insert(handle, Execution::new(id, handle, description, now));
        self.active += 1;
        handle
    }

    /// Writes the first two events, which are the broker's.
    fn announce(&mut self, handle: Handle, now: Now) {
        self.write_created(handle, now);
        self.write(handle, [Kind::Queued { ahead: self.queue.len() as u64 }], now);
    }

    fn write_created(&mut self, handle: Handle, now: Now) {
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        // The snapshot has it, too.
        let input = std::mem::take(&mut execution.description.input);
        let created = Kind::Created {
            capability: execution.description.capability.clone(),
            title: execution.description.title.clone(),
            input,
        };
        self.write(handle, [created], now);
    }

    /// Writes events as the broker; it must be the writer, and they must be legal.
    fn write<const N: usize>(&mut self, handle: Handle, kinds: [Kind; N], now: Now) {
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        let events = kinds.map(|kind| Stamped { at: now.wall, kind });
        let batch = execution.write(&events, &self.limits);
        self.pending.records.push(Record::Events(batch));
        self.pending.touched.insert(handle);
    }

    /// Puts right what depends on an execution that may have become final.
    fn settle(&mut self, handle: Handle, now: Now) {
        let execution = self.executions.get_mut(&handle).expect("the caller looked it up");
        if !execution.snapshot.state.is_final() {
            return;
        }
        if !execution.settled {
            execution.settled = true;
            execution.clear_waits();
            // Only a worker that has to be told once more where it stands needs these.
            execution.broker_events = Vec::new();
            execution.description.input = serde_json::Value::Null;
            self.active -= 1;
            // Where its process is gone, what it leaves behind is seen to after its last words.
            let gone = execution.worker.and_then(|worker| self.workers.get(&worker));
            let leaves_tree = execution.tree.is_some() && gone.is_some_and(|it| it.gone);
            if !leaves_tree && let Some(at) = execution.reattach_by.take() {
                self.reattach.remove(&(at, handle));
            }
            if std::mem::take(&mut execution.slot_held) {
                self.slots_used -= 1;
            }
            self.evict();
        }
        self.free_lock(handle, now);
    }

    /// Forgets the oldest finished executions while there are too many.
    pub(super) fn evict(&mut self) {
        let beyond = usize::from(mutant::on("remembers one more"));
        while self.executions.len() > self.limits.max_executions + beyond {
            if !self.forget_oldest() {
                return;
            }
        }
    }

    fn forget_oldest(&mut self) -> bool {
        let oldest = self.executions.values().find(|execution| execution.may_be_forgotten());
        let Some(handle) = oldest.map(|execution| execution.handle) else {
            return false;
        };
        self.no_deadline(handle);
        let execution = self.executions.remove(&handle).expect("it was just found");
        self.by_id.remove(&execution.id);
        if let Some(key) = &execution.key {
            self.keys.remove(key);
        }
        self.forgotten.insert(execution.id, (execution.snapshot.state, execution.last));
        self.forgotten_order.push_back(execution.id);
        if self.forgotten_order.len() > TOMBSTONES_MAX {
            let oldest = self.forgotten_order.pop_front().expect("it is not empty");
            self.forgotten.remove(&oldest);
        }
        self.disown_everywhere(handle);
        self.pending.touched.remove(&handle);
        self.pending.records.push(Record::Forget(handle));
        self.pending.after.push(Effect::Unpublish { handle, id: execution.id });
        for subscriber in self.interest.forget(handle) {
            self.pending.after.push(Effect::Wake { subscriber, handle });
        }
        true
    }

    fn on_stored(&mut self, trimmed: &[Handle], bytes: usize) {
        let done = self.in_flight.take().expect("only an append under way is stored");
        for handle in trimmed {
            if let Some(execution) = self.executions.get_mut(handle) {
                execution.truncated = true;
            }
        }
        for mut shown in done.shown {
            shown.truncated |= trimmed.contains(&shown.handle);
            self.show(shown);
        }
        self.show_trimmed(trimmed);
        self.release(done.pending);
        // What ended with this append can be forgotten only now.
        self.evict();
        if bytes > self.limits.max_store_bytes {
            self.forget_oldest();
        }
    }

    /// Shows that something is gone of executions that had nothing new themselves.
    fn show_trimmed(&mut self, trimmed: &[Handle]) {
        for handle in trimmed {
            let shown = self.executions.get(handle).and_then(|execution| execution.shown.as_ref());
            let quiet = mutant::on("trimmed in silence");
            if let Some(shown) = shown.filter(|shown| !shown.truncated && !quiet) {
                self.show(Shown { truncated: true, ..shown.clone() });
            }
        }
    }

    /// Starts the next append, or shows at once what needs none.
    fn flush(&mut self) {
        if self.in_flight.is_some() {
            return;
        }
        let mut pending = std::mem::take(&mut self.pending);
        let shown: Vec<Shown> = pending
            .touched
            .iter()
            .filter_map(|handle| self.executions.get(handle))
            .filter(|execution| execution.last > Seq::NONE)
            .map(Execution::shown)
            .collect();
        if pending.records.is_empty() {
            for shown in shown {
                self.show(shown);
            }
            self.release(pending);
            return;
        }
        if mutant::on("publish before store") {
            shown.iter().for_each(|shown| self.show(shown.clone()));
        }
        let records = std::mem::take(&mut pending.records);
        self.in_flight = Some(InFlight { pending, shown });
        self.effects.push_back(Effect::Append(records));
    }

    fn show(&mut self, shown: Shown) {
        let handle = shown.handle;
        if let Some(execution) = self.executions.get_mut(&handle) {
            execution.stored = shown.last;
            execution.shown = Some(shown.clone());
        }
        self.effects.push_back(Effect::Publish(shown));
        for subscriber in self.interest.of(handle) {
            self.effects.push_back(Effect::Wake { subscriber, handle });
        }
    }

    /// Lets out what waited for the store.
    fn release(&mut self, pending: Pending) {
        for (worker, handle) in pending.acks {
            self.ack(worker, handle, None);
        }
        self.effects.extend(pending.after);
        for (request, waiting) in pending.replies {
            self.answer(request, &waiting);
        }
    }

    fn answer(&mut self, request: RequestId, waiting: &Waiting) {
        let handle = match waiting {
            Waiting::Started(handle) | Waiting::Cancelled(handle, _) => handle,
        };
        let shown = self.executions.get(handle).and_then(|execution| execution.shown.clone());
        let reply = match (waiting, shown) {
            (_, None) => Reply::Refused(Box::new(Fault::new(
                Code::NotFound,
                "the execution was forgotten before the answer was made",
            ))),
            (Waiting::Started(_), Some(shown)) => Reply::Started(Box::new(shown)),
            (Waiting::Cancelled(_, outcome), Some(shown)) => {
                Reply::Cancelled { outcome, shown: Box::new(shown) }
            }
        };
        self.effects.push_back(Effect::Reply { request, reply });
    }

    fn refuse(&mut self, request: RequestId, fault: Fault) {
        let reply = Reply::Refused(Box::new(fault));
        self.effects.push_back(Effect::Reply { request, reply });
    }
}

/// Says that nobody holds an execution of this name.
pub fn not_found(id: ExecutionId) -> Fault {
    Fault::new(Code::NotFound, format!("no execution {id} in this broker"))
        .hint("it never ran here, or it was forgotten; `reeve executions list` shows what is held")
        .about(id)
}

/// The fence before the first writer's.
const NO_FENCE: Fence = Fence(0);
