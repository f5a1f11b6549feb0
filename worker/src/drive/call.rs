//! One call: what is carried out, under which name, within which bounds.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reeve_protocol::secret::Secret;
use reeve_protocol::snapshot::Description;
use reeve_protocol::{ExecutionId, Limits};
use serde_json::Value;

use crate::handler::{Handler, Site};
use crate::process::{OutputMode, StdinSource};

/// One call of a capability.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its name, minted by the caller.
    pub execution: ExecutionId,
    /// What it is.
    pub description: Description,
    /// What is done.
    pub work: Work,
    /// The bounds until a broker says its own.
    pub limits: Limits,
    /// What kind of worker this is: `run`, `exec`, `pool`.
    pub role: String,
    /// The version of this program.
    pub build: String,
    /// Spreads the attempts to reach a broker.
    pub seed: u64,
    /// Whether nothing may begin that a broker has not granted.
    pub bound: bool,
    /// What is taken out of everything that is reported.
    pub secrets: Vec<Secret>,
}

/// What a call does.
#[derive(Clone, Debug)]
pub enum Work {
    /// It runs a process.
    Process(ProcessCall),
    /// It calls a function of this program.
    Handler(HandlerCall),
}

impl Work {
    /// Returns how long after it was asked to stop it may go on.
    pub fn grace(&self) -> Duration {
        match self {
            Self::Process(call) => call.grace,
            Self::Handler(call) => call.grace,
        }
    }

    /// Returns how long it may run.
    pub fn timeout(&self) -> Option<Duration> {
        match self {
            Self::Process(call) => call.timeout,
            Self::Handler(call) => call.timeout,
        }
    }
}

/// What a handler call calls.
#[derive(Clone, Debug)]
pub struct HandlerCall {
    /// The function.
    pub handler: Arc<Handler>,
    /// What it is called with, validated.
    pub input: Value,
    /// Where it is called.
    pub site: Arc<Site>,
    /// How long it is waited for after it was asked to stop.
    pub grace: Duration,
    /// How long it may run.
    pub timeout: Option<Duration>,
}

/// What a process call runs.
#[derive(Clone, Debug)]
pub struct ProcessCall {
    /// The program, as its capability names it.
    pub program: OsString,
    /// The arguments after `argv[0]`.
    pub args: Vec<OsString>,
    /// The directory it starts in, absolute.
    pub cwd: PathBuf,
    /// The root of the checkout.
    pub checkout: PathBuf,
    /// The variables of the caller.
    pub env_caller: Vec<(OsString, OsString)>,
    /// Which of them are taken over, beside the base set; `*` alone takes all.
    pub env_allow: Vec<String>,
    /// Variables that are set.
    pub env_set: BTreeMap<String, String>,
    /// What it reads on its standard input.
    pub stdin: StdinSource,
    /// Where its output goes.
    pub output: OutputMode,
    /// Whether it gets a descriptor for events.
    pub events: bool,
    /// Our own executable, needed for a terminal only.
    pub launcher: Option<PathBuf>,
    /// Whether to give it a cgroup, where one can be made.
    pub cgroup: bool,
    /// How long after SIGTERM its tree is killed.
    pub grace: Duration,
    /// How long it may run.
    pub timeout: Option<Duration>,
}
