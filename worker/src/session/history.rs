//! The history of one execution as its worker keeps it: batches in order, dense from 1.
//!
//! Output is bounded by bytes, from the middle: its first half stays, then the newest part.
//! Events are bounded by number and by bytes: the oldest go first, as they do at a broker, and
//! what moves the execution to another state never does. What was dropped stays accounted for, so
//! that every position can be sent again. Looks into a batch only to keep what may not be dropped.

use std::collections::VecDeque;

use reeve_protocol::{Batch, Class, Entry, Fence, Handle, Seq};

/// Batches of one execution, without a writer's handle and fence.
pub(super) struct History {
    /// From the first position until half of the bound is full.
    head: Vec<Piece>,
    /// What was shed, and the events between.
    middle: Vec<Piece>,
    /// The newest.
    tail: VecDeque<Piece>,
    head_full: bool,
    head_bytes: usize,
    tail_bytes: usize,
    bytes_max: usize,
    events_max: usize,
    /// Events that may be dropped.
    loose: Loose,
    last: Seq,
    offset: u64,
}

/// Events that may be dropped, and the bytes of their batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Loose {
    events: usize,
    bytes: usize,
}

impl Loose {
    fn add(&mut self, other: Self) {
        self.events += other.events;
        self.bytes += other.bytes;
    }

    fn remove(&mut self, other: Self) {
        self.events -= other.events;
        self.bytes -= other.bytes;
    }

    fn is_over(self, most: Self) -> bool {
        self.events > most.events || self.bytes > most.bytes
    }
}

struct Piece {
    batch: Batch,
    /// Bytes numbered up to the end of this piece, shed or not.
    end: u64,
    loose: Loose,
}

impl History {
    pub(super) fn new(bytes_max: usize, events_max: usize) -> Self {
        Self {
            head: Vec::new(),
            middle: Vec::new(),
            tail: VecDeque::new(),
            head_full: false,
            head_bytes: 0,
            tail_bytes: 0,
            bytes_max,
            events_max,
            loose: Loose::default(),
            last: Seq::NONE,
            offset: 0,
        }
    }

    /// Returns how many bytes were ever added.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Adds the batch that follows.
    pub(super) fn push(&mut self, batch: Batch) {
        assert_eq!(batch.first(), self.last.next(), "a history is dense");
        self.last = batch.last();
        self.offset += batch.bytes().len() as u64;
        let log_bytes = log_bytes(&batch);
        let loose = loose_in(&batch);
        self.loose.add(loose);
        let piece = Piece { batch, end: self.offset, loose };
        self.place(piece, log_bytes);
        // A little more at a time, so that each one costs little.
        let most = Loose {
            events: self.events_max + self.events_max / 4,
            bytes: self.bytes_max + self.bytes_max / 4,
        };
        if self.loose.is_over(most) {
            self.thin();
        }
    }

    fn place(&mut self, piece: Piece, log_bytes: usize) {
        if !self.head_full && self.head_bytes + log_bytes <= self.bytes_max / 2 {
            self.head_bytes += log_bytes;
            self.head.push(piece);
            return;
        }
        self.head_full = true;
        self.tail_bytes += log_bytes;
        self.tail.push_back(piece);
        while self.head_bytes + self.tail_bytes > self.bytes_max && self.tail.len() > 1 {
            self.shed();
        }
    }

    /// Returns what follows `after`: at most one batch.
    pub(super) fn following(&self, after: Seq) -> Option<Batch> {
        let at = self.index_of(after.next());
        self.piece(at).and_then(|piece| piece.batch.after(after))
    }

    /// Returns how many bytes were added up to a position; whole batches only.
    pub(super) fn offset_at(&self, through: Seq) -> u64 {
        let at = self.index_of(through.next());
        match at.checked_sub(1) {
            Some(before) => self.piece(before).map_or(self.offset, |piece| piece.end),
            None => 0,
        }
    }

    fn piece(&self, at: usize) -> Option<&Piece> {
        let in_middle = at.checked_sub(self.head.len());
        let in_tail = in_middle.and_then(|at| at.checked_sub(self.middle.len()));
        match (in_middle, in_tail) {
            (None, _) => self.head.get(at),
            (Some(at), None) => self.middle.get(at),
            (_, Some(at)) => self.tail.get(at),
        }
    }

    /// Returns the index of the piece that holds `seq`, or the number of pieces.
    fn index_of(&self, seq: Seq) -> usize {
        let before = |piece: &Piece| piece.batch.last() < seq;
        let in_head = self.head.partition_point(before);
        if in_head < self.head.len() {
            return in_head;
        }
        let in_middle = self.middle.partition_point(before);
        if in_middle < self.middle.len() {
            return in_head + in_middle;
        }
        in_head + in_middle + self.tail.partition_point(before)
    }

    /// Moves the oldest piece of the tail to the middle, without its text.
    fn shed(&mut self) {
        let piece = self.tail.pop_front().expect("the tail is not empty");
        self.tail_bytes -= log_bytes(&piece.batch);
        if piece.batch.class() == Class::Events {
            self.middle.push(piece);
        } else {
            push_lost(&mut self.middle, piece.batch.first(), piece.batch.count(), piece.end);
        }
    }

    /// Drops the oldest events until what is left of them is within the bounds; never the newest
    /// batch.
    fn thin(&mut self) {
        let most = Loose { events: self.events_max, bytes: self.bytes_max };
        let (last, loose) = (self.last, &mut self.loose);
        let mut thinned = |pieces: Vec<Piece>| {
            let mut kept = Vec::with_capacity(pieces.len());
            for piece in pieces {
                if loose.is_over(most) && piece.loose.events > 0 && piece.batch.last() < last {
                    loose.remove(piece.loose);
                    push_states(&mut kept, &piece);
                } else if piece.batch.class() == Class::Lost {
                    push_lost(&mut kept, piece.batch.first(), piece.batch.count(), piece.end);
                } else {
                    kept.push(piece);
                }
            }
            kept
        };
        self.head = thinned(std::mem::take(&mut self.head));
        self.middle = thinned(std::mem::take(&mut self.middle));
        self.tail = thinned(std::mem::take(&mut self.tail).into()).into();
    }

    /// Returns how many batches and how many events that may be dropped are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize) {
        (self.head.len() + self.middle.len() + self.tail.len(), self.loose.events)
    }
}

/// Adds positions that are accounted for and gone, to those that end here if there are some.
fn push_lost(pieces: &mut Vec<Piece>, mut first: Seq, mut count: u32, end: u64) {
    if let Some(before) = pieces.last().map(|piece| &piece.batch)
        && before.class() == Class::Lost
        && let Some(sum) = before.count().checked_add(count)
    {
        (first, count) = (before.first(), sum);
        pieces.pop();
    }
    let batch = Batch::lost(Handle(0), Fence(0), first, count);
    pieces.push(Piece { batch, end, loose: Loose::default() });
}

/// Adds what may not be dropped of a batch of events; the rest is accounted for.
fn push_states(pieces: &mut Vec<Piece>, piece: &Piece) {
    let entries = piece.batch.entries().expect("what was written here can be read");
    let mut seq = piece.batch.first();
    for entry in entries {
        match entry {
            Entry::Event(event) if event.kind.moves_to().is_some() => {
                let batch = Batch::of_events(Handle(0), Fence(0), seq, &[event]);
                pieces.push(Piece { batch, end: piece.end, loose: Loose::default() });
            }
            Entry::Event(_) | Entry::Log(_) => push_lost(pieces, seq, 1, piece.end),
        }
        seq = seq.next();
    }
}

/// Returns what may be dropped of a batch; the few states in it are told apart when it is.
fn loose_in(batch: &Batch) -> Loose {
    match batch.class() {
        Class::Events => Loose { events: batch.entry_count(), bytes: batch.bytes().len() },
        Class::Bytes | Class::Lost => Loose::default(),
    }
}

fn log_bytes(batch: &Batch) -> usize {
    if batch.class() == Class::Bytes { batch.bytes().len() } else { 0 }
}
