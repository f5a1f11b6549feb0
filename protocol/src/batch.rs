//! Batches: events in one frame, checked by their header, decoded only by who needs to.
//!
//! A batch has a class. `Events` are MessagePack, one entry each. `Bytes` are chunks of whole
//! output lines: one entry covers as many positions as it has lines, and its text is never
//! decoded on the way. `Lost` has no entries: it accounts for positions that were shed.
//!
//! ```text
//! 0      4      12     20     24     25        28     32
//! handle fence  first  count  class  0 0 0     crc    entries…
//! u32    u64    u64    u32    u8               u32    { tag u8, length u32, payload }*
//! ```
//!
//! Numbers are big endian. The CRC-32 covers bytes 12 to 28 and the entries, so that handle and
//! fence can be rewritten by a broker that passes a batch on.

use bytes::{BufMut, Bytes, BytesMut};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event::{Event, Kind, Stamped};
use crate::frame::{self, BadFrame};
use crate::id::{ExecutionId, Fence, Handle, Seq};
use crate::sanitise;
use crate::time::Timestamp;

/// Bytes before the entries.
pub const HEADER: usize = 32;
/// Bytes of a log chunk before its text.
const CHUNK_HEADER: usize = 13;
const TAG_EVENT: u8 = 0;
const TAG_LOG: u8 = 1;
/// Stands before the line end of a line that was cut. No clean text contains it.
pub const CUT: u8 = 0x01;

/// Where a line of output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Output {
    /// The standard output of a process, or its terminal.
    Stdout,
    /// The standard error of a process.
    Stderr,
    /// A handler.
    Handler,
}

impl Output {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Stdout, Self::Stderr, Self::Handler].get(usize::from(byte)).copied()
    }

    /// Returns the word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Handler => "handler",
        }
    }
}

/// What the entries of a batch are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Chunks of output lines.
    Bytes,
    /// Events of every other kind.
    Events,
    /// Nothing: the positions are accounted for, their content is gone.
    Lost,
}

/// Whole lines of one output stream, read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogChunk {
    /// When they were read.
    pub at: Timestamp,
    /// Which stream they came from.
    pub stream: Output,
    /// How many lines they are.
    pub lines: u32,
    /// The lines, clean, each ended by `\n`; a line that was cut has [`CUT`] before its end.
    pub text: Bytes,
}

impl LogChunk {
    /// Returns all lines as they are shown, where none of them was cut.
    pub fn whole(&self) -> Option<&str> {
        let cut = memchr::memchr(CUT, &self.text).is_some();
        if cut { None } else { std::str::from_utf8(&self.text).ok() }
    }

    /// Walks over the lines: the text, and whether it was cut.
    pub fn iter(&self) -> impl Iterator<Item = (&str, bool)> {
        std::str::from_utf8(&self.text)
            .unwrap_or_default()
            .split_terminator('\n')
            .map(|line| line.strip_suffix('\u{1}').map_or((line, false), |line| (line, true)))
    }
}

/// One entry of a batch, decoded.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// Covers one position.
    Event(Stamped),
    /// Covers as many positions as it has lines.
    Log(LogChunk),
}

/// A batch whose header, sizes and checksum were checked. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    bytes: Bytes,
}

impl Batch {
    /// Takes the body of a batch frame and checks all of it but the content of its events.
    ///
    /// Text of log chunks is made clean here if it is not, so that no reader can meet what a
    /// writer forgot.
    ///
    /// # Errors
    ///
    /// [`BadFrame`] names what was wrong.
    pub fn parse(bytes: Bytes) -> Result<Self, BadFrame> {
        if bytes.len() < HEADER {
            return Err(BadFrame::new("a batch is shorter than its header"));
        }
        let batch = Self { bytes };
        let class = match batch.bytes[24] {
            0 => Class::Bytes,
            1 => Class::Events,
            2 => Class::Lost,
            _ => return Err(BadFrame::new("a batch has an unknown class")),
        };
        if batch.bytes[25..28] != [0, 0, 0] {
            return Err(BadFrame::new("a batch's reserved bytes are not zero"));
        }
        if batch.checksum() != u32_at(&batch.bytes, 28) {
            return Err(BadFrame::new("a batch's checksum does not match"));
        }
        if batch.first() == Seq::NONE || batch.count() == 0 {
            return Err(BadFrame::new("a batch covers nothing; sequences start at 1"));
        }
        if batch.first().0.checked_add(u64::from(batch.count())).is_none() {
            return Err(BadFrame::new("a batch's sequence does not fit"));
        }
        let mut covered = 0_u64;
        let mut dirty = false;
        for raw in batch.raw() {
            let (tag, payload) = raw?;
            match (class, tag) {
                (Class::Events, TAG_EVENT) => covered += 1,
                (Class::Bytes, TAG_LOG) => {
                    let (_, lines, text) = chunk_parts(payload)?;
                    covered += u64::from(lines);
                    dirty |= !sanitise::is_clean(text);
                }
                _ => return Err(BadFrame::new("an entry does not fit its batch's class")),
            }
        }
        if class != Class::Lost && covered != u64::from(batch.count()) {
            return Err(BadFrame::new("a batch's count is not that of its entries"));
        }
        let batch = if dirty { batch.cleaned()? } else { batch };
        // What hides in a text takes more room once it is visible.
        if batch.bytes.len() >= frame::FRAME_MAX {
            let bytes = batch.bytes.len();
            return Err(BadFrame::new(format!(
                "frame_too_large: made clean, a batch has {bytes} bytes; the limit is {}",
                frame::FRAME_MAX
            )));
        }
        Ok(batch)
    }

    /// Makes a batch of events that follow each other from `first`.
    pub fn of_events(handle: Handle, fence: Fence, first: Seq, events: &[Stamped]) -> Self {
        let mut builder = Builder::new(Class::Events);
        for event in events {
            builder.event(event);
        }
        builder.finish(handle, fence, first)
    }

    /// Makes a batch that accounts for `count` positions whose content is gone.
    pub fn lost(handle: Handle, fence: Fence, first: Seq, count: u32) -> Self {
        let mut builder = Builder::new(Class::Lost);
        builder.count = count;
        builder.finish(handle, fence, first)
    }

    /// Returns the body of the frame.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the handle of the execution.
    pub fn handle(&self) -> Handle {
        Handle(u32_at(&self.bytes, 0))
    }

    /// Returns the writer's fence.
    pub fn fence(&self) -> Fence {
        Fence(u64_at(&self.bytes, 4))
    }

    /// Returns the position of the first event.
    pub fn first(&self) -> Seq {
        Seq(u64_at(&self.bytes, 12))
    }

    /// Returns how many positions the batch covers.
    pub fn count(&self) -> u32 {
        u32_at(&self.bytes, 20)
    }

    /// Returns the position of the last event.
    pub fn last(&self) -> Seq {
        Seq(self.first().0 + u64::from(self.count()) - 1)
    }

    /// Returns what the entries are.
    pub fn class(&self) -> Class {
        match self.bytes[24] {
            0 => Class::Bytes,
            1 => Class::Events,
            _ => Class::Lost,
        }
    }

    /// Returns how many entries there are.
    pub fn entry_count(&self) -> usize {
        self.raw().count()
    }

    /// Decodes the entries.
    ///
    /// # Errors
    ///
    /// When an event is not well-formed MessagePack of a known shape.
    pub fn entries(&self) -> Result<Vec<Entry>, BadFrame> {
        self.decoded().collect()
    }

    fn decoded(&self) -> impl Iterator<Item = Result<Entry, BadFrame>> {
        self.raw().map(|raw| {
            let (tag, payload) = raw?;
            if tag == TAG_EVENT {
                return frame::decode(payload).map(Entry::Event);
            }
            let (stream, lines, text) = chunk_parts(payload)?;
            Ok(Entry::Log(LogChunk {
                at: Timestamp::from_micros(i64::from_be_bytes(
                    payload[..8].try_into().expect("eight bytes"),
                )),
                stream,
                lines,
                text: self.bytes.slice_ref(text),
            }))
        })
    }

    /// Decodes into public events, positions after `after` only.
    ///
    /// # Errors
    ///
    /// When an event is not well-formed.
    pub fn events(&self, id: ExecutionId, after: Seq) -> Result<Vec<Event>, BadFrame> {
        self.first_events(id, after, usize::MAX)
    }

    /// Decodes into public events, the first `limit` after `after`; the rest is not even looked at.
    ///
    /// # Errors
    ///
    /// When an event is not well-formed.
    pub fn first_events(
        &self,
        id: ExecutionId,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Event>, BadFrame> {
        let mut events = Vec::new();
        let Some(rest) = self.after(after) else { return Ok(events) };
        let mut sequence = rest.first();
        let mut push = |timestamp, kind: Kind| {
            if events.len() < limit {
                events.push(Event { execution_id: id, sequence, timestamp, kind });
                sequence = sequence.next();
            }
            events.len() < limit
        };
        for entry in rest.decoded() {
            let more = match entry? {
                Entry::Event(stamped) => push(stamped.at, stamped.kind),
                Entry::Log(chunk) => chunk.iter().all(|(line, cut)| {
                    let message = line.to_owned();
                    push(chunk.at, Kind::Log { stream: chunk.stream, message, cut })
                }),
            };
            if !more {
                break;
            }
        }
        Ok(events)
    }

    /// Returns the same batch under another handle and fence; copies it.
    #[must_use]
    pub fn relabelled(&self, handle: Handle, fence: Fence) -> Self {
        if self.handle() == handle && self.fence() == fence {
            return self.clone();
        }
        let mut bytes = BytesMut::from(&self.bytes[..]);
        bytes[0..4].copy_from_slice(&handle.0.to_be_bytes());
        bytes[4..12].copy_from_slice(&fence.0.to_be_bytes());
        Self { bytes: bytes.freeze() }
    }

    /// Returns the same batch in a buffer of exactly its size, so that it holds no other one.
    #[must_use]
    pub fn compact(&self) -> Self {
        Self { bytes: Bytes::copy_from_slice(&self.bytes) }
    }

    /// Returns what of this batch lies after `after`, if anything does.
    pub fn after(&self, after: Seq) -> Option<Self> {
        if after < self.first() {
            return Some(self.clone());
        }
        if after >= self.last() {
            return None;
        }
        let mut skip = after.0 - self.first().0 + 1;
        let mut builder = Builder::new(self.class());
        if self.class() == Class::Lost {
            builder.count = self.count() - u32::try_from(skip).expect("less than the count");
        }
        for raw in self.raw() {
            let (tag, payload) = raw.expect("a batch was checked when it was made");
            if tag == TAG_EVENT {
                if skip == 0 {
                    builder.raw(tag, payload, 1);
                } else {
                    skip -= 1;
                }
                continue;
            }
            let (_, lines, text) = chunk_parts(payload).expect("a batch was checked");
            if skip >= u64::from(lines) {
                skip -= u64::from(lines);
                continue;
            }
            let mut cut_at = 0;
            for _ in 0..skip {
                cut_at += memchr::memchr(b'\n', &text[cut_at..]).expect("a line has an end") + 1;
            }
            let kept = lines - u32::try_from(skip).expect("less than the lines");
            skip = 0;
            builder.chunk_raw(&payload[..9], kept, &text[cut_at..]);
        }
        Some(builder.finish(self.handle(), self.fence(), after.next()))
    }

    /// Returns the first lines of a batch of output that take at most so many bytes as a batch of
    /// their own; nothing if not even one does, or if this is no output.
    pub fn beginning(&self, bytes_max: usize) -> Option<Self> {
        let mut builder = Builder::new(self.class());
        for raw in self.raw() {
            let (tag, payload) = raw.expect("a batch was checked when it was made");
            if tag != TAG_LOG {
                break;
            }
            let (_, lines, text) = chunk_parts(payload).expect("a batch was checked");
            let around = 5 + payload.len() - text.len();
            let room = bytes_max.saturating_sub(builder.len() + around).min(text.len());
            let Some(end) = memchr::memrchr(b'\n', &text[..room]) else { break };
            let whole = &text[..=end];
            let kept = memchr::memchr_iter(b'\n', whole).count();
            builder.chunk_raw(&payload[..9], u32::try_from(kept).expect("of the lines"), whole);
            if kept < lines as usize {
                break;
            }
        }
        let some = !builder.is_empty();
        some.then(|| builder.finish(self.handle(), self.fence(), self.first()))
    }

    /// Returns the last lines of a batch of output that take at most so many bytes as a batch of
    /// their own, and at least the last one.
    pub fn ending(&self, bytes_max: usize) -> Self {
        let mut excess = self.bytes.len().saturating_sub(bytes_max);
        let mut lines_dropped = 0;
        for raw in self.raw() {
            let (tag, payload) = raw.expect("a batch was checked when it was made");
            if excess == 0 || tag != TAG_LOG {
                break;
            }
            let (_, lines, text) = chunk_parts(payload).expect("a batch was checked");
            let its_bytes = 5 + payload.len();
            if its_bytes <= excess {
                excess -= its_bytes;
                lines_dropped += u64::from(lines);
                continue;
            }
            let from = (excess - 1).min(text.len() - 1);
            let end = from + memchr::memchr(b'\n', &text[from..]).expect("a line has an end");
            lines_dropped += memchr::memchr_iter(b'\n', &text[..=end]).count() as u64;
            break;
        }
        let through = (self.first().0 - 1 + lines_dropped).min(self.last().0 - 1);
        self.after(Seq(through)).expect("the last line is left")
    }

    fn cleaned(&self) -> Result<Self, BadFrame> {
        let mut builder = Builder::new(Class::Bytes);
        for entry in self.entries()? {
            let Entry::Log(chunk) = entry else { continue };
            let mut text = BytesMut::with_capacity(chunk.text.len());
            let mut lines = 0;
            for line in chunk.text.split_inclusive(|byte| *byte == b'\n') {
                let line = line.strip_suffix(b"\n").unwrap_or(line);
                let (line, cut) = line.strip_suffix(&[CUT]).map_or((line, false), |l| (l, true));
                text.extend_from_slice(
                    sanitise::text(&String::from_utf8_lossy(line), usize::MAX).as_bytes(),
                );
                if cut {
                    text.put_u8(CUT);
                }
                text.put_u8(b'\n');
                lines += 1;
            }
            builder.log(&LogChunk { lines, text: text.freeze(), ..chunk });
        }
        Ok(builder.finish(self.handle(), self.fence(), self.first()))
    }

    fn raw(&self) -> impl Iterator<Item = Result<(u8, &[u8]), BadFrame>> {
        let mut rest = &self.bytes[HEADER..];
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let length = rest.get(1..5).map(|bytes| u32_at(bytes, 0) as usize);
            let entry = length.and_then(|length| rest.get(5..5_usize.checked_add(length)?));
            let Some(payload) = entry else {
                rest = &[];
                return Some(Err(BadFrame::new("an entry is longer than its batch")));
            };
            let tag = rest[0];
            rest = &rest[5 + payload.len()..];
            Some(Ok((tag, payload)))
        })
    }

    fn checksum(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.bytes[12..28]);
        hasher.update(&self.bytes[HEADER..]);
        hasher.finalize()
    }
}

/// Builds a batch, entry by entry.
pub struct Builder {
    buffer: BytesMut,
    class: Class,
    count: u32,
    entries: usize,
}

impl Builder {
    /// Starts a batch of one class.
    pub fn new(class: Class) -> Self {
        let mut buffer = BytesMut::with_capacity(512);
        buffer.resize(HEADER, 0);
        Self { buffer, class, count: 0, entries: 0 }
    }

    /// Adds one event.
    pub fn event(&mut self, event: &Stamped) {
        self.entry(TAG_EVENT, 1, |buffer| {
            rmp_serde::encode::write_named(&mut buffer.writer(), event)
                .expect("an event is MessagePack");
        });
    }

    /// Adds a chunk of lines.
    pub fn log(&mut self, chunk: &LogChunk) {
        let mut head = [0; 9];
        head[..8].copy_from_slice(&chunk.at.as_micros().to_be_bytes());
        head[8] = chunk.stream as u8;
        self.chunk_raw(&head, chunk.lines, &chunk.text);
    }

    /// Returns how many bytes the batch has so far.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Returns whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns how many entries were added.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Returns how many positions are covered so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the class that was chosen.
    pub fn class(&self) -> Class {
        self.class
    }

    /// Writes the header and returns the batch.
    pub fn finish(self, handle: Handle, fence: Fence, first: Seq) -> Batch {
        let mut buffer = self.buffer;
        buffer[0..4].copy_from_slice(&handle.0.to_be_bytes());
        buffer[4..12].copy_from_slice(&fence.0.to_be_bytes());
        buffer[12..20].copy_from_slice(&first.0.to_be_bytes());
        buffer[20..24].copy_from_slice(&self.count.to_be_bytes());
        buffer[24] = match self.class {
            Class::Bytes => 0,
            Class::Events => 1,
            Class::Lost => 2,
        };
        let mut batch = Batch { bytes: Bytes::new() };
        batch.bytes = buffer.freeze();
        let crc = batch.checksum();
        let mut buffer = batch.bytes.try_into_mut().expect("nobody else holds a new batch");
        buffer[28..32].copy_from_slice(&crc.to_be_bytes());
        Batch { bytes: buffer.freeze() }
    }

    fn raw(&mut self, tag: u8, payload: &[u8], covers: u32) {
        self.entry(tag, covers, |buffer| buffer.extend_from_slice(payload));
    }

    fn chunk_raw(&mut self, head: &[u8], lines: u32, text: &[u8]) {
        self.entry(TAG_LOG, lines, |buffer| {
            buffer.extend_from_slice(head);
            buffer.put_u32(lines);
            buffer.extend_from_slice(text);
        });
    }

    fn entry(&mut self, tag: u8, covers: u32, write: impl FnOnce(&mut BytesMut)) {
        self.buffer.put_u8(tag);
        let at = self.buffer.len();
        self.buffer.put_u32(0);
        write(&mut self.buffer);
        let length = u32::try_from(self.buffer.len() - at - 4).expect("an entry fits its frame");
        self.buffer[at..at + 4].copy_from_slice(&length.to_be_bytes());
        self.count += covers;
        self.entries += 1;
    }
}

fn chunk_parts(payload: &[u8]) -> Result<(Output, u32, &[u8]), BadFrame> {
    if payload.len() < CHUNK_HEADER {
        return Err(BadFrame::new("a log chunk is shorter than its header"));
    }
    let stream = Output::from_byte(payload[8])
        .ok_or_else(|| BadFrame::new("a log chunk names an unknown stream"))?;
    let lines = u32_at(payload, 9);
    let text = &payload[CHUNK_HEADER..];
    let ends = memchr::memchr_iter(b'\n', text).count();
    if lines == 0 || ends != lines as usize || text.last() != Some(&b'\n') {
        return Err(BadFrame::new("a log chunk's lines are not as many as it says"));
    }
    Ok((stream, lines, text))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
