//! One stream of bytes, searched as it flows.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, MatchKind};

use super::MARKER;
use super::forms::{WINDOW, Wanted};

/// Everything that an output is searched for, ready for the search.
pub(super) struct Patterns {
    exact: NFA,
    start: StateID,
    /// How many bytes of a pattern have been seen in each state.
    depths: HashMap<StateID, usize>,
    /// In their order.
    windows: Vec<[u8; WINDOW]>,
    /// Which windows there may be: a bit for each hash.
    sketch: Vec<u64>,
}

impl fmt::Debug for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Patterns {
    /// Prepares a search. The marker is among what is searched for, so that it stays as it is.
    pub fn new(mut wanted: Wanted) -> Self {
        wanted.exact.insert(MARKER.as_bytes().to_vec());
        let exact = NFA::builder()
            .match_kind(MatchKind::Standard)
            .build(&wanted.exact)
            .expect("patterns within their bounds fit a machine");
        let start = exact.start_state(Anchored::No).expect("a search may begin anywhere");
        let mut depths = HashMap::new();
        for pattern in &wanted.exact {
            let mut state = start;
            for (at, byte) in pattern.iter().enumerate() {
                state = exact.next_state(Anchored::No, state, *byte);
                depths.insert(state, at + 1);
            }
        }
        let mut windows = wanted.windows;
        windows.sort_unstable();
        windows.dedup();
        let bits = (windows.len() * 16).next_power_of_two().max(64);
        let mut sketch = vec![0; if windows.is_empty() { 0 } else { bits / 64 }];
        for window in &windows {
            let hash = hash(window) & (bits - 1);
            sketch[hash / 64] |= 1 << (hash % 64);
        }
        Self { exact, start, depths, windows, sketch }
    }

    fn has_window(&self, window: &[u8]) -> bool {
        let window = <&[u8; WINDOW]>::try_from(window).expect("a window is cut to its size");
        let hash = hash(window) & (self.sketch.len() * 64 - 1);
        self.sketch[hash / 64] >> (hash % 64) & 1 == 1 && self.windows.binary_search(window).is_ok()
    }

    /// Returns how many of the last bytes may be the beginning of a window.
    fn window_begun(&self, bytes: &[u8]) -> usize {
        let longest = bytes.len().min(WINDOW - 1);
        let begins = |tail: &[u8]| {
            let at = self.windows.partition_point(|window| &window[..] < tail);
            self.windows.get(at).is_some_and(|window| window.starts_with(tail))
        };
        (1..=longest).rev().find(|length| begins(&bytes[bytes.len() - length..])).unwrap_or(0)
    }
}

fn hash(window: &[u8; WINDOW]) -> usize {
    let (head, tail) = window.split_at(8);
    let head = u64::from_le_bytes(head.try_into().expect("eight bytes"));
    let tail = u32::from_le_bytes(tail.try_into().expect("four bytes"));
    let mixed = (head ^ u64::from(tail).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_mul(0xff51_afd7_ed55_8ccd);
    usize::try_from(mixed >> 32).expect("32 bits fit")
}

/// Searches one stream of bytes and passes on all but what is searched for.
///
/// Bytes are held back only while they may be the beginning of something, so how the stream is
/// cut into pieces never shows. Line ends at the edge of what is taken out stay.
pub struct Stream {
    patterns: Arc<Patterns>,
    state: StateID,
    held: Vec<u8>,
    /// What is to be taken out of the held bytes, in order and without overlap.
    spans: Vec<Span>,
    /// Whether the marker of the first span is out already.
    open: bool,
    /// Line ends taken out last, which stay if nothing more is taken out behind them.
    line_ends: Vec<u8>,
}

type Span = (usize, usize);

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("held", &self.held.len()).finish_non_exhaustive()
    }
}

impl Stream {
    pub(super) fn new(patterns: Arc<Patterns>) -> Self {
        let state = patterns.start;
        let (held, spans, line_ends) = (Vec::new(), Vec::new(), Vec::new());
        Self { patterns, state, held, spans, open: false, line_ends }
    }

    /// Takes the next bytes, and adds to `out` what is certain to stay.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let before = self.held.len();
        self.held.extend_from_slice(bytes);
        self.search(before);
        let depth = self.patterns.depths.get(&self.state).copied().unwrap_or(0);
        let begun = depth.max(self.patterns.window_begun(&self.held));
        self.emit(self.held.len() - begun, out);
    }

    /// Takes the end of the stream.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.emit(self.held.len(), out);
        self.state = self.patterns.start;
    }

    #[cfg(test)]
    pub(super) fn held_len(&self) -> usize {
        self.held.len()
    }

    /// Finds what ends at or behind `from`.
    fn search(&mut self, from: usize) {
        let patterns = &self.patterns;
        for (at, byte) in self.held.iter().enumerate().skip(from) {
            self.state = patterns.exact.next_state(Anchored::No, self.state, *byte);
            if patterns.exact.is_special(self.state) && patterns.exact.is_match(self.state) {
                let ending = 0..patterns.exact.match_len(self.state);
                let lengths = ending.map(|index| {
                    patterns.exact.pattern_len(patterns.exact.match_pattern(self.state, index))
                });
                let length = lengths.max().expect("a match is of a pattern");
                self.spans.push((at + 1 - length, at + 1));
            }
        }
        if !patterns.windows.is_empty() {
            // What may be the beginning of a window is still held.
            let first = from.saturating_sub(WINDOW - 1);
            for (at, window) in self.held.windows(WINDOW).enumerate().skip(first) {
                if patterns.has_window(window) {
                    self.spans.push((at, at + WINDOW));
                }
            }
        }
        self.spans.sort_unstable();
        self.spans.dedup_by(|next, last| {
            let overlaps = next.0 < last.1;
            if overlaps {
                last.1 = last.1.max(next.1);
            }
            overlaps
        });
    }

    /// Passes on the first bytes; nothing that comes can change what becomes of them.
    fn emit(&mut self, until: usize, out: &mut Vec<u8>) {
        let held = std::mem::take(&mut self.held);
        let mut at = 0;
        for (start, end) in std::mem::take(&mut self.spans) {
            if start < until {
                out.extend_from_slice(&held[at..start]);
                at = end.min(until);
                self.take_out(&held[start..at], out);
            }
            if end > until {
                self.spans.push((start.saturating_sub(until), end - until));
            } else {
                self.close(out);
            }
        }
        out.extend_from_slice(&held[at..until]);
        self.held = held[until..].to_vec();
    }

    /// Puts the marker in place of bytes, but for the line ends at their edges.
    fn take_out(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for byte in bytes {
            let is_end = matches!(byte, b'\n' | b'\r');
            match (is_end, self.open) {
                (true, false) => out.push(*byte),
                (true, true) => self.line_ends.push(*byte),
                (false, false) => {
                    out.extend_from_slice(MARKER.as_bytes());
                    self.open = true;
                }
                (false, true) => self.line_ends.clear(),
            }
        }
    }

    /// Ends what is taken out.
    fn close(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.line_ends);
        self.open = false;
    }
}
