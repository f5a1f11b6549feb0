//! A client speaks only with the broker that it meant.

use std::path::Path;

use interprocess::local_socket::ListenerOptions;
use interprocess::local_socket::tokio::Listener;
use reeve_protocol::fault::Code;
use reeve_protocol::time::Timestamp;

use super::*;

fn lease(socket: &Path) -> Lease {
    Lease {
        schema: reeve_protocol::lease::SCHEMA.to_owned(),
        pid: 7,
        start_ticks: 1,
        boot_id: String::new(),
        host_id: String::new(),
        root: "/".into(),
        socket: socket.to_owned(),
        url: None,
        instance: "one".to_owned(),
        version: "1".to_owned(),
        started_at: Timestamp::default(),
    }
}

fn listen(socket: &Path) -> Listener {
    let name = socket.to_fs_name::<GenericFilePath>().unwrap();
    ListenerOptions::new().name(name).reclaim_name(false).create_tokio().unwrap()
}

/// A broker that reads a hello and answers with these frames, then reads on and answers requests.
async fn broker(listener: Listener, answers: BytesMut, close: bool) {
    let mut stream = listener.accept().await.unwrap();
    let mut inbox = BytesMut::new();
    let mut outbox = answers;
    loop {
        while let Some((kind, body)) = frame::take(&mut inbox).unwrap() {
            match kind {
                kind::HELLO => {
                    let hello: Hello = frame::decode(&body).unwrap();
                    assert_eq!(
                        (hello.role, hello.instance.as_deref()),
                        (Role::Client, Some("one"))
                    );
                    stream.write_all(&std::mem::take(&mut outbox)).await.unwrap();
                    if close {
                        return;
                    }
                }
                kind::CTL => {
                    let ctl: Ctl = frame::decode(&body).unwrap();
                    let stale = Res { request: 999, result: Answer::Ok(Value::Null) };
                    let result = match ctl.op {
                        Op::Status {} => Answer::Ok("fine".into()),
                        _ => Answer::Err(Fault::new(Code::NotFound, "no")),
                    };
                    frame::put(&mut outbox, 200, b"before");
                    frame::put_message(&mut outbox, kind::PING, &Ping { nonce: 5 });
                    frame::put_message(&mut outbox, kind::RES, &stale);
                    let res = Res { request: ctl.request, result };
                    frame::put_message(&mut outbox, kind::RES, &res);
                    stream.write_all(&std::mem::take(&mut outbox)).await.unwrap();
                }
                kind::PONG => {
                    assert_eq!(frame::decode::<Ping>(&body).unwrap().nonce, 5);
                }
                other => panic!("a frame of kind {other}"),
            }
        }
        if stream.read_buf(&mut inbox).await.unwrap() == 0 {
            return;
        }
    }
}

fn welcome(proto: u32, instance: &str) -> BytesMut {
    let welcome = Welcome { proto, instance: instance.to_owned(), ..unknown_broker() };
    let mut out = BytesMut::new();
    frame::put_message(&mut out, kind::WELCOME, &welcome);
    out
}

async fn greeted(answers: BytesMut, close: bool) -> Result<Link, LinkError> {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = listen(&socket);
    let lease = lease(&socket);
    let me = Identity::default();
    let (result, ()) =
        tokio::join!(Link::connect(&lease, &me, "test"), broker(listener, answers, close));
    result
}

#[tokio::test]
async fn a_broker_that_is_another_one_is_refused() {
    let refused = greeted(welcome(PROTO, "two"), true).await;
    assert!(matches!(refused, Err(LinkError::OtherInstance)));
    let refused = greeted(welcome(PROTO + 1, "one"), true).await;
    assert!(matches!(refused, Err(LinkError::Proto { theirs, .. }) if theirs == PROTO + 1));
    let mut bye = BytesMut::new();
    frame::put_message(&mut bye, kind::BYE, &Bye { reason: "busy: full".to_owned() });
    assert!(
        matches!(greeted(bye, true).await, Err(LinkError::Bye(reason)) if reason == "busy: full")
    );
    assert!(matches!(greeted(BytesMut::new(), true).await, Err(LinkError::Cut(_))));
    let noise = BytesMut::from(&b"\xff\xff\xff\xff"[..]);
    assert!(matches!(greeted(noise, true).await, Err(LinkError::Broken(_))));
    assert!(greeted(welcome(PROTO, "one"), true).await.is_ok());
}

#[tokio::test]
async fn a_socket_without_a_listener_is_said_to_be_one() {
    let dir = tempfile::tempdir().unwrap();
    let gone = Link::connect(&lease(&dir.path().join("s")), &Identity::default(), "test").await;
    let Err(error @ LinkError::Connect { .. }) = gone else { panic!("nobody listens") };
    assert!(error.may_pass() && error.to_string().contains("pid 7"));
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_says_nothing_is_said_to_be_silent() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let _listener = listen(&socket);
    let silent = Link::connect(&lease(&socket), &Identity::default(), "test").await;
    assert!(matches!(silent, Err(LinkError::Silent { pid: 7 })));
}

#[tokio::test]
async fn an_answer_is_found_among_other_frames_and_none_of_them_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let serving = tokio::spawn(broker(listen(&socket), welcome(PROTO, "one"), false));
    let mut link = Link::connect(&lease(&socket), &Identity::default(), "test").await.unwrap();
    assert_eq!(link.welcome().instance, "one");
    assert_eq!(link.ask(Op::Status {}).await.unwrap(), "fine");
    let refused = link.ask(Op::Capabilities {}).await;
    assert!(matches!(refused, Err(AskError::Fault(fault)) if fault.code == Code::NotFound));
    assert_eq!(link.next_frame().await.unwrap(), (200, Bytes::from_static(b"before")));
    assert_eq!(link.next_frame().await.unwrap().0, 200);
    drop(link);
    serving.await.unwrap();
}
