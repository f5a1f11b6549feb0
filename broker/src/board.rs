//! The board: every execution as everybody may see it.
//!
//! The actor writes it, readers read it, and no reader asks the actor. Everyone who takes the
//! lock runs on the Arbiter's thread and lets it go before the next wait, so nobody waits for it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use reeve_protocol::{ExecutionId, Handle};

use crate::plane::{Gauges, Shown};

/// What everybody may see.
#[derive(Default)]
pub struct Board {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    shown: BTreeMap<Handle, Shown>,
    by_id: BTreeMap<ExecutionId, Handle>,
    gauges: Gauges,
}

impl Board {
    /// Shows an execution.
    pub fn publish(&self, shown: Shown) {
        let mut inner = self.lock();
        inner.by_id.insert(shown.snapshot.id, shown.handle);
        inner.shown.insert(shown.handle, shown);
    }

    /// Shows an execution no longer.
    pub fn unpublish(&self, handle: Handle, id: ExecutionId) {
        let mut inner = self.lock();
        inner.shown.remove(&handle);
        inner.by_id.remove(&id);
    }

    /// Keeps how the plane is.
    pub fn set_gauges(&self, gauges: Gauges) {
        self.lock().gauges = gauges;
    }

    /// Returns how the plane is.
    pub fn gauges(&self) -> Gauges {
        self.lock().gauges
    }

    /// Returns one execution by its number.
    pub fn by_handle(&self, handle: Handle) -> Option<Shown> {
        self.lock().shown.get(&handle).cloned()
    }

    /// Returns one execution by its name.
    pub fn by_id(&self, id: ExecutionId) -> Option<Shown> {
        let inner = self.lock();
        inner.by_id.get(&id).and_then(|handle| inner.shown.get(handle)).cloned()
    }

    /// Returns every execution, newest first.
    pub fn newest_first(&self) -> Vec<Shown> {
        self.lock().shown.values().rev().cloned().collect()
    }

    /// Returns the executions from a number on, oldest first.
    pub fn since(&self, handle: Handle) -> Vec<ExecutionId> {
        self.lock().shown.range(handle..).map(|(_, shown)| shown.snapshot.id).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
