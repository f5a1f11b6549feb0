//! What the end of the work means for its execution.
//!
//! Pure: from how the process or the handler ended, whether it was asked to stop, and what it
//! said, to the final event. Code 0 or a value is a success, whenever it comes, but for a deadline
//! that has passed; a handler that broke is never anything else.

use std::ffi::OsStr;
use std::time::Duration;

use reeve_protocol::fault::Stage;
use reeve_protocol::{Code, ExecutionId, Fault, Kind, SideEffect};
use serde_json::{Value, json};

use crate::handler::{Returned, broke};
use crate::process::{Exit, ProgramError, SpawnError};

/// What is said of a handler that is waited for no longer.
pub(super) const ABANDONED: &str =
    "the handler ignored its flag to stop; the process that runs it is being ended";

/// Why a process was asked to stop, if it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It was not.
    No,
    /// Somebody asked for it.
    Cancelled,
    /// Its time was over.
    TimedOut,
}

impl Stop {
    /// Returns the first reason of the two.
    pub(super) fn or(self, later: Self) -> Self {
        if self == Self::No { later } else { self }
    }
}

/// Returns the final event of an execution whose process ended, or could not be ended.
pub fn of(
    exit: Option<Exit>,
    stop: Stop,
    timeout: Option<Duration>,
    output: Option<Value>,
) -> Kind {
    let succeeded = exit.is_some_and(|exit| exit.is_success());
    match stop {
        Stop::TimedOut => late(timeout, ""),
        Stop::No | Stop::Cancelled if succeeded => {
            let output = output.unwrap_or_else(|| json!({ "exit": { "code": 0 } }));
            Kind::Completed { output, receipt: None }
        }
        Stop::Cancelled => Kind::Cancelled { receipt: None },
        Stop::No => {
            let exit = exit.unwrap_or_default();
            let reason = match exit {
                Exit { oom: Some(true), signal: Some(_), ours: false, .. } => "oom",
                Exit { signal: Some(_), .. } => "signal",
                Exit { .. } => "exit_code",
            };
            failed(reason, ending(exit))
        }
    }
}

/// Returns the final event of an execution whose handler ended.
pub(crate) fn of_handler(returned: Returned, stop: Stop, timeout: Option<Duration>) -> Kind {
    match (returned, stop) {
        (Returned::Panicked, _) => Kind::Failed { error: broke(), receipt: None },
        (Returned::Value(_) | Returned::Fault(_), Stop::TimedOut) => late(timeout, ""),
        (Returned::Value(output), Stop::No | Stop::Cancelled) => {
            Kind::Completed { output, receipt: None }
        }
        (Returned::Fault(_), Stop::Cancelled) => Kind::Cancelled { receipt: None },
        (Returned::Fault(error), Stop::No) => Kind::Failed { error: *error, receipt: None },
    }
}

/// Returns the final event of an execution whose handler is waited for no longer.
pub(super) fn of_abandoned(stop: Stop, timeout: Option<Duration>) -> Kind {
    match stop {
        Stop::TimedOut => late(timeout, &format!("; {ABANDONED}")),
        Stop::No | Stop::Cancelled => Kind::Cancelled { receipt: None },
    }
}

/// Ties the fault of a final event to its execution.
pub(super) fn about(mut kind: Kind, id: ExecutionId) -> Kind {
    if let Kind::Failed { error, .. } = &mut kind {
        error.correlation_id = id.to_string();
    }
    kind
}

/// Returns the fault of a call that cannot run: nothing has happened.
pub(super) fn unusable(message: String) -> Fault {
    Fault::new(Code::ActionUnavailable, message).at(Stage::Usable)
}

/// Says why a program cannot be run, by the name that its capability gives it: where this machine
/// has it is nobody's business.
pub(super) fn no_program(declared: &OsStr, error: &ProgramError) -> String {
    let name = declared.display();
    match error {
        ProgramError::NotInPath(_) => format!("{name} was not found in PATH"),
        ProgramError::Missing(_) => format!("{name} does not exist"),
        ProgramError::NotExecutable(_) => format!("{name} is not executable"),
        ProgramError::Directory(_) => format!("{name} is a directory"),
    }
}

/// Returns the fault of a process that the system would not start; without an absolute path.
pub(super) fn not_started(declared: &OsStr, error: &SpawnError) -> Fault {
    let mut message = match error {
        SpawnError::Program { .. } => format!("cannot start {}", declared.display()),
        SpawnError::NoDirectory(_) => "the directory it starts in is none".to_owned(),
        SpawnError::TooBig { .. } | SpawnError::NoLauncher | SpawnError::Setup { .. } => {
            error.to_string()
        }
    };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    Fault::new(Code::Internal, message).at(Stage::Execute).because("not_started")
}

fn late(timeout: Option<Duration>, more: &str) -> Kind {
    let after = timeout.unwrap_or_default();
    failed("timeout", format!("its time of {after:?} was over{more}"))
}

fn failed(reason: &str, message: String) -> Kind {
    let error = Fault::new(Code::ExecutionFailed, message)
        .at(Stage::Execute)
        .because(reason)
        .with_effect(SideEffect::Unknown);
    Kind::Failed { error, receipt: None }
}

fn ending(exit: Exit) -> String {
    match exit.signal {
        Some(_) => format!("ended by {}", exit.describe()),
        None => match exit.code {
            Some(code) => format!("exited with code {code}"),
            None => "ended, and nobody saw how".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use super::*;

    fn fault(kind: Kind) -> Fault {
        match kind {
            Kind::Failed { error, .. } => error,
            other => panic!("{other:?} is no failure"),
        }
    }

    fn code(code: i32) -> Option<Exit> {
        Some(Exit { code: Some(code), ..Exit::default() })
    }

    fn signal(signal: i32) -> Option<Exit> {
        Some(Exit { signal: Some(signal), ..Exit::default() })
    }

    #[test]
    fn a_code_of_0_completes_with_what_was_said() {
        let said = of(code(0), Stop::No, None, Some(json!(7)));
        assert_eq!(said, Kind::Completed { output: json!(7), receipt: None });
        let silent = of(code(0), Stop::Cancelled, None, None);
        let output = json!({ "exit": { "code": 0 } });
        assert_eq!(silent, Kind::Completed { output, receipt: None });
    }

    #[test]
    fn another_end_fails_with_its_reason() {
        let error = fault(of(code(3), Stop::No, None, None));
        assert_eq!(
            (error.code, error.reason.as_deref()),
            (Code::ExecutionFailed, Some("exit_code"))
        );
        assert_eq!(error.message, "exited with code 3");
        let crashed = signal(11).map(|exit| Exit { core: true, ..exit });
        let error = fault(of(crashed, Stop::No, None, None));
        assert_eq!(error.reason.as_deref(), Some("signal"));
        assert_eq!(error.message, "ended by signal 11 (SIGSEGV), core dumped");
        let oom = signal(9).map(|exit| Exit { oom: Some(true), ..exit });
        assert_eq!(fault(of(oom, Stop::No, None, None)).reason.as_deref(), Some("oom"));
    }

    #[test]
    fn a_fault_names_a_program_as_it_was_declared() {
        let at = || PathBuf::from("/secret/home/bin/tool");
        let name = OsStr::new("tool");
        let errors = [
            ProgramError::NotInPath(name.to_owned()),
            ProgramError::Missing(at()),
            ProgramError::NotExecutable(at()),
            ProgramError::Directory(at()),
        ];
        for error in errors {
            let said = no_program(name, &error);
            assert!(said.starts_with("tool ") && !said.contains('/'), "{said}");
        }
        let source = io::Error::from_raw_os_error(8);
        let fault = not_started(name, &SpawnError::Program { program: at(), source });
        assert!(fault.message.starts_with("cannot start tool: "), "{}", fault.message);
        let fault = not_started(name, &SpawnError::NoDirectory(at()));
        assert!(!fault.message.contains('/'), "{}", fault.message);
    }

    #[test]
    fn who_was_asked_to_stop_was_cancelled_or_late() {
        for exit in [code(1), signal(15), signal(9), None] {
            let end = of(exit, Stop::Cancelled, None, None);
            assert_eq!(end, Kind::Cancelled { receipt: None });
            let late = of(exit, Stop::TimedOut, Some(Duration::from_secs(3)), None);
            assert_eq!(fault(late).reason.as_deref(), Some("timeout"));
        }
    }
}
