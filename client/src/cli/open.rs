//! `reeve open`: a link that opens this checkout's pages in a browser.

use std::process::{Command, Stdio};

use reeve_broker::seat::replace_file;
use reeve_protocol::stream::Op;
use serde_json::json;

use super::{Here, block_on, broker};
use crate::checkout::{self, Found};
use crate::failure::{Exit, Failure};
use crate::link::AskError;
use crate::ui::{Format, Ui};

/// Open this checkout's pages in a browser
///
/// Prints a link that is good once and for a minute, and hands it to the desktop's browser where
/// there is one. Whoever opens it first may do what you can do there.
#[derive(Debug, clap::Args)]
pub(super) struct OpenArgs {
    /// Make a link that works without scripts, and may only read
    #[arg(long)]
    no_script: bool,
    /// Print the link and open nothing
    #[arg(long)]
    print: bool,
}

pub(super) fn run(ui: &mut Ui, here: &Here, args: OpenArgs) -> Result<Exit, Failure> {
    let link = block_on(link(here, args.no_script))?;
    if ui.format == Format::Text {
        ui.line(&link);
    } else {
        ui.json(&json!({ "url": link, "expires_in": 60 }));
    }
    if !args.print && !args.no_script && has_desktop() && show(here, &link).is_none() {
        ui.note("no browser could be started; open the link yourself");
    }
    Ok(Exit::Ok)
}

fn has_desktop() -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some())
}

/// Hands a link to the desktop's browser by way of a file of this user's alone: everybody may read
/// the arguments of a process.
fn show(here: &Here, link: &str) -> Option<()> {
    let file = here.place.state_dir.join("open.html");
    let page = format!("<!doctype html><meta http-equiv=\"refresh\" content=\"0; url={link}\">\n");
    replace_file(&file, page.as_bytes()).ok()?;
    let opener = Command::new("xdg-open")
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    opener.ok().filter(std::process::ExitStatus::success).map(drop)
}

async fn link(here: &Here, no_script: bool) -> Result<String, Failure> {
    let url = match checkout::discover(&here.place)? {
        Found::Serving(lease) => lease.url,
        Found::NoBroker | Found::Stale(_) | Found::Mute => None,
    };
    let (Some(url), Some(mut link)) = (url, broker::connect(here, "open").await?) else {
        return Err(Failure::new(Exit::NoBroker, "no broker serves this checkout")
            .hint("start one with `reeve serve`"));
    };
    let answer = link.ask(Op::Open {}).await.map_err(|error| match error {
        AskError::Fault(fault) => Failure::from(*fault),
        AskError::Link(error) => Failure::new(Exit::NoBroker, error.to_string()),
    })?;
    let code = answer["code"].as_str().unwrap_or_default();
    Ok(format!("{url}/open{}{code}", if no_script { '/' } else { '#' }))
}
