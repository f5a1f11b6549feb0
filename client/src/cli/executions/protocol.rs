//! `reeve executions protocol`: what readers may rely on, as the broker answers it.

use reeve_protocol::stream::Op;

use crate::cli::{Here, block_on, broker};
use crate::failure::{Exit, Failure};
use crate::ui::{Format, Ui};

/// Show the contract of the streams and the limits in force
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ProtocolArgs {}

pub(super) fn run(ui: &mut Ui, here: &Here, args: ProtocolArgs) -> Result<Exit, Failure> {
    let ProtocolArgs {} = args;
    let answer = block_on(async {
        let mut link = broker::need(here, "executions protocol").await?;
        Ok(link.ask(Op::Protocol {}).await?)
    })?;
    if ui.format != Format::Text {
        ui.json(&answer);
        return Ok(Exit::Ok);
    }
    for (name, value) in answer.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(members) => {
                ui.line(format_args!("{name}:"));
                for (member, value) in members {
                    ui.line(format_args!("  {member}: {value}"));
                }
            }
            None => ui.line(format_args!("{name}: {value}")),
        }
    }
    Ok(Exit::Ok)
}
