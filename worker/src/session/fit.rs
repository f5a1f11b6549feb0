//! Makes what is reported fit the wire: a value that is too large is replaced, never refused.

use bytes::{BufMut, BytesMut};
use reeve_protocol::frame::{self, FRAME_MAX, NODES_MAX};
use reeve_protocol::peer::{Attach, withheld};
use reeve_protocol::snapshot::{Description, Links};
use reeve_protocol::{
    ExecutionId, Fault, Fence, Kind, Limits, LogChunk, Now, Output, Seq, Stamped,
};
use serde::Serialize;
use serde_json::Value;

/// Bytes of one text in an event that did not fit.
const TEXT_MAX: usize = 16 << 10;
/// Values that an answer may hold beside one event's: a snapshot's steps and findings.
const VALUES_BESIDE: usize = NODES_MAX / 2;
/// What a batch needs around an event, generously.
const SLACK: usize = 256;

/// Replaces the input if it is too large for a frame.
pub(super) fn description(
    id: ExecutionId,
    mut description: Description,
    limits: &Limits,
) -> Description {
    bound(id, &mut description.input, limits);
    let attach = Attach {
        execution: id,
        fence: Some(Fence(u64::MAX)),
        description: description.clone(),
        last: Seq(u64::MAX),
        tree: None,
    };
    if !fits(&attach) {
        replace(id, &mut description.input, limits);
    }
    description
}

/// Replaces what is too large in an event.
pub(super) fn event(id: ExecutionId, mut event: Stamped, limits: &Limits) -> Stamped {
    for value in values(&mut event.kind) {
        bound(id, value, limits);
    }
    if fits(&event) {
        return event;
    }
    for value in values(&mut event.kind) {
        replace(id, value, limits);
    }
    for text in texts(&mut event.kind) {
        clip(text);
    }
    if let Kind::Failed { error, .. } = &mut event.kind {
        error.problems.clear();
    }
    event
}

/// Makes a chunk of one line.
pub(super) fn line(stream: Output, message: &str, cut: bool, now: Now) -> LogChunk {
    let mut text = BytesMut::with_capacity(message.len() + 2);
    for byte in message.bytes() {
        text.put_u8(if byte == b'\n' { b' ' } else { byte });
    }
    if cut {
        text.put_u8(reeve_protocol::batch::CUT);
    }
    text.put_u8(b'\n');
    LogChunk { at: now.wall, stream, lines: 1, text: text.freeze() }
}

fn fits<T: Serialize>(value: &T) -> bool {
    let bytes = frame::encode(value);
    let taken = bytes.len() + SLACK < FRAME_MAX && frame::check(&bytes).is_ok();
    // A value takes a byte at least, so that a short text needs no second look.
    taken && (bytes.len() < VALUES_BESIDE || frame::check(&beside(value)).is_ok())
}

/// Encodes a value with as many others as it may have to share an answer with.
fn beside<T: Serialize>(value: &T) -> Vec<u8> {
    frame::encode(&(value, vec![(); VALUES_BESIDE]))
}

fn size(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, value).expect("a value is JSON");
    count.0
}

fn bound(id: ExecutionId, value: &mut Value, limits: &Limits) {
    if size(value) > limits.max_value_bytes {
        replace(id, value, limits);
    }
}

fn replace(id: ExecutionId, value: &mut Value, limits: &Limits) {
    if !value.is_null() {
        *value = withheld(size(value), limits.max_value_bytes, &Links::of(id).snapshot);
    }
}

fn values(kind: &mut Kind) -> Vec<&mut Value> {
    match kind {
        Kind::Created { input, .. } => vec![input],
        Kind::Completed { output, receipt } => {
            std::iter::once(output).chain(receipt.as_mut()).collect()
        }
        Kind::Failed { receipt, .. } | Kind::Cancelled { receipt } => receipt.iter_mut().collect(),
        Kind::Unknown { data, .. } => vec![data],
        Kind::Queued { .. }
        | Kind::Gate { .. }
        | Kind::Started {}
        | Kind::Progress { .. }
        | Kind::StepStarted { .. }
        | Kind::StepCompleted { .. }
        | Kind::Log { .. }
        | Kind::Diagnostic { .. }
        | Kind::Resources { .. }
        | Kind::Suspended { .. }
        | Kind::Resumed { .. }
        | Kind::Cancelling { .. } => Vec::new(),
    }
}

fn texts(kind: &mut Kind) -> Vec<&mut String> {
    match kind {
        Kind::Created { title, .. } => vec![title],
        Kind::Gate { name, reason, .. } => std::iter::once(name).chain(reason.as_mut()).collect(),
        Kind::Progress { message, .. } => message.iter_mut().collect(),
        Kind::StepStarted { name, title } => vec![name, title],
        Kind::StepCompleted { name, detail, .. } => {
            std::iter::once(name).chain(detail.as_mut()).collect()
        }
        Kind::Diagnostic { code, summary, detail, suggestion, .. } => {
            [code, summary].into_iter().chain(detail.as_mut()).chain(suggestion.as_mut()).collect()
        }
        Kind::Cancelling { by } => vec![by],
        Kind::Failed { error, .. } => {
            let Fault { message, suggestion, reason, .. } = error;
            std::iter::once(message).chain(suggestion.as_mut()).chain(reason.as_mut()).collect()
        }
        Kind::Unknown { tag, .. } => vec![tag],
        Kind::Queued { .. }
        | Kind::Started {}
        | Kind::Log { .. }
        | Kind::Resources { .. }
        | Kind::Suspended { .. }
        | Kind::Resumed { .. }
        | Kind::Cancelled { .. }
        | Kind::Completed { .. } => Vec::new(),
    }
}

fn clip(text: &mut String) {
    if text.len() > TEXT_MAX {
        text.truncate(text.floor_char_boundary(TEXT_MAX));
        text.push('…');
    }
}
