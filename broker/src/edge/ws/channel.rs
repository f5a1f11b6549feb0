//! A channel while it lives: what is new goes out, what the client says comes in.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use reeve_protocol::stream::{FollowFrom, Subbed};
use reeve_protocol::{ExecutionId, Fault, Handle, Limits, Seq};
use serde_json::{Map, Value, json};
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, error::ProtocolError};

use super::encode::{Encoder, Sent, document};
use super::frames::{self, Asked};
use super::lengths::Lengths;
use super::target::Target;
use crate::edge::http::Surface;
use crate::edge::left::Left;
use crate::plane::{Input, Reply, SubscriberId};
use crate::pump::Pump;
use crate::switchboard::Signal;
use crate::token::{Scope, Scopes, Token};

/// How often the clock is looked at within one heartbeat.
const LOOKS: u32 = 4;
/// Bytes of history that are read and written at once.
const PAGE_BYTES: usize = 256 << 10;
/// Bytes of a frame of a client, at most.
const CLIENT_FRAME_MAX: usize = 4 << 10;
/// Bytes that are written at once, each within the deadline.
const WRITE_BYTES: usize = 64 << 10;
/// Bytes that an idle channel's buffers keep.
const IDLE_BYTES: usize = 4 << 10;
/// Frames of a client within one second, at most.
const RATE_MAX: u32 = 1_000;
/// Frames that make no sense, after which a channel is closed.
const WRONG_MAX: u32 = 3;
/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);

type Socket = WebSocketStream<Lengths<TokioIo<Upgraded>>>;

/// Returns the heartbeat in whole seconds, as it is told.
pub fn heartbeat_seconds(limits: &Limits) -> u64 {
    limits.channel_heartbeat.as_secs().max(1)
}

/// How a channel ends.
enum End {
    /// The peer is gone, or takes nothing.
    Gone,
    /// We close it, and why.
    Close(CloseCode, String),
}

struct Channel {
    surface: Surface,
    socket: Socket,
    pump: Pump,
    encoder: Encoder,
    subscriber: SubscriberId,
    signal: Arc<Signal>,
    scopes: Option<Scopes>,
    token: Token,
    out: BytesMut,
    sent_at: Duration,
    heard_at: Duration,
    pinged_at: Duration,
    second: (Duration, u32),
    wrong: u32,
}

/// Serves a channel until it ends.
pub async fn serve(upgraded: Upgraded, target: Target, scopes: Option<Scopes>, surface: Surface) {
    let config = WebSocketConfig::default()
        .read_buffer_size(IDLE_BYTES)
        .write_buffer_size(IDLE_BYTES)
        .max_write_buffer_size(1 << 20)
        .max_message_size(Some(CLIENT_FRAME_MAX))
        .max_frame_size(Some(CLIENT_FRAME_MAX));
    let stream = Lengths::of(TokioIo::new(upgraded));
    let socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
    let broker = surface.broker().clone();
    let (subscriber, signal) = broker.switchboard.reader();
    let now = broker.uptime();
    let mut channel = Channel {
        token: surface.keys(),
        surface,
        socket,
        pump: Pump::default(),
        encoder: Encoder::default(),
        subscriber,
        signal,
        scopes,
        out: BytesMut::new(),
        sent_at: now,
        heard_at: now,
        pinged_at: now,
        second: (now, 0),
        wrong: 0,
    };
    let left = Left::reader(&broker, subscriber);
    let Err(end) = channel.run(target).await;
    // Whoever leaves is forgotten first, so that saying goodbye holds nobody's place.
    left.tell().await;
    channel.leave(end).await;
}

impl Channel {
    async fn run(&mut self, target: Target) -> Result<std::convert::Infallible, End> {
        let broker = self.surface.broker().clone();
        let mut stop = std::pin::pin!(broker.stop.clone().told());
        let mut look = tokio::time::interval(broker.limits.channel_heartbeat / LOOKS);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let opened = self.subscribe("stream.ready", &target).await?;
        if let Err(fault) = opened {
            return Err(End::Close(CloseCode::Policy, fault.message));
        }
        loop {
            self.pump_some().await?;
            let is_dirty = self.pump.is_dirty();
            tokio::select! {
                biased;
                () = &mut stop => {
                    return Err(End::Close(CloseCode::Away, "this broker ends".to_owned()));
                }
                _ = look.tick() => self.look().await?,
                message = self.socket.next() => self.take(message).await?,
                woken = self.signal.woken() => {
                    woken.into_iter().for_each(|handle| self.pump.wake(handle));
                }
                () = std::future::ready(()), if is_dirty => {}
            }
        }
    }

    /// Writes what is new, about a page of it: in between, whoever asks is answered.
    async fn pump_some(&mut self) -> Result<(), End> {
        let broker = self.surface.broker().clone();
        let board = &broker.board;
        let mut read_bytes = 0;
        while read_bytes < PAGE_BYTES {
            let wanted = self.pump.next(|handle| board.by_handle(handle), &mut self.out);
            let Some(wanted) = wanted else { break };
            let visible = board.by_handle(wanted.handle).map(|shown| shown.last);
            let read = broker.store.read(wanted.handle, wanted.after, PAGE_BYTES).await;
            let page = read.map_err(|error| End::Close(CloseCode::Error, error.to_string()))?;
            self.pump.page(wanted, &page, visible.unwrap_or_default(), &mut self.out);
            read_bytes += self.out.len();
            self.drain().await?;
        }
        self.drain().await
    }

    /// Turns what the pump has written into documents and sends them.
    async fn drain(&mut self) -> Result<(), End> {
        if self.out.is_empty() {
            return Ok(());
        }
        let taken = self.encoder.take(&mut self.out, self.surface.ready());
        self.out = BytesMut::new();
        let sent = taken.map_err(|bad| End::Close(CloseCode::Error, bad.to_string()))?;
        self.send_all(sent).await
    }

    /// Sends documents, many at once; a peer that takes nothing for too long is given up.
    async fn send(&mut self, documents: Vec<String>) -> Result<(), End> {
        self.send_all(documents.into_iter().map(Sent::Document).collect()).await
    }

    async fn send_all(&mut self, sent: Vec<Sent>) -> Result<(), End> {
        if sent.is_empty() {
            return Ok(());
        }
        let deadline = self.surface.broker().limits.write_deadline;
        for one in sent {
            match one {
                Sent::Document(document) => {
                    let fed = self.socket.feed(Message::text(document));
                    match tokio::time::timeout(deadline, fed).await {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) | Err(_) => return Err(End::Gone),
                    }
                }
                // They are whole, so they may stand between any two of the library's own.
                Sent::Frames(frames) => {
                    self.flush().await?;
                    for part in frames.chunks(WRITE_BYTES) {
                        let written = self.socket.get_mut().write_all(part);
                        match tokio::time::timeout(deadline, written).await {
                            Ok(Ok(())) => {}
                            Ok(Err(_)) | Err(_) => return Err(End::Gone),
                        }
                    }
                }
            }
        }
        self.flush().await?;
        // It took something, so it lives.
        let now = self.surface.broker().uptime();
        (self.sent_at, self.heard_at) = (now, now);
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), End> {
        let deadline = self.surface.broker().limits.write_deadline;
        match tokio::time::timeout(deadline, self.socket.flush()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(End::Gone),
        }
    }

    /// Says that the channel lives, and finds out whether its peer does.
    async fn look(&mut self) -> Result<(), End> {
        if self.surface.keys() != self.token {
            return Err(End::Close(CloseCode::Policy, "the token was rotated".to_owned()));
        }
        let now = self.surface.broker().uptime();
        let heartbeat = self.surface.broker().limits.channel_heartbeat;
        // It answers every ping.
        if now.saturating_sub(self.heard_at) > heartbeat * 5 / 2 {
            return Err(End::Gone);
        }
        if now.saturating_sub(self.pinged_at) >= heartbeat {
            self.pinged_at = now;
            self.socket.feed(Message::Ping(bytes::Bytes::new())).await.map_err(|_| End::Gone)?;
            self.flush().await?;
        }
        if now.saturating_sub(self.sent_at) >= heartbeat {
            let heard_at = self.heard_at;
            self.send(vec![document(&json!({ "type": "stream.heartbeat" }))]).await?;
            // The system took it; that says nothing of the peer.
            self.heard_at = heard_at;
        }
        Ok(())
    }

    async fn take(&mut self, message: Option<Result<Message, Error>>) -> Result<(), End> {
        let message = match message {
            None => return Err(End::Gone),
            Some(Err(error)) => return Err(broken(&error)),
            Some(Ok(message)) => message,
        };
        let now = self.surface.broker().uptime();
        self.heard_at = now;
        if now.saturating_sub(self.second.0) >= Duration::from_secs(1) {
            self.second = (now, 0);
        }
        self.second.1 += 1;
        if self.second.1 > RATE_MAX {
            let reason = format!("more than {RATE_MAX} frames in a second");
            return Err(End::Close(CloseCode::Policy, reason));
        }
        match message {
            Message::Text(text) => self.answer(text.as_str()).await,
            Message::Binary(_) => {
                Err(End::Close(CloseCode::Unsupported, "frames are text".to_owned()))
            }
            Message::Ping(_) => self.flush().await,
            Message::Close(_) => {
                self.flush().await?;
                Err(End::Gone)
            }
            Message::Pong(_) | Message::Frame(_) => Ok(()),
        }
    }

    async fn answer(&mut self, text: &str) -> Result<(), End> {
        let answered = match frames::parse(text) {
            Ok(asked) => self.perform(asked).await?,
            Err(fault) => {
                self.wrong += 1;
                Err(fault)
            }
        };
        if let Err(fault) = answered {
            let error = document(&json!({ "type": "stream.error", "error": fault }));
            self.send(vec![error]).await?;
        }
        if self.wrong >= WRONG_MAX {
            let reason = format!("{WRONG_MAX} frames made no sense");
            return Err(End::Close(CloseCode::Policy, reason));
        }
        Ok(())
    }

    async fn perform(&mut self, asked: Asked) -> Result<Result<(), Fault>, End> {
        let broker = self.surface.broker().clone();
        match asked {
            Asked::Subscribe { executions, all, epoch } => {
                let target = Target { executions, all, since: None, epoch };
                return self.subscribe("stream.subscribed", &target).await;
            }
            Asked::Unsubscribe { executions } => {
                let shown = executions.iter().filter_map(|id| broker.board.by_id(*id));
                let handles: Vec<_> = shown.map(|shown| shown.handle).collect();
                if executions.is_empty() || !handles.is_empty() {
                    self.pump.unsubscribe(&handles);
                }
                let document =
                    document(&json!({ "type": "stream.unsubscribed", "executions": executions }));
                let subscriber = self.subscriber;
                broker.post(Input::Unsubscribe { subscriber, executions }).await;
                self.send(vec![document]).await?;
            }
            Asked::Ack => {}
            Asked::Cancel { execution, force } => {
                if !self.scopes.is_some_and(|scopes| scopes.allow(Scope::Start)) {
                    let message = "this token may not stop anything; that needs start";
                    let fault = Fault::new(reeve_protocol::Code::Forbidden, message);
                    return Ok(Err(fault.because("scope")));
                }
                match broker.cancel(execution, "websocket", force).await {
                    Err(fault) => return Ok(Err(fault)),
                    Ok(value) => {
                        let document = document(&json!({
                            "type": "stream.cancelled",
                            "execution_id": execution,
                            "outcome": value["outcome"],
                            "cancellable": value["cancellable"],
                        }));
                        self.send(vec![document]).await?;
                    }
                }
            }
            Asked::Ping { nonce } => {
                let document = document(&json!({ "type": "stream.pong", "nonce": nonce }));
                self.send(vec![document]).await?;
            }
        }
        Ok(Ok(()))
    }

    /// Follows what is asked, and says from where and how much there is before what is new.
    async fn subscribe(
        &mut self,
        word: &'static str,
        target: &Target,
    ) -> Result<Result<(), Fault>, End> {
        let broker = self.surface.broker().clone();
        let differs = target.epoch.as_ref().is_some_and(|epoch| *epoch != broker.about.epoch);
        let subscriber = self.subscriber;
        let mut executions = target.executions.clone();
        if let Some(since) = target.since {
            // Of another history everything is new.
            let since = if differs { Handle(0) } else { since };
            executions.extend(broker.board.since(since).into_iter().filter_map(|id| {
                let named = target.executions.iter().any(|from| from.execution == id);
                (!named).then_some(FollowFrom { execution: id, after: Seq::NONE })
            }));
        }
        let asked = broker.ask(|request| Input::Subscribe {
            request,
            subscriber,
            executions,
            all: target.all,
        });
        let (subbed, horizon) = match asked.await {
            Ok(Reply::Subbed { subbed, horizon }) => (subbed, horizon),
            Ok(Reply::Started(_) | Reply::Cancelled { .. } | Reply::Refused(_)) => {
                unreachable!("a subscription is answered as one")
            }
            Err(fault) => return Ok(Err(fault)),
        };
        let all = target.all.then_some(horizon);
        let foreign: Vec<_> = if differs {
            target.executions.iter().map(|from| from.execution).collect()
        } else {
            Vec::new()
        };
        self.pump.subscribe(&subbed, all, &foreign, &mut self.out);
        let ready = self.ready(word, all, &subbed, &foreign).await?;
        self.send(vec![document(&ready)]).await?;
        Ok(Ok(()))
    }

    async fn ready(
        &self,
        word: &str,
        all: Option<Handle>,
        subbed: &Subbed,
        foreign: &[ExecutionId],
    ) -> Result<Value, End> {
        let broker = self.surface.broker();
        let (mut replayed, mut truncated) = (0, false);
        let mut cursors = Map::new();
        for followed in &subbed.executions {
            let is_foreign = foreign.contains(&followed.execution);
            let start = if is_foreign { Seq::NONE } else { followed.after.min(followed.last) };
            cursors.insert(followed.execution.to_string(), start.0.into());
            let mut at = start;
            while at < followed.last {
                let read = broker.store.read(followed.handle, at, PAGE_BYTES).await;
                let page = read.map_err(|error| End::Close(CloseCode::Error, error.to_string()))?;
                if page.items.is_empty() {
                    break;
                }
                for item in &page.items {
                    let last = item.last().min(followed.last);
                    match item {
                        crate::store::Item::Batch(_) => replayed += last.0.saturating_sub(at.0),
                        crate::store::Item::Gap { .. } => truncated = true,
                    }
                    at = item.last();
                }
            }
        }
        let mut ready = json!({
            "type": word,
            "protocol_version": reeve_protocol::event::SCHEMA_VERSION,
            "scope": if all.is_some() { "all" } else { "executions" },
            "replayed": replayed,
            "truncated": truncated,
            "heartbeat_seconds": heartbeat_seconds(&broker.limits),
            "epoch": broker.about.epoch,
            "cursors": cursors,
            "unknown": subbed.unknown,
            "durability": broker.store.durability(),
        });
        if let Some(horizon) = all {
            ready["horizon"] = json!(horizon);
        } else {
            let ids: Vec<_> = subbed.executions.iter().map(|one| one.execution).collect();
            ready["executions"] = json!(ids);
        }
        Ok(ready)
    }

    /// Says goodbye to a peer that may still listen, and ends the connection gently.
    async fn leave(mut self, end: End) {
        let goodbye = async {
            if let End::Close(code, reason) = end {
                tracing::debug!(code = u16::from(code), reason, "a channel is closed");
                let closing = json!({ "type": "stream.closing", "reason": reason });
                self.socket.feed(Message::text(document(&closing))).await?;
                let frame = CloseFrame { code, reason: reason.into() };
                self.socket.feed(Message::Close(Some(frame))).await?;
            }
            self.socket.flush().await
        };
        if let Ok(Ok(())) = tokio::time::timeout(GOODBYE, goodbye).await {
            let shut = self.socket.get_mut().shutdown();
            drop(tokio::time::timeout(2 * GOODBYE, shut).await);
        }
    }
}

/// Returns how a channel ends whose peer broke the protocol, or is gone.
fn broken(error: &Error) -> End {
    let reason = || reeve_protocol::sanitise::text(&error.to_string(), 100);
    match error {
        Error::Capacity(_) => {
            End::Close(CloseCode::Size, format!("a frame has at most {CLIENT_FRAME_MAX} bytes"))
        }
        Error::Utf8(_) => End::Close(CloseCode::Invalid, "a text frame is UTF-8".to_owned()),
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => End::Gone,
        Error::Protocol(_) => End::Close(CloseCode::Protocol, reason()),
        Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            End::Close(CloseCode::Protocol, error.to_string())
        }
        _ => End::Gone,
    }
}
