//! One execution: its snapshot, its writer, and what it holds.

use std::sync::Arc;
use std::time::Duration;

use reeve_protocol::batch::Entry;
use reeve_protocol::frame::FRAME_MAX;
use reeve_protocol::mutant;
use reeve_protocol::peer::Tree;
use reeve_protocol::snapshot::{Description, Overlay, Refused};
use reeve_protocol::{
    Batch, Class, ExecutionId, Fence, Handle, Limits, Now, Seq, Snapshot, Stamped, State,
};

use super::NO_FENCE;
use super::effect::Shown;
use super::input::{WorkerId, WorkerProcess};

/// Who owns the next position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// Before the first grant and after the last.
    Broker,
    /// The worker that holds the fence.
    Worker,
}

/// What became of a batch.
#[derive(Debug)]
pub(super) enum Accepted {
    /// All of it was taken; `None` if nothing of it was new.
    All(Option<Batch>),
    /// A prefix was taken, which may be empty; the next event was refused.
    Prefix(Option<Batch>, Refused),
    /// Nothing was taken: it cannot be read.
    Malformed(String),
}

pub(super) struct Execution {
    pub id: ExecutionId,
    pub handle: Handle,
    pub description: Description,
    pub snapshot: Arc<Snapshot>,
    /// The last accepted position.
    pub last: Seq,
    /// The last stored position.
    pub stored: Seq,
    pub truncated: bool,
    /// What everybody sees now.
    pub shown: Option<Shown>,
    pub fence: Fence,
    pub writer: Writer,
    /// Whether it was ever handed to a worker: from then on its work may have begun.
    pub granted: bool,
    /// The connection of its worker; stays while that worker may come back.
    pub worker: Option<WorkerId>,
    pub process: Option<WorkerProcess>,
    pub tree: Option<Tree>,
    /// Until when its worker must have come back.
    pub reattach_by: Option<Duration>,
    /// When the worker was last heard, for the message about its loss.
    pub heard_at: Duration,
    /// Who asked for a stop, and whether by force.
    pub cancel: Option<(String, bool)>,
    /// Whether the broker itself makes its worker.
    pub launched: bool,
    /// The name that its caller gave to its start.
    pub key: Option<String>,
    /// How often a worker was made for it.
    pub launches: u8,
    pub lock_held: bool,
    pub slot_held: bool,
    /// Whether the shell is seeing to its process tree.
    pub sweeping: bool,
    /// Whether what depends on its end was put right.
    pub settled: bool,
    /// What the broker wrote before the first grant.
    pub broker_events: Vec<Stamped>,
}

impl Execution {
    pub fn new(id: ExecutionId, handle: Handle, description: Description, now: Now) -> Self {
        Self {
            id,
            handle,
            snapshot: Arc::new(Snapshot::new(id, &description, now.wall)),
            description,
            last: Seq::NONE,
            stored: Seq::NONE,
            truncated: false,
            shown: None,
            fence: NO_FENCE,
            writer: Writer::Broker,
            granted: false,
            worker: None,
            process: None,
            tree: None,
            reattach_by: None,
            heard_at: now.mono,
            cancel: None,
            launched: false,
            key: None,
            launches: 0,
            lock_held: false,
            slot_held: false,
            sweeping: false,
            settled: false,
            broker_events: Vec::new(),
        }
    }

    /// Returns whether it stands in the queue.
    pub fn is_waiting(&self) -> bool {
        self.snapshot.state == State::Queued && self.writer == Writer::Broker && !self.slot_held
    }

    pub fn may_be_forgotten(&self) -> bool {
        (self.settled || mutant::on("forget what runs"))
            && !self.lock_held
            && !self.sweeping
            && self.stored == self.last
    }

    pub fn shown(&self) -> Shown {
        Shown {
            handle: self.handle,
            snapshot: Arc::clone(&self.snapshot),
            last: self.last,
            truncated: self.truncated,
        }
    }

    /// Changes the overlay; its revision rises.
    pub fn overlay(&mut self, change: impl FnOnce(&mut Overlay)) {
        let overlay = &mut Arc::make_mut(&mut self.snapshot).overlay;
        change(overlay);
        overlay.revision += 1;
    }

    /// Takes what only an unfinished execution has out of the overlay.
    pub fn clear_waits(&mut self) {
        let overlay = &self.snapshot.overlay;
        if overlay.waiting_on.is_some()
            || overlay.cancel_requested_at.is_some()
            || overlay.suspended_at.is_some()
        {
            self.overlay(|overlay| {
                overlay.waiting_on = None;
                overlay.cancel_requested_at = None;
                overlay.suspended_at = None;
            });
        }
    }

    /// Folds the broker's own events in and returns their batch.
    pub fn write(&mut self, events: &[Stamped], limits: &Limits) -> Batch {
        assert_eq!(self.writer, Writer::Broker, "the broker writes only where it is the writer");
        let first = self.last.next();
        for event in events {
            self.fold(event, limits).expect("the broker's own events are legal");
        }
        if !self.granted {
            self.broker_events.extend_from_slice(events);
        }
        Batch::of_events(self.handle, self.fence, first, events)
    }

    /// Takes what is new of a worker's batch; the caller has checked fence and position.
    pub fn accept(&mut self, batch: &Batch, limits: &Limits) -> Accepted {
        let new =
            if mutant::on("no dedupe") { Some(batch.clone()) } else { batch.after(self.last) };
        let Some(batch) = new else {
            return Accepted::All(None);
        };
        match batch.class() {
            Class::Bytes => match self.snapshot.admits_work() {
                Err(refused) => Accepted::Prefix(None, refused),
                Ok(()) => {
                    self.last = batch.last();
                    Accepted::All(Some(batch))
                }
            },
            Class::Lost => match self.fold_lost(u64::from(batch.count())) {
                Err(refused) => Accepted::Prefix(None, refused),
                Ok(()) => Accepted::All(Some(batch)),
            },
            Class::Events => self.accept_events(batch, limits),
        }
    }

    fn accept_events(&mut self, batch: Batch, limits: &Limits) -> Accepted {
        let entries = match batch.entries() {
            Ok(entries) => entries,
            Err(bad) => return Accepted::Malformed(bad.to_string()),
        };
        let mut events = Vec::with_capacity(entries.len());
        let mut cleaned = false;
        for entry in entries {
            let Entry::Event(mut event) = entry else {
                return Accepted::Malformed("a log chunk among events".to_owned());
            };
            cleaned |= event.kind.clean(limits.max_line_chars);
            events.push(event);
        }
        let (handle, fence, first) = (self.handle, self.fence, batch.first());
        let of = |events: &[Stamped]| Batch::of_events(handle, fence, first, events);
        let batch = if cleaned { of(&events) } else { batch };
        // What hides in a text takes more room once it is visible.
        if batch.bytes().len() >= FRAME_MAX {
            let bytes = batch.bytes().len();
            return Accepted::Malformed(format!(
                "frame_too_large: made clean, a batch has {bytes} bytes; the limit is {FRAME_MAX}"
            ));
        }
        for (taken, event) in events.iter().enumerate() {
            if let Err(refused) = self.fold(event, limits) {
                let prefix = (taken > 0).then(|| of(&events[..taken]));
                return Accepted::Prefix(prefix, refused);
            }
        }
        Accepted::All(Some(batch))
    }

    fn fold(&mut self, event: &Stamped, limits: &Limits) -> Result<(), Refused> {
        let snapshot = self.synced();
        if snapshot.state.is_final() && mutant::on("event after the end") {
            snapshot.state = State::Running;
        }
        snapshot.fold(event, limits)?;
        self.last = snapshot.last_sequence;
        let overlay = &self.snapshot.overlay;
        if self.snapshot.state == State::Cancelling && overlay.cancel_requested_at.is_some() {
            self.overlay(|overlay| overlay.cancel_requested_at = None);
        }
        Ok(())
    }

    fn fold_lost(&mut self, count: u64) -> Result<(), Refused> {
        let snapshot = self.synced();
        snapshot.fold_lost(count)?;
        self.last = snapshot.last_sequence;
        self.truncated = true;
        Ok(())
    }

    /// Returns the snapshot with its count put right: lines move only `last`.
    fn synced(&mut self) -> &mut Snapshot {
        let snapshot = Arc::make_mut(&mut self.snapshot);
        snapshot.last_sequence = self.last;
        snapshot.event_count = self.last.0;
        snapshot
    }
}
