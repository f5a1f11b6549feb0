//! Capabilities: what is declared, once, and projected onto every surface.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::CapabilityId;

/// How a capability is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CapabilityKind {
    /// A process from an argv template.
    Process,
    /// A typed function in Rust.
    Handler,
    /// An action of a live web page.
    Page,
    /// Declared capabilities in order, as one.
    Flow,
    /// An agent run.
    Agent,
}

/// The class of what a capability may change.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// It changes nothing that matters.
    Read,
    /// It changes something that can be put right.
    #[default]
    Write,
    /// It changes something that cannot.
    Dangerous,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Dangerous => "dangerous",
        })
    }
}

/// When a person is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Confirm {
    /// As the policy says for its effect.
    #[default]
    Policy,
    /// Every time.
    Always,
}

/// Which executions may run at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// Any.
    #[default]
    Parallel,
    /// One of this capability.
    Serial,
    /// One of all capabilities that name the same lock.
    Lock(String),
}

impl Overlap {
    /// Returns the name of the lock that an execution of `capability` holds while it runs.
    ///
    /// A serial capability's lock cannot clash with a named one.
    pub fn lock_of(&self, capability: &CapabilityId) -> Option<String> {
        match self {
            Self::Parallel => None,
            Self::Serial => Some(format!("capability {capability}")),
            Self::Lock(name) => Some(format!("lock {name}")),
        }
    }
}

/// What happens to the process tree of a worker that is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnWorkerLoss {
    /// The broker ends it.
    #[default]
    End,
    /// It is left alone.
    Leave,
}

/// Something declared that can be called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Descriptor {
    /// Its name.
    pub id: CapabilityId,
    /// A few words for people.
    pub title: String,
    /// What it does, at length.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// How it is carried out.
    pub kind: CapabilityKind,
    /// The JSON Schema (2020-12) of its input.
    pub input: Value,
    /// The JSON Schema (2020-12) of its output, where it is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// The class of what it may change.
    pub effect: Effect,
    /// When a person is asked.
    #[serde(default)]
    pub confirm: Confirm,
    /// Which executions may run at the same time.
    #[serde(default)]
    pub overlap: Overlap,
    /// Whether asking it to stop achieves anything.
    pub cancellable: bool,
    /// Whether running it twice is the same as running it once.
    #[serde(default)]
    pub idempotent: bool,
    /// How long it may run, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How it is carried out, where that is a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    /// Where it was declared: file, or `built-in`.
    pub provenance: String,
}

impl Descriptor {
    /// Returns whether it can be called by its name: `process.exec` cannot, as its command is its
    /// caller's.
    pub fn is_executable(&self) -> bool {
        self.kind != CapabilityKind::Process || self.process.is_some()
    }

    /// Returns how long it may run.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }
}

/// What a process is given on its standard input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stdin {
    /// Nothing: it reads the end at once.
    #[default]
    None,
    /// The whole validated input as one JSON document.
    Input,
}

/// How a process capability is carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Process {
    /// The argv template.
    pub command: Vec<String>,
    /// The directory it runs in, relative to the checkout's root; never outside of it.
    pub cwd: String,
    /// Variables that are set.
    pub env_set: BTreeMap<String, String>,
    /// Variables that are taken over from the caller, beside the base set.
    pub env_allow: Vec<String>,
    /// What it is given on its standard input.
    pub stdin: Stdin,
    /// Whether it runs on a terminal of its own.
    pub pty: bool,
    /// How long after SIGTERM its tree is killed, in milliseconds.
    pub cancel_grace_ms: u64,
    /// What happens to its tree when its worker is gone.
    #[serde(default)]
    pub on_worker_loss: OnWorkerLoss,
}

/// What a manifest declares, as its reader hands it to a broker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// Everything that can be called, built-in capabilities included.
    pub descriptors: Vec<Descriptor>,
    /// The bounds that it sets; absent where it could not be read.
    pub limits: Option<crate::limits::Limits>,
    /// What is wrong with it, each with file, line and column. Then nothing else is to be taken.
    pub problems: Vec<String>,
    /// SHA-256 of its text, in hexadecimal digits.
    pub digest: String,
    /// Its text.
    pub text: Arc<str>,
}
