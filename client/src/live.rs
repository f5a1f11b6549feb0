//! What a terminal, a file or a program sees of an execution while it goes on.
//!
//! Owns how facts become output, the same whether the execution runs in this process or is
//! watched. Its rule: in text, what a process wrote to its standard output goes to standard
//! output and everything else to standard error; of a handler that runs here, its value alone
//! goes to standard output. Never decides how an execution ended.

use reeve_protocol::batch::{Entry, LogChunk, Output};
use reeve_protocol::event::{Event, Kind, Stamped};
use reeve_protocol::id::{ExecutionId, Seq};
use reeve_protocol::snapshot::Overlay;
use reeve_protocol::stream::GapReason;
use serde_json::json;

use crate::render;
use crate::ui::{Format, Ui};

/// The view of executions as they go on.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// Whether lines are told apart by the execution that they come from.
    many: bool,
    /// Whether states are told too; `run` tells its end itself.
    states: bool,
    /// Whether lines stand beside the data: a value is printed at the end.
    beside: bool,
}

impl Live {
    /// Returns the view of the one execution that this process runs.
    pub fn of_run() -> Self {
        Self { many: false, states: false, beside: false }
    }

    /// Returns the view of a handler that this process runs, whose value is what it is called for.
    pub fn of_handler() -> Self {
        Self { beside: true, ..Self::of_run() }
    }

    /// Returns the view of one execution that is watched.
    pub fn of_one() -> Self {
        Self { many: false, states: true, beside: false }
    }

    /// Returns the view of everything.
    pub fn of_all() -> Self {
        Self { many: true, states: true, beside: false }
    }

    /// Shows one entry, whose first position is `first`. Flushing is the caller's, when nothing
    /// more is there at once.
    ///
    /// Without a position an entry belongs to no history: it is shown as text and left out of
    /// [`Format::Ndjson`], whose lines are the history's.
    pub fn entry(&self, ui: &mut Ui, id: ExecutionId, first: Option<Seq>, entry: &Entry) {
        match (ui.format, first) {
            (Format::Text, _) => self.text(ui, id, entry),
            (Format::Ndjson, Some(first)) => lines_of(ui, id, first, entry),
            (Format::Ndjson, None) | (Format::Json, _) => {}
        }
    }

    /// Tells of positions that cannot be shown.
    pub fn gap(&self, ui: &mut Ui, id: ExecutionId, from: Seq, to: Seq, reason: GapReason) {
        let dropped = to.0.saturating_sub(from.0) + 1;
        if ui.format == Format::Ndjson {
            ui.json(&json!({
                "type": "stream.lagged",
                "data": {
                    "execution_id": id, "from": from, "to": to, "dropped": dropped,
                    "reason": reason,
                },
            }));
            return;
        }
        let why = match reason {
            GapReason::Retention => "are no longer kept",
            GapReason::Shed => "were shed by the worker",
            GapReason::Epoch => "belong to a history that the broker no longer has; it begins anew",
            GapReason::Ahead => "never were",
        };
        ui.note(format_args!("{}events {from} to {to} {why}", self.prefix(id)));
    }

    /// Tells what is known beside the events.
    pub fn overlay(&self, ui: &mut Ui, id: ExecutionId, overlay: &Overlay) {
        if ui.format == Format::Ndjson {
            ui.json(&json!({
                "type": "stream.overlay",
                "data": { "execution_id": id, "overlay": overlay },
            }));
            return;
        }
        let prefix = self.prefix(id);
        if let Some(waiting) = &overlay.waiting_on {
            ui.note(format_args!("{prefix}waits: {}", waiting.detail));
        }
        if let Some(late) = &overlay.late_report {
            ui.note(format_args!("{prefix}late report: {}: {}", late.state, late.message));
        }
        if let Some(held) = &overlay.held {
            ui.note(format_args!("{prefix}still held: {held}"));
        }
    }

    fn text(&self, ui: &mut Ui, id: ExecutionId, entry: &Entry) {
        match entry {
            Entry::Log(chunk) => self.log(ui, id, chunk),
            Entry::Event(Stamped { kind: Kind::Log { stream, message, .. }, .. }) => {
                self.log_line(ui, id, *stream, message);
            }
            Entry::Event(event) => self.told(ui, id, &event.kind),
        }
    }

    fn log(&self, ui: &mut Ui, id: ExecutionId, chunk: &LogChunk) {
        if !self.many
            && !self.beside
            && chunk.stream == Output::Stdout
            && let Some(text) = chunk.whole()
        {
            return ui.text(text);
        }
        for (line, _) in chunk.iter() {
            self.log_line(ui, id, chunk.stream, line);
        }
    }

    /// Shows a line; one that was cut ends with its mark already.
    fn log_line(&self, ui: &mut Ui, id: ExecutionId, stream: Output, line: &str) {
        let prefix = self.prefix(id);
        match stream {
            Output::Stdout if !self.beside => ui.line(format_args!("{prefix}{line}")),
            // Quiet keeps notes back, not what the work itself wrote.
            Output::Stdout | Output::Stderr | Output::Handler => {
                ui.pass(format_args!("{prefix}{line}"));
            }
        }
    }

    fn told(&self, ui: &mut Ui, id: ExecutionId, kind: &Kind) {
        if kind.moves_to().is_some() && !self.states || matches!(kind, Kind::Resources { .. }) {
            return;
        }
        ui.note(format_args!("{}{}", self.prefix(id), render::summary(kind)));
    }

    fn prefix(&self, id: ExecutionId) -> String {
        if self.many { format!("{} ", &id.as_str()[19..]) } else { String::new() }
    }
}

/// Writes the public events of one entry.
fn lines_of(ui: &mut Ui, id: ExecutionId, first: Seq, entry: &Entry) {
    match entry {
        Entry::Event(Stamped { at, kind }) => {
            let kind = kind.clone();
            ui.json(&Event { execution_id: id, sequence: first, timestamp: *at, kind });
        }
        Entry::Log(chunk) => {
            for (n, (line, cut)) in (0..).zip(chunk.iter()) {
                let message = line.to_owned();
                let kind = Kind::Log { stream: chunk.stream, message, cut };
                let sequence = first.plus(n);
                ui.json(&Event { execution_id: id, sequence, timestamp: chunk.at, kind });
            }
        }
    }
}
