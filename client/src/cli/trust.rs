//! `reeve trust`: agrees to what the manifest declares, for everybody who asks the broker.

use std::io::{self, IsTerminal, Write};

use reeve_broker::trust;
use reeve_protocol::manifest::Manifest;
use reeve_protocol::place::Place;
use reeve_protocol::sanitise;
use reeve_protocol::trust::{Standing, diff};
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use serde_json::json;

use super::Here;
use crate::clock;
use crate::failure::{Exit, Failure, chain};
use crate::manifest_file::{self, Loaded};
use crate::ui::{Format, Ui};

/// Characters of a command that is shown.
const COMMAND_CHARS: usize = 300;
/// Changed lines that are shown.
const DIFF_MAX: usize = 200;

/// Trust what the manifest declares now
///
/// What the broker starts for others (over HTTP, from a page, for an agent) must be of a manifest
/// that a person trusted. Shows what that is, or what has changed, and asks.
#[derive(Debug, clap::Args)]
pub(super) struct TrustArgs {
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Trust a manifest, too, that other users may write
    #[arg(long)]
    trust_writable: bool,
}

pub(super) fn run(ui: &mut Ui, here: &Here, args: TrustArgs) -> Result<Exit, Failure> {
    let loaded = manifest_file::load(&here.place, &here.handlers, args.trust_writable)?;
    if let Some(warning) = &loaded.others_may_write {
        return Err(Failure::new(Exit::Refused, warning.clone())
            .hint("or say that it is meant: `reeve trust --trust-writable`"));
    }
    let standing = trust::standing(&here.place, &loaded.manifest.digest);
    if standing != Standing::Trusted {
        show(ui, &standing, &loaded);
        if !args.yes && !ask(ui)? {
            return Err(Failure::new(Exit::Refused, "nothing was trusted"));
        }
        record(&here.place, &loaded.text)?;
    }
    let Manifest { digest, capabilities, .. } = &loaded.manifest;
    if ui.format == Format::Text {
        ui.line(format_args!("trusted {digest}"));
    } else {
        let (before, count) = (standing.as_str(), capabilities.len());
        ui.json(&json!({
            "trust": "trusted", "before": before, "digest": digest, "capabilities": count,
        }));
    }
    Ok(Exit::Ok)
}

/// Asks once, where a person can answer, before a manifest is served that is not trusted; says how
/// to trust it where nobody can, or the answer is no.
pub(super) fn offer(ui: &mut Ui, here: &Here) -> Result<(), Failure> {
    let place = &here.place;
    // What is wrong with a manifest is told by whoever serves it.
    let Ok(loaded) = manifest_file::load(place, &here.handlers, false) else { return Ok(()) };
    let standing = trust::standing(place, &loaded.manifest.digest);
    if standing == Standing::Trusted || loaded.manifest.capabilities.is_empty() {
        return Ok(());
    }
    if somebody_is_here() && loaded.others_may_write.is_none() {
        show(ui, &standing, &loaded);
        if ask(ui)? {
            return record(place, &loaded.text);
        }
    }
    let word = standing.as_str();
    ui.warn(format_args!(
        "the manifest is {word}: what it declares runs for nobody but `reeve run` until `reeve trust`"
    ));
    Ok(())
}

/// Returns the word for how the manifest of a checkout stands: `none` where none can be read.
pub(super) fn word(here: &Here) -> &'static str {
    match manifest_file::load(&here.place, &here.handlers, true) {
        Ok(loaded) => trust::standing(&here.place, &loaded.manifest.digest).as_str(),
        Err(_) => "none",
    }
}

/// Trusts a text.
pub(super) fn record(place: &Place, text: &str) -> Result<(), Failure> {
    trust::record(place, text, clock::now())
        .map_err(|error| Failure::new(Exit::Failed, chain(&error)))
}

/// Shows what is to be trusted: all of it the first time, later what has changed.
fn show(ui: &mut Ui, standing: &Standing, loaded: &Loaded) {
    if let Standing::Changed(record) = standing {
        ui.note("since it was trusted, the manifest has changed:");
        diff(&record.text, &loaded.text, DIFF_MAX).iter().for_each(|line| ui.note(line));
        return;
    }
    ui.note("the manifest declares:");
    for (id, descriptor) in &loaded.manifest.capabilities {
        let command = descriptor.process.as_ref().map(|process| process.command.as_slice());
        let command = format!("{:?}", command.unwrap_or_default());
        let command = sanitise::text(&command, COMMAND_CHARS);
        ui.note(format_args!("  {id} ({}): {command}", descriptor.effect));
    }
}

/// Returns whether there is a person at a terminal who can be asked.
fn somebody_is_here() -> bool {
    let stdin = io::stdin();
    // Who reads from its terminal in the background is stopped.
    let behind = tcgetpgrp(&stdin).is_ok_and(|in_front| in_front != getpgrp());
    stdin.is_terminal() && io::stderr().is_terminal() && !behind
}

/// Asks a person at the terminal.
fn ask(ui: &mut Ui) -> Result<bool, Failure> {
    if !somebody_is_here() {
        let message = "nobody is here to be asked";
        let hint = "`reeve trust --yes` trusts what stands there now";
        return Err(Failure::new(Exit::Refused, message).hint(hint));
    }
    ui.flush();
    let mut answer = String::new();
    let asked = io::stderr()
        .write_all(b"trust it? [y/N] ")
        .and_then(|()| io::stdin().read_line(&mut answer));
    asked.map_err(|error| Failure::new(Exit::Failed, format!("cannot ask: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
