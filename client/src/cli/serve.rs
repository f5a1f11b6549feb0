//! `reeve serve`: becomes the broker of the checkout.

use std::sync::Arc;
use std::time::Duration;

use reeve_broker::seat::SeatError;
use reeve_broker::{Options, ServeError, WorkerCommand, serve};
use reeve_protocol::Limits;
use reeve_protocol::capability::Loaded;
use reeve_protocol::lease::Lease;
use reeve_protocol::manifest;
use reeve_protocol::place::Place;
use reeve_worker::handler::Handlers;
use serde_json::{Value, json};

use super::Here;
use super::orphans::Marked;
use super::registry::{self, Declared};
use super::trust;
use crate::checkout;
use crate::failure::{Exit, Failure, chain};
use crate::manifest_file::ManifestFileError;
use crate::ui::{Format, Ui};

/// Serve this checkout until told to stop
///
/// Runs in the foreground. Where another broker serves this checkout already, says so and ends.
#[derive(Debug, clap::Args)]
pub(super) struct ServeArgs {
    /// Leave when nothing has run, waited or watched for so long, such as "30m"
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    idle: Option<Duration>,
    /// The port of HTTP on 127.0.0.1; 0 for any [default: the last one of this checkout]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Where events are kept
    #[arg(long, value_enum, default_value_t, value_name = "STORE")]
    store: Store,
    /// Set a bound by its name
    #[arg(long = "limit", value_name = "NAME=VALUE", hide = true)]
    limits: Vec<String>,
}

/// Where events are kept.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Store {
    /// In memory: gone with the broker
    #[default]
    Memory,
}

/// Reads a duration as a manifest writes it.
pub(in crate::cli) fn duration(text: &str) -> Result<Duration, String> {
    manifest::duration(text)
        .ok_or_else(|| "a duration is written like 90s, 20m or 1h30m".to_owned())
}

pub(super) fn run(ui: &mut Ui, here: &Here, args: ServeArgs) -> Result<Exit, Failure> {
    let Store::Memory = args.store;
    let place = here.place.clone();
    let bare = limited(Limits::default(), &args.limits)?;
    let handlers = Arc::clone(&here.handlers);
    let declared = load(&place, &handlers, &args.limits);
    let limits = declared.limits.unwrap_or(bare);
    for problem in &declared.problems {
        ui.warn(problem);
    }
    if checkout::discover(&place)?.serving().is_none() {
        trust::offer(ui, here)?;
    }
    let options = Options {
        place: place.clone(),
        identity: here.identity()?,
        limits,
        orphans: Arc::new(Marked),
        worker: Some(worker_command(&here.place)?),
        load: Arc::new(move || load(&place, &handlers, &args.limits)),
        idle: args.idle,
        port: args.port,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let format = ui.format;
    let served = serve(options, move |lease| {
        let mut ui = Ui::new(format);
        tell(&mut ui, lease, "serving");
        let _ = ui.finish(Exit::Ok);
    });
    match served {
        Ok(()) => Ok(Exit::Ok),
        Err(ServeError::Seat(SeatError::AlreadyServed(lease))) => {
            let error = SeatError::AlreadyServed(lease.clone());
            ui.note(chain(&error));
            if let Some(lease) = &lease {
                tell(ui, lease, "already_serving");
            }
            Ok(Exit::Ok)
        }
        Err(error) => Err(Failure::new(Exit::Failed, chain(&error))),
    }
}

/// Returns how this program is started as a worker of its own broker.
fn worker_command(place: &Place) -> Result<WorkerCommand, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot find itself: {error}")))?;
    let args = ["-C".into(), place.root.clone().into_os_string(), "worker".into()];
    Ok(WorkerCommand { program, args: args.into(), dir: place.root.clone() })
}

/// Says where the broker is found.
fn tell(ui: &mut Ui, lease: &Lease, word: &str) {
    if ui.format == Format::Text {
        let (root, pid) = (lease.root.display(), lease.pid);
        ui.note(format_args!("{} {root} (pid {pid})", word.replace('_', " ")));
        if let Some(url) = &lease.url {
            ui.note(format_args!("HTTP at {url}; `reeve token` prints the token"));
        }
        ui.line(lease.socket.display());
    } else {
        ui.json(&json!({
            "state": word,
            "pid": lease.pid,
            "root": lease.root,
            "socket": lease.socket,
            "url": lease.url,
            "instance": lease.instance,
            "version": lease.version,
            "started_at": lease.started_at,
        }));
    }
    ui.flush();
}

/// Reads what the checkout declares, again whenever the broker asks.
fn load(place: &Place, handlers: &Handlers, overrides: &[String]) -> Loaded {
    let Declared { mut loaded, warnings, error } = registry::read(place, handlers);
    // Warnings are no problems: a manifest with a problem is not taken at all.
    for warning in &warnings {
        tracing::warn!(warning, "the manifest");
    }
    loaded.problems = match error {
        None | Some(ManifestFileError::Missing(_)) => Vec::new(),
        Some(ManifestFileError::Invalid(problems)) => problems,
        Some(other) => vec![Failure::from(other).message],
    };
    loaded.limits = loaded.limits.and_then(|limits| limited(limits, overrides).ok());
    loaded
}

/// Sets bounds by the names that they have in a manifest.
fn limited(limits: Limits, overrides: &[String]) -> Result<Limits, Failure> {
    let wrong =
        |text: &str, why: String| Failure::new(Exit::Usage, format!("--limit {text:?} {why}"));
    let mut limits = limits;
    for text in overrides {
        let (name, value) =
            text.split_once('=').ok_or_else(|| wrong(text, "is not NAME=VALUE".to_owned()))?;
        let value = match (value.parse::<u64>(), duration(value)) {
            (Ok(number), _) => number,
            (_, Ok(time)) => u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            _ => return Err(wrong(text, "has no number and no duration".to_owned())),
        };
        let mut members = serde_json::to_value(&limits).unwrap_or_default();
        members[name] = Value::from(value);
        limits = serde_json::from_value(members)
            .map_err(|error| wrong(text, format!("is none: {error}")))?;
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_set_by_its_name() {
        let overrides = ["max_events=7".to_owned(), "silence=2s".to_owned()];
        let limits = limited(Limits::default(), &overrides).unwrap();
        assert_eq!((limits.max_events, limits.silence), (7, Duration::from_secs(2)));
        for wrong in ["max_events", "max_events=x", "max_evnts=1", "max_events=-1"] {
            let failure = limited(Limits::default(), &[wrong.to_owned()]).unwrap_err();
            assert_eq!(failure.kind, Exit::Usage, "{wrong}");
        }
    }
}
