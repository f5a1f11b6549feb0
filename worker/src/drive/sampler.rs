//! When a process tree is sampled, and which samples are worth an event.
//!
//! A sample is taken once a second, the first one after two; it becomes an event when something
//! has changed by a tenth.

use std::time::Duration;

use reeve_protocol::Kind;

use crate::process::Usage;

/// When the first sample is taken.
const FIRST: Duration = Duration::from_secs(2);
/// How often a sample is taken.
const EVERY: Duration = Duration::from_secs(1);

/// Decides about samples.
pub(super) struct Sampler {
    due: Duration,
    told: Option<Usage>,
}

impl Sampler {
    pub(super) fn new() -> Self {
        Self { due: Duration::MAX, told: None }
    }

    /// Takes the start of the process.
    pub(super) fn start(&mut self, now: Duration) {
        self.due = now + FIRST;
    }

    /// Returns when the next sample is due.
    pub(super) fn due(&self) -> Duration {
        self.due
    }

    /// Takes a sample; returns the event if it tells something new.
    pub(super) fn sample(&mut self, usage: Usage, now: Duration) -> Option<Kind> {
        self.due = now + EVERY;
        if self.told.is_some_and(|told| !differs(&told, &usage)) {
            return None;
        }
        self.told = Some(usage);
        let Usage { cpu_ms, memory_bytes, processes } = usage;
        Some(Kind::Resources { cpu_ms, memory_bytes, processes })
    }
}

fn differs(told: &Usage, now: &Usage) -> bool {
    let far = |told: u64, now: u64| told.abs_diff(now) * 10 >= told.max(1);
    far(told.memory_bytes, now.memory_bytes)
        || far(told.cpu_ms.max(100), now.cpu_ms.max(100))
        || told.processes != now.processes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_by_a_tenth_is_told() {
        let mut sampler = Sampler::new();
        sampler.start(Duration::ZERO);
        assert_eq!(sampler.due(), FIRST);
        let usage = Usage { cpu_ms: 1_000, memory_bytes: 1_000, processes: 1 };
        assert!(sampler.sample(usage, FIRST).is_some());
        assert_eq!(sampler.due(), FIRST + EVERY);
        assert!(sampler.sample(Usage { memory_bytes: 1_099, ..usage }, FIRST).is_none());
        assert!(sampler.sample(Usage { memory_bytes: 1_100, ..usage }, FIRST).is_some());
    }
}
