//! What happens to a plane: the closed set of inputs.

use reeve_protocol::peer::{Attach, Late, Released, TreeStarted};
use reeve_protocol::snapshot::Description;
use reeve_protocol::stream::FollowFrom;
use reeve_protocol::{Batch, ExecutionId};

/// One connection of a worker. A worker that comes back is a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u64);

/// One connection that follows executions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriberId(pub u64);

/// One request that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A process, so that a reused pid is never taken for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerProcess {
    /// Its pid.
    pub pid: u32,
    /// Its start, in clock ticks since boot.
    pub start_ticks: u64,
    /// What kind of worker it is, for people.
    pub name: String,
}

/// One frame of a worker, decoded as far as the plane needs it.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerFrame {
    /// This execution is mine, or let it be.
    Attach(Box<Attach>),
    /// Events.
    Batch(Batch),
    /// I live.
    Heartbeat,
    /// My command loop runs.
    Pong(u64),
    /// The process tree that runs.
    Tree(TreeStarted),
    /// That tree is empty.
    Released(Released),
    /// What really happened.
    Late(Late),
    /// I leave.
    Bye,
}

/// How a process was seen to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It runs.
    Alive,
    /// A signal stopped it.
    Stopped,
    /// It ended.
    Gone,
}

/// The caller's name for one start, and what it starts: however often it is asked, it starts once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartKey {
    /// The name, which is the caller's choice.
    pub name: String,
    /// SHA-256 of what is called with what.
    pub digest: [u8; 32],
}

/// What happens to a plane.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A worker said hello.
    WorkerJoined {
        /// Its connection.
        worker: WorkerId,
        /// Its process.
        process: WorkerProcess,
    },
    /// Everything that one read of a worker's socket brought.
    Frames {
        /// Its connection.
        worker: WorkerId,
        /// In order.
        frames: Vec<WorkerFrame>,
    },
    /// A worker's connection ended; everything it brought was handed in before.
    Closed {
        /// Its connection.
        worker: WorkerId,
    },
    /// A look at a worker's process.
    Looked {
        /// Its connection.
        worker: WorkerId,
        /// How it is.
        seen: Seen,
        /// How it ended, as the rest of a sentence, where that is known.
        how: Option<String>,
    },
    /// Somebody starts an execution that a worker of the broker's own is to run.
    Start {
        /// Who waits for the answer.
        request: RequestId,
        /// The id minted for it.
        id: ExecutionId,
        /// What it is; its gates up to validation were passed.
        description: Box<Description>,
        /// What makes a second start of the same thing the first one.
        key: Option<StartKey>,
    },
    /// No worker could be made for an execution that was to be launched.
    LaunchFailed {
        /// Which.
        id: ExecutionId,
        /// For which attempt.
        attempt: u8,
        /// Why, fit for clients.
        message: String,
    },
    /// Somebody asks an execution to stop.
    Cancel {
        /// Who waits for the answer.
        request: RequestId,
        /// Which.
        id: ExecutionId,
        /// Who asks.
        by: String,
        /// Kill at once.
        force: bool,
    },
    /// Somebody wants to follow executions.
    Subscribe {
        /// Who waits for the answer.
        request: RequestId,
        /// Its connection.
        subscriber: SubscriberId,
        /// By name, each from a cursor.
        executions: Vec<FollowFrom>,
        /// Everything from now on.
        all: bool,
    },
    /// A reader no longer wants these; none named means all.
    Unsubscribe {
        /// Its connection.
        subscriber: SubscriberId,
        /// Which.
        executions: Vec<ExecutionId>,
    },
    /// The append that was asked for is done; events of these handles were dropped by a bound.
    Stored {
        /// Handles of executions whose history lost something to a bound.
        trimmed: Vec<reeve_protocol::Handle>,
        /// Bytes of events kept in all.
        bytes: usize,
    },
    /// Something is left of the process tree of a lost execution, and nothing more is done to it.
    TreeLeft {
        /// Which.
        id: ExecutionId,
        /// Some of its processes.
        pids: Vec<u32>,
    },
    /// The process tree of a lost execution is empty.
    TreeEmpty {
        /// Which.
        id: ExecutionId,
    },
}
