//! The local wire, from outside: a real broker, and peers that behave or do not.
//!
//! Whatever a peer sends, the broker goes on serving everybody else, says why it closes, and
//! changes nothing that it should not.

mod bad_frames;
mod clients;
mod workers;

use std::path::PathBuf;

use reeve_protocol::Kind;
use reeve_tests::wire::Wire;
use reeve_tests::{Checkout, Running};

/// A broker to talk to, and where.
pub struct Served {
    /// The checkout.
    pub checkout: Checkout,
    /// Its broker.
    pub broker: Running,
    /// Where it listens.
    pub socket: PathBuf,
}

impl Served {
    /// Serves a checkout that declares nothing, with these limits.
    pub fn with(limits: &[(&str, &str)]) -> Self {
        let checkout = Checkout::new(env!("CARGO_BIN_EXE_reeve-under-test"), "");
        let broker = checkout.serve(limits);
        let socket = checkout.lease().expect("a broker serves").socket;
        Self { checkout, broker, socket }
    }

    /// Serves a checkout with the default limits.
    pub fn plain() -> Self {
        Self::with(&[])
    }

    /// Checks that the broker answers a new connection.
    pub fn still_answers(&self) {
        let status = Wire::client(&self.socket).ask(reeve_protocol::stream::Op::Status {});
        assert!(status.is_ok(), "{status:?}");
    }
}

/// Returns a line of output as an event.
pub fn progress(current: u64) -> Kind {
    Kind::Progress { current, total: None, message: None }
}

/// Returns a final event.
pub fn completed() -> Kind {
    Kind::Completed { output: serde_json::json!({ "ok": true }), receipt: None }
}
