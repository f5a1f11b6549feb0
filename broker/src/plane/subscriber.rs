//! Subscriptions: who wants to know when an execution has something new.
//!
//! A subscriber has no queue here and no position: it is woken, and reads from the store where
//! its own cursor stands. So no reader can slow a writer, whatever it does.

use std::collections::{BTreeMap, BTreeSet};

use reeve_protocol::mutant;
use reeve_protocol::stream::{FollowFrom, Followed, Subbed};
use reeve_protocol::{Code, ExecutionId, Fault, Handle};

use super::Plane;
use super::effect::{Effect, Reply, Shown};
use super::input::{RequestId, SubscriberId};

/// Who follows what.
#[derive(Default)]
pub(super) struct Interest {
    by_handle: BTreeMap<Handle, BTreeSet<SubscriberId>>,
    by_subscriber: BTreeMap<SubscriberId, BTreeSet<Handle>>,
    all: BTreeSet<SubscriberId>,
}

impl Interest {
    pub fn subscribers(&self) -> usize {
        let named = self.by_subscriber.keys().filter(|id| !self.all.contains(id)).count();
        named + self.all.len()
    }

    /// Returns whom to wake for an execution, each once.
    pub fn of(&self, handle: Handle) -> Vec<SubscriberId> {
        let named = self.by_handle.get(&handle).into_iter().flatten();
        named.chain(&self.all).copied().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Takes an execution out and returns who followed it.
    pub fn forget(&mut self, handle: Handle) -> Vec<SubscriberId> {
        let followers = self.of(handle);
        for subscriber in self.by_handle.remove(&handle).unwrap_or_default() {
            if let Some(handles) = self.by_subscriber.get_mut(&subscriber) {
                handles.remove(&handle);
            }
        }
        followers
    }

    fn follow(&mut self, subscriber: SubscriberId, handle: Handle) {
        self.by_handle.entry(handle).or_default().insert(subscriber);
        self.by_subscriber.entry(subscriber).or_default().insert(handle);
    }

    fn unfollow(&mut self, subscriber: SubscriberId, handle: Handle) {
        if let Some(followers) = self.by_handle.get_mut(&handle) {
            followers.remove(&subscriber);
            if followers.is_empty() {
                self.by_handle.remove(&handle);
            }
        }
        if let Some(handles) = self.by_subscriber.get_mut(&subscriber) {
            handles.remove(&handle);
            if handles.is_empty() {
                self.by_subscriber.remove(&subscriber);
            }
        }
    }
}

impl Plane {
    pub(super) fn on_subscribe(
        &mut self,
        request: RequestId,
        subscriber: SubscriberId,
        executions: &[FollowFrom],
        all: bool,
    ) {
        let held = self.interest.by_subscriber.get(&subscriber).map_or(0, BTreeSet::len);
        if held + executions.len() > self.limits.max_followed {
            let fault = Fault::new(
                Code::Busy,
                format!("max_followed is {} per connection", self.limits.max_followed),
            )
            .because("too_many_followed")
            .hint("follow everything instead, or open another connection");
            return self.refuse(request, fault);
        }
        let mut subbed = Subbed { epoch: self.epoch.clone(), ..Subbed::default() };
        if all {
            self.interest.all.insert(subscriber);
            let active = self.executions.values().filter_map(|execution| execution.shown.as_ref());
            subbed.executions.extend(
                active
                    .filter(|shown| !shown.snapshot.state.is_final())
                    .map(|shown| followed(shown, shown.last)),
            );
        }
        for from in executions {
            let handle = self.by_id.get(&from.execution).copied();
            let shown = handle.and_then(|handle| self.executions[&handle].shown.clone());
            let Some(shown) = shown else {
                subbed.unknown.push(from.execution);
                continue;
            };
            self.interest.follow(subscriber, shown.handle);
            subbed.executions.retain(|other| other.handle != shown.handle);
            subbed.executions.push(followed(&shown, from.after));
        }
        // What is not shown yet is as new to a reader of everything as what is still to come.
        let hidden = self.executions.values().find(|execution| execution.shown.is_none());
        let hidden = hidden.filter(|_| !mutant::on("seam on subscribe"));
        let horizon = hidden.map_or(Handle(self.next_handle), |execution| execution.handle);
        self.effects.push_back(Effect::Reply { request, reply: Reply::Subbed { subbed, horizon } });
    }

    pub(super) fn on_unsubscribe(&mut self, subscriber: SubscriberId, executions: &[ExecutionId]) {
        if executions.is_empty() {
            self.interest.all.remove(&subscriber);
            for handle in self.interest.by_subscriber.remove(&subscriber).unwrap_or_default() {
                self.interest.unfollow(subscriber, handle);
            }
            return;
        }
        for handle in executions.iter().filter_map(|id| self.by_id.get(id)) {
            self.interest.unfollow(subscriber, *handle);
        }
    }
}

fn followed(shown: &Shown, after: reeve_protocol::Seq) -> Followed {
    Followed {
        execution: shown.snapshot.id,
        handle: shown.handle,
        capability: shown.snapshot.capability.clone(),
        after,
        last: shown.last,
        state: shown.snapshot.state,
    }
}
