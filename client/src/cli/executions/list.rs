//! `reeve executions list`: the executions that the broker remembers.

use reeve_protocol::id::{CapabilityId, ExecutionId};
use reeve_protocol::lifecycle::State;
use reeve_protocol::snapshot::Snapshot;
use reeve_protocol::stream::Op;
use serde_json::json;

use crate::cli::{Here, block_on, broker};
use crate::failure::{Exit, Failure};
use crate::render;
use crate::ui::{Format, Ui};
use crate::{clock, failure};

/// List executions, newest first
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ListArgs {
    /// Only those in this state
    #[arg(long, value_parser = super::state)]
    state: Option<State>,
    /// Only those of this capability
    #[arg(long)]
    capability: Option<CapabilityId>,
    /// At most so many
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Only those older than this one
    #[arg(long, value_name = "ID")]
    before: Option<ExecutionId>,
}

pub(super) fn run(ui: &mut Ui, here: &Here, args: ListArgs) -> Result<Exit, Failure> {
    let ListArgs { state, capability, limit, before } = args;
    let answer = block_on(async {
        let Some(mut link) = broker::connect(here, "executions list").await? else {
            return Ok(None);
        };
        Ok(Some(link.ask(Op::List { state, capability, limit, before }).await?))
    })?;
    let answer = answer.unwrap_or_else(|| {
        ui.note("no broker serves this checkout, so nobody remembers its executions");
        json!({ "count": 0, "executions": [] })
    });
    let executions = &answer["executions"];
    match ui.format {
        Format::Json => ui.json(&answer),
        Format::Ndjson => {
            executions.as_array().into_iter().flatten().for_each(|execution| ui.json(execution));
        }
        Format::Text => text(ui, executions)?,
    }
    if let Some(before) = answer["next"].as_str().filter(|_| ui.format != Format::Json) {
        ui.note(format_args!("older ones follow: --before {before}"));
    }
    Ok(Exit::Ok)
}

fn text(ui: &mut Ui, executions: &serde_json::Value) -> Result<(), Failure> {
    let snapshots: Vec<Snapshot> = serde_json::from_value(executions.clone()).map_err(|error| {
        let told = failure::chain(&error);
        Failure::new(Exit::Failed, format!("the broker's answer cannot be read: {told}"))
    })?;
    if snapshots.is_empty() {
        return Ok(());
    }
    let columns = ui.columns().unwrap_or(render::COLUMNS);
    let lines = render::executions(&snapshots, clock::now(), columns);
    for (n, line) in lines.into_iter().enumerate() {
        match n.checked_sub(1).and_then(|n| snapshots.get(n)) {
            Some(snapshot) => {
                let word = snapshot.state.as_str();
                let painted = ui.paint(render::paint_of(snapshot.state), word);
                ui.line(line.replacen(word, &painted, 1));
            }
            None => ui.line(line),
        }
    }
    Ok(())
}
