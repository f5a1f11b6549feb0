//! The simulation: the real plane, store, pumps, sessions and followers in one thread, on a
//! virtual clock, with everything that goes wrong drawn from a seed.
//!
//! `REEVE_SEEDS=n` runs so many seeds, `REEVE_FROM=k` begins with another one, and
//! `REEVE_SEED=k` plays one again and prints what happens.

mod broker;
mod faults;
mod ledger;
#[cfg(feature = "mutants")]
mod mutants;
mod net;
mod process;
mod properties;
mod reader;
mod rng;
mod views;
mod world;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;

use properties::Violation;
use world::World;

/// Seeds that are run when nobody asks for more.
const SEEDS: u64 = 300;

/// Seeds that once found something, one a line.
#[rustfmt::skip]
const REGRESSIONS: &[u64] = &[
    2,    // an adopted execution was lost before it had any event
    10,   // the bound of the whole store trimmed in silence
    11,   // what had begun by itself was shown as waiting
    21,   // max_active did not hold for starts
    30,   // a gap was told before it was stored
    36,   // more was remembered than may be
    40,   // an ordinary end had a late report
    50,   // a second worker was made after the first had begun
    51,   // a new history's events were called a gap
    61,   // a forgotten execution was in the hands of a gone connection
    83,   // a batch was larger than the broker takes
    167,  // a reader of everything never met what was on its way
    623,  // a repeated cursor beyond the end was called a gap
    885,  // a reader of everything was to forget what it never held
    1867, // a process was turned away that had not heard of its fence
    8613, // what a given up connection said late took an execution from its worker
    15770, // a retry asked for everything a second time
    2221, // an execution was joined from a cursor of another history
];

/// What came of one run.
struct Outcome {
    outputs: u64,
    history: u64,
    steps: u64,
    seconds: u64,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a whole number"))
}

/// Runs one seed; a panic is a violation as well.
fn run(seed: u64, with_readers: bool, tracing: bool) -> Result<Outcome, Violation> {
    PANICS.call_once(|| std::panic::set_hook(Box::new(remember_panic)));
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed, with_readers, tracing);
        world.run()?;
        Ok(Outcome {
            outputs: world.outputs,
            history: world.history,
            steps: world.steps,
            seconds: world.now / faults::SECOND,
        })
    }));
    ran.unwrap_or_else(|_| {
        let text = LAST_PANIC.with(|last| last.borrow().clone());
        Err(Violation { property: "no panic", text })
    })
}

static PANICS: Once = Once::new();

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps what a panic said, and where; a run of many seeds prints it once, as a violation.
fn remember_panic(info: &PanicHookInfo<'_>) {
    let text = info.to_string();
    LAST_PANIC.with(|last| text.clone_into(&mut last.borrow_mut()));
    if !text.starts_with("panicked at broker") && !text.starts_with("panicked at worker") {
        eprintln!("{text}");
    }
}

fn report(seed: u64, violation: &Violation) -> String {
    format!(
        "REEVE_SEED={seed}: {}: {}\n  again: REEVE_SEED={seed} cargo nextest run --workspace \
         --no-capture -E 'test(every_property_holds)'",
        violation.property, violation.text
    )
}

/// Whatever is cut, stopped, killed or late: what is kept, told and offered stays right, and once
/// nothing strikes any more everything comes to an end.
#[test]
fn every_property_holds_on_every_seed() {
    if let Some(seed) = number("REEVE_SEED") {
        if let Err(violation) = run(seed, true, true) {
            panic!("{}", report(seed, &violation));
        }
        return;
    }
    let from = number("REEVE_FROM").unwrap_or(0);
    let seeds = number("REEVE_SEEDS").unwrap_or(SEEDS);
    let (mut failures, mut steps, mut seconds) = (Vec::new(), 0, 0);
    for seed in REGRESSIONS.iter().copied().chain(from..from + seeds) {
        match run(seed, true, false) {
            Ok(outcome) => {
                steps += outcome.steps;
                seconds += outcome.seconds;
            }
            Err(violation) => {
                println!("{}", report(seed, &violation));
                failures.push(seed);
            }
        }
    }
    println!("{seeds} seeds, {steps} steps, {seconds} simulated seconds");
    assert!(failures.is_empty(), "{} seeds failed: {failures:?}", failures.len());
}

/// A run is a function of its seed: nothing in any core is left to chance.
#[test]
fn a_seed_gives_the_same_outputs_every_time() {
    for seed in 0..20 {
        let (Ok(first), Ok(again)) = (run(seed, true, false), run(seed, true, false)) else {
            continue;
        };
        assert_eq!(first.outputs, again.outputs, "REEVE_SEED={seed}");
    }
}

/// Nobody who reads can change what happens: not by being slow, and not by being there.
#[test]
fn readers_change_nothing_of_what_is_kept() {
    for seed in 0..40 {
        let (Ok(with), Ok(without)) = (run(seed, true, false), run(seed, false, false)) else {
            continue;
        };
        assert_eq!(with.history, without.history, "REEVE_SEED={seed}");
    }
}
