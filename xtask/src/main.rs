//! Chores of this repository: `cargo xtask ci`, and each of its parts by its own name.

mod ci;
mod foreign;
mod fuzz;
mod sim;
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
        Some("foreign") => foreign::run(root),
        Some("fuzz") => fuzz::run(root, &args[1..]),
        Some("sim") => sim::run(root, &args[1..]),
        _ => {
            eprintln!("usage: cargo xtask ci | tidy | foreign | fuzz … | sim …");
            false
        }
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
