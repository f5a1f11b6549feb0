//! Tickets: a browser's upgrade carries one, since it can send no header of its own there.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reeve_protocol::{Code, Fault};

use crate::token::{Scopes, random_hex};

/// How long a ticket is good.
pub const GOOD_FOR: Duration = Duration::from_secs(30);
/// Tickets that are held, at most.
const TICKETS_MAX: usize = 1_024;

struct Ticket {
    until: Duration,
    scopes: Scopes,
    origin: Option<String>,
}

/// Tickets that were made and not used.
#[derive(Default)]
pub struct Tickets(Mutex<HashMap<String, Ticket>>);

impl Tickets {
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
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, ticket| ticket.until > now);
        if held.len() >= TICKETS_MAX {
            let message = format!("{TICKETS_MAX} tickets are unused");
            return Err(Fault::new(Code::Busy, message).because("too_many_tickets"));
        }
        let origin = origin.map(ToOwned::to_owned);
        held.insert(name.clone(), Ticket { until: now + GOOD_FOR, scopes, origin });
        Ok(name)
    }

    /// Uses a ticket up and returns what it allows.
    pub fn use_up(&self, name: &str, origin: Option<&str>, now: Duration) -> Option<Scopes> {
        let ticket = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name)?;
        let good = ticket.until > now && ticket.origin.as_deref() == origin;
        good.then_some(ticket.scopes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_once_for_a_while_and_for_its_origin() {
        let tickets = Tickets::default();
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
