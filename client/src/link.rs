//! A client's connection to a broker: the greeting, requests, and the frames of what is followed.
//!
//! Owns one socket and what was read from it. Its rule: a connection is with the very broker whose
//! lease was read, or it is none. Every wait can be dropped and taken up again without losing a
//! byte. Decides nothing about cursors.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use interprocess::local_socket::tokio::Stream;
use interprocess::local_socket::tokio::prelude::*;
use interprocess::local_socket::{GenericFilePath, ToFsName};
use reeve_protocol::fault::Fault;
use reeve_protocol::frame::{self, BadFrame};
use reeve_protocol::lease::Lease;
use reeve_protocol::peer::{Bye, Hello, PROTO, Ping, Role, Welcome, kind};
use reeve_protocol::place::Identity;
use reeve_protocol::stream::{Answer, Ctl, Op, Res, Sub, Unsub};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long a broker that accepted a connection may take to greet. A slow broker is told of, never
/// taken over.
const GREETING: Duration = Duration::from_secs(5);
/// Bytes that a read has room for.
const READ_BYTES: usize = 64 << 10;

/// Why there is no connection, or no longer one.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Nobody listens on the socket that the lease names.
    #[error("cannot connect to the broker (pid {pid})")]
    Connect {
        /// The broker's process, by its lease.
        pid: u32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The broker is there and says nothing.
    #[error("the broker (pid {pid}) does not answer")]
    Silent {
        /// The broker's process, by its lease.
        pid: u32,
    },
    /// Another broker's life answers than the one that the lease names.
    #[error("another broker answers than the lease names; try again")]
    OtherInstance,
    /// The two speak no common version.
    #[error(
        "the broker (version {build}) speaks version {theirs} of the protocol, this program version {PROTO}"
    )]
    Proto {
        /// What it speaks.
        theirs: u32,
        /// Its version.
        build: String,
    },
    /// The broker closed the connection and said why.
    #[error("the broker closed the connection: {0}")]
    Bye(String),
    /// The connection ended without a word.
    #[error("the connection to the broker was cut")]
    Cut(#[source] Option<io::Error>),
    /// What came is no frame.
    #[error("the broker's answer cannot be read")]
    Broken(#[from] BadFrame),
}

impl LinkError {
    /// Returns whether the same thing may go well in a moment.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::OtherInstance | Self::Bye(_) | Self::Cut(_) => true,
            Self::Silent { .. } | Self::Proto { .. } | Self::Broken(_) => false,
        }
    }
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The broker refused it.
    #[error(transparent)]
    Fault(Box<Fault>),
    /// The connection ended first. Whether the request was carried out is not known.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// A connection on which both ends have greeted.
pub struct Link {
    stream: Stream,
    inbox: BytesMut,
    outbox: BytesMut,
    waiting: VecDeque<(u8, Bytes)>,
    next_request: u64,
    welcome: Welcome,
}

impl Link {
    /// Connects to the broker of a lease and greets it as a client of this name.
    ///
    /// # Errors
    ///
    /// [`LinkError`]; [`LinkError::may_pass`] says whether trying again makes sense.
    pub async fn connect(lease: &Lease, me: &Identity, name: &str) -> Result<Self, LinkError> {
        let refused = |source| LinkError::Connect { pid: lease.pid, source };
        let socket = lease.socket.as_path().to_fs_name::<GenericFilePath>().map_err(refused)?;
        let stream = Stream::connect(socket).await.map_err(refused)?;
        let hello = Hello {
            proto: PROTO,
            role: Role::Client,
            name: name.to_owned(),
            pid: me.pid,
            start_ticks: me.start_ticks,
            build: env!("CARGO_PKG_VERSION").to_owned(),
            instance: Some(lease.instance.clone()),
        };
        tokio::time::timeout(GREETING, Self::greet(stream, &hello))
            .await
            .map_err(|_| LinkError::Silent { pid: lease.pid })?
    }

    async fn greet(stream: Stream, hello: &Hello) -> Result<Self, LinkError> {
        let mut link = Self {
            stream,
            inbox: BytesMut::new(),
            outbox: BytesMut::new(),
            waiting: VecDeque::new(),
            next_request: 1,
            welcome: unknown_broker(),
        };
        frame::put_message(&mut link.outbox, kind::HELLO, hello);
        // A broker that refuses may close before it has read all: what it said counts.
        let sent = link.flush().await;
        let (kind, body) = match link.read_frame().await {
            Err(LinkError::Cut(None)) => return Err(sent.err().unwrap_or(LinkError::Cut(None))),
            other => other?,
        };
        if kind != kind::WELCOME {
            return Err(BadFrame::new("the broker's first frame is no welcome").into());
        }
        let welcome: Welcome = frame::decode(&body)?;
        if welcome.proto != PROTO {
            return Err(LinkError::Proto { theirs: welcome.proto, build: welcome.build });
        }
        if hello.instance.as_ref().is_some_and(|expected| *expected != welcome.instance) {
            return Err(LinkError::OtherInstance);
        }
        link.welcome = welcome;
        Ok(link)
    }

    /// Returns what the broker said of itself.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Asks, and waits for the answer. Other frames that come first are kept for
    /// [`Link::next_frame`].
    ///
    /// # Errors
    ///
    /// [`AskError`]: the broker's no, or the end of the connection.
    pub async fn ask(&mut self, op: Op) -> Result<Value, AskError> {
        let request = self.next_request;
        self.next_request += 1;
        frame::put_message(&mut self.outbox, kind::CTL, &Ctl { request, op });
        self.flush().await?;
        loop {
            let (kind, body) = self.read_frame().await?;
            if kind != kind::RES {
                self.waiting.push_back((kind, body));
                continue;
            }
            let answer: Res = frame::decode(&body).map_err(LinkError::Broken)?;
            if answer.request == request {
                return match answer.result {
                    Answer::Ok(value) => Ok(value),
                    Answer::Err(fault) => Err(AskError::Fault(Box::new(fault))),
                };
            }
        }
    }

    /// Asks to follow executions.
    ///
    /// # Errors
    ///
    /// When the connection ends.
    pub async fn subscribe(&mut self, sub: &Sub) -> Result<(), LinkError> {
        frame::put_message(&mut self.outbox, kind::SUB, sub);
        self.flush().await
    }

    /// Asks to follow executions no longer.
    ///
    /// # Errors
    ///
    /// When the connection ends.
    pub async fn unsubscribe(&mut self, unsub: &Unsub) -> Result<(), LinkError> {
        frame::put_message(&mut self.outbox, kind::UNSUB, unsub);
        self.flush().await
    }

    /// Returns the next frame that is not about the connection itself.
    ///
    /// # Errors
    ///
    /// When the connection ends.
    pub async fn next_frame(&mut self) -> Result<(u8, Bytes), LinkError> {
        match self.waiting.pop_front() {
            Some(frame) => Ok(frame),
            None => self.read_frame().await,
        }
    }

    async fn read_frame(&mut self) -> Result<(u8, Bytes), LinkError> {
        loop {
            // An answer to a ping that did not get out the last time.
            self.flush().await?;
            while let Some((kind, body)) = frame::take(&mut self.inbox)? {
                match kind {
                    kind::PING => {
                        let ping: Ping = frame::decode(&body)?;
                        frame::put_message(&mut self.outbox, kind::PONG, &ping);
                        self.flush().await?;
                    }
                    kind::BYE => {
                        let bye: Bye = frame::decode(&body)?;
                        return Err(LinkError::Bye(bye.reason));
                    }
                    _ => return Ok((kind, body)),
                }
            }
            self.inbox.reserve(READ_BYTES);
            match self.stream.read_buf(&mut self.inbox).await {
                Ok(0) => return Err(LinkError::Cut(None)),
                Ok(_) => {}
                Err(error) => return Err(LinkError::Cut(Some(error))),
            }
        }
    }

    async fn flush(&mut self) -> Result<(), LinkError> {
        while self.outbox.has_remaining() {
            match self.stream.write_buf(&mut self.outbox).await {
                Ok(0) => return Err(LinkError::Cut(None)),
                Ok(_) => {}
                Err(error) => return Err(LinkError::Cut(Some(error))),
            }
        }
        Ok(())
    }
}

fn unknown_broker() -> Welcome {
    Welcome {
        proto: 0,
        epoch: String::new(),
        instance: String::new(),
        pid: 0,
        build: String::new(),
        durability: String::new(),
        limits: reeve_protocol::Limits::default(),
    }
}

#[cfg(test)]
mod tests;
