//! Handlers of the binary under test that do what no built-in one does: break, hang and die.

use std::time::Duration;

use reeve_client::handler::{Ctx, Effect, Fault, Handler};
use rustix::process::{Signal, getpid, kill_process};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The worked example of `docs/CAPABILITIES.md`.
#[path = "../../client/examples/count_lines.rs"]
pub mod example;

/// How long one that ignores its flag is waited for, by its own declaration.
const GRACE: Duration = Duration::from_millis(300);

/// Nothing.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// How long to sleep.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Sleep {
    /// In milliseconds.
    ms: u64,
}

/// What a sleeper returns.
#[derive(Serialize, JsonSchema)]
struct Slept {
    /// The process that slept.
    pid: u32,
}

/// Returns all of them.
pub fn all() -> Vec<Handler> {
    vec![
        example::handler(),
        Handler::new("test.panic", "Panic", panics).effect(Effect::Read),
        Handler::new("test.spin", "Never end", spins).effect(Effect::Read).cancel_grace(GRACE),
        Handler::new("test.deaf", "Never end", spins).effect(Effect::Read),
        Handler::new("test.late", "Never end, for a while", spins)
            .effect(Effect::Read)
            .cancel_grace(GRACE)
            .timeout(GRACE),
        Handler::new("test.abort", "Abort", aborts).effect(Effect::Read),
        Handler::new("test.segfault", "Die of a signal", dies).effect(Effect::Read),
        Handler::new("test.sleep", "Sleep", sleeps).effect(Effect::Read).cancellable(),
    ]
}

fn panics(ctx: &Ctx, _: Nothing) -> Result<Slept, Fault> {
    ctx.progress.log("ready");
    panic!("a secret of {} \u{1b}[31m", ctx.root().display())
}

fn spins(ctx: &Ctx, _: Nothing) -> Result<Slept, Fault> {
    ctx.progress.log("ready");
    loop {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn aborts(ctx: &Ctx, _: Nothing) -> Result<Slept, Fault> {
    ctx.progress.log("ready");
    std::process::abort()
}

fn dies(ctx: &Ctx, _: Nothing) -> Result<Slept, Fault> {
    ctx.progress.log("ready");
    loop {
        // The runtime takes the first for an overflow of the stack, and lets the next one kill.
        let _ = kill_process(getpid(), Signal::SEGV);
    }
}

fn sleeps(ctx: &Ctx, input: Sleep) -> Result<Slept, Fault> {
    ctx.progress.log("ready");
    ctx.progress.pause(Duration::from_millis(input.ms))?;
    Ok(Slept { pid: std::process::id() })
}
