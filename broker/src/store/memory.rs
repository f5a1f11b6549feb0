//! The memory store: history for as long as the broker lives.
//!
//! Each batch is kept as one buffer of exactly its size, in the form that readers are sent.
//! Events and log chunks are bounded apart: of events the oldest go, of a log the middle goes,
//! for its beginning and its end are what people look for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use reeve_protocol::mutant;
use reeve_protocol::stream::GapReason;
use reeve_protocol::{Batch, Class, Handle, Limits, Seq};

use super::{Appended, Item, Page, Record, Store, StoreFuture};

/// Ranges that a worker shed and that are told apart from dropped ones, per execution.
const SHED_MAX: usize = 1_000;

/// Keeps events in memory. The lock is taken on one thread and never held over a wait.
pub struct Memory {
    inner: Mutex<Inner>,
}

struct Inner {
    limits: Limits,
    histories: BTreeMap<Handle, History>,
    bytes: usize,
}

/// What is kept of one execution; each list is in order of position.
#[derive(Default)]
struct History {
    events: VecDeque<Batch>,
    event_count: usize,
    event_bytes: usize,
    log_head: Vec<Batch>,
    log_head_bytes: usize,
    log_tail: VecDeque<Batch>,
    log_tail_bytes: usize,
    shed: VecDeque<(Seq, Seq)>,
    last: Seq,
}

impl Memory {
    /// Makes an empty store with the bounds of `limits`.
    pub fn new(limits: Limits) -> Self {
        Self { inner: Mutex::new(Inner { limits, histories: BTreeMap::new(), bytes: 0 }) }
    }

    /// Appends without a future, for who is sure that it is this store.
    pub fn append_now(&self, records: Vec<Record>) -> Appended {
        let mut inner = self.lock();
        let mut trimmed = BTreeSet::new();
        for record in records {
            match record {
                Record::Events(batch) => inner.keep(batch, &mut trimmed),
                Record::Forget(handle) => {
                    let forgotten = inner.histories.remove(&handle);
                    inner.bytes -= forgotten.map_or(0, |history| history.bytes());
                }
            }
        }
        inner.bound_total(&mut trimmed);
        Appended { trimmed: trimmed.into_iter().collect(), bytes: inner.bytes }
    }

    /// Reads without a future, for who is sure that it is this store.
    pub fn read_now(&self, handle: Handle, after: Seq, bytes_max: usize) -> Page {
        let inner = self.lock();
        inner
            .histories
            .get(&handle)
            .map(|history| history.read(after, bytes_max))
            .unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Memory {
    fn append(&self, records: Vec<Record>) -> StoreFuture<Appended> {
        let appended = self.append_now(records);
        Box::pin(std::future::ready(Ok(appended)))
    }

    fn read(&self, handle: Handle, after: Seq, bytes_max: usize) -> StoreFuture<Page> {
        let page = self.read_now(handle, after, bytes_max);
        Box::pin(std::future::ready(Ok(page)))
    }

    fn durability(&self) -> &'static str {
        "memory"
    }
}

impl Inner {
    fn keep(&mut self, batch: Batch, trimmed: &mut BTreeSet<Handle>) {
        let handle = batch.handle();
        let history = self.histories.entry(handle).or_default();
        assert_eq!(batch.first(), history.last.next(), "the plane appends without a hole");
        let before = history.bytes();
        if history.push(batch.compact(), &self.limits) {
            trimmed.insert(handle);
        }
        let after = history.bytes();
        self.bytes = self.bytes + after - before;
    }

    /// Shrinks whoever is largest while there is too much in all: its log first, from the middle.
    fn bound_total(&mut self, trimmed: &mut BTreeSet<Handle>) {
        while self.bytes > self.limits.max_store_bytes {
            let largest = self.histories.iter_mut().max_by_key(|(_, history)| history.bytes());
            let Some((handle, history)) = largest else { return };
            let freed = history.shrink();
            if freed == 0 {
                return;
            }
            self.bytes -= freed;
            trimmed.insert(*handle);
        }
    }
}

impl History {
    fn bytes(&self) -> usize {
        self.event_bytes + self.log_head_bytes + self.log_tail_bytes
    }

    /// Takes the next batch; returns whether something was dropped.
    fn push(&mut self, batch: Batch, limits: &Limits) -> bool {
        self.last = batch.last();
        match batch.class() {
            Class::Lost => {
                self.shed.push_back((batch.first(), batch.last()));
                if self.shed.len() > SHED_MAX {
                    self.shed.pop_front();
                }
                true
            }
            Class::Events => {
                self.event_count += batch.count() as usize;
                self.event_bytes += batch.bytes().len();
                self.events.push_back(batch);
                self.bound_events(limits.max_events)
            }
            Class::Bytes => {
                let half = limits.max_log_bytes / 2;
                let Some(batch) = self.fill_head(batch, half) else { return false };
                self.log_tail_bytes += batch.bytes().len();
                self.log_tail.push_back(batch);
                self.bound_log(half)
            }
        }
    }

    /// Takes as many lines as the log's beginning has room for; returns the rest.
    fn fill_head(&mut self, batch: Batch, half: usize) -> Option<Batch> {
        if !self.log_tail.is_empty() {
            return Some(batch);
        }
        let room = half.saturating_sub(self.log_head_bytes);
        let fits = batch.bytes().len() <= room;
        let part = if fits { Some(batch.clone()) } else { batch.beginning(room) };
        let Some(part) = part else { return Some(batch) };
        self.log_head_bytes += part.bytes().len();
        let rest = batch.after(part.last());
        self.log_head.push(part);
        rest
    }

    fn bound_events(&mut self, max: usize) -> bool {
        let mut dropped = false;
        while self.event_count > max {
            let excess = self.event_count - max;
            let oldest = self.events.pop_front().expect("events are counted");
            self.event_bytes -= oldest.bytes().len();
            self.event_count -= oldest.count() as usize;
            dropped = true;
            if oldest.count() as usize > excess {
                let through = Seq(oldest.first().0 + excess as u64 - 1);
                let rest = oldest.after(through).expect("more than the excess is there");
                self.event_bytes += rest.bytes().len();
                self.event_count += rest.count() as usize;
                self.events.push_front(rest);
            }
        }
        dropped
    }

    fn bound_log(&mut self, half: usize) -> bool {
        let mut dropped = false;
        while self.log_tail_bytes > half && self.log_tail.len() > 1 {
            let oldest = self.log_tail.pop_front().expect("it is not empty");
            self.log_tail_bytes -= oldest.bytes().len();
            dropped = true;
        }
        if self.log_tail_bytes > half
            && let Some(only) = self.log_tail.pop_front()
        {
            let end = only.ending(half);
            dropped |= end.first() > only.first();
            self.log_tail_bytes = end.bytes().len();
            self.log_tail.push_back(end);
        }
        dropped
    }

    /// Drops one batch, never the newest; returns its bytes.
    fn shrink(&mut self) -> usize {
        if let Some(batch) = self.log_tail.pop_front() {
            self.log_tail_bytes -= batch.bytes().len();
            return batch.bytes().len();
        }
        if let Some(batch) = self.log_head.pop() {
            self.log_head_bytes -= batch.bytes().len();
            return batch.bytes().len();
        }
        if self.events.len() < 2 {
            return 0;
        }
        let batch = self.events.pop_front().expect("there are two");
        self.event_bytes -= batch.bytes().len();
        self.event_count -= batch.count() as usize;
        batch.bytes().len()
    }

    fn read(&self, after: Seq, bytes_max: usize) -> Page {
        let mut page = Page { items: Vec::new(), last: self.last };
        let mut at = if mutant::on("after is inclusive") && after > Seq::NONE {
            Seq(after.0 - 1)
        } else {
            after
        };
        let mut bytes = 0;
        while at < self.last && bytes < bytes_max {
            let Some(next) = self.next_after(at) else {
                page.items.push(self.gap(at.next(), self.last));
                break;
            };
            if next.first() > at.next() {
                let gap = self.gap(at.next(), Seq(next.first().0 - 1));
                at = gap.last();
                page.items.push(gap);
                continue;
            }
            let part = next.after(at).expect("it ends after the position");
            bytes += part.bytes().len();
            at = part.last();
            page.items.push(Item::Batch(part));
        }
        page
    }

    /// Returns the batch that holds the position after `after`, or the first one beyond it.
    fn next_after(&self, after: Seq) -> Option<&Batch> {
        let beyond = |batch: &Batch| batch.last() <= after;
        let event = self.events.get(self.events.partition_point(beyond));
        let head = self.log_head.get(self.log_head.partition_point(beyond));
        let tail = self.log_tail.get(self.log_tail.partition_point(beyond));
        [event, head, tail].into_iter().flatten().min_by_key(|batch| batch.first())
    }

    /// Returns the gap that begins at `from`, up to where its reason changes or `to`.
    fn gap(&self, from: Seq, to: Seq) -> Item {
        for (first, last) in &self.shed {
            if *first <= from && from <= *last {
                return Item::Gap { from, to: to.min(*last), reason: GapReason::Shed };
            }
            if *first > from && *first <= to {
                let to = Seq(first.0 - 1);
                return Item::Gap { from, to, reason: GapReason::Retention };
            }
        }
        Item::Gap { from, to, reason: GapReason::Retention }
    }
}

#[cfg(test)]
mod tests {
    use reeve_protocol::batch::Builder;
    use reeve_protocol::{Entry, Fence, LogChunk, Output, Timestamp};

    use super::*;
    use crate::store::contract;

    #[tokio::test]
    async fn the_memory_store_keeps_every_promise() {
        contract(|limits| Box::new(Memory::new(limits))).await;
    }

    /// A worker reports more in one batch than half of a small bound takes.
    #[test]
    fn a_log_keeps_its_beginning_and_its_end_however_large_its_batches_are() {
        let limits = Limits { max_log_bytes: 64 << 10, ..Limits::default() };
        let memory = Memory::new(limits.clone());
        let mut first = Seq(1);
        for _ in 0..3 {
            let text: String = (0..20_000).map(|n| format!("{:05}\n", first.0 + n)).collect();
            let chunk = LogChunk {
                at: Timestamp::default(),
                stream: Output::Stdout,
                lines: 20_000,
                text: text.into(),
            };
            let mut builder = Builder::new(Class::Bytes);
            builder.log(&chunk);
            let batch = builder.finish(Handle(1), Fence(1), first);
            first = batch.last().next();
            let appended = memory.append_now(vec![Record::Events(batch)]);
            assert!(appended.bytes <= limits.max_log_bytes, "{}", appended.bytes);
        }
        let page = memory.read_now(Handle(1), Seq::NONE, usize::MAX);
        let [Item::Batch(head), Item::Gap { from, to, .. }, Item::Batch(tail)] = &page.items[..]
        else {
            panic!("{:?}", page.items);
        };
        assert_eq!((head.first(), tail.last()), (Seq(1), Seq(60_000)));
        assert_eq!((*from, to.next()), (head.last().next(), tail.first()));
        let text_of = |batch: &Batch| match batch.entries().unwrap().pop().unwrap() {
            Entry::Log(chunk) => chunk.iter().map(|(line, _)| line.to_owned()).collect::<Vec<_>>(),
            Entry::Event(event) => panic!("{event:?}"),
        };
        assert_eq!(text_of(head)[0], "00001");
        assert_eq!(text_of(tail).last().unwrap(), "60000");
        assert_eq!(text_of(tail)[0], format!("{:05}", tail.first().0));
        assert_eq!(text_of(head).len(), head.count() as usize);
        assert_eq!(text_of(tail).len(), tail.count() as usize);
        for (part, least) in [(head, 30 << 10), (tail, 30 << 10)] {
            assert!(part.bytes().len() > least, "the room that there is is used");
        }
    }
}
