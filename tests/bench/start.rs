//! From nothing to a broker that answers, and what it weighs then.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use reeve_protocol::stream::Op;
use reeve_tests::wire::Wire;
use reeve_tests::{Checkout, resident};

use crate::{REEVE, bare, compare, now, tell};

/// Starts the least that a server can be, and a broker.
pub fn bench() {
    let checkout = Checkout::new(REEVE, "");
    let socket = checkout.home().join("bare.sock");
    let raw = || {
        let start = now();
        let path = socket.to_string_lossy().into_owned();
        let mut child = bare::command(&["serve", &path]).spawn().expect("the server starts");
        let mut answer = [0; 5];
        loop {
            if let Ok(mut stream) = UnixStream::connect(&socket) {
                stream.read_exact(&mut answer).expect("it answers");
                break;
            }
        }
        let spent = start.elapsed();
        child.kill().and_then(|()| child.wait()).expect("it can be ended");
        std::fs::remove_file(&socket).expect("its socket can be removed");
        spent.as_secs_f64() * 1e3
    };
    let ours = || {
        let start = now();
        let mut child = checkout
            .command(["serve"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the broker starts");
        let lease = loop {
            if let Some(lease) = checkout.lease() {
                break lease;
            }
        };
        Wire::client(&lease.socket).ask(Op::Status {}).expect("it answers");
        let spent = start.elapsed();
        assert!(checkout.run(["stop"]).status.success());
        child.wait().expect("it ends");
        spent.as_secs_f64() * 1e3
    };
    compare("serve to ready", "ms", raw, ours);
    let broker = checkout.serve(&[]);
    Wire::client(&checkout.lease().expect("it serves").socket)
        .ask(Op::Status {})
        .expect("it answers");
    let weight = f64::from(u32::try_from(resident(broker.pid()) >> 10).unwrap_or(u32::MAX));
    tell("  resident memory, idle", "MiB", weight / 1024.0);
}
