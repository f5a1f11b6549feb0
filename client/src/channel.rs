//! The live channel as a client sees it: `/events` over HTTP, made again whenever it is cut.
//!
//! For programs that have a broker's address and a token and not its socket. Owns the connection;
//! what is new is for [`Cursors`] to say. Its rule: an execution that ended and a connection that
//! was cut are never taken for each other.
//!
//! ```no_run
//! # async fn follow(id: reeve_protocol::ExecutionId) {
//! use reeve_client::channel::{Channel, Cursors, Seen, Shown};
//! use reeve_protocol::Seq;
//!
//! let cursors = Cursors::of([(id, Seq::NONE)]);
//! let mut channel = Channel::new("127.0.0.1:7000", "the token", cursors);
//! loop {
//!     match channel.next().await {
//!         Seen::Shown(Shown::Event(event)) => println!("{} {}", event.sequence, event.kind.tag()),
//!         Seen::Shown(other) => println!("{other:?}"),
//!         Seen::Cut(why) => eprintln!("{why}; connecting again"),
//!         Seen::Back => eprintln!("nothing was missed that is not named"),
//!         Seen::Done | Seen::Lost(_) => break,
//!     }
//! }
//! # }
//! ```

mod cursors;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderValue, header};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

pub use cursors::{Broken, Cursors, Shown};

/// The first pause before another attempt; it doubles, and up to half of it is added by chance.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// The longest pause before another attempt.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a channel may say nothing: two and a half of the broker's heartbeats.
const SILENCE: Duration = Duration::from_secs(50);
/// Bytes of one document, at most; the broker sends none above 256 KiB.
const DOCUMENT_MAX: usize = 1 << 20;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The broker did not take the upgrade: trying again changes nothing.
    #[error("the broker refuses the channel with status {0}")]
    Refused(u16),
    /// The address or the token is none.
    #[error("{0} is no address and token of a broker")]
    Address(String),
    /// The connection could not be made, or ended.
    #[error("the connection to the broker ended")]
    Cut(#[source] Option<Box<tungstenite::Error>>),
    /// Nothing came for longer than a living channel is quiet.
    #[error("the broker has said nothing for {} s", SILENCE.as_secs())]
    Silent,
    /// What came cannot be believed.
    #[error(transparent)]
    Broken(#[from] Broken),
}

impl ChannelError {
    fn is_final(&self) -> bool {
        match self {
            Self::Refused(status) => !matches!(status, 429 | 500..=599),
            Self::Address(_) => true,
            Self::Cut(_) | Self::Silent | Self::Broken(_) => false,
        }
    }
}

/// What a channel reports.
#[derive(Debug)]
pub enum Seen {
    /// Something to show.
    Shown(Shown),
    /// The connection was cut; it is being made again.
    Cut(ChannelError),
    /// The connection is there again, and nothing was missed that is not named.
    Back,
    /// The connection could not be made again in time. What is followed may well go on.
    Lost(Option<ChannelError>),
    /// Everything that was followed has ended.
    Done,
}

/// Follows executions over HTTP, across connections.
pub struct Channel {
    address: String,
    token: String,
    cursors: Cursors,
    patience: Duration,
    socket: Option<WebSocketStream<TcpStream>>,
    shown: VecDeque<Seen>,
    pause: Duration,
    attempt_at: Option<Instant>,
    give_up: Option<Instant>,
    was_connected: bool,
    lost: bool,
    last_error: Option<ChannelError>,
}

impl Channel {
    /// Makes a channel to the broker at `address`, such as `127.0.0.1:7000`, that is tried for half
    /// a minute whenever it is cut.
    pub fn new(address: impl Into<String>, token: impl Into<String>, cursors: Cursors) -> Self {
        Self {
            address: address.into(),
            token: token.into(),
            cursors,
            patience: Duration::from_secs(30),
            socket: None,
            shown: VecDeque::new(),
            pause: PAUSE_FIRST,
            attempt_at: None,
            give_up: None,
            was_connected: false,
            lost: false,
            last_error: None,
        }
    }

    /// Sets for how long a connection that was cut is tried to be made again.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Returns what is held of each execution.
    pub fn cursors(&self) -> &Cursors {
        &self.cursors
    }

    /// Returns what comes next. May be dropped and called again; nothing is lost.
    ///
    /// After [`Seen::Done`] and [`Seen::Lost`] it returns the same again.
    pub async fn next(&mut self) -> Seen {
        loop {
            if let Some(seen) = self.shown.pop_front() {
                return seen;
            }
            if self.cursors.is_done() {
                return Seen::Done;
            }
            if self.lost {
                return Seen::Lost(self.last_error.take());
            }
            if self.socket.is_none() {
                self.connect().await;
            } else if let Err(error) = self.step().await {
                self.socket = None;
                self.attempt_at = None;
                self.shown.push_back(Seen::Cut(error));
            }
        }
    }

    /// Takes one message.
    async fn step(&mut self) -> Result<(), ChannelError> {
        let socket = self.socket.as_mut().ok_or(ChannelError::Cut(None))?;
        let message = timeout(SILENCE, socket.next()).await.map_err(|_| ChannelError::Silent)?;
        let message = message.ok_or(ChannelError::Cut(None))?;
        match message.map_err(|error| ChannelError::Cut(Some(Box::new(error))))? {
            Message::Text(text) => {
                let shown = self.cursors.handle_text(&text)?;
                self.shown.extend(shown.into_iter().map(Seen::Shown));
                Ok(())
            }
            Message::Close(_) => Err(ChannelError::Cut(None)),
            // The answer to a ping is written by the library, and sent with the next flush.
            Message::Ping(_) => {
                let flushed = socket.flush().await;
                flushed.map_err(|error| ChannelError::Cut(Some(Box::new(error))))
            }
            Message::Binary(_) | Message::Pong(_) | Message::Frame(_) => Ok(()),
        }
    }

    /// Makes one attempt, after the pause that is due.
    async fn connect(&mut self) {
        if let Some(at) = self.attempt_at {
            sleep_until(at).await;
        }
        let give_up = *self.give_up.get_or_insert_with(|| Instant::now() + self.patience);
        self.cursors.handle_connected();
        let attempt = self.attempt();
        let attempt = timeout(CONNECT, attempt).await.unwrap_or(Err(ChannelError::Silent));
        match attempt {
            Ok(socket) => {
                self.socket = Some(socket);
                self.pause = PAUSE_FIRST;
                self.attempt_at = None;
                self.give_up = None;
                if std::mem::replace(&mut self.was_connected, true) {
                    self.shown.push_back(Seen::Back);
                }
            }
            Err(error) => {
                let pause = self.pause + self.pause.mul_f64(f64::from(chance()) / 512.0);
                self.lost = error.is_final() || Instant::now() + pause > give_up;
                self.last_error = Some(error);
                self.attempt_at = Some(Instant::now() + pause);
                self.pause = (self.pause * 2).min(PAUSE_MAX);
            }
        }
    }

    async fn attempt(&self) -> Result<WebSocketStream<TcpStream>, ChannelError> {
        let bad = |_| ChannelError::Address(self.address.clone());
        let url = format!("ws://{}{}", self.address, self.cursors.target());
        let mut request = url.into_client_request().map_err(bad)?;
        let token = HeaderValue::from_str(&format!("Bearer {}", self.token))
            .map_err(|_| ChannelError::Address(self.address.clone()))?;
        request.headers_mut().insert(header::AUTHORIZATION, token);
        let cut = |error: std::io::Error| ChannelError::Cut(Some(Box::new(error.into())));
        let stream = TcpStream::connect(&self.address).await.map_err(cut)?;
        stream.set_nodelay(true).map_err(cut)?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(DOCUMENT_MAX))
            .max_frame_size(Some(DOCUMENT_MAX));
        match client_async_with_config(request, stream, Some(config)).await {
            Ok((socket, _)) => Ok(socket),
            Err(tungstenite::Error::Http(response)) => {
                Err(ChannelError::Refused(response.status().as_u16()))
            }
            Err(error) => Err(ChannelError::Cut(Some(Box::new(error)))),
        }
    }
}

/// Draws a number, so that many readers do not come back at once.
fn chance() -> u8 {
    let mut byte = [0];
    // Without chance they all wait alike, which is no fault of this one.
    if getrandom::fill(&mut byte).is_err() {
        return 0;
    }
    byte[0]
}
