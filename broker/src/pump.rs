//! The pump: what one reader is sent next, from where its own cursors stand.
//!
//! A core: it is told that something is new, asks for pages of history and turns them into
//! frames. It holds one cursor per execution and no events, so its size does not depend on how
//! far behind its reader is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::BytesMut;
use reeve_protocol::frame;
use reeve_protocol::mutant;
use reeve_protocol::peer::kind;
use reeve_protocol::stream::{End, Followed, Gap, GapReason, Joined, OverlayChanged, Subbed};
use reeve_protocol::{ExecutionId, Handle, Seq};

use crate::plane::Shown;
use crate::store::{Item, Page};

/// Executions that the answer to a subscription names; further ones join right after it, so that
/// every frame stays below its bound.
const SUBBED_MAX: usize = 500;

/// Where one reader stands in one execution.
#[derive(Debug)]
struct Cursor {
    at: Seq,
    overlay: u64,
    ended: bool,
    /// The last position and state that were seen, for when the execution is forgotten.
    known: (Seq, reeve_protocol::State),
}

/// What one reader is sent.
#[derive(Debug, Default)]
pub struct Pump {
    cursors: BTreeMap<Handle, Cursor>,
    dirty: BTreeSet<Handle>,
    /// The execution that was served last: the next one is served after it.
    served: Option<Handle>,
    /// What a reader of everything has taken out by name.
    left: BTreeSet<Handle>,
    /// Set for a reader of everything: executions from this number on are new to it.
    horizon: Option<Handle>,
}

/// A page of history that the pump wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Of which execution.
    pub handle: Handle,
    /// From after this position.
    pub after: Seq,
}

impl Pump {
    /// Takes a subscription that the plane answered, and writes the answer and its first gaps.
    ///
    /// `foreign` names the executions whose cursor is the reader's own, of another epoch.
    pub fn subscribe(
        &mut self,
        subbed: &Subbed,
        all: Option<Handle>,
        foreign: &[ExecutionId],
        out: &mut BytesMut,
    ) {
        let named = &subbed.executions[..subbed.executions.len().min(SUBBED_MAX)];
        let further = &subbed.executions[named.len()..];
        if further.is_empty() {
            frame::put_message(out, kind::SUBBED, subbed);
        } else {
            let (epoch, unknown) = (subbed.epoch.clone(), subbed.unknown.clone());
            let first = Subbed { epoch, executions: named.to_vec(), unknown };
            frame::put_message(out, kind::SUBBED, &first);
        }
        if all.is_some() {
            self.horizon = all;
        }
        for (n, followed) in subbed.executions.iter().enumerate() {
            let is_foreign = foreign.contains(&followed.execution);
            let at = if n < named.len() {
                self.start(followed, is_foreign, out)
            } else {
                // The answer has named the epoch: who joins after it begins anew by itself.
                let after = if is_foreign { Seq::NONE } else { followed.after };
                let followed = Followed { after, ..followed.clone() };
                frame::put_message(out, kind::JOINED, &Joined { followed: followed.clone() });
                self.start(&followed, false, out)
            };
            self.left.remove(&followed.handle);
            self.cursors.insert(
                followed.handle,
                Cursor { at, overlay: 0, ended: false, known: (followed.last, followed.state) },
            );
            self.dirty.insert(followed.handle);
        }
    }

    /// Returns where a reader begins; a cursor that cannot be is answered by a gap.
    fn start(&self, followed: &Followed, is_foreign: bool, out: &mut BytesMut) -> Seq {
        let Followed { handle, after, last, .. } = *followed;
        let (from, resume_after, reason) = if is_foreign && after > Seq::NONE {
            (Seq(1), Seq::NONE, GapReason::Epoch)
        } else if after > last {
            (last.next(), last, GapReason::Ahead)
        } else {
            return after;
        };
        frame::put_message(out, kind::GAP, &Gap { handle, from, to: after, reason, resume_after });
        resume_after
    }

    /// Forgets what is no longer followed; none named means all.
    pub fn unsubscribe(&mut self, handles: &[Handle]) {
        if handles.is_empty() {
            *self = Self::default();
        }
        for handle in handles {
            self.cursors.remove(handle);
            self.dirty.remove(handle);
            if self.horizon.is_some_and(|horizon| *handle >= horizon) {
                self.left.insert(*handle);
            }
        }
    }

    /// Takes that an execution has something new.
    pub fn wake(&mut self, handle: Handle) {
        let new = self.horizon.is_some_and(|horizon| handle >= horizon);
        if new || self.cursors.contains_key(&handle) {
            self.dirty.insert(handle);
        }
    }

    /// Returns whether anything is new.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Returns the execution that is served next: each in turn, so that one that is always new
    /// keeps no other from its reader.
    fn turn(&self) -> Option<Handle> {
        let after = self.served.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.dirty.range((after, Bound::Unbounded)).next();
        next.or_else(|| self.dirty.first()).copied()
    }

    /// Returns the page that is wanted next, if anything is new.
    ///
    /// `show` looks an execution up as everybody sees it; what it does not know is forgotten.
    pub fn next(
        &mut self,
        show: impl Fn(Handle) -> Option<Shown>,
        out: &mut BytesMut,
    ) -> Option<Wanted> {
        while let Some(handle) = self.turn() {
            self.served = Some(handle);
            let Some(shown) = show(handle) else {
                self.dirty.remove(&handle);
                self.left.remove(&handle);
                self.forgotten(handle, out);
                continue;
            };
            if self.left.contains(&handle) {
                self.dirty.remove(&handle);
                continue;
            }
            let cursor = self.cursors.entry(handle).or_insert_with(|| {
                let followed = Followed {
                    execution: shown.snapshot.id,
                    handle,
                    capability: shown.snapshot.capability.clone(),
                    after: Seq::NONE,
                    last: shown.last,
                    state: shown.snapshot.state,
                };
                frame::put_message(out, kind::JOINED, &Joined { followed });
                let known = (shown.last, shown.snapshot.state);
                Cursor { at: Seq::NONE, overlay: 0, ended: false, known }
            });
            cursor.known = (shown.last, shown.snapshot.state);
            if shown.snapshot.overlay.revision != cursor.overlay {
                cursor.overlay = shown.snapshot.overlay.revision;
                let overlay = shown.snapshot.overlay.clone();
                frame::put_message(out, kind::OVERLAY, &OverlayChanged { handle, overlay });
            }
            if cursor.at < shown.last {
                return Some(Wanted { handle, after: cursor.at });
            }
            self.dirty.remove(&handle);
            if shown.snapshot.state.is_final() && !cursor.ended && !mutant::on("end not told") {
                cursor.ended = true;
                let end = End { handle, last: shown.last, state: shown.snapshot.state };
                frame::put_message(out, kind::END, &end);
            }
        }
        None
    }

    /// Writes a page that was wanted, as far as everybody may see it.
    pub fn page(&mut self, wanted: Wanted, page: &Page, visible: Seq, out: &mut BytesMut) {
        let Some(cursor) = self.cursors.get_mut(&wanted.handle) else { return };
        if cursor.at != wanted.after {
            return;
        }
        for item in &page.items {
            match item {
                Item::Batch(batch)
                    if batch.first() > visible && !mutant::on("shows what is not stored") =>
                {
                    break;
                }
                Item::Batch(batch) => {
                    frame::put(out, kind::BATCH, batch.bytes());
                    cursor.at = batch.last();
                }
                Item::Gap { from, .. } if *from > visible => break,
                Item::Gap { from, to, reason } => {
                    let to = visible.min(*to);
                    let told = Seq(to.0 - u64::from(mutant::on("gap is one short")));
                    let gap = Gap {
                        handle: wanted.handle,
                        from: *from,
                        to: told,
                        reason: *reason,
                        resume_after: told,
                    };
                    frame::put_message(out, kind::GAP, &gap);
                    cursor.at = to;
                }
            }
        }
        if page.items.is_empty() {
            // Forgotten between the look and the read; its last wake is on the way.
            self.dirty.remove(&wanted.handle);
        }
    }

    /// Says what can no longer be read of an execution that was forgotten.
    fn forgotten(&mut self, handle: Handle, out: &mut BytesMut) {
        let Some(cursor) = self.cursors.remove(&handle) else { return };
        let (last, state) = cursor.known;
        if cursor.at < last {
            let gap = Gap {
                handle,
                from: cursor.at.next(),
                to: last,
                reason: GapReason::Retention,
                resume_after: last,
            };
            frame::put_message(out, kind::GAP, &gap);
        }
        if !cursor.ended && state.is_final() {
            frame::put_message(out, kind::END, &End { handle, last, state });
        }
    }
}

#[cfg(test)]
mod tests;
