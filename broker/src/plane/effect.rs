//! What a plane asks for: the closed set of effects. The shell performs them in order.

use std::sync::Arc;

use reeve_protocol::peer::{Ack, Attached, Cancel, Fenced, Grant, Tree};
use reeve_protocol::stream::Subbed;
use reeve_protocol::{Batch, ExecutionId, Fault, Handle, Seq, Snapshot};

use super::input::{RequestId, SubscriberId, WorkerId};

/// What is kept. A store takes a list of these whole or not at all.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// Events of one execution, the next ones.
    Events(Batch),
    /// An execution is forgotten, with everything of it.
    Forget(Handle),
}

/// An execution as everybody may see it: nothing in it is not stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// Its number.
    pub handle: Handle,
    /// Its snapshot, but for the three counts that stand here.
    pub snapshot: Arc<Snapshot>,
    /// The position of its last event.
    pub last: Seq,
    /// Whether some of its events are gone.
    pub truncated: bool,
}

impl Shown {
    /// Returns the whole snapshot.
    pub fn to_snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::clone(&self.snapshot);
        snapshot.last_sequence = self.last;
        snapshot.event_count = self.last.0;
        snapshot.events_truncated = self.truncated;
        snapshot
    }
}

/// A message to a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum ToWorker {
    /// Its execution is known; it may have to wait.
    Attached(Attached),
    /// It is the writer from here on.
    Grant(Box<Grant>),
    /// Stored through here.
    Ack(Ack),
    /// Somebody asks for a stop.
    Cancel(Cancel),
    /// It is no longer the writer.
    Fenced(Box<Fenced>),
    /// Prove that your command loop runs.
    Ping(u64),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// To a start: the execution as it was created.
    Started(Box<Shown>),
    /// To a cancel.
    Cancelled {
        /// `requested`, `already_requested` or `already_finished`.
        outcome: &'static str,
        /// The execution as it stands.
        shown: Box<Shown>,
    },
    /// To a subscription.
    Subbed {
        /// What is followed, and from where.
        subbed: Subbed,
        /// Executions from this number on are new to a reader of everything.
        horizon: Handle,
    },
    /// There is none, and why.
    Refused(Box<Fault>),
}

/// What is to become of the process tree behind a lost execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// Whose tree it is.
    pub id: ExecutionId,
    /// The worker's process: while it lives, the tree is not touched.
    pub pid: u32,
    /// The worker's start, in clock ticks since boot.
    pub start_ticks: u64,
    /// The tree, where the worker had announced one.
    pub tree: Option<Tree>,
    /// Whether the tree is to be ended once its worker is gone.
    pub end: bool,
    /// How long it has between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: u64,
}

/// What a plane asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Keep these, then say `Stored`. There is never a second one before that.
    Append(Vec<Record>),
    /// Show this execution to everybody who reads.
    Publish(Shown),
    /// Show this execution no longer.
    Unpublish {
        /// Its number.
        handle: Handle,
        /// Its name.
        id: ExecutionId,
    },
    /// Say this to a worker; never wait for it.
    Send {
        /// Its connection.
        worker: WorkerId,
        /// What.
        message: ToWorker,
    },
    /// Close a worker's connection.
    Close {
        /// Its connection.
        worker: WorkerId,
        /// Why.
        reason: String,
    },
    /// A reader's execution has something new.
    Wake {
        /// Its connection.
        subscriber: SubscriberId,
        /// The execution's number.
        handle: Handle,
    },
    /// Answer a request.
    Reply {
        /// Which.
        request: RequestId,
        /// With what.
        reply: Reply,
    },
    /// See how a worker's process is.
    Look {
        /// Its connection.
        worker: WorkerId,
    },
    /// See to the process tree of a lost execution; say `TreeEmpty` when it is empty.
    Sweep(Sweep),
    /// Make a worker for this execution.
    Launch {
        /// Which.
        id: ExecutionId,
        /// The how many-th worker for it this is.
        attempt: u8,
    },
}
