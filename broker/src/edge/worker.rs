//! A worker's connection: one message to the actor per read, and a queue of its own out.

use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reeve_protocol::Batch;
use reeve_protocol::frame::{self, BadFrame};
use reeve_protocol::peer::{Attach, Fenced, Hello, Ping, kind};
use reeve_protocol::redact;
use tokio::sync::mpsc::Receiver;

use super::left::Left;
use super::local::{Reader, Writer};
use crate::handle::{Broker, Stop};
use crate::machine::Machine;
use crate::plane::{Input, ToWorker, WorkerFrame, WorkerId, WorkerProcess};
use crate::switchboard::Outgoing;

/// Serves a worker until its connection ends.
pub(super) async fn serve(
    mut reader: Reader,
    writer: Writer,
    hello: Hello,
    broker: Broker,
    machine: Machine,
) {
    let (worker, outbox) = broker.switchboard.worker();
    let process = WorkerProcess {
        pid: hello.pid,
        start_ticks: hello.start_ticks,
        name: reeve_protocol::sanitise::text(&hello.name, 64),
    };
    machine.watch(worker, hello.pid, hello.start_ticks);
    broker.post(Input::WorkerJoined { worker, process }).await;
    let left = Left::worker(&broker, worker);
    let mut writing = actix::spawn(write(writer, outbox, broker.stop.clone()));
    let mut attached = false;
    let reason = {
        let mut reading = pin!(read(&mut reader, &broker, worker, &mut attached));
        tokio::select! {
            reason = &mut reading => reason,
            // Who has left takes nothing more; what it had sent before, its outcome too, is read.
            written = &mut writing => match written {
                Ok(Written::ToNobody) => reading.await,
                Ok(Written::Enough) | Err(_) => None,
            },
        }
    };
    if let Some(reason) = reason {
        tracing::warn!(worker = worker.0, pid = hello.pid, reason, "a worker is cut off");
        broker.switchboard.send(worker, Outgoing::Close(reason));
    }
    left.tell().await;
    machine.unwatch(worker, if attached { broker.limits.reattach } else { Duration::ZERO });
}

/// Reads until the end; returns why the connection is to be closed, if it is our doing.
///
/// `attached` becomes true once the worker has brought an execution.
async fn read(
    reader: &mut Reader,
    broker: &Broker,
    worker: WorkerId,
    attached: &mut bool,
) -> Option<String> {
    loop {
        let frames = match reader.frames().await {
            Ok(frames) if frames.is_empty() => return None,
            Ok(frames) => frames,
            Err(bad) => return Some(bad.to_string()),
        };
        let mut decoded = Vec::with_capacity(frames.len());
        let mut bad = None;
        for (kind, body) in frames {
            match decode(kind, body) {
                Ok(Some(WorkerFrame::Attach(attach))) => {
                    decoded.push(WorkerFrame::Attach(redacted(attach, broker).await));
                }
                Ok(Some(frame)) => decoded.push(frame),
                Ok(None) => tracing::debug!(kind, "a frame of an unknown kind is skipped"),
                Err(error) => {
                    bad = Some(error.to_string());
                    break;
                }
            }
        }
        *attached |= decoded.iter().any(|frame| matches!(frame, WorkerFrame::Attach(_)));
        // What came before the bad frame was good and counts.
        if !decoded.is_empty() {
            broker.post(Input::Frames { worker, frames: decoded }).await;
        }
        if bad.is_some() {
            return bad;
        }
    }
}

/// Withholds what is declared here as sensitive, whoever reports it.
async fn redacted(mut attach: Box<Attach>, broker: &Broker) -> Box<Attach> {
    let registry = broker.registry();
    let called = &mut attach.description;
    let declared = registry.descriptors.iter().find(|one| one.id == called.capability);
    if let Some(one) = declared.filter(|one| redact::has_marks(&one.input)) {
        let (schema, input) = (one.input.clone(), std::mem::take(&mut called.input));
        // Its patterns are compiled: not here, where everybody waits.
        let shown = tokio::task::spawn_blocking(move || redact::shown(&schema, &input)).await;
        called.input = shown.unwrap_or_else(|_| redact::withheld());
    }
    attach
}

/// Reads a frame; `None` for a kind that is not known, which is passed over.
pub fn decode(frame_kind: u8, body: Bytes) -> Result<Option<WorkerFrame>, BadFrame> {
    Ok(Some(match frame_kind {
        kind::ATTACH => WorkerFrame::Attach(Box::new(frame::decode(&body)?)),
        kind::BATCH => WorkerFrame::Batch(Batch::parse(body)?),
        kind::HEARTBEAT => WorkerFrame::Heartbeat,
        kind::PONG => WorkerFrame::Pong(frame::decode::<Ping>(&body)?.nonce),
        kind::TREE => WorkerFrame::Tree(frame::decode(&body)?),
        kind::RELEASED => WorkerFrame::Released(frame::decode(&body)?),
        kind::LATE => WorkerFrame::Late(frame::decode(&body)?),
        kind::BYE => WorkerFrame::Bye,
        kind::SUB | kind::UNSUB | kind::CTL | kind::HELLO => {
            return Err(BadFrame::new("forbidden_role: a worker sends no such frame"));
        }
        _ => return Ok(None),
    }))
}

/// Why nothing more is written.
enum Written {
    /// The connection is to end.
    Enough,
    /// The worker has closed its side.
    ToNobody,
}

/// Writes what waits for the worker, many messages at once.
///
/// When the broker ends, the worker is told: what it runs goes on.
async fn write(mut writer: Writer, mut outbox: Receiver<Outgoing>, stop: Stop) -> Written {
    let mut out = BytesMut::new();
    let mut stop = pin!(stop.told());
    loop {
        let outgoing = tokio::select! {
            outgoing = outbox.recv() => outgoing,
            () = &mut stop => {
                frame::put(&mut out, kind::DRAIN, &[]);
                if writer.write(&out).await.is_ok() {
                    writer.bye("stopping: this broker ends; work goes on").await;
                }
                return Written::Enough;
            }
        };
        let Some(outgoing) = outgoing else { return Written::Enough };
        let mut next = Some(outgoing);
        while let Some(outgoing) = next {
            match outgoing {
                Outgoing::Message(message) => encode(&message, &mut out),
                Outgoing::Close(reason) => {
                    if writer.write(&out).await.is_ok() {
                        writer.bye(&reason).await;
                    }
                    return Written::Enough;
                }
            }
            next = outbox.try_recv().ok();
        }
        if let Err(error) = writer.write(&out).await {
            use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
            let left = matches!(error.kind(), BrokenPipe | ConnectionReset);
            tracing::debug!(%error, left, "a worker takes nothing");
            return if left { Written::ToNobody } else { Written::Enough };
        }
        out.clear();
    }
}

fn encode(message: &ToWorker, out: &mut BytesMut) {
    match message {
        ToWorker::Attached(attached) => frame::put_message(out, kind::ATTACHED, attached),
        ToWorker::Grant(grant) => frame::put_message(out, kind::GRANT, grant),
        ToWorker::Ack(ack) => frame::put_message(out, kind::ACK, ack),
        ToWorker::Cancel(cancel) => frame::put_message(out, kind::CANCEL, cancel),
        ToWorker::Fenced(fenced) => {
            let mut body = frame::encode(fenced);
            if body.len() >= frame::FRAME_MAX {
                // Where it stands fits; how it came to that is in the history.
                body = frame::encode(&Fenced { error: None, ..Fenced::clone(fenced) });
            }
            frame::put(out, kind::FENCED, &body);
        }
        ToWorker::Ping(nonce) => frame::put_message(out, kind::PING, &Ping { nonce: *nonce }),
    }
}
