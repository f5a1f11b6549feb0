//! The capabilities that come with reeve.
//!
//! Each is a handler like any other; a program that embeds reeve has them beside its own.

mod demonstrate;
mod executions;
mod health;
mod verify;

use crate::handler::Handler;

/// Returns all of them.
pub(crate) fn all() -> Vec<Handler> {
    let mut all = vec![demonstrate::handler(), health::handler(), verify::handler()];
    all.extend(executions::handlers());
    all
}
