//! `reeve run`: carries out a declared capability in this process, and shows it.

use reeve_protocol::fault::Fault;
use reeve_protocol::id::{CapabilityId, ExecutionId, Seq};
use reeve_protocol::manifest::Manifest;
use reeve_protocol::{Entry, State};
use serde_json::Value;

use super::drive::{drive_call, until_written};
use super::plan::{self, Asked, PlannedCall, PlannedWork, not_declared, plan_of};
use super::{Here, input as call_input};
use crate::failure::{Exit, Failure};
use crate::live::Live;
use crate::manifest_file::{self, ManifestFileError};
use crate::ui::{Format, Ui};

/// Run a declared capability
///
/// Runs in this process and is visible to everyone where a broker serves the checkout. Standard
/// output has what its command prints, or the value that a built-in capability returns. Exits 0
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
    let manifest = manifest_of(ui, here, &args)?;
    let planned = plan(here, &manifest, &args)?;
    finish(ui, drive_call, planned)
}

/// Reads the manifest; a handler can be called without one, and beside one that is wrong.
fn manifest_of(ui: &mut Ui, here: &Here, args: &RunArgs) -> Result<Manifest, Failure> {
    let of_handler = here.handlers.contains(&args.capability);
    match manifest_file::load(&here.place, &here.handlers, args.trust_writable) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                ui.warn(warning);
            }
            Ok(loaded.manifest)
        }
        Err(ManifestFileError::Missing(_)) if of_handler => Ok(Manifest::empty()),
        Err(error) if of_handler => {
            ui.warn(Failure::from(error).message);
            Ok(Manifest::empty())
        }
        Err(error) => Err(error.into()),
    }
}

/// Resolves, decodes and validates the call; nothing has run when this refuses.
fn plan(here: &Here, manifest: &Manifest, args: &RunArgs) -> Result<PlannedCall, Failure> {
    let limits = &manifest.limits;
    let asked = Asked::here(args.id, "run")?;
    let gathered = |schema: &Value| {
        call_input::gather(args.input.as_deref(), &args.set, schema, limits.max_value_bytes)
    };
    if let Some(handler) = here.handlers.get(&args.capability) {
        let descriptor = handler.descriptor().map_err(|bad| plan::broken(&bad))?;
        let value = handler.validate(gathered(&descriptor.input)?)?;
        return Ok(plan_of(here, &descriptor, value, limits, asked)?);
    }
    let declared = manifest.capabilities.keys().chain(here.handlers.ids());
    let descriptor = manifest
        .capabilities
        .get(&args.capability)
        .ok_or_else(|| not_declared(&args.capability, declared))?;
    let ready = manifest.ready.get(&args.capability).ok_or_else(|| plan::not_ready(descriptor))?;
    let value = ready.validator.validate(gathered(&descriptor.input)?)?;
    Ok(plan_of(here, descriptor, value, limits, asked)?)
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
    let of_handler = matches!(call.work, PlannedWork::Handler(_));
    let live = if of_handler { Live::of_handler() } else { Live::of_run() };
    let driven = drive(call, &mut |shown| {
        match shown {
            Shown::Entry(first, entry) => live.entry(ui, call.id, first, entry),
            Shown::Notice(text) => ui.note(text),
        }
        ui.flush();
    })?;
    match (&driven.snapshot, ui.format) {
        (Some(snapshot), Format::Json) => ui.json(snapshot),
        (Some(snapshot), Format::Text) if of_handler => {
            if let Some(value) = snapshot.get("output") {
                ui.document(value);
            }
        }
        _ => {}
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

#[cfg(test)]
mod tests;
