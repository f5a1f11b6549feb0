//! Reads: the answers that need no move of the plane, in the shape they have on every surface.

use std::collections::BTreeSet;
use std::sync::Arc;

use reeve_protocol::event::{Kind, SCHEMA_VERSION};
use reeve_protocol::frame::{BadFrame, NODES_MAX};
use reeve_protocol::snapshot::Snapshot;
use reeve_protocol::{CapabilityId, Code, Entry, Event, ExecutionId, Fault, Output, Seq, State};
use serde_json::{Value, json};

use crate::edge::ws;
use crate::handle::Broker;
use crate::plane::{self, Shown};
use crate::store::Item;

/// Bytes of history that one read of the store brings.
const PAGE_BYTES: usize = 256 << 10;
/// Bytes of events in one answer; a single event may be larger. An answer fits a frame.
const ANSWER_BYTES: usize = 768 << 10;
/// Values of events in one answer; a single event may have more.
const ANSWER_VALUES: usize = NODES_MAX / 2;

/// Which executions are listed.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Only those in this state.
    pub state: Option<State>,
    /// Only those of this capability.
    pub capability: Option<CapabilityId>,
    /// At most so many.
    pub limit: Option<u64>,
    /// Only those older than this one.
    pub before: Option<ExecutionId>,
}

impl Broker {
    /// Returns one execution.
    ///
    /// # Errors
    ///
    /// `not_found` when nobody holds it.
    pub fn get(&self, id: ExecutionId) -> Result<Value, Fault> {
        let shown = self.board.by_id(id).ok_or_else(|| plane::not_found(id))?;
        Ok(to_value(&shown.to_snapshot()))
    }

    /// Returns summaries of executions, newest first.
    ///
    /// # Errors
    ///
    /// `invalid_request` for a limit of zero, `not_found` for an unknown place to go on from.
    pub async fn list(&self, query: &ListQuery) -> Result<Value, Fault> {
        let limit = limit(query.limit, self.limits.max_list)?;
        let before = match query.before {
            None => None,
            Some(id) => Some(self.board.by_id(id).ok_or_else(|| plane::not_found(id))?.handle),
        };
        let all = self.board.newest_first();
        let matching: Vec<&Shown> = all
            .iter()
            .filter(|shown| before.is_none_or(|before| shown.handle < before))
            .filter(|shown| query.state.is_none_or(|state| shown.snapshot.state == state))
            .filter(|shown| {
                query.capability.as_ref().is_none_or(|id| shown.snapshot.capability == *id)
            })
            .collect();
        let shown: Vec<Shown> = matching.iter().take(limit).map(|shown| (*shown).clone()).collect();
        let page = summaries(shown).await;
        let gauges = self.board.gauges();
        let mut answer = json!({
            "count": page.len(),
            "remembered": gauges.remembered,
            "active": gauges.active,
            "queued": gauges.queued,
            "live_channels": gauges.subscribers,
            "executions": page,
        });
        if matching.len() > limit {
            answer["next"] = json!(matching[limit - 1].snapshot.id);
        }
        Ok(answer)
    }

    /// Returns one page of one execution's history.
    ///
    /// # Errors
    ///
    /// `not_found` when nobody holds it, `invalid_request` for a limit of zero.
    pub async fn events(
        &self,
        id: ExecutionId,
        after: Seq,
        wanted: Option<u64>,
    ) -> Result<Value, Fault> {
        let limit = limit(wanted, self.limits.max_page)?;
        let shown = self.board.by_id(id).ok_or_else(|| plane::not_found(id))?;
        let mut items = Vec::new();
        let (mut at, mut found) = (after, 0);
        while at < shown.last && found < limit as u64 {
            let page = self.store.read(shown.handle, at, PAGE_BYTES).await.map_err(unreadable)?;
            if page.items.is_empty() {
                break;
            }
            for item in page.items {
                if matches!(item, Item::Batch(_)) {
                    found += item.last().0.saturating_sub(at.0);
                }
                at = item.last();
                items.push(item);
                if found >= limit as u64 {
                    break;
                }
            }
        }
        let make = move || history(&shown, after, limit, items);
        tokio::task::spawn_blocking(make).await.expect("a page is made of what is stored")
    }

    /// Returns the output of an execution that is kept, as text: each line ended by `\n`, a cut one
    /// by `…`, and a line in brackets in place of what is no longer kept. The flag says whether
    /// anything is missing.
    ///
    /// # Errors
    ///
    /// `not_found` when nobody holds it.
    pub async fn output(
        &self,
        id: ExecutionId,
        stream: Option<Output>,
    ) -> Result<(Vec<u8>, bool), Fault> {
        let shown = self.board.by_id(id).ok_or_else(|| plane::not_found(id))?;
        let (mut at, mut items) = (Seq::NONE, Vec::new());
        while at < shown.last {
            let page = self.store.read(shown.handle, at, PAGE_BYTES).await.map_err(unreadable)?;
            let Some(last) = page.items.last().map(Item::last) else { break };
            at = last;
            items.extend(page.items);
        }
        let make = move || output(&items, stream).map_err(damaged);
        tokio::task::spawn_blocking(make).await.expect("output is made of what is stored")
    }

    /// Returns what is declared.
    pub fn capabilities(&self) -> Value {
        let registry = self.registry();
        json!({
            "count": registry.descriptors.len(),
            "capabilities": registry.descriptors,
            "problems": registry.problems,
            "digest": registry.digest,
        })
    }

    /// Returns one capability.
    ///
    /// # Errors
    ///
    /// `ACTION_NOT_FOUND` when it is not declared.
    pub fn capability(&self, id: &CapabilityId) -> Result<Value, Fault> {
        let registry = self.registry();
        let found = registry.descriptors.iter().find(|descriptor| descriptor.id == *id);
        found.map(to_value).ok_or_else(|| unknown_capability(id))
    }

    /// Returns the contract of the streams and the limits in force.
    pub fn protocol(&self) -> Value {
        let types: BTreeSet<String> =
            Kind::TAGS.iter().map(|tag| format!("execution.{tag}")).collect();
        let subscription: Vec<Value> = ws::PARAMETERS
            .iter()
            .map(|(name, description)| {
                json!({ "name": name, "description": description, "required": false })
            })
            .collect();
        json!({
            "protocol_version": SCHEMA_VERSION,
            "local_protocol": reeve_protocol::peer::PROTO,
            "durability": self.store.durability(),
            "epoch": self.about.epoch,
            "instance": self.about.instance,
            "event_types": types,
            "websocket": "/events",
            "subscription": subscription,
            "heartbeat_seconds": ws::heartbeat_seconds(&self.limits),
            "max_connections": ws::CHANNELS_MAX,
            "max_frame_bytes": ws::FRAME_MAX,
            "stream_types": ws::STREAM_TYPES,
            "event_schema": schemars::schema_for!(Event),
            "stream_schema": ws::control_schema(),
            "limits": *self.limits,
        })
    }

    /// Returns how the broker is.
    pub fn status(&self) -> Value {
        let gauges = self.board.gauges();
        let registry = self.registry();
        json!({
            "pid": self.about.pid,
            "version": self.about.version,
            "instance": self.about.instance,
            "epoch": self.about.epoch,
            "durability": self.store.durability(),
            "started_at": self.about.started_at,
            "uptime_ms": u64::try_from(self.uptime().as_millis()).unwrap_or(u64::MAX),
            "repository": self.about.repository,
            "executions": {
                "remembered": gauges.remembered,
                "active": gauges.active,
                "queued": gauges.queued,
            },
            "workers": gauges.workers,
            "watchers": gauges.subscribers,
            "refused_events": gauges.refused_events,
            "late_checks": gauges.late_checks,
            "capabilities": registry.descriptors.len(),
            "manifest_problems": registry.problems,
        })
    }
}

/// Says that no capability has this id.
fn unknown_capability(id: &CapabilityId) -> Fault {
    Fault::new(
        Code::ActionNotFound,
        format!("no capability '{id}'; the executable ones are listed by capabilities.list"),
    )
    .at(reeve_protocol::fault::Stage::Resolve)
    .hint("see `reeve capabilities list`")
}

/// Makes the entries of a list; a long one on a thread of its own, so that the plane goes on.
async fn summaries(shown: Vec<Shown>) -> Vec<Value> {
    let make = move || shown.iter().map(summary).collect();
    tokio::task::spawn_blocking(make).await.expect("a summary is made of what is shown")
}

/// Makes one page of history of what the store holds after a position.
fn history(shown: &Shown, after: Seq, limit: usize, items: Vec<Item>) -> Result<Value, Fault> {
    let id = shown.snapshot.id;
    let mut events: Vec<Event> = Vec::new();
    let mut gaps = Vec::new();
    let mut at = after;
    for item in items {
        let before = at;
        at = item.last();
        match item {
            Item::Batch(batch) => {
                let room = limit - events.len();
                events.extend(batch.first_events(id, before, room).map_err(damaged)?);
                if events.len() == limit {
                    at = events.last().map_or(at, |event| event.sequence);
                    break;
                }
            }
            Item::Gap { from, to, reason } => gaps.push((from, to, reason)),
        }
    }
    events.retain(|event| event.sequence <= shown.last);
    let fitting = answerable(&events);
    if events.len() > fitting {
        events.truncate(fitting);
        at = events.last().map_or(at, |event| event.sequence);
        gaps.retain(|(from, _, _)| *from <= at);
    }
    let cursor = if after > shown.last { shown.last } else { at.min(shown.last) };
    let mut answer = json!({
        "execution_id": id,
        "state": shown.snapshot.state,
        "events": events,
        "last_sequence": cursor,
        "head": shown.last,
        "more": cursor < shown.last,
        "truncated": !gaps.is_empty(),
    });
    if !gaps.is_empty() {
        let told = |(from, to, reason)| json!({ "from": from, "to": to, "reason": reason });
        answer["gaps"] = gaps.into_iter().map(told).collect();
    }
    if after > shown.last {
        answer["ahead"] = json!({ "after": after, "head": shown.last });
    }
    Ok(answer)
}

fn output(items: &[Item], stream: Option<Output>) -> Result<(Vec<u8>, bool), BadFrame> {
    let (mut text, mut missing) = (Vec::new(), false);
    for item in items {
        match item {
            Item::Gap { from, to, .. } => {
                missing = true;
                text.extend(format!("[events {from} to {to} are no longer kept]\n").bytes());
            }
            Item::Batch(batch) => {
                for entry in batch.entries()? {
                    let Entry::Log(chunk) = entry else { continue };
                    if stream.is_some_and(|stream| stream != chunk.stream) {
                        continue;
                    }
                    for (line, _) in chunk.iter() {
                        text.extend_from_slice(line.as_bytes());
                        text.push(b'\n');
                    }
                }
            }
        }
    }
    Ok((text, missing))
}

/// What a list shows of an execution: everything but what can be large.
fn summary(shown: &Shown) -> Value {
    let mut snapshot = Snapshot {
        input: Value::Null,
        output: None,
        receipt: None,
        steps: Vec::new(),
        diagnostics: Vec::new(),
        ..shown.to_snapshot()
    };
    snapshot.error = snapshot.error.map(|error| Fault { problems: Vec::new(), ..error });
    let mut value = to_value(&snapshot);
    if let Some(object) = value.as_object_mut() {
        object.remove("input");
    }
    value
}

/// Returns how many of these events one answer takes.
fn answerable(events: &[Event]) -> usize {
    let (mut bytes, mut values) = (0, 0);
    let fits = events.iter().position(|event| {
        let (its_bytes, its_values) = weight(event);
        bytes += its_bytes;
        values += its_values;
        bytes > ANSWER_BYTES || values > ANSWER_VALUES
    });
    fits.unwrap_or(events.len()).max(1)
}

/// Returns about how many bytes an event takes in an answer, and how many values.
fn weight(event: &Event) -> (usize, usize) {
    /// What surrounds the data of an event.
    const ENVELOPE: (usize, usize) = (320, 16);
    let (bytes, values) = match &event.kind {
        Kind::Log { message, .. } => (message.len(), 3),
        other => {
            let data = to_value(other);
            (data.to_string().len(), values_in(&data))
        }
    };
    (bytes + ENVELOPE.0, values + ENVELOPE.1)
}

fn values_in(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(values_in).sum::<usize>(),
        Value::Object(members) => 1 + members.values().map(|it| 1 + values_in(it)).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

fn limit(wanted: Option<u64>, max: usize) -> Result<usize, Fault> {
    match wanted {
        None => Ok(max),
        Some(0) => Err(Fault::new(Code::InvalidRequest, "a limit of 0 asks for nothing")
            .hint(format!("ask for 1 to {max}"))),
        Some(wanted) => Ok(usize::try_from(wanted).unwrap_or(usize::MAX).min(max)),
    }
}

fn to_value<T: serde::Serialize>(value: &T) -> Value {
    serde_json::to_value(value).expect("an answer is JSON")
}

fn unreadable(error: crate::store::StoreError) -> Fault {
    Fault::new(Code::Unavailable, error.to_string()).hint("try again")
}

fn damaged(bad: BadFrame) -> Fault {
    Fault::new(Code::Internal, format!("a stored event cannot be read: {bad}"))
}

/// Answers are made on the Arbiter; nothing in them borrows from it.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Arc<Shown>>();
};
