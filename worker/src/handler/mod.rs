//! Rust handlers: capabilities that are a typed function.
//!
//! Owns what a handler is declared with ([`Handler`]), the registry of all of them ([`Handlers`]),
//! what one is given when it is called ([`Ctx`]) and the way its reports take ([`Progress`]). The
//! rule: the schemas are derived from the types, so that a declaration cannot differ from its
//! code, and a handler that breaks fails its own call and nothing else. Never decides about the
//! execution: that is the drive's.

mod ctx;
mod guard;
mod progress;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reeve_protocol::capability::{CapabilityKind, Confirm, Effect, Overlap};
use reeve_protocol::fault::Stage;
use reeve_protocol::input::{self, Validator};
use reeve_protocol::{CapabilityId, Code, Descriptor, Fault};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

pub use ctx::{Ask, Ctx, NoBroker, Site};
pub(crate) use guard::{Returned, broke};
pub use progress::Progress;
#[cfg(test)]
pub(crate) use progress::{AT_ONCE, WAITING_MAX};
pub(crate) use progress::{Report, Reports, observed};

/// What the descriptor of a handler says about where it was declared.
const PROVENANCE: &str = "built-in";
/// Characters of a title, at most.
const TITLE_CHARS: usize = 120;

type Run = dyn Fn(&Ctx, Value, &Validator) -> Result<Value, Fault> + Send + Sync;
type Schema = fn() -> Value;

/// A capability that is a function of this program.
pub struct Handler {
    id: String,
    title: String,
    description: String,
    effect: Effect,
    confirm: Confirm,
    overlap: Overlap,
    cancellable: bool,
    idempotent: bool,
    timeout: Option<Duration>,
    cancel_grace: Option<Duration>,
    provenance: &'static str,
    input: Schema,
    output: Schema,
    run: Box<Run>,
    validator: OnceLock<Result<Validator, String>>,
}

impl Handler {
    /// Declares a function as the capability `id`.
    ///
    /// Until told otherwise it is taken to write, may run several times at once, does not look at
    /// its flag, is not the same when it runs twice, and has all the time it wants.
    pub fn new<I, O, F>(id: impl Into<String>, title: impl Into<String>, function: F) -> Self
    where
        I: DeserializeOwned + JsonSchema,
        O: Serialize + JsonSchema,
        F: Fn(&Ctx, I) -> Result<O, Fault> + Send + Sync + 'static,
    {
        let run = move |ctx: &Ctx, input: Value, validator: &Validator| {
            let input = serde_json::from_value(input).map_err(|error| {
                // What was wrong may be quoted, but never what is secret.
                let why =
                    if validator.sensitive().any() { String::new() } else { format!(": {error}") };
                Fault::new(Code::InvalidParams, format!("the input cannot be taken{why}"))
                    .at(Stage::Validate)
            })?;
            serde_json::to_value(function(ctx, input)?).map_err(|error| {
                Fault::new(Code::Internal, format!("its output is no JSON: {error}"))
                    .at(Stage::Report)
            })
        };
        Self {
            id: id.into(),
            title: title.into(),
            description: String::new(),
            effect: Effect::Write,
            confirm: Confirm::Policy,
            overlap: Overlap::Parallel,
            cancellable: false,
            idempotent: false,
            timeout: None,
            cancel_grace: None,
            provenance: "this program",
            input: schema_of_input::<I>,
            output: schema_of_output::<O>,
            run: Box::new(run),
            validator: OnceLock::new(),
        }
    }

    /// Says at length what it does.
    #[must_use]
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// Says what it may change.
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// Has a person asked every time.
    #[must_use]
    pub fn confirm_always(mut self) -> Self {
        self.confirm = Confirm::Always;
        self
    }

    /// Says which executions may run beside it.
    #[must_use]
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Says that it looks at its flag: asking it to stop achieves something.
    #[must_use]
    pub fn cancellable(mut self) -> Self {
        self.cancellable = true;
        self
    }

    /// Says that running it twice is the same as running it once.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Bounds how long it may run.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Says how long it may go on after it was asked to stop; else the checkout's limit counts.
    #[must_use]
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = Some(grace);
        self
    }

    /// Marks it as part of reeve itself.
    pub(crate) fn built_in(mut self) -> Self {
        self.provenance = PROVENANCE;
        self
    }

    /// Returns its name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns how long it may go on after it was asked to stop, where it says so itself.
    pub fn grace(&self) -> Option<Duration> {
        self.cancel_grace
    }

    /// Returns what everybody may know of it.
    ///
    /// # Errors
    ///
    /// [`BadHandler::Id`] when its name has not the shape of one.
    pub fn descriptor(&self) -> Result<Descriptor, BadHandler> {
        let id: CapabilityId = self.id.parse().map_err(|_| BadHandler::Id(self.id.clone()))?;
        Ok(Descriptor {
            id,
            title: reeve_protocol::sanitise::text(&self.title, TITLE_CHARS),
            description: self.description.clone(),
            kind: CapabilityKind::Handler,
            input: (self.input)(),
            output: Some((self.output)()),
            effect: self.effect,
            confirm: self.confirm,
            overlap: self.overlap.clone(),
            cancellable: self.cancellable,
            idempotent: self.idempotent,
            timeout_ms: self
                .timeout
                .map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            process: None,
            provenance: self.provenance.to_owned(),
        })
    }

    /// Completes an input by its defaults and checks it.
    ///
    /// # Errors
    ///
    /// `INVALID_PARAMS` with what is wrong; `internal` when the schema itself is.
    pub fn validate(&self, input: Value) -> Result<Value, Fault> {
        self.validator()?.validate(input)
    }

    /// Calls it with a validated input, in this thread; whatever it does, this returns.
    ///
    /// # Errors
    ///
    /// Its own fault; `internal` without any detail where it panicked.
    pub fn call(&self, ctx: &Ctx, input: Value) -> Result<Value, Fault> {
        guard::call(self, ctx, input).into_result(ctx)
    }

    /// Calls it and tells a fault from a panic.
    pub(crate) fn enter(&self, ctx: &Ctx, input: Value) -> Returned {
        guard::call(self, ctx, input)
    }

    fn run(&self, ctx: &Ctx, input: Value) -> Result<Value, Fault> {
        let validator = self.validator()?;
        (self.run)(ctx, input, validator).map_err(|fault| self.complete(fault))
    }

    /// Says of a fault what its author left open: who names no stage has not said either what may
    /// have happened.
    fn complete(&self, fault: Fault) -> Fault {
        if fault.stage.is_some() {
            return fault;
        }
        let fault = fault.at(Stage::Execute);
        let open = fault.side_effect == reeve_protocol::SideEffect::None;
        if open && self.effect != Effect::Read {
            return fault.with_effect(reeve_protocol::SideEffect::Unknown);
        }
        fault
    }

    fn validator(&self) -> Result<&Validator, Fault> {
        let made = self
            .validator
            .get_or_init(|| Validator::new(&(self.input)()).map_err(|bad| bad.to_string()));
        made.as_ref().map_err(|bad| {
            Fault::new(Code::Internal, format!("the input's schema of {}: {bad}", self.id))
                .at(Stage::Validate)
        })
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Why a handler cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadHandler {
    /// Its name is none.
    #[error("\"{0}\" is no capability id: a lower-case letter, then at most 63 of a-z 0-9 _ . -")]
    Id(String),
    /// Another one has its name.
    #[error("two handlers are called {0}")]
    Taken(CapabilityId),
    /// Its name is kept for other things.
    #[error("the id {0} is reserved; choose another")]
    Reserved(CapabilityId),
    /// Its input cannot be described: it has to be an object.
    #[error("the input of {id}: {why}")]
    Input {
        /// Which handler.
        id: CapabilityId,
        /// What is wrong with its schema.
        why: String,
    },
    /// Its output cannot be described.
    #[error("the output of {id}: {why}")]
    Output {
        /// Which handler.
        id: CapabilityId,
        /// What is wrong with its schema.
        why: String,
    },
}

/// The handlers of this program, by id.
#[derive(Clone, Debug, Default)]
pub struct Handlers(BTreeMap<CapabilityId, Arc<Handler>>);

impl Handlers {
    /// Returns a registry without any.
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns a registry with those that are built in.
    pub fn builtin() -> Self {
        let handlers = crate::builtin::all().into_iter().map(|handler| {
            let id = handler.id.parse().expect("a built-in handler's id has the shape of one");
            (id, Arc::new(handler.built_in()))
        });
        Self(handlers.collect())
    }

    /// Adds one, and checks all that it declares.
    ///
    /// # Errors
    ///
    /// [`BadHandler`] says what is wrong; nothing was added then.
    pub fn add(&mut self, handler: Handler) -> Result<(), BadHandler> {
        let descriptor = handler.descriptor()?;
        let id = descriptor.id.clone();
        if self.0.contains_key(&id) {
            return Err(BadHandler::Taken(id));
        }
        if reeve_protocol::manifest::is_reserved(&id) {
            return Err(BadHandler::Reserved(id));
        }
        Validator::new(&descriptor.input)
            .map_err(|bad| BadHandler::Input { id: id.clone(), why: bad.to_string() })?;
        if let Some(output) = &descriptor.output {
            input::check_schema(output)
                .map_err(|bad| BadHandler::Output { id: id.clone(), why: bad.to_string() })?;
        }
        self.0.insert(id, Arc::new(handler));
        Ok(())
    }

    /// Returns the handler of this id.
    pub fn get(&self, id: &CapabilityId) -> Option<&Arc<Handler>> {
        self.0.get(id)
    }

    /// Returns whether a handler has this id.
    pub fn contains(&self, id: &CapabilityId) -> bool {
        self.0.contains_key(id)
    }

    /// Returns every id, in order.
    pub fn ids(&self) -> impl Iterator<Item = &CapabilityId> {
        self.0.keys()
    }

    /// Returns what everybody may know of all of them, in the order of their ids.
    pub fn descriptors(&self) -> Vec<Descriptor> {
        self.0.values().filter_map(|handler| handler.descriptor().ok()).collect()
    }
}

/// Returns the schema of what a handler takes; a type's own name is nobody's business.
fn schema_of_input<T: JsonSchema>() -> Value {
    schema_of::<T>(schemars::generate::SchemaSettings::draft2020_12().into_generator())
}

/// Returns the schema of what a handler returns: every member that is always written is required.
fn schema_of_output<T: JsonSchema>() -> Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
    schema_of::<T>(settings.into_generator())
}

fn schema_of<T: JsonSchema>(generator: SchemaGenerator) -> Value {
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    if let Value::Object(members) = &mut schema {
        for name in ["$schema", "title", "description"] {
            members.remove(name);
        }
    }
    schema
}
