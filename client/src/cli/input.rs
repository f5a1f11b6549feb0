//! The input of a call, from the command line, a file or standard input.
//!
//! Its rule: what is no JSON stops here, before a broker is looked for.

use std::fs::File;
use std::io::{self, Read};

use reeve_protocol::fault::Code;
use reeve_protocol::input::of_text;
use reeve_protocol::strict;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// Reads `--input` and `--set` into one object.
pub(super) fn gather(
    input: Option<&str>,
    set: &[String],
    schema: &Value,
    bytes_max: usize,
) -> Result<Value, Failure> {
    let mut members = match input {
        Some(source) => parsed(source, bytes_max)?,
        None => Map::new(),
    };
    let mut seen: Vec<&str> = Vec::new();
    for text in set {
        let (key, value) = text
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| invalid(format!("--set {text:?} is not KEY=VALUE")))?;
        if seen.contains(&key) {
            return Err(invalid(format!("--set names {key:?} twice")));
        }
        seen.push(key);
        let member = of_text(value, &schema["properties"][key], schema);
        members.insert(key.to_owned(), member);
    }
    let value = Value::Object(members);
    if value.to_string().len() > bytes_max {
        return Err(too_large(bytes_max));
    }
    Ok(value)
}

fn too_large(bytes_max: usize) -> Failure {
    let message = format!("the input is larger than {bytes_max} bytes");
    Failure::with_code(Code::TooLarge, message)
}

fn invalid(message: String) -> Failure {
    Failure::with_code(Code::InvalidArgs, message)
}

fn parsed(source: &str, bytes_max: usize) -> Result<Map<String, Value>, Failure> {
    let bytes = match source.strip_prefix('@') {
        Some(path) => {
            let file = File::open(path).map_err(|error| {
                invalid(format!("cannot read the input from {path:?}: {error}"))
            })?;
            bounded(file, bytes_max)?
        }
        None if source == "-" => bounded(io::stdin().lock(), bytes_max)?,
        None => source.as_bytes().to_owned(),
    };
    if bytes.len() > bytes_max {
        return Err(too_large(bytes_max));
    }
    let value = strict::parse(&bytes).map_err(|error| {
        invalid(format!("the input is no JSON that is taken: {error} ({})", error.reason()))
    })?;
    match value {
        Value::Object(members) => Ok(members),
        _ => Err(invalid("the input is no JSON object".to_owned())),
    }
}

fn bounded(source: impl Read, bytes_max: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    source
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| invalid(format!("cannot read the input: {error}")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::json;

    use super::*;
    use crate::failure::Exit;

    fn of(input: Option<&str>, set: &[&str]) -> Result<Value, Failure> {
        let schema = json!({ "properties": { "name": { "type": "string" } } });
        let set: Vec<String> = set.iter().map(|text| (*text).to_owned()).collect();
        gather(input, &set, &schema, 1_000)
    }

    #[test]
    fn members_are_set_over_the_input_by_the_type_that_the_schema_wants() {
        let set = ["name=12", "n=12", "flag=true", "list=[1, 2]", "text=two words", "empty="];
        let input = of(Some(r#"{"n": 1, "kept": null}"#), &set).unwrap();
        assert_eq!(
            input,
            json!({
                "kept": null, "name": "12", "n": 12, "flag": true, "list": [1, 2],
                "text": "two words", "empty": "",
            })
        );
        assert_eq!(of(None, &[]).unwrap(), json!({}));
    }

    #[test]
    fn a_file_is_read_up_to_the_bound() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(file, "{{\"a\": 1}}").unwrap();
        let source = format!("@{}", file.path().display());
        assert_eq!(of(Some(&source), &[]).unwrap(), json!({ "a": 1 }));
        write!(file, "{}", " ".repeat(1_000)).unwrap();
        assert_eq!(of(Some(&source), &[]).unwrap_err().code, Some(Code::TooLarge));
    }

    #[test]
    fn what_is_no_object_is_refused_with_its_code() {
        for (input, set) in [
            (Some("{"), &[][..]),
            (Some("[]"), &[]),
            (Some(""), &[]),
            (Some(r#"{"a": 1, "a": 2}"#), &[]),
            (Some("@/nowhere/at/all"), &[]),
            (None, &["novalue"]),
            (None, &["=x"]),
            (None, &["a=1", "a=2"]),
        ] {
            let failure = of(input, set).unwrap_err();
            assert_eq!(failure.code, Some(Code::InvalidArgs), "{input:?} {set:?}");
            assert_eq!(failure.kind, Exit::Usage);
        }
    }
}
