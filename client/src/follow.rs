//! The follower: what a reader holds of each execution, and what it may hand on.
//!
//! Owns the cursors. Its rule: every position of a history is handed on exactly once and in order,
//! or named as a gap; what breaks that rule on the wire is answered by subscribing again from the
//! cursors held here, which survive every connection. Never reads a clock and touches no socket.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use reeve_protocol::batch::{Batch, Class};
use reeve_protocol::frame::{self, BadFrame};
use reeve_protocol::id::{CapabilityId, ExecutionId, Handle, Seq};
use reeve_protocol::lifecycle::State;
use reeve_protocol::mutant;
use reeve_protocol::peer::kind;
use reeve_protocol::snapshot::Overlay;
use reeve_protocol::stream::{
    End, FollowFrom, Followed, Gap, GapReason, Joined, OverlayChanged, Sub, Subbed,
};

/// Ended executions whose last position is remembered, so that nothing of them is shown again.
const ENDED_MAX: usize = 10_000;
/// Violations on one connection that are answered by subscribing again; one more ends it.
const VIOLATIONS_MAX: u32 = 8;

/// What a reader may show, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Offer {
    /// An execution is followed from here on.
    Joined {
        /// Which.
        id: ExecutionId,
        /// What was called.
        capability: CapabilityId,
        /// How it stood when it was joined.
        state: State,
        /// The position that it is followed from.
        after: Seq,
        /// The last position of its history then.
        last: Seq,
    },
    /// Events that were not offered before; never a batch of lost ones.
    Events {
        /// Of which execution.
        id: ExecutionId,
        /// The events.
        batch: Batch,
    },
    /// Positions that cannot be shown; or, for `epoch` and `ahead`, must be forgotten.
    Gap {
        /// Of which execution.
        id: ExecutionId,
        /// The first.
        from: Seq,
        /// The last.
        to: Seq,
        /// Why.
        reason: GapReason,
    },
    /// What is known beside the events has changed.
    Overlay {
        /// Of which execution.
        id: ExecutionId,
        /// The whole of it.
        overlay: Box<Overlay>,
    },
    /// An execution is over, and all of it was offered.
    End {
        /// Which.
        id: ExecutionId,
        /// Its last position.
        last: Seq,
        /// Its final state.
        state: State,
    },
    /// Nobody holds an execution of this name.
    Unknown {
        /// Which.
        id: ExecutionId,
    },
}

/// What is held of one execution.
#[derive(Clone, Debug)]
struct Cursor {
    /// The last position that was offered.
    last: Seq,
    /// The last position that this connection has come to.
    wire: Seq,
    /// Whether this connection may say something about it.
    live: bool,
    /// Whether it was ever joined.
    joined: bool,
}

impl Cursor {
    fn after(last: Seq) -> Self {
        Self { last, wire: last, live: false, joined: false }
    }
}

/// The core of every reader of the live channel.
#[derive(Debug, Default)]
pub struct Follower {
    all: bool,
    epoch: Option<String>,
    cursors: BTreeMap<ExecutionId, Cursor>,
    ended: BTreeMap<ExecutionId, Seq>,
    handles: BTreeMap<Handle, ExecutionId>,
    again: BTreeSet<ExecutionId>,
    /// Which this connection was told that nobody holds.
    unknown: BTreeSet<ExecutionId>,
    violations: u32,
    offers: VecDeque<Offer>,
}

impl Follower {
    /// Makes a follower of named executions, each from the position after the one given.
    pub fn of(executions: impl IntoIterator<Item = FollowFrom>) -> Self {
        let cursors = executions
            .into_iter()
            .map(|wish| (wish.execution, Cursor::after(wish.after)))
            .collect();
        Self { cursors, ..Self::default() }
    }

    /// Makes a follower of everything that happens from now on.
    pub fn of_all() -> Self {
        Self { all: true, ..Self::default() }
    }

    /// Begins a connection: returns what to subscribe to on it.
    pub fn handle_connected(&mut self) -> Sub {
        self.handles.clear();
        self.again.clear();
        self.unknown.clear();
        self.violations = 0;
        for cursor in self.cursors.values_mut() {
            cursor.live = false;
        }
        let ids: Vec<ExecutionId> = self.cursors.keys().copied().collect();
        Sub { all: self.all, ..self.sub_of(&ids) }
    }

    /// Asks for the executions that nobody held a moment ago once more.
    pub fn handle_retry(&mut self) {
        self.again.append(&mut self.unknown);
    }

    /// Takes one frame. Kinds that are none of the follower's are passed over.
    ///
    /// # Errors
    ///
    /// When the connection is of no more use; cursors are as they were before the frame.
    pub fn handle_frame(&mut self, kind: u8, body: Bytes) -> Result<(), BadFrame> {
        match kind {
            kind::BATCH => self.on_batch(&Batch::parse(body)?),
            kind::GAP => self.on_gap(frame::decode(&body)?),
            kind::END => self.on_end(frame::decode(&body)?),
            kind::SUBBED => self.on_subbed(frame::decode(&body)?),
            kind::JOINED => self.on_joined(frame::decode(&body)?),
            kind::OVERLAY => self.on_overlay(frame::decode(&body)?),
            _ => Ok(()),
        }
    }

    /// Returns what to subscribe to again on the same connection, if anything.
    pub fn poll_sub(&mut self) -> Option<Sub> {
        if self.again.is_empty() {
            return None;
        }
        let ids: Vec<ExecutionId> = std::mem::take(&mut self.again).into_iter().collect();
        Some(self.sub_of(&ids))
    }

    /// Returns what to show next.
    pub fn poll_offer(&mut self) -> Option<Offer> {
        self.offers.pop_front()
    }

    /// Returns whether nothing can follow: everything named has ended.
    pub fn is_done(&self) -> bool {
        !self.all && self.cursors.is_empty() && self.offers.is_empty()
    }

    /// Returns the last position that was offered of an execution that has not ended.
    pub fn cursor(&self, id: ExecutionId) -> Option<Seq> {
        self.cursors.get(&id).map(|cursor| cursor.last)
    }

    fn sub_of(&self, ids: &[ExecutionId]) -> Sub {
        let executions = ids
            .iter()
            .filter_map(|id| Some(FollowFrom { execution: *id, after: self.cursors.get(id)?.last }))
            .collect();
        Sub { executions, all: false, epoch: self.epoch.clone() }
    }

    fn on_subbed(&mut self, subbed: Subbed) -> Result<(), BadFrame> {
        let other = self.epoch.as_ref().is_some_and(|epoch| *epoch != subbed.epoch);
        if other && !mutant::on("other epoch goes on") {
            self.forget_history();
        }
        self.epoch = Some(subbed.epoch);
        for followed in subbed.executions {
            self.join(followed, other);
        }
        for id in subbed.unknown {
            if let Some(cursor) = self.cursors.get_mut(&id) {
                cursor.live = false;
                self.unknown.insert(id);
                self.offers.push_back(Offer::Unknown { id });
            }
        }
        Ok(())
    }

    fn on_joined(&mut self, joined: Joined) -> Result<(), BadFrame> {
        self.join(joined.followed, false);
        Ok(())
    }

    /// The store's history is another one: nothing that was shown belongs to it.
    fn forget_history(&mut self) {
        self.ended.clear();
        for (id, cursor) in &mut self.cursors {
            if cursor.last > Seq::NONE {
                let (from, to) = (Seq(1), cursor.last);
                self.offers.push_back(Offer::Gap { id: *id, from, to, reason: GapReason::Epoch });
            }
            *cursor = Cursor { joined: cursor.joined, ..Cursor::after(Seq::NONE) };
        }
    }

    /// Takes that an execution is followed, from a cursor that may be about to be taken back.
    fn join(&mut self, followed: Followed, other_epoch: bool) {
        let id = followed.execution;
        self.handles.insert(followed.handle, id);
        self.again.remove(&id);
        let held = self.cursors.get(&id).cloned();
        let held = held.or_else(|| self.ended.get(&id).map(|last| Cursor::after(*last)));
        // A cursor of another epoch, or beyond the end, is repeated and then taken back by a gap.
        let after = match &held {
            Some(held) if other_epoch => held.last,
            Some(_) | None => followed.after.min(followed.last),
        };
        let mut cursor = held.unwrap_or_else(|| Cursor::after(followed.after));
        cursor.wire = followed.after;
        cursor.live = true;
        if !cursor.joined && !self.ended.contains_key(&id) {
            self.offers.push_back(Offer::Joined {
                id,
                capability: followed.capability,
                state: followed.state,
                after,
                last: followed.last,
            });
        }
        cursor.joined = true;
        if after > cursor.last {
            let (from, to) = (cursor.last.next(), after);
            self.offers.push_back(Offer::Gap { id, from, to, reason: GapReason::Retention });
            cursor.last = after;
        }
        self.cursors.insert(id, cursor);
    }

    /// Returns the execution of a handle, if this connection may speak about it.
    fn live(&mut self, handle: Handle) -> Result<Option<(ExecutionId, &mut Cursor)>, BadFrame> {
        let Some(id) = self.handles.get(&handle) else {
            return Err(BadFrame::new(format!("handle {} was never announced", handle.0)));
        };
        Ok(self.cursors.get_mut(id).filter(|cursor| cursor.live).map(|cursor| (*id, cursor)))
    }

    fn on_batch(&mut self, batch: &Batch) -> Result<(), BadFrame> {
        let Some((id, cursor)) = self.live(batch.handle())? else { return Ok(()) };
        if batch.first() != cursor.wire.next() {
            let (first, wire) = (batch.first(), cursor.wire);
            return self.violation(id, format!("a batch starts at {first} after {wire}"));
        }
        cursor.wire = batch.last();
        let new =
            if mutant::on("offers twice") { Some(batch.clone()) } else { batch.after(cursor.last) };
        let Some(batch) = new else { return Ok(()) };
        cursor.last = batch.last();
        self.offers.push_back(if batch.class() == Class::Lost {
            let (from, to) = (batch.first(), batch.last());
            Offer::Gap { id, from, to, reason: GapReason::Shed }
        } else {
            Offer::Events { id, batch }
        });
        Ok(())
    }

    fn on_gap(&mut self, gap: Gap) -> Result<(), BadFrame> {
        let Some((id, cursor)) = self.live(gap.handle)? else { return Ok(()) };
        let Gap { from, to, reason, resume_after, .. } = gap;
        match reason {
            GapReason::Retention | GapReason::Shed => {
                if from != cursor.wire.next() || to < from || resume_after != to {
                    let wire = cursor.wire;
                    return self.violation(id, format!("a gap {from} to {to} after {wire}"));
                }
                cursor.wire = to;
                if to > cursor.last {
                    let from = from.max(cursor.last.next());
                    cursor.last = to;
                    self.offers.push_back(Offer::Gap { id, from, to, reason });
                }
            }
            GapReason::Epoch | GapReason::Ahead => {
                let held = cursor.last;
                cursor.wire = resume_after;
                cursor.last = resume_after;
                // Nothing is left to forget where the new epoch has said so already.
                if held > resume_after {
                    let from = resume_after.next();
                    self.offers.push_back(Offer::Gap { id, from, to: held, reason });
                }
            }
        }
        Ok(())
    }

    fn on_end(&mut self, end: End) -> Result<(), BadFrame> {
        let Some((id, cursor)) = self.live(end.handle)? else { return Ok(()) };
        if end.last != cursor.wire || !end.state.is_final() {
            let (last, wire) = (end.last, cursor.wire);
            return self.violation(id, format!("an end at {last} ({}) after {wire}", end.state));
        }
        self.cursors.remove(&id);
        if self.ended.insert(id, end.last).is_none() {
            self.offers.push_back(Offer::End { id, last: end.last, state: end.state });
        }
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_first();
        }
        Ok(())
    }

    fn on_overlay(&mut self, changed: OverlayChanged) -> Result<(), BadFrame> {
        // An ended execution still has an overlay: a late report, a lock that is still held.
        if let Some(id) = self.handles.get(&changed.handle) {
            let overlay = Box::new(changed.overlay);
            self.offers.push_back(Offer::Overlay { id: *id, overlay });
        }
        Ok(())
    }

    /// The sender broke the order: hears nothing more of the execution until it is announced anew.
    fn violation(&mut self, id: ExecutionId, what: String) -> Result<(), BadFrame> {
        self.violations += 1;
        if self.violations > VIOLATIONS_MAX {
            return Err(BadFrame::new(format!("{what}, once too often")));
        }
        if let Some(cursor) = self.cursors.get_mut(&id) {
            cursor.live = false;
        }
        self.again.insert(id);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
