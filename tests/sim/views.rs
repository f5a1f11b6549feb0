//! What readers were offered, held against what is kept.

use reeve_broker::store::Item;
use reeve_broker::store::memory::Memory;
use reeve_client::follow::Offer;
use reeve_protocol::stream::GapReason;
use reeve_protocol::{Batch, ExecutionId, Seq, State};

use crate::ledger::{Ledger, SHED, contents};
use crate::reader::{Habit, Reader};

/// One execution as one reader sees it.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub at: Seq,
    /// The life of the broker whose history it is; none before the first word.
    pub life: Option<u64>,
    pub joined: bool,
    pub ended: Option<(Seq, State)>,
    pub unknown: bool,
}

type Held = Result<(), String>;

fn hold(holds: bool, text: impl FnOnce() -> String) -> Held {
    if holds { Ok(()) } else { Err(text()) }
}

impl Ledger {
    /// Takes the cursor that a reader begins with.
    pub fn on_wish(&mut self, reader: usize, id: ExecutionId, after: Seq) {
        self.views.insert((reader, id), View { at: after, ..View::default() });
    }

    pub fn on_reader_connected(&mut self, reader: usize) {
        self.subscribed_at.remove(&reader);
    }

    /// Takes what a reader was offered.
    pub fn on_offer(&mut self, reader: usize, life: u64, offer: &Offer, store: Option<&Memory>) {
        let id = *match offer {
            Offer::Joined { id, .. }
            | Offer::Events { id, .. }
            | Offer::Gap { id, .. }
            | Offer::Overlay { id, .. }
            | Offer::End { id, .. }
            | Offer::Unknown { id } => id,
        };
        let mut view = self.views.get(&(reader, id)).cloned().unwrap_or_default();
        let result = self.offered(&mut view, life, id, offer, store);
        self.views.insert((reader, id), view);
        if let Err(text) = result {
            self.fail("followers", format!("reader {reader}, {id}: {text}"));
        }
    }

    fn offered(
        &self,
        view: &mut View,
        life: u64,
        id: ExecutionId,
        offer: &Offer,
        store: Option<&Memory>,
    ) -> Held {
        match offer {
            Offer::Joined { after, .. } => {
                hold(!view.joined || view.ended.is_some(), || "it is joined twice".to_owned())?;
                if view.ended.is_some() && view.life != Some(life) {
                    // Another history; what was shown of the earlier one is over.
                    *view = View::default();
                }
                if view.life.is_none() && view.at == Seq::NONE {
                    view.at = *after;
                }
                view.joined = true;
                view.unknown = false;
                Ok(())
            }
            Offer::Events { batch, .. } => {
                self.same_history(view, life)?;
                hold(batch.first() == view.at.next(), || {
                    format!("{} is offered after {}", batch.first(), view.at)
                })?;
                view.at = batch.last();
                self.is_kept(life, id, batch)
            }
            Offer::Gap { from, to, reason, .. } => {
                self.gap(view, life, id, (*from, *to, *reason), store)
            }
            Offer::End { last, state, .. } => {
                self.same_history(view, life)?;
                hold(view.ended.is_none(), || "it ends twice".to_owned())?;
                hold(view.at == *last, || format!("it ends at {last}, after {}", view.at))?;
                view.ended = Some((*last, *state));
                let kept = self.of(life, id).ok_or("nobody knows it".to_owned())?;
                hold(kept.last() == *last && kept.state == *state, || {
                    format!("{state} at {last} is {} at {}", kept.state, kept.last())
                })?;
                hold(kept.published >= *last, || "its end is not shown yet".to_owned())
            }
            Offer::Unknown { .. } => {
                view.unknown = true;
                Ok(())
            }
            Offer::Overlay { .. } => Ok(()),
        }
    }

    /// A view goes on in the history that it began with, or from nothing.
    fn same_history(&self, view: &mut View, life: u64) -> Held {
        let other = view.life.is_some_and(|other| other != life);
        hold(!other || view.at == Seq::NONE, || {
            format!("another history goes on after {}", view.at)
        })?;
        if other {
            view.ended = None;
        }
        hold(view.ended.is_none(), || "something follows its end".to_owned())?;
        view.life = Some(life);
        Ok(())
    }

    fn is_kept(&self, life: u64, id: ExecutionId, batch: &Batch) -> Held {
        let kept = self.of(life, id).ok_or("nobody knows it".to_owned())?;
        hold(batch.last() <= kept.published, || {
            format!("{} is offered, and {} is shown", batch.last(), kept.published)
        })?;
        let from = usize::try_from(batch.first().0 - 1).expect("few");
        let theirs = contents(batch);
        hold(kept.positions.get(from..from + theirs.len()) == Some(&theirs[..]), || {
            format!("what is offered from {} on differs", batch.first())
        })
    }

    fn gap(
        &self,
        view: &mut View,
        life: u64,
        id: ExecutionId,
        (from, to, reason): (Seq, Seq, GapReason),
        store: Option<&Memory>,
    ) -> Held {
        if matches!(reason, GapReason::Epoch | GapReason::Ahead) {
            hold(to == view.at && from <= to, || {
                format!("{from} to {to} are to be forgotten, and {} is held", view.at)
            })?;
            let other = view.life.is_none_or(|other| other != life);
            hold(other, || format!("{from} to {to} of this history are to be forgotten"))?;
            view.at = Seq(from.0 - 1);
            view.ended = None;
            return Ok(());
        }
        self.same_history(view, life)?;
        hold(from == view.at.next() && to >= from, || {
            format!("a gap {from} to {to} after {}", view.at)
        })?;
        view.at = to;
        let kept = self.of(life, id).ok_or("nobody knows it".to_owned())?;
        hold(to <= kept.published, || format!("a gap to {to}, and {} is shown", kept.published))?;
        let at = usize::try_from(from.0 - 1).expect("few");
        let shed = kept.positions[at..usize::try_from(to.0).expect("few")]
            .iter()
            .all(|content| *content == SHED);
        hold(reason != GapReason::Shed || shed, || format!("{from} to {to} were not shed"))?;
        // Once it is forgotten, nothing can be read; before that, a gap must be one.
        let Some(store) = store.filter(|_| !kept.forgotten) else { return Ok(()) };
        let handle = self.known[&(life, id)].handle.expect("it is known");
        let page = store.read_now(handle, Seq(from.0 - 1), usize::MAX);
        let there = page.items.iter().any(|item| match item {
            Item::Batch(batch) => batch.first() <= to,
            Item::Gap { .. } => false,
        });
        hold(!there, || format!("{from} to {to} are there, and called a gap"))
    }

    /// Checks that a reader has caught up.
    pub fn reader_at_end(&mut self, index: usize, reader: &Reader, life: u64) {
        if reader.habit == Habit::Deaf {
            return;
        }
        if reader.conn.is_none() && !reader.follower.is_done() {
            return self.fail("followers", format!("reader {index} has no connection at the end"));
        }
        let views: Vec<_> = self
            .views
            .iter()
            .filter(|((of, _), _)| *of == index)
            .map(|((_, id), view)| (*id, view.clone()))
            .collect();
        for (id, view) in views {
            let result = self.caught_up(&view, life, id);
            if let Err(text) = result {
                self.fail("followers", format!("reader {index}, {id}: {text}"));
            }
        }
        let missed = self.missed(index, reader, life);
        self.check("followers", missed);
    }

    fn caught_up(&self, view: &View, life: u64, id: ExecutionId) -> Held {
        let Some(kept) = self.of(life, id).filter(|kept| !kept.forgotten) else { return Ok(()) };
        if view.unknown || view.life.is_some_and(|of| of != life && view.ended.is_some()) {
            return Ok(());
        }
        hold(view.at == kept.last() && view.ended.is_some(), || {
            format!("{} is held of {}, ended: {:?}", view.at, kept.last(), view.ended)
        })
    }

    /// A reader of everything has met what was not over when it came.
    fn missed(&self, index: usize, reader: &Reader, life: u64) -> Held {
        let Some(since) = self.subscribed_at.get(&index).filter(|_| reader.habit == Habit::All)
        else {
            return Ok(());
        };
        for ((of, id), known) in &self.known {
            let Some(handle) = known.handle.filter(|_| *of == life) else { continue };
            let kept = &self.kept[&(life, handle)];
            let after = kept.final_at.is_some_and(|at| at > *since);
            let seen = self.views.get(&(index, *id)).is_some_and(|view| view.life == Some(life));
            hold(!after || kept.forgotten || seen, || format!("reader {index} never met {id}"))?;
        }
        Ok(())
    }
}
