//! The wall clock, for people. Nothing is decided by it.

use std::time::{SystemTime, UNIX_EPOCH};

use reeve_protocol::time::Timestamp;

/// Returns the time now.
#[expect(clippy::disallowed_methods, reason = "the wall clock is read here and nowhere else")]
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
