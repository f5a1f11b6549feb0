//! The command line: what can be typed, one file per command.
//!
//! Owns the arguments that all commands share and the way from `main` to one of them. Starts no
//! runtime before a command needs one.

mod asking;
mod broker;
mod capabilities;
mod drive;
mod exec;
mod executions;
mod init;
mod input;
mod open;
mod orphans;
mod plan;
mod reference;
mod registry;
mod run;
mod serve;
mod status;
mod stop;
mod token;
mod trust;
mod worker;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use reeve_protocol::place::{Identity, Place};
use reeve_worker::handler::{BadHandler, Handlers};
use reeve_worker::process::launcher_main;
use reeve_worker::process::pty::LAUNCH;

use crate::checkout;
use crate::failure::{Exit, Failure};
use crate::ui::{Format, Ui};

/// Run the declared capabilities of a checkout, and see what runs
#[derive(Debug, Parser)]
#[command(name = "reeve", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    /// Act as if started in this directory
    #[arg(short = 'C', long, global = true, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// How data is written to standard output
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    format: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve this checkout until told to stop
    Serve(serve::ServeArgs),
    /// Run a declared capability
    Run(run::RunArgs),
    /// Run a command of your own, visible as an execution
    Exec(exec::ExecArgs),
    /// See and stop executions
    #[command(subcommand)]
    Executions(executions::ExecutionsCommand),
    /// See what is declared
    #[command(subcommand)]
    Capabilities(capabilities::CapabilitiesCommand),
    /// Say whether and how this checkout is served
    Status(status::StatusArgs),
    /// End this checkout's broker
    Stop(stop::StopArgs),
    /// Write a manifest for this checkout
    Init(init::InitArgs),
    /// Print the token that HTTP asks for
    Token(token::TokenArgs),
    /// Open this checkout's pages in a browser
    Open(open::OpenArgs),
    /// Trust what the manifest declares now
    Trust(trust::TrustArgs),
    /// Print completions for a shell
    Completions(reference::CompletionsArgs),
    /// Print the manual page, or write all of them
    Man(reference::ManArgs),
    /// Print the JSON Schema of reeve.toml
    Schema(reference::SchemaArgs),
    /// Carry out what this checkout's broker hands over
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
}

/// The checkout that a command acts on.
pub(crate) struct Here {
    /// The directory that the command was started in, or told.
    pub dir: PathBuf,
    /// Its checkout.
    pub place: Place,
    /// The handlers that this program has.
    pub handlers: Arc<Handlers>,
}

impl Here {
    fn find(directory: Option<PathBuf>, handlers: Handlers) -> Result<Self, Failure> {
        let dir = directory.unwrap_or_else(|| PathBuf::from("."));
        let place = checkout::find(Some(&dir))?;
        let dir = std::fs::canonicalize(&dir).unwrap_or_else(|_| place.root.clone());
        Ok(Self { dir, place, handlers: Arc::new(handlers) })
    }

    /// Returns this process's identity.
    pub fn identity(&self) -> Result<Identity, Failure> {
        Ok(checkout::identity()?)
    }
}

/// Runs the command line of this process, with these handlers.
pub(crate) fn main(handlers: Handlers) -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    if args.get(1).is_some_and(|first| first == LAUNCH) {
        launcher_main(args.drain(2..));
    }
    main_of(args, handlers).into()
}

/// Says that a handler of this program cannot be registered.
pub(crate) fn refuse(bad: &BadHandler) -> ExitCode {
    let mut ui = Ui::new(Format::Text);
    ui.fail(&plan::broken(bad));
    ui.finish(Exit::Failed).into()
}

fn main_of(args: Vec<OsString>, handlers: Handlers) -> Exit {
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err((said, Exit::Ok)) => {
            let mut ui = Ui::new(Format::Text);
            ui.line(said.trim_end());
            return ui.finish(Exit::Ok);
        }
        Err((said, exit)) => {
            let mut ui = Ui::new(Format::Text);
            ui.pass(said.trim_end());
            return ui.finish(exit);
        }
    };
    let mut ui = Ui::new(cli.format);
    let here = || Here::find(cli.directory, handlers);
    let done = dispatch(&mut ui, here, cli.command);
    let exit = done.unwrap_or_else(|failure| {
        ui.fail(&failure);
        failure.kind
    });
    ui.finish(exit)
}

/// Parses, or returns what to say and how to exit.
fn parse(args: Vec<OsString>) -> Result<Cli, (String, Exit)> {
    if let Some(bad) = args.iter().find(|arg| arg.to_str().is_none()) {
        let shown: String =
            bad.as_encoded_bytes().escape_ascii().take(200).map(char::from).collect();
        return Err((format!("error: an argument is no UTF-8: \"{shown}\""), Exit::Usage));
    }
    Cli::try_parse_from(args).map_err(|error| {
        let said = harmless(&error.render().to_string());
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => (said, Exit::Ok),
            _ => (said, Exit::Usage),
        }
    })
}

/// Escapes what a terminal would act on; an error repeats what was typed.
fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() && character != '\n' {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    out
}

/// Runs a command; looks for a checkout where it needs one.
fn dispatch(
    ui: &mut Ui,
    here: impl FnOnce() -> Result<Here, Failure>,
    command: Command,
) -> Result<Exit, Failure> {
    match command {
        Command::Serve(args) => serve::run(ui, &here()?, args),
        Command::Run(args) => run::run(ui, &here()?, args),
        Command::Exec(args) => exec::run(ui, &here()?, args),
        Command::Executions(command) => executions::run(ui, &here()?, command),
        Command::Capabilities(command) => capabilities::run(ui, &here()?, command),
        Command::Status(args) => status::run(ui, &here()?, args),
        Command::Stop(args) => stop::run(ui, &here()?, args),
        Command::Init(args) => init::run(ui, &here()?, args),
        Command::Token(args) => token::run(ui, &here()?, args),
        Command::Open(args) => open::run(ui, &here()?, args),
        Command::Trust(args) => trust::run(ui, &here()?, args),
        Command::Completions(args) => reference::completions(ui, &args),
        Command::Man(args) => reference::man(ui, &args),
        Command::Schema(_) => reference::schema(ui),
        Command::Worker(args) => worker::run(&here()?, args),
    }
}

/// Runs a future to its end on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot start a runtime: {error}")))?
        .block_on(future)
}

#[cfg(test)]
mod tests;
