//! The `reeve` command line, and the library that clients are made of.
//!
//! The library finds a checkout's broker ([`checkout`]), speaks with it ([`link`]), and follows
//! what happens across connections ([`follow`], [`watcher`]). The command line is built on it.

pub mod checkout;
pub mod follow;
pub mod link;
pub mod watcher;

mod cli;
mod clock;
mod failure;
mod live;
mod manifest_file;
mod render;
mod ui;
mod writer;

pub use cli::main;
