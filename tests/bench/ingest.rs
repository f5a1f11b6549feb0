//! Ingest: four workers report in batches of 500 while three readers follow everything.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use bytes::Bytes;
use reeve_protocol::batch::{Builder, Class};
use reeve_protocol::event::Kind;
use reeve_protocol::peer::{Ack, kind};
use reeve_protocol::stream::{Gap, Sub};
use reeve_protocol::{Batch, ExecutionId, LogChunk, Output, Seq, Timestamp, frame};
use reeve_tests::Checkout;
use reeve_tests::wire::{Granted, Wire, description, stamped};

use crate::{REEVE, bare, compare, now};

const WORKERS: usize = 4;
const READERS: usize = 3;
const EVENTS: usize = 500_000;
const BATCH: usize = 500;

/// Measures batches of log lines, and batches of single events.
pub fn bench() {
    // So much is kept that every reader can be shown all of it.
    let limits = [
        ("max_log_bytes", "268435456"),
        ("max_store_bytes", "2147483648"),
        ("max_events", "10000000"),
    ];
    let checkout = Checkout::new(REEVE, "");
    let _broker = checkout.serve(&limits);
    let socket = checkout.lease().expect("a broker serves").socket;
    let bare_socket = checkout.home().join("bare.sock");
    let raw = || {
        let start = now();
        bare::count(&bare_socket, WORKERS, EVENTS);
        (WORKERS * EVENTS) as f64 / 1e6 / start.elapsed().as_secs_f64()
    };
    let mut round = 0;
    compare("ingest log lines, 4 workers, 3 readers", "M events/s", raw, || {
        round += 1;
        ours(&socket, round, log_batch)
    });
    compare("ingest single events, 4 workers, 3 readers", "M events/s", raw, || {
        round += 1;
        ours(&socket, round, event_batch)
    });
}

fn ours(socket: &Path, round: u32, make: fn(&Granted) -> Batch) -> f64 {
    let readers: Vec<JoinHandle<usize>> = (0..READERS)
        .map(|_| {
            let mut reader = Wire::client(socket);
            reader.send(kind::SUB, &Sub { all: true, ..Sub::default() });
            let _: reeve_protocol::stream::Subbed = reader.expect(kind::SUBBED);
            std::thread::spawn(move || read(&mut reader))
        })
        .collect();
    let start = now();
    let workers: Vec<JoinHandle<()>> = (0..WORKERS)
        .map(|worker| {
            let number = round * 16 + u32::try_from(worker).expect("few workers");
            let socket: PathBuf = socket.into();
            std::thread::spawn(move || report(&socket, reeve_tests::wire::id(number), make))
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().expect("it reports"));
    for reader in readers {
        let seen = reader.join().expect("it reads");
        assert_eq!(seen, WORKERS * (EVENTS + 4), "every reader was shown everything");
    }
    (WORKERS * EVENTS) as f64 / 1e6 / start.elapsed().as_secs_f64()
}

/// Reports everything, then waits until it is acknowledged.
fn report(socket: &Path, id: ExecutionId, make: fn(&Granted) -> Batch) {
    let mut wire = Wire::worker(socket);
    let mut granted = wire.attach(id, description("bench.ingest"));
    wire.report(&mut granted, &[Kind::Started {}]);
    let last = Seq(granted.next.0 + EVENTS as u64);
    let mut acks = wire.split();
    let reading = std::thread::spawn(move || {
        loop {
            let ack: Ack = acks.expect(kind::ACK);
            assert!(ack.resend_from.is_none(), "nothing was lost");
            if ack.through >= last {
                return;
            }
        }
    });
    for _ in 0..EVENTS / BATCH {
        let batch = make(&granted);
        granted.next = batch.last().next();
        wire.batch(&batch);
    }
    let output = serde_json::Value::Null;
    wire.report(&mut granted, &[Kind::Completed { output, receipt: None }]);
    reading.join().expect("it is acknowledged");
}

/// Counts what is shown until every execution has ended.
fn read(reader: &mut Wire) -> usize {
    let (mut seen, mut ended) = (0, 0);
    while ended < WORKERS {
        match reader.recv().expect("the broker lives") {
            (kind::BATCH, body) => {
                seen += Batch::parse(body).expect("a good batch").count() as usize;
            }
            (kind::END, _) => ended += 1,
            (kind::GAP, body) => {
                let gap: Gap = frame::decode(&body).expect("a good gap");
                panic!("{gap:?}");
            }
            _ => {}
        }
    }
    seen
}

fn log_batch(granted: &Granted) -> Batch {
    let line = [b'l'; 59];
    let mut text = Vec::with_capacity(BATCH * 60);
    for _ in 0..BATCH {
        text.extend_from_slice(&line);
        text.push(b'\n');
    }
    let mut builder = Builder::new(Class::Bytes);
    builder.log(&LogChunk {
        at: Timestamp::default(),
        stream: Output::Stdout,
        lines: u32::try_from(BATCH).expect("a small batch"),
        text: Bytes::from(text),
    });
    builder.finish(granted.handle, granted.fence, granted.next)
}

fn event_batch(granted: &Granted) -> Batch {
    let message = Some("p".repeat(40));
    let kinds: Vec<_> = (0..BATCH as u64)
        .map(|current| stamped(Kind::Progress { current, total: None, message: message.clone() }))
        .collect();
    Batch::of_events(granted.handle, granted.fence, granted.next, &kinds)
}
