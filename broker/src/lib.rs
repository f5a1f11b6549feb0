//! The broker of a checkout: the execution plane, its actor, its stores, its local
//! socket and its HTTP surface.
//!
//! The plane decides, the actor performs, the edges speak to sockets and decide nothing. Runs no
//! code of any capability: that is what workers are for.

mod actor;
mod admit;
mod board;
mod clock;
mod edge;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod handle;
mod machine;
mod manifest_watch;
mod openapi;
pub mod plane;
mod pool;
pub mod pump;
mod reads;
pub mod seat;
mod serve;
mod start;
pub mod store;
mod switchboard;
pub mod token;
pub mod trust;

pub use crate::machine::Orphans;
pub use crate::pool::WorkerCommand;
pub use crate::serve::{Load, Options, ServeError, serve};
