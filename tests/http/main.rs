//! HTTP and the live channel, from outside: a real broker, and bytes that behave or do not.
//!
//! Whatever is sent, the broker goes on serving, answers in one shape, and starts nothing that
//! it should not.

mod api;
mod bad_inputs;
mod channel;
mod crowd;
mod gates;
mod handlers;
mod pages;
mod report;
mod secrets;
mod start;
mod trust;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use reeve_tests::{Checkout, Running};
use serde_json::{Value, json};

/// A manifest with something to call.
pub const MANIFEST: &str = r#"
[capability.test]
title = "Tests"
command = ["sleep", "{seconds}"]
effect = "read"
[capability.test.input]
properties.seconds = { type = "integer", minimum = 0, maximum = 60 }
properties.mode = { enum = ["fast", "slow"] }
properties.name = { type = "string", pattern = "^(a+)+$" }
required = ["seconds"]
"#;

/// A broker to talk to over HTTP.
pub struct Served {
    /// The checkout.
    pub checkout: Checkout,
    /// Its broker.
    pub broker: Running,
    /// Its port.
    pub port: u16,
    /// The token that allows everything.
    pub token: String,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its head, in small letters.
    pub head: String,
    /// Its body.
    pub body: String,
}

impl Answer {
    /// Reads the body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns a header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// Returns the word that narrows the fault's code.
    #[track_caller]
    pub fn reason(&self) -> String {
        self.json()["error"]["reason"].as_str().unwrap_or_default().to_owned()
    }
}

impl Served {
    /// Serves a checkout with these limits.
    pub fn with(limits: &[(&str, &str)]) -> Self {
        Self::of(MANIFEST, limits)
    }

    /// Serves a checkout with this manifest and these limits.
    pub fn of(manifest: &str, limits: &[(&str, &str)]) -> Self {
        let checkout = Checkout::new(env!("CARGO_BIN_EXE_reeve-under-test"), manifest);
        let broker = checkout.serve(limits);
        Self::by(checkout, broker)
    }

    /// Takes a checkout with its broker.
    pub fn by(checkout: Checkout, broker: Running) -> Self {
        let url = checkout.lease().expect("a broker serves").url.expect("it serves HTTP");
        let port = url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let token = checkout.run(["token"]).stdout.trim().to_owned();
        Self { checkout, broker, port, token }
    }

    /// Serves a checkout with the default limits.
    #[expect(clippy::new_without_default, reason = "it starts a process")]
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// Connects.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("HTTP takes connections");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout can be set");
        stream
    }

    /// Sends bytes as they are and reads until the connection ends.
    #[track_caller]
    pub fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        drop(stream.write_all(bytes));
        answer(&mut stream)
    }

    /// Makes a head with the token and this host, up to the blank line.
    pub fn head(&self, line: &str, headers: &str) -> String {
        format!(
            "{line} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {}\r\n{headers}\r\n",
            self.port, self.token
        )
    }

    /// Asks for something.
    #[track_caller]
    pub fn get(&self, target: &str) -> Answer {
        self.raw(self.head(&format!("GET {target}"), "").as_bytes())
    }

    /// Posts a text as JSON.
    #[track_caller]
    pub fn post_text(&self, target: &str, body: &[u8]) -> Answer {
        let length =
            format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        let head = self.head(&format!("POST {target}"), &length);
        self.raw(&[head.as_bytes(), body].concat())
    }

    /// Posts a value.
    #[track_caller]
    pub fn post(&self, target: &str, body: &Value) -> Answer {
        self.post_text(target, body.to_string().as_bytes())
    }

    /// Checks that a fresh connection is answered and nothing was started.
    #[track_caller]
    pub fn still_fine(&self) {
        let answer = self.get("/api/v1/executions/protocol");
        assert_eq!(answer.status, 200, "{answer:?}");
        let list = self.get("/api/v1/executions").json();
        assert_eq!(list["count"], 0, "nothing was created");
    }
}

/// Reads one answer to the end of its connection.
#[track_caller]
pub fn answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert!(!bytes.is_empty(), "no answer came: {error}");
    }
    let text = String::from_utf8(bytes).expect("an answer is text");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    let head = head.replace("\r\n", "\n");
    Answer { status, head, body: body.to_owned() }
}

/// Returns a body that starts `test`.
pub fn start(seconds: u64) -> Value {
    json!({ "capability": "test", "input": { "seconds": seconds } })
}
