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

use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process_group, waitid};
use tokio::time::Instant;

use crate::process::cgroup::Cgroup;
use crate::process::procfs::{self, Member, Stat};
use crate::process::sample::Usage;

/// How often one delivery looks for processes that were born meanwhile.
const WALKS_MAX: usize = 16;
/// How often it is looked at whether a tree is empty before it counts as not.
const LOOKS_MAX: usize = 100;
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
    ///
    /// Whoever lives descends from a living child of this process, for orphans are handed to it:
    /// it is enough to look at those. A child found dead may have left one behind just then, so
    /// only a look that finds none counts, and only if the next one finds none either.
    pub fn is_empty(&self) -> bool {
        if self.cgroup.as_ref().is_some_and(Cgroup::is_populated) {
            return false;
        }
        let mut quiet = 0;
        for _ in 0..LOOKS_MAX {
            let children = self.children();
            if children.iter().any(|stat| !stat.is_dead()) {
                return false;
            }
            quiet = if children.is_empty() { quiet + 1 } else { 0 };
            if quiet == 2 {
                return true;
            }
        }
        false
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
            if self.kill_round() {
                return Vec::new();
            }
            if Instant::now() >= deadline {
                return self.members();
            }
            tokio::time::sleep(KILL_PAUSE).await;
        }
    }

    /// Lets go of the tree without ending anybody; returns who lives on.
    pub fn leave(mut self) -> Vec<Member> {
        self.left = true;
        self.members()
    }

    /// Stops everybody, so that nobody forks, then kills everybody. Returns whether all are gone.
    fn kill_round(&mut self) -> bool {
        if self.is_empty() {
            return true;
        }
        if self.cgroup.as_ref().is_some_and(Cgroup::kill) {
            self.note(Signal::KILL);
        } else {
            self.deliver(Signal::STOP);
        }
        self.deliver(Signal::KILL);
        self.is_empty()
    }

    /// Sends a signal to every process once, until a walk finds nobody new.
    fn deliver(&mut self, signal: Signal) {
        self.note(signal);
        // The kernel signals a whole group at once: a fork cannot slip through.
        let group = Pid::from_raw(self.leader.pid)
            .is_some_and(|leader| kill_process_group(leader, signal).is_ok());
        let mut told: Vec<Member> = Vec::new();
        for _ in 0..WALKS_MAX {
            // Orphans first: to see only them takes so little time that even one that is about
            // to fork and go is met.
            let mut new = 0;
            for found in [Self::children, Self::walk] {
                let outside = |stat: &Stat| !group || stat.pgid != self.leader.pid;
                for stat in found(self).iter().filter(|stat| outside(stat) && !stat.is_dead()) {
                    let member = stat.member();
                    if !told.contains(&member) {
                        member.signal(signal);
                        told.push(member);
                        new += 1;
                    }
                }
            }
            if new == 0 {
                return;
            }
        }
    }

    fn note(&mut self, signal: Signal) {
        if !self.has_sent(signal.as_raw()) {
            self.sent.push(signal.as_raw());
        }
    }

    /// Returns everybody who lives.
    ///
    /// A walk may pass a process just while its parent dies and miss it; a tree that is not empty
    /// is walked again if nobody was found.
    fn living(&self) -> Vec<Stat> {
        let found = self.walk();
        if found.is_empty() && !self.is_empty() { self.walk() } else { found }
    }

    /// Returns the children of this process in the tree, and collects those that are dead.
    ///
    /// The first process is among them while it lives.
    fn children(&self) -> Vec<Stat> {
        let mut children = procfs::children_of(getpid().as_raw_pid());
        children.retain(|stat| !self.bystanders.contains(&stat.member()));
        children.retain(|stat| !(stat.is_dead() && stat.pid == self.leader.pid));
        for dead in children.iter().filter(|stat| stat.is_dead()) {
            collect(dead.pid);
        }
        children
    }

    /// Walks down from this process to everybody who lives.
    fn walk(&self) -> Vec<Stat> {
        let mut found = self.children();
        let mut next = 0;
        while let Some(parent) = found.get(next) {
            found.extend(procfs::children_of(parent.pid));
            next += 1;
        }
        found.retain(|stat| !stat.is_dead());
        found
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if !self.left {
            for _ in 0..DROP_ROUNDS {
                if self.kill_round() {
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
