//! The handle: what an edge holds of the broker. It posts and asks; it reads without asking.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use actix::Addr;
use reeve_protocol::capability::Loaded;
use reeve_protocol::place::Place;
use reeve_protocol::{Code, ExecutionId, Fault, Limits};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use crate::actor::{BrokerActor, Post};
use crate::board::Board;
use crate::clock::Clock;
use crate::edge::http::ticket::Tickets;
use crate::plane::{Input, Reply, RequestId};
use crate::pool::Workers;
use crate::store::Store;
use crate::switchboard::Switchboard;
use crate::token::Scopes;

/// How long what was killed has to be seen to be over, when this broker ends.
pub const STOPPING: Duration = Duration::from_secs(3);

/// What this broker is; does not change while it lives.
#[derive(Clone, Debug)]
pub struct About {
    /// Its process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// The identity of its life.
    pub instance: String,
    /// The identity of its store's history.
    pub epoch: String,
    /// When it started.
    pub started_at: reeve_protocol::Timestamp,
    /// The checkout, without any path.
    pub repository: reeve_protocol::snapshot::Repository,
}

/// Tells that the broker ends: also whoever asks late, or asks again.
#[derive(Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Makes one, and what tells it.
    pub fn new() -> (watch::Sender<bool>, Self) {
        let (tell, told) = watch::channel(false);
        (tell, Self(told))
    }

    /// Waits until the broker ends.
    pub async fn told(mut self) {
        // Whoever could tell is gone: that is the end, too.
        drop(self.0.wait_for(|stops| *stops).await);
    }
}

/// The broker, to an edge.
#[derive(Clone)]
pub struct Broker {
    pub(crate) addr: Addr<BrokerActor>,
    pub(crate) board: Arc<Board>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) switchboard: Arc<Switchboard>,
    pub(crate) registry: Arc<RwLock<Arc<Loaded>>>,
    pub(crate) about: Arc<About>,
    pub(crate) place: Arc<Place>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) clock: Clock,
    /// The workers of the broker's own.
    pub(crate) workers: Workers,
    /// Whether nothing more is started.
    pub(crate) closing: Arc<AtomicBool>,
    /// Tells every connection that the broker ends.
    pub(crate) stop: Stop,
    /// Asks the broker to end.
    pub(crate) end: Arc<Notify>,
    /// Whether it is to end without waiting for what it has started.
    pub(crate) at_once: Arc<AtomicBool>,
    /// Codes of links that open the pages, good once.
    pub(crate) codes: Arc<Tickets>,
}

impl Broker {
    /// Hands an input in; waits while the actor's mailbox is full, which slows its sender only.
    pub async fn post(&self, input: Input) {
        if self.addr.send(Post(input)).await.is_err() {
            tracing::warn!("an input came after the plane had ended");
        }
    }

    /// Hands the last input of a connection in, whose task broke and can wait for nothing.
    ///
    /// The mailbox's bound is passed over: once, by who is gone.
    #[expect(clippy::disallowed_methods, reason = "one message by who is gone cannot pile up")]
    pub fn post_last(&self, input: Input) {
        self.addr.do_send(Post(input));
    }

    /// Hands a request in and waits for its answer.
    pub async fn ask(&self, input: impl FnOnce(RequestId) -> Input) -> Result<Reply, Fault> {
        let (request, answer) = self.switchboard.request();
        self.post(input(request)).await;
        match answer.await {
            Ok(Reply::Refused(fault)) => Err(*fault),
            Ok(reply) => Ok(reply),
            Err(_) => Err(Fault::new(Code::Unavailable, "the broker is ending")
                .hint("start it again with `reeve serve`")),
        }
    }

    /// Asks an execution to stop.
    ///
    /// # Errors
    ///
    /// `not_found` when nobody holds it.
    pub async fn cancel(&self, id: ExecutionId, by: &str, force: bool) -> Result<Value, Fault> {
        let by = reeve_protocol::sanitise::text(by, 64);
        if force {
            self.workers.force(id);
        }
        let reply = self.ask(|request| Input::Cancel { request, id, by, force }).await?;
        let Reply::Cancelled { outcome, shown } = reply else {
            unreachable!("a cancel is answered as one")
        };
        let snapshot = shown.to_snapshot();
        Ok(json!({
            "outcome": outcome,
            "cancellable": snapshot.cancellable,
            "execution": snapshot,
        }))
    }

    /// Asks this broker to end; returns how long that may take at most.
    pub fn end(&self, at_once: bool) -> Duration {
        self.at_once.store(at_once, Ordering::Relaxed);
        self.end.notify_one();
        if at_once { Duration::ZERO } else { self.limits.cancel_grace + STOPPING }
    }

    /// Makes the code of a link that opens the pages, good once and for a minute.
    ///
    /// # Errors
    ///
    /// `busy` when too many are unused.
    pub fn open(&self) -> Result<Value, Fault> {
        let code = self.codes.make(Scopes::PAGES, None, self.uptime())?;
        Ok(json!({ "code": code, "expires_in": self.codes.good_for().as_secs() }))
    }

    /// Returns whether this broker is about to end and starts nothing more.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Returns whether nothing runs, waits or watches.
    pub fn is_idle(&self) -> bool {
        let gauges = self.board.gauges();
        gauges.active == 0 && gauges.subscribers == 0
    }

    /// Returns what is declared now.
    pub fn registry(&self) -> Arc<Loaded> {
        Arc::clone(&self.registry.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes what is declared from now on; of a manifest with errors only the errors.
    pub fn declare(&self, loaded: Loaded) {
        let mut registry = self.registry.write().unwrap_or_else(PoisonError::into_inner);
        let taken = if loaded.problems.is_empty() || registry.descriptors.is_empty() {
            // At the first time even a manifest with errors comes with what is built in.
            loaded
        } else {
            Loaded { problems: loaded.problems, ..Loaded::clone(&registry) }
        };
        *registry = Arc::new(taken);
    }

    /// Returns how long this broker lives.
    pub fn uptime(&self) -> Duration {
        self.clock.now().mono
    }
}
