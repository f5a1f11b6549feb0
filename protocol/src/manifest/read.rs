//! Reading values of the right kind out of the tree.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use serde_json::{Map, Number, Value};
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::capability;
use super::diagnostic::{Diagnostics, ManifestError};
use super::{Manifest, NotYet, later, limits};
use crate::frame::DEPTH_MAX;
use crate::id::CapabilityId;
use crate::input::nearest;
use crate::strict::shown;

/// A value with its place in the text.
pub(super) type Node<'t> = Spanned<DeValue<'t>>;

/// The keys at the top of a manifest.
const TOP: [&str; 4] = ["capability", "flow", "policy", "limits"];

/// Reads a tree and notes everything that is wrong with it.
pub(super) struct Reader<'t> {
    diagnostics: Diagnostics<'t>,
    not_yet: Vec<NotYet>,
    pub(super) file: String,
    /// Ids that belong to something else.
    pub(super) taken: &'t BTreeSet<CapabilityId>,
}

impl<'t> Reader<'t> {
    pub(super) fn new(
        diagnostics: Diagnostics<'t>,
        file: &str,
        taken: &'t BTreeSet<CapabilityId>,
    ) -> Self {
        Self { diagnostics, not_yet: Vec::new(), file: file.to_owned(), taken }
    }

    pub(super) fn finish(self) -> (Vec<ManifestError>, Vec<NotYet>) {
        (self.diagnostics.into_errors(), self.not_yet)
    }

    /// Reads the whole manifest.
    pub(super) fn document(&mut self, table: &DeTable<'t>, manifest: &mut Manifest) {
        self.known(table, &TOP, "a manifest");
        if let Some(node) = table.get("limits") {
            limits::read(self, node, &mut manifest.limits);
        }
        if let Some(node) = table.get("capability") {
            capability::read_all(self, node, manifest);
        }
        if let Some(node) = table.get("flow") {
            later::flows(self, node);
        }
        if let Some(node) = table.get("policy") {
            later::policy(self, node);
        }
    }

    /// Notes an error.
    pub(super) fn error(&mut self, span: Range<usize>, message: &str) {
        self.diagnostics.push(span, message, None);
    }

    /// Notes an error with what was perhaps meant.
    pub(super) fn suggest(&mut self, span: Range<usize>, message: &str, suggestion: Option<&str>) {
        self.diagnostics.push(span, message, suggestion);
    }

    /// Notes something that this version does not act on.
    pub(super) fn later(&mut self, span: Range<usize>, path: String) {
        let line = self.diagnostics.line(span.start);
        self.not_yet.push(NotYet { line, path });
    }

    /// Notes every key of a table that is not among the known ones.
    pub(super) fn known(&mut self, table: &DeTable<'t>, known: &[&str], place: &str) {
        for key in table.keys() {
            if !known.contains(&key.get_ref().as_ref()) {
                let message = format!("unknown key \"{}\" in {place}", shown(key.get_ref()));
                let meant = nearest(key.get_ref(), known.iter().copied());
                self.suggest(key.span(), &message, meant);
            }
        }
    }

    fn wrong_kind<T>(&mut self, node: &Node<'t>, what: &str, expected: &str) -> Option<T> {
        let found = node.get_ref().type_str();
        self.error(node.span(), &format!("{what} must be {expected}, not {}", article(found)));
        None
    }

    pub(super) fn table<'n>(&mut self, node: &'n Node<'t>, what: &str) -> Option<&'n DeTable<'t>> {
        match node.get_ref() {
            DeValue::Table(table) => Some(table),
            _ => self.wrong_kind(node, what, "a table"),
        }
    }

    pub(super) fn array<'n>(&mut self, node: &'n Node<'t>, what: &str) -> Option<&'n [Node<'t>]> {
        match node.get_ref() {
            DeValue::Array(array) => Some(array),
            _ => self.wrong_kind(node, what, "an array"),
        }
    }

    pub(super) fn boolean(&mut self, node: &Node<'t>, what: &str) -> Option<bool> {
        match node.get_ref() {
            DeValue::Boolean(value) => Some(*value),
            _ => self.wrong_kind(node, what, "true or false"),
        }
    }

    pub(super) fn integer(&mut self, node: &Node<'t>, what: &str) -> Option<i64> {
        match node.get_ref() {
            DeValue::Integer(value) => match whole(value) {
                Some(value) => Some(value),
                None => {
                    self.error(node.span(), &format!("{what} does not fit 64 bits"));
                    None
                }
            },
            _ => self.wrong_kind(node, what, "a whole number"),
        }
    }

    /// Reads a text of at most `max` characters without control characters.
    pub(super) fn text(&mut self, node: &Node<'t>, what: &str, max: usize) -> Option<String> {
        let DeValue::String(text) = node.get_ref() else {
            return self.wrong_kind(node, what, "a string");
        };
        if text.chars().count() > max {
            self.error(node.span(), &format!("{what} has more than {max} characters"));
            return None;
        }
        if text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
            self.error(node.span(), &format!("{what} has a control character"));
            return None;
        }
        Some(text.to_string())
    }

    /// Reads a text that is passed on as it is.
    pub(super) fn raw(&mut self, node: &Node<'t>, what: &str) -> Option<String> {
        match node.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            _ => self.wrong_kind(node, what, "a string"),
        }
    }

    pub(super) fn texts(&mut self, node: &Node<'t>, what: &str) -> Option<Vec<String>> {
        let each = format!("each of {what}");
        let items = self.array(node, what)?;
        let texts: Vec<_> = items.iter().filter_map(|item| self.raw(item, &each)).collect();
        (texts.len() == items.len()).then_some(texts)
    }

    /// Reads one of a few words.
    pub(super) fn word<T: Clone>(
        &mut self,
        node: &Node<'t>,
        what: &str,
        words: &[(&str, T)],
    ) -> Option<T> {
        let text = self.raw(node, what)?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Some(value.clone());
        }
        let known: Vec<_> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let message = format!("{what} is {}, not \"{}\"", known.join(" or "), shown(&text));
        let meant = nearest(&text, words.iter().map(|(word, _)| *word));
        self.suggest(node.span(), &message, meant);
        None
    }

    /// Reads a duration within bounds.
    pub(super) fn duration(
        &mut self,
        node: &Node<'t>,
        what: &str,
        (least, most): (Duration, Duration),
    ) -> Option<Duration> {
        let DeValue::String(text) = node.get_ref() else {
            return self.wrong_kind(node, what, "a duration such as \"90s\" or \"20m\"");
        };
        let Some(value) = duration(text) else {
            let text = shown(text);
            let message = format!(
                "{what} \"{text}\" is no duration; write \"500ms\", \"90s\", \"20m\" or \"1h30m\""
            );
            self.error(node.span(), &message);
            return None;
        };
        if value < least || value > most {
            let message = format!("{what} is between {} and {}", in_words(least), in_words(most));
            self.error(node.span(), &message);
            return None;
        }
        Some(value)
    }

    /// Reads any value as JSON. Nesting was bounded over the text.
    pub(super) fn json(&mut self, node: &Node<'t>, what: &str, depth: usize) -> Option<Value> {
        if depth > DEPTH_MAX {
            self.error(node.span(), &format!("too_deep: {what} is nested deeper than {DEPTH_MAX}"));
            return None;
        }
        match node.get_ref() {
            DeValue::String(text) => Some(Value::String(text.to_string())),
            DeValue::Boolean(value) => Some(Value::Bool(*value)),
            DeValue::Integer(_) => self.integer(node, "a number").map(Value::from),
            DeValue::Float(float) => {
                let number = float.as_str().parse::<f64>().ok().and_then(Number::from_f64);
                if number.is_none() {
                    self.error(node.span(), "a number that JSON cannot write");
                }
                number.map(Value::Number)
            }
            DeValue::Datetime(_) => {
                self.error(
                    node.span(),
                    &format!("{what} is JSON, which has no dates; write a string"),
                );
                None
            }
            DeValue::Array(items) => {
                let values = items.iter().map(|item| self.json(item, what, depth + 1));
                let values: Vec<_> = values.collect();
                values.into_iter().collect::<Option<_>>().map(Value::Array)
            }
            DeValue::Table(table) => {
                let mut members = Map::new();
                for (key, value) in table {
                    let value = self.json(value, what, depth + 1);
                    members.insert(key.get_ref().to_string(), value?);
                }
                Some(Value::Object(members))
            }
        }
    }
}

fn article(kind: &str) -> String {
    match kind {
        "integer" | "array" => format!("an {kind}"),
        kind => format!("a {kind}"),
    }
}

fn whole(value: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(value.as_str(), value.radix()).ok()
}

/// Reads a duration: whole numbers of `h`, `m`, `s` and `ms`, each at most once, largest first.
///
/// ```
/// use std::time::Duration;
/// use reeve_protocol::manifest::duration;
///
/// assert_eq!(duration("1h30m"), Some(Duration::from_secs(5_400)));
/// assert_eq!(duration("90"), None);
/// ```
pub fn duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let mut rest = text;
    let mut next = 0;
    let mut millis = 0_u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let count: u64 = rest.get(..digits)?.parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.bytes().take_while(u8::is_ascii_lowercase).count();
        let (unit, after) = rest.split_at(letters);
        rest = after;
        let position = UNITS[next..].iter().position(|(name, _)| *name == unit)? + next;
        next = position + 1;
        millis = millis.checked_add(count.checked_mul(UNITS[position].1)?)?;
    }
    (next > 0).then(|| Duration::from_millis(millis))
}

/// Writes a duration as a manifest would.
pub(super) fn in_words(duration: Duration) -> String {
    let millis = duration.as_millis();
    for (unit, size) in [("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if millis >= size && millis.is_multiple_of(size) {
            return format!("{}{unit}", millis / size);
        }
    }
    format!("{millis}ms")
}
