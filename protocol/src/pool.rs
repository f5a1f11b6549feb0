//! What a broker and the workers of its own say to each other beside the socket.
//!
//! A broker hands work to a worker that it has started through that worker's standard input, and
//! hears on its standard output when the worker is free again: one JSON document per line. Nobody
//! else can write to these pipes, so what comes out of them needs no further proof. Everything
//! about an execution itself goes over the socket, as with every other worker.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::capability::Descriptor;
use crate::fault::Fault;
use crate::id::ExecutionId;
use crate::limits::Limits;
use crate::secret::Hidden;
use crate::snapshot::Description;

/// Bytes of one line between a broker and a worker of its own, at most.
pub const LINE_MAX: usize = 4 << 20;

/// An execution that a worker of the broker's own is to carry out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// Its name.
    pub execution: ExecutionId,
    /// What is called, as the broker has checked it: the worker reads no manifest.
    pub capability: Descriptor,
    /// The normalised input, with everything in it; for the work alone.
    pub input: Hidden<Value>,
    /// What everybody may see of it.
    pub description: Description,
    /// The bounds in force.
    pub limits: Limits,
}

/// A call of a handler that is no execution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DirectCall {
    /// What is called.
    pub capability: Descriptor,
    /// The normalised input, with everything in it.
    pub input: Hidden<Value>,
    /// The bounds in force.
    pub limits: Limits,
}

/// From a broker to a worker of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToPool {
    /// Carry this execution out.
    Run(Box<Assignment>),
    /// Answer this call.
    Call(Box<DirectCall>),
}

/// From a worker of the broker's own to its broker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromPool {
    /// Nothing is under way here; the next may come.
    Ready,
    /// The broker has granted the execution: it is under way.
    Taken,
    /// What the call returned.
    Answer(Value),
    /// Why the call returned nothing.
    Refused(Box<Fault>),
}
