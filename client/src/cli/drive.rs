//! Carries a call out: the one place where the command line meets the worker.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::IsTerminal;

use reeve_worker::drive::{self, Call, Hooks, Outcome, ProcessCall};
use reeve_worker::process::{OutputMode, StdinSource};
use reeve_worker::session::Local;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::block_on;
use super::run::{Driven, PlannedCall, Shown};
use crate::checkout;
use crate::failure::{Exit, Failure};

/// The size of a terminal that nobody looks at.
const PTY_SIZE: (u16, u16) = (24, 80);

/// Runs a call to its end in this process; everything that happens is shown as it does.
pub(super) fn drive_call(
    call: &PlannedCall,
    show: &mut dyn FnMut(Shown<'_>),
) -> Result<Driven, Failure> {
    let worker_call = worker_call(call)?;
    let show = RefCell::new(show);
    let outcome = block_on(async {
        let place = call.place.clone();
        let hooks = Hooks {
            discover: Box::new(move || checkout::discover(&place).ok()?.serving()),
            interrupts: interrupts()?,
            on_local: Box::new(|Local { seq, entry }: Local| {
                show.borrow_mut()(Shown::Entry(seq, &entry));
            }),
            on_notice: Box::new(|notice| show.borrow_mut()(Shown::Notice(&notice.text()))),
        };
        Ok(drive::run(worker_call, hooks).await)
    })?;
    driven(outcome)
}

fn worker_call(call: &PlannedCall) -> Result<Call, Failure> {
    let mut argv = call.argv.iter().map(OsString::from);
    let program = argv.next().ok_or_else(|| Failure::new(Exit::Usage, "no program is named"))?;
    let stdin = match &call.stdin {
        Some(value) => StdinSource::Bytes(
            serde_json::to_vec(value)
                .map_err(|error| Failure::new(Exit::Failed, error.to_string()))?,
        ),
        // What is typed at a terminal goes to the group in front of it, and the child leads its own.
        None if call.all_env && !call.process.pty && !std::io::stdin().is_terminal() => {
            StdinSource::Inherit
        }
        None => StdinSource::Null,
    };
    let (rows, cols) = PTY_SIZE;
    let output =
        if call.process.pty { OutputMode::Pty { rows, cols } } else { OutputMode::Capture };
    let process = ProcessCall {
        program,
        args: argv.collect(),
        cwd: call.cwd.clone(),
        checkout: call.checkout.clone(),
        env_caller: std::env::vars_os().collect(),
        env_allow: call.process.env_allow.clone(),
        env_set: call.process.env_set.clone(),
        stdin,
        output,
        events: true,
        launcher: call.process.pty.then(std::env::current_exe).and_then(Result::ok),
        cgroup: false,
        grace: std::time::Duration::from_millis(call.process.cancel_grace_ms),
        timeout: call.timeout,
    };
    Ok(Call {
        execution: call.id,
        description: call.description.clone(),
        process,
        limits: call.limits.clone(),
        role: call.role.to_owned(),
        build: env!("CARGO_PKG_VERSION").to_owned(),
        seed: u64::from(std::process::id()),
    })
}

/// Turns the signals that ask this process to end into interrupts of the work.
fn interrupts() -> Result<mpsc::UnboundedReceiver<()>, Failure> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let open = |kind| {
        signal(kind)
            .map_err(|error| Failure::new(Exit::Failed, format!("cannot take signals: {error}")))
    };
    let mut interrupt = open(SignalKind::interrupt())?;
    let mut terminate = open(SignalKind::terminate())?;
    let mut hangup = open(SignalKind::hangup())?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            if sender.send(()).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

fn driven(outcome: Outcome) -> Result<Driven, Failure> {
    let child = outcome.exit.as_ref().and_then(|exit| match (exit.code, exit.signal) {
        (Some(code), _) => u8::try_from(code).ok(),
        (None, Some(signal)) => u8::try_from(128 + signal).ok(),
        (None, None) => None,
    });
    let snapshot = serde_json::to_value(&outcome.snapshot)
        .map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    Ok(Driven { state: outcome.state, child, error: outcome.error, snapshot: Some(snapshot) })
}
