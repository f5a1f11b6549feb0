//! The local socket: accepts, checks who is there, and hands on by role.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use interprocess::local_socket::tokio::{Listener, Stream, prelude::*};
use reeve_protocol::frame::{self, BadFrame};
use reeve_protocol::peer::{Bye, Hello, PROTO, Role, Welcome, kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{client, worker};
use crate::handle::Broker;
use crate::machine::Machine;

/// How long accepting rests after the system refused (too many open files).
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Bytes that one read asks for once a connection is busy.
const READ_BYTES: usize = 256 << 10;
/// Bytes that an idle connection's buffer has.
const IDLE_BYTES: usize = 4 << 10;

/// Accepts connections until the task is dropped.
pub async fn accept(listener: Listener, broker: Broker, machine: Machine, open: Arc<AtomicUsize>) {
    loop {
        match listener.accept().await {
            Ok(stream) => {
                let guard = Open::count(&open);
                let (broker, machine) = (broker.clone(), machine.clone());
                actix::spawn(async move {
                    serve(stream, broker, machine, &guard).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
}

/// Counts one open connection for as long as it lives.
struct Open(Arc<AtomicUsize>, usize);

impl Open {
    fn count(open: &Arc<AtomicUsize>) -> Self {
        let number = open.fetch_add(1, Ordering::Relaxed) + 1;
        Self(Arc::clone(open), number)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve(stream: Stream, broker: Broker, machine: Machine, open: &Open) {
    let me = rustix::process::geteuid().as_raw();
    let peer = stream.peer_creds().ok().and_then(|creds| creds.euid());
    if peer != Some(me) {
        tracing::warn!(?peer, "a connection of another user is closed");
        return;
    }
    let stream = Arc::new(stream);
    let mut reader = Reader { stream: Arc::clone(&stream), buffer: BytesMut::new() };
    let mut writer = Writer { stream, deadline: broker.limits.write_deadline };
    if open.1 > broker.limits.max_connections {
        let reason = format!(
            "busy: max_connections is {}; close one, or try again",
            broker.limits.max_connections
        );
        return writer.bye(&reason).await;
    }
    let hello = match tokio::time::timeout(broker.limits.hello, hello(&mut reader, &broker)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(Some(reason))) => return writer.bye(&reason).await,
        Ok(Err(None)) => return,
        Err(_) => return writer.bye("hello_expected: no hello came in time").await,
    };
    let welcome = Welcome {
        proto: PROTO,
        epoch: broker.about.epoch.clone(),
        instance: broker.about.instance.clone(),
        pid: broker.about.pid,
        build: broker.about.version.clone(),
        durability: broker.store.durability().to_owned(),
        limits: (*broker.limits).clone(),
    };
    let mut out = BytesMut::new();
    frame::put_message(&mut out, kind::WELCOME, &welcome);
    if writer.write(&out).await.is_err() {
        return;
    }
    match hello.role {
        Role::Worker => worker::serve(reader, writer, hello, broker, machine).await,
        Role::Client => client::serve(reader, writer, broker).await,
    }
}

/// Reads the first frame; an error without a reason needs no answer.
async fn hello(reader: &mut Reader, broker: &Broker) -> Result<Hello, Option<String>> {
    let first = reader.frame().await.map_err(|bad| Some(bad.to_string()))?;
    let (first_kind, body) = first.ok_or(None)?;
    if first_kind != kind::HELLO {
        return Err(Some(format!("hello_expected: the first frame has kind {first_kind}")));
    }
    let hello: Hello = frame::decode(&body).map_err(|bad| Some(bad.to_string()))?;
    if hello.proto != PROTO {
        return Err(Some(format!(
            "unsupported_version: protocol {}; this broker speaks {PROTO} to {PROTO}",
            hello.proto
        )));
    }
    match &hello.instance {
        Some(instance) if *instance != broker.about.instance => {
            Err(Some("stale_instance: another broker lives here now; read the lease again".into()))
        }
        Some(_) | None => Ok(hello),
    }
}

/// Reads frames of one connection.
pub(super) struct Reader {
    stream: Arc<Stream>,
    buffer: BytesMut,
}

impl Reader {
    /// Reads the next frame; `None` at the end of the stream.
    pub async fn frame(&mut self) -> Result<Option<(u8, Bytes)>, BadFrame> {
        loop {
            if let Some(frame) = frame::take(&mut self.buffer)? {
                return Ok(Some(frame));
            }
            if !self.fill().await {
                return Ok(None);
            }
        }
    }

    /// Reads every frame that one read of the socket brings; empty at the end of the stream.
    ///
    /// What came before a frame that cannot be taken is returned first; the error comes next.
    pub async fn frames(&mut self) -> Result<Vec<(u8, Bytes)>, BadFrame> {
        let mut frames = Vec::new();
        loop {
            loop {
                match frame::take(&mut self.buffer) {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(bad) if frames.is_empty() => return Err(bad),
                    // It stays in the buffer and is met again.
                    Err(_) => break,
                }
            }
            if !frames.is_empty() || !self.fill().await {
                return Ok(frames);
            }
        }
    }

    /// Reads once; `false` at the end of the stream.
    async fn fill(&mut self) -> bool {
        if self.buffer.is_empty() && self.buffer.capacity() < IDLE_BYTES {
            self.buffer.reserve(IDLE_BYTES);
        } else if self.buffer.spare_capacity_mut().len() < IDLE_BYTES {
            self.buffer.reserve(READ_BYTES);
        }
        match (&*self.stream).read_buf(&mut self.buffer).await {
            Ok(0) => false,
            Ok(read) => {
                if read >= IDLE_BYTES {
                    self.buffer.reserve(READ_BYTES);
                }
                true
            }
            Err(error) => {
                tracing::debug!(%error, "a connection broke");
                false
            }
        }
    }
}

/// Writes to one connection; a peer that takes nothing for too long is given up.
pub(super) struct Writer {
    stream: Arc<Stream>,
    deadline: Duration,
}

impl Writer {
    /// Writes all of `bytes`; the deadline starts anew whenever some of them were taken.
    pub async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = tokio::time::timeout(self.deadline, (&*self.stream).write(bytes)).await;
            match written {
                Ok(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(Ok(count)) => bytes = &bytes[count..],
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        Ok(())
    }

    /// Says why the connection is closed, if the peer still listens.
    pub async fn bye(&mut self, reason: &str) {
        let mut out = BytesMut::new();
        frame::put_message(&mut out, kind::BYE, &Bye { reason: reason.to_owned() });
        if let Err(error) = self.write(&out).await {
            tracing::debug!(%error, reason, "a connection was gone before its goodbye");
        }
    }
}
