//! The switchboard: which connection an effect goes to.
//!
//! An edge plugs itself in before it posts, and pulls itself out when it ends. Sending never
//! waits: a worker whose queue is full is cut off and comes back, a reader is only told to look.
//! Everyone who takes the lock runs on the Arbiter's thread, so nobody waits for it.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reeve_protocol::Handle;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::plane::{Reply, RequestId, SubscriberId, ToWorker, WorkerId};

/// Messages that wait for a worker's socket.
const OUTBOX_MAX: usize = 1_024;

/// What is said to a worker.
#[derive(Debug)]
pub enum Outgoing {
    /// A message.
    Message(ToWorker),
    /// The connection is closed for this reason.
    Close(String),
}

/// Tells a reader that executions have something new. Holds each at most once.
#[derive(Debug, Default)]
pub struct Signal {
    woken: Mutex<BTreeSet<Handle>>,
    notify: Notify,
}

impl Signal {
    /// Waits until something is new and returns what.
    pub async fn woken(&self) -> BTreeSet<Handle> {
        loop {
            let woken = std::mem::take(&mut *lock(&self.woken));
            if !woken.is_empty() {
                return woken;
            }
            self.notify.notified().await;
        }
    }

    fn wake(&self, handle: Handle) {
        lock(&self.woken).insert(handle);
        self.notify.notify_one();
    }
}

/// Which connection an effect goes to.
#[derive(Default)]
pub struct Switchboard {
    next: AtomicU64,
    workers: Mutex<HashMap<WorkerId, mpsc::Sender<Outgoing>>>,
    readers: Mutex<HashMap<SubscriberId, Arc<Signal>>>,
    requests: Mutex<HashMap<RequestId, oneshot::Sender<Reply>>>,
}

impl Switchboard {
    /// Plugs a worker in.
    pub fn worker(&self) -> (WorkerId, mpsc::Receiver<Outgoing>) {
        let worker = WorkerId(self.number());
        let (sender, receiver) = mpsc::channel(OUTBOX_MAX);
        lock(&self.workers).insert(worker, sender);
        (worker, receiver)
    }

    /// Pulls a worker out.
    pub fn worker_left(&self, worker: WorkerId) {
        lock(&self.workers).remove(&worker);
    }

    /// Plugs a reader in.
    pub fn reader(&self) -> (SubscriberId, Arc<Signal>) {
        let subscriber = SubscriberId(self.number());
        let signal = Arc::new(Signal::default());
        lock(&self.readers).insert(subscriber, Arc::clone(&signal));
        (subscriber, signal)
    }

    /// Pulls a reader out.
    pub fn reader_left(&self, subscriber: SubscriberId) {
        lock(&self.readers).remove(&subscriber);
    }

    /// Plugs a request in.
    pub fn request(&self) -> (RequestId, oneshot::Receiver<Reply>) {
        let request = RequestId(self.number());
        let (sender, receiver) = oneshot::channel();
        lock(&self.requests).insert(request, sender);
        (request, receiver)
    }

    /// Says something to a worker; one that does not keep up is cut off.
    pub fn send(&self, worker: WorkerId, outgoing: Outgoing) {
        let mut workers = lock(&self.workers);
        if let Some(sender) = workers.get(&worker)
            && sender.try_send(outgoing).is_err()
        {
            tracing::warn!(worker = worker.0, "a worker does not take its messages; it is cut off");
            workers.remove(&worker);
        }
    }

    /// Wakes a reader.
    pub fn wake(&self, subscriber: SubscriberId, handle: Handle) {
        if let Some(signal) = lock(&self.readers).get(&subscriber) {
            signal.wake(handle);
        }
    }

    /// Answers a request. Nobody minds when who asked is gone.
    pub fn reply(&self, request: RequestId, reply: Reply) {
        if let Some(sender) = lock(&self.requests).remove(&request) {
            drop(sender.send(reply));
        }
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
