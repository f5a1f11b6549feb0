//! The ledger: what came out of everybody, in order. It knows nothing of anybody's inside.
//!
//! Decodes batches by itself, so that a fault in the contract's own decoder is no blind spot.

use std::collections::BTreeMap;

use bytes::Bytes;
use reeve_broker::plane::{
    Input, Record, Reply, RequestId, Shown, Sweep, ToWorker, WorkerFrame, WorkerId,
};
use reeve_broker::store::Appended;
use reeve_protocol::batch::{Entry, HEADER};
use reeve_protocol::peer::Fenced;
use reeve_protocol::{Batch, Class, Code, ExecutionId, Fence, Handle, Kind, Seq, Stamped, State};

use crate::faults::{Fault, MS, Plan};
use crate::properties::{self, Violation};
use crate::rng::digest;

/// The digest of a position whose content its worker shed.
pub const SHED: u64 = 0;

/// One execution in one life of the broker, as it was sent to the store.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    pub id: Option<ExecutionId>,
    /// A digest of what stands at each position.
    pub positions: Vec<u64>,
    pub state: State,
    pub error: Option<Code>,
    pub reason: Option<String>,
    pub finals: usize,
    pub started: bool,
    pub queued: u32,
    pub first_at: u64,
    pub final_at: Option<u64>,
    /// The last position that the store has said to have.
    pub stored: Seq,
    pub stored_state: State,
    pub published: Seq,
    pub acked: BTreeMap<Fence, Seq>,
    /// The newest fence that was granted, and to which process.
    pub granted: Option<(Fence, Option<usize>)>,
    pub forgotten: bool,
}

impl Kept {
    pub fn last(&self) -> Seq {
        Seq(self.positions.len() as u64)
    }
}

/// One execution in one life of the broker, by its name.
#[derive(Clone, Debug, Default)]
pub struct Known {
    pub handle: Option<Handle>,
    pub arrived: u64,
    pub granted: bool,
    pub launches: u32,
    /// It had begun without this broker's leave.
    pub adopted: bool,
    pub cancel: Option<RequestId>,
    pub owner: Option<WorkerId>,
    /// The same as of the last check.
    pub owner_at_check: Option<WorkerId>,
    pub process: Option<usize>,
}

/// When a worker's connection was last heard from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heard {
    pub at: u64,
    /// The same as of the last check, which is what decides.
    pub at_check: u64,
    pub closed_at: Option<u64>,
    pub bye: bool,
}

/// Everything that came out.
pub struct Ledger {
    pub plan: Plan,
    pub kept: BTreeMap<(u64, Handle), Kept>,
    pub known: BTreeMap<(u64, ExecutionId), Known>,
    pub locks: BTreeMap<ExecutionId, Option<String>>,
    pub heard: BTreeMap<(u64, WorkerId), Heard>,
    /// When the broker did not run.
    pub stops: Vec<(u64, u64)>,
    pub arrivals: u64,
    /// Ids whose worker was told that they are over, and by whom it was heard.
    pub fenced: BTreeMap<ExecutionId, State>,
    pub fenced_heard: BTreeMap<(usize, ExecutionId), State>,
    pub begun: BTreeMap<ExecutionId, Vec<usize>>,
    pub tree_since: BTreeMap<ExecutionId, u64>,
    pub views: BTreeMap<(usize, ExecutionId), crate::views::View>,
    pub subscribed_at: BTreeMap<usize, u64>,
    pub cancels: BTreeMap<(u64, RequestId), ExecutionId>,
    pub violation: Option<Violation>,
    pub now: u64,
}

impl Ledger {
    pub fn new(plan: &Plan) -> Self {
        Self {
            plan: plan.clone(),
            kept: BTreeMap::new(),
            known: BTreeMap::new(),
            locks: BTreeMap::new(),
            heard: BTreeMap::new(),
            stops: Vec::new(),
            arrivals: 0,
            fenced: BTreeMap::new(),
            fenced_heard: BTreeMap::new(),
            begun: BTreeMap::new(),
            tree_since: BTreeMap::new(),
            views: BTreeMap::new(),
            subscribed_at: BTreeMap::new(),
            cancels: BTreeMap::new(),
            violation: None,
            now: 0,
        }
    }

    /// Notes the first property that did not hold.
    pub fn fail(&mut self, property: &'static str, text: String) {
        self.violation.get_or_insert(Violation { property, text });
    }

    /// Notes what a property said.
    pub fn check(&mut self, property: &'static str, result: Result<(), String>) {
        if let Err(text) = result {
            self.fail(property, text);
        }
    }

    pub fn has(&self, fault: Fault) -> bool {
        self.plan.strikes.iter().any(|(other, _)| *other == fault)
    }

    pub fn on_described(&mut self, id: ExecutionId, lock: Option<String>) {
        self.locks.insert(id, lock);
    }

    pub fn on_broker_stop(&mut self, from: u64, until: u64) {
        self.stops.push((from, until));
    }

    pub fn on_broker_continue(&mut self, now: u64) {
        if let Some(stop) = self.stops.last_mut() {
            stop.1 = stop.1.min(now);
        }
    }

    pub fn on_restart(&mut self, _life: u64) {
        if let Some(stop) = self.stops.last_mut() {
            stop.1 = stop.1.min(self.now);
        }
    }

    pub fn on_input(
        &mut self,
        life: u64,
        input: &Input,
        watched: &BTreeMap<WorkerId, usize>,
        now: u64,
    ) {
        self.now = now;
        match input {
            Input::WorkerJoined { worker, .. } => {
                self.heard.insert((life, *worker), Heard { at: now, ..Heard::default() });
            }
            Input::Frames { worker, frames } => {
                self.heard.entry((life, *worker)).or_default().at = now;
                for frame in frames {
                    match frame {
                        WorkerFrame::Attach(attach) => {
                            let begun = attach.fence.is_some() || attach.last > Seq::NONE;
                            let process = watched.get(worker).copied();
                            self.arrives(life, attach.execution, begun, Some(*worker), process);
                        }
                        WorkerFrame::Bye => {
                            self.heard.entry((life, *worker)).or_default().bye = true;
                        }
                        _ => {}
                    }
                }
            }
            Input::Closed { worker } => {
                self.heard.entry((life, *worker)).or_default().closed_at = Some(now);
            }
            Input::Start { id, .. } => self.arrives(life, *id, false, None, None),
            Input::Subscribe { .. } => {}
            _ => {}
        }
    }

    /// Takes that the broker looks whom it has not heard; what it does about it is kept later.
    pub fn on_timeout(&mut self) {
        for heard in self.heard.values_mut() {
            heard.at_check = heard.at;
        }
        for known in self.known.values_mut() {
            known.owner_at_check = known.owner;
        }
    }

    fn arrives(
        &mut self,
        life: u64,
        id: ExecutionId,
        begun: bool,
        worker: Option<WorkerId>,
        process: Option<usize>,
    ) {
        self.arrivals += 1;
        let arrivals = self.arrivals;
        let known = self
            .known
            .entry((life, id))
            .or_insert_with(|| Known { arrived: arrivals, ..Known::default() });
        known.adopted |= begun && !known.granted;
        if known.process.is_none() || known.process == process {
            known.owner = worker.or(known.owner);
            known.process = process.or(known.process);
        }
    }

    pub fn on_append(&mut self, life: u64, records: &[Record], now: u64) {
        self.now = now;
        for record in records {
            match record {
                Record::Events(batch) => self.keep(life, batch, now),
                Record::Forget(handle) => {
                    let kept = self.kept.get(&(life, *handle)).cloned();
                    let result = properties::only_the_finished_are_forgotten(kept.as_ref());
                    self.check("limits", result);
                    if let Some(kept) = self.kept.get_mut(&(life, *handle)) {
                        kept.forgotten = true;
                    }
                }
            }
        }
    }

    fn keep(&mut self, life: u64, batch: &Batch, now: u64) {
        let handle = batch.handle();
        let kept = self.kept.entry((life, handle)).or_default();
        if kept.positions.is_empty() {
            kept.first_at = now;
        }
        let mut results = vec![
            ("dense", properties::dense(kept, batch)),
            ("fences", properties::no_older_fence(kept, batch)),
        ];
        kept.positions.extend(contents(batch));
        if batch.class() == Class::Events {
            let mut seq = batch.first();
            for entry in batch.entries().unwrap_or_default() {
                let Entry::Event(event) = entry else { continue };
                results.push(("moves", properties::legal(kept, seq, &event.kind)));
                kept.fold(&event, now);
                seq = seq.next();
            }
        } else {
            let result = properties::works(kept, batch);
            results.push(("moves", result));
        }
        let lost = kept.reason.clone().filter(|_| kept.final_at == Some(now));
        let id = kept.id;
        for (property, result) in results {
            self.check(property, result);
        }
        if let (Some(reason), Some(id)) = (lost, id) {
            let result = properties::is_truly_lost(self, life, id, &reason);
            self.check("leases", result);
        }
    }

    pub fn on_stored(&mut self, life: u64, _appended: &Appended) {
        for ((of, _), kept) in &mut self.kept {
            if *of == life {
                kept.stored = kept.last();
                kept.stored_state = kept.state;
            }
        }
    }

    pub fn on_publish(&mut self, life: u64, shown: &Shown) {
        let kept = self.kept.entry((life, shown.handle)).or_default();
        kept.id = Some(shown.snapshot.id);
        let result = properties::shows_what_is_stored(kept, shown);
        kept.published = shown.last;
        let known = self.known.entry((life, shown.snapshot.id)).or_default();
        known.handle = Some(shown.handle);
        self.check("publish", result);
        if self.plan.slow_store == 0 {
            let known = &self.known[&(life, shown.snapshot.id)];
            self.check("publish", properties::what_runs_does_not_wait(known, shown));
        }
        let result = properties::late_only_after_a_fence(self, life, shown);
        self.check("late reports", result);
    }

    pub fn on_unpublish(&mut self, _life: u64, _handle: Handle) {}

    pub fn on_send(
        &mut self,
        life: u64,
        worker: WorkerId,
        owner: Option<usize>,
        message: &ToWorker,
        trees: &BTreeMap<ExecutionId, usize>,
    ) {
        match message {
            ToWorker::Grant(grant) => {
                let kept = self.kept.entry((life, grant.handle)).or_default();
                kept.id = Some(grant.execution);
                let fences = properties::fence_rises(kept, grant.fence, owner);
                kept.granted = Some((grant.fence, owner));
                let known = self.known.entry((life, grant.execution)).or_default();
                known.handle = Some(grant.handle);
                (known.owner, known.process) = (Some(worker), owner);
                let first = !std::mem::replace(&mut known.granted, true);
                let (launched, adopted) = (known.launches > 0, known.adopted);
                self.check("fences", fences);
                if first && !launched && !adopted {
                    let id = grant.execution;
                    let lock = properties::lock_is_free(self, life, id, trees);
                    self.check("locks", lock);
                    let order = properties::first_come_first_served(self, life, id);
                    self.check("locks", order);
                }
            }
            ToWorker::Ack(ack) => {
                let kept = self.kept.entry((life, ack.handle)).or_default();
                let fence = kept.granted.map(|(fence, _)| fence).unwrap_or_default();
                let result = properties::acks_what_is_stored(kept, fence, ack);
                kept.acked.insert(fence, ack.through);
                self.check("acks", result);
            }
            ToWorker::Fenced(fenced) => {
                let state = self.fenced.entry(fenced.execution).or_insert(fenced.state);
                *state = fenced.state;
            }
            ToWorker::Attached(_) | ToWorker::Cancel(_) | ToWorker::Ping(_) => {}
        }
    }

    pub fn on_launch(&mut self, life: u64, id: ExecutionId, trees: &BTreeMap<ExecutionId, usize>) {
        let known = self.known.entry((life, id)).or_default();
        known.launches += 1;
        let again = known.launches > 1;
        let result = properties::launches(self, life, id);
        self.check("launches", result);
        let lock = properties::lock_is_free(self, life, id, trees);
        self.check("locks", lock);
        if !again {
            let order = properties::first_come_first_served(self, life, id);
            self.check("locks", order);
        }
        let running = properties::running_is_bounded(self, life);
        self.check("limits", running);
    }

    pub fn on_close(&mut self, reason: &str) {
        self.fail("honest peers", format!("a worker is cut off: {reason}"));
    }

    pub fn on_disconnect(&mut self, reason: &str) {
        self.fail("honest peers", format!("a worker breaks off: {reason}"));
    }

    pub fn on_sweep(&mut self, _sweep: &Sweep) {}

    pub fn on_gauges(
        &mut self,
        gauges: reeve_broker::plane::Gauges,
        limits: &reeve_protocol::Limits,
    ) {
        if gauges.active > limits.max_active {
            self.fail("limits", format!("{} active of {}", gauges.active, limits.max_active));
        }
    }

    pub fn on_cancel(&mut self, life: u64, request: RequestId, id: ExecutionId) {
        self.cancels.insert((life, request), id);
    }

    pub fn on_reply(&mut self, life: u64, request: RequestId, reply: &Reply) {
        let (outcome, shown) = match reply {
            Reply::Started(shown) => ("started", shown),
            Reply::Cancelled { outcome, shown } => (*outcome, shown),
            Reply::Subbed { .. } | Reply::Refused(_) => return,
        };
        let kept = self.kept.entry((life, shown.handle)).or_default().clone();
        self.check("publish", properties::shows_what_is_stored(&kept, shown));
        let id = shown.snapshot.id;
        if outcome == "requested" {
            let known = self.known.entry((life, id)).or_default();
            known.cancel = Some(request);
            let (granted, launched) = (known.granted || known.adopted, known.launches > 0);
            let result = properties::what_waits_is_cancelled(shown, granted || launched);
            self.check("cancels", result);
        }
    }

    pub fn on_begin(&mut self, process: usize, id: ExecutionId, launched: bool) {
        let over = self.fenced_heard.get(&(process, id)).copied();
        let before = self.begun.entry(id).or_default();
        let result = properties::begins_once(before, process, id, launched, over);
        before.push(process);
        self.check("begins", result);
    }

    pub fn on_fenced_heard(&mut self, process: usize, fenced: &Fenced) {
        self.fenced_heard.insert((process, fenced.execution), fenced.state);
    }

    pub fn on_reported(&mut self, id: ExecutionId, state: State, last: Seq, error: Option<Code>) {
        let same = self.kept.values().any(|kept| {
            kept.id == Some(id)
                && kept.stored_state == state
                && kept.stored == last
                && kept.error == error
        });
        if !same {
            let text = format!("{id} was reported as {state} at {last}, and no store says so");
            self.fail("worker's view", text);
        }
    }

    pub fn on_reported_fenced(
        &mut self,
        id: ExecutionId,
        state: State,
        ended: &reeve_worker::session::Ended,
    ) {
        if !self.fenced.contains_key(&id) {
            self.fail("worker's view", format!("{id} was never fenced"));
        }
        if ended.state == State::Succeeded && state == State::Succeeded {
            let text = format!("{id} ended as its worker said, and the worker is told otherwise");
            self.fail("worker's view", text);
        }
    }

    pub fn dead_is_final(&mut self, life: u64, process: usize, ids: &[ExecutionId]) {
        for id in ids {
            let result = properties::what_the_dead_ran_is_over(self, life, process, *id);
            self.check("death", result);
        }
    }

    /// Returns an execution of a life by its name.
    pub fn of(&self, life: u64, id: ExecutionId) -> Option<&Kept> {
        let handle = self.known.get(&(life, id))?.handle?;
        self.kept.get(&(life, handle))
    }

    /// Returns for how long the broker has run since a moment.
    pub fn ran_since(&self, at: u64) -> u64 {
        // Short stops do not make a check void, so they are no excuse.
        let beat = u64::try_from(self.plan.limits.heartbeat.as_micros()).unwrap_or(0);
        let stopped: u64 = self
            .stops
            .iter()
            .map(|(from, until)| (*from.max(&at), *until.min(&self.now)))
            .filter(|(from, until)| until.saturating_sub(*from) > 2 * beat + 50 * MS)
            .map(|(from, until)| until - from - beat)
            .sum();
        (self.now - at).saturating_sub(stopped)
    }
}

impl Kept {
    fn fold(&mut self, event: &Stamped, now: u64) {
        if let Some(state) = event.kind.moves_to() {
            self.state = state;
        }
        match &event.kind {
            Kind::Started {} => self.started = true,
            Kind::Queued { .. } => self.queued += 1,
            Kind::Failed { error, .. } => {
                self.error = Some(error.code);
                self.reason = error.reason.clone().filter(|_| error.code == Code::Unavailable);
            }
            Kind::Cancelled { .. } => self.error = Some(Code::Cancelled),
            _ => {}
        }
        if self.state.is_final() {
            self.finals += 1;
            self.final_at = Some(now);
        }
    }
}

/// Returns a digest of what stands at each position of a batch, by a decoder of its own.
pub fn contents(batch: &Batch) -> Vec<u64> {
    let bytes: &Bytes = batch.bytes();
    if batch.class() == Class::Lost {
        return vec![SHED; batch.count() as usize];
    }
    let mut digests = Vec::with_capacity(batch.count() as usize);
    let mut rest = &bytes[HEADER..];
    while rest.len() >= 5 {
        let length = u32::from_be_bytes(rest[1..5].try_into().expect("four bytes")) as usize;
        let payload = &rest[5..5 + length];
        if rest[0] == 0 {
            digests.push(digest(1, payload));
        } else {
            let (head, text) = (&payload[..9], &payload[13..]);
            for line in text.split_inclusive(|byte| *byte == b'\n') {
                digests.push(digest(digest(2, head), line));
            }
        }
        rest = &rest[5 + length..];
    }
    digests
}
