//! What a schema says about itself: its size, its defaults, what it marks as sensitive.

use std::collections::{BTreeSet, HashMap, HashSet};
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
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), pointer: String::new() }
    }

    pub(super) fn at(mut self, pointer: String) -> Self {
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

/// What a schema marks as sensitive: `format: "password"`, `writeOnly`, `x-reeve-sensitive`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sensitive {
    /// Members at the top that are, or hold, something marked.
    names: BTreeSet<String>,
    /// Something is marked whose member has no name of its own.
    anywhere: bool,
}

impl Sensitive {
    /// Returns whether anything is marked.
    pub fn any(&self) -> bool {
        self.anywhere || !self.names.is_empty()
    }

    /// Returns whether the member `name` at the top may hold something marked.
    pub fn covers(&self, name: &str) -> bool {
        self.anywhere || self.names.contains(name)
    }
}

/// Keywords whose value is data, not a schema.
const DATA: [&str; 5] = ["const", "default", "enum", "example", "examples"];
/// Keywords whose value maps free names to schemas.
const NAMED: [&str; 4] = ["patternProperties", "dependentSchemas", "$defs", "definitions"];

/// Finds what a schema marks as sensitive, through every way in which one schema applies another.
///
/// What cannot be followed counts as marked when anything in the schema is.
pub fn sensitive(schema: &Value) -> Sensitive {
    let mut found = Sensitive::default();
    let mut seen: HashSet<(Option<&str>, *const Value)> = HashSet::new();
    let mut open: Vec<(Option<&str>, &Value)> = vec![(None, schema)];
    while let Some((name, at)) = open.pop() {
        if !seen.insert((name, std::ptr::from_ref(at))) {
            continue;
        }
        let members = match at {
            Value::Object(members) => members,
            Value::Array(items) => {
                open.extend(items.iter().map(|item| (name, item)));
                continue;
            }
            _ => continue,
        };
        if marks(members) {
            match name {
                Some(name) => drop(found.names.insert(name.to_owned())),
                None => found.anywhere = true,
            }
        }
        for (key, value) in members {
            follow(schema, name, key, value, &mut open);
        }
    }
    found
}

/// Puts the schemas that a keyword applies on the list of what is still to be looked at.
fn follow<'s>(
    root: &'s Value,
    name: Option<&'s str>,
    key: &'s str,
    value: &'s Value,
    open: &mut Vec<(Option<&'s str>, &'s Value)>,
) {
    match (key, value) {
        ("$defs" | "definitions", _) => {} // Looked at where something refers to them.
        ("$ref" | "$dynamicRef", Value::String(target)) => {
            let target = resolve(root, target);
            open.push((name, target.unwrap_or(root)));
            if target.is_none()
                && let Some(definitions) = root.get("$defs").and_then(Value::as_object)
            {
                open.extend(definitions.values().map(|definition| (name, definition)));
            }
        }
        ("properties", Value::Object(properties)) => {
            open.extend(properties.iter().map(|(key, value)| (name.or(Some(key)), value)));
        }
        (_, Value::Object(schemas)) if NAMED.contains(&key) => {
            open.extend(schemas.values().map(|schema| (name, schema)));
        }
        _ if DATA.contains(&key) => {}
        _ => open.push((name, value)),
    }
}

fn marks(schema: &Map<String, Value>) -> bool {
    let set = |key: &str| schema.get(key).is_some_and(|value| value != &Value::Bool(false));
    schema.get("format").and_then(Value::as_str) == Some("password")
        || set("writeOnly")
        || set("x-reeve-sensitive")
}

/// Follows a reference within the schema.
pub(super) fn resolve<'s>(root: &'s Value, reference: &str) -> Option<&'s Value> {
    let pointer = reference.strip_prefix('#')?;
    if pointer.is_empty() || pointer.starts_with('/') { root.pointer(pointer) } else { None }
}

/// Refuses a schema that costs too much to look at.
pub(super) fn bounded(schema: &Value) -> Result<(), BadSchema> {
    let mut open = vec![(1_usize, schema)];
    let mut references = 0;
    while let Some((depth, at)) = open.pop() {
        if depth > DEPTH_MAX {
            return Err(BadSchema::new(format!("nested deeper than {DEPTH_MAX}")));
        }
        match at {
            Value::Array(items) => open.extend(items.iter().map(|item| (depth + 1, item))),
            Value::Object(members) => {
                for (key, value) in members {
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
    let mut sizes = HashMap::new();
    if unfolded(schema, schema, &mut sizes) > UNFOLDED_MAX {
        return Err(BadSchema::new("its references unfold to more than can be checked"));
    }
    Ok(())
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

/// Counts the values of a schema with every reference written out; one that is being written
/// out already counts nothing, because the instance ends such a circle.
///
/// Recurses through at most [`SCHEMA_REFS_MAX`] references, each within [`DEPTH_MAX`].
fn unfolded(root: &Value, at: &Value, sizes: &mut HashMap<String, u64>) -> u64 {
    let size = match at {
        Value::Array(items) => {
            items.iter().fold(0_u64, |sum, item| sum.saturating_add(unfolded(root, item, sizes)))
        }
        Value::Object(members) => members.iter().fold(0_u64, |sum, (key, value)| {
            let size = match reference(key, value) {
                Some(target) => target_size(root, target, sizes),
                None => unfolded(root, value, sizes),
            };
            sum.saturating_add(size)
        }),
        _ => 0,
    };
    size.saturating_add(1)
}

fn target_size(root: &Value, target: &str, sizes: &mut HashMap<String, u64>) -> u64 {
    if let Some(size) = sizes.get(target) {
        return *size;
    }
    sizes.insert(target.to_owned(), 0);
    let size = resolve(root, target).map_or(0, |at| unfolded(root, at, sizes));
    sizes.insert(target.to_owned(), size);
    size
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
