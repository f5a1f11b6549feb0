//! Admission: what a call must pass before anything is made of it.
//!
//! Resolves, decodes and validates, and refuses what needs a person who cannot be asked, or what
//! no person has trusted, in this order. Nothing has run and nothing is shown when this refuses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use reeve_protocol::capability::{Confirm, Effect, Loaded};
use reeve_protocol::fault::Stage;
use reeve_protocol::input::{Ready, argv};
use reeve_protocol::secret::Hidden;
use reeve_protocol::{CapabilityId, Code, Descriptor, Fault};
use serde_json::Value;

use crate::handle::Broker;
use crate::trust;

/// Ids that a refusal lists, at most.
const LISTED_MAX: usize = 20;

/// A call that passed.
#[derive(Debug)]
pub struct Admitted {
    /// What is called.
    pub capability: Descriptor,
    /// With what, defaults filled in: for the worker that runs it, and for nobody else.
    pub input: Hidden<Value>,
    /// The same with every marked value replaced: for events, lists, logs and pages.
    pub shown: Value,
}

/// What checks a call, by capability, for as long as what is declared stays the same.
#[derive(Clone, Default)]
pub struct Validators(Arc<Mutex<Held>>);

/// The digest of what is declared, and what checks its calls.
type Held = (String, BTreeMap<CapabilityId, Arc<Ready>>);

impl Validators {
    /// Returns what checks the calls of a capability, made where there is none yet.
    fn of(&self, digest: &str, capability: &Descriptor) -> Result<Arc<Ready>, Fault> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.0 != digest {
            *held = (digest.to_owned(), BTreeMap::new());
        }
        if let Some(ready) = held.1.get(&capability.id) {
            return Ok(Arc::clone(ready));
        }
        let ready = Ready::new(capability).map_err(|bad| {
            Fault::new(Code::Internal, format!("{} cannot be called: {bad}", capability.id))
        })?;
        let ready = Arc::new(ready);
        held.1.insert(capability.id.clone(), Arc::clone(&ready));
        Ok(ready)
    }
}

/// Resolves a capability, validates an input and checks that it may run for others; on a thread of its own, since schemas are
/// compiled and inputs may be large.
///
/// # Errors
///
/// `ACTION_NOT_FOUND` with what there is, `INVALID_PARAMS` with pointers, `PERMISSION_DENIED` with
/// the reason `no_channel`, `ACTION_UNAVAILABLE` with the reason `untrusted` or `changed`.
pub async fn admit(
    broker: &Broker,
    validators: &Validators,
    id: &CapabilityId,
    input: Value,
) -> Result<Admitted, Fault> {
    let registry = broker.registry();
    let found = registry.descriptors.iter().find(|descriptor| descriptor.id == *id);
    let capability = found.cloned().ok_or_else(|| not_found(&registry, id))?;
    if !capability.is_executable() {
        let message = format!("{id} is not executable by name: its caller runs it itself");
        return Err(Fault::new(Code::InvalidRequest, message)
            .at(Stage::Resolve)
            .because("not_executable"));
    }
    if !input.is_null() && !input.is_object() {
        return Err(Fault::new(Code::InvalidArgs, "\"input\" is a JSON object").at(Stage::Decode));
    }
    let (validators, place) = (validators.clone(), Arc::clone(&broker.place));
    let checked = tokio::task::spawn_blocking(move || {
        let ready = validators.of(&registry.digest, &capability)?;
        let input = Hidden(ready.validator.validate(input)?);
        let shown = ready.validator.withhold(&input).shown;
        if let Some(template) = &ready.template {
            // What cannot become an argument is refused here, not by its worker.
            argv(template, &input)?;
        }
        confirm(&capability)?;
        if capability.process.is_some() {
            trust::check(&place, &registry)?;
        }
        Ok(Admitted { capability, input, shown })
    });
    checked.await.map_err(|_| Fault::new(Code::Internal, "the input could not be validated"))?
}

/// Refuses what a person has to agree to: nobody can be asked here.
fn confirm(capability: &Descriptor) -> Result<(), Fault> {
    if capability.effect != Effect::Dangerous && capability.confirm != Confirm::Always {
        return Ok(());
    }
    let id = &capability.id;
    let message = format!("a person has to agree to {id}, and there is no way to ask one");
    Err(Fault::new(Code::PermissionDenied, message)
        .at(Stage::Confirm)
        .because("no_channel")
        .hint(format!("`reeve run {id}` is your own act and needs no answer")))
}

fn not_found(registry: &Loaded, id: &CapabilityId) -> Fault {
    let executable = registry.descriptors.iter().filter(|one| one.is_executable());
    let mut ids: Vec<&str> = executable.map(|descriptor| descriptor.id.as_str()).collect();
    ids.sort_by_key(|other| (shared(other, id.as_str()), *other));
    let more = ids.len().saturating_sub(LISTED_MAX);
    ids.truncate(LISTED_MAX);
    let mut hint = match ids.is_empty() {
        true => "nothing is declared here; `reeve init` writes a manifest".to_owned(),
        false => format!("available: {}", ids.join(", ")),
    };
    if more > 0 {
        hint.push_str(&format!(" and {more} more"));
    }
    Fault::new(
        Code::ActionNotFound,
        format!("no capability '{id}'; the executable ones are listed by capabilities.list"),
    )
    .at(Stage::Resolve)
    .hint(hint)
}

/// Orders ids by how much of their beginning they share with what was asked for.
fn shared(id: &str, wanted: &str) -> std::cmp::Reverse<usize> {
    std::cmp::Reverse(id.bytes().zip(wanted.bytes()).take_while(|(a, b)| a == b).count())
}
