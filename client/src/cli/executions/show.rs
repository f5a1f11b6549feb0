//! `reeve executions show`: one execution at length.

use reeve_protocol::id::ExecutionId;
use reeve_protocol::snapshot::Snapshot;
use reeve_protocol::stream::Op;

use crate::cli::{Here, block_on, broker};
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::render;
use crate::ui::{Format, Ui};

/// Show one execution
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ShowArgs {
    /// The execution to show
    id: ExecutionId,
}

pub(super) fn run(ui: &mut Ui, here: &Here, args: ShowArgs) -> Result<Exit, Failure> {
    let answer = block_on(async {
        let mut link = broker::need(here, "executions show").await?;
        Ok(link.ask(Op::Get { id: args.id }).await?)
    })?;
    if ui.format != Format::Text {
        ui.json(&answer);
        return Ok(Exit::Ok);
    }
    let snapshot: Snapshot = serde_json::from_value(answer).map_err(|error| {
        Failure::new(Exit::Failed, format!("the broker's answer cannot be read: {error}"))
    })?;
    for line in render::execution(&snapshot, clock::now()) {
        ui.line(line);
    }
    ui.note(render::hint(&snapshot));
    Ok(Exit::Ok)
}
