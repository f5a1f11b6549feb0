//! From a schema to the parts that a walk needs.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

use super::Node;
use crate::input::{BadSchema, compile_schema};
use crate::strict::shown;

/// Schemas within one schema that has marks, at most.
const NODES_MAX: usize = 10_000;
/// Keywords whose value is data, not a schema.
const DATA: [&str; 5] = ["const", "default", "enum", "example", "examples"];
/// Keywords that only hold schemas for others to refer to.
const HOLDERS: [&str; 2] = ["$defs", "definitions"];
/// Keywords that apply a schema in a way that does not say which value it marks.
const UNDECIDED: [&str; 7] = [
    "not",
    "unevaluatedProperties",
    "unevaluatedItems",
    "propertyNames",
    "contentSchema",
    "additionalItems",
    "dependencies",
];

/// Returns whether anything in a document looks like a mark.
pub(super) fn mentions(schema: &Value) -> bool {
    let mut open = vec![schema];
    while let Some(at) = open.pop() {
        match at {
            Value::Object(members) if marks(members) => return true,
            Value::Object(members) => open.extend(members.values()),
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    false
}

/// Returns whether a schema marks its value.
fn marks(schema: &Map<String, Value>) -> bool {
    let set = |key: &str| schema.get(key).is_some_and(|value| value != &Value::Bool(false));
    schema.get("format").and_then(Value::as_str) == Some("password")
        || set("writeOnly")
        || set("x-reeve-sensitive")
}

/// Divides a schema into nodes, the root first.
pub(super) fn nodes(schema: &Value) -> Result<Vec<Node>, BadSchema> {
    let mut compiler = Compiler { root: schema, ..Compiler::default() };
    compiler.anchors(schema)?;
    compiler.node(schema, "")?;
    while let Some((at, value, pointer)) = compiler.open.pop() {
        compiler.fill(at, value, &pointer)?;
    }
    compiler.live();
    let undecided = compiler.undecided.iter().find(|(target, ..)| compiler.nodes[*target].live);
    if let Some((_, keyword, pointer)) = undecided {
        let message = format!("`{keyword}` leads to a mark, and which value it marks is not known");
        return Err(BadSchema::new(message).at(pointer.clone()));
    }
    Ok(compiler.nodes)
}

struct Compiler<'s> {
    root: &'s Value,
    nodes: Vec<Node>,
    /// The node of each schema, by where it lies in memory.
    known: HashMap<*const Value, usize>,
    anchors: BTreeMap<&'s str, &'s Value>,
    open: Vec<(usize, &'s Value, String)>,
    undecided: Vec<(usize, &'s str, String)>,
}

impl Default for Compiler<'_> {
    fn default() -> Self {
        Self {
            root: &Value::Null,
            nodes: Vec::new(),
            known: HashMap::new(),
            anchors: BTreeMap::new(),
            open: Vec::new(),
            undecided: Vec::new(),
        }
    }
}

fn cannot(pointer: &str, what: &str) -> BadSchema {
    BadSchema::new(format!("{what}, and the schema marks something as sensitive"))
        .at(pointer.to_owned())
}

impl<'s> Compiler<'s> {
    /// Finds the names that references may use. Two schemas of one name are one too many.
    fn anchors(&mut self, schema: &'s Value) -> Result<(), BadSchema> {
        let mut open = vec![schema];
        while let Some(at) = open.pop() {
            let members = match at {
                Value::Object(members) => members,
                Value::Array(items) => {
                    open.extend(items);
                    continue;
                }
                _ => continue,
            };
            for key in ["$anchor", "$dynamicAnchor"] {
                let Some(name) = members.get(key).and_then(Value::as_str) else { continue };
                let before = self.anchors.insert(name, at);
                if before.is_some_and(|before| !std::ptr::eq(before, at)) {
                    let name = shown(name);
                    return Err(cannot("", &format!("two schemas have the name {name:?}")));
                }
            }
            open.extend(
                members.iter().filter(|(key, _)| !DATA.contains(&key.as_str())).map(|it| it.1),
            );
        }
        Ok(())
    }

    /// Returns the node of a schema; it is filled later.
    fn node(&mut self, schema: &'s Value, pointer: &str) -> Result<usize, BadSchema> {
        if let Some(at) = self.known.get(&std::ptr::from_ref(schema)) {
            return Ok(*at);
        }
        if self.nodes.len() == NODES_MAX {
            let message = format!("more than {NODES_MAX} schemas in one that marks something");
            return Err(BadSchema::new(message).at(pointer.to_owned()));
        }
        let at = self.nodes.len();
        self.nodes.push(Node::default());
        self.known.insert(std::ptr::from_ref(schema), at);
        self.open.push((at, schema, pointer.to_owned()));
        Ok(at)
    }

    fn fill(&mut self, at: usize, schema: &'s Value, pointer: &str) -> Result<(), BadSchema> {
        let members = match schema {
            Value::Object(members) => members,
            Value::Bool(_) => return Ok(()),
            _ => return Err(cannot(pointer, "here is no schema")),
        };
        if members.contains_key("$id") && !std::ptr::eq(schema, self.root) {
            return Err(cannot(pointer, "an `$id` moves the references below it"));
        }
        let mut node = Node { marked: marks(members), ..Node::default() };
        for (key, value) in members {
            let place = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
            self.keyword(&mut node, key, value, &place)?;
        }
        self.nodes[at] = node;
        Ok(())
    }

    fn keyword(
        &mut self,
        node: &mut Node,
        key: &'s str,
        value: &'s Value,
        place: &str,
    ) -> Result<(), BadSchema> {
        match (key, value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(target)) => {
                let target = self.target(target).ok_or_else(|| {
                    cannot(place, &format!("the reference {:?} is not followed", shown(target)))
                })?;
                node.beside.push(self.node(target, place)?);
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => {
                node.beside.extend(self.all(schemas.iter().enumerate(), place)?);
            }
            ("if" | "then" | "else", schema) => node.beside.push(self.node(schema, place)?),
            ("dependentSchemas", Value::Object(schemas)) => {
                node.beside.extend(self.all(schemas, place)?);
            }
            ("properties", Value::Object(schemas)) => {
                let targets = self.all(schemas, place)?;
                node.properties = schemas.keys().cloned().zip(targets).collect();
            }
            ("patternProperties", Value::Object(schemas)) => {
                for (pattern, target) in schemas.keys().zip(self.all(schemas, place)?) {
                    let rule = serde_json::json!({ "pattern": pattern });
                    node.patterns.push((compile_schema(&rule)?, target));
                }
            }
            ("additionalProperties", schema) => node.additional = Some(self.node(schema, place)?),
            ("prefixItems" | "items", Value::Array(schemas)) => {
                node.prefix = self.all(schemas.iter().enumerate(), place)?;
            }
            ("items", schema) => node.items = Some(self.node(schema, place)?),
            ("contains", schema) => node.contains = Some(self.node(schema, place)?),
            ("dependencies", Value::Object(schemas)) => {
                for schema in schemas.values().filter(|schema| !schema.is_array()) {
                    let target = self.node(schema, place)?;
                    self.undecided.push((target, key, place.to_owned()));
                }
            }
            (key, schema) if UNDECIDED.contains(&key) => {
                let target = self.node(schema, place)?;
                self.undecided.push((target, key, place.to_owned()));
            }
            (key, _) if DATA.contains(&key) || HOLDERS.contains(&key) => {}
            (key, other) if mentions(other) => {
                let key = shown(key);
                let message =
                    format!("`{key}` is no keyword that is followed, and it holds a mark");
                return Err(BadSchema::new(message).at(place.to_owned()));
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the nodes of several schemas, in their order.
    fn all<K: std::fmt::Display>(
        &mut self,
        schemas: impl IntoIterator<Item = (K, &'s Value)>,
        place: &str,
    ) -> Result<Vec<usize>, BadSchema> {
        let nodes = schemas.into_iter().map(|(key, schema)| {
            let key = key.to_string().replace('~', "~0").replace('/', "~1");
            self.node(schema, &format!("{place}/{key}"))
        });
        nodes.collect()
    }

    /// Follows a reference within the schema: by pointer or by name.
    fn target(&self, reference: &str) -> Option<&'s Value> {
        let fragment = decoded(reference.strip_prefix('#')?)?;
        if fragment.is_empty() || fragment.starts_with('/') {
            self.root.pointer(&fragment)
        } else {
            self.anchors.get(fragment.as_str()).copied()
        }
    }

    /// Finds out from where a mark can be reached.
    fn live(&mut self) {
        let mut from: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            node.targets().for_each(|target| from[target].push(at));
        }
        let marked = self.nodes.iter().enumerate().filter(|(_, node)| node.marked);
        let mut open: Vec<usize> = marked.map(|(at, _)| at).collect();
        while let Some(at) = open.pop() {
            if !std::mem::replace(&mut self.nodes[at].live, true) {
                open.extend_from_slice(&from[at]);
            }
        }
    }
}

impl Node {
    fn targets(&self) -> impl Iterator<Item = usize> {
        let lists = self.beside.iter().chain(self.properties.values()).chain(&self.prefix);
        let patterns = self.patterns.iter().map(|(_, target)| target);
        let single = [&self.additional, &self.items, &self.contains].into_iter().flatten();
        lists.chain(patterns).chain(single).copied()
    }
}

/// Resolves the percent signs of a reference.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let digits = std::str::from_utf8(after.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}
