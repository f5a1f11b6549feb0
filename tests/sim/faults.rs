//! What a run is made of: its limits, its people and its faults, all drawn from the seed.
//!
//! Swarm testing: each class of fault is off in three of ten runs, and has a rate of its own in
//! the others, so that no class hides behind another.

use std::time::Duration;

use reeve_protocol::Limits;

use crate::rng::Rng;

/// One microsecond is one.
pub const MS: u64 = 1_000;
/// One second.
pub const SECOND: u64 = 1_000 * MS;

/// A class of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A worker's connection is cut.
    CutWorker,
    /// A reader's connection is cut.
    CutReader,
    /// A direction of a connection carries nothing for a while.
    Stall,
    /// A worker's process is killed.
    Kill,
    /// A worker's process is stopped and continued.
    StopWorker,
    /// The broker's process is stopped and continued.
    StopBroker,
    /// The broker ends, and another one begins with nothing.
    Restart,
    /// The wall clock jumps.
    WallJump,
}

/// The classes that strike from time to time.
pub const STRIKES: [Fault; 8] = [
    Fault::CutWorker,
    Fault::CutReader,
    Fault::Stall,
    Fault::Kill,
    Fault::StopWorker,
    Fault::StopBroker,
    Fault::Restart,
    Fault::WallJump,
];

/// What one run is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The bounds in force.
    pub limits: Limits,
    /// How long faults strike.
    pub safety: u64,
    /// Worker processes that people start.
    pub workers: usize,
    /// Executions that the broker is to make workers for.
    pub starts: usize,
    /// Readers.
    pub readers: usize,
    /// Requests to stop.
    pub cancels: usize,
    /// Mean time between two strikes of each class; none if it is off.
    pub strikes: Vec<(Fault, u64)>,
    /// The longest usual latency.
    pub latency: u64,
    /// How often in a thousand a write is cut into two.
    pub split: u64,
    /// How often in a thousand a batch is sent twice.
    pub duplicate: u64,
    /// How often in a thousand a batch is overtaken by the next frame.
    pub reorder: u64,
    /// How often in a thousand a batch is sent once more under the fence before.
    pub ghost: u64,
    /// How often in a thousand an append takes time.
    pub slow_store: u64,
    /// How often in a thousand no worker can be made.
    pub launch_fails: u64,
    /// How often in a thousand a timer of the broker is late.
    pub late_timer: u64,
    /// Bytes that a reader is sent at once.
    pub page_bytes: usize,
}

impl Plan {
    /// Draws the plan of a seed.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::of(seed, "plan", 0);
        let mut swarm = |rate: u64| if rng.chance(300) { 0 } else { 1 + rng.below(rate) };
        let (split, duplicate, reorder) = (swarm(400), swarm(200), swarm(150));
        let (ghost, slow_store) = (swarm(60), swarm(500));
        let (launch_fails, late_timer) = (swarm(250), swarm(200));
        let mut strikes = Vec::new();
        for fault in STRIKES {
            if !rng.chance(300) {
                strikes.push((fault, mean(fault) * rng.range(40, 250) / 100));
            }
        }
        let limits = Limits {
            linger: Duration::from_millis(Rng::of(seed, "linger", 0).range(1, 40)),
            ..limits(&mut rng)
        };
        Self {
            limits,
            safety: rng.range(4, 12) * SECOND,
            workers: 2 + rng.index(5),
            starts: rng.index(4),
            readers: 2 + rng.index(3),
            cancels: rng.index(6),
            strikes,
            latency: [500, 3 * MS, 20 * MS, 120 * MS][rng.index(4)],
            split,
            duplicate,
            reorder,
            ghost,
            slow_store,
            launch_fails,
            late_timer,
            page_bytes: [64, 512, 4_096, 65_536][rng.index(4)],
        }
    }
}

fn mean(fault: Fault) -> u64 {
    match fault {
        Fault::CutWorker | Fault::CutReader => 2 * SECOND,
        Fault::Stall | Fault::StopWorker => 3 * SECOND,
        Fault::Kill => 4 * SECOND,
        Fault::StopBroker => 5 * SECOND,
        Fault::Restart => 9 * SECOND,
        Fault::WallJump => SECOND,
    }
}

/// Draws limits: each one is small enough to be reached in half of the runs.
fn limits(rng: &mut Rng) -> Limits {
    let usual = Limits::default();
    let mut pick = |small: usize, large: usize| if rng.chance(500) { small } else { large };
    let max_executions = pick(1, 200);
    let max_events = pick(4, 2_000);
    let max_log_bytes = pick(400, 16 << 20);
    let max_store_bytes = pick(1_500, 256 << 20);
    let max_batch_events = pick(2, 500);
    let max_running = 1 + pick(0, 1);
    let max_queued = pick(1, 1_000);
    let max_active = pick(4, 1_000);
    let silence = Duration::from_millis(rng.range(1_500, 5_000));
    Limits {
        max_executions,
        max_events,
        max_log_bytes,
        max_store_bytes,
        max_batch_events,
        max_running,
        max_queued,
        max_active,
        heartbeat: Duration::from_millis(500),
        silence,
        reattach: Duration::from_millis(rng.range(600, 2_000)),
        attach: Duration::from_millis(rng.range(300, 1_500)),
        write_deadline: Duration::from_secs(2),
        ..usual
    }
}
