//! How a handler of this process asks the broker of the checkout.
//!
//! Each question has a connection of its own. Its rule: a question never waits for ever, and what
//! can be answered without a broker is.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reeve_protocol::place::Place;
use reeve_protocol::stream::Op;
use reeve_protocol::{Code, Fault};
use reeve_worker::handler::{Ask, Handlers, NoBroker};
use serde_json::Value;

use super::registry::{self, Declared};
use super::{Here, block_on, broker};
use crate::failure::{Exit, Failure};
use crate::manifest_file::ManifestFileError;

/// How long a broker may take for an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Asks the broker of one checkout.
pub(super) struct Asking {
    dir: PathBuf,
    place: Place,
    handlers: Arc<Handlers>,
}

impl Asking {
    /// Makes one for the checkout of a command.
    pub fn new(here: &Here) -> Self {
        let Here { dir, place, handlers } = here;
        Self { dir: dir.clone(), place: place.clone(), handlers: Arc::clone(handlers) }
    }

    fn here(&self) -> Here {
        Here {
            dir: self.dir.clone(),
            place: self.place.clone(),
            handlers: Arc::clone(&self.handlers),
        }
    }

    fn asked(&self, op: Op) -> Result<Value, Fault> {
        let here = self.here();
        let answer = block_on(async {
            let asked = async {
                let Some(mut link) = broker::connect(&here, "handler").await? else {
                    return Ok(None);
                };
                Ok(Some(link.ask(op.clone()).await?))
            };
            let silent = |_| Failure::new(Exit::NoBroker, "the broker does not answer");
            tokio::time::timeout(ANSWER, asked).await.map_err(silent)?
        });
        match answer {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => self.alone(op),
            Err(failure) => Err(fault_of(failure)),
        }
    }

    /// Answers without a broker.
    fn alone(&self, op: Op) -> Result<Value, Fault> {
        if op != (Op::Capabilities {}) {
            return Err(NoBroker::fault());
        }
        let Declared { mut loaded, error, .. } = registry::read(&self.place, &self.handlers);
        loaded.problems = match error {
            None | Some(ManifestFileError::Missing(_)) => Vec::new(),
            Some(ManifestFileError::Invalid(problems)) => problems,
            Some(other) => vec![Failure::from(other).message],
        };
        Ok(registry::told(&loaded))
    }
}

impl Ask for Asking {
    /// Asks on a thread of its own: a handler may be inside a runtime, where none other can wait.
    fn ask(&self, op: Op) -> Result<Value, Fault> {
        let broke = || Fault::new(Code::Internal, "the broker could not be asked");
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("asking".to_owned());
            let asking = thread.spawn_scoped(scope, || self.asked(op)).map_err(|_| broke())?;
            asking.join().unwrap_or_else(|_| Err(broke()))
        })
    }
}

/// Returns the fault of a failure; one that has no code is that of a broker that is not there.
fn fault_of(failure: Failure) -> Fault {
    let fault = Fault::new(failure.code.unwrap_or(Code::Unavailable), failure.message);
    match failure.hints.into_iter().next() {
        Some(hint) => fault.hint(hint),
        None => fault,
    }
}
