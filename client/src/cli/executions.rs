//! `reeve executions`: what runs and what ran, as the broker knows it.

mod cancel;
mod events;
mod list;
mod protocol;
mod show;
mod watch;

use reeve_protocol::lifecycle::State;

use super::Here;
use crate::failure::{Exit, Failure};
use crate::ui::Ui;

/// See and stop executions
#[derive(Debug, clap::Subcommand)]
pub(super) enum ExecutionsCommand {
    /// List executions, newest first
    List(list::ListArgs),
    /// Show one execution
    Show(show::ShowArgs),
    /// Show the history of one execution
    Events(events::EventsArgs),
    /// Ask an execution to stop
    Cancel(cancel::CancelArgs),
    /// Show the contract of the streams and the limits in force
    Protocol(protocol::ProtocolArgs),
    /// Follow executions as they go on
    Watch(watch::WatchArgs),
}

pub(super) fn run(ui: &mut Ui, here: &Here, command: ExecutionsCommand) -> Result<Exit, Failure> {
    match command {
        ExecutionsCommand::List(args) => list::run(ui, here, args),
        ExecutionsCommand::Show(args) => show::run(ui, here, args),
        ExecutionsCommand::Events(args) => events::run(ui, here, args),
        ExecutionsCommand::Cancel(args) => cancel::run(ui, here, args),
        ExecutionsCommand::Protocol(args) => protocol::run(ui, here, args),
        ExecutionsCommand::Watch(args) => watch::run(ui, here, args),
    }
}

/// Reads the word of a state.
fn state(text: &str) -> Result<State, String> {
    State::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
        let words: Vec<&str> = State::ALL.iter().map(|state| state.as_str()).collect();
        format!("a state is one of {}", words.join(", "))
    })
}
