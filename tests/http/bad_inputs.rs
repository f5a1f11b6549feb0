//! Requests that are none, or not what they say: the outcome of each, in tables.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use reeve_tests::{now, peak_resident};

use crate::{Answer, Served, answer};

/// What every refusal has.
#[track_caller]
fn refused(row: &str, answer: &Answer, status: u16, reason: &str) {
    assert_eq!(answer.status, status, "{row}: {answer:?}");
    assert_eq!(answer.header("connection"), Some("close"), "{row}");
    assert_eq!(answer.header("content-type"), Some("application/json"), "{row}");
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{row}");
    assert!(!answer.head.contains("access-control"), "{row}");
    let error = &answer.json()["error"];
    assert!(error["code"].is_string() && error["message"].is_string(), "{row}: {error}");
    if !reason.is_empty() {
        assert_eq!(error["reason"], reason, "{row}: {error}");
    }
    assert!(answer.body.len() < 2_000, "{row}: little is repeated");
}

#[test]
fn a_head_that_two_readers_could_read_in_two_ways_is_refused() {
    let served = Served::new();
    let host = format!("Host: 127.0.0.1:{}\r\n", served.port);
    let get = "GET /api/v1/executions HTTP/1.1\r\n";
    let rows: &[(&str, String, u16, &str)] = &[
        ("no host", format!("{get}\r\n"), 400, "host"),
        ("two hosts", format!("{get}{host}{host}\r\n"), 400, "host"),
        ("an empty host", format!("{get}Host:\r\n\r\n"), 400, "host"),
        ("HTTP/1.0 without host", "GET / HTTP/1.0\r\n\r\n".to_owned(), 400, "host"),
        (
            "absolute form",
            format!("GET http://evil.example/ HTTP/1.1\r\n{host}\r\n"),
            400,
            "target",
        ),
        ("bare LF", format!("GET / HTTP/1.1\n{host}\r\n"), 400, "line_end"),
        ("a bare CR", format!("GET / HTTP/1.1\r\n{host}A: b\rc\r\n\r\n"), 400, "line_end"),
        ("a fold", format!("{get}{host}A: b\r\n c\r\n\r\n"), 400, "folded_header"),
        ("a space before the colon", format!("{get}{host}A : b\r\n\r\n"), 400, "header"),
        ("97 headers", format!("{get}{host}{}\r\n", "A: b\r\n".repeat(96)), 431, ""),
        ("17 KiB", format!("{get}{host}A: {}\r\n\r\n", "a".repeat(17 << 10)), 431, ""),
        ("a long target", format!("GET /{} HTTP/1.1\r\n{host}\r\n", "a".repeat(9 << 10)), 414, ""),
        ("an unescaped letter", format!("GET /é HTTP/1.1\r\n{host}\r\n"), 400, "target"),
        ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 505, ""),
        ("TLS", "\u{16}\u{3}\u{1}\u{2}\u{0}".to_owned(), 400, "no_http"),
        ("TRACE", format!("TRACE / HTTP/1.1\r\n{host}\r\n"), 405, ""),
        ("CONNECT", format!("CONNECT evil:443 HTTP/1.1\r\n{host}\r\n"), 405, ""),
        ("nothing", "\r\n\r\n".to_owned(), 400, ""),
    ];
    for (row, bytes, status, reason) in rows {
        let answer = served.raw(bytes.as_bytes());
        refused(row, &answer, *status, reason);
        assert!(*status != 405 || answer.header("allow").is_some(), "{row}");
    }
    let raw = [format!("{get}Host: ").as_bytes(), &[0xff, 0xfe], b"\r\n\r\n"].concat();
    refused("a host of other bytes", &served.raw(&raw), 400, "header");
    let raw = [b"GET /\xff HTTP/1.1\r\n", host.as_bytes(), b"\r\n"].concat();
    refused("a target of other bytes", &served.raw(&raw), 400, "target");
    served.still_fine();
}

#[test]
fn a_length_in_doubt_is_refused_before_the_body() {
    let served = Served::new();
    let json = "Content-Type: application/json\r\n";
    for (row, framing, status) in [
        ("both", "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", 400),
        ("two lengths", "Content-Length: 2\r\nContent-Length: 3\r\n", 400),
        ("no number", "Content-Length: 0x2\r\n", 400),
        ("a list", "Content-Length: 2, 2\r\n", 400),
        ("gzip, chunked", "Transfer-Encoding: gzip, chunked\r\n", 400),
        ("xchunked", "Transfer-Encoding: xchunked\r\n", 400),
        ("one byte too many", "Content-Length: 1048577\r\n", 413),
        ("far too many", "Content-Length: 99999999999999999999999\r\n", 400),
    ] {
        let head = served.head("POST /api/v1/executions/start", &format!("{json}{framing}"));
        refused(row, &served.raw(head.as_bytes()), status, "");
    }
    let chunked = served
        .head("POST /api/v1/executions/start", &format!("{json}Transfer-Encoding: chunked\r\n"));
    for (row, chunks, status) in [
        ("a size of no digits", "ZZ\r\n{}\r\n0\r\n\r\n".to_owned(), 400),
        ("a size that does not fit", format!("{}\r\n{{}}\r\n0\r\n\r\n", "F".repeat(17)), 400),
        ("past the bound", format!("110000\r\n{}\r\n0\r\n\r\n", " ".repeat(0x11_0000)), 413),
    ] {
        let answer = served.raw(format!("{chunked}{chunks}").as_bytes());
        refused(row, &answer, status, if status == 400 { "framing" } else { "body_too_large" });
    }
    served.still_fine();
}

#[test]
fn a_body_that_ends_early_starts_nothing() {
    let served = Served::new();
    let body = crate::start(1).to_string();
    let length =
        format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len() + 9);
    let head = served.head("POST /api/v1/executions/start", &length);
    let mut stream = served.connect();
    stream.write_all(format!("{head}{body}").as_bytes()).expect("it can be sent");
    stream.shutdown(std::net::Shutdown::Write).expect("a stream can be ended");
    assert!([0, 400].contains(&answer(&mut stream).status));
    served.still_fine();
}

#[test]
fn a_body_of_another_kind_is_refused() {
    let served = Served::new();
    let body = crate::start(1).to_string();
    for (row, headers) in [
        ("plain text", "Content-Type: text/plain\r\n"),
        ("a form", "Content-Type: application/x-www-form-urlencoded\r\n"),
        ("no kind", ""),
        ("UTF-16", "Content-Type: application/json; charset=utf-16\r\n"),
        ("two kinds", "Content-Type: application/json\r\nContent-Type: application/json\r\n"),
        ("gzip", "Content-Type: application/json\r\nContent-Encoding: gzip\r\n"),
        ("unknown coding", "Content-Type: application/json\r\nContent-Encoding: foo\r\n"),
    ] {
        let length = format!("{headers}Content-Length: {}\r\n", body.len());
        let head = served.head("POST /api/v1/executions/start", &length);
        refused(row, &served.raw(format!("{head}{body}").as_bytes()), 415, "");
    }
    served.still_fine();
}

#[test]
fn json_that_is_none_or_cannot_be_kept_is_refused() {
    let served = Served::new();
    let input = |text: &str| format!("{{\"capability\":\"test\",\"input\":{text}}}");
    let rows: &[(&str, Vec<u8>, &str)] = &[
        ("empty", Vec::new(), "syntax"),
        ("more after it", b"{} x".to_vec(), "syntax"),
        ("a key twice", br#"{"capability":"a","capability":"b"}"#.to_vec(), "duplicate_key"),
        ("a key twice inside", input(r#"{"a":1,"a":2}"#).into_bytes(), "duplicate_key"),
        ("a mark first", b"\xef\xbb\xbf{}".to_vec(), "encoding"),
        ("not UTF-8", b"{\"capability\":\"\xff\"}".to_vec(), "encoding"),
        ("depth 65", format!("{}{}", "[".repeat(65), "]".repeat(65)).into_bytes(), "too_deep"),
        ("a million brackets", "[".repeat(1_000_000).into_bytes(), "too_deep"),
        ("NaN", input(r#"{"a":NaN}"#).into_bytes(), "syntax"),
        ("01", input(r#"{"a":01}"#).into_bytes(), "syntax"),
        ("half a character", input(r#""\ud800""#).into_bytes(), "syntax"),
        ("a huge number", input("18446744073709551616").into_bytes(), "bad_number"),
        ("null", b"null".to_vec(), "shape"),
        ("a number", b"42".to_vec(), "shape"),
        ("an array", b"[]".to_vec(), "shape"),
        ("no capability", b"{}".to_vec(), "shape"),
        ("a capability of another type", br#"{"capability":5,"input":{}}"#.to_vec(), "shape"),
        ("a capability of no shape", br#"{"capability":"a\u0000"}"#.to_vec(), "shape"),
        ("a path", br#"{"capability":"../../bin/sh"}"#.to_vec(), "shape"),
        ("a command", br#"{"capability":"test","command":"rm -rf /"}"#.to_vec(), "unknown_field"),
    ];
    for (row, body, reason) in rows {
        refused(row, &served.post_text("/api/v1/executions/start", body), 400, reason);
    }
    served.still_fine();
}

#[test]
fn many_small_values_cost_little_memory() {
    let served = Served::new();
    served.still_fine();
    let before = peak_resident(served.broker.pid());
    let many = format!("[{}]", vec!["{\"\":0}"; 140_000].join(","));
    let keys: Vec<String> = (0..100_000).map(|n| format!("\"{n}\":0")).collect();
    for body in [many, format!("{{{}}}", keys.join(","))] {
        let answer = served.post_text("/api/v1/executions/start", body.as_bytes());
        refused("many values", &answer, 400, "too_many_nodes");
    }
    let grown = peak_resident(served.broker.pid()).saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes more for two bodies of 1 MiB");
    served.still_fine();
}

#[test]
fn parameters_are_known_and_have_their_shape() {
    let served = Served::new();
    let missing = "x-20261130T120000Z-0a1b2c3d";
    for (target, status, reason) in [
        ("/api/v1/executions?afer=42", 400, "unknown_parameter"),
        ("/api/v1/executions?token=x", 400, "unknown_parameter"),
        ("/api/v1/executions?state=foo", 400, "shape"),
        ("/api/v1/executions?limit=0", 400, ""),
        ("/api/v1/executions?limit=-1", 400, "shape"),
        ("/api/v1/executions?capability=A", 400, "shape"),
        ("/api/v1/executions?state=running&state=failed", 400, "repeated"),
        ("/api/v1/executions/get", 400, "missing"),
        ("/api/v1/executions/get?id=x-1", 400, "shape"),
        ("/api/v1/executions/get?id=%zz", 400, ""),
        ("/api/v1/executions/get?id=%00", 400, "shape"),
        ("/api/v1/executions/get?id=%ff", 400, "shape"),
        (&format!("/api/v1/executions/get?id={missing}"), 404, ""),
        (&format!("/api/v1/executions/events?id={missing}&after=-1"), 400, "shape"),
        (&format!("/api/v1/executions/events?id={missing}&limit=0"), 400, ""),
        ("/api/v1/capabilities/get?id=nothing.here", 404, ""),
        ("/api/v1/instance?nonce=short", 400, "shape"),
        ("/nowhere", 404, "route"),
        ("//api/v1/executions", 404, "route"),
        ("/api/v1/../v1/executions", 404, "route"),
        ("/api/v1/%2e%2e/executions", 404, "route"),
        ("/api/v1/executions/", 404, "route"),
    ] {
        refused(target, &served.get(target), status, reason);
    }
    let known = served.get("/api/v1/executions?afer=42").json();
    assert!(known["error"]["suggestion"].as_str().is_some_and(|hint| hint.contains("state")));
    served.still_fine();
}

#[test]
fn who_sends_slowly_is_told_and_let_go() {
    let served = Served::new();
    let json = "Content-Type: application/json\r\nContent-Length: 100\r\n";
    let post = served.head("POST /api/v1/executions/start", json);
    let (one, other) = (served.connect(), served.connect());
    let head = std::thread::spawn(|| trickle(one, "GET / HTTP/1.1\r\n", "Host: aaaaaaaaaaaa"));
    let (answer, took) = trickle(other, &post, "{\"capability\":\"aaaaaaaaaaaaaaaaaaaaaaaaa");
    refused("a body of two bytes a second", &answer, 408, "body_deadline");
    assert!(took < Duration::from_secs(60), "{took:?}");
    let (answer, took) = head.join().expect("it ran");
    refused("a head of two bytes a second", &answer, 408, "head_deadline");
    assert!(took < Duration::from_secs(60), "{took:?}");
    served.still_fine();
}

fn trickle(mut stream: TcpStream, first: &str, rest: &str) -> (Answer, Duration) {
    let start = now();
    stream.write_all(first.as_bytes()).expect("it can be sent");
    let mut reader = stream.try_clone().expect("a stream can be cloned");
    let reading = std::thread::spawn(move || answer(&mut reader));
    for byte in rest.bytes() {
        if reading.is_finished() || stream.write_all(&[byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    let answer = reading.join().expect("an answer comes");
    (answer, start.elapsed())
}
