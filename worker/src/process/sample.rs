//! What a process tree uses.
//!
//! Owns the sum over the processes of a tree, from what one walk through `/proc` has read
//! anyway. Exact about nothing: shared memory counts once for each process that shares it, and
//! the time of a process that was orphaned before it ended is missing.

use rustix::param::{clock_ticks_per_second, page_size};

use crate::process::procfs::Stat;

/// What the processes of a tree use together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time so far, in milliseconds, with that of children that were waited for.
    pub cpu_ms: u64,
    /// Memory that is resident now.
    pub memory_bytes: u64,
    /// How many processes live.
    pub processes: u32,
}

impl Usage {
    pub(crate) fn of(stats: &[Stat]) -> Self {
        let ticks: u64 = stats.iter().map(|stat| stat.cpu_ticks).sum();
        let pages: u64 = stats.iter().map(|stat| stat.rss_pages).sum();
        Self {
            cpu_ms: ticks.saturating_mul(1_000) / clock_ticks_per_second().max(1),
            memory_bytes: pages.saturating_mul(page_size() as u64),
            processes: u32::try_from(stats.len()).unwrap_or(u32::MAX),
        }
    }
}
