//! HTTP: the loopback address of a checkout's broker.
//!
//! Accepts, lets a reader of its own look at the head, and hands what is good to the library.
//! One request per connection, so that no second one slips past that reader. Decides nothing:
//! it decodes, asks the broker and encodes.

mod answer;
mod call;
mod gate;
mod handlers;
mod head;
mod io;
pub mod route;
mod serve;
mod ticket;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::admit::Validators;
use crate::handle::Broker;
use crate::token::{Keys, Token};

pub use self::serve::{accept, listen};

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
    validators: Validators,
    decoding: Semaphore,
    refused: AtomicU64,
}

impl Surface {
    /// Makes the surface of a broker at a port.
    pub fn new(broker: Broker, port: u16, keys: Keys) -> Self {
        Self(Arc::new(Inner {
            broker,
            port,
            keys,
            tickets: Tickets::default(),
            validators: Validators::default(),
            decoding: Semaphore::new(DECODING_MAX),
            refused: AtomicU64::new(0),
        }))
    }

    fn broker(&self) -> &Broker {
        &self.0.broker
    }

    fn keys(&self) -> Token {
        self.0.keys.token()
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
