//! Chores of this repository: `cargo xtask ci`, `cargo xtask tidy`, `cargo xtask sim`.

mod ci;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace has a root");
    let args: Vec<String> = std::env::args().skip(1).collect();
    let passed = match args.first().map(String::as_str) {
        Some("ci") => ci::run(root),
        Some("tidy") => {
            let problems = tidy::problems(root);
            problems.iter().for_each(|problem| eprintln!("{problem}"));
            problems.is_empty()
        }
        _ => {
            eprintln!("usage: cargo xtask ci | tidy | sim [--seeds N] [--seed K]");
            false
        }
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
