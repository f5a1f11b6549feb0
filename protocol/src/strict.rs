//! Strict JSON: one document, nothing lost on the way in.
//!
//! A lenient reader lets the last of two equal keys win and turns a large whole number into a
//! float; two readers of one text then disagree about what was asked for. This one refuses what
//! it cannot keep. Nesting and numbers are looked at in one pass over the bytes before anything
//! recurses, so a hostile text costs neither stack nor memory. Never echoes more of a text than
//! [`SHOWN_MAX`] characters, made harmless.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::frame::{DEPTH_MAX, NODES_MAX};

/// Characters of a refused text that an error shows, at most.
pub const SHOWN_MAX: usize = 64;

/// What kind of thing was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Encoding,
    Syntax,
    TooDeep,
    TooManyNodes,
    DuplicateKey,
    BadNumber,
}

/// Why a text is not taken as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrictError {
    reason: Reason,
    message: String,
    /// Where in the document, as a JSON Pointer; empty where that is not known.
    pub pointer: String,
    /// The line, from 1.
    pub line: usize,
    /// The column, in bytes from 1.
    pub column: usize,
}

impl StrictError {
    /// Returns one word to branch on.
    pub fn reason(&self) -> &'static str {
        match self.reason {
            Reason::Encoding => "encoding",
            Reason::Syntax => "syntax",
            Reason::TooDeep => "too_deep",
            Reason::TooManyNodes => "too_many_nodes",
            Reason::DuplicateKey => "duplicate_key",
            Reason::BadNumber => "bad_number",
        }
    }

    fn at(bytes: &[u8], offset: usize, reason: Reason, message: impl Into<String>) -> Self {
        let before = &bytes[..offset.min(bytes.len())];
        let line_start = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
        Self {
            reason,
            message: message.into(),
            pointer: String::new(),
            line: memchr::memchr_iter(b'\n', before).count() + 1,
            column: before.len() - line_start + 1,
        }
    }
}

impl fmt::Display for StrictError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        if !self.pointer.is_empty() {
            write!(f, " at {}", self.pointer)?;
        }
        write!(f, " (line {}, column {})", self.line, self.column)
    }
}

impl std::error::Error for StrictError {}

/// Returns at most [`SHOWN_MAX`] characters of `text` that no terminal or reader acts on.
pub(crate) fn shown(text: &str) -> String {
    clipped(text, SHOWN_MAX)
}

/// Returns at most `max` characters of `text` that no terminal or reader acts on.
pub(crate) fn clipped(text: &str, max: usize) -> String {
    let mut out: String = text.chars().take(max).map(harmless).collect();
    if text.chars().nth(max).is_some() {
        out.push('…');
    }
    out
}

/// Replaces what would act instead of being seen: controls, and marks that turn text around.
pub(crate) fn harmless(character: char) -> char {
    let invisible = matches!(
        character,
        '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    );
    if invisible || character.is_control() { '\u{fffd}' } else { character }
}

/// Parses `bytes` as exactly one JSON document.
///
/// Taken is UTF-8 without a byte order mark, nested at most [`DEPTH_MAX`] deep, with at most
/// [`NODES_MAX`] values. Refused are: a key that stands twice in one object, a whole number that
/// fits neither `i64` nor `u64`, a number that is not finite, anything after the document.
///
/// # Errors
///
/// [`StrictError`] says what was wrong, and where.
pub fn parse(bytes: &[u8]) -> Result<Value, StrictError> {
    if bytes.starts_with(&[0xef, 0xbb, 0xbf]) {
        return Err(StrictError::at(bytes, 0, Reason::Encoding, "a byte order mark stands first"));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        StrictError::at(bytes, error.valid_up_to(), Reason::Encoding, "the text is not UTF-8")
    })?;
    scan(bytes)?;

    let state = RefCell::new(State::default());
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Seed { state: &state }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| state.into_inner().explain(&error))
}

/// Looks at nesting and numbers, byte by byte, before anything recurses.
fn scan(bytes: &[u8]) -> Result<(), StrictError> {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = string_end(bytes, at + 1),
            b'[' | b'{' => {
                depth += 1;
                if depth > DEPTH_MAX {
                    let message = format!("nested deeper than {DEPTH_MAX}");
                    return Err(StrictError::at(bytes, at, Reason::TooDeep, message));
                }
                at += 1;
            }
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let end = number_end(bytes, at);
                if !number_fits(&bytes[at..end]) {
                    let message = "a whole number outside of 64 bits";
                    return Err(StrictError::at(bytes, at, Reason::BadNumber, message));
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    Ok(())
}

/// Returns the position after the quote that ends the string whose text starts at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(found) = memchr::memchr2(b'"', b'\\', bytes.get(at..).unwrap_or_default()) {
        if bytes[at + found] == b'"' {
            return at + found + 1;
        }
        at += found + 2;
    }
    bytes.len()
}

fn number_end(bytes: &[u8], start: usize) -> usize {
    let part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    start + bytes[start..].iter().take_while(|byte| part(byte)).count()
}

/// Returns whether a number is written as a float, or is whole and fits 64 bits.
///
/// What is no number at all passes: the parser proper says so better.
fn number_fits(token: &[u8]) -> bool {
    let Ok(token) = std::str::from_utf8(token) else { return true };
    let digits = token.strip_prefix('-').unwrap_or(token);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return true;
    }
    if token.starts_with('-') { token.parse::<i64>().is_ok() } else { token.parse::<u64>().is_ok() }
}

/// Where the visitor is, and what it refused.
#[derive(Default)]
struct State {
    nodes: usize,
    path: Vec<Step>,
    refused: Option<(Reason, String)>,
}

enum Step {
    Key(String),
    Index(usize),
}

impl State {
    fn pointer(&self) -> String {
        let mut pointer = String::new();
        for step in &self.path {
            pointer.push('/');
            match step {
                Step::Key(key) => pointer.push_str(&key.replace('~', "~0").replace('/', "~1")),
                Step::Index(index) => pointer.push_str(&index.to_string()),
            }
        }
        shown(&pointer)
    }

    fn explain(self, error: &serde_json::Error) -> StrictError {
        let (reason, message) = match &self.refused {
            Some((reason, message)) => (*reason, message.clone()),
            None => classify(error),
        };
        StrictError {
            reason,
            message,
            pointer: self.pointer(),
            line: error.line(),
            column: error.column(),
        }
    }
}

fn classify(error: &serde_json::Error) -> (Reason, String) {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or_default();
    let reason = match text {
        "number out of range" => Reason::BadNumber,
        "recursion limit exceeded" => Reason::TooDeep,
        _ => Reason::Syntax,
    };
    (reason, shown(text))
}

/// Reads one value and counts it.
#[derive(Clone, Copy)]
struct Seed<'s> {
    state: &'s RefCell<State>,
}

impl Seed<'_> {
    fn refuse<E: serde::de::Error>(self, reason: Reason, message: impl Into<String>) -> E {
        self.state.borrow_mut().refused = Some((reason, message.into()));
        E::custom("refused")
    }

    fn count<E: serde::de::Error>(self) -> Result<(), E> {
        let nodes = {
            let mut state = self.state.borrow_mut();
            state.nodes += 1;
            state.nodes
        };
        if nodes > NODES_MAX {
            let message = format!("more than {NODES_MAX} values");
            return Err(self.refuse(Reason::TooManyNodes, message));
        }
        Ok(())
    }

    fn enter(self, step: Step) {
        self.state.borrow_mut().path.push(step);
    }

    fn leave(self) {
        self.state.borrow_mut().path.pop();
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        // The parser reads `-0` as a float; it is the whole number zero.
        if value == 0.0 && value.is_sign_negative() {
            return Ok(0.into());
        }
        let number = Number::from_f64(value);
        number
            .map(Value::Number)
            .ok_or_else(|| self.refuse(Reason::BadNumber, "a number that is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            self.enter(Step::Index(items.len()));
            let Some(item) = access.next_element_seed(self)? else { break };
            self.leave();
            items.push(item);
        }
        self.leave();
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            self.enter(Step::Key(key.clone()));
            if members.contains_key(&key) {
                return Err(self.refuse(Reason::DuplicateKey, "a key stands twice"));
            }
            let value = access.next_value_seed(self)?;
            self.leave();
            members.insert(key, value);
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reason(text: impl AsRef<[u8]>) -> &'static str {
        parse(text.as_ref()).expect_err("must be refused").reason()
    }

    #[test]
    fn a_plain_document_reads_as_written() {
        let text = r#" {"a": [1, -2, 2.5, "é\n", null, true], "b": {}} "#;
        assert_eq!(
            parse(text.as_bytes()),
            Ok(json!({"a": [1, -2, 2.5, "é\n", null, true], "b": {}}))
        );
        assert_eq!(parse(b"18446744073709551615"), Ok(json!(u64::MAX)));
        assert_eq!(parse(b"-9223372036854775808"), Ok(json!(i64::MIN)));
        assert_eq!(parse(b"-0"), Ok(json!(0)));
    }

    #[test]
    fn a_key_that_stands_twice_is_refused_with_its_pointer() {
        let error = parse(br#"{"input": {"x/y": [1, {"k": 1, "k": 2}]}}"#).unwrap_err();
        assert_eq!((error.reason(), error.pointer.as_str()), ("duplicate_key", "/input/x~1y/1/k"));
        assert_eq!(error.line, 1);
        // Equal after its escape is read.
        assert_eq!(reason(r#"{"a": 1, "\u0061": 2}"#), "duplicate_key");
    }

    #[test]
    fn nesting_is_taken_at_its_bound_and_refused_beyond() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(DEPTH_MAX).as_bytes()).is_ok());
        assert_eq!(reason(nested(DEPTH_MAX + 1)), "too_deep");
        assert_eq!(reason("[".repeat(1_000_000)), "too_deep");
        assert_eq!(reason(r#"{"a":"#.repeat(100_000)), "too_deep");
        let brackets = format!("[\"{}\\\"{}\"]", "[".repeat(100), "{".repeat(100));
        assert!(parse(brackets.as_bytes()).is_ok(), "brackets in a string do not nest");
    }

    #[test]
    fn values_are_counted_up_to_their_bound() {
        let array = |count: usize| format!("[{}]", vec!["0"; count].join(","));
        assert!(parse(array(NODES_MAX - 1).as_bytes()).is_ok());
        assert_eq!(reason(array(NODES_MAX)), "too_many_nodes");
        let keys: Vec<_> = (0..100_000).map(|n| format!("\"{n}\":0")).collect();
        assert_eq!(reason(format!("{{{}}}", keys.join(","))), "too_many_nodes");
    }

    #[test]
    fn numbers_that_cannot_be_kept_are_refused() {
        for text in ["18446744073709551616", "-9223372036854775809", "[1e999]", "{\"a\":-1e999}"] {
            assert_eq!(reason(text), "bad_number", "{text}");
        }
        let digits = "9".repeat(100_000);
        assert_eq!(reason(&digits), "bad_number");
        for text in ["NaN", "Infinity", "01", "+1", "1.", "-", "1-2"] {
            assert_eq!(reason(text), "syntax", "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in
            ["", " ", "{} x", "[1,]", "{'a':1}", "nul", "\"\\ud800\"", "\"a\u{1}\"", "\"", "\"\\"]
        {
            assert_eq!(reason(text), "syntax", "{text:?}");
        }
        assert_eq!(reason(b"{\"a\":1}\0".as_slice()), "syntax");
    }

    #[test]
    fn other_encodings_are_refused_with_their_place() {
        assert_eq!(reason(b"\xef\xbb\xbf{}".as_slice()), "encoding");
        let error = parse(b"{\n \"a\": \"\xff\"}").unwrap_err();
        assert_eq!((error.reason(), error.line, error.column), ("encoding", 2, 8));
        assert_eq!(reason([0xff, 0xfe, b'{', 0, b'}', 0]), "encoding");
    }

    #[test]
    fn an_error_shows_little_of_the_text_and_nothing_that_acts() {
        let key = format!("\u{1b}[31m\u{202e}{}", "k".repeat(10_000));
        let text = json!({ key.clone(): 1 }).to_string();
        let twice = format!("{},{}", &text[..text.len() - 1], &text[1..]);
        let error = parse(twice.as_bytes()).unwrap_err();
        assert_eq!(error.reason(), "duplicate_key");
        let shown = error.to_string();
        assert!(shown.chars().count() < 150, "{shown}");
        assert!(!shown.contains('\u{1b}') && !shown.contains('\u{202e}'), "{shown}");
    }
}
