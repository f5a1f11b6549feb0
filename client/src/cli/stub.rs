//! Stands in for `reeve_broker::serve` until that is there; see the names it takes.

#![allow(dead_code, reason = "the broker reads these")]

use std::time::Duration;

use reeve_broker::seat::SeatError;
use reeve_protocol::lease::Lease;
use reeve_protocol::place::Place;
use reeve_protocol::{Descriptor, Limits};

/// What a broker serves with.
pub(super) struct Options {
    pub place: Place,
    pub limits: Limits,
    pub load: Box<dyn Fn() -> Loaded + Send + Sync>,
    pub idle: Option<Duration>,
    pub version: String,
}

/// What a manifest gave.
#[derive(Debug)]
pub(super) struct Loaded {
    pub descriptors: Vec<Descriptor>,
    pub limits: Option<Limits>,
    pub problems: Vec<String>,
    pub digest: String,
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    #[error(transparent)]
    Seat(#[from] SeatError),
    #[error("this build has no broker")]
    Absent,
}

pub(super) fn serve(
    options: Options,
    ready: impl FnOnce(&Lease) + 'static,
) -> Result<(), ServeError> {
    drop((options, ready));
    Err(ServeError::Absent)
}
