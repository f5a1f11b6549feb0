//! What workers and broker say to each other on the local socket.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::Stamped;
use crate::fault::Fault;
use crate::id::{ExecutionId, Fence, Handle, Seq};
use crate::lifecycle::State;
use crate::limits::Limits;
use crate::snapshot::{Description, WaitingOn};

/// The version of the local protocol that this build speaks.
pub const PROTO: u32 = 1;

/// The kinds of frames. A number is never reused.
pub mod kind {
    /// Both ways in: who speaks, in which version.
    pub const HELLO: u8 = 1;
    /// From the broker: what it is and how it counts.
    pub const WELCOME: u8 = 2;
    /// Both ways: the sender closes, and why.
    pub const BYE: u8 = 3;
    /// From the broker: prove that your command loop runs.
    pub const PING: u8 = 4;
    /// The answer to a ping.
    pub const PONG: u8 = 5;

    /// Worker: this execution is mine, or let it be.
    pub const ATTACH: u8 = 16;
    /// Events; the same bytes from worker to broker to client.
    pub const BATCH: u8 = 17;
    /// Worker: I live.
    pub const HEARTBEAT: u8 = 18;
    /// Worker: the process tree that is about to run.
    pub const TREE: u8 = 19;
    /// Worker: that tree is empty.
    pub const RELEASED: u8 = 20;
    /// Worker: what really happened, after the end was decided without it.
    pub const LATE: u8 = 21;

    /// Broker: the execution is known; it may have to wait.
    pub const ATTACHED: u8 = 32;
    /// Broker: you are the writer from here on.
    pub const GRANT: u8 = 33;
    /// Broker: stored through here.
    pub const ACK: u8 = 34;
    /// Broker: somebody asked it to stop.
    pub const CANCEL: u8 = 35;
    /// Broker: you are no longer the writer.
    pub const FENCED: u8 = 36;
    /// Broker: it is about to leave; work goes on.
    pub const DRAIN: u8 = 37;

    /// Client: follow these.
    pub const SUB: u8 = 48;
    /// Client: follow no longer.
    pub const UNSUB: u8 = 49;
    /// Client: a request.
    pub const CTL: u8 = 50;

    /// Broker: what is followed from where.
    pub const SUBBED: u8 = 64;
    /// Broker: a further execution is followed.
    pub const JOINED: u8 = 65;
    /// Broker: these positions cannot be shown, and why.
    pub const GAP: u8 = 66;
    /// Broker: an execution is over and completely delivered.
    pub const END: u8 = 67;
    /// Broker: what is known beside the events has changed.
    pub const OVERLAY: u8 = 68;
    /// Broker: the answer to a request.
    pub const RES: u8 = 69;
}

/// Who opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It runs executions.
    Worker,
    /// It watches and asks.
    Client,
}

/// The first frame of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version that the sender speaks.
    pub proto: u32,
    /// What it is.
    pub role: Role,
    /// What kind of worker or client it is, for people.
    #[serde(default)]
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// The process's start, in clock ticks since boot (`/proc/<pid>/stat`, field 22).
    #[serde(default)]
    pub start_ticks: u64,
    /// Its version.
    #[serde(default)]
    pub build: String,
    /// The broker instance that it means to reach, from the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

/// The broker's first frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version that both speak from here on.
    pub proto: u32,
    /// The identity of the store's history.
    pub epoch: String,
    /// The identity of this broker's life.
    pub instance: String,
    /// Its process.
    pub pid: u32,
    /// Its version.
    pub build: String,
    /// What an acknowledgement means: `memory`, `local` or `replicated`.
    pub durability: String,
    /// The bounds in force.
    pub limits: Limits,
}

/// The last frame of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bye {
    /// One word and a sentence.
    pub reason: String,
}

/// A ping or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {
    /// Echoed by the answer.
    pub nonce: u64,
}

/// A worker brings an execution, or comes back with one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attach {
    /// Its name.
    pub execution: ExecutionId,
    /// The fence that the worker holds; absent when no broker ever granted one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// What it is.
    pub description: Description,
    /// The last position that the worker has numbered; it can resend from 1.
    #[serde(default)]
    pub last: Seq,
    /// The process tree that runs already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<Tree>,
}

/// The broker knows an execution, which may have to wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Which.
    pub execution: ExecutionId,
    /// How many wait before it.
    pub ahead: u64,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_on: Option<WaitingOn>,
}

/// A worker becomes the writer of an execution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    /// Which.
    pub execution: ExecutionId,
    /// Its number in frames on this connection.
    pub handle: Handle,
    /// The number of this right.
    pub fence: Fence,
    /// The position that the broker expects next.
    pub next: Seq,
    /// The events before it that the broker wrote, for the worker's own history.
    #[serde(default)]
    pub events: Vec<Stamped>,
}

/// Everything through a position is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// Which execution.
    pub handle: Handle,
    /// The last stored position.
    pub through: Seq,
    /// Where to resend from: the last batch left a gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resend_from: Option<Seq>,
}

/// Somebody asks an execution to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel {
    /// Which.
    pub execution: ExecutionId,
    /// Who.
    pub by: String,
    /// Whether to kill at once.
    #[serde(default)]
    pub force: bool,
}

/// A worker is no longer the writer of an execution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fenced {
    /// Which.
    pub execution: ExecutionId,
    /// How it stands for everybody else.
    pub state: State,
    /// The last position of its history.
    pub last: Seq,
    /// Why it ended, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
}

/// A worker lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// What it is running.
    #[serde(default)]
    pub active: Vec<ExecutionId>,
}

/// The process tree of an execution, said before the tree can do anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// Its process group, which is its leader's pid.
    pub pgid: u32,
    /// Its leader's start, in clock ticks since boot.
    pub start_ticks: u64,
}

/// A worker announces the tree of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeStarted {
    /// Which execution.
    pub execution: ExecutionId,
    /// Its tree.
    pub tree: Tree,
}

/// The tree of an execution is empty, but for what is named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// Which.
    pub execution: ExecutionId,
    /// Processes that survived, as `pid name`.
    #[serde(default)]
    pub survivors: Vec<String>,
}

/// What really happened, after the end was decided without the worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Late {
    /// Which execution.
    pub execution: ExecutionId,
    /// The fence that the worker held.
    pub fence: Fence,
    /// How the work ended, or that it goes on.
    pub state: State,
    /// In a sentence.
    pub message: String,
    /// Events that nobody took.
    pub unsent_events: u64,
}

/// A value that stands in for one that is too large for a frame.
pub fn withheld(bytes: usize, limit: usize, link: &str) -> Value {
    serde_json::json!({ "withheld": "too_large", "bytes": bytes, "limit": limit, "self": link })
}
