//! One output stream of a process, from its descriptor to clean chunks of lines.
//!
//! Owns how often and how much is read. A child that writes line by line would wake its reader
//! for each of them; after a few tiny reads in a row the reader pauses for a moment, so that the
//! lines gather in the pipe. One large read ends that. Decides nothing about the text: the
//! sanitiser does.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::Bytes;
use reeve_protocol::sanitise::Lines;
use reeve_protocol::{LogChunk, Output, Timestamp};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use crate::process::descriptor::{self, watched};
use crate::scrub::{self, CleanLines, Scrubber};

/// Bytes that one read may take.
pub const READ_BYTES: usize = 256 << 10;
/// Bytes of text in one chunk; only a single longer line makes a larger one.
pub const CHUNK_BYTES: usize = 192 << 10;
/// A read below this is tiny.
const TINY_BYTES: usize = 512;
/// Tiny reads in a row before the reader pauses.
const TINY_READS: u32 = 8;
/// How long it pauses; the runtime's clock makes up to a millisecond more of it.
const PAUSE: Duration = Duration::from_micros(500);

/// Reads one stream.
#[derive(Debug)]
pub(crate) struct Reader {
    fd: AsyncFd<OwnedFd>,
    stream: Output,
    lines: Lines,
    /// Only where there are secrets.
    scrub: Option<Box<Scrub>>,
    tiny_reads: u32,
    pause_until: Option<Instant>,
}

impl Reader {
    /// Takes the reading end of a stream; it must not block.
    pub fn new(
        fd: OwnedFd,
        stream: Output,
        line_chars: usize,
        scrubber: &Scrubber,
    ) -> io::Result<Self> {
        Ok(Self {
            fd: watched(fd, Interest::READABLE)?,
            stream,
            lines: Lines::new(line_chars),
            scrub: Scrub::new(scrubber),
            tiny_reads: 0,
            pause_until: None,
        })
    }

    /// Waits until reading is worth it. Nothing is lost when the wait is given up.
    pub async fn ready(&self) {
        if let Some(until) = self.pause_until {
            tokio::time::sleep_until(until).await;
        }
        // An error shows again in the read that follows.
        let _ = self.fd.readable().await;
    }

    /// Reads once through `scratch` and adds the lines that were completed to `chunks`.
    ///
    /// Returns how many bytes it took, or `None` at the end of the stream.
    pub fn read(
        &mut self,
        scratch: &mut [u8],
        now: fn() -> Timestamp,
        chunks: &mut VecDeque<LogChunk>,
    ) -> Option<usize> {
        let length = match descriptor::read(&self.fd, scratch) {
            None => return Some(0),
            Some(0) => return None,
            Some(length) => length,
        };
        self.pace(length);
        let mut text = Vec::with_capacity(length + 64);
        let lines = match &mut self.scrub {
            None => self.lines.push(&scratch[..length], &mut text),
            Some(scrub) => scrub.push(&mut self.lines, &scratch[..length], &mut text),
        };
        split(now(), self.stream, lines, text, chunks);
        Some(length)
    }

    /// Takes the end of the stream: what has no line end is a line, too.
    pub fn finish(mut self, now: fn() -> Timestamp, chunks: &mut VecDeque<LogChunk>) {
        let mut text = Vec::new();
        let lines = match &mut self.scrub {
            None => self.lines.finish(&mut text),
            Some(scrub) => scrub.finish(&mut self.lines, &mut text),
        };
        split(now(), self.stream, lines, text, chunks);
    }

    fn pace(&mut self, length: usize) {
        self.tiny_reads = if length < TINY_BYTES { self.tiny_reads.saturating_add(1) } else { 0 };
        let pauses = self.tiny_reads >= TINY_READS;
        self.pause_until = pauses.then(|| Instant::now() + PAUSE);
    }
}

/// The search for secrets in one stream: in its bytes as they come, and in its lines once they are
/// clean, since what a terminal acts on may have stood in the middle of one.
#[derive(Debug)]
struct Scrub {
    raw: scrub::Stream,
    clean: CleanLines,
}

impl Scrub {
    fn new(scrubber: &Scrubber) -> Option<Box<Self>> {
        Some(Box::new(Self { raw: scrubber.stream()?, clean: scrubber.lines()? }))
    }

    /// Does what [`Lines::push`] does.
    fn push(&mut self, lines: &mut Lines, bytes: &[u8], text: &mut Vec<u8>) -> u32 {
        let (mut raw, mut cleaned) = (Vec::with_capacity(bytes.len()), Vec::new());
        self.raw.push(bytes, &mut raw);
        lines.push(&raw, &mut cleaned);
        let count;
        (*text, count) = self.clean.push(&cleaned);
        count
    }

    /// Does what [`Lines::finish`] does.
    fn finish(&mut self, lines: &mut Lines, text: &mut Vec<u8>) -> u32 {
        let (mut raw, mut cleaned) = (Vec::new(), Vec::new());
        self.raw.finish(&mut raw);
        lines.push(&raw, &mut cleaned);
        lines.finish(&mut cleaned);
        let (first, count) = self.clean.push(&cleaned);
        let (last, more) = self.clean.finish();
        *text = [first, last].concat();
        count + more
    }
}

/// Cuts clean text into chunks at line ends.
fn split(
    at: Timestamp,
    stream: Output,
    lines: u32,
    text: Vec<u8>,
    chunks: &mut VecDeque<LogChunk>,
) {
    let mut rest = Bytes::from(text);
    let mut left = lines;
    while rest.len() > CHUNK_BYTES {
        let end = memchr::memrchr(b'\n', &rest[..CHUNK_BYTES])
            .or_else(|| memchr::memchr(b'\n', &rest))
            .expect("clean text ends with a line end");
        let text = rest.split_to(end + 1);
        let lines = u32::try_from(memchr::memchr_iter(b'\n', &text).count())
            .expect("a chunk has fewer lines than bytes");
        left -= lines;
        chunks.push_back(LogChunk { at, stream, lines, text });
    }
    if left > 0 {
        chunks.push_back(LogChunk { at, stream, lines: left, text: rest });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_into_chunks_at_line_ends() {
        let text = "0123456789\n".repeat(40_000).into_bytes();
        let mut chunks = VecDeque::new();
        split(Timestamp::default(), Output::Stdout, 40_000, text.clone(), &mut chunks);

        assert_eq!(chunks.len(), 3);
        assert!(chunks.iter().all(|chunk| chunk.text.len() <= CHUNK_BYTES));
        assert!(chunks.iter().all(|chunk| chunk.iter().count() == chunk.lines as usize));
        assert_eq!(chunks.iter().map(|chunk| chunk.lines).sum::<u32>(), 40_000);
        assert_eq!(chunks.iter().flat_map(|chunk| chunk.text.to_vec()).collect::<Vec<_>>(), text);
    }

    #[test]
    fn a_line_longer_than_a_chunk_stays_whole() {
        let line = format!("{}\n", "x".repeat(CHUNK_BYTES));
        let text = format!("{line}{line}a\n").into_bytes();
        let mut chunks = VecDeque::new();
        split(Timestamp::default(), Output::Stderr, 3, text, &mut chunks);
        assert_eq!(chunks.iter().map(|chunk| chunk.lines).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[test]
    fn a_secret_is_found_with_terminal_sequences_in_its_middle() {
        let secret = "hunter2-Zebra";
        let scrubber = Scrubber::new(&[reeve_protocol::secret::Secret::new(secret)]);
        for at in 0..=secret.len() {
            for sequence in ["\x1b[1;31m", "\x1b]0;title\x07", "\x1b(B", "\u{9b}0m"] {
                let (left, right) = secret.split_at(at);
                let text = format!("<{left}{sequence}{right}>\n<{secret}>\nlast {left}");
                for size in [1, 5, text.len()] {
                    let (mut lines, mut out) = (Lines::new(2_000), Vec::new());
                    let mut scrub = Scrub::new(&scrubber).unwrap();
                    let mut count = 0;
                    for piece in text.as_bytes().chunks(size) {
                        let mut text = Vec::new();
                        count += scrub.push(&mut lines, piece, &mut text);
                        out.extend(text);
                    }
                    let mut text = Vec::new();
                    count += scrub.finish(&mut lines, &mut text);
                    out.extend(text);
                    let last = if at == secret.len() { "[redacted]" } else { left };
                    let expected = format!("<[redacted]>\n<[redacted]>\nlast {last}\n");
                    assert_eq!(String::from_utf8(out).unwrap(), expected, "{at} {sequence:?}");
                    assert_eq!(count, 3);
                }
            }
        }
    }

    #[test]
    fn no_lines_make_no_chunk() {
        let mut chunks = VecDeque::new();
        split(Timestamp::default(), Output::Stdout, 0, Vec::new(), &mut chunks);
        assert!(chunks.is_empty());
    }
}
