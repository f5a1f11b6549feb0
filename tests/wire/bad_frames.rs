//! Bytes that are no conversation.

use std::io::Write;

use bytes::BytesMut;
use reeve_protocol::frame;
use reeve_protocol::peer::{Hello, Role, kind};
use reeve_tests::wire::{Wire, hello};

use crate::Served;

#[track_caller]
fn refused(served: &Served, bytes: &[u8], reason: &str) {
    let mut wire = Wire::silent(&served.socket);
    wire.raw(bytes);
    let said = wire.closed();
    assert!(said.contains(reason), "{said:?} should name {reason:?}");
    served.still_answers();
}

fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    frame::put(&mut out, kind, body);
    out.to_vec()
}

#[test]
fn a_frame_without_a_kind_or_beyond_the_bound_is_refused() {
    let served = Served::plain();
    refused(&served, &[0, 0, 0, 0], "bad_frame");
    refused(&served, &[0xff, 0xff, 0xff, 0xff], "frame_too_large");
    refused(&served, &[0x00, 0x10, 0x00, 0x01], "frame_too_large");
}

#[test]
fn half_a_length_and_then_the_end_is_nothing() {
    let served = Served::plain();
    let mut wire = Wire::silent(&served.socket);
    wire.raw(&[0, 0]);
    wire.stream().shutdown(std::net::Shutdown::Write).expect("a stream can be ended");
    assert_eq!(wire.closed(), "");
    served.still_answers();
}

#[test]
fn the_first_frame_is_hello_and_comes_in_time() {
    let served = Served::with(&[("hello", "200ms")]);
    refused(&served, &framed(kind::CTL, &[0x80]), "hello_expected");
    assert!(Wire::silent(&served.socket).closed().contains("hello_expected"));
    served.still_answers();
}

#[test]
fn a_message_that_is_not_well_formed_is_refused_by_its_fault() {
    let served = Served::plain();
    let nested = |depth: usize| [vec![0x91; depth], vec![0xc0]].concat();
    let claims = |marker: u8| vec![marker, 0xff, 0xff, 0xff, 0xff];
    for (body, reason) in [
        (vec![0xc0, 0xc0], "after the value"),
        (nested(65), "too_deep"),
        (nested(1_024), "too_deep"),
        (nested(1_000_000), "too_deep"),
        (claims(0xdd), "beyond the end"),
        (claims(0xdf), "beyond the end"),
        (claims(0xc6), "beyond the end"),
        (claims(0xdb), "beyond the end"),
        (vec![0xd4, 0x01, 0x00], "not taken"),
        (vec![0xc1], "not taken"),
        (vec![0x81, 0x01, 0x02], "key"),
        (vec![0x82, 0xa1, b'a', 0x01, 0xa1, b'a', 0x02], "duplicate"),
        (vec![0xa2, 0xff, 0xfe], "UTF-8"),
        (vec![0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0], "finite"),
        ([vec![0xdc, 0xff, 0xff], vec![0xc0; 65_535]].concat(), "too_many_nodes"),
    ] {
        refused(&served, &framed(kind::HELLO, &body), reason);
    }
}

#[test]
fn another_version_is_told_which_one_is_spoken() {
    let served = Served::plain();
    for proto in [0, 99] {
        let hello = Hello { proto, ..hello(Role::Client) };
        refused(&served, &framed(kind::HELLO, &frame::encode(&hello)), "unsupported_version");
    }
}

#[test]
fn a_peer_that_means_another_broker_is_told_so() {
    let served = Served::plain();
    let hello = Hello { instance: Some("0".repeat(32)), ..hello(Role::Worker) };
    refused(&served, &framed(kind::HELLO, &frame::encode(&hello)), "stale_instance");
}

#[test]
fn a_frame_of_an_unknown_kind_is_skipped() {
    let served = Served::plain();
    let mut wire = Wire::client(&served.socket);
    wire.raw(&framed(250, &[1, 2, 3]));
    assert!(wire.ask(reeve_protocol::stream::Op::Status {}).is_ok());
}

#[test]
fn a_role_sends_its_own_frames_only() {
    let served = Served::plain();
    let mut client = Wire::client(&served.socket);
    client.raw(&framed(kind::HEARTBEAT, &[0x80]));
    assert!(client.closed().contains("forbidden_role"));
    let mut worker = Wire::worker(&served.socket);
    worker.raw(&framed(kind::CTL, &[0x80]));
    assert!(worker.closed().contains("forbidden_role"));
    served.still_answers();
}

#[test]
fn random_bytes_never_end_the_broker() {
    let served = Served::plain();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..300 {
        let mut wire = if round % 2 == 0 {
            Wire::silent(&served.socket)
        } else {
            Wire::worker(&served.socket)
        };
        let length = usize::try_from(random() % 2_000).expect("small");
        let mut bytes: Vec<u8> = (0..length).map(|_| random().to_be_bytes()[3]).collect();
        if round % 3 == 0 && bytes.len() > 8 {
            let body = u32::try_from(bytes.len() - 4).expect("small");
            bytes[..4].copy_from_slice(&body.to_be_bytes());
            bytes[4] = u8::try_from(random() % 70).expect("small");
        }
        wire.raw(&bytes);
        drop(wire);
    }
    served.still_answers();
}

#[test]
fn a_thousand_connections_that_say_nothing_block_nobody() {
    let served = Served::with(&[("hello", "2s"), ("max_connections", "600")]);
    let silent: Vec<_> = (0..550).map(|_| Wire::silent(&served.socket)).collect();
    served.still_answers();
    let mut rest: Vec<_> = (0..80).map(|_| Wire::silent(&served.socket)).collect();
    let told = rest.iter_mut().map(Wire::closed).filter(|said| said.contains("busy")).count();
    assert!(told > 0, "who comes beyond max_connections is told busy");
    drop((silent, rest));
    reeve_tests::until("room for a connection", || {
        let mut wire = Wire::silent(&served.socket);
        wire.send(kind::HELLO, &hello(Role::Client));
        matches!(wire.recv(), Some((kind::WELCOME, _))).then_some(())
    });
}

#[test]
fn a_descriptor_that_is_passed_along_is_not_kept() {
    let served = Served::plain();
    let pid = served.broker.pid();
    let open = || std::fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).unwrap_or(0);
    // Some of its own may follow; of those that are passed there are hundreds.
    let before = open();
    for _ in 0..50 {
        let mut wire = Wire::silent(&served.socket);
        pass_descriptors(wire.stream());
        wire.raw(&framed(kind::CTL, &[0x80]));
        wire.closed();
    }
    served.still_answers();
    reeve_tests::until("the descriptors to be closed", || (open() <= before + 20).then_some(()));
}

fn pass_descriptors(stream: &std::os::unix::net::UnixStream) {
    use std::os::fd::AsFd;
    let file = std::fs::File::open("/dev/null").expect("there is a null device");
    let fds = [file.as_fd(); 8];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
    let sent = rustix::net::sendmsg(
        stream,
        &[std::io::IoSlice::new(&[0])],
        &mut ancillary,
        rustix::net::SendFlags::empty(),
    );
    assert!(sent.is_ok(), "{sent:?}");
    let _ = std::io::stdout().flush();
}
