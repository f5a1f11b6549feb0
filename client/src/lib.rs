//! The `reeve` command line, and the library that clients are made of.

pub mod checkout;
pub mod follow;
pub mod link;
pub mod watcher;

/// Runs the command line.
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
