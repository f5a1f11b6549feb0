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

#[cfg(test)]
mod tests {
    use reeve_worker::handler::Ctx;

    use super::*;

    #[test]
    fn the_worked_example_is_the_code_that_is_compiled() {
        let page = include_str!("../../docs/CAPABILITIES.md");
        let example = include_str!("../examples/count_lines.rs");
        assert!(page.contains(&format!("```rust\n{example}```\n")));
    }

    #[test]
    fn every_built_in_handler_is_described() {
        let page = include_str!("../../docs/CAPABILITIES.md");
        for id in Handlers::builtin().ids() {
            assert!(page.contains(&format!("| `{id}`")), "{id}");
        }
    }

    #[test]
    fn a_handler_that_cannot_be_registered_is_remembered() {
        let handler = |id: &str| {
            Handler::new(id, "", |_: &Ctx, _: std::collections::BTreeMap<String, u8>| Ok(1))
        };
        let reeve = Reeve::new().handler(handler("a.b")).handler(handler("a.b"));
        assert_eq!(reeve.bad, [BadHandler::Taken("a.b".parse().unwrap())]);
    }
}
