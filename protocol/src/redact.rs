//! Redaction: which parts of an input nobody but its handler may see.
//!
//! A schema marks a value by `format: "password"`, `writeOnly: true` or `x-reeve-sensitive: true`;
//! a field's name means nothing. A marked value is replaced whole. The schema is followed wherever
//! one schema applies another to a value, and every alternative counts: what *may* be marked is
//! withheld. A schema with marks that cannot be followed is refused when it is declared, so that
//! no call ever depends on a guess.

mod compile;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::fault::{Code, Fault, Problem, Stage};
use crate::input::BadSchema;
use crate::secret::{SECRET_MIN, SECRETS_COUNT_MAX, SECRETS_MAX, Secret};

/// Steps of one walk; what is left after them counts as marked.
const STEPS_MAX: usize = 4_000_000;

/// What stands in place of a secret within a text.
pub const MARKER: &str = "[redacted]";

/// Returns what stands in place of a value that is withheld.
pub fn withheld() -> Value {
    json!({ "redacted": true })
}

/// Returns whether a schema may mark anything: cheap, and true rather too often.
pub fn has_marks(schema: &Value) -> bool {
    compile::mentions(schema)
}

/// Returns an input as its schema lets everybody see it; nothing of it where the schema cannot be
/// followed.
pub fn shown(schema: &Value, input: &Value) -> Value {
    Sensitive::new(schema).map_or_else(|_| withheld(), |marks| marks.withhold(input).shown)
}

/// An input divided into what everybody may see and what only its handler may.
#[derive(Clone, Debug, PartialEq)]
pub struct Withheld {
    /// The input, every marked value replaced by [`withheld`], and by [`MARKER`] wherever its texts
    /// stand in another value.
    pub shown: Value,
    /// The texts inside of what was replaced, each once.
    pub secrets: Vec<Secret>,
}

/// What a schema marks as sensitive, ready to be looked for in inputs.
#[derive(Debug, Default)]
pub struct Sensitive {
    /// The schema's parts; the first one is its root. Empty where nothing is marked.
    nodes: Vec<Node>,
}

/// One schema within a schema: to which others it leads.
#[derive(Debug, Default)]
struct Node {
    /// Whether the value itself is withheld.
    marked: bool,
    /// Whether anything here or below may be.
    live: bool,
    /// Schemas of the same value, whichever of them applies.
    beside: Vec<usize>,
    properties: BTreeMap<String, usize>,
    patterns: Vec<(jsonschema::Validator, usize)>,
    /// Of members that are neither of the two.
    additional: Option<usize>,
    prefix: Vec<usize>,
    /// Of items after the prefix.
    items: Option<usize>,
    contains: Option<usize>,
}

impl Sensitive {
    /// Compiles the marks of a schema.
    ///
    /// # Errors
    ///
    /// [`BadSchema`] when anything is marked and the schema applies itself in a way that cannot be
    /// followed.
    pub fn new(schema: &Value) -> Result<Self, BadSchema> {
        if !compile::mentions(schema) {
            return Ok(Self::default());
        }
        let nodes = compile::nodes(schema)?;
        Ok(if nodes[0].live { Self { nodes } } else { Self::default() })
    }

    /// Returns whether anything is marked.
    pub fn any(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Returns whether the member `name` at the top is, holds or may be something marked.
    pub fn covers(&self, name: &str) -> bool {
        if !self.any() {
            return false;
        }
        let mut walk = Walk::new(self);
        let top = walk.top();
        walk.is_marked(&top) || !walk.member(&top, name).is_empty()
    }

    /// Divides an input.
    pub fn withhold(&self, input: &Value) -> Withheld {
        if !self.any() {
            return Withheld { shown: input.clone(), secrets: Vec::new() };
        }
        let mut walk = Walk::new(self);
        let top = walk.top();
        let mut shown = walk.shown(input, &top);
        let texts: BTreeSet<&str> = walk.found.iter().map(|(text, _)| *text).collect();
        take_out(&mut shown, &texts);
        Withheld { shown, secrets: texts.into_iter().map(Secret::new).collect() }
    }

    /// Checks that what is to be withheld can be: found again in an output.
    ///
    /// # Errors
    ///
    /// `INVALID_PARAMS` with the reason `secret_too_short`, `secret_too_long` or `too_many_secrets`;
    /// tells the places, never a value.
    pub(crate) fn check(&self, input: &Value) -> Result<(), Fault> {
        if !self.any() {
            return Ok(());
        }
        let mut walk = Walk::new(self);
        let top = walk.top();
        drop(walk.shown(input, &top));
        if let Some((_, pointer)) = walk.found.iter().find(|(text, _)| text.len() < SECRET_MIN) {
            let message = format!("a secret has at least {SECRET_MIN} bytes");
            return Err(unfit("secret_too_short", pointer.clone(), message));
        }
        let bytes: usize = walk.found.iter().map(|(text, _)| text.len()).sum();
        if bytes > SECRETS_MAX {
            let message =
                format!("{bytes} bytes of secrets; a call takes at most {SECRETS_MAX} together");
            return Err(unfit("secret_too_long", String::new(), message));
        }
        let count = walk.found.len();
        if count > SECRETS_COUNT_MAX {
            let message = format!("{count} secrets; a call takes at most {SECRETS_COUNT_MAX}");
            return Err(unfit("too_many_secrets", String::new(), message));
        }
        Ok(())
    }

    /// Returns the place of the outermost withheld value on the way to `pointer`.
    pub(crate) fn withheld_on(&self, pointer: &str) -> Option<String> {
        if !self.any() {
            return None;
        }
        let mut walk = Walk::new(self);
        let mut set = walk.top();
        let mut at = String::new();
        for part in pointer.split('/').skip(1) {
            if walk.is_marked(&set) {
                return Some(at);
            }
            at.push('/');
            at.push_str(part);
            let name = part.replace("~1", "/").replace("~0", "~");
            // A number may be a member's name or an item's position; what may be, is.
            let mut next = walk.member(&set, &name);
            if let Ok(position) = name.parse() {
                next.extend(walk.item(&set, position));
            }
            set = next;
        }
        walk.is_marked(&set).then_some(at)
    }
}

/// Takes secrets out of the texts that are shown: an address may repeat its password.
fn take_out(shown: &mut Value, secrets: &BTreeSet<&str>) {
    match shown {
        Value::String(text) => {
            // The longest first: one secret may be part of another.
            let mut found: Vec<&str> = secrets
                .iter()
                .copied()
                .filter(|secret| secret.len() >= SECRET_MIN && text.contains(secret))
                .collect();
            found.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
            for secret in found {
                *text = text.replace(secret, MARKER);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| take_out(item, secrets)),
        Value::Object(members) => members.values_mut().for_each(|item| take_out(item, secrets)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn unfit(reason: &str, pointer: String, message: String) -> Fault {
    let place = if pointer.is_empty() { String::new() } else { format!("{pointer}: ") };
    let fault = Fault::new(Code::InvalidParams, format!("invalid input: {place}{message}"));
    let mut fault = fault.at(Stage::Validate).because(reason);
    fault.problems = vec![Problem { pointer, message }];
    fault
}

/// One walk through an input, the schemas of each value beside it.
struct Walk<'s, 'v> {
    nodes: &'s [Node],
    /// In which round each node was last taken.
    seen: Vec<u32>,
    round: u32,
    steps: usize,
    /// The texts that are withheld, each with the place of what it was withheld with.
    found: Vec<(&'v str, String)>,
    at: Vec<String>,
}

impl<'s, 'v> Walk<'s, 'v> {
    fn new(sensitive: &'s Sensitive) -> Self {
        let nodes = sensitive.nodes.as_slice();
        let seen = vec![0; nodes.len()];
        Self { nodes, seen, round: 0, steps: 0, found: Vec::new(), at: Vec::new() }
    }

    /// Returns every live schema that may apply to the whole input.
    fn top(&mut self) -> Vec<usize> {
        self.closed(vec![0])
    }

    /// Adds whatever applies beside these schemas; keeps only what leads to a mark.
    fn closed(&mut self, start: Vec<usize>) -> Vec<usize> {
        self.round += 1;
        let mut set = Vec::new();
        let mut open = start;
        while let Some(at) = open.pop() {
            self.steps += 1;
            if self.nodes[at].live && self.seen[at] != self.round {
                self.seen[at] = self.round;
                set.push(at);
                open.extend_from_slice(&self.nodes[at].beside);
            }
        }
        set
    }

    fn is_marked(&self, set: &[usize]) -> bool {
        self.steps > STEPS_MAX || set.iter().any(|at| self.nodes[*at].marked)
    }

    /// Returns what applies to a member.
    fn member(&mut self, set: &[usize], name: &str) -> Vec<usize> {
        let mut next = Vec::new();
        for node in set.iter().map(|at| &self.nodes[*at]) {
            let declared = node.properties.get(name).copied();
            let before = next.len();
            next.extend(declared);
            for (pattern, target) in &node.patterns {
                self.steps += 1;
                if pattern.is_valid(&Value::from(name)) {
                    next.push(*target);
                }
            }
            if next.len() == before {
                next.extend(node.additional);
            }
        }
        self.closed(next)
    }

    /// Returns what applies to an item.
    fn item(&mut self, set: &[usize], position: usize) -> Vec<usize> {
        let mut next = Vec::new();
        for node in set.iter().map(|at| &self.nodes[*at]) {
            next.extend(node.prefix.get(position).copied().or(node.items));
            next.extend(node.contains);
        }
        self.closed(next)
    }

    fn shown(&mut self, value: &'v Value, set: &[usize]) -> Value {
        if self.is_marked(set) {
            let pointer: String = self.at.iter().map(|part| format!("/{part}")).collect();
            self.take(value, &pointer);
            return withheld();
        }
        if set.is_empty() {
            return value.clone();
        }
        match value {
            Value::Object(members) => {
                let shown = members.iter().map(|(name, value)| {
                    let below = self.member(set, name);
                    self.at.push(name.replace('~', "~0").replace('/', "~1"));
                    let shown = self.shown(value, &below);
                    self.at.pop();
                    (name.clone(), shown)
                });
                Value::Object(shown.collect::<Map<_, _>>())
            }
            Value::Array(items) => {
                let shown = items.iter().enumerate().map(|(position, value)| {
                    let below = self.item(set, position);
                    self.at.push(position.to_string());
                    let shown = self.shown(value, &below);
                    self.at.pop();
                    shown
                });
                Value::Array(shown.collect())
            }
            single => single.clone(),
        }
    }

    /// Notes every text of a value that is withheld.
    fn take(&mut self, value: &'v Value, pointer: &str) {
        match value {
            Value::String(text) => self.found.push((text, pointer.to_owned())),
            Value::Array(items) => items.iter().for_each(|item| self.take(item, pointer)),
            Value::Object(members) => members.values().for_each(|item| self.take(item, pointer)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}
