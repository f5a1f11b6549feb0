//! The contract of Reeve: the values and pure rules that broker, workers and clients share.
//!
//! Owns every type that crosses a process boundary, how it is encoded, and the rules that both
//! ends must apply alike: which moves of a state are legal, how events fold into a snapshot, how
//! text is made safe, what a manifest may say. Knows no clock, no random numbers, no threads and
//! no I/O: whoever has those hands their results in.

pub mod batch;
pub mod capability;
pub mod event;
pub mod fault;
pub mod frame;
pub mod id;
pub mod init;
pub mod input;
pub mod lease;
pub mod lifecycle;
pub mod limits;
pub mod manifest;
pub mod mutant;
pub mod peer;
pub mod place;
pub mod pool;
pub mod redact;
pub mod sanitise;
pub mod secret;
pub mod signal;
pub mod snapshot;
pub mod stream;
pub mod strict;
pub mod time;
pub mod trust;

pub use batch::{Batch, Class, Entry, LogChunk, Output};
pub use capability::Descriptor;
pub use event::{Event, Kind, Stamped};
pub use fault::{Code, Fault, SideEffect};
pub use id::{CapabilityId, ExecutionId, Fence, Handle, Seq};
pub use lifecycle::State;
pub use limits::Limits;
pub use snapshot::{Overlay, Snapshot};

pub use time::{Now, Timestamp};
