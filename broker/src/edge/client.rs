//! A client's connection: requests, and a pump that follows executions from the client's cursors.

use std::pin::pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use reeve_protocol::Fault;
use reeve_protocol::frame::{self, BadFrame};
use reeve_protocol::peer::{Ping, kind};
use reeve_protocol::stream::{Answer, Ctl, Op, Res, Sub, Unsub};
use serde_json::{Value, json};

use super::left::Left;
use super::local::{Reader, Writer};
use crate::handle::Broker;
use crate::plane::{Input, Reply, SubscriberId};
use crate::pump::Pump;
use crate::reads::ListQuery;
use crate::switchboard::Signal;

/// Bytes of history that are read and written at once.
const PAGE_BYTES: usize = 256 << 10;
/// Bytes that an idle connection's buffer may keep.
const IDLE_BYTES: usize = 4 << 10;

struct Client {
    broker: Broker,
    writer: Writer,
    pump: Pump,
    subscriber: SubscriberId,
    signal: Arc<Signal>,
    out: BytesMut,
}

/// Serves a client until its connection ends.
pub(super) async fn serve(mut reader: Reader, writer: Writer, broker: Broker) {
    let (subscriber, signal) = broker.switchboard.reader();
    let mut client = Client {
        broker: broker.clone(),
        writer,
        pump: Pump::default(),
        subscriber,
        signal,
        out: BytesMut::new(),
    };
    let left = Left::reader(&broker, subscriber);
    client.run(&mut reader).await;
    left.tell().await;
}

impl Client {
    async fn run(&mut self, reader: &mut Reader) {
        let stop = self.broker.stop.clone();
        let mut stop = pin!(stop.told());
        loop {
            let is_dirty = self.pump.is_dirty();
            tokio::select! {
                biased;
                () = &mut stop => {
                    return self.writer.bye("stopping: this broker ends").await;
                }
                frame = reader.frame() => match frame {
                    Ok(Some((kind, body))) => {
                        if let Err(bad) = self.take(kind, &body).await {
                            return self.writer.bye(&bad.to_string()).await;
                        }
                    }
                    Ok(None) => return,
                    Err(bad) => return self.writer.bye(&bad.to_string()).await,
                },
                woken = self.signal.woken() => {
                    for handle in woken {
                        self.pump.wake(handle);
                    }
                }
                () = std::future::ready(()), if is_dirty => {}
            }
            if self.pump().await.is_err() {
                return;
            }
        }
    }

    /// Writes what is new, about a page of it: in between, whoever asks is answered.
    async fn pump(&mut self) -> std::io::Result<()> {
        while self.out.len() < PAGE_BYTES {
            let board = &self.broker.board;
            let wanted = self.pump.next(|handle| board.by_handle(handle), &mut self.out);
            let Some(wanted) = wanted else { break };
            let visible = board.by_handle(wanted.handle).map(|shown| shown.last);
            let page = self.broker.store.read(wanted.handle, wanted.after, PAGE_BYTES).await;
            match page {
                Ok(page) => {
                    self.pump.page(wanted, &page, visible.unwrap_or_default(), &mut self.out);
                }
                Err(error) => {
                    tracing::warn!(%error, "history cannot be read; a reader is closed");
                    self.writer.bye(&error.to_string()).await;
                    return Err(std::io::ErrorKind::Other.into());
                }
            }
        }
        self.flush().await
    }

    async fn flush(&mut self) -> std::io::Result<()> {
        if !self.out.is_empty() {
            self.writer.write(&self.out).await?;
            self.out.clear();
        }
        if self.out.capacity() > IDLE_BYTES {
            self.out = BytesMut::new();
        }
        Ok(())
    }

    async fn take(&mut self, frame_kind: u8, body: &Bytes) -> Result<(), BadFrame> {
        match frame_kind {
            kind::SUB => self.subscribe(frame::decode(body)?).await,
            kind::UNSUB => self.unsubscribe(frame::decode(body)?).await,
            kind::CTL => {
                let ctl: Ctl = frame::decode(body)?;
                let result = match self.answer(ctl.op).await {
                    Ok(value) => Answer::Ok(value),
                    Err(fault) => Answer::Err(fault),
                };
                self.respond(ctl.request, result);
            }
            kind::PING => {
                let ping: Ping = frame::decode(body)?;
                frame::put_message(&mut self.out, kind::PONG, &ping);
            }
            kind::ATTACH
            | kind::BATCH
            | kind::HEARTBEAT
            | kind::TREE
            | kind::RELEASED
            | kind::LATE => {
                return Err(BadFrame::new("forbidden_role: a client sends no such frame"));
            }
            _ => tracing::debug!(frame_kind, "a frame of an unknown kind is skipped"),
        }
        Ok(())
    }

    /// Puts an answer into the buffer; one that fits no frame is told so.
    fn respond(&mut self, request: u64, result: Answer) {
        let mut body = frame::encode(&Res { request, result });
        if body.len() >= frame::FRAME_MAX {
            let fault = Fault::new(
                reeve_protocol::Code::TooLarge,
                format!("the answer has {} bytes; a frame takes {}", body.len(), frame::FRAME_MAX),
            )
            .hint("ask for less at once: a smaller limit");
            body = frame::encode(&Res { request, result: Answer::Err(fault) });
        }
        frame::put(&mut self.out, kind::RES, &body);
    }

    async fn subscribe(&mut self, sub: Sub) {
        let differs = sub.epoch.as_ref().is_some_and(|epoch| *epoch != self.broker.about.epoch);
        let subscriber = self.subscriber;
        let reply = self
            .broker
            .ask(|request| Input::Subscribe {
                request,
                subscriber,
                executions: sub.executions.clone(),
                all: sub.all,
            })
            .await;
        match reply {
            Ok(Reply::Subbed { subbed, horizon }) => {
                let all = sub.all.then_some(horizon);
                let foreign: Vec<_> =
                    sub.executions.iter().filter(|_| differs).map(|from| from.execution).collect();
                self.pump.subscribe(&subbed, all, &foreign, &mut self.out);
            }
            Ok(Reply::Started(_) | Reply::Cancelled { .. } | Reply::Refused(_)) => {
                unreachable!("a subscription is answered as one")
            }
            Err(fault) => self.respond(0, Answer::Err(fault)),
        }
    }

    async fn unsubscribe(&mut self, unsub: Unsub) {
        let handles: Vec<_> = unsub
            .executions
            .iter()
            .filter_map(|id| self.broker.board.by_id(*id))
            .map(|shown| shown.handle)
            .collect();
        if unsub.executions.is_empty() || !handles.is_empty() {
            self.pump.unsubscribe(&handles);
        }
        let (subscriber, executions) = (self.subscriber, unsub.executions);
        self.broker.post(Input::Unsubscribe { subscriber, executions }).await;
    }

    async fn answer(&self, op: Op) -> Result<Value, Fault> {
        match op {
            Op::List { state, capability, limit, before } => {
                self.broker.list(&ListQuery { state, capability, limit, before }).await
            }
            Op::Get { id } => self.broker.get(id),
            Op::Events { id, after, limit } => self.broker.events(id, after, limit).await,
            Op::Cancel { id, by, force } => self.broker.cancel(id, &by, force).await,
            Op::Capabilities {} => Ok(self.broker.capabilities()),
            Op::Capability { id } => self.broker.capability(&id),
            Op::Protocol {} => Ok(self.broker.protocol()),
            Op::Status {} => Ok(self.broker.status()),
            Op::Stop { force } => {
                let within = self.broker.end(force);
                let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
                let pid = self.broker.about.pid;
                Ok(json!({ "stopping": true, "pid": pid, "within_ms": within_ms }))
            }
            Op::Open {} => self.broker.open(),
        }
    }
}
