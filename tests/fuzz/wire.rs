//! Readers of bytes: frames of the local socket, batches, frames of a WebSocket.

use std::io::{Cursor, Read, Write};

use bytes::{Bytes, BytesMut};
use reeve_protocol::{
    Batch, ExecutionId, Fence, Handle, Kind, LogChunk, Output, Seq, Stamped, Timestamp, batch,
};
use serde_json::{Value, json};

use crate::bounded;

fn at(n: i64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000 + n)
}

fn id() -> ExecutionId {
    ExecutionId::mint(at(0), 7)
}

/// Returns one event of every kind, and one of a kind that nobody knows.
fn events() -> Vec<Stamped> {
    let fault = json!({ "code": "internal", "message": "m", "side_effect": "none",
        "correlation_id": "c", "problems": [{ "pointer": "/a", "message": "no" }] });
    let kinds = [
        (
            "created",
            json!({ "capability": "a.b", "title": "T", "input": { "a": [1, -1, 1.5, null] } }),
        ),
        ("queued", json!({ "ahead": 3 })),
        ("gate", json!({ "stage": "confirm", "name": "n", "outcome": "passed", "reason": "r" })),
        ("started", json!({})),
        ("progress", json!({ "current": 1, "total": 2, "message": "m" })),
        ("step.started", json!({ "name": "s", "title": "t" })),
        ("step.completed", json!({ "name": "s", "ok": false, "detail": "d" })),
        ("log", json!({ "stream": "stdout", "message": "l", "cut": true })),
        (
            "diagnostic",
            json!({ "severity": "warning", "code": "c", "summary": "s", "detail": "d" }),
        ),
        ("resources", json!({ "cpu_ms": 1, "memory_bytes": u64::MAX, "processes": 1 })),
        ("suspended", json!({ "at": at(1) })),
        ("resumed", json!({ "suspended_ms": 4 })),
        ("cancelling", json!({ "by": "cli" })),
        ("cancelled", json!({ "receipt": { "ok": false } })),
        ("completed", json!({ "output": { "deep": [[[[["x"]]]]] } })),
        ("failed", json!({ "error": fault })),
        ("novelty", json!({ "any": ["thing"] })),
    ];
    let made = kinds.into_iter().filter_map(|(tag, data)| Kind::from_parts(tag, data).ok());
    made.map(|kind| Stamped { at: at(2), kind }).collect()
}

/// Gives a batch the checksum that its content has, as whoever means harm would.
fn sealed(input: &[u8]) -> Bytes {
    let mut bytes = input.to_vec();
    if bytes.len() >= batch::HEADER {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&bytes[12..28]);
        hasher.update(&bytes[batch::HEADER..]);
        bytes[28..32].copy_from_slice(&hasher.finalize().to_be_bytes());
    }
    bytes.into()
}

/// The stream of a worker: frames, each read by its kind.
pub mod frame_decode {
    use reeve_broker::fuzz;
    use reeve_protocol::frame;
    use reeve_protocol::peer::kind;

    use super::*;

    pub fn good() -> Vec<Vec<u8>> {
        let description = json!({ "capability": "a.b", "title": "T", "kind": "process",
            "effect": "read", "cancellable": true, "cancel_grace_ms": 10, "input": { "n": [1, 2] },
            "actor": { "kind": "cli", "pid": 7 },
            "repository": { "id": "r", "name": "n", "branch": "b" } });
        let tree = json!({ "pgid": 4, "start_ticks": 9 });
        let messages = [
            (kind::HELLO, json!({ "proto": 1, "role": "worker", "name": "w", "pid": 3 })),
            (kind::ATTACH, json!({ "execution": id(), "description": description, "tree": tree })),
            (kind::TREE, json!({ "execution": id(), "tree": tree })),
            (kind::RELEASED, json!({ "execution": id(), "survivors": ["sh (12)"] })),
            (
                kind::LATE,
                json!({ "execution": id(), "fence": 2, "state": "failed", "message": "m",
                "unsent_events": 1 }),
            ),
            (kind::PONG, json!({ "nonce": 77 })),
            (kind::HEARTBEAT, json!({ "active": [id()] })),
            (99, json!(["what", "is", "this"])),
            (100, json!(vec![0; 300])),
            (101, json!(vec![json!({ "": 0 }); 300])),
        ];
        let mut all = BytesMut::new();
        let mut good = Vec::new();
        for (kind, message) in messages {
            let mut one = BytesMut::new();
            frame::put_message(&mut one, kind, &message);
            all.extend_from_slice(&one);
            good.push(one.to_vec());
        }
        good.push(all.to_vec());
        good
    }

    pub fn check(input: &[u8]) {
        let mut rest = BytesMut::from(input);
        let mut at = 0;
        while let Ok(Some((kind, body))) = frame::take(&mut rest) {
            let mut again = BytesMut::new();
            frame::put(&mut again, kind, &body);
            assert_eq!(again, input[at..at + again.len()], "a frame is what it was");
            at += again.len();
            // An object of four bytes is a whole node of a tree; how many there may be is bounded.
            let value = bounded(body.len(), 256, || frame::decode::<Value>(&body));
            if let Ok(value) = value {
                let again = frame::encode(&value);
                assert_eq!(frame::decode::<Value>(&again).as_ref(), Ok(&value));
            }
            bounded(body.len(), 256, || drop(fuzz::worker_frame(kind, body.clone())));
        }
    }
}

/// Batches of events: checked by their header, decoded, shown, read again.
pub mod msgpack_event {
    use reeve_protocol::{Event, frame};

    use super::*;

    pub fn good() -> Vec<Vec<u8>> {
        let all = events();
        assert_eq!(all.len(), Kind::TAGS.len() + 1, "there is one of every kind");
        let of = |events: &[Stamped]| {
            Batch::of_events(Handle(1), Fence(2), Seq(3), events).bytes().to_vec()
        };
        let ones = all.iter().map(|event| of(std::slice::from_ref(event)));
        ones.chain([of(&all)]).collect()
    }

    pub fn check(input: &[u8]) {
        let bytes = sealed(input);
        let Ok(batch) = bounded(bytes.len(), 32, || Batch::parse(bytes.clone())) else { return };
        assert_eq!(batch.first().0 + u64::from(batch.count()) - 1, batch.last().0);
        let Ok(events) = bounded(bytes.len(), 256, || batch.events(id(), Seq::NONE)) else {
            return;
        };
        for event in &events {
            let text = serde_json::to_string(event).expect("an event is JSON");
            let again: Event = serde_json::from_str(&text).expect("an event reads back");
            assert_eq!(&again, event, "{text}");
            let stamped = Stamped { at: event.timestamp, kind: event.kind.clone() };
            let packed = frame::encode(&stamped);
            assert_eq!(frame::decode::<Stamped>(&packed).as_ref(), Ok(&stamped));
            let mut clean = event.kind.clone();
            clean.clean(100);
            assert!(!clean.clean(100), "cleaning what is clean changes nothing: {clean:?}");
        }
    }
}

/// A page of what an execution has printed: cut anywhere, it is still whole lines in order.
pub mod output_page {
    use super::*;

    /// More lines than are cut at the first or the last one only.
    const LINES: &str = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\n";

    pub fn good() -> Vec<Vec<u8>> {
        let chunk = |text: &'static str| LogChunk {
            at: at(0),
            stream: Output::Stderr,
            lines: u32::try_from(text.lines().count()).expect("few lines"),
            text: Bytes::from_static(text.as_bytes()),
        };
        let texts =
            ["one\n", "one\ntwo \u{e9}\n\nfour\n", "cut\u{1}\nnot cut\n", "\u{202e}x\n", LINES];
        let mut all = batch::Builder::new(batch::Class::Bytes);
        let ones = texts.map(|text| {
            let mut builder = batch::Builder::new(batch::Class::Bytes);
            builder.log(&chunk(text));
            all.log(&chunk(text));
            builder.finish(Handle(1), Fence(1), Seq(1)).bytes().to_vec()
        });
        let all = all.finish(Handle(1), Fence(1), Seq(8)).bytes().to_vec();
        ones.into_iter().chain([all]).collect()
    }

    pub fn check(input: &[u8]) {
        let bytes = sealed(input);
        let Ok(batch) = bounded(bytes.len(), 32, || Batch::parse(bytes.clone())) else { return };
        if batch.class() != batch::Class::Bytes {
            return;
        }
        let whole = bounded(bytes.len(), 300, || batch.events(id(), Seq::NONE)).expect("lines");
        assert_eq!(whole.len(), batch.count() as usize);
        for event in &whole {
            let Kind::Log { message, .. } = &event.kind else { panic!("{event:?} in output") };
            assert!(!message.contains(['\n', '\u{1}', '\u{1b}', '\r']), "{message:?}");
        }
        let middle = Seq(batch.first().0 + u64::from(batch.count()) / 2);
        let rest = batch.after(middle).map(|rest| rest.events(id(), Seq::NONE).expect("lines"));
        assert_eq!(rest.unwrap_or_default(), batch.events(id(), middle).expect("lines"));
        let room = bytes.len() * 2 / 3;
        if let Some(beginning) = batch.beginning(room) {
            assert!(beginning.bytes().len() <= room);
            let begun = beginning.events(id(), Seq::NONE).expect("lines");
            assert_eq!(begun, whole[..begun.len()]);
        }
        let ending = batch.ending(room).events(id(), Seq::NONE).expect("lines");
        assert_eq!(ending, whole[whole.len() - ending.len()..]);
    }
}

/// Frames of a WebSocket client, and what their texts ask for.
pub mod ws_client_frame {
    use reeve_broker::fuzz;
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::protocol::{Role, WebSocket, WebSocketConfig};

    use super::*;

    /// Bytes of a frame of a client, at most.
    const FRAME_MAX: usize = 4 << 10;

    /// Reads from bytes, writes to nowhere.
    struct Peer<'a>(Cursor<&'a [u8]>);

    impl Read for Peer<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(into)
        }
    }

    impl Write for Peer<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("a short payload").min(125);
        let mask = [0, 0, 0, 0];
        [&[first, 0x80 | length][..], &mask, payload].concat()
    }

    pub fn good() -> Vec<Vec<u8>> {
        let id = id();
        let texts = [
            format!(r#"{{"type":"subscribe","executions":["{id}:42"],"all":true}}"#),
            format!(r#"{{"type":"subscribe","executions":[{{"execution":"{id}","after":1}}]}}"#),
            r#"{"type":"unsubscribe","executions":[]}"#.to_owned(),
            format!(r#"{{"type":"cancel","execution":"{id}","force":true}}"#),
            r#"{"type":"ping","nonce":{"n":[1]}}"#.to_owned(),
            format!(r#"{{"type":"ack","execution":"{id}","sequence":42}}"#),
        ];
        let mut good: Vec<Vec<u8>> =
            texts.iter().map(|text| masked(0x81, text.as_bytes())).collect();
        good.push(masked(0x89, b"ping"));
        good.push(masked(0x88, &[0x03, 0xe8, b'x']));
        good.push([masked(0x01, b"{\"type\":\"p"), masked(0x80, b"ing\"}")].concat());
        good.push(good.concat());
        good
    }

    pub fn check(input: &[u8]) {
        let config = WebSocketConfig::default()
            .read_buffer_size(FRAME_MAX)
            .max_message_size(Some(FRAME_MAX))
            .max_frame_size(Some(FRAME_MAX));
        let texts = bounded(input.len(), 32, || {
            let peer = Peer(Cursor::new(input));
            let mut socket = WebSocket::from_raw_socket(peer, Role::Server, Some(config));
            let mut texts = Vec::new();
            while let Ok(message) = socket.read() {
                if let Message::Text(text) = message {
                    texts.push(text.as_str().to_owned());
                }
            }
            texts
        });
        for text in texts.iter().map(String::as_str).chain(std::str::from_utf8(input)) {
            let asked = bounded(text.len(), 160, || fuzz::client_text(text));
            if let Err(fault) = asked {
                assert!(!fault.message.contains(char::is_control), "{:?}", fault.message);
            }
        }
    }
}
