//! `reeve` as a program of one's own: the same command line, with further handlers.

use std::process::ExitCode;

use reeve_worker::handler::{BadHandler, Handler, Handlers};

use crate::cli;

/// A complete `reeve`, to which handlers can be added.
///
/// A program that ends with [`Reeve::main`] serves, runs and shows everything as `reeve` does, and
/// its handlers stand beside the built-in ones on every surface.
#[derive(Debug)]
pub struct Reeve {
    handlers: Handlers,
    bad: Vec<BadHandler>,
}

impl Default for Reeve {
    fn default() -> Self {
        Self::new()
    }
}

impl Reeve {
    /// Returns `reeve` as it is.
    pub fn new() -> Self {
        Self { handlers: Handlers::builtin(), bad: Vec::new() }
    }

    /// Adds a handler. What is wrong with it is said by [`Reeve::main`].
    #[must_use]
    pub fn handler(mut self, handler: Handler) -> Self {
        if let Err(bad) = self.handlers.add(handler) {
            self.bad.push(bad);
        }
        self
    }

    /// Runs the command line of this process. A handler that cannot be registered ends it before
    /// anything is done.
    pub fn main(self) -> ExitCode {
        match self.bad.first() {
            Some(bad) => cli::refuse(bad),
            None => cli::main(self.handlers),
        }
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    Reeve::new().main()
}
