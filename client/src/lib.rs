//! The `reeve` command line, and the library that clients are made of.
//!
//! The library finds a checkout's broker ([`checkout`]), speaks with it ([`link`]), and follows
//! what happens across connections ([`follow`], [`watcher`]); programs that have an address and a
//! token instead follow over HTTP ([`channel`]). The command line is built on it.

pub mod channel;
pub mod checkout;
pub mod follow;
pub mod link;
pub mod watcher;

mod cli;
mod clock;
mod failure;
mod live;
mod manifest_file;
mod program;
mod render;
mod ui;
mod writer;

pub use program::{Reeve, main};

/// What handlers are written with.
pub mod handler {
    pub use reeve_protocol::Output;
    pub use reeve_protocol::capability::{Effect, Overlap};
    pub use reeve_protocol::event::Severity;
    pub use reeve_protocol::fault::{Code, Fault, SideEffect, Stage};
    pub use reeve_protocol::stream::Op;
    pub use reeve_worker::handler::{Ask, BadHandler, Ctx, Handler, Handlers, Progress, Site};
}
