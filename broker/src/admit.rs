//! Admission: what a call must pass before anything is made of it.
//!
//! Resolves, decodes and validates, in this order. Nothing has run and nothing is shown when
//! this refuses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use reeve_protocol::capability::Loaded;
use reeve_protocol::fault::Stage;
use reeve_protocol::input::Validator;
use reeve_protocol::secret::Hidden;
use reeve_protocol::{CapabilityId, Code, Descriptor, Fault};
use serde_json::Value;

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

/// Validators by capability, for as long as what is declared stays the same.
#[derive(Clone, Default)]
pub struct Validators(Arc<Mutex<(String, BTreeMap<CapabilityId, Validator>)>>);

impl Validators {
    /// Returns the validator of a capability, made where there is none yet.
    fn of(&self, digest: &str, capability: &Descriptor) -> Result<Validator, Fault> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.0 != digest {
            *held = (digest.to_owned(), BTreeMap::new());
        }
        if let Some(validator) = held.1.get(&capability.id) {
            return Ok(validator.clone());
        }
        let validator = Validator::new(&capability.input).map_err(|bad| {
            Fault::new(Code::Internal, format!("the schema of {}: {bad}", capability.id))
        })?;
        held.1.insert(capability.id.clone(), validator.clone());
        Ok(validator)
    }
}

/// Resolves a capability and validates an input; on a thread of its own, since schemas are
/// compiled and inputs may be large.
///
/// # Errors
///
/// `ACTION_NOT_FOUND` with what there is, `INVALID_PARAMS` with pointers.
pub async fn admit(
    registry: &Arc<Loaded>,
    validators: &Validators,
    id: &CapabilityId,
    input: Value,
) -> Result<Admitted, Fault> {
    let found = registry.descriptors.iter().find(|descriptor| descriptor.id == *id);
    let capability = found.cloned().ok_or_else(|| not_found(registry, id))?;
    if capability.process.is_none() {
        let message = format!("{id} is not executable by name: its caller runs it itself");
        return Err(Fault::new(Code::InvalidRequest, message)
            .at(Stage::Resolve)
            .because("not_executable"));
    }
    if !input.is_null() && !input.is_object() {
        return Err(Fault::new(Code::InvalidArgs, "\"input\" is a JSON object").at(Stage::Decode));
    }
    let (validators, digest) = (validators.clone(), registry.digest.clone());
    let checked = tokio::task::spawn_blocking(move || {
        let validator = validators.of(&digest, &capability)?;
        let input = Hidden(validator.validate(input)?);
        let shown = validator.withhold(&input).shown;
        Ok(Admitted { capability, input, shown })
    });
    checked.await.map_err(|_| Fault::new(Code::Internal, "the input could not be validated"))?
}

fn not_found(registry: &Loaded, id: &CapabilityId) -> Fault {
    let executable = registry.descriptors.iter().filter(|one| one.process.is_some());
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
