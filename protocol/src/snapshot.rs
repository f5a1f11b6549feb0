//! Snapshots: the fold of an execution's events, and the overlay that stands beside it.
//!
//! Everybody folds by the same rule, so a snapshot at position n is the same wherever it was
//! made. What is not a fact of the stream (what it waits for, whether its process lives) is in
//! the [`Overlay`], which has a revision of its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::batch::LogChunk;
use crate::capability::{CapabilityKind, Effect, OnWorkerLoss};
use crate::event::{Kind, Severity, Stamped};
use crate::fault::{Code, Fault};
use crate::frame;
use crate::id::{CapabilityId, ExecutionId, Seq};
use crate::lifecycle::State;
use crate::limits::Limits;
use crate::peer::withheld;
use crate::sanitise;
use crate::time::Timestamp;

/// Who asked for an execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Actor {
    /// Through which surface.
    pub kind: ActorKind,
    /// Its name there, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The process, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

/// A surface that executions are asked for through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ActorKind {
    /// The command line.
    Cli,
    /// HTTP.
    Http,
    /// An MCP client.
    Mcp,
    /// Reeve itself: a flow, an agent run, a recovery.
    Internal,
}

/// Which repository an execution ran against. No path of the machine is part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Repository {
    /// The last part of the checkout's path.
    pub name: String,
    /// The checkout's id.
    pub id: String,
    /// The branch that was checked out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
}

/// What is known of an execution before its first event; never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// What is called.
    pub capability: CapabilityId,
    /// A few words for people.
    pub title: String,
    /// How it is carried out.
    pub kind: CapabilityKind,
    /// The class of what it may change.
    pub effect: Effect,
    /// Whether asking it to stop achieves anything.
    pub cancellable: bool,
    /// The lock that it holds while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// What happens to its process tree when its worker is gone.
    #[serde(default)]
    pub on_worker_loss: OnWorkerLoss,
    /// How long after SIGTERM its tree is killed, in milliseconds.
    pub cancel_grace_ms: u64,
    /// The input as it may be stored.
    pub input: Value,
    /// Who asked.
    pub actor: Actor,
    /// Against which repository.
    pub repository: Repository,
    /// The execution that it is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<ExecutionId>,
}

/// Characters of a title, at most.
const TITLE_CHARS_MAX: usize = 200;
/// Characters of the name of a lock, a repository or a branch, at most.
const NAME_CHARS_MAX: usize = 200;
/// Characters of an actor's own name, at most.
const PEER_CHARS_MAX: usize = 100;

impl Description {
    /// Makes every text clean and short, and puts a reference in place of an input that is over
    /// the bound: what a peer says of execution `id` is shown to everybody.
    pub fn clean(&mut self, id: ExecutionId, limits: &Limits) {
        let mut texts = vec![
            (&mut self.title, TITLE_CHARS_MAX),
            (&mut self.repository.name, NAME_CHARS_MAX),
            (&mut self.repository.id, NAME_CHARS_MAX),
        ];
        texts.extend(self.repository.branch.as_mut().map(|branch| (branch, NAME_CHARS_MAX)));
        texts.extend(self.lock.as_mut().map(|lock| (lock, NAME_CHARS_MAX)));
        texts.extend(self.actor.peer.as_mut().map(|peer| (peer, PEER_CHARS_MAX)));
        for (text, chars_max) in texts {
            *text = sanitise::text(text, chars_max);
        }
        // It travels as MessagePack and is read as JSON: neither may be larger.
        let bytes = self.input.to_string().len().max(frame::encode(&self.input).len());
        if bytes > limits.max_value_bytes {
            let link = format!("/api/v1/executions/get?id={id}");
            self.input = withheld(bytes, limits.max_value_bytes, &link);
        }
    }
}

/// How far along an execution is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    /// How much is done.
    pub current: u64,
    /// Of how much, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// `current` of `total` in whole percent, rounded down, at most 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// What it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How a step stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StepState {
    /// It was entered.
    Running,
    /// It went well.
    Completed,
    /// It did not.
    Failed,
}

/// A named phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Its name within the execution.
    pub name: String,
    /// A few words for people.
    pub title: String,
    /// How it stands.
    pub state: StepState,
    /// When it was entered.
    pub started_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// How it went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnostic {
    /// How grave it is.
    pub severity: Severity,
    /// What kind of finding it is.
    pub code: String,
    /// In a sentence.
    pub summary: String,
    /// At length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
}

/// What a process tree used when it was last sampled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Resources {
    /// CPU time so far, in milliseconds.
    pub cpu_ms: u64,
    /// Resident memory, in bytes.
    pub memory_bytes: u64,
    /// Living processes.
    pub processes: u32,
}

/// What an execution waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingOn {
    /// `lock`, `slot`, `worker` or `lost_tree`.
    pub kind: String,
    /// In a sentence.
    pub detail: String,
    /// The execution that is in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
}

/// What a worker said after its execution had been ended without it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LateReport {
    /// When it came.
    pub at: Timestamp,
    /// How the work really ended.
    pub state: State,
    /// In a sentence.
    pub message: String,
    /// Events that the worker had and nobody took.
    pub unsent_events: u64,
}

/// Whether the process behind an execution lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProcessSeen {
    /// It ended.
    Gone,
    /// It lives.
    Alive,
    /// Nobody can say.
    #[default]
    Unknown,
}

/// What is known of an execution beside its events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Overlay {
    /// Rises with each change.
    pub revision: u64,
    /// What it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_on: Option<WaitingOn>,
    /// Since when a request to stop is on its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_requested_at: Option<Timestamp>,
    /// Since when its worker is stopped by a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_at: Option<Timestamp>,
    /// What its worker said too late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_report: Option<LateReport>,
    /// Whether its worker lives.
    #[serde(default)]
    pub process: ProcessSeen,
    /// Why its lock is still held although it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
}

/// Where the same execution is found on the other surfaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Links {
    /// Its snapshot.
    #[serde(rename = "self")]
    pub snapshot: String,
    /// Its history.
    pub events: String,
    /// Where to ask it to stop.
    pub cancel: String,
    /// Its live channel.
    pub websocket: String,
    /// Its page.
    pub cockpit: String,
}

impl Links {
    /// Returns the links of one execution.
    pub fn of(id: ExecutionId) -> Self {
        Self {
            snapshot: format!("/api/v1/executions/get?id={id}"),
            events: format!("/api/v1/executions/events?id={id}"),
            cancel: "/api/v1/executions/cancel".to_owned(),
            websocket: format!("/events?execution={id}"),
            cockpit: format!("/cockpit/executions/{id}"),
        }
    }
}

/// What every UI shows of an execution. Absent is absent, never null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Snapshot {
    /// Its name.
    pub id: ExecutionId,
    /// What was called.
    pub capability: CapabilityId,
    /// A few words for people.
    pub title: String,
    /// Where it stands.
    pub state: State,
    /// When it came to be.
    pub created_at: Timestamp,
    /// When it was entered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it became final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// From started to finished, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The input as it was stored; lists leave it out.
    #[serde(default)]
    pub input: Value,
    /// What it returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Why it failed or was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Fault>,
    /// The bounded answer about what ran, what was verified and what changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Value>,
    /// How far along it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Its named phases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// Phases beyond the bound, counted only.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub steps_omitted: u64,
    /// Its findings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<Diagnostic>,
    /// Findings beyond the bound, counted only.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub diagnostics_omitted: u64,
    /// What its process tree used when it was last sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// The position of its last event.
    pub last_sequence: Seq,
    /// How many events it had, dropped ones counted.
    pub event_count: u64,
    /// Whether some of them are gone from its history.
    pub events_truncated: bool,
    /// Whether asking it to stop achieves anything.
    pub cancellable: bool,
    /// Who asked for it.
    pub actor: Actor,
    /// The process that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerSeen>,
    /// Against which repository it ran.
    pub repository: Repository,
    /// The execution that it is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<ExecutionId>,
    /// Its id once more, as in faults and logs.
    pub correlation_id: String,
    /// What is known beside its events.
    pub overlay: Overlay,
    /// Where it is found on the other surfaces.
    pub links: Links,
}

/// The worker of an execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerSeen {
    /// Its process id.
    pub pid: u32,
    /// What kind of worker it is: `run`, `exec`, `pool`, or what a foreign one calls itself.
    pub role: String,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Why an event is refused. A refused event takes no position and changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The execution is over.
    #[error("the execution is {0}; nothing follows a final state")]
    Final(State),
    /// The move is none of the legal ones.
    #[error("an execution that is {from} cannot become {to}")]
    Move {
        /// Where it stands.
        from: State,
        /// What the event would make it.
        to: State,
    },
    /// The event belongs to a running execution, or is a second first one.
    #[error("an execution that is {0} has no such event")]
    Early(State),
}

impl Snapshot {
    /// Makes the snapshot of an execution that has no event yet.
    pub fn new(id: ExecutionId, description: &Description, created_at: Timestamp) -> Self {
        Self {
            id,
            capability: description.capability.clone(),
            title: description.title.clone(),
            state: State::Queued,
            created_at,
            started_at: None,
            finished_at: None,
            duration_ms: None,
            input: description.input.clone(),
            output: None,
            error: None,
            receipt: None,
            progress: None,
            steps: Vec::new(),
            steps_omitted: 0,
            diagnostics: Vec::new(),
            diagnostics_omitted: 0,
            resources: None,
            last_sequence: Seq::NONE,
            event_count: 0,
            events_truncated: false,
            cancellable: description.cancellable,
            actor: description.actor.clone(),
            worker: None,
            repository: description.repository.clone(),
            parent_id: description.parent_id,
            correlation_id: id.to_string(),
            overlay: Overlay::default(),
            links: Links::of(id),
        }
    }

    /// Folds the next event in.
    ///
    /// # Errors
    ///
    /// [`Refused`] when the event may not follow; the snapshot is then as it was.
    pub fn fold(&mut self, event: &Stamped, limits: &Limits) -> Result<(), Refused> {
        self.admits(&event.kind)?;
        self.last_sequence = self.last_sequence.next();
        self.event_count += 1;
        self.apply(event, limits);
        Ok(())
    }

    /// Folds a chunk of lines in: only the counts change.
    ///
    /// # Errors
    ///
    /// [`Refused`] when the execution is not running.
    pub fn fold_log(&mut self, chunk: &LogChunk) -> Result<(), Refused> {
        self.admits_work()?;
        self.skip(u64::from(chunk.lines));
        Ok(())
    }

    /// Accounts for positions whose content is gone.
    ///
    /// # Errors
    ///
    /// [`Refused`] when the execution is over.
    pub fn fold_lost(&mut self, count: u64) -> Result<(), Refused> {
        if self.state.is_final() {
            return Err(Refused::Final(self.state));
        }
        self.skip(count);
        self.events_truncated = true;
        Ok(())
    }

    /// Returns whether the event may follow.
    ///
    /// # Errors
    ///
    /// [`Refused`] says why not.
    pub fn admits(&self, kind: &Kind) -> Result<(), Refused> {
        if self.state.is_final() {
            return Err(Refused::Final(self.state));
        }
        let first = self.last_sequence == Seq::NONE;
        match kind {
            Kind::Created { .. } if first => Ok(()),
            _ if first => Err(Refused::Early(self.state)),
            Kind::Created { .. } => Err(Refused::Early(self.state)),
            Kind::Queued { .. } if self.state == State::Queued => Ok(()),
            Kind::Queued { .. }
            | Kind::Started {}
            | Kind::Cancelling { .. }
            | Kind::Cancelled { .. }
            | Kind::Completed { .. }
            | Kind::Failed { .. } => {
                let to = kind.moves_to().expect("these kinds move the state");
                if self.state.may_move_to(to) {
                    Ok(())
                } else {
                    Err(Refused::Move { from: self.state, to })
                }
            }
            Kind::Progress { .. }
            | Kind::StepStarted { .. }
            | Kind::StepCompleted { .. }
            | Kind::Log { .. }
            | Kind::Resources { .. }
            | Kind::Suspended { .. }
            | Kind::Resumed { .. } => self.admits_work(),
            Kind::Gate { .. } | Kind::Diagnostic { .. } | Kind::Unknown { .. } => Ok(()),
        }
    }

    /// Returns whether a line of output or another sign of work may follow.
    ///
    /// # Errors
    ///
    /// [`Refused`] says why not.
    pub fn admits_work(&self) -> Result<(), Refused> {
        match self.state {
            State::Running | State::Cancelling => Ok(()),
            State::Queued => Err(Refused::Early(self.state)),
            State::Succeeded | State::Failed | State::Cancelled => Err(Refused::Final(self.state)),
        }
    }

    fn skip(&mut self, count: u64) {
        self.last_sequence = self.last_sequence.plus(count);
        self.event_count += count;
    }

    fn apply(&mut self, event: &Stamped, limits: &Limits) {
        if let Some(state) = event.kind.moves_to() {
            self.state = state;
        }
        match &event.kind {
            Kind::Created { .. } => self.created_at = event.at,
            Kind::Started {} => self.started_at = Some(event.at),
            Kind::Progress { current, total, message } => {
                self.progress = Some(Progress {
                    current: *current,
                    total: *total,
                    percent: percent(*current, *total),
                    message: message.clone(),
                });
            }
            Kind::StepStarted { name, title } => self.push_step(
                Step {
                    name: name.clone(),
                    title: title.clone(),
                    state: StepState::Running,
                    started_at: event.at,
                    finished_at: None,
                    detail: None,
                },
                limits,
            ),
            Kind::StepCompleted { name, ok, detail } => {
                self.complete_step(event.at, name, *ok, detail.as_ref(), limits);
            }
            Kind::Diagnostic { severity, code, summary, detail, suggestion } => {
                if self.diagnostics.len() < limits.max_diagnostics {
                    self.diagnostics.push(Diagnostic {
                        severity: *severity,
                        code: code.clone(),
                        summary: summary.clone(),
                        detail: detail.clone(),
                        suggestion: suggestion.clone(),
                    });
                } else {
                    self.diagnostics_omitted += 1;
                }
            }
            Kind::Resources { cpu_ms, memory_bytes, processes } => {
                self.resources = Some(Resources {
                    cpu_ms: *cpu_ms,
                    memory_bytes: *memory_bytes,
                    processes: *processes,
                });
            }
            Kind::Completed { output, receipt } => {
                self.finish(event.at, receipt.as_ref());
                self.output = Some(output.clone());
                self.error = None;
            }
            Kind::Failed { error, receipt } => {
                self.finish(event.at, receipt.as_ref());
                self.output = None;
                self.error = Some(error.clone());
            }
            Kind::Cancelled { receipt } => {
                self.finish(event.at, receipt.as_ref());
                self.error.get_or_insert_with(|| {
                    Fault::new(Code::Cancelled, "it was cancelled").about(self.id)
                });
            }
            Kind::Queued { .. }
            | Kind::Gate { .. }
            | Kind::Log { .. }
            | Kind::Suspended { .. }
            | Kind::Resumed { .. }
            | Kind::Cancelling { .. }
            | Kind::Unknown { .. } => {}
        }
    }

    fn finish(&mut self, at: Timestamp, receipt: Option<&Value>) {
        self.finished_at = Some(at);
        self.duration_ms = self
            .started_at
            .map(|started| u64::try_from(at.since(started).as_millis()).unwrap_or(u64::MAX));
        self.receipt = receipt.cloned();
    }

    fn push_step(&mut self, step: Step, limits: &Limits) {
        if self.steps.len() < limits.max_steps {
            self.steps.push(step);
        } else {
            self.steps_omitted += 1;
        }
    }

    fn complete_step(
        &mut self,
        at: Timestamp,
        name: &str,
        ok: bool,
        detail: Option<&String>,
        limits: &Limits,
    ) {
        let state = if ok { StepState::Completed } else { StepState::Failed };
        match self.steps.iter_mut().rev().find(|step| step.name == name) {
            Some(step) => {
                step.state = state;
                step.finished_at = Some(at);
                step.detail = detail.cloned();
            }
            None => self.push_step(
                Step {
                    name: name.to_owned(),
                    title: name.to_owned(),
                    state,
                    started_at: at,
                    finished_at: Some(at),
                    detail: detail.cloned(),
                },
                limits,
            ),
        }
    }
}

fn percent(current: u64, total: Option<u64>) -> Option<u8> {
    let total = total.filter(|total| *total > 0)?;
    let percent = u128::from(current.min(total)) * 100 / u128::from(total);
    Some(u8::try_from(percent).expect("at most 100"))
}
