//! Frames that are made once and sent to every reader of the same events.
//!
//! The documents of a batch are the same for everybody who is shown all of it. They are encoded and
//! framed when the first reader wants them, and kept for the others as long as there is room.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use reeve_protocol::frame::BadFrame;
use reeve_protocol::{Batch, Entry, Event, ExecutionId, Handle, Kind, LogChunk, Seq, Stamped};

use super::encode::event;

/// Bytes that are kept, at most.
const KEPT_MAX: usize = 8 << 20;
/// The first byte of a whole text frame (RFC 6455, section 5.2).
const TEXT: u8 = 0x81;

/// What tells one batch from another: a position of a history never changes.
type Key = (Handle, Seq, Seq);

/// The frames that are kept.
#[derive(Default)]
pub struct Ready(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    frames: HashMap<Key, Bytes>,
    order: VecDeque<Key>,
    bytes: usize,
}

impl Ready {
    /// Returns the frames of all events of a batch.
    ///
    /// # Errors
    ///
    /// When a stored event cannot be read.
    pub fn frames(&self, id: ExecutionId, batch: &Batch) -> Result<Bytes, BadFrame> {
        let key = (batch.handle(), batch.first(), batch.last());
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(frames) = kept.frames.get(&key) {
            return Ok(frames.clone());
        }
        let frames = framed(id, batch)?;
        kept.keep(key, frames.clone());
        Ok(frames)
    }
}

impl Kept {
    fn keep(&mut self, key: Key, frames: Bytes) {
        if frames.len() > KEPT_MAX {
            return;
        }
        self.bytes += frames.len();
        self.frames.insert(key, frames);
        self.order.push_back(key);
        while self.bytes > KEPT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.bytes -= self.frames.remove(&oldest).map_or(0, |frames| frames.len());
        }
    }
}

fn framed(id: ExecutionId, batch: &Batch) -> Result<Bytes, BadFrame> {
    let mut frames = BytesMut::new();
    let mut seq = batch.first();
    for entry in batch.entries()? {
        match entry {
            Entry::Log(chunk) => {
                put_lines(&mut frames, id, seq, &chunk);
                seq = seq.plus(u64::from(chunk.lines));
            }
            Entry::Event(Stamped { at, kind }) => {
                let one = Event { execution_id: id, sequence: seq, timestamp: at, kind };
                put(&mut frames, event(&one).as_bytes());
                seq = seq.next();
            }
        }
    }
    Ok(frames.freeze())
}

/// Appends the events of a chunk of lines, which differ in position and text only: what they have in
/// common is written once.
fn put_lines(frames: &mut BytesMut, id: ExecutionId, first: Seq, chunk: &LogChunk) {
    let message = String::new();
    let kind = |cut| Kind::Log { stream: chunk.stream, message: message.clone(), cut };
    let sample = |cut| {
        event(&Event {
            execution_id: id,
            sequence: Seq::NONE,
            timestamp: chunk.at,
            kind: kind(cut),
        })
    };
    let (whole, cut) = (Shape::of(&sample(false)), Shape::of(&sample(true)));
    let mut text = Vec::new();
    let mut seq = first;
    for (line, is_cut) in chunk.iter() {
        match if is_cut { &cut } else { &whole } {
            Some(shape) => shape.fill(&mut text, seq, line),
            None => {
                let kind =
                    Kind::Log { stream: chunk.stream, message: line.to_owned(), cut: is_cut };
                let one = Event { execution_id: id, sequence: seq, timestamp: chunk.at, kind };
                text.clear();
                text.extend_from_slice(event(&one).as_bytes());
            }
        }
        put(frames, &text);
        seq = seq.next();
    }
}

/// The document of a line without its position, which stands in it twice, and without its text.
struct Shape([String; 4]);

impl Shape {
    /// Takes the document of an empty line at position 0 apart.
    fn of(sample: &str) -> Option<Self> {
        let (before, rest) = sample.split_once("#0\"")?;
        let (between, rest) = rest.split_once("\"sequence\":0")?;
        let (after, end) = rest.split_once("\"message\":\"\"")?;
        Some(Self([
            format!("{before}#"),
            format!("\"{between}\"sequence\":"),
            format!("{after}\"message\":"),
            end.to_owned(),
        ]))
    }

    fn fill(&self, text: &mut Vec<u8>, seq: Seq, line: &str) {
        let position = seq.to_string();
        text.clear();
        text.extend_from_slice(self.0[0].as_bytes());
        text.extend_from_slice(position.as_bytes());
        text.extend_from_slice(self.0[1].as_bytes());
        text.extend_from_slice(position.as_bytes());
        text.extend_from_slice(self.0[2].as_bytes());
        serde_json::to_writer(&mut *text, line).expect("a text is JSON");
        text.extend_from_slice(self.0[3].as_bytes());
    }
}

/// Appends one text frame as a server sends it: whole and not masked (RFC 6455, section 5.2).
pub fn put(out: &mut BytesMut, text: &[u8]) {
    out.reserve(text.len() + 10);
    out.put_u8(TEXT);
    match text.len() {
        short @ 0..=125 => out.put_u8(u8::try_from(short).expect("it is short")),
        medium @ 126..=0xffff => {
            out.put_u8(126);
            out.put_u16(u16::try_from(medium).expect("it has two bytes"));
        }
        long => {
            out.put_u8(127);
            out.put_u64(u64::try_from(long).expect("a length has eight bytes"));
        }
    }
    out.put_slice(text);
}

#[cfg(test)]
mod tests {
    use reeve_protocol::batch::Builder;
    use reeve_protocol::{Class, Fence, Output, Timestamp};

    use super::*;

    fn batch(first: u64, message: &str) -> Batch {
        let kind = Kind::Progress { current: 1, total: None, message: Some(message.to_owned()) };
        let stamped = Stamped { at: Timestamp::default(), kind };
        Batch::of_events(Handle(1), Fence(1), Seq(first), &[stamped])
    }

    #[test]
    fn a_batch_is_framed_once_and_the_oldest_goes_when_there_is_no_room() {
        let ready = Ready::default();
        let id = ExecutionId::mint(Timestamp::default(), 1);
        let first = ready.frames(id, &batch(1, "a")).unwrap();
        let again = ready.frames(id, &batch(1, "a")).unwrap();
        assert_eq!(first.as_ptr(), again.as_ptr());
        for position in 2..40 {
            ready.frames(id, &batch(position, &"x".repeat(250_000))).unwrap();
        }
        let kept = ready.0.lock().unwrap();
        assert!(kept.bytes <= KEPT_MAX && kept.order.len() == kept.frames.len());
        assert!(!kept.frames.contains_key(&(Handle(1), Seq(1), Seq(1))));
    }

    #[test]
    fn a_length_takes_the_form_that_it_needs() {
        for (length, head) in [
            (0, &[TEXT, 0][..]),
            (125, &[TEXT, 125]),
            (126, &[TEXT, 126, 0, 126]),
            (65_535, &[TEXT, 126, 255, 255]),
            (65_536, &[TEXT, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let mut out = BytesMut::new();
            put(&mut out, &vec![b'x'; length]);
            assert_eq!((&out[..head.len()], out.len()), (head, head.len() + length));
        }
    }

    #[test]
    fn a_line_is_written_as_its_event_is() {
        let id = ExecutionId::mint(Timestamp::default(), 7);
        let mut text = b"plain\n\nwith \"quotes\" and \\ and \xe2\x98\x83\ncut here".to_vec();
        text.extend(b"\x01\n");
        for stream in [Output::Stdout, Output::Stderr, Output::Handler] {
            let chunk = LogChunk {
                at: Timestamp::from_micros(1_800_000_000_000_001),
                stream,
                lines: 4,
                text: text.clone().into(),
            };
            let mut builder = Builder::new(Class::Bytes);
            builder.log(&chunk);
            let batch = builder.finish(Handle(1), Fence(1), Seq(98));
            let mut expected = BytesMut::new();
            for one in batch.events(id, Seq::NONE).unwrap() {
                put(&mut expected, event(&one).as_bytes());
            }
            assert_eq!(framed(id, &batch).unwrap(), expected.freeze());
            assert!(Shape::of("{}").is_none());
        }
    }
}
