//! The capabilities that come with reeve.
//!
//! Each is a handler like any other; a program that embeds reeve has them beside its own.

mod demonstrate;

use crate::handler::Handler;

/// Returns all of them.
pub(crate) fn all() -> Vec<Handler> {
    vec![demonstrate::handler()]
}
