//! The batch that is being filled: events and output wait here for company, briefly.
//!
//! A batch has one class and stays below the bounds of a frame. Never numbers anything.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use reeve_protocol::batch::{Builder, CUT, HEADER};
use reeve_protocol::{Batch, Class, Entry, Fence, Handle, LogChunk, Seq, Stamped};

/// Bytes of a batch frame, at most; only a single event that is larger goes beyond.
pub const BATCH_MAX: usize = 256 << 10;
/// Bytes around a chunk's text: frame prefix, batch header, entry head, chunk head.
const AROUND: usize = 5 + HEADER + 5 + 13;
/// Bytes of one entry beside its payload.
const ENTRY: usize = 5;

/// A batch in the making.
pub(super) struct Outbox {
    open: Option<Open>,
}

struct Open {
    builder: Builder,
    first: Seq,
    since: Duration,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self { open: None }
    }

    /// Returns since when something waits.
    pub(super) fn since(&self) -> Option<Duration> {
        self.open.as_ref().map(|open| open.since)
    }

    /// Returns how many bytes wait.
    pub(super) fn len(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.builder.len())
    }

    /// Takes what waits.
    pub(super) fn take(&mut self) -> Option<Batch> {
        self.open.take().map(|open| open.builder.finish(Handle(0), Fence(0), open.first))
    }

    /// Returns a full batch if an entry of this class and size would not fit beside what waits.
    pub(super) fn make_room(
        &mut self,
        class: Class,
        payload: usize,
        entries_max: usize,
    ) -> Option<Batch> {
        let open = self.open.as_ref()?;
        let fits = open.builder.class() == class
            && open.builder.entries() < entries_max.max(1)
            && 5 + open.builder.len() + ENTRY + payload <= BATCH_MAX;
        if fits { None } else { self.take() }
    }

    /// Adds an event; room was made.
    pub(super) fn event(&mut self, seq: Seq, event: &Stamped, now: Duration) {
        self.builder(Class::Events, seq, now).event(event);
    }

    /// Adds a chunk; room was made.
    pub(super) fn log(&mut self, first: Seq, chunk: &LogChunk, now: Duration) {
        self.builder(Class::Bytes, first, now).log(chunk);
    }

    fn builder(&mut self, class: Class, first: Seq, since: Duration) -> &mut Builder {
        let open =
            self.open.get_or_insert_with(|| Open { builder: Builder::new(class), first, since });
        assert_eq!(open.builder.class(), class, "a batch has one class");
        &mut open.builder
    }
}

/// Returns the payload of a chunk in bytes.
pub(super) fn payload_of(chunk: &LogChunk) -> usize {
    13 + chunk.text.len()
}

/// Returns as much of a batch as one may hold: it was filled before the broker named its bound.
pub(super) fn beginning(batch: Batch, entries_max: usize) -> Batch {
    let entries_max = entries_max.max(1);
    if batch.entry_count() <= entries_max {
        return batch;
    }
    let mut builder = Builder::new(batch.class());
    let entries = batch.entries().expect("what was written here can be read");
    for entry in entries.iter().take(entries_max) {
        match entry {
            Entry::Event(event) => builder.event(event),
            Entry::Log(chunk) => builder.log(chunk),
        }
    }
    builder.finish(Handle(0), Fence(0), batch.first())
}

/// Divides a chunk into chunks that fit a batch each, between lines.
pub(super) fn divide(chunk: LogChunk) -> Vec<LogChunk> {
    let text_max = BATCH_MAX - AROUND;
    if chunk.text.len() <= text_max {
        return vec![chunk];
    }
    let mut parts = Vec::new();
    let (mut from, mut to, mut lines) = (0, 0, 0);
    let mut part = |lines: u32, text: Bytes| {
        if lines > 0 {
            parts.push(LogChunk { lines, text, ..chunk.clone() });
        }
    };
    for line in chunk.text.split_inclusive(|byte| *byte == b'\n') {
        if to - from + line.len() > text_max {
            part(lines, chunk.text.slice(from..to));
            (from, lines) = (to, 0);
        }
        to += line.len();
        lines += 1;
        if line.len() > text_max {
            part(1, cut(line, text_max));
            (from, lines) = (to, 0);
        }
    }
    part(lines, chunk.text.slice(from..to));
    parts
}

/// Cuts a line that no frame can hold.
fn cut(line: &[u8], text_max: usize) -> Bytes {
    let mut at = text_max - 2;
    while at > 0 && line[at] & 0xc0 == 0x80 {
        at -= 1;
    }
    let mut text = BytesMut::with_capacity(at + 2);
    text.extend_from_slice(&line[..at]);
    text.put_u8(CUT);
    text.put_u8(b'\n');
    text.freeze()
}
