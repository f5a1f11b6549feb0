//! Where a checkout and its broker are found: plain values, made by whoever may look at files.

use std::path::PathBuf;

use crate::snapshot::Repository;

/// A checkout and the places that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The canonical root of the checkout.
    pub root: PathBuf,
    /// The checkout's id: 16 hexadecimal digits that no spelling of the path changes.
    pub id: String,
    /// The git common directory, where the checkout is a git work tree.
    pub git_dir: Option<PathBuf>,
    /// Lock, lease, token and store: `…/reeve/<id>/`, 0700.
    pub state_dir: PathBuf,
    /// Sockets: short, local, 0700.
    pub run_dir: PathBuf,
    /// What events and snapshots say of the checkout.
    pub repository: Repository,
}

impl Place {
    /// Returns the file whose lock proves that a broker lives.
    pub fn lock_file(&self) -> PathBuf {
        self.state_dir.join("lock")
    }

    /// Returns the file that says where the broker is found.
    pub fn lease_file(&self) -> PathBuf {
        self.state_dir.join("lease.json")
    }

    /// Returns the second lock, beside the socket: brokers with different state directories meet
    /// here. Its content is a copy of the holder's lease.
    pub fn machine_lock_file(&self) -> PathBuf {
        self.run_dir.join(format!("{}.lock", self.id))
    }

    /// Returns the broker's socket; its name is short enough for every system.
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join(format!("{}.sock", self.id))
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> PathBuf {
        self.root.join("reeve.toml")
    }
}

/// Which process this is, on which machine, in which of its boots. A bare pid names nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The process id.
    pub pid: u32,
    /// The process's start, in clock ticks since boot.
    pub start_ticks: u64,
    /// The machine's boot that the ticks count from.
    pub boot_id: String,
    /// The machine, as a hash.
    pub host_id: String,
}

/// What `/proc/<pid>/stat` says that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// The letter of its state: `R`, `S`, `D`, `T` (stopped), `Z` (ended, not reaped), …
    pub state: char,
    /// Its start, in clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcessStat {
    /// Returns whether it has ended, reaped or not.
    pub fn is_dead(self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Returns whether a signal or a debugger has stopped it.
    pub fn is_stopped(self) -> bool {
        matches!(self.state, 'T' | 't')
    }

    /// Reads the content of `/proc/<pid>/stat`; `None` if it is none.
    ///
    /// The second field is the process's name in parentheses and may hold anything, blanks and
    /// parentheses too: the fields count from the last parenthesis.
    pub fn parse(stat: &[u8]) -> Option<Self> {
        let end_of_name = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&stat[end_of_name + 1..]).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let start_ticks = fields.nth(18)?.parse().ok()?;
        Some(Self { state, start_ticks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_blanks_and_parentheses_moves_no_field() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        for name in ["reeve", "a b", "a) R 9 9", "(((", ") ) )"] {
            let stat = format!("42 ({name}) {rest}\n");
            let expected = ProcessStat { state: 'S', start_ticks: 4711 };
            assert_eq!(ProcessStat::parse(stat.as_bytes()), Some(expected), "{name}");
        }
        for bad in [
            "",
            "42",
            "42 (x)",
            "42 (x) S 1 2",
            "42 (x) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x",
        ] {
            assert_eq!(ProcessStat::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
