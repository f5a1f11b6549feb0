//! HTTP: the loopback address of a checkout's broker.
//!
//! Accepts, lets a reader of its own look at the head, and hands what is good to the library.
//! One request per connection, so that no second one slips past that reader. Decides nothing:
//! it decodes, asks the broker and encodes.

pub mod answer;
pub mod call;
pub mod direct;
pub mod gate;
pub mod handlers;
pub mod head;
mod io;
pub mod pages;
mod report;
pub mod route;
mod serve;
pub mod ticket;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::ws::CHANNELS_MAX;
use super::ws::ready::Ready;
use crate::admit::Validators;
use crate::handle::Broker;
use crate::token::{Keys, Token};

pub use self::serve::{accept, listen};

use self::report::Reporters;
use self::ticket::Tickets;

/// Large bodies that are read at once, at most.
const DECODING_MAX: usize = 4;

/// What the HTTP edge holds. Cheap to clone.
#[derive(Clone)]
pub struct Surface(Arc<Inner>);

struct Inner {
    broker: Broker,
    port: u16,
    keys: Keys,
    tickets: Tickets,
    reporters: Reporters,
    validators: Validators,
    ready: Ready,
    decoding: Semaphore,
    channels: Arc<Semaphore>,
    refused: AtomicU64,
}

impl Surface {
    /// Makes the surface of a broker at a port.
    pub fn new(broker: Broker, port: u16, keys: Keys) -> Self {
        Self(Arc::new(Inner {
            broker,
            port,
            keys,
            tickets: Tickets::new(ticket::GOOD_FOR),
            reporters: Reporters::default(),
            validators: Validators::default(),
            ready: Ready::default(),
            decoding: Semaphore::new(DECODING_MAX),
            channels: Arc::new(Semaphore::new(CHANNELS_MAX)),
            refused: AtomicU64::new(0),
        }))
    }

    /// Returns the broker behind it.
    pub fn broker(&self) -> &Broker {
        &self.0.broker
    }

    /// Returns the secret as it is now.
    pub fn keys(&self) -> Token {
        self.0.keys.token()
    }

    /// Takes one of the places for live channels; `None` when all are taken.
    pub fn channel_slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.channels).try_acquire_owned().ok()
    }

    /// Returns the frames that every reader is sent alike.
    pub fn ready(&self) -> &Ready {
        &self.0.ready
    }

    fn reporters(&self) -> &Reporters {
        &self.0.reporters
    }

    fn port(&self) -> u16 {
        self.0.port
    }

    /// Returns a name for one line of the log.
    fn correlation(&self) -> String {
        let number = self.0.refused.fetch_add(1, Ordering::Relaxed) + 1;
        let instance = self.0.broker.about.instance.get(..8).unwrap_or_default();
        format!("r-{instance}-{number}")
    }

    /// Waits for a turn to read a large body.
    async fn decoding(&self) -> Option<SemaphorePermit<'_>> {
        self.0.decoding.acquire().await.ok()
    }
}
