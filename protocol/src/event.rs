//! Events: one fact about one execution each, in the shape of the local wire and in the public one.
//!
//! On the local wire a [`Stamped`] travels as MessagePack, the kind tagged from outside. What
//! programs and browsers read is an [`Event`]: the seven members of the public envelope, made from
//! a stamped kind and its position. Both keep a kind that they do not know, whole.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer};
use serde::ser::{SerializeMap, SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::batch::Output;
use crate::fault::{Fault, Stage};
use crate::id::{CapabilityId, ExecutionId, Seq};
use crate::lifecycle::State;
use crate::sanitise;
use crate::time::Timestamp;

/// The version of the event protocol; moves only for what a version-1 reader could not ignore.
pub const SCHEMA_VERSION: &str = "1";

/// Problems of one fault that are kept, at most.
const PROBLEMS_MAX: usize = 16;

/// The prefix of every public type.
const PREFIX: &str = "execution.";

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Someone should look.
    Warning,
    /// Something is wrong; says nothing about the outcome.
    Error,
}

/// What a gate said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GateOutcome {
    /// The call may go on.
    Passed,
    /// The call stops here.
    Refused,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident $tag:literal {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    })*) => {
        /// What happened to an execution.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "a member says what `data` holds under its name")]
        pub enum Kind {
            $($(#[$doc])* $variant { $($field: $type,)* },)*
            /// A kind from a newer peer, kept whole so that it can be shown.
            Unknown {
                /// The type without its prefix.
                tag: String,
                /// Its data.
                data: Value,
            },
        }

        /// The kinds this version knows, as serde sees them.
        #[derive(Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        enum Known {
            $(#[serde(rename = $tag)] $variant { $($(#[$field_meta])* $field: $type,)* },)*
        }

        impl Kind {
            /// The types this version knows, without their prefix.
            pub const TAGS: &'static [&'static str] = &[$($tag),*];

            /// Returns the type without its prefix.
            pub fn tag(&self) -> &str {
                match self {
                    $(Self::$variant { .. } => $tag,)*
                    Self::Unknown { tag, .. } => tag,
                }
            }

            /// Reads the data of a kind as its tag says, without a detour over a value.
            fn read_data<'de, A: de::MapAccess<'de>>(tag: String, map: &mut A) -> Result<Self, A::Error> {
                match tag.as_str() {
                    $($tag => {
                        #[derive(Deserialize)]
                        #[serde(deny_unknown_fields)]
                        struct Data { $($(#[$field_meta])* $field: $type,)* }
                        let Data { $($field,)* } = map.next_value()?;
                        Ok(Self::$variant { $($field,)* })
                    })*
                    _ => Ok(Self::Unknown { data: map.next_value()?, tag }),
                }
            }

            fn from_known(known: Known) -> Self {
                match known {
                    $(Known::$variant { $($field,)* } => Self::$variant { $($field,)* },)*
                }
            }

            fn into_known(self) -> Result<Known, (String, Value)> {
                match self {
                    $(Self::$variant { $($field,)* } => Ok(Known::$variant { $($field,)* }),)*
                    Self::Unknown { tag, data } => Err((tag, data)),
                }
            }
        }
    };
}

kinds! {
    /// It exists; always the first event.
    Created "created" {
        capability: CapabilityId,
        title: String,
        #[serde(default)]
        input: Value,
    }
    /// It waits; `ahead` others wait before it.
    Queued "queued" {
        ahead: u64,
    }
    /// A gate was passed or refused.
    Gate "gate" {
        stage: Stage,
        name: String,
        outcome: GateOutcome,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    /// It was entered: from here on a side effect may have happened.
    Started "started" {}
    /// How far along it is; `total` where it is known.
    Progress "progress" {
        current: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    }
    /// A named phase was entered.
    StepStarted "step.started" {
        name: String,
        title: String,
    }
    /// A named phase ended.
    StepCompleted "step.completed" {
        name: String,
        ok: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    }
    /// A line of output.
    Log "log" {
        stream: Output,
        message: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        cut: bool,
    }
    /// A structured finding, apart from the outcome.
    Diagnostic "diagnostic" {
        severity: Severity,
        code: String,
        summary: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        suggestion: Option<String>,
    }
    /// What its process tree uses.
    Resources "resources" {
        cpu_ms: u64,
        memory_bytes: u64,
        processes: u32,
    }
    /// It was stopped by a signal from outside and has continued since.
    Suspended "suspended" {
        at: Timestamp,
    }
    /// It continued after it was stopped.
    Resumed "resumed" {
        suspended_ms: u64,
    }
    /// It was asked to stop, by whom.
    Cancelling "cancelling" {
        by: String,
    }
    /// It stopped because it was asked to. Final.
    Cancelled "cancelled" {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receipt: Option<Value>,
    }
    /// It returned a value. Final.
    Completed "completed" {
        #[serde(default)]
        output: Value,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receipt: Option<Value>,
    }
    /// It failed. Final.
    Failed "failed" {
        error: Fault,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receipt: Option<Value>,
    }
}

impl Kind {
    /// Returns the state that this event puts an execution into, if it is about its state.
    pub fn moves_to(&self) -> Option<State> {
        match self {
            Self::Created { .. } | Self::Queued { .. } => Some(State::Queued),
            Self::Started {} => Some(State::Running),
            Self::Cancelling { .. } => Some(State::Cancelling),
            Self::Cancelled { .. } => Some(State::Cancelled),
            Self::Completed { .. } => Some(State::Succeeded),
            Self::Failed { .. } => Some(State::Failed),
            Self::Gate { .. }
            | Self::Progress { .. }
            | Self::StepStarted { .. }
            | Self::StepCompleted { .. }
            | Self::Log { .. }
            | Self::Diagnostic { .. }
            | Self::Resources { .. }
            | Self::Suspended { .. }
            | Self::Resumed { .. }
            | Self::Unknown { .. } => None,
        }
    }

    /// Returns whether only its last value matters to somebody who fell behind.
    pub fn is_info(&self) -> bool {
        matches!(self, Self::Progress { .. } | Self::Resources { .. })
    }

    /// Returns one line about the event, for every UI.
    pub fn summary(&self) -> String {
        match self {
            Self::Created { capability, .. } => format!("created: {capability}"),
            Self::Queued { ahead: 0 } => "queued".to_owned(),
            Self::Queued { ahead } => format!("queued, {ahead} ahead"),
            Self::Gate { name, outcome: GateOutcome::Passed, .. } => format!("gate passed: {name}"),
            Self::Gate { name, reason, .. } => {
                format!("gate refused: {name} {}", reason.as_deref().unwrap_or_default())
            }
            Self::Started {} => "started".to_owned(),
            Self::Progress { current, total, message } => {
                let of = total.map(|total| format!("/{total}")).unwrap_or_default();
                format!("progress {current}{of} {}", message.as_deref().unwrap_or_default())
                    .trim_end()
                    .to_owned()
            }
            Self::StepStarted { title, .. } => format!("step: {title}"),
            Self::StepCompleted { name, ok, detail } => {
                let word = if *ok { "done" } else { "failed" };
                format!("step {word}: {name} {}", detail.as_deref().unwrap_or_default())
                    .trim_end()
                    .to_owned()
            }
            Self::Log { message, .. } => message.clone(),
            Self::Diagnostic { severity, code, summary, .. } => {
                let word = match severity {
                    Severity::Info => "info",
                    Severity::Warning => "warning",
                    Severity::Error => "error",
                };
                format!("{word}[{code}]: {summary}")
            }
            Self::Resources { cpu_ms, memory_bytes, processes } => format!(
                "resources: {cpu_ms} ms CPU, {} KiB, {processes} processes",
                memory_bytes / 1024
            ),
            Self::Suspended { at } => format!("suspended at {at}"),
            Self::Resumed { suspended_ms } => format!("resumed after {suspended_ms} ms"),
            Self::Cancelling { by } => format!("cancelling, asked by {by}"),
            Self::Cancelled { .. } => "cancelled".to_owned(),
            Self::Completed { .. } => "completed".to_owned(),
            Self::Failed { error, .. } => format!("failed: {error}"),
            Self::Unknown { tag, data } => format!("{PREFIX}{tag} {data}"),
        }
    }

    /// Makes every text clean, so that no reader can meet what a writer forgot.
    ///
    /// Values (input, output, receipts) are data and stay as they are: JSON escapes them.
    /// Returns whether anything changed.
    pub fn clean(&mut self, max_chars: usize) -> bool {
        let mut texts: Vec<&mut String> = Vec::new();
        let mut changed = false;
        match self {
            Self::Created { title, .. } => texts.push(title),
            Self::Gate { name, reason, .. } => {
                texts.push(name);
                texts.extend(reason);
            }
            Self::Progress { message, .. } => texts.extend(message),
            Self::StepStarted { name, title } => texts.extend([name, title]),
            Self::StepCompleted { name, detail, .. } => {
                texts.push(name);
                texts.extend(detail);
            }
            Self::Log { message, .. } => texts.push(message),
            Self::Diagnostic { code, summary, detail, suggestion, .. } => {
                texts.extend([code, summary]);
                texts.extend(detail);
                texts.extend(suggestion);
            }
            Self::Cancelling { by } => texts.push(by),
            Self::Failed { error, .. } => {
                if error.problems.len() > PROBLEMS_MAX {
                    error.problems.truncate(PROBLEMS_MAX);
                    changed = true;
                }
                for problem in &mut error.problems {
                    texts.extend([&mut problem.pointer, &mut problem.message]);
                }
                texts.push(&mut error.message);
                texts.extend(&mut error.reason);
                texts.extend(&mut error.suggestion);
                texts.push(&mut error.correlation_id);
            }
            Self::Unknown { tag, .. } => texts.push(tag),
            Self::Queued { .. }
            | Self::Started {}
            | Self::Resources { .. }
            | Self::Suspended { .. }
            | Self::Resumed { .. }
            | Self::Cancelled { .. }
            | Self::Completed { .. } => {}
        }
        for text in texts {
            let short = text.len() <= max_chars || text.chars().nth(max_chars).is_none();
            if !short || !sanitise::is_clean(text.as_bytes()) || text.contains(['\n', '\u{1}']) {
                *text = sanitise::text(text, max_chars);
                changed = true;
            }
        }
        changed
    }

    /// Reads a kind from its tag and data.
    ///
    /// # Errors
    ///
    /// When the tag is known and the data does not fit it.
    pub fn from_parts(tag: &str, data: Value) -> Result<Self, serde_json::Error> {
        if !Self::TAGS.contains(&tag) {
            return Ok(Self::Unknown { tag: tag.to_owned(), data });
        }
        let mut outer = serde_json::Map::with_capacity(1);
        outer.insert(tag.to_owned(), data);
        serde_json::from_value::<Known>(Value::Object(outer)).map(Self::from_known)
    }

    /// Returns the data as a JSON object.
    pub fn data(&self) -> Value {
        match self.clone().into_known() {
            Err((_, data)) => data,
            Ok(known) => match serde_json::to_value(known).expect("a kind is JSON") {
                Value::Object(outer) => outer.into_iter().next().map_or(Value::Null, |(_, v)| v),
                other => other,
            },
        }
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.clone().into_known() {
            Ok(known) => known.serialize(serializer),
            Err((tag, data)) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry(&tag, &data)?;
                map.end()
            }
        }
    }
}

/// Takes the one-entry map of an externally tagged kind and decides by its key.
impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneEntry;

        impl<'de> de::Visitor<'de> for OneEntry {
            type Value = Kind;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map with one entry, the kind of the event")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Kind, A::Error> {
                let tag: String =
                    map.next_key()?.ok_or_else(|| de::Error::custom("no kind is given"))?;
                let kind = Kind::read_data(tag, &mut map)?;
                if map.next_key::<de::IgnoredAny>()?.is_some() {
                    return Err(de::Error::custom("more than one kind is given"));
                }
                Ok(kind)
            }
        }

        deserializer.deserialize_map(OneEntry)
    }
}

/// An event on the local wire: when, and what. Its position is that of its place in a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stamped {
    /// When the writer saw it.
    pub at: Timestamp,
    /// What happened.
    pub kind: Kind,
}

/// An event as programs, browsers and people read it (see `docs/EXECUTIONS.md`).
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The execution that it is about.
    pub execution_id: ExecutionId,
    /// Its position, dense from 1.
    pub sequence: Seq,
    /// When the writer saw it.
    pub timestamp: Timestamp,
    /// What happened.
    pub kind: Kind,
}

/// Describes the public form: the envelope, and each known type with its own data.
impl JsonSchema for Event {
    fn schema_name() -> Cow<'static, str> {
        "Event".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let known = Known::json_schema(generator).to_value();
        let variants = known["oneOf"].as_array().cloned().unwrap_or_default();
        let types: Vec<Value> = variants
            .iter()
            .filter_map(|variant| variant["properties"].as_object()?.iter().next())
            .map(|(tag, data)| {
                json!({ "properties": { "type": { "const": format!("{PREFIX}{tag}") }, "data": data } })
            })
            .collect();
        json_schema!({
            "type": "object",
            "required": [
                "schema_version", "event_id", "execution_id", "sequence", "timestamp", "type", "data",
            ],
            "properties": {
                "schema_version": { "const": SCHEMA_VERSION },
                "event_id": { "type": "string" },
                "execution_id": { "type": "string" },
                "sequence": { "type": "integer", "minimum": 1 },
                "timestamp": { "type": "string", "format": "date-time" },
                "type": { "type": "string", "pattern": "^execution\\." },
                "data": true,
            },
            "anyOf": types,
        })
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut envelope = serializer.serialize_struct("Event", 7)?;
        envelope.serialize_field("schema_version", SCHEMA_VERSION)?;
        envelope
            .serialize_field("event_id", &format!("{}#{}", self.execution_id, self.sequence))?;
        envelope.serialize_field("execution_id", &self.execution_id)?;
        envelope.serialize_field("sequence", &self.sequence)?;
        envelope.serialize_field("timestamp", &self.timestamp.to_string())?;
        envelope.serialize_field("type", &format!("{PREFIX}{}", self.kind.tag()))?;
        envelope.serialize_field("data", &self.kind.data())?;
        envelope.end()
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Envelope<'a> {
            execution_id: ExecutionId,
            sequence: Seq,
            #[serde(borrow)]
            timestamp: Cow<'a, str>,
            r#type: String,
            #[serde(default)]
            data: Value,
        }
        let envelope = Envelope::deserialize(deserializer)?;
        let tag = envelope
            .r#type
            .strip_prefix(PREFIX)
            .ok_or_else(|| de::Error::custom("an event's type starts with \"execution.\""))?;
        Ok(Self {
            execution_id: envelope.execution_id,
            sequence: envelope.sequence,
            timestamp: envelope.timestamp.parse().map_err(de::Error::custom)?,
            kind: Kind::from_parts(tag, envelope.data).map_err(de::Error::custom)?,
        })
    }
}

/// Reads one line of `REEVE_EVENTS_FD`: a public event without its envelope.
///
/// Only what a running process may say is taken: steps, progress, diagnostics, log lines and the
/// output (type `execution.output`, data the value).
///
/// # Errors
///
/// With a sentence that names what is wrong.
pub fn from_child(line: &Value) -> Result<ChildEvent, String> {
    let object = line.as_object().ok_or("a line is one JSON object")?;
    if let Some(key) = object.keys().find(|key| *key != "type" && *key != "data") {
        return Err(format!("unknown member {key:?}; an event has \"type\" and \"data\""));
    }
    let tag = object
        .get("type")
        .and_then(Value::as_str)
        .and_then(|name| name.strip_prefix(PREFIX))
        .ok_or("\"type\" is a text that starts with \"execution.\"")?;
    let data = object.get("data").cloned().unwrap_or_else(|| Value::Object(Default::default()));
    if tag == "output" {
        return Ok(ChildEvent::Output(data));
    }
    if !["progress", "step.started", "step.completed", "diagnostic", "log"].contains(&tag) {
        return Err(format!("a process may not say {PREFIX}{tag}"));
    }
    Kind::from_parts(tag, data).map(ChildEvent::Kind).map_err(|error| error.to_string())
}

/// What a process said on its events descriptor.
#[derive(Clone, Debug, PartialEq)]
pub enum ChildEvent {
    /// A step, progress, a diagnostic or a log line.
    Kind(Kind),
    /// The value that its execution completes with.
    Output(Value),
}
