//! Output of a child: read, made clean, numbered, reported, shown.

use std::process::Stdio;

use reeve_tests::{Checkout, peak_resident};

use crate::{REEVE, bare, compare, tell, timed};

const BYTES: usize = 200_000_000;

/// Reads 200 MB, bare and through `reeve exec`.
pub fn bench() {
    let checkout = Checkout::new(REEVE, "");
    let broker = checkout.serve(&[]);
    for (name, what) in [("output 200 MB of lines", "lines"), ("output one line of 200 MB", "line")]
    {
        let bytes = BYTES.to_string();
        let program = std::env::current_exe().expect("this program has a path");
        let raw = || {
            let spent = timed(|| {
                let mut command = bare::command(&[what, &bytes]);
                let mut child = command.stdout(Stdio::piped()).spawn().expect("the child starts");
                assert_eq!(bare::drain(&mut child), BYTES);
                assert!(child.wait().expect("it ends").success());
            });
            spent.as_secs_f64()
        };
        let ours = || {
            let spent = timed(|| {
                let mut command = checkout.command(["exec", "--"]);
                command.arg(&program).args([bare::CHILD, what, &bytes]);
                let mut child = command
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null())
                    .spawn()
                    .expect("it starts");
                let shown = bare::drain(&mut child);
                assert!(what == "line" || shown == BYTES, "{shown} bytes were shown");
                assert!(child.wait().expect("it ends").success());
            });
            spent.as_secs_f64()
        };
        compare(name, "s", raw, ours);
    }
    let peak = f64::from(u32::try_from(peak_resident(broker.pid()) >> 10).unwrap_or(u32::MAX));
    tell("  peak memory of the broker meanwhile", "MiB", peak / 1024.0);
}
