//! What it costs to run something and know its outcome, per process of the command line.

use std::process::{Command, Stdio};

use reeve_tests::Checkout;

use crate::{REEVE, compare, timed};

const RUNS: u32 = 100;

const MANIFEST: &str = "[capability.nothing]\ncommand = [\"/bin/true\"]\neffect = \"read\"\n";

/// Runs `true` many times, bare and through `reeve run`.
pub fn bench() {
    let checkout = Checkout::new(REEVE, MANIFEST);
    let raw = || {
        let spent = timed(|| {
            for _ in 0..RUNS {
                let mut command = Command::new("/bin/true");
                assert!(command.stdin(Stdio::null()).status().expect("it starts").success());
            }
        });
        spent.as_secs_f64() * 1e3 / f64::from(RUNS)
    };
    let ours = || {
        let spent = timed(|| {
            for _ in 0..RUNS {
                let mut command = checkout.command(["run", "nothing", "--quiet"]);
                let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
                assert!(status.expect("it starts").success());
            }
        });
        spent.as_secs_f64() * 1e3 / f64::from(RUNS)
    };
    compare("run true, no broker", "ms a run", raw, ours);
    let _broker = checkout.serve(&[]);
    compare("run true, reported to a broker", "ms a run", raw, ours);
}
