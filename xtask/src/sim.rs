//! `cargo xtask sim`: runs many seeds of the simulation, or one of them with its trace.

use std::path::Path;
use std::process::Command;

/// Seeds that are run when nobody says how many.
const SEEDS: u64 = 20_000;

/// What is to be run.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    seeds: u64,
    from: u64,
    seed: Option<u64>,
}

/// Runs the simulation; returns whether every property held.
pub fn run(root: &Path, args: &[String]) -> bool {
    let plan = match parse(args) {
        Ok(plan) => plan,
        Err(problem) => {
            eprintln!("{problem}\nusage: cargo xtask sim [--seeds N] [--from K] [--seed K]");
            return false;
        }
    };
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command
        .current_dir(root)
        .args(["test", "--workspace", "--test", "sim", "--"])
        .args(["--nocapture", "every_property_holds_on_every_seed"])
        .env("REEVE_SEEDS", plan.seeds.to_string())
        .env("REEVE_FROM", plan.from.to_string());
    match plan.seed {
        Some(seed) => command.env("REEVE_SEED", seed.to_string()),
        None => command.env_remove("REEVE_SEED"),
    };
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("cargo cannot be run: {error}");
            false
        }
    }
}

fn parse(args: &[String]) -> Result<Plan, String> {
    let mut plan = Plan { seeds: SEEDS, from: 0, seed: None };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = args.next().ok_or(format!("{arg} needs a number"))?;
        let number = value.parse().map_err(|_| format!("{arg}: {value:?} is no whole number"))?;
        match arg.as_str() {
            "--seeds" => plan.seeds = number,
            "--from" => plan.from = number,
            "--seed" => plan.seed = Some(number),
            _ => return Err(format!("{arg} is not known")),
        }
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_are_numbers_by_name() {
        let plan = parse(&words("--seeds 5 --from 7"));
        assert_eq!(plan, Ok(Plan { seeds: 5, from: 7, seed: None }));
        assert_eq!(parse(&words("--seed 3")).map(|plan| plan.seed), Ok(Some(3)));
    }

    #[test]
    fn what_is_no_option_is_told() {
        assert!(parse(&words("--seeds")).is_err());
        assert!(parse(&words("--seeds many")).is_err());
        assert!(parse(&words("--speed 3")).is_err());
    }
}
