//! `reeve run`: carries out a declared capability in this process, and shows it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use reeve_protocol::capability::{Process, Stdin};
use reeve_protocol::fault::{Code, Fault, Stage};
use reeve_protocol::id::{CapabilityId, ExecutionId, Seq};
use reeve_protocol::input;
use reeve_protocol::limits::Limits;
use reeve_protocol::manifest::{self, Manifest};
use reeve_protocol::redact::Withheld;
use reeve_protocol::secret::{Hidden, Secret};
use reeve_protocol::snapshot::{Actor, ActorKind, Description};
use reeve_protocol::{Descriptor, Entry, State};
use serde_json::Value;

use super::drive::{drive_call, until_written};
use super::{Here, input as call_input};
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::live::Live;
use crate::manifest_file;
use crate::ui::{Format, Ui};

/// Run a declared capability
///
/// Runs in this process and is visible to everyone where a broker serves the checkout. Exits 0
/// when it succeeded, 1 when it ran and failed, 2 for a wrong input, 3 where it is not declared,
/// 4 when it was refused, 130 when it was cancelled.
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    /// The capability to run
    capability: CapabilityId,
    /// The input: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON|@FILE|-")]
    input: Option<String>,
    /// Set one member of the input; the value is JSON where it can be read as that
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Show the work's own output only
    #[arg(long, short)]
    quiet: bool,
    /// Say nothing of a manifest that other users may write
    #[arg(long)]
    trust_writable: bool,
    /// The name of the execution
    #[arg(long, hide = true)]
    id: Option<ExecutionId>,
}

pub(super) fn run(ui: &mut Ui, here: &Here, args: RunArgs) -> Result<Exit, Failure> {
    if args.quiet {
        ui.be_quiet();
    }
    let loaded = manifest_file::load(&here.place, args.trust_writable)?;
    for warning in &loaded.warnings {
        ui.warn(warning);
    }
    let planned = plan(here, &loaded.manifest, &args)?;
    finish(ui, drive_call, planned)
}

/// Resolves, decodes and validates the call; nothing has run when this refuses.
fn plan(here: &Here, manifest: &Manifest, args: &RunArgs) -> Result<PlannedCall, Failure> {
    let descriptor = manifest
        .capabilities
        .get(&args.capability)
        .ok_or_else(|| not_declared(&args.capability, manifest.capabilities.keys()))?;
    let not_ready = || Failure::new(Exit::Refused, format!("{} cannot be run here", descriptor.id));
    let ready = manifest.ready.get(&args.capability).ok_or_else(not_ready)?;
    let limits = manifest.limits.clone();
    let value = call_input::gather(
        args.input.as_deref(),
        &args.set,
        &descriptor.input,
        limits.max_value_bytes,
    )?;
    let value = ready.validator.validate(value)?;
    let process = descriptor.process.as_ref().ok_or_else(not_ready)?;
    let template = ready.template.as_ref().ok_or_else(not_ready)?;
    let argv = input::argv(template, &value)?;
    let Withheld { shown, secrets } = ready.validator.withhold(&value);
    Ok(PlannedCall {
        id: args.id.map_or_else(mint, Ok)?,
        role: "run",
        description: describe(here, descriptor, process.cancel_grace_ms, &shown)?,
        argv,
        cwd: here.place.root.join(&process.cwd),
        process: process.clone(),
        stdin: (process.stdin == Stdin::Input).then(|| Hidden(value.clone())),
        all_env: false,
        checkout: here.place.root.clone(),
        place: here.place.clone(),
        timeout: descriptor.timeout(),
        limits,
        secrets,
    })
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

/// Says what is called, for everyone who will see it: `value` is the input as it may be shown.
pub(super) fn describe(
    here: &Here,
    descriptor: &Descriptor,
    cancel_grace_ms: u64,
    value: &Value,
) -> Result<Description, Failure> {
    let process = descriptor.process.as_ref();
    Ok(Description {
        capability: descriptor.id.clone(),
        title: descriptor.title.clone(),
        kind: descriptor.kind,
        effect: descriptor.effect,
        cancellable: descriptor.cancellable,
        lock: descriptor.overlap.lock_of(&descriptor.id),
        on_worker_loss: process.map(|process| process.on_worker_loss).unwrap_or_default(),
        cancel_grace_ms,
        input: value.clone(),
        actor: Actor { kind: ActorKind::Cli, peer: None, pid: Some(std::process::id()) },
        repository: here.place.repository.clone(),
        parent_id: std::env::var("REEVE_EXECUTION").ok().and_then(|id| id.parse().ok()),
    })
}

/// Mints the name of an execution.
pub(super) fn mint() -> Result<ExecutionId, Failure> {
    let mut random = [0; 4];
    getrandom::fill(&mut random)
        .map_err(|error| Failure::new(Exit::Failed, format!("no random numbers: {error}")))?;
    Ok(ExecutionId::mint(clock::now(), u32::from_be_bytes(random)))
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
    /// The root of the checkout.
    pub checkout: PathBuf,
    /// Where its broker is looked for: [`crate::checkout::discover`].
    pub place: reeve_protocol::place::Place,
    /// How long it may run.
    pub timeout: Option<Duration>,
    /// The bounds until a broker says its own.
    pub limits: Limits,
    /// What is taken out of everything that is reported.
    pub secrets: Vec<Secret>,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub(super) struct Driven {
    /// The final state, as this process saw it.
    pub state: State,
    /// What a shell would say of the child: its status, or 128 and the signal's number.
    pub child: Option<u8>,
    /// Why it failed.
    pub error: Option<Fault>,
    /// The whole of it, for [`Format::Json`].
    pub snapshot: Option<Value>,
}

/// What the drive hands on while the call goes on.
pub(super) enum Shown<'a> {
    /// A fact, with its first position where it has one.
    Entry(Option<Seq>, &'a Entry),
    /// What a person should know.
    Notice(&'a str),
}

/// Drives a call, shows it, and says how it ended.
///
/// What is shown is written apart, so that a reader who pauses holds up the child and nothing else.
pub(super) fn finish(
    ui: &mut Ui,
    drive: impl FnOnce(
        &PlannedCall,
        &mut dyn FnMut(Shown<'_>),
        &dyn Fn() -> bool,
    ) -> Result<Driven, Failure>,
    call: PlannedCall,
) -> Result<Exit, Failure> {
    let backlog = ui
        .write_apart()
        .map_err(|error| Failure::new(Exit::Failed, format!("no further thread: {error}")))?;
    let done = show(ui, |call, show| drive(call, show, &|| backlog.is_full()), &call);
    ui.flush();
    let written = until_written(&backlog);
    ui.write_here(&backlog, written.as_ref().is_ok_and(|is_written| *is_written));
    written.and(done)
}

fn show(
    ui: &mut Ui,
    drive: impl FnOnce(&PlannedCall, &mut dyn FnMut(Shown<'_>)) -> Result<Driven, Failure>,
    call: &PlannedCall,
) -> Result<Exit, Failure> {
    let live = Live::of_run();
    let driven = drive(call, &mut |shown| {
        match shown {
            Shown::Entry(first, entry) => live.entry(ui, call.id, first, entry),
            Shown::Notice(text) => ui.note(text),
        }
        ui.flush();
    })?;
    if ui.format == Format::Json
        && let Some(snapshot) = &driven.snapshot
    {
        ui.json(snapshot);
    }
    if let Some(error) = driven.error.as_ref().filter(|_| driven.state != State::Succeeded) {
        ui.fail(&Failure::from(error.clone()));
    } else if ui.format == Format::Text {
        ui.note(format_args!("{} {}", call.id, driven.state));
    }
    Ok(exit_of(call, &driven))
}

fn exit_of(call: &PlannedCall, driven: &Driven) -> Exit {
    if call.role == "exec"
        && let Some(status) = driven.child
    {
        return Exit::Child(status);
    }
    match (&driven.error, driven.state) {
        (Some(error), State::Failed) => Exit::of_code(error.code),
        (_, state) => Exit::of_state(state),
    }
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
        cancel_grace_ms: u64::try_from(Limits::default().cancel_grace.as_millis())
            .unwrap_or(u64::MAX),
        on_worker_loss: reeve_protocol::capability::OnWorkerLoss::default(),
    }
}

#[cfg(test)]
mod tests;
