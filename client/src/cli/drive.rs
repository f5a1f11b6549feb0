//! Carries a call out: the one place where the command line meets the worker.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::Duration;

use reeve_worker::drive::{self, Call, HandlerCall, Hooks, Outcome, ProcessCall, Work};
use reeve_worker::process::{OutputMode, StdinSource};
use reeve_worker::session::Local;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::block_on;
use super::plan::{PlannedCall, PlannedProcess, PlannedWork};
use super::run::{Driven, Shown};
use crate::checkout;
use crate::failure::{Exit, Failure};
use crate::writer::Backlog;

/// Set to 1, it gives every execution a cgroup of its own, where one can be made.
const CGROUP: &str = "REEVE_CGROUP";
/// The size of a terminal that nobody looks at.
const PTY_SIZE: (u16, u16) = (24, 80);
/// How long a reader may take for the last of the output before interrupts are looked for.
const AT_ONCE: Duration = Duration::from_millis(20);

/// The signals that this process was started to ignore.
static INHERITED: OnceLock<u64> = OnceLock::new();

/// Runs a call to its end in this process; everything that happens is shown as it does.
pub(super) fn drive_call(
    call: &PlannedCall,
    show: &mut dyn FnMut(Shown<'_>),
    paused: &dyn Fn() -> bool,
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
            paused: Box::new(paused),
        };
        Ok(drive::run(worker_call, hooks).await)
    })?;
    driven(outcome)
}

/// Makes what the worker carries out of what was planned.
pub(super) fn worker_call(call: &PlannedCall) -> Result<Call, Failure> {
    let work = match &call.work {
        PlannedWork::Process(process) => Work::Process(process_call(call, process)?),
        PlannedWork::Handler(handler) => Work::Handler(HandlerCall::clone(handler)),
    };
    Ok(Call {
        execution: call.id,
        description: call.description.clone(),
        work,
        limits: call.limits.clone(),
        role: call.role.to_owned(),
        build: env!("CARGO_PKG_VERSION").to_owned(),
        seed: u64::from(std::process::id()),
        bound: false,
        secrets: call.secrets.clone(),
    })
}

fn process_call(call: &PlannedCall, planned: &PlannedProcess) -> Result<ProcessCall, Failure> {
    let process = &planned.process;
    let mut argv = planned.argv.iter().map(OsString::from);
    let program = argv.next().ok_or_else(|| Failure::new(Exit::Usage, "no program is named"))?;
    let stdin = match &planned.stdin {
        Some(value) => StdinSource::Bytes(
            serde_json::to_vec(&value.0)
                .map_err(|error| Failure::new(Exit::Failed, error.to_string()))?,
        ),
        // What is typed at a terminal goes to the group in front of it, and the child leads its own.
        None if planned.all_env && !process.pty && !std::io::stdin().is_terminal() => {
            StdinSource::Inherit
        }
        None => StdinSource::Null,
    };
    let (rows, cols) = PTY_SIZE;
    let output = if process.pty { OutputMode::Pty { rows, cols } } else { OutputMode::Capture };
    Ok(ProcessCall {
        program,
        args: argv.collect(),
        cwd: planned.cwd.clone(),
        checkout: call.place.root.clone(),
        env_caller: std::env::vars_os().collect(),
        env_allow: process.env_allow.clone(),
        env_set: process.env_set.clone(),
        stdin,
        output,
        events: true,
        launcher: process.pty.then(std::env::current_exe).and_then(Result::ok),
        cgroup: std::env::var_os(CGROUP).is_some_and(|value| value == "1"),
        grace: Duration::from_millis(process.cancel_grace_ms),
        timeout: planned.timeout,
    })
}

/// Waits until everything that is shown was written; returns whether it was, or an interrupt came
/// first.
pub(super) fn until_written(backlog: &Backlog) -> Result<bool, Failure> {
    if backlog.is_written_within(AT_ONCE) {
        return Ok(true);
    }
    block_on(async {
        let mut interrupts = interrupts()?;
        loop {
            tokio::select! {
                _ = interrupts.recv() => return Ok(false),
                () = tokio::time::sleep(AT_ONCE) => {}
            }
            if backlog.is_written_within(Duration::ZERO) {
                return Ok(true);
            }
        }
    })
}

/// Turns the signals that ask this process to end into interrupts of the work; one that it was
/// started to ignore, as `nohup` does, stays ignored.
fn interrupts() -> Result<mpsc::UnboundedReceiver<()>, Failure> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let open = |kind: SignalKind| {
        // Whoever takes a signal ignores it no longer: its mask is what it was at the start.
        let ignored = *INHERITED.get_or_init(|| ignored_in(&status));
        if is_in(ignored, kind) && kind != SignalKind::terminate() {
            return Ok(None);
        }
        signal(kind)
            .map(Some)
            .map_err(|error| Failure::new(Exit::Failed, format!("cannot take signals: {error}")))
    };
    let mut interrupt = open(SignalKind::interrupt())?;
    let mut terminate = open(SignalKind::terminate())?;
    let mut hangup = open(SignalKind::hangup())?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = next(&mut interrupt) => {}
                () = next(&mut terminate) => {}
                () = next(&mut hangup) => {}
            }
            if sender.send(()).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

async fn next(signals: &mut Option<Signal>) {
    match signals {
        Some(signals) => drop(signals.recv().await),
        None => std::future::pending().await,
    }
}

/// Returns the mask of ignored signals that the system tells of a process.
fn ignored_in(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

fn is_in(mask: u64, kind: SignalKind) -> bool {
    mask >> (kind.as_raw_value() - 1) & 1 == 1
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_ignored_is_found_in_the_mask() {
        let mask = ignored_in("Name:\tx\nSigIgn:\t0000000000000001\nSigCgt:\tffff\n");
        assert!(is_in(mask, SignalKind::hangup()) && !is_in(mask, SignalKind::interrupt()));
        assert!(is_in(ignored_in("SigIgn:\t2"), SignalKind::interrupt()));
        assert_eq!(ignored_in("nothing of the kind"), 0);
    }
}
