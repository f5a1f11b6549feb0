//! How a command ends: its exit status, and what is said when it could not do its work.
//!
//! Owns the one list of exit statuses. Never prints.

use std::process::ExitCode;

use reeve_broker::seat::SeatError;
use reeve_protocol::fault::{Code, Fault};
use reeve_protocol::lifecycle::State;

use crate::checkout::CheckoutError;
use crate::link::{AskError, LinkError};

/// The exit statuses of `reeve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: it went well.
    Ok,
    /// 1: it ran and failed.
    Failed,
    /// 2: the command line or the input is wrong; nothing ran.
    Usage,
    /// 3: no such capability or execution.
    NotFound,
    /// 4: it was refused or denied; nothing ran.
    Refused,
    /// 5: a broker is needed and not reachable.
    NoBroker,
    /// 75: what was watched was cut off and may go on.
    CutOff,
    /// 130: it was cancelled.
    Cancelled,
    /// What a child exited with; 128 and the signal's number where a signal ended it.
    Child(u8),
}

impl Exit {
    /// Returns the status as a number.
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Refused => 4,
            Self::NoBroker => 5,
            Self::CutOff => 75,
            Self::Cancelled => 130,
            Self::Child(code) => code,
        }
    }

    /// Returns the status for an execution that ended so.
    pub fn of_state(state: State) -> Self {
        match state {
            State::Succeeded => Self::Ok,
            State::Cancelled => Self::Cancelled,
            State::Failed | State::Queued | State::Running | State::Cancelling => Self::Failed,
        }
    }

    /// Returns the status for a call that ended with this code.
    pub fn of_code(code: Code) -> Self {
        match code.exit() {
            0 => Self::Ok,
            2 => Self::Usage,
            3 => Self::NotFound,
            4 => Self::Refused,
            5 => Self::NoBroker,
            130 => Self::Cancelled,
            _ => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command could not do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How the command exits.
    pub kind: Exit,
    /// The code, where the failure is one of the contract's.
    pub code: Option<Code>,
    /// A sentence without a full stop.
    pub message: String,
    /// What to do about it.
    pub hints: Vec<String>,
}

impl Failure {
    /// Makes a failure.
    pub fn new(kind: Exit, message: impl Into<String>) -> Self {
        Self { kind, code: None, message: message.into(), hints: Vec::new() }
    }

    /// Makes the failure of an input or a call that stopped with this code.
    pub fn with_code(code: Code, message: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::new(Exit::of_code(code), message) }
    }

    /// Makes the failure that a broker is needed and none serves.
    pub fn no_broker() -> Self {
        Self::new(Exit::NoBroker, "no broker serves this checkout")
            .hint("start one with `reeve serve`")
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
}

/// Joins an error and its causes to one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some messages hold their cause already.
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        // A broker that is not there is another thing than an execution that ended so.
        let mut failure = Self::with_code(fault.code, fault.message);
        failure.hints.extend(fault.suggestion);
        failure
    }
}

impl From<CheckoutError> for Failure {
    fn from(error: CheckoutError) -> Self {
        let kind = match &error {
            CheckoutError::Directory { .. } => Exit::Usage,
            CheckoutError::Homeless | CheckoutError::Proc { .. } => Exit::Failed,
        };
        Self::new(kind, chain(&error))
    }
}

impl From<SeatError> for Failure {
    fn from(error: SeatError) -> Self {
        Self::new(Exit::Failed, chain(&error))
    }
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Self {
        Self::new(Exit::NoBroker, chain(&error))
    }
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Fault(fault) => (*fault).into(),
            AskError::Link(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_the_exit_status_of_the_contract() {
        for code in Code::ALL {
            assert_eq!(Exit::of_code(*code).code(), code.exit(), "{code}");
        }
    }

    #[test]
    fn an_end_is_told_by_its_state() {
        assert_eq!(Exit::of_state(State::Succeeded).code(), 0);
        assert_eq!(Exit::of_state(State::Failed).code(), 1);
        assert_eq!(Exit::of_state(State::Cancelled).code(), 130);
    }

    #[test]
    fn causes_are_named_once() {
        let cause = std::io::Error::other("deep");
        let error = LinkError::Connect { pid: 3, source: cause };
        assert_eq!(chain(&error), "cannot connect to the broker (pid 3): deep");
    }
}
