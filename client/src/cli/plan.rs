//! From a declaration and a validated input to a call that can be carried out.
//!
//! The same for a person's `reeve run` and for whatever else carries calls out with this program.
//! Its rule: what cannot be carried out stops here, and nothing has happened then.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reeve_protocol::Descriptor;
use reeve_protocol::capability::{OnWorkerLoss, Process, Stdin};
use reeve_protocol::fault::{Code, Fault, Stage};
use reeve_protocol::id::{CapabilityId, ExecutionId};
use reeve_protocol::input::{self, Template};
use reeve_protocol::limits::Limits;
use reeve_protocol::manifest;
use reeve_protocol::place::Place;
use reeve_protocol::redact::{Sensitive, Withheld};
use reeve_protocol::secret::{Hidden, Secret};
use reeve_protocol::snapshot::{Actor, ActorKind, Description};
use reeve_worker::drive::HandlerCall;
use reeve_worker::handler::{BadHandler, Site};
use serde_json::Value;

use super::Here;
use super::asking::Asking;
use crate::clock;
use crate::failure::{Exit, Failure};

/// Who asks for a call, and as what it is carried out.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// Its name.
    pub id: ExecutionId,
    /// What kind of worker this process is.
    pub role: &'static str,
    /// Who asks.
    pub actor: Actor,
    /// The execution that it is part of.
    pub parent_id: Option<ExecutionId>,
}

impl Asked {
    /// Returns what is asked for on this command line; the name is minted where none is given.
    pub fn here(id: Option<ExecutionId>, role: &'static str) -> Result<Self, Failure> {
        Ok(Self {
            id: id.map_or_else(mint, Ok)?,
            role,
            actor: Actor { kind: ActorKind::Cli, peer: None, pid: Some(std::process::id()) },
            parent_id: std::env::var("REEVE_EXECUTION").ok().and_then(|id| id.parse().ok()),
        })
    }
}

/// A call that passed every check and has not begun.
#[derive(Debug)]
pub(super) struct PlannedCall {
    /// Its name.
    pub id: ExecutionId,
    /// What kind of worker this process is: `run` or `exec`.
    pub role: &'static str,
    /// What it is.
    pub description: Description,
    /// What is done.
    pub work: PlannedWork,
    /// Where its broker is looked for: [`crate::checkout::discover`].
    pub place: Place,
    /// The bounds until a broker says its own.
    pub limits: Limits,
    /// What is taken out of everything that is reported.
    pub secrets: Vec<Secret>,
}

/// What a call does.
#[derive(Debug)]
pub(super) enum PlannedWork {
    /// It runs a process.
    Process(Box<PlannedProcess>),
    /// It calls a handler of this program.
    Handler(Box<HandlerCall>),
}

/// The process of a call.
#[derive(Debug)]
pub(super) struct PlannedProcess {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The directory it starts in, absolute.
    pub cwd: PathBuf,
    /// How it is carried out.
    pub process: Process,
    /// What it reads on its standard input as one document; `None` for what `process.stdin` says.
    pub stdin: Option<Hidden<Value>>,
    /// Whether it gets all of this process's environment and its standard input, as `exec` does.
    pub all_env: bool,
    /// How long it may run.
    pub timeout: Option<Duration>,
}

/// Plans the call of a capability with an input that its schema has let through, defaults filled
/// in. The descriptor may come from anywhere; what it needs of this program must be here.
///
/// # Errors
///
/// `ACTION_UNAVAILABLE` for what this program cannot carry out, and for an input that does not fit
/// the command.
pub(super) fn plan_of(
    here: &Here,
    descriptor: &Descriptor,
    input: Value,
    limits: &Limits,
    asked: Asked,
) -> Result<PlannedCall, Fault> {
    let grace;
    let Withheld { shown, secrets } = Sensitive::new(&descriptor.input)
        .map_err(|bad| not_ready(descriptor).hint(bad.to_string()))?
        .withhold(&input);
    let work = match (&descriptor.process, here.handlers.get(&descriptor.id)) {
        (Some(process), _) => {
            grace = Duration::from_millis(process.cancel_grace_ms);
            PlannedWork::Process(Box::new(process_of(here, descriptor, process, input)?))
        }
        (None, Some(handler)) => {
            grace = handler.grace().unwrap_or(limits.cancel_grace);
            let site = Arc::new(site_of(here, limits));
            let (handler, timeout) = (Arc::clone(handler), descriptor.timeout());
            let call = HandlerCall { handler, input, site, grace, timeout };
            PlannedWork::Handler(Box::new(call))
        }
        (None, None) => return Err(not_ready(descriptor)),
    };
    Ok(PlannedCall {
        id: asked.id,
        role: asked.role,
        description: describe(here, descriptor, millis(grace), shown, asked),
        work,
        place: here.place.clone(),
        limits: limits.clone(),
        secrets,
    })
}

fn process_of(
    here: &Here,
    descriptor: &Descriptor,
    process: &Process,
    input: Value,
) -> Result<PlannedProcess, Fault> {
    let template = Template::new(&process.command, &descriptor.input)
        .map_err(|_| not_ready(descriptor).because("command"))?;
    Ok(PlannedProcess {
        argv: input::argv(&template, &input)?,
        cwd: here.place.root.join(&process.cwd),
        process: process.clone(),
        stdin: (process.stdin == Stdin::Input).then_some(Hidden(input)),
        all_env: false,
        timeout: descriptor.timeout(),
    })
}

/// Returns what handlers find around them here.
pub(super) fn site_of(here: &Here, limits: &Limits) -> Site {
    Site {
        place: here.place.clone(),
        limits: limits.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        handlers: here.handlers.ids().cloned().collect(),
        broker: Arc::new(Asking::new(here)),
    }
}

/// Says that this program cannot carry a capability out.
pub(super) fn not_ready(descriptor: &Descriptor) -> Fault {
    Fault::new(Code::ActionUnavailable, format!("{} cannot be run here", descriptor.id))
        .at(Stage::Usable)
}

/// Says that a handler of this program is declared wrongly.
pub(super) fn broken(bad: &BadHandler) -> Failure {
    Failure::new(Exit::Failed, format!("a handler of this program cannot be registered: {bad}"))
}

/// Says what is called, for everyone who will see it.
pub(super) fn describe(
    here: &Here,
    descriptor: &Descriptor,
    cancel_grace_ms: u64,
    input: Value,
    asked: Asked,
) -> Description {
    let process = descriptor.process.as_ref();
    Description {
        capability: descriptor.id.clone(),
        title: descriptor.title.clone(),
        kind: descriptor.kind,
        effect: descriptor.effect,
        cancellable: descriptor.cancellable,
        lock: descriptor.overlap.lock_of(&descriptor.id),
        on_worker_loss: process.map(|process| process.on_worker_loss).unwrap_or_default(),
        cancel_grace_ms,
        input,
        actor: asked.actor,
        repository: here.place.repository.clone(),
        parent_id: asked.parent_id,
    }
}

/// Says that a capability is not declared, and which one may have been meant.
pub(super) fn not_declared<'a>(
    wanted: &CapabilityId,
    declared: impl Iterator<Item = &'a CapabilityId>,
) -> Failure {
    let message = format!("no capability {wanted} is declared in {}", manifest::FILE);
    let nearest = declared
        .map(|id| (strsim::damerau_levenshtein(id.as_str(), wanted.as_str()), id))
        .filter(|(distance, id)| *distance <= 2.max(id.as_str().len() / 4))
        .min();
    let fault = Fault::new(Code::ActionNotFound, message).at(Stage::Resolve);
    let fault = match nearest {
        Some((_, id)) => fault.hint(format!("did you mean {id}?")),
        None => fault.hint("`reeve capabilities list` shows what is declared"),
    };
    fault.into()
}

/// Mints the name of an execution.
pub(super) fn mint() -> Result<ExecutionId, Failure> {
    let mut random = [0; 4];
    getrandom::fill(&mut random)
        .map_err(|error| Failure::new(Exit::Failed, format!("no random numbers: {error}")))?;
    Ok(ExecutionId::mint(clock::now(), u32::from_be_bytes(random)))
}

/// Returns the process of a command that nobody declared.
pub(super) fn undeclared(argv: &[String], pty: bool) -> Process {
    Process {
        command: argv.to_vec(),
        cwd: ".".to_owned(),
        env_set: BTreeMap::new(),
        env_allow: vec!["*".to_owned()],
        stdin: Stdin::None,
        pty,
        cancel_grace_ms: millis(Limits::default().cancel_grace),
        on_worker_loss: OnWorkerLoss::default(),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
