//! The network: connections as two streams of bytes, in order, each with a pace of its own.
//!
//! What is written is cut into pieces and arrives later. A connection that is cut loses an end of
//! what was on its way, at any byte, and then both ends are told, each in its own time.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::rng::Rng;

/// One connection.
pub type ConnId = usize;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the broker.
    Up,
    /// From the broker.
    Down,
}

/// What arrives.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Some bytes.
    Bytes(Bytes),
    /// Nothing more.
    End,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub struct Pipe {
    on_its_way: VecDeque<Piece>,
    /// When the last piece arrives; none arrives before it.
    last_at: u64,
    /// Nothing arrives before this.
    stalled_until: u64,
    /// Bytes on their way.
    pub bytes: usize,
    closed: bool,
    /// What has arrived and was not taken yet.
    pub inbox: BytesMut,
    /// Whether the end has arrived.
    pub ended: bool,
}

/// How slow a network is.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The longest usual latency, in microseconds.
    pub latency: u64,
    /// How often in a thousand a write is cut into two.
    pub split: u64,
}

impl Pipe {
    /// Writes bytes; returns when each of their pieces arrives.
    pub fn write(&mut self, bytes: Bytes, pace: Pace, now: u64, rng: &mut Rng) -> Vec<u64> {
        if self.closed || bytes.is_empty() {
            return Vec::new();
        }
        let mut rest = bytes;
        let mut arrivals = Vec::new();
        if rest.len() > 1 && rng.chance(pace.split) {
            let head = rest.split_to(1 + rng.index(rest.len() - 1));
            arrivals.push(self.send(Piece::Bytes(head), pace, now, rng));
        }
        arrivals.push(self.send(Piece::Bytes(rest), pace, now, rng));
        arrivals
    }

    fn send(&mut self, piece: Piece, pace: Pace, now: u64, rng: &mut Rng) -> u64 {
        let at = (now + 1 + rng.below(pace.latency)).max(self.last_at).max(self.stalled_until);
        self.last_at = at;
        if let Piece::Bytes(bytes) = &piece {
            self.bytes += bytes.len();
        }
        self.on_its_way.push_back(piece);
        at
    }

    /// Ends the stream after `keep` of the bytes on their way; returns when the end arrives.
    pub fn close(&mut self, keep: usize, pace: Pace, now: u64, rng: &mut Rng) -> Option<u64> {
        if self.closed {
            return None;
        }
        let mut left = keep;
        for piece in &mut self.on_its_way {
            if let Piece::Bytes(bytes) = piece {
                let kept = bytes.len().min(left);
                left -= kept;
                self.bytes -= bytes.len() - kept;
                bytes.truncate(kept);
            }
        }
        // A stall never holds the news of an end back for good.
        self.stalled_until = 0;
        let at = self.send(Piece::End, pace, now, rng);
        self.closed = true;
        Some(at)
    }

    /// Returns whether more can be written.
    pub fn is_open(&self) -> bool {
        !self.closed
    }

    /// Lets nothing new arrive before `until`.
    pub fn stall(&mut self, until: u64) {
        self.stalled_until = self.stalled_until.max(until);
    }

    /// Lets what is written from now on arrive as usual.
    pub fn heal(&mut self) {
        self.stalled_until = 0;
    }

    /// Takes the arrival of the next piece; returns whether there was anything.
    pub fn arrive(&mut self) -> bool {
        match self.on_its_way.pop_front() {
            Some(Piece::Bytes(bytes)) => {
                self.bytes -= bytes.len();
                self.inbox.extend_from_slice(&bytes);
                !bytes.is_empty()
            }
            Some(Piece::End) => {
                self.ended = true;
                true
            }
            None => false,
        }
    }
}

/// Who is at the far end from the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A worker's process.
    Worker(usize),
    /// A reader.
    Reader(usize),
}

/// A connection.
#[derive(Debug)]
pub struct Conn {
    /// Who it belongs to.
    pub peer: Peer,
    /// Which life of the broker it is with.
    pub life: u64,
    /// To the broker.
    pub up: Pipe,
    /// From the broker.
    pub down: Pipe,
    /// Its chance.
    pub rng: Rng,
}

impl Conn {
    /// Returns one direction.
    pub fn pipe(&mut self, way: Way) -> (&mut Pipe, &mut Rng) {
        match way {
            Way::Up => (&mut self.up, &mut self.rng),
            Way::Down => (&mut self.down, &mut self.rng),
        }
    }
}
