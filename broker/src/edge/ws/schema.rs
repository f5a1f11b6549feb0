//! The shape of what the channel says beside events.

use reeve_protocol::{Fault, Overlay};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// Returns the JSON Schema (2020-12) of every control message; one of a later version is none of
/// these, and a client passes it over.
pub fn control() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let fault = generator.subschema_for::<Fault>();
    let overlay = generator.subschema_for::<Overlay>();
    let definitions = generator.take_definitions(true);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What the live channel says beside events",
        "oneOf": messages(&json!(fault), &json!(overlay)),
        "$defs": definitions,
    })
}

fn messages(fault: &Value, overlay: &Value) -> Vec<Value> {
    let (text, flag) = (json!({ "type": "string" }), json!({ "type": "boolean" }));
    let count = json!({ "type": "integer", "minimum": 0 });
    let id = json!({ "type": "string", "pattern": "^x-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}$" });
    let ids = json!({ "type": "array", "items": id });
    let opened = json!({
        "protocol_version": text, "scope": { "enum": ["all", "executions"] }, "replayed": count,
        "truncated": flag, "heartbeat_seconds": { "type": "integer", "minimum": 1 }, "epoch": text,
        "cursors": { "type": "object", "additionalProperties": count }, "unknown": ids,
        "durability": { "enum": ["memory", "local", "replicated"] },
    });
    let of_some = json!({ "executions": ids, "horizon": count });
    let none = json!({});
    vec![
        message("stream.ready", &opened, &of_some),
        message("stream.subscribed", &opened, &of_some),
        message("stream.heartbeat", &none, &none),
        message(
            "stream.lagged",
            &json!({
                "execution_id": id, "from": count, "to": count, "dropped": count,
                "reason": { "enum": ["retention", "shed", "epoch", "ahead"] },
                "resume_after": count,
            }),
            &none,
        ),
        message("stream.overlay", &json!({ "execution_id": id, "overlay": overlay }), &none),
        message("stream.closing", &json!({ "reason": text }), &none),
        message("stream.unsubscribed", &json!({ "executions": ids }), &none),
        message(
            "stream.cancelled",
            &json!({
                "execution_id": id, "cancellable": flag,
                "outcome": { "enum": ["requested", "already_requested", "already_finished"] },
            }),
            &none,
        ),
        message("stream.pong", &json!({ "nonce": true }), &none),
        message("stream.error", &json!({ "error": fault }), &none),
    ]
}

/// An object of one type with exactly these members.
fn message(word: &str, needed: &Value, optional: &Value) -> Value {
    let members = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let mut properties = members(needed);
    let mut required: Vec<String> = properties.keys().cloned().collect();
    properties.extend(members(optional));
    properties.insert("type".to_owned(), json!({ "const": word }));
    required.push("type".to_owned());
    json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false,
    })
}
