//! Cut is not ended: a watcher comes back, or says that it could not.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use interprocess::local_socket::tokio::prelude::*;
use interprocess::local_socket::tokio::{Listener, Stream};
use interprocess::local_socket::{GenericFilePath, ListenerOptions, ToFsName};
use reeve_protocol::batch::Batch;
use reeve_protocol::event::{Kind, Stamped};
use reeve_protocol::id::{ExecutionId, Fence, Handle, Seq};
use reeve_protocol::lifecycle::State;
use reeve_protocol::peer::{PROTO, Welcome, kind};
use reeve_protocol::stream::{End, FollowFrom, Followed, Sub, Subbed};
use reeve_protocol::time::Timestamp;
use reeve_protocol::{Limits, frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

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

fn id() -> ExecutionId {
    ExecutionId::mint(Timestamp::default(), 1)
}

/// Greets, reads until the subscription and answers that it goes on from there.
async fn subscribed(listener: &Listener, handle: u32) -> (Stream, Seq) {
    let mut stream = listener.accept().await.unwrap();
    let mut inbox = BytesMut::new();
    loop {
        while let Some((kind, body)) = frame::take(&mut inbox).unwrap() {
            let mut out = BytesMut::new();
            if kind == kind::HELLO {
                let welcome = Welcome {
                    proto: PROTO,
                    epoch: "e".to_owned(),
                    instance: "one".to_owned(),
                    pid: 7,
                    build: "1".to_owned(),
                    durability: "memory".to_owned(),
                    limits: Limits::default(),
                };
                frame::put_message(&mut out, kind::WELCOME, &welcome);
                stream.write_all(&out).await.unwrap();
                continue;
            }
            let sub: Sub = frame::decode(&body).unwrap();
            let after = sub.executions[0].after;
            let followed = Followed {
                execution: id(),
                handle: Handle(handle),
                capability: "demo.x".parse().unwrap(),
                after,
                last: Seq(3),
                state: State::Running,
            };
            let executions = vec![followed];
            let subbed = Subbed { epoch: "e".to_owned(), executions, unknown: vec![] };
            frame::put_message(&mut out, kind::SUBBED, &subbed);
            stream.write_all(&out).await.unwrap();
            return (stream, after);
        }
        assert!(stream.read_buf(&mut inbox).await.unwrap() > 0);
    }
}

async fn send(stream: &mut Stream, handle: u32, first: u64, count: usize) {
    let event = Stamped { at: Timestamp::default(), kind: Kind::Started {} };
    let batch = Batch::of_events(Handle(handle), Fence(1), Seq(first), &vec![event; count]);
    let mut out = BytesMut::new();
    frame::put(&mut out, kind::BATCH, batch.bytes());
    stream.write_all(&out).await.unwrap();
}

fn watcher(socket: PathBuf, attempts: Arc<AtomicUsize>) -> Watcher {
    let discover = move || {
        attempts.fetch_add(1, Ordering::Relaxed);
        Some(lease(&socket))
    };
    let follower = Follower::of([FollowFrom { execution: id(), after: Seq::NONE }]);
    Watcher::new(discover, Identity::default(), "test", follower, Duration::from_secs(20))
}

#[tokio::test]
async fn a_cut_is_told_and_the_rest_comes_from_the_cursor() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = listen(&socket);
    let broker = tokio::spawn(async move {
        let (mut stream, after) = subscribed(&listener, 1).await;
        assert_eq!(after, Seq::NONE);
        send(&mut stream, 1, 1, 2).await;
        drop(stream);
        let (mut stream, after) = subscribed(&listener, 9).await;
        assert_eq!(after, Seq(2));
        send(&mut stream, 9, 3, 1).await;
        let mut out = BytesMut::new();
        let end = End { handle: Handle(9), last: Seq(3), state: State::Failed };
        frame::put_message(&mut out, kind::END, &end);
        stream.write_all(&out).await.unwrap();
    });
    let mut watcher = watcher(socket, Arc::default());
    let mut told = Vec::new();
    loop {
        told.push(match watcher.next().await {
            Watched::Offer(Offer::Events { batch, .. }) => {
                format!("{}-{}", batch.first(), batch.last())
            }
            Watched::Offer(Offer::Joined { .. }) => "joined".to_owned(),
            Watched::Offer(Offer::End { state, .. }) => state.to_string(),
            Watched::Offer(other) => panic!("{other:?}"),
            Watched::Cut(_) => "cut".to_owned(),
            Watched::Back => "back".to_owned(),
            Watched::Lost(error) => panic!("{error:?}"),
            Watched::Done => break,
        });
    }
    assert_eq!(told, ["joined", "1-2", "cut", "back", "3-3", "failed"]);
    broker.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_does_not_come_back_is_lost_and_nothing_is_said_to_have_ended() {
    let dir = tempfile::tempdir().unwrap();
    let attempts = Arc::new(AtomicUsize::new(0));
    let mut watcher = watcher(dir.path().join("s"), attempts.clone());
    let lost = watcher.next().await;
    assert!(matches!(lost, Watched::Lost(Some(LinkError::Connect { .. }))), "{lost:?}");
    let tried = attempts.load(Ordering::Relaxed);
    assert!((10..40).contains(&tried), "{tried} attempts");
}
