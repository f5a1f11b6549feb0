//! Benches through the shipped binary, each beside the bare figure of the same run.
//!
//! `cargo bench --workspace --bench plane` runs all of them; a word after `--` picks those whose
//! name contains it. Bare and ours take turns, so both share the same minutes; what is printed is
//! the median of the ratios. Figures are for people: nothing is asserted about time here, only
//! that what was read is what was written.

mod bare;
mod channel;
mod http;
mod ingest;
mod output;
mod run_cost;
mod start;

use std::time::{Duration, Instant};

/// How often bare and ours take turns.
const ROUNDS: usize = 5;
/// The shipped binary.
pub const REEVE: &str = env!("CARGO_BIN_EXE_reeve-under-test");

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|first| first == bare::CHILD) {
        return bare::child(&args[1..]);
    }
    let wanted = args.iter().find(|arg| !arg.starts_with('-')).cloned().unwrap_or_default();
    println!("{:<44} {:>12} {:>12} {:>8}  unit", "bench", "bare", "reeve", "ratio");
    let benches: [(&str, fn()); 6] = [
        ("run_cost", run_cost::bench),
        ("output", output::bench),
        ("ingest", ingest::bench),
        ("start", start::bench),
        ("channel", channel::bench),
        ("http", http::bench),
    ];
    for (name, bench) in benches {
        if name.contains(&wanted) {
            bench();
        }
    }
}

/// Measures two things in turns and prints the medians and the median of the ratios.
pub fn compare(
    name: &str,
    unit: &str,
    mut bare: impl FnMut() -> f64,
    mut ours: impl FnMut() -> f64,
) {
    let (mut bares, mut ourses, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (one, other) = (bare(), ours());
        bares.push(one);
        ourses.push(other);
        ratios.push(other / one);
    }
    println!(
        "{name:<44} {:>12.3} {:>12.3} {:>8.2}  {unit}",
        median(&mut bares),
        median(&mut ourses),
        median(&mut ratios)
    );
}

/// Prints a figure that has no bare one.
pub fn tell(name: &str, unit: &str, figure: f64) {
    println!("{name:<44} {:>12} {figure:>12.3} {:>8}  {unit}", "-", "-");
}

/// Takes the time of something.
pub fn timed(work: impl FnOnce()) -> Duration {
    let start = now();
    work();
    start.elapsed()
}

/// Reads the clock.
#[expect(clippy::disallowed_methods, reason = "a bench reads clocks")]
pub fn now() -> Instant {
    Instant::now()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
