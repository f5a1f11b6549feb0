//! Stores: where events are kept.
//!
//! The plane has one append under way, so none overlap. A store keeps the bounds of history by
//! itself and says what it dropped. Readers hold a position, never a snapshot of the store.

mod contract;
pub mod memory;

use std::future::Future;
use std::pin::Pin;

use reeve_protocol::stream::GapReason;
use reeve_protocol::{Batch, Handle, Seq};
use thiserror::Error;

pub use self::contract::contract;
pub use crate::plane::Record;

/// A future of a store.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// Why a store could not do what was asked.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Nothing of the batch was kept; trying again is safe.
    #[error("the store cannot write")]
    Unwritable(#[source] std::io::Error),
}

/// What an append led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// Executions whose history lost something to a bound, each once.
    pub trimmed: Vec<Handle>,
    /// Bytes of events kept in all.
    pub bytes: usize,
}

/// One thing a reader is given, in order of position.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// Events.
    Batch(Batch),
    /// Positions that cannot be shown.
    Gap {
        /// The first.
        from: Seq,
        /// The last.
        to: Seq,
        /// Why.
        reason: GapReason,
    },
}

impl Item {
    /// Returns the last position that the item accounts for.
    pub fn last(&self) -> Seq {
        match self {
            Self::Batch(batch) => batch.last(),
            Self::Gap { to, .. } => *to,
        }
    }
}

/// A part of one execution's history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Without a hole: each item begins after the one before.
    pub items: Vec<Item>,
    /// The last stored position.
    pub last: Seq,
}

/// Where events are kept.
pub trait Store: Send + Sync {
    /// Keeps all of `records` or nothing; what it keeps is durable when the future resolves.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when nothing was kept.
    fn append(&self, records: Vec<Record>) -> StoreFuture<Appended>;

    /// Reads one execution from after `after`, at most about `bytes_max` bytes.
    ///
    /// An execution that is not kept answers an empty page.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when what is kept cannot be read.
    fn read(&self, handle: Handle, after: Seq, bytes_max: usize) -> StoreFuture<Page>;

    /// Returns what an acknowledgement means: `memory`, `local` or `replicated`.
    fn durability(&self) -> &'static str;
}
