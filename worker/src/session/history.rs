//! The history of one execution as its worker keeps it: batches in order, dense from 1.
//!
//! Events are kept to the end. Output is bounded by bytes, from the middle: its first half stays,
//! then the newest part; what was dropped stays accounted for, so that every position can be
//! sent again. Never looks into a batch.

use std::collections::VecDeque;

use reeve_protocol::{Batch, Class, Fence, Handle, Seq};

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
    last: Seq,
    offset: u64,
}

struct Piece {
    batch: Batch,
    /// Bytes numbered up to the end of this piece, shed or not.
    end: u64,
}

impl History {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            head: Vec::new(),
            middle: Vec::new(),
            tail: VecDeque::new(),
            head_full: false,
            head_bytes: 0,
            tail_bytes: 0,
            bytes_max,
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
        let piece = Piece { batch, end: self.offset };
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
            return;
        }
        let (mut first, mut count) = (piece.batch.first(), piece.batch.count());
        if let Some(before) = self.middle.last().map(|piece| &piece.batch)
            && before.class() == Class::Lost
            && let Some(sum) = before.count().checked_add(count)
        {
            (first, count) = (before.first(), sum);
            self.middle.pop();
        }
        let batch = Batch::lost(Handle(0), Fence(0), first, count);
        self.middle.push(Piece { batch, end: piece.end });
    }
}

fn log_bytes(batch: &Batch) -> usize {
    if batch.class() == Class::Bytes { batch.bytes().len() } else { 0 }
}
