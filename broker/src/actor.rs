//! The actor: a thin shell around the plane. One message changes anything, and nothing is decided.
//!
//! Crash-only: a panic in the plane ends the process, and the next start takes the checkout over.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use actix::{
    Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, SpawnHandle, WrapFuture,
};

use crate::board::Board;
use crate::clock::Clock;
use crate::machine::Machine;
use crate::plane::{Effect, Input, Plane};
use crate::pool::Workers;
use crate::store::{Appended, Store, StoreError};
use crate::switchboard::{Outgoing, Switchboard};

/// The exit status of a broker whose plane broke (`EX_SOFTWARE` of BSD's sysexits).
const BROKEN: i32 = 70;
/// Messages that wait for the actor; who posts waits when it is full.
const MAILBOX: usize = 256;

/// Hands one input to the plane.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Post(pub Input);

/// Owns the plane and performs its effects.
pub struct BrokerActor {
    pub plane: Plane,
    pub store: Arc<dyn Store>,
    pub board: Arc<Board>,
    pub switchboard: Arc<Switchboard>,
    pub machine: Machine,
    pub workers: Workers,
    pub clock: Clock,
    timer: Option<(Duration, SpawnHandle)>,
}

impl BrokerActor {
    /// Makes the actor around a plane.
    pub fn new(
        plane: Plane,
        store: Arc<dyn Store>,
        board: Arc<Board>,
        switchboard: Arc<Switchboard>,
        machine: Machine,
        workers: Workers,
        clock: Clock,
    ) -> Self {
        Self { plane, store, board, switchboard, machine, workers, clock, timer: None }
    }

    /// Performs every effect, in order, and arms the one timer.
    fn drain(&mut self, ctx: &mut Context<Self>) {
        while let Some(effect) = self.plane.poll_effect() {
            self.perform(effect, ctx);
        }
        self.board.set_gauges(self.plane.gauges());
        self.arm(ctx);
    }

    fn perform(&mut self, effect: Effect, ctx: &mut Context<Self>) {
        match effect {
            Effect::Append(records) => self.append(records, ctx),
            Effect::Publish(shown) => {
                if shown.snapshot.state.is_final() {
                    self.workers.forget(shown.snapshot.id);
                }
                self.board.publish(shown);
            }
            Effect::Unpublish { handle, id } => self.board.unpublish(handle, id),
            Effect::Send { worker, message } => {
                self.switchboard.send(worker, Outgoing::Message(message));
            }
            Effect::Close { worker, reason } => {
                self.switchboard.send(worker, Outgoing::Close(reason));
            }
            Effect::Wake { subscriber, handle } => self.switchboard.wake(subscriber, handle),
            Effect::Reply { request, reply } => self.switchboard.reply(request, reply),
            Effect::Look { worker } => self.machine.look(worker),
            Effect::Sweep(sweep) => self.machine.sweep(sweep),
            Effect::Launch { id, attempt } => self.workers.launch(id, attempt),
        }
    }

    /// Appends; a store that is done at once costs no turn of the loop.
    fn append(&mut self, records: Vec<crate::plane::Record>, ctx: &mut Context<Self>) {
        let mut future = self.store.append(records);
        let first = pin!(&mut future).poll(&mut TaskContext::from_waker(Waker::noop()));
        match first {
            Poll::Ready(result) => self.stored(result),
            Poll::Pending => {
                let later = future.into_actor(self).map(|result, actor, ctx| {
                    actor.stored(result);
                    actor.drain(ctx);
                });
                ctx.spawn(later);
            }
        }
    }

    fn stored(&mut self, result: Result<Appended, StoreError>) {
        let Appended { trimmed, bytes } = result.expect("the memory store takes everything");
        self.plane.handle_input(Input::Stored { trimmed, bytes }, self.clock.now());
    }

    fn arm(&mut self, ctx: &mut Context<Self>) {
        let due = self.plane.poll_timeout();
        if self.timer.map(|(at, _)| at) == due {
            return;
        }
        if let Some((_, timer)) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let Some(at) = due else { return };
        let after = at.saturating_sub(self.clock.now().mono);
        let timer = ctx.run_later(after, |actor, ctx| {
            actor.timer = None;
            actor.plane.handle_timeout(actor.clock.now());
            actor.drain(ctx);
        });
        self.timer = Some((at, timer));
    }
}

impl Actor for BrokerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
    }
}

impl Handler<Post> for BrokerActor {
    type Result = ();

    fn handle(&mut self, Post(input): Post, ctx: &mut Self::Context) {
        self.plane.handle_input(input, self.clock.now());
        self.drain(ctx);
    }
}

impl Drop for BrokerActor {
    /// An actor whose handler panicked is dead for good while its process would live on.
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("the plane broke; this broker ends, and the next one takes over");
            std::process::exit(BROKEN);
        }
    }
}
