//! Every bound, with its default and what happens at it.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Writes durations as whole milliseconds.
mod millis {
    use super::Duration;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

/// The bounds that a broker runs with. Each one has a test at it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Executions remembered; the oldest finished one is forgotten, one that is not never is.
    pub max_executions: usize,
    /// Executions that are not final at once; a further one is refused `busy`.
    pub max_active: usize,
    /// Events per execution other than log lines; the oldest are dropped and `truncated` says so.
    pub max_events: usize,
    /// Bytes of log text kept per execution; the middle is dropped and answered as a range.
    pub max_log_bytes: usize,
    /// Bytes of events kept in all; the largest history shrinks first, then the oldest finished
    /// execution is forgotten.
    pub max_store_bytes: usize,
    /// Characters of one line of output; the rest is cut and marked.
    pub max_line_chars: usize,
    /// Executions that the broker itself started and that run at once; further ones wait.
    pub max_running: usize,
    /// Executions waiting in the queue; a further start is refused `busy`.
    pub max_queued: usize,
    /// Steps in a snapshot; further ones are counted, not listed.
    pub max_steps: usize,
    /// Diagnostics in a snapshot; further ones are counted, not listed.
    pub max_diagnostics: usize,
    /// Bytes of the input or output of one execution; a larger one is replaced by a reference that
    /// says how large it is.
    pub max_value_bytes: usize,
    /// Events in one batch; a larger batch is refused whole and its connection is closed.
    pub max_batch_events: usize,
    /// Connections of clients and workers; a further one is refused `busy`.
    pub max_connections: usize,
    /// Executions that one connection follows by name; a further one is refused.
    pub max_followed: usize,
    /// Executions in one list; a larger request is clamped.
    pub max_list: usize,
    /// Events in one page of history; a larger request is clamped.
    pub max_page: usize,
    /// How often a worker says that it lives, and how often the broker looks.
    #[serde(with = "millis")]
    #[schemars(with = "u64")]
    pub heartbeat: Duration,
    /// How long a worker may say nothing; then its execution fails as `unavailable`.
    #[serde(with = "millis")]
    #[schemars(with = "u64")]
    pub silence: Duration,
    /// How long a worker whose connection ended, and whose process lives, has to come back.
    #[serde(with = "millis")]
    #[schemars(with = "u64")]
    pub reattach: Duration,
    /// How long a connection has to say hello.
    #[serde(with = "millis")]
    #[schemars(with = "u64")]
    pub hello: Duration,
    /// How long a worker waits for a broker's answer before it goes on by itself.
    #[serde(with = "millis")]
    #[schemars(with = "u64")]
    pub attach: Duration,
    /// How long an event other than a state may wait for company in a batch.
    #[serde(with = "millis")]
    #[schemars(with = "u64")]
    pub linger: Duration,
    /// How long after SIGTERM a process tree is killed, where its capability says nothing.
    #[serde(with = "millis")]
    #[schemars(with = "u64")]
    pub cancel_grace: Duration,
    /// How long a reader may take nothing before it is dropped.
    #[serde(with = "millis")]
    #[schemars(with = "u64")]
    pub write_deadline: Duration,
    /// How long a live channel is quiet before it says that it lives; a peer that says nothing for two
    /// and a half of these is dropped.
    #[serde(with = "millis")]
    #[schemars(with = "u64")]
    pub channel_heartbeat: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_executions: 200,
            max_active: 1_000,
            max_events: 2_000,
            max_log_bytes: 16 << 20,
            max_store_bytes: 256 << 20,
            max_line_chars: 2_000,
            max_running: 4,
            max_queued: 1_000,
            max_steps: 1_000,
            max_diagnostics: 200,
            max_value_bytes: 768 << 10,
            max_batch_events: 500,
            max_connections: 1_024,
            max_followed: 1_024,
            max_list: 200,
            max_page: 500,
            heartbeat: Duration::from_secs(2),
            silence: Duration::from_secs(30),
            reattach: Duration::from_secs(5),
            hello: Duration::from_secs(2),
            attach: Duration::from_secs(2),
            linger: Duration::from_millis(10),
            cancel_grace: Duration::from_secs(10),
            write_deadline: Duration::from_secs(10),
            channel_heartbeat: Duration::from_secs(20),
        }
    }
}

impl Limits {
    /// Returns how many checks in a row must hear nothing before a worker counts as silent.
    pub fn silent_checks(&self) -> u32 {
        let beats = self.silence.as_nanos().div_ceil(self.heartbeat.as_nanos().max(1));
        u32::try_from(beats).unwrap_or(u32::MAX).max(1)
    }
}
