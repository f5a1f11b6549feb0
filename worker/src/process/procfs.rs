//! Processes as `/proc` shows them.
//!
//! Owns the one reading of `/proc/<pid>/stat` and the identity of a process: its pid and its
//! start in clock ticks since boot, for a pid alone is used again. A process that ends while it
//! is looked at is simply not there.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use reeve_protocol::sanitise;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Characters of a process's name; the kernel keeps 15 bytes of it.
const NAME_CHARS: usize = 64;

/// One process, recognisable: two are equal if they are the same one, whatever it is called.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Its name, made safe to show.
    pub comm: String,
}

impl PartialEq for Member {
    fn eq(&self, other: &Self) -> bool {
        (self.pid, self.start_ticks) == (other.pid, other.start_ticks)
    }
}

impl Eq for Member {}

impl Member {
    /// Finds a process by its number; a dead one that nobody has collected counts.
    pub fn of(pid: i32) -> Option<Self> {
        Stat::of(pid).map(|stat| stat.member())
    }

    /// Returns whether this very process lives.
    pub fn is_alive(&self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.member() == *self && !stat.is_dead())
    }

    /// Sends a signal to this very process, never to a later one of the same number.
    ///
    /// Returns whether it was sent.
    pub fn signal(&self, signal: Signal) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else { return false };
        // The descriptor holds on to a process; which one it is, is looked at afterwards.
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        Self::of(self.pid).is_some_and(|found| found == *self)
            && pidfd_send_signal(pidfd, signal).is_ok()
    }
}

/// What is needed of a process's `stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub pid: i32,
    pub comm: String,
    pub state: u8,
    pub ppid: i32,
    pub pgid: i32,
    /// Its own time and that of the children it has waited for.
    pub cpu_ticks: u64,
    pub start_ticks: u64,
    pub rss_pages: u64,
}

impl Stat {
    /// Reads the `stat` of one process.
    pub fn of(pid: i32) -> Option<Self> {
        Self::read(&Path::new("/proc").join(pid.to_string()))
    }

    fn read(process: &Path) -> Option<Self> {
        Self::parse(&fs::read(process.join("stat")).ok()?)
    }

    /// Takes `stat` apart at its last `)`: a name may hold spaces and parentheses.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let open = memchr::memchr(b'(', bytes)?;
        let close = memchr::memrchr(b')', bytes)?;
        let pid = std::str::from_utf8(&bytes[..open]).ok()?.trim().parse().ok()?;
        let comm = String::from_utf8_lossy(bytes.get(open + 1..close)?);
        let fields: Vec<&str> =
            std::str::from_utf8(&bytes[close + 1..]).ok()?.split_ascii_whitespace().collect();
        // The first field here is the third of proc(5).
        let number = |field: usize| fields.get(field - 3)?.parse::<i64>().ok();
        let positive = |field: usize| number(field).map(|value| u64::try_from(value).unwrap_or(0));
        Some(Self {
            pid,
            comm: sanitise::text(&comm, NAME_CHARS),
            state: *fields.first()?.as_bytes().first()?,
            ppid: i32::try_from(number(4)?).ok()?,
            pgid: i32::try_from(number(5)?).ok()?,
            cpu_ticks: positive(14)? + positive(15)? + positive(16)? + positive(17)?,
            start_ticks: positive(22)?,
            rss_pages: positive(24)?,
        })
    }

    /// Returns whether it has ended and only waits to be collected.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    /// Returns whether a signal holds it.
    pub fn is_stopped(&self) -> bool {
        self.state == b'T'
    }

    pub fn member(&self) -> Member {
        Member { pid: self.pid, start_ticks: self.start_ticks, comm: self.comm.clone() }
    }
}

/// Returns every process there is.
pub(crate) fn all() -> Vec<Stat> {
    pids().filter_map(Stat::of).collect()
}

/// Returns the numbers of every process there is.
pub(crate) fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the children of a process, dead ones too.
///
/// Cheap where the kernel lists them, which it does unless it was built without that.
pub(crate) fn children_of(parent: i32) -> Vec<Stat> {
    let mut children = if lists_children() { listed_children(parent) } else { all() };
    // A number on the list may have become somebody else's since.
    children.retain(|stat| stat.ppid == parent);
    children
}

fn lists_children() -> bool {
    static LISTS: OnceLock<bool> = OnceLock::new();
    *LISTS.get_or_init(|| Path::new("/proc/thread-self/children").exists())
}

fn listed_children(parent: i32) -> Vec<Stat> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read(thread.path().join("children")).ok());
    let mut children = Vec::new();
    for list in lists {
        let pids = list.split(|byte| *byte == b' ');
        let pids = pids.filter_map(|pid| std::str::from_utf8(pid).ok()?.parse().ok());
        children.extend(pids.filter_map(Stat::of));
    }
    children
}

#[cfg(test)]
mod tests {
    use rustix::process::getpid;

    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_is_a_name() {
        let text =
            b"42 (a) R 1 (b) S 7 42 42 0 -1 4194304 1 2 3 4 50 60 7 8 20 0 1 0 1234 9 17 0\n";
        let stat = Stat::parse(text).expect("it is a stat");
        assert_eq!((stat.pid, stat.ppid, stat.pgid, stat.state), (42, 7, 42, b'S'));
        assert_eq!(stat.comm, "a) R 1 (b");
        assert_eq!((stat.cpu_ticks, stat.start_ticks, stat.rss_pages), (125, 1234, 17));
    }

    #[test]
    fn what_is_no_stat_is_nothing() {
        for text in ["", "42", "42 (a", "42 a) R", ") 42 (", "42 (a) R 1", "x (a) R 1 2 3"] {
            assert_eq!(Stat::parse(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn children_are_listed() {
        let mut child = std::process::Command::new("sleep").arg("880").spawn().expect("it starts");
        let own = getpid().as_raw_pid();
        let pids = |stats: Vec<Stat>| stats.iter().map(|stat| stat.pid).collect::<Vec<_>>();
        let pid = i32::try_from(child.id()).expect("a pid is small");
        assert!(pids(children_of(own)).contains(&pid));
        assert!(pids(all()).contains(&pid));
        assert_eq!(children_of(pid), []);
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
        assert!(!pids(children_of(own)).contains(&pid));
    }

    #[test]
    fn a_process_of_another_start_is_not_signalled() {
        let own = Member::of(getpid().as_raw_pid()).expect("it lives");
        assert!(own.is_alive());
        let other = Member { start_ticks: own.start_ticks - 1, ..own };
        assert!(!other.is_alive());
        assert!(!other.signal(Signal::KILL));
    }
}
