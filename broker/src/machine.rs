//! The machine: what the broker sees and does of processes. Performs what the plane asks for.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use actix::Addr;
use reeve_protocol::ExecutionId;
use reeve_protocol::peer::Tree;
use reeve_protocol::place::ProcessStat;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

use crate::actor::{BrokerActor, Post};
use crate::plane::{Input, Seen, Sweep, WorkerId};
use crate::pool::Workers;

/// How long after a process's end what it had written is read.
pub const SOCKET_FIRST: Duration = Duration::from_millis(20);
/// How often a lost execution's tree is looked at.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// How often at least, once nothing is left to be done about it but to wait.
const SWEEP_SELDOM: Duration = Duration::from_secs(5);
/// Processes that are left and are named, at most.
const NAMED_MAX: usize = 10;
/// How often it is looked at while its worker may still live.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// Finds and ends what is left of a process tree whose worker is gone. Given by who builds the
/// broker, since it is the workers' knowledge.
pub trait Orphans: Send + Sync {
    /// Returns the living processes of an execution.
    fn find(&self, id: ExecutionId, tree: Option<Tree>) -> Vec<u32>;

    /// Signals every living process of an execution: SIGTERM, or SIGKILL.
    fn signal(&self, id: ExecutionId, tree: Option<Tree>, kill: bool);
}

/// What the broker sees and does of processes.
#[derive(Clone)]
pub struct Machine {
    orphans: Arc<dyn Orphans>,
    workers: Workers,
    addr: Arc<OnceLock<Addr<BrokerActor>>>,
    watched: Arc<Mutex<HashMap<WorkerId, Watched>>>,
    /// What tells the end of each process that is watched: one descriptor, however often it comes.
    ends: Arc<Mutex<Ends>>,
}

/// What becomes readable when a process ends.
type End = AsyncFd<OwnedFd>;
/// Those of the processes that are watched, by pid and start.
type Ends = HashMap<(u32, u64), Weak<End>>;

/// A worker's process that is watched.
struct Watched {
    pid: u32,
    start_ticks: u64,
    task: JoinHandle<()>,
}

impl Machine {
    /// Makes one that acts once it is bound to an actor.
    pub fn new(orphans: Arc<dyn Orphans>, workers: Workers) -> Self {
        Self {
            orphans,
            workers,
            addr: Arc::default(),
            watched: Arc::default(),
            ends: Arc::default(),
        }
    }

    /// Says whom to tell what is seen.
    pub fn bind(&self, addr: Addr<BrokerActor>) {
        assert!(self.addr.set(addr).is_ok(), "a machine is bound once");
    }

    /// Watches a worker's process from now on; the end of it is told within milliseconds.
    pub fn watch(&self, worker: WorkerId, pid: u32, start_ticks: u64) {
        let machine = self.clone();
        let task = actix::spawn(async move {
            machine.until_gone(pid, start_ticks).await;
            // What it had written before is read first: its socket ends with it.
            tokio::time::sleep(SOCKET_FIRST).await;
            machine.watched().remove(&worker);
            let how = machine.workers.how_ended(pid, start_ticks).await;
            machine.post(Input::Looked { worker, seen: Seen::Gone, how }).await;
        });
        self.watched().insert(worker, Watched { pid, start_ticks, task });
    }

    /// Watches a worker's process no longer than `after` from now.
    ///
    /// Until then its end still tells at once what its closed connection alone would not.
    pub fn unwatch(&self, worker: WorkerId, after: Duration) {
        let machine = self.clone();
        actix::spawn(async move {
            tokio::time::sleep(after).await;
            if let Some(watched) = machine.watched().remove(&worker) {
                watched.task.abort();
            }
        });
    }

    /// Looks at a worker's process now.
    pub fn look(&self, worker: WorkerId) {
        let process = self.watched().get(&worker).map(|it| (it.pid, it.start_ticks));
        let Some((pid, start_ticks)) = process else { return };
        let machine = self.clone();
        actix::spawn(async move {
            let seen = see(pid, start_ticks);
            let how = match seen {
                Seen::Gone => machine.workers.how_ended(pid, start_ticks).await,
                Seen::Alive | Seen::Stopped => None,
            };
            machine.post(Input::Looked { worker, seen, how }).await;
        });
    }

    /// Sees to the process tree of a lost execution until it is empty.
    pub fn sweep(&self, sweep: Sweep) {
        let machine = self.clone();
        actix::spawn(async move {
            while see(sweep.pid, sweep.start_ticks) != Seen::Gone {
                if machine.find(&sweep).await.is_empty() {
                    break;
                }
                tokio::time::sleep(WATCH_EVERY).await;
            }
            machine.end_tree(&sweep).await;
            machine.post(Input::TreeEmpty { id: sweep.id }).await;
        });
    }

    async fn end_tree(&self, sweep: &Sweep) {
        let grace = Duration::from_millis(sweep.grace_ms);
        let (mut waited, mut pause) = (Duration::ZERO, SWEEP_EVERY);
        let (mut asked, mut killed) = (false, false);
        let mut named = Vec::new();
        loop {
            let mut left = self.find(sweep).await;
            if left.is_empty() {
                return;
            }
            // From here on nothing but waiting helps: it is looked at less and less often.
            let waits = killed || !sweep.end;
            left.truncate(NAMED_MAX);
            if waits && left != named {
                named.clone_from(&left);
                self.post(Input::TreeLeft { id: sweep.id, pids: left }).await;
            }
            let kill = asked && waited >= grace;
            if sweep.end && (!asked || kill) {
                self.signal(sweep, kill).await;
                (asked, killed) = (true, killed || kill);
            }
            tokio::time::sleep(pause).await;
            waited += pause;
            if waits {
                pause = (pause * 2).min(SWEEP_SELDOM);
            }
        }
    }

    /// Walks over `/proc` on a thread of its own.
    async fn find(&self, sweep: &Sweep) -> Vec<u32> {
        let (orphans, id, tree) = (Arc::clone(&self.orphans), sweep.id, sweep.tree);
        tokio::task::spawn_blocking(move || orphans.find(id, tree)).await.unwrap_or_default()
    }

    async fn signal(&self, sweep: &Sweep, kill: bool) {
        let (orphans, id, tree) = (Arc::clone(&self.orphans), sweep.id, sweep.tree);
        let signalled = tokio::task::spawn_blocking(move || orphans.signal(id, tree, kill)).await;
        if let Err(error) = signalled {
            tracing::warn!(%id, %error, "a lost execution's processes could not be signalled");
        }
    }

    async fn until_gone(&self, pid: u32, start_ticks: u64) {
        let end = self.end_of(pid, start_ticks);
        // Looked at again after the descriptor is there: the pid may have been reused before.
        if see(pid, start_ticks) == Seen::Gone {
            return;
        }
        match end {
            Some(end) => drop(end.readable().await),
            None => {
                while see(pid, start_ticks) != Seen::Gone {
                    tokio::time::sleep(WATCH_EVERY).await;
                }
            }
        }
    }

    /// Returns what tells a process's end. A worker of our own comes anew with each execution.
    fn end_of(&self, pid: u32, start_ticks: u64) -> Option<Arc<End>> {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(end) = ends.get(&(pid, start_ticks)).and_then(Weak::upgrade) {
            return Some(end);
        }
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let end = Arc::new(readable(pidfd_open(raw, PidfdFlags::NONBLOCK).ok()?)?);
        ends.retain(|_, end| end.strong_count() > 0);
        ends.insert((pid, start_ticks), Arc::downgrade(&end));
        Some(end)
    }

    async fn post(&self, input: Input) {
        if let Some(addr) = self.addr.get()
            && addr.send(Post(input)).await.is_err()
        {
            tracing::debug!("a process was seen after the plane had ended");
        }
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<WorkerId, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registers a process descriptor, which becomes readable when its process ends.
#[expect(unsafe_code, reason = "tokio asks for a descriptor that stays open; an owned one does")]
pub fn readable(fd: OwnedFd) -> Option<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` owns its descriptor until it is dropped, with the `AsyncFd` around it.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE).ok() }
}

/// Returns a process's start, in clock ticks since boot; 0 where there is no such process.
pub fn start_ticks(pid: u32) -> u64 {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok();
    stat.as_deref().and_then(ProcessStat::parse).map_or(0, |stat| stat.start_ticks)
}

/// Looks at a process; one that is a zombie, or whose pid was reused, is gone.
fn see(pid: u32, start_ticks: u64) -> Seen {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok();
    match stat.as_deref().and_then(ProcessStat::parse) {
        None => Seen::Gone,
        Some(stat) if start_ticks != 0 && stat.start_ticks != start_ticks => Seen::Gone,
        Some(stat) => match stat.state {
            'Z' | 'X' => Seen::Gone,
            'T' | 't' => Seen::Stopped,
            _ => Seen::Alive,
        },
    }
}
