//! The lease file: where a checkout's broker is found. Information only: the lock is the proof.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The version of the lease file.
pub const SCHEMA: &str = "reeve-lease/1";

/// What a broker writes about itself. Unknown members are ignored, so that an older client can
/// read a newer broker's lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// [`SCHEMA`].
    pub schema: String,
    /// The broker's process.
    pub pid: u32,
    /// The process's start, in clock ticks since boot (`/proc/<pid>/stat`, field 22).
    pub start_ticks: u64,
    /// The machine's boot that the ticks count from.
    pub boot_id: String,
    /// The machine.
    pub host_id: String,
    /// The checkout's root.
    pub root: PathBuf,
    /// The local socket.
    pub socket: PathBuf,
    /// The HTTP address, where one is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The identity of this broker's life.
    pub instance: String,
    /// The broker's version.
    pub version: String,
    /// When it started.
    pub started_at: Timestamp,
}
