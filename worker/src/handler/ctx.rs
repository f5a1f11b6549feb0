//! What a handler is given: its reports, its checkout, and a way to ask the broker.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use reeve_protocol::place::Place;
use reeve_protocol::stream::Op;
use reeve_protocol::{CapabilityId, Code, ExecutionId, Fault, Limits};
use serde_json::Value;

use super::Progress;

/// A way to ask the broker of the checkout. Called from a handler's own thread; it may wait.
pub trait Ask: Send + Sync {
    /// Asks, and returns the answer in the shape that it has on every surface.
    ///
    /// # Errors
    ///
    /// The broker's fault; `unavailable` where none serves.
    fn ask(&self, op: Op) -> Result<Value, Fault>;
}

/// The answer where nobody can be asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBroker;

impl NoBroker {
    /// Returns the fault that says so.
    pub fn fault() -> Fault {
        Fault::new(Code::Unavailable, "no broker serves this checkout")
            .because("no_broker")
            .hint("start one with `reeve serve`")
    }
}

impl Ask for NoBroker {
    fn ask(&self, _op: Op) -> Result<Value, Fault> {
        Err(Self::fault())
    }
}

/// Where handlers run: the checkout, and who may be asked.
#[derive(Clone)]
pub struct Site {
    /// The checkout and its places.
    pub place: Place,
    /// The bounds that count here.
    pub limits: Limits,
    /// The version of this program.
    pub version: String,
    /// The ids of its handlers, which no manifest can declare.
    pub handlers: BTreeSet<CapabilityId>,
    /// Asks the broker.
    pub broker: Arc<dyn Ask>,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site").field("place", &self.place).finish_non_exhaustive()
    }
}

/// What a handler is called with.
#[derive(Clone, Debug)]
pub struct Ctx {
    /// Takes what there is to report, whether or not anybody watches.
    pub progress: Progress,
    site: Arc<Site>,
    execution: Option<ExecutionId>,
    /// What its faults and its lines in a log are found by.
    name: String,
}

impl Ctx {
    /// Makes the context of a call that is no execution: its reports go nowhere.
    pub fn silent(site: Arc<Site>) -> Self {
        static CALLS: AtomicU64 = AtomicU64::new(1);
        let number = CALLS.fetch_add(1, Ordering::Relaxed);
        let name = format!("call-{}-{number}", std::process::id());
        Self { progress: Progress::silent(), site, execution: None, name }
    }

    /// Makes the context of an execution.
    pub(crate) fn observed(site: Arc<Site>, execution: ExecutionId, progress: Progress) -> Self {
        Self { progress, site, execution: Some(execution), name: execution.to_string() }
    }

    /// Returns the root of the checkout: a handler acts on this directory, whatever the current
    /// one is.
    pub fn root(&self) -> &Path {
        &self.site.place.root
    }

    /// Returns where it runs.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Returns the execution that this call is, if it is one.
    pub fn execution(&self) -> Option<ExecutionId> {
        self.execution
    }

    /// Asks the broker of the checkout, which may take a while.
    ///
    /// # Errors
    ///
    /// The broker's fault; `unavailable` where none serves.
    pub fn ask(&self, op: Op) -> Result<Value, Fault> {
        self.site.broker.ask(op)
    }

    /// Ends the call here, by `?`, if it was asked to stop.
    ///
    /// # Errors
    ///
    /// [`Progress::cancellation`] when it was.
    pub fn checkpoint(&self) -> Result<(), Fault> {
        self.progress.checkpoint()
    }

    /// Returns what ties a fault of this call to its place in the logs.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}
