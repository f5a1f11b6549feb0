//! The one place of the broker that reads clocks.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use reeve_protocol::{Now, Timestamp};

/// Reads both clocks. The monotonic one counts from when this was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

#[expect(clippy::disallowed_methods, reason = "clocks are read here and nowhere else")]
impl Clock {
    /// Starts counting.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Returns a reading of both clocks.
    pub fn now(&self) -> Now {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
        Now { mono: self.start.elapsed(), wall: Timestamp::from_micros(micros) }
    }
}
