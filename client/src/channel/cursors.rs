//! What a reader of the live channel holds, and what it may hand on. Reads no clock and touches no
//! socket.
//!
//! The rule is the follower's: every position of a history is handed on exactly once and in order,
//! or named as missing. What breaks it on the wire is answered by connecting again from the cursors
//! held here, which survive every connection.

use std::collections::{BTreeMap, BTreeSet};

use reeve_protocol::id::{ExecutionId, Seq};
use reeve_protocol::lifecycle::State;
use reeve_protocol::snapshot::Overlay;
use reeve_protocol::stream::GapReason;
use reeve_protocol::{Event, strict};
use serde::Deserialize;
use serde_json::Value;

/// Ended executions that a reader of everything remembers, so that nothing of them is shown again.
const ENDED_MAX: usize = 10_000;

/// What a reader may show, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Shown {
    /// An event that was not shown before.
    Event(Box<Event>),
    /// Positions that cannot be shown; or, for `epoch` and `ahead`, must be forgotten.
    Lagged {
        /// Of which execution.
        id: ExecutionId,
        /// The first.
        from: Seq,
        /// The last.
        to: Seq,
        /// Why.
        reason: GapReason,
    },
    /// What is known beside the events has changed.
    Overlay {
        /// Of which execution.
        id: ExecutionId,
        /// The whole of it.
        overlay: Box<Overlay>,
    },
    /// Nobody holds an execution of this name.
    Unknown(ExecutionId),
}

/// Why a connection is given up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The broker is about to close it.
    #[error("the broker closes the channel: {0}")]
    Closing(String),
    /// A position is missing, and nothing said so.
    #[error("event {found} of {id} came after {last}")]
    Hole {
        /// Of which execution.
        id: ExecutionId,
        /// The last position that was shown.
        last: Seq,
        /// The position that came instead of the next one.
        found: Seq,
    },
    /// It says what no broker says.
    #[error("the broker sent what is no document of the channel: {0}")]
    Malformed(String),
}

#[derive(Deserialize)]
struct Ready {
    #[serde(default)]
    epoch: Option<String>,
    #[serde(default)]
    unknown: Vec<ExecutionId>,
    #[serde(default)]
    horizon: Option<u64>,
    #[serde(default)]
    cursors: BTreeMap<ExecutionId, Seq>,
}

#[derive(Deserialize)]
struct Lagged {
    execution_id: ExecutionId,
    from: Seq,
    to: Seq,
    reason: GapReason,
    resume_after: Seq,
}

#[derive(Deserialize)]
struct OverlayChanged {
    execution_id: ExecutionId,
    overlay: Overlay,
}

/// The cursors of one reader.
#[derive(Clone, Debug, Default)]
pub struct Cursors {
    all: bool,
    epoch: Option<String>,
    /// From which number on executions are new to a reader of everything.
    horizon: Option<u64>,
    last: BTreeMap<ExecutionId, Seq>,
    ended: BTreeSet<ExecutionId>,
    unknown: BTreeSet<ExecutionId>,
}

impl Cursors {
    /// Makes the cursors of a reader of named executions, each from after a position.
    pub fn of(executions: impl IntoIterator<Item = (ExecutionId, Seq)>) -> Self {
        Self { last: executions.into_iter().collect(), ..Self::default() }
    }

    /// Makes the cursors of a reader of everything, from now on.
    pub fn all() -> Self {
        Self { all: true, ..Self::default() }
    }

    /// Returns the last position that was shown of an execution.
    pub fn last(&self, id: ExecutionId) -> Option<Seq> {
        self.last.get(&id).copied()
    }

    /// Returns whether everything that was followed has ended, or is held by nobody.
    pub fn is_done(&self) -> bool {
        !self.all && self.last.keys().all(|id| self.ended.contains(id) || self.unknown.contains(id))
    }

    /// Returns the target that a connection is opened with.
    pub fn target(&self) -> String {
        let mut query = Vec::new();
        if self.all
            && let Some(horizon) = self.horizon
        {
            query.push(format!("since={horizon}"));
        }
        if !self.all || self.horizon.is_some() {
            let open = self.last.iter().filter(|(id, _)| !self.ended.contains(id));
            query.extend(open.map(|(id, last)| format!("execution={id}:{last}")));
        }
        if let Some(epoch) = self.epoch.as_ref().filter(|_| !query.is_empty()) {
            query.push(format!("epoch={epoch}"));
        }
        match query.is_empty() {
            true => "/events".to_owned(),
            false => format!("/events?{}", query.join("&")),
        }
    }

    /// Takes that a connection is made again.
    pub fn handle_connected(&mut self) {
        self.unknown.clear();
    }

    /// Takes one document of the channel; returns what of it is new.
    ///
    /// # Errors
    ///
    /// When nothing more of this connection is to be believed.
    pub fn handle_text(&mut self, text: &str) -> Result<Vec<Shown>, Broken> {
        let value =
            strict::parse(text.as_bytes()).map_err(|error| Broken::Malformed(error.to_string()))?;
        match value["type"].as_str() {
            Some("stream.ready" | "stream.subscribed") => {
                let ready: Ready = read(value)?;
                self.epoch = ready.epoch.or(self.epoch.take());
                self.horizon = ready.horizon.or(self.horizon);
                if self.all {
                    // What has begun while there was no connection is read from its beginning.
                    for (id, cursor) in ready.cursors {
                        if !self.ended.contains(&id) {
                            self.last.entry(id).or_insert(cursor);
                        }
                    }
                }
                let unknown = ready.unknown.into_iter();
                let new: Vec<_> = unknown.filter(|id| self.unknown.insert(*id)).collect();
                Ok(new.into_iter().map(Shown::Unknown).collect())
            }
            Some("stream.lagged") => Ok(self.on_lagged(&read(value)?)),
            Some("stream.overlay") => {
                let OverlayChanged { execution_id, overlay } = read(value)?;
                Ok(vec![Shown::Overlay { id: execution_id, overlay: Box::new(overlay) }])
            }
            Some("stream.closing") => {
                let reason = value["reason"].as_str().unwrap_or_default();
                Err(Broken::Closing(reeve_protocol::sanitise::text(reason, 200)))
            }
            Some(kind) if kind.starts_with("stream.") => Ok(Vec::new()),
            Some(_) => self.on_event(read(value)?),
            None => Err(Broken::Malformed("it has no type".to_owned())),
        }
    }

    fn on_event(&mut self, event: Event) -> Result<Vec<Shown>, Broken> {
        let id = event.execution_id;
        if self.ended.contains(&id) {
            return Ok(Vec::new());
        }
        let known = self.last.get(&id).copied();
        // A reader of everything takes what it does not know from where it comes in.
        let last = known.unwrap_or(Seq(event.sequence.0.saturating_sub(1)));
        if event.sequence <= last {
            return Ok(Vec::new());
        }
        if event.sequence != last.next() {
            return Err(Broken::Hole { id, last, found: event.sequence });
        }
        self.last.insert(id, event.sequence);
        if event.kind.moves_to().is_some_and(State::is_final) {
            self.end(id);
        }
        Ok(vec![Shown::Event(Box::new(event))])
    }

    fn on_lagged(&mut self, lagged: &Lagged) -> Vec<Shown> {
        let Lagged { execution_id: id, from, to, reason, resume_after } = *lagged;
        let last = self.last.get(&id).copied().unwrap_or_default();
        let forgets = matches!(reason, GapReason::Epoch | GapReason::Ahead);
        if !forgets && to <= last {
            return Vec::new();
        }
        self.last.insert(id, resume_after);
        if forgets {
            self.ended.remove(&id);
        }
        let from = if forgets { from } else { from.max(last.next()) };
        vec![Shown::Lagged { id, from, to, reason }]
    }

    /// Takes that an execution is over; a reader of everything remembers so many of them.
    fn end(&mut self, id: ExecutionId) {
        self.ended.insert(id);
        if self.all {
            self.last.remove(&id);
            if self.ended.len() > ENDED_MAX {
                self.ended.pop_first();
            }
        }
    }
}

fn read<T: for<'de> Deserialize<'de>>(value: Value) -> Result<T, Broken> {
    serde_json::from_value(value).map_err(|error| Broken::Malformed(error.to_string()))
}
