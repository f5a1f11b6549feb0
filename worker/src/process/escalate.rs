//! How a tree is brought to its end: asked first, killed after its grace.
//!
//! Owns the order of the steps and their times. Knows no process and no clock: whoever drives it
//! sends the signals, keeps the time and says when the tree is empty.

use std::collections::VecDeque;
use std::time::Duration;

/// How long a killed tree has to be gone before it is killed again.
const KILL_AGAIN: Duration = Duration::from_secs(1);
/// How often a tree is killed before it is given up: what remains hangs in the kernel.
const KILLS_MAX: u32 = 5;

/// How a tree is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// With SIGTERM.
    Term,
    /// With SIGINT, as a terminal does.
    Int,
}

/// What is to be done to the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Every process of it gets the signal.
    SignalTree(Ask),
    /// Every process of it is killed.
    KillTree,
    /// There is nothing more to do: it is empty, or cannot be emptied.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Asked { until: Duration },
    Killed { again: Duration, times: u32 },
    Done,
}

/// The way of one tree from running to gone.
#[derive(Debug)]
pub struct Escalation {
    phase: Phase,
    effects: VecDeque<Effect>,
}

impl Default for Escalation {
    fn default() -> Self {
        Self::new()
    }
}

impl Escalation {
    /// Starts with a tree that nobody has asked to stop.
    pub fn new() -> Self {
        Self { phase: Phase::Idle, effects: VecDeque::new() }
    }

    /// Takes a wish to stop within `grace`; a further one may only shorten the time.
    pub fn handle_cancel(&mut self, now: Duration, grace: Duration) {
        let until = now.saturating_add(grace);
        match self.phase {
            Phase::Idle => self.ask(Ask::Term, until),
            Phase::Asked { until: before } => {
                self.phase = Phase::Asked { until: until.min(before) };
            }
            Phase::Killed { .. } | Phase::Done => {}
        }
    }

    /// Takes an interrupt from a person: the first one asks, one after any asking kills at once.
    pub fn handle_force(&mut self, now: Duration, grace: Duration) {
        match self.phase {
            Phase::Idle => self.ask(Ask::Int, now.saturating_add(grace)),
            Phase::Asked { .. } => self.kill(now, 1),
            Phase::Killed { .. } | Phase::Done => {}
        }
    }

    /// Takes the time.
    pub fn handle_timeout(&mut self, now: Duration) {
        match self.phase {
            Phase::Asked { until } if now >= until => self.kill(now, 1),
            Phase::Killed { again, times } if now >= again => {
                if times < KILLS_MAX {
                    self.kill(now, times + 1);
                } else {
                    self.finish();
                }
            }
            Phase::Idle | Phase::Asked { .. } | Phase::Killed { .. } | Phase::Done => {}
        }
    }

    /// Takes the news that no process of the tree lives.
    pub fn handle_empty(&mut self) {
        if self.phase != Phase::Done {
            self.finish();
        }
    }

    /// Returns the next thing to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns when [`Self::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        match self.phase {
            Phase::Asked { until } => Some(until),
            Phase::Killed { again, .. } => Some(again),
            Phase::Idle | Phase::Done => None,
        }
    }

    /// Returns whether somebody wants the tree to stop.
    pub fn is_stopping(&self) -> bool {
        self.phase != Phase::Idle
    }

    fn ask(&mut self, ask: Ask, until: Duration) {
        self.phase = Phase::Asked { until };
        self.effects.push_back(Effect::SignalTree(ask));
    }

    fn kill(&mut self, now: Duration, times: u32) {
        self.phase = Phase::Killed { again: now.saturating_add(KILL_AGAIN), times };
        self.effects.push_back(Effect::KillTree);
    }

    fn finish(&mut self) {
        self.phase = Phase::Done;
        self.effects.push_back(Effect::Done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn effects(escalation: &mut Escalation) -> Vec<Effect> {
        std::iter::from_fn(|| escalation.poll_effect()).collect()
    }

    #[test]
    fn a_tree_is_asked_and_killed_after_its_grace() {
        let mut escalation = Escalation::new();
        assert_eq!(escalation.poll_timeout(), None);
        escalation.handle_cancel(secs(1), GRACE);
        assert_eq!(effects(&mut escalation), [Effect::SignalTree(Ask::Term)]);
        assert_eq!(escalation.poll_timeout(), Some(secs(11)));

        escalation.handle_timeout(secs(10));
        assert_eq!(effects(&mut escalation), []);
        escalation.handle_timeout(secs(11));
        assert_eq!(effects(&mut escalation), [Effect::KillTree]);

        escalation.handle_empty();
        escalation.handle_empty();
        assert_eq!(effects(&mut escalation), [Effect::Done]);
        assert_eq!(escalation.poll_timeout(), None);
    }

    #[test]
    fn a_second_interrupt_kills_at_once() {
        let mut escalation = Escalation::new();
        escalation.handle_force(secs(0), GRACE);
        assert_eq!(effects(&mut escalation), [Effect::SignalTree(Ask::Int)]);
        escalation.handle_force(secs(0), GRACE);
        assert_eq!(effects(&mut escalation), [Effect::KillTree]);
        escalation.handle_force(secs(0), GRACE);
        assert_eq!(effects(&mut escalation), []);
    }

    #[test]
    fn an_interrupt_after_a_cancel_kills_at_once() {
        let mut escalation = Escalation::new();
        escalation.handle_cancel(secs(0), GRACE);
        escalation.handle_force(secs(1), GRACE);
        assert_eq!(effects(&mut escalation), [Effect::SignalTree(Ask::Term), Effect::KillTree]);
    }

    #[test]
    fn a_further_cancel_only_shortens_the_time() {
        let mut escalation = Escalation::new();
        escalation.handle_cancel(secs(0), GRACE);
        escalation.handle_cancel(secs(5), GRACE);
        assert_eq!(escalation.poll_timeout(), Some(GRACE));
        escalation.handle_cancel(secs(5), secs(1));
        assert_eq!(escalation.poll_timeout(), Some(secs(6)));
        assert_eq!(effects(&mut escalation), [Effect::SignalTree(Ask::Term)]);
    }

    #[test]
    fn a_tree_that_cannot_be_killed_is_given_up() {
        let mut escalation = Escalation::new();
        escalation.handle_cancel(secs(0), Duration::ZERO);
        let mut seen = effects(&mut escalation);
        while let Some(due) = escalation.poll_timeout() {
            escalation.handle_timeout(due);
            seen.extend(effects(&mut escalation));
        }
        let kills = seen.iter().filter(|effect| **effect == Effect::KillTree).count();
        assert_eq!(kills, KILLS_MAX as usize);
        assert_eq!(seen.last(), Some(&Effect::Done));
    }

    #[test]
    fn a_tree_that_ends_by_itself_is_done() {
        let mut escalation = Escalation::new();
        escalation.handle_empty();
        escalation.handle_cancel(secs(0), GRACE);
        escalation.handle_force(secs(0), GRACE);
        assert_eq!(effects(&mut escalation), [Effect::Done]);
    }
}
