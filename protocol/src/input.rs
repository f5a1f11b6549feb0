//! Inputs: what a capability's schema lets through, and how it becomes arguments.
//!
//! A schema is compiled once, when its capability is registered, and answers every call from
//! then on. Patterns run in linear time and no reference leaves the schema. A value of a schema
//! that marks anything as sensitive is never quoted back. Never starts anything.

mod argv;
mod schema;
mod text;

use std::fmt;
use std::sync::{Arc, OnceLock};

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError};
use serde_json::{Map, Value};

use crate::capability::Descriptor;
use crate::fault::{Code, Fault, Problem, Stage};
use crate::redact::{Sensitive, Withheld};
use crate::strict::clipped;

pub(crate) use argv::nearest;
pub use argv::{ARGUMENT_MAX, ARGUMENTS_MAX, BadTemplate, Template, argv};
use schema::Detail;
pub use schema::{BadSchema, SCHEMA_BYTES_MAX, SCHEMA_REFS_MAX, closed};
pub use text::of_text;

/// Problems named in one refusal, at most.
pub const PROBLEMS_MAX: usize = 5;
/// Characters of a value beside what it might have been, at most.
const VALUE_CHARS_MAX: usize = 100;
/// Characters of one problem, at most.
const PROBLEM_CHARS_MAX: usize = 240;

/// The compiled schema of one capability's input. Cheap to clone.
#[derive(Clone)]
pub struct Validator(Arc<Compiled>);

struct Compiled {
    schema: Value,
    defaults: Map<String, Value>,
    sensitive: Sensitive,
    detail: Detail,
    /// Compiled when it is first needed; at once, unless the schema only says "nothing".
    validator: OnceLock<jsonschema::Validator>,
}

impl Validator {
    /// Compiles a schema of an object.
    ///
    /// # Errors
    ///
    /// [`BadSchema`] when the schema is too large or too deep, is none, refers to anything
    /// outside of itself, has a default that it does not allow, or marks something as sensitive
    /// where that cannot be followed.
    pub fn new(schema: &Value) -> Result<Self, BadSchema> {
        let detail = schema::bounded(schema)?;
        schema::of_object(schema)?;
        let validator = if takes_nothing(schema) {
            OnceLock::new()
        } else {
            OnceLock::from(compile_schema(schema)?)
        };
        let defaults = schema::defaults(schema);
        let compiled = Compiled {
            schema: schema.clone(),
            sensitive: Sensitive::new(schema)?,
            defaults,
            detail,
            validator,
        };
        compiled.check_defaults()?;
        Ok(Self(Arc::new(compiled)))
    }

    /// Returns the schema as it was given.
    pub fn schema(&self) -> &Value {
        &self.0.schema
    }

    /// Returns what the schema marks as sensitive.
    pub fn sensitive(&self) -> &Sensitive {
        &self.0.sensitive
    }

    /// Divides an input that was validated into what everybody may see and its secrets.
    pub fn withhold(&self, input: &Value) -> Withheld {
        self.0.sensitive.withhold(input)
    }

    /// Completes an input by the schema's defaults and checks it.
    ///
    /// Nothing (`null`) counts as an object without members. Defaults are those of the members
    /// at the top; a member that is there, even as `null`, is left as it is.
    ///
    /// # Errors
    ///
    /// `INVALID_PARAMS` with at most [`PROBLEMS_MAX`] problems, each with its place; with the
    /// reason `secret_too_short`, `secret_too_long` or `too_many_secrets` where an output could not
    /// be kept free of a secret.
    pub fn validate(&self, input: Value) -> Result<Value, Fault> {
        let mut input = if input.is_null() { Value::Object(Map::new()) } else { input };
        if let Value::Object(members) = &mut input {
            for (name, value) in &self.0.defaults {
                members.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        // The common cases first: the others are some ten times dearer.
        let nothing = input.as_object().is_some_and(Map::is_empty) && takes_nothing(&self.0.schema);
        if nothing || self.0.validator().is_valid(&input) {
            self.0.sensitive.check(&input)?;
            return Ok(input);
        }
        Err(self.refusal(&input))
    }

    fn refusal(&self, input: &Value) -> Fault {
        if self.0.detail == Detail::None {
            let message = "the input does not match the schema, which refers to itself".to_owned();
            return invalid(vec![Problem { pointer: String::new(), message }]);
        }
        let masked = self.0.sensitive.any();
        let problems: Vec<Problem> = self
            .0
            .validator()
            .iter_errors(input)
            .take(PROBLEMS_MAX)
            .map(|error| {
                let error = meant(&error);
                let place = error.instance_path().as_str();
                if let Some(pointer) = self.0.sensitive.withheld_on(place) {
                    // Nothing from here on is told: names of members, too, are part of the value.
                    let rule = error.schema_path().as_str().rsplit('/').next().unwrap_or_default();
                    let message = format!("a withheld value does not match its schema ({rule})");
                    return Problem { pointer: clipped(&pointer, 200), message };
                }
                let mut options = Vec::new();
                let whole = match options_of(error, &mut options) {
                    true => none_of(error, &options, masked),
                    false if masked => error.masked().to_string(),
                    false => error.to_string(),
                };
                let message = if whole.chars().nth(PROBLEM_CHARS_MAX).is_some() && !masked {
                    // A value this long says nothing; the kind of problem does.
                    clipped(&error.masked().to_string(), PROBLEM_CHARS_MAX)
                } else {
                    clipped(&whole, PROBLEM_CHARS_MAX)
                };
                Problem { pointer: clipped(place, 200), message }
            })
            .collect();
        invalid(problems)
    }
}

/// Returns what is wrong with a value of which only one alternative of its schema can be meant:
/// the others, such as the `null` of what may be left out, take values of another type.
fn meant<'e>(error: &'e ValidationError<'_>) -> &'e ValidationError<'e> {
    let (ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context }) =
        error.kind()
    else {
        return error;
    };
    let here = error.instance_path();
    let is_of_another_type = |wrong: &ValidationError<'_>| {
        matches!(wrong.kind(), ValidationErrorKind::Type { .. }) && wrong.instance_path() == here
    };
    let mut branches = context.iter().filter(|branch| !branch.iter().any(is_of_another_type));
    match (branches.next(), branches.next()) {
        (Some(only), None) => only.first().map_or(error, meant),
        _ => error,
    }
}

/// Collects the values that might have been there; returns whether they are all that might.
fn options_of(error: &ValidationError<'_>, options: &mut Vec<String>) -> bool {
    let here = error.instance_path();
    match error.kind() {
        ValidationErrorKind::Enum { options: all } => {
            options.extend(all.as_array().into_iter().flatten().map(Value::to_string));
            true
        }
        ValidationErrorKind::Constant { expected_value } => {
            options.push(expected_value.to_string());
            true
        }
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
            context.iter().all(|branch| {
                branch
                    .iter()
                    .any(|wrong| wrong.instance_path() == here && options_of(wrong, options))
            })
        }
        _ => false,
    }
}

/// Says which values there are; that of the input is left out where it may be a secret.
fn none_of(error: &ValidationError<'_>, options: &[String], masked: bool) -> String {
    let value = if masked {
        "value".to_owned()
    } else {
        clipped(&error.instance().to_string(), VALUE_CHARS_MAX)
    };
    format!("{value} is not one of {}", options.join(", "))
}

/// Returns whether a schema is that of a capability without an input.
///
/// Most have none, and compiling a schema costs more than starting a process.
fn takes_nothing(schema: &Value) -> bool {
    let says = |key: &str, value: Value| schema.get(key) == Some(&value);
    schema.as_object().is_some_and(|members| members.len() == 2)
        && says("type", Value::from("object"))
        && says("additionalProperties", Value::from(false))
}

impl Compiled {
    fn validator(&self) -> &jsonschema::Validator {
        self.validator.get_or_init(|| {
            compile_schema(&self.schema)
                .expect("a schema that is not compiled yet says nothing wrong")
        })
    }

    /// Checks that every default is allowed where it would be put.
    fn check_defaults(&self) -> Result<(), BadSchema> {
        if self.defaults.is_empty() || self.detail == Detail::None {
            return Ok(());
        }
        let input = Value::Object(self.defaults.clone());
        let wrong = self.validator().iter_errors(&input).find_map(|error| {
            let place = error.instance_path().as_str().to_owned();
            (!place.is_empty()).then(|| (place, error.masked().to_string()))
        });
        match wrong {
            Some((place, message)) => {
                Err(BadSchema::new(format!("the default of {place} is not allowed: {message}")))
            }
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Validator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Validator").field(&self.0.schema).finish()
    }
}

impl PartialEq for Validator {
    fn eq(&self, other: &Self) -> bool {
        self.0.schema == other.0.schema
    }
}

/// Checks that a schema, of anything, is one that can be compiled.
///
/// # Errors
///
/// [`BadSchema`] as for [`Validator::new`], but for the demand that it be of an object.
pub fn check_schema(schema: &Value) -> Result<(), BadSchema> {
    let _ = schema::bounded(schema)?;
    compile_schema(schema).map(drop)
}

/// Compiles a schema; nothing is ever fetched.
pub(crate) fn compile_schema(schema: &Value) -> Result<jsonschema::Validator, BadSchema> {
    // A small program for each pattern, so that none can ask for much memory.
    let patterns = PatternOptions::regex().size_limit(1 << 20).dfa_size_limit(1 << 20);
    jsonschema::options()
        .with_draft(jsonschema::Draft::Draft202012)
        .offline()
        .with_pattern_options(patterns)
        .build(schema)
        .map_err(|error| {
            let place = error.instance_path().as_str().to_owned();
            BadSchema::new(clipped(&error.to_string(), PROBLEM_CHARS_MAX)).at(place)
        })
}

/// Makes the refusal of an input out of what is wrong with it.
fn invalid(problems: Vec<Problem>) -> Fault {
    let told: Vec<String> = problems
        .iter()
        .map(|problem| match problem.pointer.as_str() {
            "" => problem.message.clone(),
            pointer => format!("{pointer}: {}", problem.message),
        })
        .collect();
    let mut fault = Fault::new(Code::InvalidParams, format!("invalid input: {}", told.join("; ")))
        .at(Stage::Validate);
    fault.problems = problems;
    fault
}

/// What a call of a capability needs ready: its compiled schema and its argv template.
#[derive(Clone, Debug, PartialEq)]
pub struct Ready {
    /// Checks inputs.
    pub validator: Validator,
    /// Makes arguments, where the capability is a process.
    pub template: Option<Template>,
}

/// Why a descriptor cannot be made ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// Its input's schema is wrong.
    #[error("the input's schema: {0}")]
    Schema(#[from] BadSchema),
    /// Its command is wrong.
    #[error("the command: {0}")]
    Command(#[from] BadTemplate),
}

impl Ready {
    /// Compiles what a descriptor declares.
    ///
    /// # Errors
    ///
    /// [`NotReady`] names the first thing that is wrong.
    pub fn new(descriptor: &Descriptor) -> Result<Self, NotReady> {
        let validator = Validator::new(&descriptor.input)?;
        let template = match &descriptor.process {
            Some(process) => Some(
                Template::new(&process.command, &descriptor.input)
                    .map_err(|mut errors| errors.remove(0))?,
            ),
            None => None,
        };
        Ok(Self { validator, template })
    }
}

#[cfg(test)]
mod tests;
