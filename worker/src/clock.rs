//! The clock: the one place of this crate that reads the time.

use std::time::{Duration, Instant, SystemTime};

use reeve_protocol::{Now, Timestamp};

/// Makes readings of both clocks, counted from its own start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Self::start()
    }
}

impl Clock {
    /// Starts counting.
    #[allow(clippy::disallowed_methods, reason = "this is where the clock is read")]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Reads both clocks.
    pub fn now(&self) -> Now {
        Now { mono: self.start.elapsed(), wall: wall() }
    }

    /// Returns the instant of a monotonic reading, for timers.
    pub fn instant(&self, mono: Duration) -> Instant {
        self.start + mono
    }
}

/// Reads the wall clock.
#[allow(clippy::disallowed_methods, reason = "this is where the clock is read")]
pub fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
