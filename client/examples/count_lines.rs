//! A `reeve` of one's own with one capability more: it counts the lines of files.

use std::fs;
use std::process::ExitCode;

use reeve_client::Reeve;
use reeve_client::handler::{Code, Ctx, Effect, Fault, Handler};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is counted.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Input {
    /// The ending of the files' names, such as `md`.
    ending: String,
}

/// What was counted.
#[derive(Default, Serialize, JsonSchema)]
struct Output {
    /// How many files at the top of the checkout have this ending.
    files: u64,
    /// How many lines they have together.
    lines: u64,
}

fn count(ctx: &Ctx, input: Input) -> Result<Output, Fault> {
    let unreadable =
        |error| Fault::new(Code::ExecutionFailed, format!("the checkout cannot be read: {error}"));
    ctx.progress.step("count", "Count lines");
    let entries = fs::read_dir(ctx.root()).map_err(unreadable)?;
    let paths: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| *ending == *input.ending))
        .collect();
    let mut output = Output::default();
    for path in &paths {
        ctx.checkpoint()?; // Ends here if it was asked to stop.
        let text = fs::read_to_string(path).map_err(unreadable)?;
        output.files += 1;
        output.lines += text.lines().count() as u64;
        ctx.progress.progress(output.files, Some(paths.len() as u64), "");
    }
    ctx.progress.step_done("count", true, None);
    Ok(output)
}

/// Declares the capability.
pub fn handler() -> Handler {
    Handler::new("lines.count", "Count lines", count)
        .description("Counts the lines of the files at the top of the checkout.")
        .effect(Effect::Read)
        .cancellable()
        .idempotent()
}

/// Runs the command line.
pub fn main() -> ExitCode {
    Reeve::new().handler(handler()).main()
}
