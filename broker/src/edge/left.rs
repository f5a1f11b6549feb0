//! Leaving: a connection that ends is pulled out and forgotten, also when its task breaks.

use crate::handle::Broker;
use crate::plane::{Input, SubscriberId, WorkerId};

/// Says that a connection has ended; said by its drop if nothing else has.
pub(super) struct Left {
    broker: Broker,
    who: Who,
    told: bool,
}

#[derive(Clone, Copy)]
enum Who {
    Reader(SubscriberId),
    Worker(WorkerId),
}

impl Left {
    /// Watches over the connection of a reader.
    pub fn reader(broker: &Broker, subscriber: SubscriberId) -> Self {
        Self { broker: broker.clone(), who: Who::Reader(subscriber), told: false }
    }

    /// Watches over the connection of a worker.
    pub fn worker(broker: &Broker, worker: WorkerId) -> Self {
        Self { broker: broker.clone(), who: Who::Worker(worker), told: false }
    }

    /// Says it in order, after everything that the connection brought.
    pub async fn tell(mut self) {
        self.told = true;
        let input = self.pull_out();
        self.broker.post(input).await;
    }

    fn pull_out(&self) -> Input {
        match self.who {
            Who::Reader(subscriber) => {
                self.broker.switchboard.reader_left(subscriber);
                Input::Unsubscribe { subscriber, executions: Vec::new() }
            }
            Who::Worker(worker) => {
                self.broker.switchboard.worker_left(worker);
                Input::Closed { worker }
            }
        }
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        if !self.told {
            self.broker.post_last(self.pull_out());
        }
    }
}
