//! Every promise of [`Store`](super::Store), against any implementation.

use std::sync::Arc;

use bytes::Bytes;
use reeve_protocol::batch::Builder;
use reeve_protocol::stream::GapReason;
use reeve_protocol::{
    Batch, Class, Fence, Handle, Kind, Limits, LogChunk, Output, Seq, Stamped, Timestamp,
};

use super::{Item, Page, Record, Store};

const X: Handle = Handle(1);
const Y: Handle = Handle(2);
const ALL: usize = usize::MAX;

/// Checks the promises of a store; `open` makes an empty one.
///
/// # Panics
///
/// When a promise is broken.
pub async fn contract(open: impl Fn(Limits) -> Box<dyn Store>) {
    reads_what_was_appended(open(Limits::default())).await;
    reads_from_the_middle_of_a_batch(open(Limits::default())).await;
    reads_in_pages_without_a_hole(open(Limits::default())).await;
    keeps_the_newest_events(open(Limits { max_events: 5, ..Limits::default() })).await;
    keeps_both_ends_of_a_log(open(Limits { max_log_bytes: 2_000, ..Limits::default() })).await;
    tells_what_a_worker_shed(open(Limits::default())).await;
    forgets(open(Limits::default())).await;
    bounds_everything(open(Limits { max_store_bytes: 4_000, ..Limits::default() })).await;
}

async fn reads_what_was_appended(store: Box<dyn Store>) {
    append(&store, [events(X, 1, 2)]).await;
    append(&store, [events(X, 3, 1), events(Y, 1, 1)]).await;
    assert_eq!(sequences(&read(&store, X, 0).await), [1, 2, 3]);
    assert_eq!(sequences(&read(&store, Y, 0).await), [1]);
    assert_eq!(sequences(&read(&store, X, 3).await), [0; 0]);
    assert_eq!(read(&store, X, 3).await.last, Seq(3));
    assert_eq!(read(&store, Handle(9), 0).await, Page::default());
}

async fn reads_from_the_middle_of_a_batch(store: Box<dyn Store>) {
    append(&store, [events(X, 1, 10), log(X, 11, 10, 20)]).await;
    assert_eq!(sequences(&read(&store, X, 7).await), (8..=20).collect::<Vec<_>>());
    assert_eq!(sequences(&read(&store, X, 15).await), (16..=20).collect::<Vec<_>>());
}

async fn reads_in_pages_without_a_hole(store: Box<dyn Store>) {
    for n in 0..50 {
        append(&store, [events(X, 1 + n * 4, 2), log(X, 3 + n * 4, 2, 30)]).await;
    }
    let (mut at, mut seen) = (Seq::NONE, Vec::new());
    loop {
        let page = store.read(X, at, 300).await.expect("a store reads");
        let Some(last) = page.items.last() else { break };
        at = last.last();
        seen.extend(sequences(&page));
    }
    assert_eq!(seen, (1..=200).collect::<Vec<_>>());
}

async fn keeps_the_newest_events(store: Box<dyn Store>) {
    assert!(append(&store, [events(X, 1, 5)]).await.is_empty(), "exactly the bound is kept");
    assert_eq!(append(&store, [events(X, 6, 1)]).await, [X]);
    append(&store, [events(X, 7, 2)]).await;
    let page = read(&store, X, 0).await;
    assert_eq!(page.items[0], gap(1, 3, GapReason::Retention));
    assert_eq!(sequences(&page), [4, 5, 6, 7, 8]);
    assert_eq!(sequences(&read(&store, X, 5).await), [6, 7, 8]);
}

async fn keeps_both_ends_of_a_log(store: Box<dyn Store>) {
    append(&store, [events(X, 1, 1)]).await;
    for n in 0..40 {
        append(&store, [log(X, 2 + n, 1, 100)]).await;
    }
    append(&store, [events(X, 42, 1)]).await;
    let page = read(&store, X, 0).await;
    let gaps: Vec<&Item> =
        page.items.iter().filter(|item| matches!(item, Item::Gap { .. })).collect();
    assert_eq!(gaps.len(), 1, "one range is gone: {gaps:?}");
    let seen = sequences(&page);
    assert_eq!((seen[0], seen[1]), (1, 2), "the beginning is kept");
    assert_eq!(seen[seen.len() - 2..], [41, 42], "the end is kept");
    assert!(seen.len() < 30, "the middle is gone");
}

async fn tells_what_a_worker_shed(store: Box<dyn Store>) {
    append(&store, [events(X, 1, 2), Batch::lost(X, Fence(1), Seq(3), 4), events(X, 7, 1)]).await;
    let page = read(&store, X, 0).await;
    assert_eq!(page.items[1], gap(3, 6, GapReason::Shed));
    assert_eq!(sequences(&page), [1, 2, 7]);
    assert_eq!(read(&store, X, 4).await.items[0], gap(5, 6, GapReason::Shed));
}

async fn forgets(store: Box<dyn Store>) {
    append(&store, [events(X, 1, 2), events(Y, 1, 2)]).await;
    store.append(vec![Record::Forget(X)]).await.expect("a store forgets");
    assert_eq!(read(&store, X, 0).await, Page::default());
    assert_eq!(sequences(&read(&store, Y, 0).await), [1, 2]);
}

async fn bounds_everything(store: Box<dyn Store>) {
    append(&store, [events(X, 1, 1), events(Y, 1, 1)]).await;
    for n in 0..100 {
        let records =
            vec![Record::Events(log(X, 2 + n, 1, 100)), Record::Events(log(Y, 2 + n, 1, 100))];
        let appended = store.append(records).await.expect("a store appends");
        assert!(appended.bytes <= 4_000, "{} bytes are kept", appended.bytes);
        assert_eq!(appended.trimmed.is_empty(), n < 12, "what was dropped is told");
    }
    let page = read(&store, X, 0).await;
    assert_eq!(page.last, Seq(101));
    assert_eq!(page.items.last().map(Item::last), Some(Seq(101)), "every position is answered");
}

#[expect(clippy::borrowed_box, reason = "what `open` makes is passed on as it is")]
async fn append<const N: usize>(store: &Box<dyn Store>, batches: [Batch; N]) -> Vec<Handle> {
    let records = batches.into_iter().map(Record::Events).collect();
    store.append(records).await.expect("a store appends").trimmed
}

#[expect(clippy::borrowed_box, reason = "what `open` makes is passed on as it is")]
async fn read(store: &Box<dyn Store>, handle: Handle, after: u64) -> Page {
    store.read(handle, Seq(after), ALL).await.expect("a store reads")
}

fn sequences(page: &Page) -> Vec<u64> {
    let batches = page.items.iter().filter_map(|item| match item {
        Item::Batch(batch) => Some(batch),
        Item::Gap { .. } => None,
    });
    batches.flat_map(|batch| batch.first().0..=batch.last().0).collect()
}

fn gap(from: u64, to: u64, reason: GapReason) -> Item {
    Item::Gap { from: Seq(from), to: Seq(to), reason }
}

fn events(handle: Handle, first: u64, count: usize) -> Batch {
    let events: Vec<Stamped> = (0..count)
        .map(|n| Stamped {
            at: Timestamp::default(),
            kind: Kind::Progress { current: first + n as u64, total: None, message: None },
        })
        .collect();
    Batch::of_events(handle, Fence(1), Seq(first), &events)
}

fn log(handle: Handle, first: u64, lines: u32, width: usize) -> Batch {
    let line = "x".repeat(width) + "\n";
    let mut builder = Builder::new(Class::Bytes);
    builder.log(&LogChunk {
        at: Timestamp::default(),
        stream: Output::Stdout,
        lines,
        text: Bytes::from(line.repeat(lines as usize)),
    });
    builder.finish(handle, Fence(1), Seq(first))
}

/// Stores are shared between an actor and its readers.
const _: fn() = || {
    fn shared<T: Send + Sync + ?Sized>() {}
    shared::<Arc<dyn Store>>();
};
