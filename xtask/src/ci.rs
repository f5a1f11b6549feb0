//! Everything that a change must pass, in order, on a machine that may be new.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// One step: its name, its program and arguments.
const STEPS: &[(&str, &[&str])] = &[
    ("format", &["cargo", "fmt", "--all", "--check"]),
    (
        "lint",
        &["cargo", "clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"],
    ),
    ("build", &["cargo", "build", "--workspace", "--all-targets", "--quiet"]),
    ("test", &["cargo", "nextest", "run", "--workspace"]),
    ("fuzz", &["cargo", "xtask", "fuzz"]),
    ("foreign clients", &["cargo", "xtask", "foreign"]),
    (
        "mutants",
        &[
            "cargo",
            "nextest",
            "run",
            "--workspace",
            "--features",
            "reeve-tests/mutants",
            "-E",
            "test(mutant)",
        ],
    ),
    ("documentation", &["cargo", "doc", "--workspace", "--no-deps", "--quiet"]),
];

/// Runs every step; returns whether all passed.
pub fn run(root: &Path) -> bool {
    if !has_nextest()
        && !step(root, "install cargo-nextest", &["cargo", "install", "--locked", "cargo-nextest"])
    {
        return false;
    }
    let problems = crate::tidy::problems(root);
    for problem in &problems {
        eprintln!("tidy: {problem}");
    }
    problems.is_empty() && STEPS.iter().all(|(name, command)| step(root, name, command))
}

fn has_nextest() -> bool {
    Command::new("cargo")
        .args(["nextest", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn step(root: &Path, name: &str, command: &[&str]) -> bool {
    println!("== {name}: {}", command.join(" "));
    #[expect(clippy::disallowed_methods, reason = "a chore tells how long its steps took")]
    let start = Instant::now();
    let passed = Command::new(command[0])
        .args(&command[1..])
        .current_dir(root)
        .env("RUSTDOCFLAGS", "-D warnings")
        .status()
        .is_ok_and(|status| status.success());
    let word = if passed { "passed" } else { "FAILED" };
    println!("== {name}: {word} in {:.1} s", start.elapsed().as_secs_f64());
    passed
}
