//! The way from a checkout to its broker, for commands.
//!
//! Its rule: whether a broker lives is what its lock says; patience is only for one that is about
//! to be reachable. Never starts a broker.

use std::time::Duration;

use reeve_broker::seat::process;
use reeve_protocol::lease::Lease;
use tokio::time::{Instant, sleep};

use super::Here;
use crate::checkout::{self, Found};
use crate::failure::{Exit, Failure, chain};
use crate::link::{Link, LinkError};

/// How long a broker that lives may take to become reachable: it starts, ends or binds anew.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(25);

/// Connects to the broker of the checkout; `None` when none lives.
pub(super) async fn connect(here: &Here, name: &str) -> Result<Option<Link>, Failure> {
    let me = here.identity()?;
    let give_up = Instant::now() + PATIENCE;
    loop {
        let lease = match checkout::discover(&here.place)? {
            Found::NoBroker | Found::Stale(_) => return Ok(None),
            Found::Serving(lease) => Some(lease),
            Found::Mute => None,
        };
        let error = match &lease {
            Some(lease) => match Link::connect(lease, &me, name).await {
                Ok(link) => return Ok(Some(link)),
                Err(error) => Some(error),
            },
            None => None,
        };
        let may_pass = error.as_ref().is_none_or(LinkError::may_pass);
        if !may_pass || Instant::now() >= give_up {
            return Err(unreachable(lease.as_deref(), error));
        }
        sleep(PAUSE).await;
    }
}

/// Connects to the broker of the checkout.
pub(super) async fn need(here: &Here, name: &str) -> Result<Link, Failure> {
    connect(here, name).await?.ok_or_else(Failure::no_broker)
}

/// Says why a broker that lives cannot be reached.
fn unreachable(lease: Option<&Lease>, error: Option<LinkError>) -> Failure {
    let Some(lease) = lease else {
        let message = "a broker holds this checkout's lock and says nothing of itself";
        return Failure::new(Exit::NoBroker, message)
            .hint("its lease may have been removed; end its process and start another");
    };
    let failure = match error {
        Some(LinkError::Silent { pid }) => {
            let state = process::look(pid).map_or('?', |stat| stat.state);
            let mut message =
                format!("the broker holds the lock but does not answer (pid {pid}, state {state})");
            if process::look(pid).is_some_and(reeve_protocol::place::ProcessStat::is_stopped) {
                message.push_str("; it is stopped by a signal");
            }
            Failure::new(Exit::NoBroker, message)
        }
        Some(error) => Failure::new(Exit::NoBroker, chain(&error)),
        None => {
            Failure::new(Exit::NoBroker, format!("cannot reach the broker (pid {})", lease.pid))
        }
    };
    failure.hint("`reeve stop --force` ends it")
}
