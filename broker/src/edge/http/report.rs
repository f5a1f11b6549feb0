//! The report bridge: what runs elsewhere, brought in by HTTP instead of the local socket.
//!
//! A reporter is a worker without a connection: each report is its heartbeat, and what the plane
//! says to it in between waits here for the next answer. The plane decides as for any worker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::Request;
use reeve_protocol::batch::Builder;
use reeve_protocol::capability::{CapabilityKind, Effect, OnWorkerLoss};
use reeve_protocol::peer::{Attach, Cancel, Fenced, Grant};
use reeve_protocol::redact;
use reeve_protocol::snapshot::{Actor, ActorKind, Description};
use reeve_protocol::{
    Batch, CapabilityId, Class, Code, ExecutionId, Fault, Kind, LogChunk, Seq, Stamped, Timestamp,
};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio::sync::mpsc::Receiver;

use super::Surface;
use super::answer::Refusal;
use super::call::{body, text_member};
use crate::handle::Broker;
use crate::plane::{Input, ToWorker, WorkerFrame, WorkerId, WorkerProcess};
use crate::switchboard::Outgoing;

/// How long the plane may take to answer a report.
const ANSWER: Duration = Duration::from_secs(5);
/// Bytes of one batch that is made of a report, about.
const BATCH_BYTES: usize = 256 << 10;
/// How long before SIGTERM becomes SIGKILL; the broker never signals what a reporter runs.
const GRACE_MS: u64 = 10_000;

/// Everybody who reports by HTTP.
#[derive(Clone, Default)]
pub struct Reporters(Arc<Mutex<BTreeMap<ExecutionId, Arc<Reporter>>>>);

/// One who reports, over all of its connections to the plane.
struct Reporter {
    pid: u32,
    /// Held for the time of one report: they are taken one after another.
    turn: tokio::sync::Mutex<()>,
    description: Mutex<Option<Description>>,
    link: Mutex<Option<Link>>,
}

/// One connection to the plane.
#[derive(Clone)]
struct Link {
    worker: WorkerId,
    told: Arc<Told>,
}

/// What the plane has said on it.
#[derive(Default)]
struct Told {
    said: Mutex<Said>,
    changed: Notify,
}

#[derive(Clone, Default)]
struct Said {
    grant: Option<Grant>,
    through: Option<Seq>,
    resend_from: Option<Seq>,
    cancel: Option<Cancel>,
    fenced: Option<Fenced>,
    closed: Option<String>,
    ping: Option<u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A report, read.
struct Report {
    id: ExecutionId,
    pid: u32,
    description: Option<Description>,
    first: Seq,
    events: Vec<Stamped>,
}

/// Takes a report.
pub async fn report(request: Request<Body>, surface: &Surface) -> Result<Value, Refusal> {
    let known = ["id", "pid", "description", "first", "events"];
    let members = body(request, &known, surface).await?;
    let report = read(&members, surface.broker())?;
    if let Some(answer) = unknown(&report, surface.broker()) {
        return Ok(answer);
    }
    let reporter = surface.reporters().of(report.id, report.pid, surface.broker())?;
    let broker = surface.broker().clone();
    // A task of its own: a caller that goes away in the middle leaves nothing half done.
    let taken = actix::spawn(async move {
        let _turn = reporter.turn.lock().await;
        take(&reporter, report, &broker).await
    });
    let taken = taken.await.unwrap_or_else(|_| {
        Err(Fault::new(Code::Internal, "the report could not be taken").hint("send it again"))
    });
    taken.map_err(|fault| match fault.reason.as_deref() {
        Some("refused") => Refusal::from(fault).status(409),
        _ => fault.into(),
    })
}

/// Answers for an execution that nobody here knows and whose history does not begin here: the
/// plane is brought only what it can show, so it hears of it when its first event comes.
fn unknown(report: &Report, broker: &Broker) -> Option<Value> {
    let created = |event: &Stamped| matches!(event.kind, Kind::Created { .. });
    let begins = report.first == Seq(1) && report.events.first().is_some_and(created);
    (broker.board.by_id(report.id).is_none() && !begins).then(|| {
        json!({
            "through": 0,
            "cancel": false,
            "state": reeve_protocol::State::Queued,
            "resend_from": 1,
        })
    })
}

impl Reporters {
    /// Returns who reports this execution; forgets those whose execution was forgotten.
    fn of(&self, id: ExecutionId, pid: u32, broker: &Broker) -> Result<Arc<Reporter>, Fault> {
        let mut all = lock(&self.0);
        let idle = |reporter: &Arc<Reporter>| Arc::strong_count(reporter) == 1;
        all.retain(|id, reporter| !idle(reporter) || broker.board.by_id(*id).is_some());
        let reporter = all.entry(id).or_insert_with(|| {
            Arc::new(Reporter {
                pid,
                turn: tokio::sync::Mutex::default(),
                description: Mutex::default(),
                link: Mutex::default(),
            })
        });
        if reporter.pid != pid {
            let message = format!("process {} reports this execution", reporter.pid);
            return Err(Fault::new(Code::Fenced, message).because("another_process").about(id));
        }
        Ok(Arc::clone(reporter))
    }
}

async fn take(reporter: &Reporter, report: Report, broker: &Broker) -> Result<Value, Fault> {
    let id = report.id;
    let held = lock(&reporter.link).clone();
    let link = match held {
        Some(link) if lock(&link.told.said).closed.is_none() => link,
        before => attach(reporter, &report, before.as_ref(), broker).await?,
    };
    let said = link.until(|said| said.grant.is_some() || said.ended()).await;
    let Some(grant) = said.grant.clone() else {
        return Err(not_granted(id, &said));
    };
    let frames = frames(&report, &grant, &said, broker)?;
    {
        let mut said = lock(&link.told.said);
        (said.through, said.resend_from, said.ping) = (None, None, None);
    }
    let brought = frames.iter().any(|frame| matches!(frame, WorkerFrame::Batch(_)));
    if said.fenced.is_none() {
        broker.post(Input::Frames { worker: link.worker, frames }).await;
        if brought {
            link.until(|said| said.through.is_some() || said.ended()).await;
        }
    }
    let said = lock(&link.told.said).clone();
    if let (Some(reason), None) = (&said.closed, &said.fenced) {
        // What came was no history; the next report finds the plane as it was.
        return Err(Fault::new(Code::InvalidRequest, reason.clone()).because("refused").about(id));
    }
    answer(id, &said, broker)
}

fn answer(id: ExecutionId, said: &Said, broker: &Broker) -> Result<Value, Fault> {
    let shown = broker.board.by_id(id).ok_or_else(|| gone(id))?;
    let state = shown.snapshot.state;
    let mut answer = json!({
        "through": shown.last,
        "cancel": said.cancel.is_some() && !state.is_final(),
        "state": state,
    });
    if let Some(resend_from) = said.resend_from {
        answer["resend_from"] = json!(resend_from);
    }
    if let Some(cancel) = said.cancel.as_ref().filter(|_| !state.is_final()) {
        answer["by"] = json!(cancel.by);
        answer["force"] = json!(cancel.force);
    }
    if let Some(fenced) = &said.fenced {
        let message = format!("the execution is {state}; what came after that was not taken");
        let fault = fenced.error.clone();
        answer["fenced"] =
            json!(fault.unwrap_or_else(|| Fault::new(Code::Fenced, message).about(id)));
    }
    Ok(answer)
}

fn not_granted(id: ExecutionId, said: &Said) -> Fault {
    if let Some(fenced) = &said.fenced {
        return match &fenced.error {
            Some(fault) if fault.code == Code::Busy => fault.clone(),
            Some(fault) => Fault::new(Code::Fenced, fault.message.clone()).about(id),
            None => gone(id),
        };
    }
    Fault::new(Code::Unavailable, "the broker did not take the execution in time")
        .hint("send the report again")
        .about(id)
}

fn gone(id: ExecutionId) -> Fault {
    Fault::new(Code::Fenced, "the execution is over and was forgotten; it is never made again")
        .because("gone")
        .about(id)
}

/// Comes to the plane as a worker that has a history from 1.
async fn attach(
    reporter: &Reporter,
    report: &Report,
    before: Option<&Link>,
    broker: &Broker,
) -> Result<Link, Fault> {
    let described = report.description.clone().or_else(|| lock(&reporter.description).clone());
    let description = described.ok_or_else(|| {
        Fault::new(Code::InvalidArgs, "\"description\" must be there in the first report")
            .because("shape")
    })?;
    *lock(&reporter.description) = Some(description.clone());
    let (worker, outbox) = broker.switchboard.worker();
    let told = Arc::new(Told::default());
    actix::spawn(listen(worker, outbox, Arc::clone(&told), broker.clone()));
    let process = WorkerProcess { pid: report.pid, start_ticks: 0, name: "report".to_owned() };
    broker.post(Input::WorkerJoined { worker, process }).await;
    let grant = before.and_then(|link| lock(&link.told.said).grant.clone());
    let last = report.first.plus(report.events.len() as u64).0 - 1;
    let attach = Attach {
        execution: report.id,
        fence: grant.map(|grant| grant.fence),
        description,
        last: Seq(last.max(1)),
        tree: None,
    };
    let frames = vec![WorkerFrame::Attach(Box::new(attach))];
    broker.post(Input::Frames { worker, frames }).await;
    let link = Link { worker, told };
    *lock(&reporter.link) = Some(link.clone());
    Ok(link)
}

/// Keeps what the plane says, and leaves when nothing more can come of it.
async fn listen(worker: WorkerId, mut outbox: Receiver<Outgoing>, told: Arc<Told>, broker: Broker) {
    while let Some(outgoing) = outbox.recv().await {
        let ended = {
            let mut said = lock(&told.said);
            match outgoing {
                Outgoing::Close(reason) => said.closed = Some(reason),
                Outgoing::Message(ToWorker::Grant(grant)) => said.grant = Some(*grant),
                Outgoing::Message(ToWorker::Ack(ack)) => {
                    said.through = Some(ack.through);
                    said.resend_from = ack.resend_from;
                }
                Outgoing::Message(ToWorker::Cancel(cancel)) => said.cancel = Some(cancel),
                Outgoing::Message(ToWorker::Fenced(fenced)) => said.fenced = Some(*fenced),
                Outgoing::Message(ToWorker::Ping(nonce)) => said.ping = Some(nonce),
                Outgoing::Message(ToWorker::Attached(_)) => {}
            }
            said.ended()
        };
        told.changed.notify_waiters();
        if ended {
            break;
        }
    }
    broker.switchboard.worker_left(worker);
    broker.post(Input::Closed { worker }).await;
}

impl Said {
    fn ended(&self) -> bool {
        self.fenced.is_some() || self.closed.is_some()
    }
}

impl Link {
    /// Waits until something was said; gives up after a while.
    async fn until(&self, enough: impl Fn(&Said) -> bool) -> Said {
        let wait = async {
            loop {
                let changed = self.told.changed.notified();
                let mut changed = std::pin::pin!(changed);
                changed.as_mut().enable();
                if enough(&lock(&self.told.said)) {
                    return;
                }
                changed.await;
            }
        };
        drop(tokio::time::timeout(ANSWER, wait).await);
        lock(&self.told.said).clone()
    }
}

fn bad(reason: &str, message: impl Into<String>) -> Fault {
    Fault::new(Code::InvalidRequest, message).because(reason)
}

fn read(members: &Map<String, Value>, broker: &Broker) -> Result<Report, Fault> {
    let id: ExecutionId = text_member(members, "id")?;
    let pid = members.get("pid").and_then(Value::as_u64).and_then(|pid| u32::try_from(pid).ok());
    let pid = pid.filter(|pid| *pid > 0).ok_or_else(|| {
        Fault::new(Code::InvalidArgs, "\"pid\" is the number of a process").because("shape")
    })?;
    let none = Vec::new();
    let events = match members.get("events") {
        None => &none,
        Some(Value::Array(events)) => events,
        Some(_) => return Err(bad("shape", "\"events\" is a list")),
    };
    let max = broker.limits.max_batch_events;
    if events.len() > max {
        let message = format!("{} events; max_batch_events is {max}", events.len());
        return Err(Fault::new(Code::TooLarge, message)
            .because("too_many_events")
            .hint("send the rest in the next report"));
    }
    let sequence = |value: &Value| value.as_u64().filter(|number| *number > 0);
    let first = members.get("first").or_else(|| events.first()?.get("sequence"));
    let first = match first {
        None if events.is_empty() => 1,
        None => return Err(bad("sequence", "\"first\" is the first event's sequence")),
        Some(value) => sequence(value)
            .filter(|first| *first <= u64::MAX / 2)
            .ok_or_else(|| bad("sequence", "a sequence is a whole number from 1 on"))?,
    };
    let description =
        members.get("description").map(|value| describe(value, pid, broker)).transpose()?;
    let now = broker.clock.now().wall;
    let events =
        events.iter().zip(first..).map(|(event, at)| read_event(event, id, at, now, broker));
    Ok(Report {
        id,
        pid,
        description,
        first: Seq(first),
        events: events.collect::<Result<_, _>>()?,
    })
}

fn describe(value: &Value, pid: u32, broker: &Broker) -> Result<Description, Fault> {
    let members = value.as_object().ok_or_else(|| bad("shape", "\"description\" is an object"))?;
    let known = ["capability", "title", "input", "cancellable"];
    if members.keys().any(|name| !known.contains(&name.as_str())) {
        return Err(bad("unknown_field", "\"description\" has an unknown member")
            .hint(format!("known are {}", known.join(", "))));
    }
    let capability: CapabilityId = text_member(members, "capability")?;
    let registry = broker.registry();
    let declared = registry.descriptors.iter().find(|one| one.id == capability);
    let title = match members.get("title") {
        None => capability.as_str(),
        Some(Value::String(title)) => title,
        Some(_) => return Err(bad("shape", "\"title\" is a text")),
    };
    let cancellable = match members.get("cancellable") {
        None => true,
        Some(Value::Bool(cancellable)) => *cancellable,
        Some(_) => return Err(bad("shape", "\"cancellable\" is true or false")),
    };
    let input = members.get("input").cloned().filter(|input| !input.is_null());
    let input = input.unwrap_or_else(|| json!({}));
    if !input.is_object() {
        return Err(bad("shape", "\"input\" is an object"));
    }
    let input = shown(broker, &capability, &input);
    Ok(Description {
        title: reeve_protocol::sanitise::text(title, 200),
        kind: declared.map_or(CapabilityKind::Process, |one| one.kind),
        effect: declared.map_or(Effect::Write, |one| one.effect),
        cancellable,
        lock: None,
        // What a reporter runs is its own: the broker neither sees nor touches it.
        on_worker_loss: OnWorkerLoss::Leave,
        cancel_grace_ms: GRACE_MS,
        input,
        actor: Actor { kind: ActorKind::Cli, peer: None, pid: Some(pid) },
        repository: broker.about.repository.clone(),
        parent_id: None,
        capability,
    })
}

/// Returns an input as everybody may see it, where what it belongs to is declared here.
fn shown(broker: &Broker, capability: &CapabilityId, input: &Value) -> Value {
    let registry = broker.registry();
    let declared = registry.descriptors.iter().find(|one| one.id == *capability);
    declared.map_or_else(|| input.clone(), |one| redact::shown(&one.input, input))
}

/// Reads a public event, with its envelope or without.
fn read_event(
    value: &Value,
    id: ExecutionId,
    at: u64,
    now: Timestamp,
    broker: &Broker,
) -> Result<Stamped, Fault> {
    let members = value.as_object().ok_or_else(|| bad("shape", "an event is an object"))?;
    let known: BTreeSet<&str> =
        ["schema_version", "event_id", "execution_id", "sequence", "timestamp", "type", "data"]
            .into();
    if members.keys().any(|name| !known.contains(name.as_str())) {
        return Err(bad("unknown_field", "an event has an unknown member"));
    }
    if members.get("execution_id").is_some_and(|other| *other != json!(id)) {
        return Err(bad("execution_id", format!("event {at} belongs to another execution")));
    }
    if members.get("sequence").is_some_and(|other| other.as_u64() != Some(at)) {
        return Err(bad("sequence", format!("event {at} says another sequence")));
    }
    let tag = members.get("type").and_then(Value::as_str).unwrap_or_default();
    let tag = tag.strip_prefix("execution.").filter(|tag| Kind::TAGS.contains(tag));
    let tag = tag.ok_or_else(|| bad("event_type", format!("event {at} is of no known type")))?;
    let data = members.get("data").cloned().unwrap_or_else(|| json!({}));
    // A line of output is cut; every other value is taken whole or not at all.
    if tag != "log" && data.to_string().len() > broker.limits.max_value_bytes {
        let message = format!("event {at}: max_value_bytes is {}", broker.limits.max_value_bytes);
        return Err(Fault::new(Code::TooLarge, message).because("value_too_large"));
    }
    let mut kind = Kind::from_parts(tag, data).map_err(|error| {
        let error = reeve_protocol::sanitise::text(&error.to_string(), 200);
        bad("event_data", format!("event {at}: {error}"))
    })?;
    if let Kind::Created { capability, input, .. } = &mut kind {
        *input = shown(broker, capability, input);
    }
    let at = match members.get("timestamp") {
        None => now,
        Some(text) => text
            .as_str()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| bad("timestamp", format!("event {at} has no timestamp of RFC 3339")))?,
    };
    Ok(Stamped { at, kind })
}

/// Makes the frames of a report: that it lives, and what it brings; lines of output go apart.
fn frames(
    report: &Report,
    grant: &Grant,
    said: &Said,
    broker: &Broker,
) -> Result<Vec<WorkerFrame>, Fault> {
    let mut frames = vec![WorkerFrame::Heartbeat];
    frames.extend(said.ping.map(WorkerFrame::Pong));
    let mut first = report.first;
    let mut builder: Option<Builder> = None;
    let mut close = |builder: Builder, first: &mut Seq| {
        let batch = builder.finish(grant.handle, grant.fence, *first);
        *first = batch.last().next();
        // Read back, so that its text is as clean as that of any other worker.
        let bytes: Bytes = batch.bytes().clone();
        Batch::parse(bytes).map(|batch| frames.push(WorkerFrame::Batch(batch)))
    };
    let broken = |error: reeve_protocol::frame::BadFrame| bad("event_data", error.to_string());
    for event in &report.events {
        let class = match event.kind {
            Kind::Log { .. } => Class::Bytes,
            _ => Class::Events,
        };
        let fits =
            builder.as_ref().is_some_and(|open| open.class() == class && open.len() < BATCH_BYTES);
        if !fits && let Some(full) = builder.take() {
            close(full, &mut first).map_err(broken)?;
        }
        let open = builder.get_or_insert_with(|| Builder::new(class));
        match &event.kind {
            Kind::Log { stream, message, cut } => {
                let line = reeve_protocol::sanitise::text(message, broker.limits.max_line_chars);
                let cut = *cut || message.chars().nth(broker.limits.max_line_chars).is_some();
                let mark = if cut { "\u{1}\n" } else { "\n" };
                let text = format!("{line}{mark}").into();
                open.log(&LogChunk { at: event.at, stream: *stream, lines: 1, text });
            }
            _ => open.event(event),
        }
    }
    if let Some(full) = builder {
        close(full, &mut first).map_err(broken)?;
    }
    Ok(frames)
}
