//! Tickets: secrets that are good once and for a moment. A browser's upgrade carries one, since it
//! can send no header of its own there, and so does a link that opens the pages.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reeve_protocol::{Code, Fault};

use crate::token::{Scopes, random_hex};

/// How long a ticket for an upgrade is good.
pub const GOOD_FOR: Duration = Duration::from_secs(30);
/// Tickets that are held, at most.
const TICKETS_MAX: usize = 1_024;

struct Ticket {
    until: Duration,
    scopes: Scopes,
    origin: Option<String>,
}

/// Tickets that were made and not used.
pub struct Tickets {
    good_for: Duration,
    held: Mutex<HashMap<String, Ticket>>,
}

impl Tickets {
    /// Makes a place for tickets that are good for so long.
    pub fn new(good_for: Duration) -> Self {
        Self { good_for, held: Mutex::default() }
    }

    /// Returns how long a ticket is good.
    pub fn good_for(&self) -> Duration {
        self.good_for
    }

    /// Makes a ticket for whoever asked, good once and for the same origin.
    ///
    /// # Errors
    ///
    /// `busy` when too many are unused.
    pub fn make(
        &self,
        scopes: Scopes,
        origin: Option<&str>,
        now: Duration,
    ) -> Result<String, Fault> {
        let name = random_hex(32).map_err(|error| Fault::new(Code::Internal, error.to_string()))?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, ticket| ticket.until > now);
        if held.len() >= TICKETS_MAX {
            let message = format!("{TICKETS_MAX} tickets are unused");
            return Err(Fault::new(Code::Busy, message).because("too_many_tickets"));
        }
        let origin = origin.map(ToOwned::to_owned);
        held.insert(name.clone(), Ticket { until: now + self.good_for, scopes, origin });
        Ok(name)
    }

    /// Uses a ticket up and returns what it allows.
    pub fn use_up(&self, name: &str, origin: Option<&str>, now: Duration) -> Option<Scopes> {
        let ticket = self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(name)?;
        let good = ticket.until > now && ticket.origin.as_deref() == origin;
        good.then_some(ticket.scopes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_once_for_a_while_and_for_its_origin() {
        let tickets = Tickets::new(GOOD_FOR);
        let now = Duration::from_secs(100);
        let make = || tickets.make(Scopes::ALL, Some("http://a"), now).unwrap();
        let ticket = make();
        assert_eq!(tickets.use_up(&ticket, Some("http://a"), now), Some(Scopes::ALL));
        assert_eq!(tickets.use_up(&ticket, Some("http://a"), now), None);
        assert_eq!(tickets.use_up(&make(), Some("http://b"), now), None);
        assert_eq!(tickets.use_up(&make(), None, now), None);
        assert_eq!(tickets.use_up(&make(), Some("http://a"), now + GOOD_FOR), None);
        assert_eq!(tickets.use_up("", Some("http://a"), now), None);
    }
}
