//! Argument templates: where values of an input go in a command.
//!
//! A template is an argv array. `{name}` in an argument is replaced by the member `name` of the
//! input; `{name?}` ends its argument, which is left out when the member is absent; `{{` and
//! `}}` are literal braces. A value is part of one argument, never two, and never turns an
//! argument into an option that the template does not write itself. No shell sees any of it.

use std::fmt;

use serde_json::Value;

use super::schema::resolve;
use crate::fault::{Code, Fault, Problem, Stage};
use crate::redact::Sensitive;
use crate::strict::shown;

/// Arguments of one command, at most.
pub const ARGUMENTS_MAX: usize = 256;
/// Bytes of one argument, at most: what Linux takes, less the zero at its end.
pub const ARGUMENT_MAX: usize = (128 << 10) - 1;

/// Why a command is no template for its input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTemplate {
    /// Which argument, from 0; `None` when it is the command as a whole.
    pub argument: Option<usize>,
    /// What is wrong.
    pub message: String,
    /// What was meant, perhaps.
    pub suggestion: Option<String>,
}

impl BadTemplate {
    fn at(argument: usize, message: impl Into<String>) -> Self {
        Self { argument: Some(argument), message: message.into(), suggestion: None }
    }
}

impl fmt::Display for BadTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(argument) = self.argument {
            write!(f, "argument {argument}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for BadTemplate {}

/// A command that was checked against the schema of its input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Argument>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Argument(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field { name: String, optional: bool, allow_dash: bool },
}

impl Template {
    /// Parses a command and checks its placeholders against the schema of its input.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it; never an empty list.
    pub fn new(command: &[String], schema: &Value) -> Result<Self, Vec<BadTemplate>> {
        let whole =
            |message: String| vec![BadTemplate { argument: None, message, suggestion: None }];
        if command.is_empty() {
            return Err(whole("a command has at least one argument".to_owned()));
        }
        if command.len() > ARGUMENTS_MAX {
            let count = command.len();
            return Err(whole(format!("{count} arguments; at most {ARGUMENTS_MAX} are taken")));
        }
        let sensitive = Sensitive::new(schema).map_err(|error| whole(error.to_string()))?;
        let mut errors = Vec::new();
        let mut arguments = Vec::new();
        for (at, text) in command.iter().enumerate() {
            match parse(text).map(|parts| resolve_fields(parts, schema, &sensitive)) {
                Ok(Ok(parts)) => {
                    let argument = Argument(parts);
                    errors.extend(argument.check(at));
                    arguments.push(argument);
                }
                Ok(Err(mut wrong)) => {
                    wrong.argument = Some(at);
                    errors.push(wrong);
                }
                Err(message) => errors.push(BadTemplate::at(at, message)),
            }
        }
        if errors.is_empty() { Ok(Self(arguments)) } else { Err(errors) }
    }

    /// Returns how many arguments the template has, with those that may be left out.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are none, which no template that was made has.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Argument {
    fn check(&self, at: usize) -> Option<BadTemplate> {
        let fields = self.0.iter().filter(|part| matches!(part, Part::Field { .. })).count();
        if at == 0 && fields > 0 {
            return Some(BadTemplate::at(at, "the program itself cannot be a placeholder"));
        }
        if at == 0 && self.0.is_empty() {
            return Some(BadTemplate::at(at, "the program has no name"));
        }
        let ends_it = |at: usize| fields == 1 && at + 1 == self.0.len();
        for (position, part) in self.0.iter().enumerate() {
            let Part::Field { name, optional, allow_dash } = part else { continue };
            if *optional && !ends_it(position) {
                let message = format!(
                    "`{{{name}?}}` must be the only placeholder of its argument and stand at its end"
                );
                return Some(BadTemplate::at(at, message));
            }
            let before = match position.checked_sub(1).map(|before| &self.0[before]) {
                Some(Part::Text(text)) if position == 1 => text.as_str(),
                _ => "",
            };
            if !allow_dash && !before.is_empty() && before.bytes().all(|byte| byte == b'-') {
                let message = format!(
                    "`{before}{{{name}}}` lets a value choose the option; write the option out"
                );
                return Some(BadTemplate::at(at, message));
            }
        }
        None
    }

    /// Returns the argument, or nothing when it is left out.
    fn render(&self, input: &Value) -> Result<Option<String>, Fault> {
        let mut out = String::new();
        let mut began_with_value = false;
        for part in &self.0 {
            let (text, trusted) = match part {
                Part::Text(text) => (text.clone(), !began_with_value),
                Part::Field { name, optional, allow_dash } => {
                    let Some(text) = text_of(name, input.get(name))? else {
                        if *optional {
                            return Ok(None);
                        }
                        return Err(refuse(name, "missing", "is needed by the command"));
                    };
                    began_with_value |= out.is_empty();
                    (text, *allow_dash)
                }
            };
            if out.is_empty() && text.starts_with('-') && !trusted {
                let name = self.first_field();
                let what =
                    "must not begin with `-`, because the command would read it as an option";
                return Err(refuse(name, "option_like", what));
            }
            out.push_str(&text);
            if out.len() > ARGUMENT_MAX {
                let what = format!("makes an argument of more than {ARGUMENT_MAX} bytes");
                return Err(refuse(self.first_field(), "argument_too_long", &what));
            }
        }
        Ok(Some(out))
    }

    fn first_field(&self) -> &str {
        let name = self.0.iter().find_map(|part| match part {
            Part::Field { name, .. } => Some(name.as_str()),
            Part::Text(_) => None,
        });
        name.unwrap_or_default()
    }
}

/// Makes the arguments of one call. `input` has passed the schema that the template was made for.
///
/// The result has one argument for each of the template's, in order, but for those of absent
/// optional members.
///
/// # Errors
///
/// `INVALID_PARAMS` with the reason `option_like`, `nul`, `argument_too_long` or `missing`.
pub fn argv(template: &Template, input: &Value) -> Result<Vec<String>, Fault> {
    let arguments = template.0.iter().map(|argument| argument.render(input));
    arguments.filter_map(Result::transpose).collect()
}

/// Returns a member as text; nothing when it is absent.
fn text_of(name: &str, value: Option<&Value>) -> Result<Option<String>, Fault> {
    let text = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(value)) => value.to_string(),
        Some(Value::Number(value)) => value.to_string(),
        Some(Value::Array(_) | Value::Object(_)) => {
            return Err(refuse(name, "not_scalar", "is no single value"));
        }
    };
    if text.contains('\0') {
        return Err(refuse(name, "nul", "must not hold a NUL character"));
    }
    Ok(Some(text))
}

fn refuse(name: &str, reason: &str, what: &str) -> Fault {
    let pointer = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
    let message = format!("invalid input: {pointer}: {what}");
    let mut fault = Fault::new(Code::InvalidParams, message).at(Stage::Validate).because(reason);
    fault.problems = vec![Problem { pointer, message: what.to_owned() }];
    fault
}

/// Divides one argument into text and placeholders.
fn parse(argument: &str) -> Result<Vec<Part>, String> {
    if argument.contains('\0') {
        return Err("a NUL character cannot be passed".to_owned());
    }
    if argument.len() > ARGUMENT_MAX {
        return Err(format!("more than {ARGUMENT_MAX} bytes"));
    }
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut rest = argument;
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let tail = &rest[at..];
        if let Some(after) = tail.strip_prefix("{{").or_else(|| tail.strip_prefix("}}")) {
            text.push_str(&tail[..1]);
            rest = after;
            continue;
        }
        let Some(inside) = tail.strip_prefix('{') else {
            return Err("a lone `}`; a literal one is written `}}`".to_owned());
        };
        let Some(end) = inside.find('}') else {
            return Err("a `{` without its `}`; a literal one is written `{{`".to_owned());
        };
        if !text.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut text)));
        }
        parts.push(placeholder(&inside[..end])?);
        rest = &inside[end + 1..];
    }
    text.push_str(rest);
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    Ok(parts)
}

fn placeholder(inside: &str) -> Result<Part, String> {
    let (name, optional) = match inside.strip_suffix('?') {
        Some(name) => (name, true),
        None => (inside, false),
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if !begins || !name.bytes().all(plain) {
        let shown = shown(inside);
        return Err(format!(
            "`{{{shown}}}` is no placeholder; literal braces are `{{{{` and `}}}}`"
        ));
    }
    Ok(Part::Field { name: name.to_owned(), optional, allow_dash: false })
}

/// Checks each placeholder against the member that it names.
fn resolve_fields(
    parts: Vec<Part>,
    schema: &Value,
    sensitive: &Sensitive,
) -> Result<Vec<Part>, BadTemplate> {
    parts
        .into_iter()
        .map(|part| match part {
            Part::Text(text) => Ok(Part::Text(text)),
            Part::Field { name, optional, .. } => {
                let allow_dash = check_field(&name, optional, schema, sensitive)?;
                Ok(Part::Field { name, optional, allow_dash })
            }
        })
        .collect()
}

/// Returns whether the member's values may begin with a dash.
fn check_field(
    name: &str,
    optional: bool,
    schema: &Value,
    sensitive: &Sensitive,
) -> Result<bool, BadTemplate> {
    let wrong = |message: String| BadTemplate::at(0, message);
    let properties = schema.get("properties").and_then(Value::as_object);
    let Some(property) = properties.and_then(|properties| properties.get(name)) else {
        let mut error = wrong(format!("the input declares no `{name}`"));
        let known = properties.into_iter().flat_map(|properties| properties.keys());
        error.suggestion = nearest(name, known.map(String::as_str)).map(str::to_owned);
        return Err(error);
    };
    if sensitive.covers(name) {
        return Err(wrong(format!(
            "`{name}` is sensitive, and arguments can be read by every process; use `stdin = \"input\"`"
        )));
    }
    let needed = schema
        .get("required")
        .and_then(Value::as_array)
        .is_some_and(|required| required.iter().any(|key| key == name));
    if !optional && !needed && property.get("default").is_none() {
        return Err(wrong(format!(
            "`{name}` may be absent: write `{{{name}?}}`, or make it required, or give it a default"
        )));
    }
    let kind = scalar(schema, property);
    if kind == Scalar::No || (kind == Scalar::OrNull && !optional) {
        return Err(wrong(format!(
            "`{name}` must be a string, integer, number, boolean or an enum of such to be an argument"
        )));
    }
    Ok(property.get("x-reeve-allow-dash") == Some(&Value::Bool(true)))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scalar {
    Yes,
    OrNull,
    No,
}

/// Returns whether a schema lets only single values through.
fn scalar(root: &Value, property: &Value) -> Scalar {
    let mut property = property;
    for _ in 0..16 {
        if let Some(kinds) = property.get("type") {
            return one_or_many(kinds, |kind| kind.as_str().unwrap_or_default().to_owned());
        }
        if let Some(values) = property.get("enum") {
            return one_or_many(values, |value| kind_of(value).to_owned());
        }
        if let Some(value) = property.get("const") {
            return one_or_many(&Value::Array(vec![value.clone()]), |value| kind_of(value).into());
        }
        let target = property.get("$ref").and_then(Value::as_str);
        let Some(target) = target.and_then(|target| resolve(root, target)) else { break };
        property = target;
    }
    Scalar::No
}

fn one_or_many(kinds: &Value, name: impl Fn(&Value) -> String) -> Scalar {
    let many = match kinds {
        Value::Array(kinds) => kinds.iter().map(name).collect(),
        one => vec![name(one)],
    };
    many.iter().fold(if many.is_empty() { Scalar::No } else { Scalar::Yes }, |sum, kind| {
        match (sum, kind.as_str()) {
            (Scalar::No, _) => Scalar::No,
            (sum, "string" | "integer" | "number" | "boolean") => sum,
            (_, "null") => Scalar::OrNull,
            _ => Scalar::No,
        }
    })
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the known word that `word` is probably a slip of.
pub(crate) fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    if word.len() > 64 {
        return None;
    }
    let bound = (word.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, candidate)| {
            *distance <= bound || (word.len() > 3 && candidate.starts_with(word))
        })
        .min()
        .map(|(_, candidate)| candidate)
}
