//! `cargo xtask fuzz`: feeds the readers of strangers' bytes for longer than the tests do.

use std::path::Path;
use std::process::Command;

/// Seconds of each target when nobody says how many.
const SECONDS: u64 = 10;
const USAGE: &str = "usage: cargo xtask fuzz [--seconds N] [--target T] [--seed S]";

/// What is to be run.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    seconds: u64,
    target: Option<String>,
    seed: u64,
}

/// Runs the targets, as many at once as there are cores; returns whether all held.
pub fn run(root: &Path, args: &[String]) -> bool {
    let plan = match parse(args) {
        Ok(plan) => plan,
        Err(problem) => {
            eprintln!("{problem}\n{USAGE}");
            return false;
        }
    };
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command
        .current_dir(root)
        .args(["test", "--quiet", "--workspace", "--test", "fuzz", "--", "--nocapture"])
        .args(plan.target.iter().flat_map(|target| [target.as_str(), "--exact"]))
        // A failure is tried again while its input is made smaller; one trace would be too many.
        .env("RUST_BACKTRACE", "0")
        .env("REEVE_FUZZ_MILLISECONDS", (plan.seconds * 1_000).to_string())
        .env("REEVE_FUZZ_SEED", plan.seed.to_string());
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("cargo cannot be run: {error}");
            false
        }
    }
}

fn parse(args: &[String]) -> Result<Plan, String> {
    let mut plan = Plan { seconds: SECONDS, target: None, seed: 1 };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = args.next().ok_or(format!("{arg} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{arg}: {value:?} is no whole number"));
        match arg.as_str() {
            "--seconds" => plan.seconds = number()?,
            "--seed" => plan.seed = number()?,
            "--target" => plan.target = Some(value.clone()),
            _ => return Err(format!("{arg} is not known")),
        }
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Result<Plan, String> {
        parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_taken_by_name() {
        let taken = plan("--seconds 5 --target manifest --seed 7");
        assert_eq!(taken, Ok(Plan { seconds: 5, target: Some("manifest".into()), seed: 7 }));
        assert_eq!(plan(""), Ok(Plan { seconds: SECONDS, target: None, seed: 1 }));
    }

    #[test]
    fn what_is_no_option_is_told() {
        for wrong in ["--seconds", "--seconds many", "--target", "--speed 3"] {
            assert!(plan(wrong).is_err(), "{wrong}");
        }
    }
}
