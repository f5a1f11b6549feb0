//! Values that came as text: a query parameter, an option of the command line.

use serde_json::Value;

use crate::strict;

/// References and branches that are followed to find a type.
const DEPTH_MAX: usize = 16;

/// Reads a value from a text, as the schema of its member wants it: a text stays one where a text
/// may stand there, else it is read as JSON; what is no JSON stays the text that it is, and the
/// schema refuses it by its name.
///
/// `root` is the schema that references lead into.
pub fn of_text(text: &str, schema: &Value, root: &Value) -> Value {
    if takes_text(schema, root, DEPTH_MAX) {
        return Value::from(text);
    }
    strict::parse(text.as_bytes()).unwrap_or_else(|_| Value::from(text))
}

/// Returns whether a schema says that a text may stand there.
fn takes_text(schema: &Value, root: &Value, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return false };
    let is_string = |value: &Value| value.as_str() == Some("string");
    let by_type = match &schema["type"] {
        Value::Array(types) => types.iter().any(is_string),
        one => is_string(one),
    };
    let values = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
    let by_value = values.into_iter().any(Value::is_string);
    let branches = ["anyOf", "oneOf", "allOf"].map(|word| schema[word].as_array());
    let by_branch = branches.into_iter().flatten().flatten();
    let mut by_branch = by_branch.chain(referred(schema, root));
    by_type || by_value || by_branch.any(|branch| takes_text(branch, root, depth))
}

fn referred<'s>(schema: &Value, root: &'s Value) -> Option<&'s Value> {
    root.pointer(schema["$ref"].as_str()?.strip_prefix('#')?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_becomes_what_its_schema_wants() {
        let root = json!({ "$defs": {
            "kind": { "enum": ["1", "2"] },
            "loop": { "$ref": "#/$defs/loop" },
        } });
        for (schema, text, value) in [
            (json!({ "type": "integer" }), "3", json!(3)),
            (json!({ "type": "integer" }), "many", json!("many")),
            (json!({ "type": ["integer", "null"] }), "null", json!(null)),
            (json!({ "type": "string" }), "3", json!("3")),
            (json!({ "type": ["string", "null"] }), "null", json!("null")),
            (json!({ "$ref": "#/$defs/kind" }), "1", json!("1")),
            (json!({ "anyOf": [{ "$ref": "#/$defs/kind" }, { "type": "null" }] }), "2", json!("2")),
            (json!({ "$ref": "#/$defs/loop" }), "true", json!(true)),
            (json!({ "type": "array" }), "[1,\"a\"]", json!([1, "a"])),
            (json!({}), "1.5", json!(1.5)),
            (json!({}), "word", json!("word")),
            (json!(true), "7", json!(7)),
        ] {
            assert_eq!(of_text(text, &schema, &root), value, "{text} as {schema}");
        }
    }
}
