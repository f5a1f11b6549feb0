//! The lease file: where a checkout's broker is found. Information only: the lock is the proof.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The version of the lease file.
pub const SCHEMA: &str = "reeve-lease/1";

/// Bytes of a lease file, at most; a larger one is none.
pub const BYTES_MAX: usize = 64 << 10;

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

impl Lease {
    /// Reads the content of a lease file; `None` for everything that is no lease of this schema,
    /// since a lease is information only and debris must never block a start.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > BYTES_MAX {
            return None;
        }
        serde_json::from_slice::<Self>(bytes).ok().filter(|lease| lease.schema == SCHEMA)
    }

    /// Returns the content of a lease file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("a lease is JSON");
        bytes.push(b'\n');
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> Lease {
        Lease {
            schema: SCHEMA.to_owned(),
            pid: 7,
            start_ticks: 9,
            boot_id: "b".to_owned(),
            host_id: "h".to_owned(),
            root: "/r".into(),
            socket: "/s".into(),
            url: None,
            instance: "i".to_owned(),
            version: "1".to_owned(),
            started_at: Timestamp::from_micros(1),
        }
    }

    #[test]
    fn a_lease_reads_back_and_members_of_a_newer_broker_are_ignored() {
        assert_eq!(Lease::parse(&lease().to_bytes()), Some(lease()));
        let mut newer = serde_json::to_value(lease()).expect("a lease is JSON");
        newer["colour"] = "blue".into();
        assert_eq!(Lease::parse(newer.to_string().as_bytes()), Some(lease()));
    }

    #[test]
    fn debris_is_no_lease() {
        let foreign = Lease { schema: "reeve-lease/2".to_owned(), ..lease() };
        let long = Lease { version: "x".repeat(BYTES_MAX), ..lease() };
        for bytes in [&b""[..], b"{", b"4711\n", b"[]", b"{}", b"\xff\xfe"] {
            assert_eq!(Lease::parse(bytes), None);
        }
        assert_eq!(Lease::parse(&foreign.to_bytes()), None);
        assert_eq!(Lease::parse(&long.to_bytes()), None);
    }
}
