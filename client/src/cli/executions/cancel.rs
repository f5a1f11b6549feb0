//! `reeve executions cancel`: asks an execution to stop.

use reeve_protocol::id::{ExecutionId, Seq};
use reeve_protocol::stream::{FollowFrom, Op};

use super::watch;
use crate::cli::{Here, block_on, broker};
use crate::failure::{Exit, Failure};
use crate::follow::Follower;
use crate::ui::{Format, Ui};

/// Ask an execution to stop
///
/// A process is sent SIGTERM, and SIGKILL where it is still there after its grace. What checks for
/// no cancellation runs to its end.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct CancelArgs {
    /// The execution to stop
    id: ExecutionId,
    /// Kill it at once
    #[arg(long)]
    force: bool,
    /// Wait until it has ended, and exit as `executions watch` would
    #[arg(long)]
    wait: bool,
}

pub(super) fn run(ui: &mut Ui, here: &Here, args: CancelArgs) -> Result<Exit, Failure> {
    block_on(async {
        let mut link = broker::need(here, "executions cancel").await?;
        let by = format!("cli (pid {})", std::process::id());
        let answer = link.ask(Op::Cancel { id: args.id, by, force: args.force }).await?;
        if ui.format == Format::Text {
            let outcome = answer["outcome"].as_str().unwrap_or("requested").replace('_', " ");
            ui.line(format_args!("{} {outcome}", args.id));
        } else {
            ui.json(&answer);
        }
        if answer["cancellable"] == false {
            ui.warn("it does not check for cancellation and may run to its end");
        }
        if !args.wait {
            return Ok(Exit::Ok);
        }
        ui.flush();
        let follower = Follower::of([FollowFrom { execution: args.id, after: Seq::NONE }]);
        watch::end_of(ui, here, follower, Some(link)).await
    })
}
