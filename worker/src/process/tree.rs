//! A process and all that descends from it, as one thing to signal, kill and count.
//!
//! Owns the answer to who belongs to the tree: every descendant of this process, which as
//! subreaper is handed the orphans, but for the children it had before the tree began. That finds
//! those that left the process group and the session as well. Where the tree has a cgroup, the
//! kernel kills it as a whole.
//!
//! The first process is not collected before the tree is let go of: as long as it is there, dead
//! or alive, its number is nobody else's and its group can be signalled. A tree that is dropped
//! is killed.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process_group, waitid};
use tokio::time::Instant;

use crate::process::cgroup::Cgroup;
use crate::process::procfs::{self, Member, Stat};
use crate::process::sample::Usage;

/// How often one delivery looks for processes that were born meanwhile.
const WALKS_MAX: usize = 16;
/// How long a kill waits for the dead to be gone.
const KILL_DEADLINE: Duration = Duration::from_secs(2);
/// How long a kill waits before it looks again.
const KILL_PAUSE: Duration = Duration::from_millis(1);
/// How often a tree that is dropped is killed before it is given up.
const DROP_ROUNDS: usize = 100;

/// One process tree.
#[derive(Debug)]
pub struct Tree {
    leader: Member,
    bystanders: Vec<Member>,
    cgroup: Option<Cgroup>,
    sent: Vec<i32>,
    left: bool,
}

impl Tree {
    /// Takes charge of a child of this process that was just started.
    pub(crate) fn new(leader: Member, bystanders: Vec<Member>, cgroup: Option<Cgroup>) -> Self {
        Self { leader, bystanders, cgroup, sent: Vec::new(), left: false }
    }

    /// Returns the first process; its pid is also the number of its group.
    pub fn leader(&self) -> &Member {
        &self.leader
    }

    /// Returns the cgroup, where the tree has one.
    pub fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }

    /// Returns who lives.
    pub fn members(&self) -> Vec<Member> {
        self.living().iter().map(Stat::member).collect()
    }

    /// Returns whether nobody lives.
    pub fn is_empty(&self) -> bool {
        self.living().is_empty()
    }

    /// Returns what the tree uses.
    pub fn usage(&self) -> Usage {
        Usage::of(&self.living())
    }

    /// Returns whether a signal was sent from here.
    pub fn has_sent(&self, signal: i32) -> bool {
        self.sent.contains(&signal)
    }

    /// Sends a signal to every process, and wakes those that are stopped so that they notice.
    pub fn signal(&mut self, signal: Signal) {
        self.deliver(signal);
        if signal != Signal::STOP {
            for stopped in self.living().iter().filter(|stat| stat.is_stopped()) {
                stopped.member().signal(Signal::CONT);
            }
        }
    }

    /// Kills every process; returns who still lived when the deadline passed.
    pub async fn kill(&mut self) -> Vec<Member> {
        let deadline = Instant::now() + KILL_DEADLINE;
        loop {
            let living = self.kill_round();
            if living.is_empty() || Instant::now() >= deadline {
                return living;
            }
            tokio::time::sleep(KILL_PAUSE).await;
        }
    }

    /// Lets go of the tree without ending anybody; returns who lives on.
    pub fn leave(mut self) -> Vec<Member> {
        self.left = true;
        self.members()
    }

    /// Stops everybody, so that nobody forks, then kills everybody. Returns who lives.
    fn kill_round(&mut self) -> Vec<Member> {
        if self.is_empty() {
            return Vec::new();
        }
        let killed = self.cgroup.as_ref().is_some_and(Cgroup::kill);
        if !killed {
            self.deliver(Signal::STOP);
        }
        self.deliver(Signal::KILL);
        self.members()
    }

    /// Sends a signal to every process once, until a walk finds nobody new.
    fn deliver(&mut self, signal: Signal) {
        if !self.has_sent(signal.as_raw()) {
            self.sent.push(signal.as_raw());
        }
        // The kernel signals a whole group at once: a fork cannot slip through.
        let group = Pid::from_raw(self.leader.pid)
            .is_some_and(|leader| kill_process_group(leader, signal).is_ok());
        let mut told: Vec<Member> = Vec::new();
        for _ in 0..WALKS_MAX {
            let found = self.living();
            let outside = found.iter().filter(|stat| !group || stat.pgid != self.leader.pid);
            let new: Vec<Member> =
                outside.map(Stat::member).filter(|member| !told.contains(member)).collect();
            if new.is_empty() {
                return;
            }
            for member in &new {
                member.signal(signal);
            }
            told.extend(new);
        }
    }

    /// Returns everybody who lives, and collects the dead that were handed to this process.
    ///
    /// A walk may pass a process just while its parent dies and miss it, so an empty tree is
    /// looked at twice.
    fn living(&self) -> Vec<Stat> {
        let found = self.walk();
        if found.is_empty() { self.walk() } else { found }
    }

    fn walk(&self) -> Vec<Stat> {
        let own = getpid().as_raw_pid();
        let mut by_parent: BTreeMap<i32, Vec<Stat>> = BTreeMap::new();
        let mut found = Vec::new();
        for stat in procfs::all() {
            by_parent.entry(stat.ppid).or_default().push(stat);
        }
        let mut parents = vec![own];
        while let Some(parent) = parents.pop() {
            for stat in by_parent.remove(&parent).unwrap_or_default() {
                if parent == own && self.bystanders.contains(&stat.member()) {
                    continue;
                }
                parents.push(stat.pid);
                if !stat.is_dead() {
                    found.push(stat);
                } else if parent == own && stat.pid != self.leader.pid {
                    collect(stat.pid);
                }
            }
        }
        found
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if !self.left {
            for _ in 0..DROP_ROUNDS {
                if self.kill_round().is_empty() {
                    break;
                }
                thread::sleep(KILL_PAUSE);
            }
        }
        collect(self.leader.pid);
    }
}

/// Takes the status of a dead child, so that its number becomes free.
fn collect(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // Nobody there means that somebody else has collected it.
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}
