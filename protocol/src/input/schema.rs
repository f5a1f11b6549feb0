//! What a schema says about itself: its size, its references, its defaults.

use std::collections::HashMap;
use std::fmt;

use serde_json::{Map, Value, json};

use crate::frame::DEPTH_MAX;

/// Bytes of a schema as compact JSON, at most.
pub const SCHEMA_BYTES_MAX: usize = 64 << 10;
/// References in one schema, at most.
pub const SCHEMA_REFS_MAX: usize = 256;
/// Values in a schema with every reference written out, at most.
const UNFOLDED_MAX: u64 = 100_000;

/// Why a schema is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSchema {
    message: String,
    pointer: String,
}

impl BadSchema {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), pointer: String::new() }
    }

    pub(crate) fn at(mut self, pointer: String) -> Self {
        self.pointer = pointer;
        self
    }

    /// Returns where in the schema, as a JSON Pointer; empty where that is not known.
    pub fn pointer(&self) -> &str {
        &self.pointer
    }
}

impl fmt::Display for BadSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.pointer.is_empty() {
            write!(f, " at {}", self.pointer)?;
        }
        Ok(())
    }
}

impl std::error::Error for BadSchema {}

/// Keywords that may apply several schemas to one value.
const BRANCHES: [&str; 9] = [
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "contains",
    "dependentSchemas",
    "patternProperties",
    "unevaluatedProperties",
];

/// Follows a reference within the schema.
pub(super) fn resolve<'s>(root: &'s Value, reference: &str) -> Option<&'s Value> {
    let pointer = reference.strip_prefix('#')?;
    if pointer.is_empty() || pointer.starts_with('/') { root.pointer(pointer) } else { None }
}

/// Refuses a schema that costs too much to look at.
pub(super) fn bounded(schema: &Value) -> Result<Detail, BadSchema> {
    let mut open = vec![(1_usize, schema)];
    let mut references = 0;
    let mut branches = false;
    while let Some((depth, at)) = open.pop() {
        if depth > DEPTH_MAX {
            return Err(BadSchema::new(format!("nested deeper than {DEPTH_MAX}")));
        }
        match at {
            Value::Array(items) => open.extend(items.iter().map(|item| (depth + 1, item))),
            Value::Object(members) => {
                for (key, value) in members {
                    branches |= BRANCHES.contains(&key.as_str());
                    if let Some(target) = reference(key, value) {
                        references += 1;
                        local(target)?;
                    }
                    open.push((depth + 1, value));
                }
            }
            _ => {}
        }
    }
    if references > SCHEMA_REFS_MAX {
        let message = format!("{references} references; at most {SCHEMA_REFS_MAX} are taken");
        return Err(BadSchema::new(message));
    }
    let bytes = serde_json::to_vec(schema).map_or(usize::MAX, |bytes| bytes.len());
    if bytes > SCHEMA_BYTES_MAX {
        let message = format!("{bytes} bytes as JSON; at most {SCHEMA_BYTES_MAX} are taken");
        return Err(BadSchema::new(message));
    }
    let mut unfold = Unfold { root: schema, sizes: HashMap::new(), circular: false };
    if unfold.size(schema) > UNFOLDED_MAX {
        return Err(BadSchema::new("its references unfold to more than can be checked"));
    }
    Ok(if unfold.circular && branches { Detail::None } else { Detail::Full })
}

/// How much can be said about an input that a schema does not let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// Every problem.
    Full,
    /// That there is one. Where a schema that refers to itself offers alternatives, the work of
    /// listing problems doubles with every level of the input; to find that there is one does not.
    None,
}

fn reference<'s>(key: &str, value: &'s Value) -> Option<&'s str> {
    if matches!(key, "$ref" | "$dynamicRef") { value.as_str() } else { None }
}

fn local(target: &str) -> Result<(), BadSchema> {
    if target.starts_with('#') || target.starts_with("https://json-schema.org/draft/2020-12/") {
        return Ok(());
    }
    let target = crate::strict::shown(target);
    Err(BadSchema::new(format!("the reference {target:?} leaves the schema; nothing is fetched")))
}

/// Counts the values of a schema with every reference written out.
struct Unfold<'s> {
    root: &'s Value,
    /// The size of each target; nothing while it is being written out.
    sizes: HashMap<&'s str, Option<u64>>,
    /// Something refers to what it is part of.
    circular: bool,
}

impl<'s> Unfold<'s> {
    /// Recurses through at most [`SCHEMA_REFS_MAX`] references, each within [`DEPTH_MAX`].
    fn size(&mut self, at: &'s Value) -> u64 {
        let mut size = 1_u64;
        match at {
            Value::Array(items) => {
                for item in items {
                    size = size.saturating_add(self.size(item));
                }
            }
            Value::Object(members) => {
                for (key, value) in members {
                    let more = match reference(key, value) {
                        Some(target) => self.target(target),
                        None => self.size(value),
                    };
                    size = size.saturating_add(more);
                }
            }
            _ => {}
        }
        size
    }

    fn target(&mut self, target: &'s str) -> u64 {
        match self.sizes.get(target) {
            Some(Some(size)) => return *size,
            Some(None) => {
                // Counts nothing: the input ends such a circle.
                self.circular = true;
                return 0;
            }
            None => drop(self.sizes.insert(target, None)),
        }
        let size = match resolve(self.root, target) {
            Some(at) => self.size(at),
            None => {
                // An anchor may be anywhere.
                self.circular = true;
                0
            }
        };
        self.sizes.insert(target, Some(size));
        size
    }
}

/// Refuses a schema that lets anything but an object through.
pub(super) fn of_object(schema: &Value) -> Result<(), BadSchema> {
    match schema.get("type") {
        Some(Value::String(kind)) if kind == "object" => Ok(()),
        _ => Err(BadSchema::new("an input is an object: `type` must be \"object\"")),
    }
}

/// Returns the defaults of the members at the top.
pub(super) fn defaults(schema: &Value) -> Map<String, Value> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return Map::new();
    };
    properties
        .iter()
        .filter_map(|(name, schema)| Some((name.clone(), schema.get("default")?.clone())))
        .collect()
}

/// Completes the schema of an input as it is written in a manifest.
///
/// `type` is `"object"` where it is missing, and members that are not declared are refused where
/// the schema does not say otherwise: by `additionalProperties`, or by `unevaluatedProperties`
/// where other schemas may declare members too.
///
/// # Errors
///
/// [`BadSchema`] when it is no table of keywords or of another type.
pub fn closed(schema: Value) -> Result<Value, BadSchema> {
    let Value::Object(mut members) = schema else {
        return Err(BadSchema::new("a schema is a table of keywords"));
    };
    members.entry("type").or_insert_with(|| json!("object"));
    let says = |key: &str| members.contains_key(key);
    if !says("additionalProperties") && !says("unevaluatedProperties") {
        let applies = ["$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"];
        let keyword = if applies.iter().any(|key| says(key)) {
            "unevaluatedProperties"
        } else {
            "additionalProperties"
        };
        members.insert(keyword.to_owned(), Value::Bool(false));
    }
    let schema = Value::Object(members);
    of_object(&schema)?;
    Ok(schema)
}
