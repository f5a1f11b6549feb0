//! What clients and broker say to each other on the local socket: subscriptions and requests.
//!
//! The rule of a reader, complete: keep the last position of each handle; a batch is right when
//! its first position is the next one; then its last becomes the last. A gap moves the last to
//! its end. Anything else is an error of the sender, and the reader subscribes again from what
//! it holds.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fault::Fault;
use crate::id::{CapabilityId, ExecutionId, Handle, Seq};
use crate::lifecycle::State;
use crate::snapshot::Overlay;

/// Where to follow one execution from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowFrom {
    /// Which.
    pub execution: ExecutionId,
    /// The last position that the reader holds.
    #[serde(default)]
    pub after: Seq,
}

/// Asks to follow executions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sub {
    /// Executions by name, each from a cursor.
    #[serde(default)]
    pub executions: Vec<FollowFrom>,
    /// Everything that happens from now on.
    #[serde(default)]
    pub all: bool,
    /// The epoch that the cursors belong to; absent at the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
}

/// Asks to follow executions no longer; none named means all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsub {
    /// Which.
    #[serde(default)]
    pub executions: Vec<ExecutionId>,
}

/// One followed execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    /// Which.
    pub execution: ExecutionId,
    /// Its number in frames on this connection.
    pub handle: Handle,
    /// What was called.
    pub capability: CapabilityId,
    /// The position that the reader is taken to hold; its first batch or gap starts after it.
    pub after: Seq,
    /// The last position of its history now.
    pub last: Seq,
    /// How it stands now.
    pub state: State,
}

/// What is followed from here on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subbed {
    /// The identity of the store's history.
    pub epoch: String,
    /// The executions, each from where.
    pub executions: Vec<Followed>,
    /// Names that nobody holds.
    #[serde(default)]
    pub unknown: Vec<ExecutionId>,
}

/// A further execution is followed, because everything is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Which, from where.
    pub followed: Followed,
}

/// Why positions cannot be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GapReason {
    /// They were dropped by a bound.
    Retention,
    /// The worker shed them.
    Shed,
    /// The cursor belongs to another history; the reader holds nothing of this one.
    Epoch,
    /// The cursor is beyond the last position; the reader holds what never was.
    Ahead,
}

/// Positions that cannot be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Of which execution.
    pub handle: Handle,
    /// The first lost position; for `epoch` and `ahead` the first that the reader must forget.
    pub from: Seq,
    /// The last lost position; for `epoch` and `ahead` the cursor that was given.
    pub to: Seq,
    /// Why.
    pub reason: GapReason,
    /// The position that the reader is taken to hold now.
    pub resume_after: Seq,
}

/// An execution is over, and everything of it was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Which.
    pub handle: Handle,
    /// Its last position.
    pub last: Seq,
    /// Its final state.
    pub state: State,
}

/// What is known beside the events has changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OverlayChanged {
    /// Of which execution.
    pub handle: Handle,
    /// The whole of it.
    pub overlay: Overlay,
}

/// A request. Its answer carries the same number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ctl {
    /// Chosen by the client, unique among its requests under way.
    pub request: u64,
    /// What is asked.
    pub op: Op,
}

/// What a client may ask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// The executions, newest first.
    List {
        /// Only those in this state.
        #[serde(default)]
        state: Option<State>,
        /// Only those of this capability.
        #[serde(default)]
        capability: Option<CapabilityId>,
        /// At most so many; clamped to the limit.
        #[serde(default)]
        limit: Option<u64>,
        /// The newest execution that is not asked for: the last one of the page before.
        #[serde(default)]
        before: Option<ExecutionId>,
    },
    /// One execution.
    Get {
        /// Which.
        id: ExecutionId,
    },
    /// One page of one execution's history.
    Events {
        /// Which.
        id: ExecutionId,
        /// The last position that the reader holds.
        #[serde(default)]
        after: Seq,
        /// At most so many; clamped to the limit.
        #[serde(default)]
        limit: Option<u64>,
    },
    /// Ask an execution to stop.
    Cancel {
        /// Which.
        id: ExecutionId,
        /// Who asks.
        by: String,
        /// Kill at once.
        #[serde(default)]
        force: bool,
    },
    /// What is declared.
    Capabilities {},
    /// One capability.
    Capability {
        /// Which.
        id: CapabilityId,
    },
    /// The contract of the streams, and the limits in force.
    Protocol {},
    /// How the broker is.
    Status {},
    /// End the broker.
    Stop {
        /// Do not wait for running work.
        #[serde(default)]
        force: bool,
    },
    /// Make the code of a link that opens the pages.
    Open {},
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Res {
    /// The request's number.
    pub request: u64,
    /// What came of it.
    pub result: Answer,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The answer, in the shape that the same request has on every surface.
    Ok(Value),
    /// Why there is none.
    Err(Fault),
}
