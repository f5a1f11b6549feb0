//! Starting: what the broker starts for somebody becomes an execution that a worker of its own
//! carries out.

use reeve_protocol::pool::{Assignment, DirectCall};
use reeve_protocol::snapshot::{Actor, Description};
use reeve_protocol::{Code, ExecutionId, Fault};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::admit::Admitted;
use crate::handle::Broker;
use crate::plane::{Input, Reply, StartKey};

/// How often a name that is taken is replaced.
const MINTS_MAX: usize = 3;
/// How long a call without an execution may take, where its capability says nothing.
const CALL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

impl Broker {
    /// Starts an admitted call, and answers at once with the execution as it was created.
    ///
    /// # Errors
    ///
    /// `busy` at a bound, `unavailable` while the broker ends, `invalid_request` with reason
    /// `idempotency_conflict` when the key has started something else.
    pub async fn start(
        &self,
        admitted: Admitted,
        actor: Actor,
        key: Option<String>,
    ) -> Result<Value, Fault> {
        let key = key.map(|name| StartKey { name, digest: digest(&admitted) });
        let description = self.describe(&admitted, actor);
        let mut mints = 0;
        loop {
            if self.is_closing() {
                return Err(ending());
            }
            let id = self.mint()?;
            self.workers.keep(Assignment {
                execution: id,
                capability: admitted.capability.clone(),
                input: admitted.input.clone(),
                description: description.clone(),
                limits: self.limits.as_ref().clone(),
            });
            let (description, key) = (Box::new(description.clone()), key.clone());
            let asked = self.ask(|request| Input::Start { request, id, description, key }).await;
            mints += 1;
            let shown = match asked {
                Ok(Reply::Started(shown)) => shown,
                Ok(_) => unreachable!("a start is answered as one"),
                Err(fault) => {
                    self.workers.forget(id);
                    if fault.reason.as_deref() == Some("id_taken") && mints < MINTS_MAX {
                        continue;
                    }
                    return Err(fault);
                }
            };
            if shown.snapshot.id != id {
                self.workers.forget(id);
            }
            return serde_json::to_value(shown.to_snapshot())
                .map_err(|_| Fault::new(Code::Internal, "a snapshot could not be written"));
        }
    }

    /// Has an admitted call of a handler answered without an execution.
    ///
    /// # Errors
    ///
    /// What the handler refuses with, `busy`, `timeout`, or `unavailable` when its worker ended.
    pub async fn call(&self, admitted: Admitted) -> Result<Value, Fault> {
        if self.is_closing() {
            return Err(ending());
        }
        let Admitted { capability, input, .. } = admitted;
        let within = capability.timeout().unwrap_or(CALL_TIMEOUT).min(CALL_TIMEOUT);
        let limits = self.limits.as_ref().clone();
        self.workers.call(DirectCall { capability, input, limits }, within).await
    }

    fn describe(&self, admitted: &Admitted, actor: Actor) -> Description {
        let capability = &admitted.capability;
        let process = capability.process.as_ref();
        let grace = u64::try_from(self.limits.cancel_grace.as_millis()).unwrap_or(u64::MAX);
        Description {
            capability: capability.id.clone(),
            title: capability.title.clone(),
            kind: capability.kind,
            effect: capability.effect,
            cancellable: capability.cancellable,
            lock: capability.overlap.lock_of(&capability.id),
            on_worker_loss: process.map(|process| process.on_worker_loss).unwrap_or_default(),
            cancel_grace_ms: process.map_or(grace, |process| process.cancel_grace_ms),
            input: admitted.shown.clone(),
            actor,
            repository: self.about.repository.clone(),
            parent_id: None,
        }
    }

    fn mint(&self) -> Result<ExecutionId, Fault> {
        let mut random = [0; 4];
        getrandom::fill(&mut random)
            .map_err(|_| Fault::new(Code::Internal, "the system gives no random numbers"))?;
        Ok(ExecutionId::mint(self.clock.now().wall, u32::from_be_bytes(random)))
    }
}

fn ending() -> Fault {
    Fault::new(Code::Unavailable, "this broker is ending; nothing was started")
        .because("stopping")
        .hint("start it again once a broker serves")
}

/// Tells one call from another; the order of members does not count.
fn digest(admitted: &Admitted) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(admitted.capability.id.as_str());
    hash.update([0]);
    hash.update(admitted.input.to_string());
    hash.finalize().into()
}
