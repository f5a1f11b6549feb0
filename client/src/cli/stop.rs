//! `reeve stop`: ends the broker of this checkout, and what that broker itself has started.

use std::time::Duration;

use reeve_broker::seat::process;
use reeve_protocol::lease::Lease;
use reeve_protocol::stream::Op;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{Here, block_on, broker};
use crate::checkout::{self, Found};
use crate::failure::{Exit, Failure};
use crate::link::AskError;
use crate::ui::{Format, Ui};

/// How long an ordered stop may take.
const MARGIN: Duration = Duration::from_secs(10);
/// How long a broker that is told to end by a signal has before it is killed.
const GRACE: Duration = Duration::from_secs(2);
/// The pause between two looks at the lock.
const PAUSE: Duration = Duration::from_millis(10);

/// End this checkout's broker
///
/// What the broker has started is asked to stop and waited for; what `reeve run` and others run goes
/// on and is taken up by the next broker.
#[derive(Debug, clap::Args)]
pub(super) struct StopArgs {
    /// Wait for nothing, and kill a broker that does not answer or does not end
    #[arg(long)]
    force: bool,
}

pub(super) fn run(ui: &mut Ui, here: &Here, args: StopArgs) -> Result<Exit, Failure> {
    let stopped = block_on(stop(ui, here, args.force))?;
    match (ui.format, stopped) {
        (Format::Text, Some(pid)) => ui.note(format_args!("the broker (pid {pid}) has ended")),
        (Format::Text, None) => ui.note("no broker serves this checkout"),
        (Format::Json | Format::Ndjson, pid) => {
            ui.json(&json!({ "stopped": pid.is_some(), "pid": pid }));
        }
    }
    Ok(Exit::Ok)
}

async fn stop(ui: &mut Ui, here: &Here, force: bool) -> Result<Option<u32>, Failure> {
    match ask(here, force).await {
        Ok(None) => return Ok(None),
        Ok(Some((pid, patience))) => {
            if is_free_within(here, patience).await? {
                return Ok(Some(pid));
            }
            if !force {
                let message = format!("the broker (pid {pid}) is still there");
                return Err(
                    Failure::new(Exit::Failed, message).hint("`reeve stop --force` kills it")
                );
            }
        }
        Err(failure) if !force => return Err(failure),
        Err(failure) => ui.warn(failure.message),
    }
    let Found::Serving(lease) = checkout::discover(&here.place)? else {
        let message =
            "the broker says nothing of itself, so it cannot be told from other processes";
        return match checkout::discover(&here.place)? {
            Found::NoBroker | Found::Stale(_) => Ok(None),
            Found::Serving(_) | Found::Mute => Err(Failure::new(Exit::Failed, message)),
        };
    };
    kill(here, &lease).await.map(Some)
}

/// Asks the broker to end; returns its process and how long that may take.
async fn ask(here: &Here, force: bool) -> Result<Option<(u32, Duration)>, Failure> {
    let Some(mut link) = broker::connect(here, "stop").await? else { return Ok(None) };
    let pid = link.welcome().pid;
    let asked = tokio::time::timeout(MARGIN, link.ask(Op::Stop { force })).await;
    match asked {
        // A broker that ends may do so before its answer is out.
        Ok(Ok(answer)) => {
            let within = Duration::from_millis(answer["within_ms"].as_u64().unwrap_or_default());
            Ok(Some((pid, MARGIN + within)))
        }
        Ok(Err(AskError::Link(_))) => Ok(Some((pid, MARGIN))),
        Ok(Err(AskError::Fault(fault))) => Err((*fault).into()),
        Err(_) => {
            let message = format!("the broker (pid {pid}) does not answer");
            Err(Failure::new(Exit::NoBroker, message).hint("`reeve stop --force` kills it"))
        }
    }
}

/// Ends the broker by signals, having made sure that its pid is still its own.
async fn kill(here: &Here, lease: &Lease) -> Result<u32, Failure> {
    let pid = lease.pid;
    let failed = |why: String| Failure::new(Exit::Failed, format!("cannot end pid {pid}: {why}"));
    let me = here.identity()?;
    if lease.host_id != me.host_id || lease.boot_id != me.boot_id {
        return Err(failed("it is a process of another machine or boot".to_owned()));
    }
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let raw = raw.ok_or_else(|| failed("that is no process id".to_owned()))?;
    let descriptor =
        pidfd_open(raw, PidfdFlags::empty()).map_err(|error| failed(error.to_string()))?;
    // Looked at after the descriptor is there: from here on it cannot become another process.
    if process::look(pid).is_none_or(|stat| stat.start_ticks != lease.start_ticks) {
        return Err(failed("that number belongs to another process now".to_owned()));
    }
    for (signal, patience) in [(Signal::TERM, GRACE), (Signal::KILL, MARGIN)] {
        // A process that is gone already cannot be signalled, and its lock is free.
        let _ = pidfd_send_signal(&descriptor, signal);
        if is_free_within(here, patience).await? {
            return Ok(pid);
        }
    }
    Err(failed("it is still there".to_owned()))
}

/// Waits until no broker holds the checkout.
async fn is_free_within(here: &Here, patience: Duration) -> Result<bool, Failure> {
    let give_up = Instant::now() + patience;
    loop {
        match checkout::discover(&here.place)? {
            Found::NoBroker | Found::Stale(_) => return Ok(true),
            Found::Serving(_) | Found::Mute if Instant::now() >= give_up => return Ok(false),
            Found::Serving(_) | Found::Mute => sleep(PAUSE).await,
        }
    }
}
