//! HTTP: one read beside the same bytes from axum alone, a start through a worker of the broker's
//! own, and what a quiet watcher weighs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use reeve_protocol::peer::kind;
use reeve_protocol::stream::{Sub, Subbed};
use reeve_tests::wire::Wire;
use reeve_tests::{Checkout, resident};
use serde_json::Value;

use crate::{REEVE, compare, now, tell};

const READS: usize = 2_000;
const STARTS: usize = 100;
const WATCHERS: usize = 1_000;

const MANIFEST: &str = "[capability.nothing]\ncommand = [\"true\"]\neffect = \"read\"\n";

struct Served {
    checkout: Checkout,
    broker: reeve_tests::Running,
    address: String,
    token: String,
}

impl Served {
    fn new() -> Self {
        let checkout = Checkout::new(REEVE, MANIFEST);
        let broker = checkout.serve(&[("max_connections", "2048")]);
        let url = checkout.lease().and_then(|lease| lease.url).expect("it serves HTTP");
        let address = url.trim_start_matches("http://").to_owned();
        let token = checkout.run(["token"]).stdout.trim().to_owned();
        Self { checkout, broker, address, token }
    }

    fn ask(&self, line: &str, body: &str) -> String {
        let head = format!(
            "{line} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            self.token,
            body.len()
        );
        exchange(&self.address, &head)
    }

    fn state(&self, id: &str) -> String {
        let answer = self.ask(&format!("GET /api/v1/executions/get?id={id}"), "");
        let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
        let snapshot: Value = serde_json::from_str(body).expect("an answer is JSON");
        snapshot["state"].as_str().unwrap_or_default().to_owned()
    }
}

/// Sends a request on a connection of its own and returns the whole answer.
fn exchange(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(request.as_bytes()).expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer comes");
    answer
}

/// Measures all of it.
pub fn bench() {
    let served = Served::new();
    let begun = served.ask("POST /api/v1/executions/start", r#"{"capability":"nothing"}"#);
    let snapshot = begun.split("\r\n\r\n").nth(1).expect("it is started").to_owned();
    let id = serde_json::from_str::<Value>(&snapshot).expect("JSON")["id"].clone();
    let id = id.as_str().expect("an id").to_owned();
    reads(&served, &id, snapshot);
    starts(&served);
    watchers(&served);
}

fn reads(served: &Served, id: &str, body: String) {
    let (tell_address, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || alone(body, &tell_address));
    let alone: String = told.recv().expect("it listens");
    let rate = |ask: &dyn Fn() -> String| {
        let start = now();
        for _ in 0..READS {
            assert!(ask().starts_with("HTTP/1.1 200"), "it is answered");
        }
        READS as f64 / 1e3 / start.elapsed().as_secs_f64()
    };
    let request = format!("GET /one HTTP/1.1\r\nHost: {alone}\r\nConnection: close\r\n\r\n");
    let line = format!("GET /api/v1/executions/get?id={id}");
    compare(
        "GET of one execution, a connection each",
        "k requests/s",
        || rate(&|| exchange(&alone, &request)),
        || rate(&|| served.ask(&line, "")),
    );
}

/// Serves the same body with axum and nothing else.
fn alone(body: String, tell_address: &std::sync::mpsc::Sender<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it has one").to_string();
        tell_address.send(address).expect("somebody waits");
        let answer =
            move || std::future::ready(([("content-type", "application/json")], body.clone()));
        let router = axum::Router::new().route("/one", axum::routing::get(answer));
        axum::serve(listener, router).await.expect("it serves");
    });
}

fn starts(served: &Served) {
    let raw = || {
        let start = now();
        for _ in 0..STARTS {
            let status = Command::new("true").stdin(Stdio::null()).status();
            assert!(status.expect("it starts").success());
        }
        start.elapsed().as_secs_f64() * 1e3 / STARTS as f64
    };
    let ours = || {
        let start = now();
        for _ in 0..STARTS {
            let begun = served.ask("POST /api/v1/executions/start", r#"{"capability":"nothing"}"#);
            let id = begun.split("\"id\":\"").nth(1).expect("it is started");
            while served.state(&id[..27]) != "succeeded" {}
        }
        start.elapsed().as_secs_f64() * 1e3 / STARTS as f64
    };
    compare("start of `true` over HTTP to its end", "ms", raw, ours);
}

fn watchers(served: &Served) {
    let socket = served.checkout.lease().expect("a broker serves").socket;
    let before = resident(served.broker.pid());
    let held: Vec<Wire> = (0..WATCHERS)
        .map(|_| {
            let mut reader = Wire::client(&socket);
            reader.send(kind::SUB, &Sub { all: true, ..Sub::default() });
            let _: Subbed = reader.expect(kind::SUBBED);
            reader
        })
        .collect();
    let grown = resident(served.broker.pid()).saturating_sub(before);
    let each = u32::try_from(grown / held.len() as u64).unwrap_or(u32::MAX);
    tell("resident memory per quiet watcher, of 1,000", "KiB", f64::from(each) / 1024.0);
}
