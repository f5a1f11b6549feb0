//! The live channel: what 64 readers are sent while it happens, and what one reads afterwards.

use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use bytes::Bytes;
use reeve_protocol::batch::{Builder, Class};
use reeve_protocol::event::Kind;
use reeve_protocol::peer::{Ack, kind};
use reeve_protocol::{LogChunk, Output, Seq, Timestamp};
use reeve_tests::Checkout;
use reeve_tests::wire::{Granted, Wire, description, id};

use crate::{REEVE, compare, now};

const READERS: usize = 64;
const EVENTS: usize = 50_000;
const HISTORY: usize = 100_000;
const BATCH: usize = 500;
/// What an event begins with; a control message begins otherwise.
const EVENT: &[u8] = b"{\"schema_version\"";

/// A broker, and how it is reached over HTTP.
struct Served {
    checkout: Checkout,
    _broker: reeve_tests::Running,
    address: String,
    token: String,
}

impl Served {
    fn new() -> Self {
        let limits = [
            ("max_log_bytes", "268435456"),
            ("max_store_bytes", "2147483648"),
            ("max_events", "1000000"),
        ];
        let checkout = Checkout::new(REEVE, "");
        let broker = checkout.serve(&limits);
        let url = checkout.lease().and_then(|lease| lease.url).expect("it serves HTTP");
        let address = url.trim_start_matches("http://").to_owned();
        let token = checkout.run(["token"]).stdout.trim().to_owned();
        Self { checkout, _broker: broker, address, token }
    }

    /// Opens a channel and returns it once its first frame is there.
    fn open(&self, query: &str) -> Frames<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let head = format!(
            "GET /events{query} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            self.address, self.token
        );
        stream.write_all(head.as_bytes()).expect("it is sent");
        let mut frames = Frames::new(stream);
        frames.skip_head();
        assert!(frames.next().starts_with(b"{"), "it is ready");
        frames
    }
}

/// Reads what a server frames, without a library in the way.
struct Frames<R>(BufReader<R>, Vec<u8>);

impl<R: Read> Frames<R> {
    fn new(stream: R) -> Self {
        Self(BufReader::with_capacity(256 << 10, stream), Vec::new())
    }

    fn skip_head(&mut self) {
        let mut last = [0; 4];
        while last != *b"\r\n\r\n" {
            last.rotate_left(1);
            self.0.read_exact(&mut last[3..]).expect("a head comes");
        }
    }

    fn next(&mut self) -> &[u8] {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).expect("a frame comes");
        let length = match head[1] {
            126 => {
                let mut length = [0; 2];
                self.0.read_exact(&mut length).expect("a length comes");
                usize::from(u16::from_be_bytes(length))
            }
            127 => {
                let mut length = [0; 8];
                self.0.read_exact(&mut length).expect("a length comes");
                usize::try_from(u64::from_be_bytes(length)).expect("it fits")
            }
            short => usize::from(short),
        };
        self.1.resize(length, 0);
        self.0.read_exact(&mut self.1).expect("a payload comes");
        &self.1
    }

    /// Reads until so many events have come.
    fn events(mut self, count: usize) {
        let mut seen = 0;
        while seen < count {
            seen += usize::from(self.next().starts_with(EVENT));
        }
    }
}

/// Measures both.
pub fn bench() {
    let served = Served::new();
    let mut number = 0;
    let frames = history(&served, &mut number, EVENTS);
    compare(
        "events to 64 WebSocket readers, live",
        "M deliveries/s",
        || blast(&frames, READERS, EVENTS),
        || live(&served, &mut number),
    );
    let frames = history(&served, &mut number, HISTORY);
    let finished = number;
    compare(
        "100,000 events to one late reader",
        "M events/s",
        || blast(&frames, 1, HISTORY),
        || {
            let start = now();
            served.open(&format!("?execution={}", id(finished))).events(HISTORY);
            HISTORY as f64 / 1e6 / start.elapsed().as_secs_f64()
        },
    );
}

/// Makes a finished execution of so many events, and returns its frames as they are sent.
fn history(served: &Served, number: &mut u32, events: usize) -> Bytes {
    *number += 1;
    report(served, *number, events);
    let mut frames = served.open(&format!("?execution={}", id(*number)));
    let (mut out, mut seen) = (Vec::new(), 0);
    while seen < events {
        let payload = frames.next();
        if payload.starts_with(EVENT) {
            seen += 1;
            let length = u16::try_from(payload.len()).expect("an event is short").to_be_bytes();
            out.extend([0x81, 126, length[0], length[1]]);
            out.extend_from_slice(payload);
        }
    }
    out.into()
}

/// Sends ready frames to readers: the same bytes with nothing of ours around them.
fn blast(frames: &Bytes, readers: usize, events: usize) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has one");
    let reading: Vec<JoinHandle<()>> = (0..readers)
        .map(|_| {
            let stream = TcpStream::connect(address).expect("it listens");
            std::thread::spawn(move || Frames::new(stream).events(events))
        })
        .collect();
    let mut streams: Vec<TcpStream> =
        (0..readers).map(|_| listener.accept().expect("a reader comes").0).collect();
    let start = now();
    for part in frames.chunks(64 << 10) {
        for stream in &mut streams {
            stream.write_all(part).expect("the reader reads");
        }
    }
    reading.into_iter().for_each(|reader| reader.join().expect("it reads"));
    (readers * events) as f64 / 1e6 / start.elapsed().as_secs_f64()
}

fn live(served: &Served, number: &mut u32) -> f64 {
    *number += 1;
    let readers: Vec<JoinHandle<()>> = (0..READERS)
        .map(|_| {
            let frames = served.open("");
            std::thread::spawn(move || frames.events(EVENTS))
        })
        .collect();
    let start = now();
    report(served, *number, EVENTS);
    readers.into_iter().for_each(|reader| reader.join().expect("it reads"));
    (READERS * EVENTS) as f64 / 1e6 / start.elapsed().as_secs_f64()
}

/// Reports an execution of at least so many events, and waits until all of it is acknowledged.
fn report(served: &Served, number: u32, events: usize) {
    let socket = served.checkout.lease().expect("a broker serves").socket;
    let mut wire = Wire::worker(&socket);
    let mut granted = wire.attach(id(number), description("bench.channel"));
    wire.report(&mut granted, &[Kind::Started {}]);
    let last = Seq(granted.next.0 + events as u64);
    let mut acks = wire.split();
    let reading = std::thread::spawn(move || while acks.expect::<Ack>(kind::ACK).through < last {});
    for _ in 0..events / BATCH {
        let batch = lines(&granted);
        granted.next = batch.last().next();
        wire.batch(&batch);
    }
    let output = serde_json::Value::Null;
    wire.report(&mut granted, &[Kind::Completed { output, receipt: None }]);
    reading.join().expect("it is acknowledged");
}

fn lines(granted: &Granted) -> reeve_protocol::Batch {
    let mut builder = Builder::new(Class::Bytes);
    let mut text = Vec::with_capacity(BATCH * 60);
    for _ in 0..BATCH {
        text.extend_from_slice(&[b'l'; 59]);
        text.push(b'\n');
    }
    builder.log(&LogChunk {
        at: Timestamp::default(),
        stream: Output::Stdout,
        lines: u32::try_from(BATCH).expect("a small batch"),
        text: Bytes::from(text),
    });
    builder.finish(granted.handle, granted.fence, granted.next)
}
