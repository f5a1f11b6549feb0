//! How a process ended.
//!
//! Owns the difference between an exit code and a signal, and what can be said about who sent
//! the signal. Judges nothing: whether an end is a success is for its execution to say.

use reeve_protocol::signal::signal_name;
use rustix::process::{Signal, WaitIdStatus};

/// How a process ended: with a code or by a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// The code it returned.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether the system wrote down its memory.
    pub core: bool,
    /// Whether it was killed for want of memory, where that can be told.
    pub oom: Option<bool>,
    /// Whether that signal had been sent from here.
    pub ours: bool,
}

impl Exit {
    /// Takes what the system says; who sent a signal is for the caller to add.
    pub(crate) fn of(status: &WaitIdStatus) -> Self {
        Self {
            code: status.exit_status(),
            signal: status.terminating_signal(),
            core: status.dumped(),
            ..Self::default()
        }
    }

    /// Returns whether the code is 0.
    pub fn is_success(&self) -> bool {
        self.code == Some(0)
    }

    /// Returns the end in words: `exit code 7`, `signal 9 (SIGKILL), sender unknown`.
    pub fn describe(&self) -> String {
        let Some(signal) = self.signal else {
            return format!("exit code {}", self.code.unwrap_or_default());
        };
        let mut words = format!("signal {signal} ({})", signal_name(signal));
        if self.core {
            words.push_str(", core dumped");
        }
        if self.ours {
            words.push_str(", sent by reeve");
        } else if self.oom == Some(true) {
            words.push_str(", out of memory");
        } else if signal == Signal::KILL.as_raw() {
            words.push_str(", sender unknown");
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_described() {
        let exit = Exit { code: Some(137), ..Exit::default() };
        assert_eq!(exit.describe(), "exit code 137");
        let killed = Exit { signal: Some(9), ..Exit::default() };
        assert_eq!(killed.describe(), "signal 9 (SIGKILL), sender unknown");
        let oom = Exit { oom: Some(true), ..killed };
        assert_eq!(oom.describe(), "signal 9 (SIGKILL), out of memory");
        let ours = Exit { ours: true, ..oom };
        assert_eq!(ours.describe(), "signal 9 (SIGKILL), sent by reeve");
        let crashed = Exit { signal: Some(11), core: true, ..Exit::default() };
        assert_eq!(crashed.describe(), "signal 11 (SIGSEGV), core dumped");
    }
}
