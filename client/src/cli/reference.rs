//! What other programs read of this one: shell completions, manual pages, the manifest's schema.
//!
//! All of it is derived from what this program takes, and needs no checkout.

use std::path::PathBuf;

use clap::CommandFactory;
use reeve_protocol::manifest;

use super::Cli;
use crate::failure::{Exit, Failure};
use crate::ui::Ui;

/// The name of this program, whatever its file is called.
const NAME: &str = "reeve";

/// Print completions for a shell
///
/// For bash: `reeve completions bash > ~/.local/share/bash-completion/completions/reeve`.
#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

/// Print the manual page, or write all of them
#[derive(Debug, clap::Args)]
pub(super) struct ManArgs {
    /// Write the page of every command into this directory, such as ~/.local/share/man/man1
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Print the JSON Schema of reeve.toml
///
/// Editors that check TOML against a schema take it as it is.
#[derive(Debug, clap::Args)]
pub(super) struct SchemaArgs {}

pub(super) fn completions(ui: &mut Ui, args: &CompletionsArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), NAME, &mut script);
    ui.line(String::from_utf8_lossy(&script).trim_end());
    Ok(Exit::Ok)
}

pub(super) fn schema(ui: &mut Ui) -> Result<Exit, Failure> {
    let schema = serde_json::to_string_pretty(&manifest::schema());
    ui.line(schema.expect("a schema is JSON"));
    Ok(Exit::Ok)
}

pub(super) fn man(ui: &mut Ui, args: &ManArgs) -> Result<Exit, Failure> {
    let command = Cli::command().name(NAME);
    match &args.dir {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command)
                .render(&mut page)
                .map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
            ui.line(String::from_utf8_lossy(&page).trim_end());
        }
        Some(dir) => {
            let failed = |error: std::io::Error| {
                let dir = dir.display();
                Failure::new(Exit::Failed, format!("cannot write pages into {dir}: {error}"))
            };
            std::fs::create_dir_all(dir).map_err(failed)?;
            clap_mangen::generate_to(command, dir).map_err(failed)?;
            ui.note(format_args!("wrote the pages into {}", dir.display()));
        }
    }
    Ok(Exit::Ok)
}
