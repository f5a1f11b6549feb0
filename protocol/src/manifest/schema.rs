//! The JSON Schema of a manifest, for editors and for people who write one.

use serde_json::{Map, Value, json};

use super::limits::{LIMITS, Range};

/// Returns the JSON Schema (2020-12) of `reeve.toml`.
///
/// It says what has which form. That a command fits its input, or that a path stays inside, only
/// [`super::parse`] checks.
pub fn schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "reeve.toml",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "capability": {
                "type": "object",
                "maxProperties": super::CAPABILITIES_MAX,
                "propertyNames": { "pattern": "^[a-z][a-z0-9_.-]{0,63}$" },
                "additionalProperties": { "$ref": "#/$defs/capability" }
            },
            "flow": { "type": "object", "additionalProperties": { "$ref": "#/$defs/flow" } },
            "policy": policy(),
            "limits": limits()
        },
        "$defs": {
            "capability": capability(),
            "flow": flow(),
            "expect": expect(),
            "duration": {
                "type": "string",
                "pattern": "^([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$",
                "minLength": 2
            },
            "texts": { "type": "array", "items": { "type": "string" } },
            "decision": { "enum": ["allow", "ask", "deny"] }
        }
    })
}

fn duration() -> Value {
    json!({ "$ref": "#/$defs/duration" })
}

fn texts() -> Value {
    json!({ "$ref": "#/$defs/texts" })
}

fn capability() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["command"],
        "properties": {
            "title": { "type": "string", "maxLength": 120 },
            "description": { "type": "string", "maxLength": 4000 },
            "command": {
                "type": "array",
                "items": { "type": "string" },
                "minItems": 1,
                "maxItems": crate::input::ARGUMENTS_MAX
            },
            "effect": { "enum": ["read", "write", "dangerous"], "default": "write" },
            "confirm": { "enum": ["policy", "always"], "default": "policy" },
            "overlap": {
                "anyOf": [{ "enum": ["parallel", "serial"] }, {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["lock"],
                    "properties": {
                        "lock": { "type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$" }
                    }
                }],
                "default": "parallel"
            },
            "cancellable": { "type": "boolean", "default": true },
            "idempotent": { "type": "boolean", "default": false },
            "timeout": duration(),
            "cancel_grace": duration(),
            "cwd": { "type": "string", "default": "." },
            "env": {
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "set": { "type": "object", "additionalProperties": { "type": "string" } },
                    "allow": texts()
                }
            },
            "stdin": { "enum": ["none", "input"], "default": "none" },
            "pty": { "type": "boolean", "default": false },
            "on_worker_loss": { "enum": ["end", "leave"], "default": "end" },
            "input": { "type": "object" },
            "output": { "type": ["object", "boolean"] },
            "secrets": texts(),
            "requires": { "type": "array", "items": requirement() },
            "expect": { "$ref": "#/$defs/expect" },
            "evidence": texts()
        }
    })
}

fn requirement() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {
            "program": { "type": "string" },
            "file": { "type": "string" },
            "clean_tree": { "type": "boolean" },
            "port": { "type": "integer" },
            "succeeded": { "type": "string" }
        }
    })
}

fn expect() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "description": { "type": "string" },
            "exit": { "type": "integer" },
            "file": { "type": "string" },
            "matches": { "type": "string" },
            "output": { "type": "string" },
            "http": { "type": "string" },
            "pointer": { "type": "string" },
            "equals": true,
            "command": texts(),
            "within": duration()
        }
    })
}

fn flow() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["steps"],
        "properties": {
            "title": { "type": "string", "maxLength": 120 },
            "description": { "type": "string", "maxLength": 4000 },
            "input": { "type": "object" },
            "steps": { "type": "array", "items": {
                "type": "object",
                "additionalProperties": false,
                "oneOf": [{ "required": ["run"] }, { "required": ["handoff"] }],
                "properties": {
                    "run": { "type": "string" },
                    "with": { "type": "object" },
                    "expect": { "$ref": "#/$defs/expect" },
                    "handoff": {
                        "type": "object",
                        "additionalProperties": false,
                        "properties": {
                            "instructions": { "type": "string" },
                            "timeout": duration()
                        }
                    }
                }
            } }
        }
    })
}

fn policy() -> Value {
    let decision = || json!({ "$ref": "#/$defs/decision" });
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "read": decision(),
            "write": decision(),
            "dangerous": decision(),
            "confirm_timeout": duration(),
            "handoff_timeout": duration(),
            "rules": { "type": "array", "items": {
                "type": "object",
                "additionalProperties": false,
                "required": ["decide"],
                "properties": {
                    "effect": { "enum": ["read", "write", "dangerous"] },
                    "id": { "type": "string" },
                    "actor": { "type": "string" },
                    "decide": decision()
                }
            } }
        }
    })
}

fn limits() -> Value {
    let properties: Map<String, Value> = LIMITS
        .iter()
        .map(|(name, range)| {
            let schema = match range {
                Range::Count(least, most) => {
                    json!({ "type": "integer", "minimum": least, "maximum": most })
                }
                Range::Millis(..) => duration(),
            };
            ((*name).to_owned(), schema)
        })
        .collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}
