//! The live channel: what is followed, what is said, and what is refused.

use std::io::Write;
use std::net::TcpStream;

use reeve_protocol::{Class, Kind, Output, Timestamp};
use reeve_tests::wire::{Granted, Wire, id};
use reeve_tests::{PATIENCE, now, until};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message, WebSocket, client::client_with_config};

use crate::api::{progress, running, until_last};
use crate::{Answer, Served, answer};

/// The key of the example in RFC 6455.
pub const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
/// What asks for a WebSocket.
pub const UPGRADE: &str = "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n";

/// An open channel; every document that comes on it must have the shape that is published.
pub struct Open(pub WebSocket<TcpStream>, Box<Published>);

/// What a broker publishes about its documents.
pub struct Published {
    event: jsonschema::Validator,
    control: jsonschema::Validator,
}

impl Published {
    fn by(served: &Served) -> Box<Self> {
        let protocol = served.get("/api/v1/executions/protocol").json();
        let of = |name: &str| jsonschema::validator_for(&protocol[name]).expect("a good schema");
        Box::new(Self { event: of("event_schema"), control: of("stream_schema") })
    }

    #[track_caller]
    fn check(&self, document: &Value) {
        let control = document["type"].as_str().is_some_and(|it| it.starts_with("stream."));
        let schema = if control { &self.control } else { &self.event };
        if let Err(error) = schema.validate(document) {
            panic!("{error}: {document}");
        }
    }
}

impl Open {
    fn try_at(served: &Served, query: &str, stream: TcpStream) -> Result<Self, u16> {
        let url = format!("ws://127.0.0.1:{}/events{query}", served.port);
        let mut request = url.into_client_request().expect("a good address");
        let bearer = format!("Bearer {}", served.token).parse().expect("a header");
        request.headers_mut().insert("authorization", bearer);
        let config = WebSocketConfig::default();
        match client_with_config(request, stream, Some(config)) {
            Ok((socket, _)) => Ok(Self(socket, Published::by(served))),
            Err(tokio_tungstenite::tungstenite::HandshakeError::Failure(Error::Http(answer))) => {
                Err(answer.status().as_u16())
            }
            Err(error) => panic!("no handshake: {error}"),
        }
    }

    #[track_caller]
    pub fn at(served: &Served, query: &str) -> Self {
        Self::try_at(served, query, served.connect()).expect("an upgrade")
    }

    /// Returns the next document; `Err` is the code that the channel was closed with.
    fn next(&mut self) -> Result<Value, u16> {
        loop {
            match self.0.read() {
                Ok(Message::Text(text)) => {
                    let document = serde_json::from_str(text.as_str()).expect("a frame is JSON");
                    self.1.check(&document);
                    return Ok(document);
                }
                Ok(Message::Close(frame)) => return Err(frame.map_or(1005, |it| it.code.into())),
                Ok(_) => {}
                Err(error) => panic!("the channel broke: {error}"),
            }
        }
    }

    /// Returns the next document of this type.
    #[track_caller]
    fn expect(&mut self, word: &str) -> Value {
        let start = now();
        while start.elapsed() < PATIENCE {
            let next = self.next().unwrap_or_else(|code| panic!("closed with {code}"));
            if next["type"] == word {
                return next;
            }
        }
        panic!("no {word} came");
    }

    fn say(&mut self, value: &Value) {
        self.0.send(Message::text(value.to_string())).expect("it can be said");
    }

    /// Reads events until there are `count`, checked to be without a hole after `at`.
    #[track_caller]
    pub fn events(&mut self, at: &mut u64, count: usize) -> Vec<Value> {
        let (start, mut events) = (now(), Vec::new());
        while events.len() < count {
            assert!(start.elapsed() < PATIENCE, "{} of {count} came", events.len());
            let next = self.next().expect("the channel is open");
            if next["type"].as_str().is_some_and(|it| it.starts_with("execution.")) {
                assert_eq!(next["sequence"], *at + 1, "no hole, no repeat");
                *at += 1;
                events.push(next);
            }
        }
        events
    }
}

/// Returns the first event of an execution as the channel tells it.
///
/// The execution is named twice and followed once.
pub fn first_event(served: &Served, id: &str) -> Value {
    let mut open = Open::at(served, &format!("?execution={id}&execution={id}"));
    let ready = open.expect("stream.ready");
    assert_eq!(ready["executions"], json!([id]));
    let replayed = ready["replayed"].as_u64().expect("a count");
    let events = open.events(&mut 0, usize::try_from(replayed).expect("a small one"));
    events.into_iter().next().expect("it has events")
}

fn history(served: &Served, number: u32) -> Vec<Value> {
    let (mut after, mut events) = (0, Vec::new());
    loop {
        let target = format!("/api/v1/executions/events?id={}&after={after}", id(number));
        let page = served.get(&target).json();
        events.extend(page["events"].as_array().cloned().expect("events"));
        after = page["last_sequence"].as_u64().expect("a cursor");
        if page["more"] != true {
            return events;
        }
    }
}

/// Reports so many lines of this width.
pub fn lines(worker: &mut Wire, granted: &mut Granted, count: u32, width: usize) {
    let text: String = (0..count).map(|n| format!("{n:>width$}\n")).collect();
    let mut builder = reeve_protocol::batch::Builder::new(Class::Bytes);
    builder.log(&reeve_protocol::LogChunk {
        at: Timestamp::from_micros(1_800_000_000_000_000),
        stream: Output::Stdout,
        lines: count,
        text: text.into(),
    });
    let batch = builder.finish(granted.handle, granted.fence, granted.next);
    granted.next = batch.last().next();
    worker.batch(&batch);
}

#[test]
fn a_reader_that_is_cut_again_and_again_has_exactly_the_history() {
    let served = Served::new();
    let (mut worker, mut granted) = running(&served, 1, &[]);
    let (mut seen, mut at) = (Vec::new(), 0);
    for round in 0..20 {
        lines(&mut worker, &mut granted, 7, 3);
        worker.report(&mut granted, &[progress(round), progress(round + 1)]);
        let mut open = Open::at(&served, &format!("?execution={}:{at}", id(1)));
        open.expect("stream.ready");
        seen.extend(open.events(&mut at, 5));
    }
    worker.report(&mut granted, &[Kind::Completed { output: json!(1), receipt: None }]);
    let mut open = Open::at(&served, &format!("?execution={}&after={at}", id(1)));
    while seen.last().is_none_or(|event| event["type"] != "execution.completed") {
        seen.extend(open.events(&mut at, 1));
    }
    assert_eq!(seen, history(&served, 1));
    assert_eq!(seen.len(), 3 + 20 * 9 + 1);
}

#[test]
fn the_first_frame_says_exactly_what_comes() {
    let served = Served::with(&[("max_events", "50")]);
    let events: Vec<Kind> = (0..20).map(progress).collect();
    let (_one, _) = running(&served, 1, &events);
    let many: Vec<Kind> = (0..100).map(progress).collect();
    let (_two, _) = running(&served, 2, &many);
    until_last(&served, 1, 23);
    until_last(&served, 2, 103);
    let (one, two, three) = (id(1), id(2), id(3));
    let ready = |query: &str| Open::at(&served, query).next().expect("a first frame");
    let all = ready("");
    assert_eq!((&all["scope"], &all["replayed"]), (&json!("all"), &json!(0)));
    assert!(all.get("executions").is_none());
    let first = ready(&format!("?execution={one}"));
    assert_eq!(first["type"], "stream.ready");
    assert_eq!((&first["replayed"], &first["truncated"]), (&json!(23), &json!(false)));
    assert_eq!(first["executions"], json!([one]));
    assert_eq!(
        (&first["protocol_version"], &first["heartbeat_seconds"]),
        (&json!("1"), &json!(20))
    );
    let both = format!("?execution={one}:3&execution={two}&execution={three}&execution={one}:3");
    let both = ready(&both);
    assert_eq!((&both["replayed"], &both["truncated"]), (&json!(70), &json!(true)));
    assert_eq!(both["cursors"][one.to_string()], 3);
    assert_eq!(both["unknown"], json!([three]));
    assert_eq!(both["durability"], "memory");
    let epoch = both["epoch"].as_str().expect("an epoch");
    let same = ready(&format!("?execution={one}&after=20&epoch={epoch}"));
    assert_eq!(same["replayed"], 3);
    let mut other = Open::at(&served, &format!("?execution={one}&after=20&epoch=other"));
    assert_eq!(other.next().expect("a first frame")["replayed"], 23);
    let lagged = other.next().expect("a second frame");
    assert_eq!((&lagged["reason"], &lagged["resume_after"]), (&json!("epoch"), &json!(0)));
}

#[test]
fn what_cannot_be_shown_is_told_as_a_range() {
    let served = Served::with(&[("max_events", "50")]);
    let many: Vec<Kind> = (0..100).map(progress).collect();
    let (_worker, _) = running(&served, 1, &many);
    until_last(&served, 1, 103);
    let mut open = Open::at(&served, &format!("?execution={}&after=10", id(1)));
    open.expect("stream.ready");
    let lagged = open.expect("stream.lagged");
    assert_eq!(lagged["execution_id"], json!(id(1)));
    assert_eq!((&lagged["from"], &lagged["to"]), (&json!(11), &json!(53)));
    assert_eq!((&lagged["dropped"], &lagged["reason"]), (&json!(43), &json!("retention")));
    open.events(&mut 53, 50);
    let mut ahead = Open::at(&served, &format!("?execution={}&after=1000", id(1)));
    assert_eq!(ahead.expect("stream.ready")["replayed"], 0);
    let lagged = ahead.expect("stream.lagged");
    assert_eq!((&lagged["reason"], &lagged["dropped"]), (&json!("ahead"), &json!(0)));
    assert_eq!(lagged["resume_after"], 103);
}

#[test]
fn the_sixty_fifth_channel_is_refused_until_one_closes() {
    let served = Served::new();
    let mut open: Vec<Open> = (0..64).map(|_| Open::at(&served, "")).collect();
    let refused = Open::try_at(&served, "", served.connect());
    assert_eq!(refused.err(), Some(503));
    let told = handshake(&served, "", &format!("{UPGRADE}Sec-WebSocket-Version: 13\r\n{KEY}"));
    assert_eq!((told.status, told.reason().as_str()), (503, "too_many_channels"));
    assert!(told.header("retry-after").is_some());
    for channel in &mut open {
        channel.expect("stream.ready");
    }
    drop(open.pop());
    until("a place", || Open::try_at(&served, "", served.connect()).ok().map(drop));
    let (_worker, _) = running(&served, 1, &[]);
    for channel in &mut open {
        channel.events(&mut 0, 3);
    }
}

#[test]
fn a_client_follows_more_leaves_and_stops_what_runs() {
    let served = Served::new();
    let (mut worker, mut granted) = running(&served, 1, &[]);
    let (_other, _) = running(&served, 2, &[]);
    until_last(&served, 2, 3);
    let mut open = Open::at(&served, &format!("?execution={}", id(1)));
    open.expect("stream.ready");
    open.events(&mut 0, 3);
    open.say(&json!({ "type": "ping", "nonce": 7 }));
    assert_eq!(open.expect("stream.pong")["nonce"], 7);
    open.say(&json!({ "type": "ack", "execution": id(1), "sequence": 3 }));
    open.say(&json!({ "type": "subscribe", "executions": [{ "execution": id(2), "after": 1 }] }));
    assert_eq!(open.expect("stream.subscribed")["replayed"], 2);
    open.events(&mut 1, 2);
    open.say(&json!({ "type": "unsubscribe", "executions": [id(2)] }));
    open.expect("stream.unsubscribed");
    open.say(&json!({ "type": "cancel", "execution": id(1) }));
    let told = open.expect("stream.cancelled");
    assert_eq!((&told["outcome"], &told["cancellable"]), (&json!("requested"), &json!(true)));
    let by = "websocket".to_owned();
    worker.report(&mut granted, &[Kind::Cancelling { by }, Kind::Cancelled { receipt: None }]);
    open.expect("execution.cancelled");
    open.say(&json!({ "type": "cancel", "execution": id(9) }));
    assert_eq!(open.expect("stream.error")["error"]["code"], "not_found");

    let observer = served.checkout.run(["token", "--scope", "observe"]).stdout;
    let served = Served { token: observer.trim().to_owned(), ..served };
    let mut open = Open::at(&served, "");
    open.say(&json!({ "type": "cancel", "execution": id(2) }));
    assert_eq!(open.expect("stream.error")["error"]["reason"], "scope");
}

#[test]
fn a_client_that_makes_no_sense_or_never_stops_is_closed() {
    let served = Served::new();
    let mut open = Open::at(&served, "");
    for frame in ["nonsense", "{\"type\":\"dance\"}", "{\"type\":\"ping\",\"x\":1}"] {
        open.0.send(Message::text(frame)).expect("it can be said");
        open.expect("stream.error");
    }
    open.expect("stream.closing");
    assert_eq!(open.next(), Err(1008));
    let mut open = Open::at(&served, "");
    let frame = json!({ "type": "ack", "execution": id(1), "sequence": 1 }).to_string();
    for _ in 0..1_500 {
        if open.0.write(Message::text(frame.clone())).is_err() {
            break;
        }
    }
    drop(open.0.flush());
    assert_eq!(until_closed(&mut open), 1008);
    let mut open = Open::at(&served, "");
    open.0.send(Message::text("x".repeat(5 << 10))).expect("it can be said");
    assert_eq!(until_closed(&mut open), 1009);
    let mut open = Open::at(&served, "");
    open.0.send(Message::binary(vec![1, 2, 3])).expect("it can be said");
    assert_eq!(until_closed(&mut open), 1003);
    served.still_fine();
}

fn until_closed(open: &mut Open) -> u16 {
    loop {
        if let Err(code) = open.next() {
            return code;
        }
    }
}

#[test]
fn a_reader_that_takes_nothing_is_dropped_and_slows_nobody() {
    let served = Served::with(&[("write_deadline", "1s")]);
    let (mut worker, mut granted) = running(&served, 1, &[]);
    let mut stuck = Open::at(&served, &format!("?execution={}", id(1)));
    stuck.expect("stream.ready");
    let mut other = Open::at(&served, &format!("?execution={}", id(1)));
    for _ in 0..60 {
        lines(&mut worker, &mut granted, 500, 400);
    }
    worker.report(&mut granted, &[Kind::Completed { output: Value::Null, receipt: None }]);
    let mut at = 0;
    other.events(&mut at, 3 + 60 * 500 + 1);
    until("the stuck one to be dropped", || {
        let list = served.get("/api/v1/executions").json();
        (list["live_channels"] == 1).then_some(())
    });
    assert_eq!(until_last(&served, 1, at)["state"], "succeeded");
}

#[test]
fn a_value_that_fits_no_frame_is_a_reference() {
    let served = Served::new();
    let (mut worker, mut granted) = running(&served, 1, &[]);
    let output = json!({ "text": "x".repeat(300 << 10) });
    let kind = Kind::Completed { output: output.clone(), receipt: None };
    worker.report(&mut granted, &[kind]);
    let mut open = Open::at(&served, &format!("?execution={}", id(1)));
    let done = open.expect("execution.completed");
    assert_eq!(done["data"]["output"]["withheld"], "too_large");
    assert_eq!(done["data"]["output"]["limit"], 262_144);
    let link = done["data"]["output"]["self"].as_str().expect("a link").to_owned();
    assert_eq!(served.get(&link).json()["output"], output);
}

#[test]
fn a_broker_that_ends_says_so() {
    let served = Served::new();
    let mut open = Open::at(&served, "");
    open.expect("stream.ready");
    served.broker.signal(rustix::process::Signal::TERM);
    open.expect("stream.closing");
    assert_eq!(open.next(), Err(1001));
}

#[test]
fn a_quiet_channel_says_that_it_lives() {
    let served = Served::with(&[("channel_heartbeat", "200ms")]);
    let mut open = Open::at(&served, "");
    open.expect("stream.ready");
    let mut pinged = false;
    loop {
        match open.0.read().expect("the channel is open") {
            Message::Ping(_) => pinged = true,
            Message::Text(text) if text.as_str().contains("stream.heartbeat") => break,
            _ => {}
        }
    }
    assert!(pinged);
}

#[test]
fn a_peer_that_answers_nothing_is_dropped_and_one_that_does_stays() {
    use std::io::Read;

    let served = Served::with(&[("channel_heartbeat", "200ms")]);
    let mut lives = Open::at(&served, "");
    lives.expect("stream.ready");
    let mut dead = served.connect();
    let upgrade = format!("{UPGRADE}Sec-WebSocket-Version: 13\r\n{KEY}");
    dead.write_all(served.head("GET /events", &upgrade).as_bytes()).expect("it is sent");
    let living = std::thread::spawn(move || {
        // It reads, and so it answers; until the other one was dropped, and on.
        for _ in 0..20 {
            lives.expect("stream.heartbeat");
        }
    });
    // It takes everything and says nothing.
    let mut taken = Vec::new();
    dead.read_to_end(&mut taken).expect("the broker ends it");
    assert!(taken.starts_with(b"HTTP/1.1 101"));
    let text = String::from_utf8_lossy(&taken);
    assert!(text.contains("stream.heartbeat"), "it was told first: {text}");
    living.join().expect("who answers stays");
}

fn handshake(served: &Served, query: &str, headers: &str) -> Answer {
    served.raw(served.head(&format!("GET /events{query}"), headers).as_bytes())
}

#[test]
fn an_upgrade_that_is_none_is_told_why() {
    let served = Served::new();
    let version = "Sec-WebSocket-Version: 13\r\n";
    for (row, query, headers, status) in [
        ("a plain GET", "", String::new(), 426),
        ("version 12", "", format!("{UPGRADE}Sec-WebSocket-Version: 12\r\n{KEY}"), 426),
        ("no version", "", format!("{UPGRADE}{KEY}"), 426),
        ("no key", "", format!("{UPGRADE}{version}"), 400),
        ("a short key", "", format!("{UPGRADE}{version}Sec-WebSocket-Key: short\r\n"), 400),
        (
            "another protocol",
            "",
            format!("{UPGRADE}{version}{KEY}Sec-WebSocket-Protocol: é\r\n"),
            400,
        ),
        ("no id", "?execution=x-1", format!("{UPGRADE}{version}{KEY}"), 400),
        (
            "no sequence",
            &format!("?execution={}:-1", id(1)),
            format!("{UPGRADE}{version}{KEY}"),
            400,
        ),
        ("after of nothing", "?after=3", format!("{UPGRADE}{version}{KEY}"), 400),
        ("an unknown parameter", "?exec=1", format!("{UPGRADE}{version}{KEY}"), 400),
        ("another origin", "", format!("{UPGRADE}{version}{KEY}Origin: http://evil\r\n"), 403),
    ] {
        let answer = handshake(&served, query, &headers);
        assert_eq!(answer.status, status, "{row}: {answer:?}");
        assert!(answer.json()["error"]["message"].is_string(), "{row}");
    }
    let plain = handshake(&served, "", "");
    assert!(plain.body.contains("executions.events"), "{plain:?}");
    let old = handshake(&served, "", &format!("{UPGRADE}Sec-WebSocket-Version: 8\r\n{KEY}"));
    assert_eq!(old.header("sec-websocket-version"), Some("13"));
    let mut stream = raw_channel(&served, "permessage-deflate; client_max_window_bits=99");
    stream.write_all(&masked(0x88, &[])).expect("it can be sent");
    served.still_fine();
}

/// Opens a channel by hand, checked against the accept value that the RFC gives for this key.
fn raw_channel(served: &Served, extensions: &str) -> TcpStream {
    use std::io::Read;
    let headers = format!(
        "{UPGRADE}Sec-WebSocket-Version: 13\r\n{KEY}Sec-WebSocket-Extensions: {extensions}\r\n"
    );
    let mut stream = served.connect();
    stream.write_all(served.head("GET /events", &headers).as_bytes()).expect("it can be sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer comes");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("a head is text").to_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    assert!(head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
    assert!(!head.contains("sec-websocket-extensions"), "{head}");
    stream
}

fn masked(first: u8, body: &[u8]) -> Vec<u8> {
    let length = u8::try_from(body.len()).expect("short");
    let mut frame = vec![first, 0x80 | length, 0, 0, 0, 0];
    frame.extend_from_slice(body);
    frame
}

/// Returns the code of the close frame that ends what comes.
fn close_code(stream: &mut TcpStream) -> u16 {
    use std::io::Read;
    let mut bytes = Vec::new();
    drop(stream.read_to_end(&mut bytes));
    let mut rest = &bytes[..];
    while rest.len() >= 2 {
        let (head, length) = match rest[1] {
            126 => (4, usize::from(u16::from_be_bytes([rest[2], rest[3]]))),
            short => (2, usize::from(short)),
        };
        if rest[0] == 0x88 {
            return u16::from_be_bytes([rest[2], rest[3]]);
        }
        rest = &rest[head + length..];
    }
    0
}

#[test]
fn a_frame_that_breaks_the_protocol_is_answered_by_its_code() {
    let served = Served::new();
    for (row, bytes, code) in [
        ("unmasked", vec![0x81, 1, b'x'], 1002),
        ("a reserved bit", masked(0xc1, b"x"), 1002),
        ("an unknown kind", masked(0x83, b"x"), 1002),
        ("a fragmented ping", masked(0x09, b"x"), 1002),
        ("a long ping", [vec![0x89, 0xfe, 0, 126, 0, 0, 0, 0], vec![0; 126]].concat(), 1002),
        ("no UTF-8", masked(0x81, &[0xff, 0xfe]), 1007),
        ("a continuation of nothing", masked(0x80, b"x"), 1002),
        ("a text inside a text", [masked(0x01, b"x"), masked(0x81, b"x")].concat(), 1002),
        ("a length of 2^63", [vec![0x81, 0xff, 0x80], vec![0; 11]].concat(), 1009),
        ("a length in two bytes that fits one", [&[0x81, 0xfe, 0, 5][..], &[0; 9]].concat(), 1002),
        (
            "a length in eight bytes",
            [&[0x81, 0xff, 0, 0, 0, 0, 0, 0, 0, 5][..], &[0; 9]].concat(),
            1002,
        ),
        ("a close of one byte", masked(0x88, b"x"), 1002),
        ("a close with a code that is none", masked(0x88, &[0x03, 0xed]), 1002),
        ("a close whose reason is no UTF-8", masked(0x88, &[0x03, 0xe8, 0xff]), 1007),
    ] {
        let mut stream = raw_channel(&served, "x");
        stream.write_all(&bytes).expect("it can be sent");
        assert_eq!(close_code(&mut stream), code, "{row}");
    }
    until("every place to be free", || {
        let list = served.get("/api/v1/executions").json();
        (list["live_channels"] == 0).then_some(())
    });
}

#[test]
fn a_ticket_opens_one_channel_for_its_own_origin() {
    let served = Served::new();
    let own = format!("Origin: http://127.0.0.1:{}\r\n", served.port);
    let make = |origin: &str| {
        let headers = format!("Content-Length: 0\r\n{origin}");
        let answer = served.raw(served.head("POST /api/v1/ticket", &headers).as_bytes());
        answer.json()["ticket"].as_str().expect("a ticket").to_owned()
    };
    let with = |ticket: &str, origin: &str| {
        let head = format!(
            "GET /events?ticket={ticket} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n{UPGRADE}\
             Sec-WebSocket-Version: 13\r\n{KEY}{origin}\r\n",
            served.port
        );
        let mut stream = served.connect();
        stream.write_all(head.as_bytes()).expect("it can be sent");
        let mut first = [0; 12];
        std::io::Read::read_exact(&mut stream, &mut first).expect("an answer comes");
        let status: u16 = String::from_utf8_lossy(&first[9..]).parse().expect("a status");
        if status != 101 {
            answer(&mut stream);
        }
        status
    };
    let ticket = make(&own);
    assert_eq!(with(&ticket, &own), 101);
    assert_eq!(with(&ticket, &own), 401, "once only");
    assert_eq!(with(&make(&own), ""), 401, "for its origin only");
    assert_eq!(with(&make(""), ""), 101);
    assert_eq!(with("nothing", ""), 401);
    let unused = make("");
    let get = format!(
        "GET /api/v1/executions?ticket={unused} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n",
        served.port
    );
    assert_eq!(served.raw(get.as_bytes()).status, 401, "no other route takes one");
}

#[test]
fn a_reader_of_everything_that_was_away_is_told_what_began_meanwhile() {
    let served = Served::new();
    let mut first = Open::at(&served, "");
    let ready = first.expect("stream.ready");
    let (horizon, epoch) = (ready["horizon"].clone(), ready["epoch"].as_str().unwrap().to_owned());
    drop(first);
    served.checkout.run(["exec", "--", "echo", "meanwhile"]);
    let before = served.checkout.list()[0]["id"].as_str().unwrap().to_owned();

    let mut again = Open::at(&served, &format!("?since={horizon}&epoch={epoch}"));
    let ready = again.expect("stream.ready");
    assert_eq!(
        (&ready["scope"], &ready["cursors"][&before]),
        (&json!("all"), &json!(0)),
        "{ready}"
    );
    let mut at = 0;
    let events = again.events(&mut at, 5);
    assert!(events.iter().all(|event| event["execution_id"] == json!(before)));
    // What begins from now on comes as well.
    served.checkout.run(["exec", "--", "true"]);
    let created = again.expect("execution.created");
    assert_ne!(created["execution_id"], json!(before));

    // Of another history everything is new.
    let mut foreign = Open::at(&served, "?since=4000000000&epoch=other");
    assert_eq!(foreign.expect("stream.ready")["cursors"].as_object().unwrap().len(), 2);
    assert_eq!(Open::try_at(&served, "?since=x", served.connect()).err(), Some(400));
}

#[test]
fn the_clients_channel_follows_across_brokers_and_ends_with_what_it_follows() {
    use reeve_client::channel::{Channel, Cursors, Seen, Shown};

    let mut served = Served::of(
        "[capability.gated]\ncommand = [\"sh\", \"-c\", \"echo one; until [ -e go ]; do sleep 0.02; \
         done; echo two\"]\neffect = \"read\"\n",
        &[],
    );
    let runs = served.checkout.spawn(["run", "gated"]);
    let snapshot = served.checkout.until_state("gated", "running");
    let id: reeve_protocol::ExecutionId = snapshot["id"].as_str().unwrap().parse().unwrap();
    let address = format!("127.0.0.1:{}", served.port);
    let cursors = Cursors::of([(id, reeve_protocol::Seq::NONE)]);
    let mut channel = Channel::new(address, served.token.clone(), cursors).patience(PATIENCE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut next =
        || runtime.block_on(async { tokio::time::timeout(PATIENCE, channel.next()).await });

    let (mut last, mut words, mut killed) = (0, Vec::new(), false);
    loop {
        match next().expect("something comes") {
            Seen::Shown(Shown::Event(event)) => {
                // Another broker has another history: it comes again from its beginning.
                assert!(event.sequence.0 == last + 1 || event.sequence.0 == 1, "{event:?}");
                last = event.sequence.0;
                if let Kind::Log { message, .. } = &event.kind {
                    words.push(message.clone());
                }
                if !killed && words == ["one"] {
                    killed = true;
                    served.broker.kill();
                    served.broker = served.checkout.serve(&[]);
                    let port = served.checkout.lease().and_then(|lease| lease.url).expect("a url");
                    assert!(port.ends_with(&served.port.to_string()), "the port is taken again");
                    until("the run to be back", || served.checkout.list().first().map(|_| ()));
                    served.checkout.write("go", "");
                }
            }
            Seen::Shown(_) | Seen::Cut(_) | Seen::Back => {}
            Seen::Lost(error) => panic!("it gave up: {error:?}"),
            Seen::Done => break,
        }
    }
    assert!(killed && words.ends_with(&["one".to_owned(), "two".to_owned()]), "{words:?}");
    assert_eq!(runs.wait().code(), 0);

    let mut refused = Channel::new(format!("127.0.0.1:{}", served.port), "wrong", Cursors::all());
    let seen = runtime.block_on(refused.next());
    assert!(matches!(seen, Seen::Lost(Some(_))), "a refusal is final: {seen:?}");
}
