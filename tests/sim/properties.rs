//! The properties, each a function that reads what came out and nothing else.

use std::collections::BTreeMap;

use reeve_broker::plane::{Gauges, Shown};
use reeve_broker::store::Item;
use reeve_broker::store::memory::Memory;
use reeve_protocol::peer::Ack;
use reeve_protocol::{Batch, Class, ExecutionId, Fence, Kind, Seq, State};

use crate::broker::{Board, micros};
use crate::faults::{Fault, MS};
pub use crate::ledger::Ledger;
use crate::ledger::{Kept, Known, contents};

/// A property that did not hold.
#[derive(Clone, Debug)]
pub struct Violation {
    pub property: &'static str,
    pub text: String,
}

type Held = Result<(), String>;

fn hold(holds: bool, text: impl FnOnce() -> String) -> Held {
    if holds { Ok(()) } else { Err(text()) }
}

/// A history has no hole and no overlap.
pub fn dense(kept: &Kept, batch: &Batch) -> Held {
    hold(batch.first() == kept.last().next() && batch.count() > 0, || {
        format!("{} follows {} of {:?}", batch.first(), kept.last(), batch.handle())
    })
}

/// Nothing is kept under a fence older than the last one that was granted.
pub fn no_older_fence(kept: &Kept, batch: &Batch) -> Held {
    let granted = kept.granted.map(|(fence, _)| fence).unwrap_or_default();
    hold(batch.fence() >= granted, || {
        format!("a batch of fence {} is kept after {granted} was granted", batch.fence())
    })
}

/// An event may stand where it stands: first `created`, only legal moves, nothing after the end.
pub fn legal(kept: &Kept, seq: Seq, kind: &Kind) -> Held {
    let created = matches!(kind, Kind::Created { .. });
    hold(created == (seq == Seq(1)), || format!("{} stands at {seq}", kind.tag()))?;
    hold(kept.finals == 0, || format!("{} follows the end", kind.tag()))?;
    let from = kept.state;
    let legal = match kind.moves_to() {
        None => true,
        Some(State::Queued) => from == State::Queued,
        Some(State::Running) => from == State::Queued,
        Some(State::Cancelling) => from == State::Running,
        Some(State::Cancelled) => matches!(from, State::Queued | State::Cancelling),
        Some(State::Succeeded) => matches!(from, State::Running | State::Cancelling),
        Some(State::Failed) => !from.is_final(),
    };
    hold(legal, || format!("{} follows {from}", kind.tag()))
}

/// Lines and shed positions stand within the work.
pub fn works(kept: &Kept, batch: &Batch) -> Held {
    let running = matches!(kept.state, State::Running | State::Cancelling);
    let lost = batch.class() == Class::Lost && kept.finals == 0;
    hold(running || lost, || format!("{:?} while {}", batch.class(), kept.state))
}

/// What is shown is the fold of what is stored, and no more.
pub fn shows_what_is_stored(kept: &Kept, shown: &Shown) -> Held {
    hold(shown.last <= kept.stored, || {
        format!("{} is shown, and {} is stored", shown.last, kept.stored)
    })?;
    hold(shown.last >= kept.published, || {
        format!("{} is shown after {}", shown.last, kept.published)
    })?;
    if shown.last != kept.last() {
        return Ok(());
    }
    let code = shown.snapshot.error.as_ref().map(|error| error.code);
    let theirs = (shown.snapshot.state, code);
    hold(theirs == (kept.state, kept.error), || {
        format!("{theirs:?} is shown of {:?}", (kept.state, kept.error))
    })
}

/// What has begun by itself is not shown as waiting.
pub fn what_runs_does_not_wait(known: &Known, shown: &Shown) -> Held {
    let waits = shown.snapshot.overlay.waiting_on.is_some();
    let by_itself = known.adopted && known.launches == 0;
    hold(!(by_itself && waits), || format!("{} runs and waits", shown.snapshot.id))
}

/// An acknowledgement is true, and is never taken back.
pub fn acks_what_is_stored(kept: &Kept, fence: Fence, ack: &Ack) -> Held {
    hold(ack.through <= kept.stored, || {
        format!("{} is acknowledged, and {} is stored", ack.through, kept.stored)
    })?;
    let before = kept.acked.get(&fence).copied().unwrap_or_default();
    hold(ack.through >= before, || format!("{} is acknowledged after {before}", ack.through))
}

/// A fence never goes back, and rises when the holder changes.
pub fn fence_rises(kept: &Kept, fence: Fence, owner: Option<usize>) -> Held {
    let Some((before, holder)) = kept.granted else { return Ok(()) };
    hold(fence > before || (fence == before && holder == owner), || {
        format!("fence {fence} for {owner:?} after {before} for {holder:?}")
    })
}

/// What its worker ended by itself has no late report.
pub fn late_only_after_a_fence(ledger: &Ledger, life: u64, shown: &Shown) -> Held {
    if shown.snapshot.overlay.late_report.is_none() {
        return Ok(());
    }
    let id = shown.snapshot.id;
    let fenced = ledger.fenced.contains_key(&id) || life > 1;
    hold(fenced, || format!("{id} was never fenced"))?;
    hold(shown.snapshot.state != State::Succeeded, || {
        format!("{id} succeeded, as only its worker can say, and has a late report")
    })
}

/// Whoever is given up deserves it.
pub fn is_truly_lost(ledger: &Ledger, life: u64, id: ExecutionId, reason: &str) -> Held {
    let by_check = matches!(reason, "silent" | "connection_lost" | "deaf");
    let owner = |known: &Known| if by_check { known.owner_at_check } else { known.owner };
    let Some(worker) = ledger.known.get(&(life, id)).and_then(owner) else {
        return Err(format!("{id} is {reason} and never had a worker"));
    };
    let heard = ledger.heard.get(&(life, worker)).copied().unwrap_or_default();
    let slack = 10 * MS;
    match reason {
        "silent" => {
            let quiet = ledger.ran_since(heard.at_check) + slack;
            hold(quiet >= micros(ledger.plan.limits.silence), || {
                format!("{id} is silent after {quiet} us")
            })
        }
        "connection_lost" => {
            let closed = heard.closed_at.ok_or(format!("{id}: its connection is there"))?;
            let away = ledger.ran_since(closed) + slack;
            hold(away >= micros(ledger.plan.limits.reattach), || {
                format!("{id} is lost {away} us after its connection was")
            })
        }
        "process_left" => hold(heard.bye, || format!("{id}: nobody said goodbye")),
        "deaf" => {
            let disturbed = [Fault::Stall, Fault::StopWorker, Fault::StopBroker];
            let disturbed = disturbed.iter().any(|fault| ledger.has(*fault));
            hold(disturbed || ledger.plan.late_timer > 0, || format!("{id} is deaf"))
        }
        _ => Ok(()),
    }
}

fn is_over(ledger: &Ledger, life: u64, id: ExecutionId) -> bool {
    ledger.of(life, id).is_some_and(|kept| kept.state.is_final())
}

/// Returns whether an execution has a lock or a slot by the broker's leave.
fn is_let_in(ledger: &Ledger, life: u64, id: ExecutionId, known: &Known) -> bool {
    if known.launches == 0 {
        return known.granted;
    }
    let requeued = ledger.of(life, id).map_or(0, |kept| kept.queued.saturating_sub(1));
    known.launches > requeued
}

fn of_lock(
    ledger: &Ledger,
    life: u64,
    id: ExecutionId,
) -> impl Iterator<Item = (ExecutionId, &Known)> {
    let lock = ledger.locks.get(&id).cloned().flatten();
    ledger
        .known
        .iter()
        .filter(move |((of, other), _)| {
            let same = lock.is_some() && ledger.locks.get(other) == Some(&lock);
            *of == life && *other != id && same
        })
        .map(|((_, other), known)| (*other, known))
}

/// A lock that the broker gives is free: whoever had it is over, and so is its process tree.
pub fn lock_is_free(
    ledger: &Ledger,
    life: u64,
    id: ExecutionId,
    trees: &BTreeMap<ExecutionId, usize>,
) -> Held {
    for (other, known) in of_lock(ledger, life, id) {
        if known.adopted || !is_let_in(ledger, life, other, known) {
            continue;
        }
        hold(is_over(ledger, life, other), || format!("{id} gets the lock of {other}"))?;
        let ended = ledger.of(life, other).and_then(|kept| kept.final_at).unwrap_or_default();
        // A tree that its worker started after it had been given up is beyond anybody's reach.
        let earlier = ledger.tree_since.get(&other).is_some_and(|since| *since <= ended);
        hold(!(trees.contains_key(&other) && earlier), || {
            format!("{id} gets the lock of {other}, whose tree lives")
        })?;
    }
    Ok(())
}

/// Who came first for a lock gets it first.
pub fn first_come_first_served(ledger: &Ledger, life: u64, id: ExecutionId) -> Held {
    let mine = ledger.known[&(life, id)].arrived;
    for (other, known) in of_lock(ledger, life, id) {
        let requeued = ledger.of(life, other).is_some_and(|kept| kept.queued > 1);
        let waits = known.handle.is_some() && !known.granted && known.launches == 0;
        let overtaken = waits && !known.adopted && !requeued && known.arrived < mine;
        hold(!overtaken || is_over(ledger, life, other), || format!("{id} overtakes {other}"))?;
    }
    Ok(())
}

/// A worker is made at most twice, and only where nothing can have begun.
pub fn launches(ledger: &Ledger, life: u64, id: ExecutionId) -> Held {
    let launches = ledger.known[&(life, id)].launches;
    hold(launches <= 2, || format!("{id} is launched {launches} times"))?;
    let begun = ledger.begun.get(&id).map_or(0, Vec::len);
    hold(begun == 0, || format!("{id} is launched after it had begun"))
}

/// No more run at once than may.
pub fn running_is_bounded(ledger: &Ledger, life: u64) -> Held {
    let running = ledger
        .known
        .iter()
        .filter(|((of, id), known)| {
            *of == life
                && known.launches > 0
                && is_let_in(ledger, life, *id, known)
                && !is_over(ledger, life, *id)
        })
        .count();
    let most = ledger.plan.limits.max_running;
    hold(running <= most, || format!("{running} run at once; max_running is {most}"))
}

/// Nothing that has not ended is forgotten.
pub fn only_the_finished_are_forgotten(kept: Option<&Kept>) -> Held {
    hold(kept.is_some_and(|kept| kept.stored_state.is_final()), || {
        "an execution that is not over is forgotten".to_owned()
    })
}

/// What nobody has begun is over as soon as somebody asks it to stop.
pub fn what_waits_is_cancelled(shown: &Shown, let_in: bool) -> Held {
    let over = shown.snapshot.state == State::Cancelled && shown.snapshot.started_at.is_none();
    hold(let_in || over || shown.snapshot.state.is_final(), || {
        format!("{} waits on after a cancel", shown.snapshot.id)
    })
}

/// Work begins once, and never after its worker was told that it is over.
pub fn begins_once(
    before: &[usize],
    process: usize,
    id: ExecutionId,
    launched: bool,
    over: Option<State>,
) -> Held {
    let again = if launched { !before.is_empty() } else { before.contains(&process) };
    hold(!again, || format!("{id} begins again, in process {process} after {before:?}"))?;
    hold(!over.is_some_and(State::is_final), || format!("{id} begins after it was over"))
}

/// What a process ran that is gone is over.
pub fn what_the_dead_ran_is_over(
    ledger: &Ledger,
    life: u64,
    process: usize,
    id: ExecutionId,
) -> Held {
    let Some(known) = ledger.known.get(&(life, id)) else { return Ok(()) };
    let Some(kept) = ledger.of(life, id) else { return Ok(()) };
    let waits_again = kept.queued > 1;
    let over = known.process != Some(process) || waits_again || kept.state.is_final();
    hold(over, || format!("{id} is {} long after its process was gone", kept.state))
}

impl Ledger {
    /// Checks what must hold once everything rests.
    pub fn at_end(&mut self, life: u64, store: &Memory, board: &Board, gauges: Gauges) {
        self.check("liveness", everything_is_over(self, life));
        self.check("limits", the_finished_are_bounded(self, gauges));
        let kept: Vec<_> = self
            .kept
            .iter()
            .filter(|((of, _), kept)| *of == life && !kept.forgotten)
            .map(|((_, handle), kept)| (*handle, kept.clone()))
            .collect();
        let mut bytes = 0;
        for (handle, kept) in &kept {
            let page = store.read_now(*handle, Seq::NONE, usize::MAX);
            bytes += page_bytes(&page.items);
            let limits = self.plan.limits.clone();
            let covered = store_covers(kept, store, *handle);
            self.check("dense", covered);
            self.check("limits", events_are_bounded(&page.items, &limits));
        }
        // The newest batch of each execution stays, whatever the bound.
        let most = self.plan.limits.max_store_bytes + 1_000 * kept.len();
        self.check("limits", hold(bytes <= most, || format!("{bytes} bytes are kept of {most}")));
        for shown in board.all() {
            let all = store_has_everything(store, shown);
            self.check("publish", all);
        }
    }
}

fn page_bytes(items: &[Item]) -> usize {
    items
        .iter()
        .map(|item| match item {
            Item::Batch(batch) => batch.bytes().len(),
            Item::Gap { .. } => 0,
        })
        .sum()
}

/// Once everything rests, nothing is left undone.
fn everything_is_over(ledger: &Ledger, life: u64) -> Held {
    for ((of, id), known) in &ledger.known {
        let Some(handle) = known.handle.filter(|_| *of == life) else { continue };
        let state = ledger.kept[&(life, handle)].state;
        hold(state.is_final(), || format!("{id} is {state} at the end"))?;
    }
    Ok(())
}

/// No more is remembered than may be.
fn the_finished_are_bounded(ledger: &Ledger, gauges: Gauges) -> Held {
    let most = ledger.plan.limits.max_executions;
    hold(gauges.remembered <= most, || {
        format!("{} are remembered; max_executions is {most}", gauges.remembered)
    })?;
    hold(gauges.queued == 0, || format!("{} wait at the end", gauges.queued))
}

/// What the store gives for a history accounts for each position once, with its content.
fn store_covers(kept: &Kept, store: &Memory, handle: reeve_protocol::Handle) -> Held {
    let mut at = Seq::NONE;
    while at < kept.last() {
        let page = store.read_now(handle, at, 200);
        hold(!page.items.is_empty(), || format!("nothing is read of {handle:?} after {at}"))?;
        for item in &page.items {
            match item {
                Item::Batch(batch) => {
                    hold(batch.first() == at.next(), || {
                        format!("{} is read after {at}", batch.first())
                    })?;
                    let from = usize::try_from(at.0).expect("few");
                    let theirs = contents(batch);
                    let ours = kept.positions.get(from..from + theirs.len());
                    hold(ours == Some(&theirs[..]), || format!("what is read after {at} differs"))?;
                }
                Item::Gap { from, to, .. } => {
                    hold(*from == at.next() && to >= from, || {
                        format!("a gap {from} to {to} is read after {at}")
                    })?;
                }
            }
            at = item.last();
        }
    }
    hold(at == kept.last(), || format!("{at} is read of {}", kept.last()))
}

/// Events and lines are bounded per execution.
fn events_are_bounded(items: &[Item], limits: &reeve_protocol::Limits) -> Held {
    let (mut events, mut lines, mut largest) = (0, 0, 0);
    for item in items {
        let Item::Batch(batch) = item else { continue };
        match batch.class() {
            Class::Events => events += batch.count() as usize,
            Class::Bytes => {
                lines += batch.bytes().len();
                largest = largest.max(batch.bytes().len());
            }
            Class::Lost => {}
        }
    }
    hold(events <= limits.max_events, || format!("{events} events are kept"))?;
    hold(lines <= limits.max_log_bytes + largest, || format!("{lines} bytes of lines are kept"))
}

/// A snapshot says whether something of its history is gone.
fn store_has_everything(store: &Memory, shown: &Shown) -> Held {
    let page = store.read_now(shown.handle, Seq::NONE, usize::MAX);
    let gone = page.items.iter().any(|item| matches!(item, Item::Gap { .. }));
    hold(gone == shown.truncated, || {
        format!("{} says truncated: {}, and it is {gone}", shown.snapshot.id, shown.truncated)
    })
}
