//! Crowds: more connections, upgrades and descriptors than there may be.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use reeve_protocol::{Kind, Seq};
use reeve_tests::until;
use reeve_tests::wire::id;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use serde_json::json;

use crate::Served;
use crate::api::{running, until_last};
use crate::channel::{KEY, Open, UPGRADE, lines};

/// Connections that a broker holds, at most.
const CONNECTIONS_MAX: usize = 1_024;
/// Live channels, at most.
const CHANNELS_MAX: usize = 64;

#[test]
fn the_connection_beyond_the_bound_is_told_so_and_a_later_one_is_served() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let served = Served::new();
    // Whoever asks nothing for long is let go, so on a slow machine it may take another try.
    let (refused, crowd) = until("one to be refused", || {
        let mut crowd = Vec::new();
        for hundred in (0..CONNECTIONS_MAX).step_by(100) {
            let some = hundred..CONNECTIONS_MAX.min(hundred + 100);
            crowd.extend(some.map(|_| served.connect()));
            // They wait in line only for so long as nobody takes them.
            let answer = served.get("/healthz");
            if answer.status != 200 {
                assert_eq!(crowd.len(), CONNECTIONS_MAX);
                return Some((answer, crowd));
            }
        }
        None
    });
    assert_eq!((refused.status, refused.reason().as_str()), (429, "too_many_connections"));
    assert!(refused.header("retry-after").is_some());
    drop(crowd);
    until("room", || (served.get("/healthz").status == 200).then_some(()));
    served.still_fine();
}

#[test]
fn a_storm_of_upgrades_gets_as_many_channels_as_there_are() {
    let served = Served::new();
    let headers = format!("{UPGRADE}Sec-WebSocket-Version: 13\r\n{KEY}");
    let head = served.head("GET /events", &headers);
    let port = served.port;
    let upgrade = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it takes connections");
        stream.write_all(head.as_bytes()).expect("it can be sent");
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("an answer comes");
        (stream, String::from_utf8_lossy(&status[9..]).into_owned())
    };
    let answers: Vec<(TcpStream, String)> = std::thread::scope(|scope| {
        let storm: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| (0..100).map(|_| upgrade()).collect::<Vec<_>>()))
            .collect();
        storm.into_iter().flat_map(|one| one.join().expect("it asks to the end")).collect()
    });
    let of = |status: &str| answers.iter().filter(|(_, answer)| answer == status).count();
    assert_eq!((of("101"), of("503")), (CHANNELS_MAX, answers.len() - CHANNELS_MAX));
    drop(answers);
    until("every place to be free", || {
        let list = served.get("/api/v1/executions").json();
        (list["live_channels"] == 0).then_some(())
    });
    served.still_fine();
}

#[test]
fn a_reader_that_is_reset_within_a_frame_is_forgotten_and_the_others_miss_nothing() {
    let served = Served::new();
    let (mut worker, mut granted) = running(&served, 1, &[]);
    let mut other = Open::at(&served, &format!("?execution={}", id(1)));
    let headers = format!("{UPGRADE}Sec-WebSocket-Version: 13\r\n{KEY}");
    let head = served.head(&format!("GET /events?execution={}", id(1)), &headers);
    for round in 1..=20 {
        let mut stream = served.connect();
        stream.write_all(head.as_bytes()).expect("it can be sent");
        lines(&mut worker, &mut granted, 50, 200);
        until_last(&served, 1, 3 + round * 50);
        // Somewhere within a frame; what is left unread makes it a reset.
        let mut some = vec![0; 1_000 + usize::try_from(round).expect("few") * 97];
        stream.read_exact(&mut some).expect("it is sent");
        drop(stream);
    }
    worker.report(&mut granted, &[Kind::Completed { output: json!(null), receipt: None }]);
    other.events(&mut 0, 3 + 20 * 50 + 1);
    until("the others to be forgotten", || {
        let list = served.get("/api/v1/executions").json();
        (list["live_channels"] == 1).then_some(())
    });
    assert_eq!(granted.next, Seq(3 + 20 * 50 + 2));
}

#[test]
fn a_broker_without_a_descriptor_left_goes_on_and_recovers() {
    let served = Served::new();
    let (mut worker, mut granted) = running(&served, 1, &[]);
    let mut channel = Open::at(&served, &format!("?execution={}", id(1)));
    let mut at = 0;
    channel.events(&mut at, 3);
    let broker = Pid::from_raw(i32::try_from(served.broker.pid()).unwrap());
    let before = getrlimit(Resource::Nofile);
    let before = prlimit(broker, Resource::Nofile, Rlimit { current: Some(3), ..before }).unwrap();
    let mut waiting = served.connect();
    waiting.write_all(served.head("GET /healthz", "").as_bytes()).unwrap();
    // Who is there already is served as ever.
    for _ in 0..20 {
        lines(&mut worker, &mut granted, 50, 20);
        channel.events(&mut at, 50);
    }
    waiting.set_nonblocking(true).unwrap();
    assert!(waiting.read(&mut [0]).is_err(), "it could not be accepted");
    waiting.set_nonblocking(false).unwrap();
    prlimit(broker, Resource::Nofile, before).unwrap();
    assert_eq!(crate::answer(&mut waiting).status, 200);
    drop(waiting.shutdown(Shutdown::Both));
    assert_eq!(served.get("/healthz").status, 200);
}
