//! `[limits]`: each bound of the broker by its name.

use std::time::Duration;

use serde_json::Value;

use super::read::{Node, Reader, in_words};
use crate::input::nearest;
use crate::limits::Limits;
use crate::strict::shown;

/// What a limit is counted in, with the least and the most that it may be set to.
#[derive(Clone, Copy)]
pub(super) enum Range {
    /// Things or bytes.
    Count(u64, u64),
    /// A duration, in milliseconds.
    Millis(u64, u64),
}

/// Every field of [`Limits`]. A test holds the two together.
pub(super) const LIMITS: [(&str, Range); 25] = [
    ("max_executions", Range::Count(1, 100_000)),
    ("max_active", Range::Count(1, 100_000)),
    ("max_events", Range::Count(16, 1_000_000)),
    ("max_log_bytes", Range::Count(64 << 10, 1 << 30)),
    ("max_store_bytes", Range::Count(1 << 20, 64 << 30)),
    ("max_line_chars", Range::Count(80, 64 << 10)),
    ("max_running", Range::Count(1, 256)),
    ("max_queued", Range::Count(0, 100_000)),
    ("max_steps", Range::Count(1, 100_000)),
    ("max_diagnostics", Range::Count(1, 10_000)),
    ("max_value_bytes", Range::Count(1 << 10, 768 << 10)),
    ("max_batch_events", Range::Count(1, 500)),
    ("max_connections", Range::Count(4, 16_384)),
    ("max_followed", Range::Count(1, 16_384)),
    ("max_list", Range::Count(1, 1_000)),
    ("max_page", Range::Count(1, 5_000)),
    ("heartbeat", Range::Millis(100, 60_000)),
    ("silence", Range::Millis(500, 3_600_000)),
    ("reattach", Range::Millis(100, 600_000)),
    ("hello", Range::Millis(100, 60_000)),
    ("attach", Range::Millis(100, 60_000)),
    ("linger", Range::Millis(0, 1_000)),
    ("cancel_grace", Range::Millis(0, 600_000)),
    ("write_deadline", Range::Millis(500, 600_000)),
    ("channel_heartbeat", Range::Millis(100, 600_000)),
];

/// Reads `[limits]` over what `limits` holds.
pub(super) fn read<'t>(reader: &mut Reader<'t>, node: &Node<'t>, limits: &mut Limits) {
    let Some(table) = reader.table(node, "`limits`") else { return };
    let Ok(Value::Object(mut all)) = serde_json::to_value(&*limits) else { return };
    for (key, node) in table {
        let name = key.get_ref().as_ref();
        let Some((_, range)) = LIMITS.iter().find(|(known, _)| *known == name) else {
            let message = format!("unknown limit \"{}\"", shown(name));
            let meant = nearest(name, LIMITS.iter().map(|(known, _)| *known));
            reader.suggest(key.span(), &message, meant);
            continue;
        };
        if let Some(value) = one(reader, node, name, *range) {
            all.insert(name.to_owned(), value.into());
        }
    }
    if let Ok(read) = serde_json::from_value::<Limits>(Value::Object(all)) {
        if read.silence < read.heartbeat * 2 {
            let twice = in_words(read.heartbeat * 2);
            let message = format!("`silence` is at least twice `heartbeat`, which is {twice}");
            let place = table.get("silence").or_else(|| table.get("heartbeat")).unwrap_or(node);
            reader.error(place.span(), &message);
        }
        *limits = read;
    }
}

fn one<'t>(reader: &mut Reader<'t>, node: &Node<'t>, name: &str, range: Range) -> Option<u64> {
    let what = format!("`{name}`");
    match range {
        Range::Count(least, most) => {
            let value = reader.integer(node, &what)?;
            let value = u64::try_from(value).ok().filter(|value| (least..=most).contains(value));
            if value.is_none() {
                reader.error(node.span(), &format!("{what} is between {least} and {most}"));
            }
            value
        }
        Range::Millis(least, most) => {
            let bounds = (Duration::from_millis(least), Duration::from_millis(most));
            let value = reader.duration(node, &what, bounds)?;
            u64::try_from(value.as_millis()).ok()
        }
    }
}
