//! Executions as text for people: tables, one execution at length, one event in a line.
//!
//! Owns what a terminal shows of the contract's values. Its rule: text comes in safe and goes out
//! in lines that fit. Never prints and reads no clock.

use std::borrow::Cow;
use std::time::Duration;

use reeve_protocol::event::{Event, Kind};
use reeve_protocol::fault::SideEffect;
use reeve_protocol::lifecycle::State;
use reeve_protocol::sanitise;
use reeve_protocol::snapshot::{Overlay, Snapshot, StepState};
use reeve_protocol::time::Timestamp;

use crate::ui::Paint;

/// Columns of a table where no terminal says how many there are.
pub const COLUMNS: usize = 120;
/// The narrowest last column of a table.
const LAST_MIN: usize = 12;
/// Characters of an event that this version does not know.
const UNKNOWN_CHARS: usize = 2_000;

/// Returns the colour of a state's word.
pub fn paint_of(state: State) -> Paint {
    match state {
        State::Queued => Paint::Faint,
        State::Running | State::Cancelling => Paint::Busy,
        State::Succeeded => Paint::Good,
        State::Failed | State::Cancelled => Paint::Bad,
    }
}

/// Returns a duration in at most six characters: `850ms`, `4.2s`, `3m07s`, `2h05m`, `3d04h`.
pub fn took(duration: Duration) -> String {
    let (millis, seconds) = (duration.as_millis(), duration.as_secs());
    match seconds {
        0 => format!("{millis}ms"),
        1..=9 => format!("{seconds}.{}s", duration.subsec_millis() / 100),
        10..=59 => format!("{seconds}s"),
        60..=3_599 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..=86_399 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// Returns how long an execution took, or for how long it has been going on.
pub fn age(snapshot: &Snapshot, now: Timestamp) -> String {
    match (snapshot.duration_ms, snapshot.started_at, snapshot.finished_at) {
        (Some(millis), _, _) => took(Duration::from_millis(millis)),
        (None, Some(started), None) => took(now.since(started)),
        (None, None, None) => took(now.since(snapshot.created_at)),
        (None, _, Some(_)) => "-".to_owned(),
    }
}

/// Returns the progress of an execution as `30/100 30% message`.
fn progress_of(snapshot: &Snapshot) -> Option<String> {
    let progress = snapshot.progress.as_ref()?;
    let mut text = progress.current.to_string();
    if let Some(total) = progress.total {
        text.push_str(&format!("/{total}"));
    }
    if let Some(percent) = progress.percent {
        text.push_str(&format!(" {percent}%"));
    }
    if let Some(message) = &progress.message {
        text.push_str(&format!(" {message}"));
    }
    Some(text)
}

/// Cuts a text to so many characters, the last of them a mark where something was cut.
pub fn fit(text: &str, width: usize) -> String {
    if text.chars().nth(width).is_none() {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// Lays rows out below a head; every column but the last is as wide as its widest cell, and the
/// last takes what is left of `columns`.
pub fn table(head: &[&str], rows: &[Vec<String>], columns: usize) -> Vec<String> {
    let last = head.len().saturating_sub(1);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..last).map(width).collect();
    let used: usize = widths.iter().map(|width| width + 2).sum();
    let rest = columns.saturating_sub(used).max(LAST_MIN);
    let line = |cells: &[String]| {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        line.push_str(&fit(cells.get(last).map_or("", String::as_str), rest));
        line.trim_end().to_owned()
    };
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    std::iter::once(line(&head)).chain(rows.iter().map(|row| line(row))).collect()
}

/// Lays executions out as a table.
pub fn executions(snapshots: &[Snapshot], now: Timestamp, columns: usize) -> Vec<String> {
    let rows: Vec<Vec<String>> = snapshots
        .iter()
        .map(|snapshot| {
            let pid = snapshot.actor.pid.or(snapshot.worker.as_ref().map(|worker| worker.pid));
            let what = progress_of(snapshot)
                .filter(|_| !snapshot.state.is_final())
                .or_else(|| snapshot.overlay.waiting_on.as_ref().map(|it| it.detail.clone()))
                .or_else(|| snapshot.error.as_ref().map(|error| error.message.clone()))
                .unwrap_or_else(|| snapshot.title.clone());
            vec![
                snapshot.id.to_string(),
                snapshot.state.to_string(),
                fit(snapshot.capability.as_str(), 28),
                age(snapshot, now),
                pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
                what,
            ]
        })
        .collect();
    table(&["ID", "STATE", "CAPABILITY", "TOOK", "PID", "WHAT"], &rows, columns)
}

/// Returns one execution at length.
pub fn execution(snapshot: &Snapshot, now: Timestamp) -> Vec<String> {
    let mut view = View::default();
    view.field("id", snapshot.id);
    view.field("capability", &snapshot.capability);
    view.field("title", &snapshot.title);
    view.field("state", format!("{} ({})", snapshot.state, age(snapshot, now)));
    times(&mut view, snapshot);
    if let Some(worker) = &snapshot.worker {
        view.field("worker", format!("pid {} ({})", worker.pid, worker.role));
    }
    let repository = &snapshot.repository;
    let branch = repository.branch.as_ref().map(|name| format!(" on {name}")).unwrap_or_default();
    view.field("repository", format!("{}{branch}", repository.name));
    view.maybe("part of", snapshot.parent_id);
    overlay(&mut view, &snapshot.overlay, now);
    view.maybe("progress", progress_of(snapshot));
    if let Some(used) = &snapshot.resources {
        let (cpu, memory) = (used.cpu_ms, used.memory_bytes >> 10);
        view.field(
            "resources",
            format!("{cpu} ms CPU, {memory} KiB, {} processes", used.processes),
        );
    }
    steps(&mut view, snapshot);
    diagnostics(&mut view, snapshot);
    if let Some(error) = &snapshot.error {
        view.field("error", format!("{}: {}", error.code, error.message));
        view.field("side effect", side_effect(error.side_effect));
        view.maybe("reason", error.reason.as_ref());
        view.maybe("suggestion", error.suggestion.as_ref());
    }
    view.value("input", Some(&snapshot.input).filter(|input| !is_empty(input)));
    view.value("output", snapshot.output.as_ref().filter(|output| !is_empty(output)));
    view.value("receipt", snapshot.receipt.as_ref());
    let gone = if snapshot.events_truncated { ", some of them gone" } else { "" };
    view.field("events", format!("{}{gone}", snapshot.event_count));
    view.lines
}

/// Returns where to read the last lines of an execution.
pub fn hint(snapshot: &Snapshot) -> String {
    let after = snapshot.last_sequence.0.saturating_sub(20);
    if snapshot.state.is_final() {
        format!("last lines: `reeve executions events {} --after {after}`", snapshot.id)
    } else {
        format!("follow it: `reeve executions watch {}`", snapshot.id)
    }
}

fn is_empty(value: &serde_json::Value) -> bool {
    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty)
}

fn side_effect(side_effect: SideEffect) -> &'static str {
    match side_effect {
        SideEffect::None => "none; starting it again is safe",
        SideEffect::Possible => "possible; its effect was not observed",
        SideEffect::Partial => "partial; some of it happened",
        SideEffect::Unknown => "unknown; nobody can say",
    }
}

fn times(view: &mut View, snapshot: &Snapshot) {
    view.field("created", snapshot.created_at);
    view.maybe("started", snapshot.started_at);
    view.maybe("finished", snapshot.finished_at);
}

fn overlay(view: &mut View, overlay: &Overlay, now: Timestamp) {
    if let Some(waiting) = &overlay.waiting_on {
        let of = waiting.execution_id.map(|id| format!(" ({id})")).unwrap_or_default();
        view.field("waits for", format!("{}: {}{of}", waiting.kind, waiting.detail));
    }
    if let Some(at) = overlay.cancel_requested_at {
        view.field("cancel", format!("asked for {} ago", took(now.since(at))));
    }
    if let Some(at) = overlay.suspended_at {
        view.field("suspended", format!("for {}", took(now.since(at))));
    }
    if let Some(late) = &overlay.late_report {
        let unsent = match late.unsent_events {
            0 => String::new(),
            n => format!("; {n} events were not taken"),
        };
        view.field(
            "late report",
            format!("{}: {}{unsent} ({})", late.state, late.message, late.at),
        );
    }
    view.maybe("still held", overlay.held.as_ref());
}

fn steps(view: &mut View, snapshot: &Snapshot) {
    if snapshot.steps.is_empty() {
        return;
    }
    view.lines.push("steps:".to_owned());
    for step in &snapshot.steps {
        let mark = match step.state {
            StepState::Running => "…",
            StepState::Completed => "✓",
            StepState::Failed => "✗",
        };
        let detail = step.detail.as_ref().map(|it| format!(": {it}")).unwrap_or_default();
        let took = step.finished_at.map(|at| format!(" ({})", took(at.since(step.started_at))));
        view.lines.push(format!("  {mark} {}{detail}{}", step.title, took.unwrap_or_default()));
    }
    view.omitted(snapshot.steps_omitted);
}

fn diagnostics(view: &mut View, snapshot: &Snapshot) {
    if snapshot.diagnostics.is_empty() {
        return;
    }
    view.lines.push("diagnostics:".to_owned());
    for found in &snapshot.diagnostics {
        let severity = format!("{:?}", found.severity).to_lowercase();
        view.lines.push(format!("  {severity}[{}]: {}", found.code, found.summary));
        for more in [&found.detail, &found.suggestion].into_iter().flatten() {
            view.lines.push(format!("    {more}"));
        }
    }
    view.omitted(snapshot.diagnostics_omitted);
}

/// Lines of names and values.
#[derive(Default)]
struct View {
    lines: Vec<String>,
}

impl View {
    fn field(&mut self, name: &str, value: impl ToString) {
        self.lines.push(format!("{:<12} {}", format!("{name}:"), value.to_string()));
    }

    fn maybe(&mut self, name: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.field(name, value);
        }
    }

    fn value(&mut self, name: &str, value: Option<&serde_json::Value>) {
        let Some(value) = value else { return };
        self.lines.push(format!("{name}:"));
        let text = serde_json::to_string_pretty(value).unwrap_or_default();
        let text = inert_json(&text);
        self.lines.extend(text.lines().map(|line| format!("  {line}")));
    }

    fn omitted(&mut self, count: u64) {
        if count > 0 {
            self.lines.push(format!("  and {count} more"));
        }
    }
}

/// Returns one event as a line: position, time of day, type, and what it says.
pub fn event(event: &Event) -> String {
    let at = event.timestamp.to_string();
    let time = at.get(11..23).unwrap_or(&at);
    format!("{:>5} {time} {:<14} {}", event.sequence, event.kind.tag(), said(&event.kind))
}

/// Returns what an event says, without its type where that stands beside it.
fn said(kind: &Kind) -> String {
    match kind {
        Kind::Log { stream, message, cut } => {
            format!("{}: {message}{}", stream.as_str(), if *cut { "…" } else { "" })
        }
        other => summary(other),
    }
}

/// Returns what an event says in a line; of one that this version does not know, too, safely.
pub fn summary(kind: &Kind) -> String {
    match kind {
        Kind::Unknown { .. } => sanitise::text(&kind.summary(), UNKNOWN_CHARS),
        known => known.summary(),
    }
}

/// Escapes in a JSON text what a terminal would act on and what would turn or hide the text around
/// it. It can stand within strings only, so that the text means what it meant.
pub fn inert_json(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_active) {
        return text.into();
    }
    let mut inert = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_active(character) {
            inert.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            inert.push(character);
        }
    }
    inert.into()
}

fn is_active(character: char) -> bool {
    matches!(
        character,
        '\u{7f}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}'
            | '\u{feff}'
    )
}

#[cfg(test)]
mod tests;
