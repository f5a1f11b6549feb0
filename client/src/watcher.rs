//! The watcher: a follower with a connection that is made again whenever it is cut.
//!
//! Owns the way from a lease to offers. Its rule: an execution that ended and a connection that
//! was cut are never taken for each other. Never decides what is new: the follower does.

use std::collections::VecDeque;
use std::time::Duration;

use reeve_protocol::lease::Lease;
use reeve_protocol::place::Identity;
use tokio::time::{Instant, sleep_until};

use crate::follow::{Follower, Offer};
use crate::link::{Link, LinkError};

/// The first pause before another attempt; it doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// The longest pause before another attempt.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a watcher reports.
#[derive(Debug)]
pub enum Watched {
    /// Something to show.
    Offer(Offer),
    /// The connection was cut; it is being made again.
    Cut(LinkError),
    /// The connection is there again, and nothing was missed that is not named as a gap.
    Back,
    /// The connection could not be made again in time. What is followed may well go on.
    Lost(Option<LinkError>),
    /// Everything that was followed has ended.
    Done,
}

/// Follows executions across connections.
pub struct Watcher {
    discover: Box<dyn FnMut() -> Option<Lease> + Send>,
    me: Identity,
    name: &'static str,
    follower: Follower,
    patience: Duration,
    link: Option<Link>,
    reported: VecDeque<Watched>,
    last_error: Option<LinkError>,
    pause: Duration,
    next_attempt: Option<Instant>,
    give_up: Option<Instant>,
    was_connected: bool,
    retry_unknown: Option<Instant>,
}

impl Watcher {
    /// Makes a watcher that looks for the broker with `discover` whenever it has no connection, for
    /// `patience` at most.
    pub fn new(
        discover: impl FnMut() -> Option<Lease> + Send + 'static,
        me: Identity,
        name: &'static str,
        follower: Follower,
        patience: Duration,
    ) -> Self {
        Self {
            discover: Box::new(discover),
            me,
            name,
            follower,
            patience,
            link: None,
            reported: VecDeque::new(),
            last_error: None,
            pause: PAUSE_FIRST,
            next_attempt: None,
            give_up: None,
            was_connected: false,
            retry_unknown: None,
        }
    }

    /// Uses a connection that is there already, greeted and not subscribed.
    #[must_use]
    pub fn on(mut self, link: Link) -> Self {
        self.link = Some(link);
        self
    }

    /// Asks for executions that nobody held once more, a moment from now. A broker that was started
    /// again knows an execution only after its worker came back.
    pub fn retry_unknown(&mut self) {
        self.retry_unknown = Some(Instant::now() + PAUSE_MAX / 4);
    }

    /// Returns the follower.
    pub fn follower(&self) -> &Follower {
        &self.follower
    }

    /// Returns what comes next. May be dropped and called again; nothing is lost.
    ///
    /// After [`Watched::Done`] and [`Watched::Lost`] it returns the same again.
    pub async fn next(&mut self) -> Watched {
        loop {
            if let Some(watched) = self.reported.pop_front() {
                return watched;
            }
            if let Some(offer) = self.follower.poll_offer() {
                return Watched::Offer(offer);
            }
            if self.follower.is_done() {
                return Watched::Done;
            }
            if self.link.is_none() || !self.was_connected {
                if let Some(lost) = self.connect().await {
                    return lost;
                }
                continue;
            }
            if let Err(error) = self.step().await {
                self.link = None;
                self.next_attempt = None;
                self.reported.push_back(Watched::Cut(error));
            }
        }
    }

    /// Takes one frame, or asks once more for what nobody held.
    async fn step(&mut self) -> Result<(), LinkError> {
        let Some(link) = &mut self.link else { return Err(LinkError::Cut(None)) };
        let retry_at = self.retry_unknown;
        tokio::select! {
            frame = link.next_frame() => {
                let (kind, body) = frame?;
                self.follower.handle_frame(kind, body)?;
            }
            () = async { sleep_until(retry_at.expect("the branch is on")).await },
                if retry_at.is_some() =>
            {
                self.retry_unknown = None;
                self.follower.handle_retry();
            }
        }
        if let Some(sub) = self.follower.poll_sub() {
            link.subscribe(&sub).await?;
        }
        Ok(())
    }

    /// Makes one attempt, after the pause that is due.
    async fn connect(&mut self) -> Option<Watched> {
        if let Some(at) = self.next_attempt {
            sleep_until(at).await;
        }
        let give_up = *self.give_up.get_or_insert_with(|| Instant::now() + self.patience);
        match self.attempt().await {
            Ok(link) => {
                self.link = Some(link);
                self.pause = PAUSE_FIRST;
                self.next_attempt = None;
                self.give_up = None;
                if std::mem::replace(&mut self.was_connected, true) {
                    self.reported.push_back(Watched::Back);
                }
                return None;
            }
            Err(error) => {
                self.link = None;
                self.last_error = error.or(self.last_error.take());
            }
        }
        if Instant::now() + self.pause > give_up {
            return Some(Watched::Lost(self.last_error.take()));
        }
        self.next_attempt = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        None
    }

    async fn attempt(&mut self) -> Result<Link, Option<LinkError>> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => {
                let lease = (self.discover)().ok_or(None)?;
                Link::connect(&lease, &self.me, self.name).await.map_err(Some)?
            }
        };
        let sub = self.follower.handle_connected();
        link.subscribe(&sub).await.map_err(Some)?;
        Ok(link)
    }
}

#[cfg(test)]
mod tests;
