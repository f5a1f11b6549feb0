//! Processes whose worker is gone, found again by whoever outlived it.
//!
//! Owns the two ways to recognise them: the group of the first process, and the mark that every
//! process inherits in its environment. Holds no state and needs none of a worker's, so that a
//! broker can call it.
//!
//! Never finds the calling process, which may itself run inside an execution.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use reeve_protocol::ExecutionId;
use rustix::process::{getpid, getuid};

use crate::process::env;
use crate::process::procfs::{self, Member, Stat};

/// Returns the living processes of this user that carry the mark of `execution`.
///
/// A process that replaced its environment or hides it is not found.
pub fn find_by_mark(execution: ExecutionId) -> Vec<Member> {
    let mark = format!("{}={execution}", env::EXECUTION);
    living(procfs::pids().filter(|pid| is_marked(*pid, mark.as_bytes())).filter_map(Stat::of))
}

/// Returns the living processes of a process group.
///
/// A group's number is used again once the group is empty: check that the process it was named
/// after is the one that was meant, or take only those that [`find_by_mark`] finds as well.
pub fn group_members(pgid: i32) -> Vec<Member> {
    living(procfs::all().into_iter().filter(|stat| stat.pgid == pgid))
}

fn living(stats: impl Iterator<Item = Stat>) -> Vec<Member> {
    let own = getpid().as_raw_pid();
    stats.filter(|stat| stat.pid != own && !stat.is_dead()).map(|stat| stat.member()).collect()
}

fn is_marked(pid: i32, mark: &[u8]) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    let same_user = fs::metadata(&process).is_ok_and(|meta| meta.uid() == getuid().as_raw());
    same_user
        && fs::read(process.join("environ"))
            .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == mark))
}
