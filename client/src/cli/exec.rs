//! `reeve exec`: carries out a command of the caller's own, as an execution.

use reeve_protocol::limits::Limits;
use reeve_protocol::{manifest, sanitise};
use serde_json::json;

use super::Here;
use super::drive::drive_call;
use super::plan::{Asked, PlannedCall, PlannedProcess, PlannedWork, describe, undeclared};
use super::run::finish;
use crate::failure::{Exit, Failure};
use crate::ui::Ui;

/// Characters of a title that is made of a command.
const TITLE_CHARS: usize = 80;

/// Run a command of your own, visible as an execution
///
/// Exits as the command did; 128 and the signal's number where a signal ended it.
#[derive(Debug, clap::Args)]
pub(super) struct ExecArgs {
    /// Give it a terminal of its own
    #[arg(long)]
    pty: bool,
    /// What it is called in lists
    #[arg(long)]
    title: Option<String>,
    /// The name of the execution
    #[arg(long, hide = true)]
    id: Option<reeve_protocol::ExecutionId>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(super) fn run(ui: &mut Ui, here: &Here, args: ExecArgs) -> Result<Exit, Failure> {
    let call = plan(here, args)?;
    finish(ui, drive_call, call)
}

fn plan(here: &Here, args: ExecArgs) -> Result<PlannedCall, Failure> {
    let mut descriptor = manifest::builtin()
        .into_iter()
        .find(|descriptor| descriptor.id.as_str() == "process.exec")
        .ok_or_else(|| Failure::new(Exit::Failed, "process.exec is not built in"))?;
    let title = args.title.unwrap_or_else(|| args.command.join(" "));
    descriptor.title = sanitise::text(&title, TITLE_CHARS);
    let process = undeclared(&args.command, args.pty);
    let asked = Asked::here(args.id, "exec")?;
    Ok(PlannedCall {
        id: asked.id,
        role: asked.role,
        description: describe(here, &descriptor, process.cancel_grace_ms, json!({}), asked),
        work: PlannedWork::Process(Box::new(PlannedProcess {
            argv: args.command,
            cwd: here.dir.clone(),
            process,
            stdin: None,
            all_env: true,
            timeout: None,
        })),
        place: here.place.clone(),
        limits: Limits::default(),
        secrets: Vec::new(),
    })
}
