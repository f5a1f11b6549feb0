//! The description of the HTTP surface (OpenAPI 3.1), assembled from the route table and the
//! schemas of the types that the answers are made of. Nothing in it is written down twice.

use reeve_protocol::capability::Loaded;
use reeve_protocol::snapshot::Snapshot;
use reeve_protocol::{Descriptor, Event, Fault, Kind, Limits, Output, State};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::edge::http::handlers::KEY_MAX;
use crate::edge::http::route::{Operation, Route};
use crate::edge::http::{direct, pages};
use crate::token::Scope;

/// Assembles the document.
pub fn document(routes: &[Route], registry: &Loaded, version: &str) -> Value {
    let mut paths = Map::new();
    for route in routes {
        let method = if route.posts { "post" } else { "get" };
        paths.insert(route.path.to_owned(), json!({ method: operation(route) }));
    }
    let mut schemas = schemas();
    let (session, described) = pages::described();
    paths.insert(session.to_owned(), described);
    for capability in &registry.descriptors {
        let Some(path) = direct::path_of(capability) else { continue };
        schemas.extend(definitions(capability));
        let method = if direct::posts(capability) { "post" } else { "get" };
        paths.entry(path).or_insert_with(|| json!({ method: direct_operation(capability) }));
    }
    json!({
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "Reeve",
            "version": version,
            "summary": "The broker of a checkout: its executions and what it declares",
        },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas,
        },
    })
}

fn operation(route: &Route) -> Value {
    let parameters: Vec<Value> = route
        .query
        .iter()
        .map(|(name, about)| {
            let (schema, required) = parameter(route.operation, name);
            json!({
                "name": name, "in": "query", "description": about, "required": required,
                "schema": schema,
            })
        })
        .collect();
    let refused = json!({ "$ref": "#/components/schemas/Refused" });
    let mut operation = json!({
        "operationId": route.id,
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            "default": {
                "description": "Why it is not answered.",
                "content": { "application/json": { "schema": refused } },
            },
        },
    });
    if route.operation == Operation::Channel {
        operation["responses"]["101"] =
            json!({ "description": "The live channel: one JSON document per text frame." });
        operation["responses"]["426"] = json!({
            "description": "It was asked for by something that is no WebSocket client.",
            "content": { "application/json": { "schema": refer("Refused") } },
        });
    } else if route.operation == Operation::Raw {
        operation["responses"]["200"] = json!({
            "description": "The lines, each ended by a line feed.",
            "headers": {
                "Reeve-Truncated": {
                    "description": "Whether some of it is no longer kept.",
                    "schema": { "enum": ["true", "false"] },
                },
            },
            "content": { "text/plain": { "schema": { "type": "string" } } },
        });
    } else {
        operation["responses"]["200"] = json!({
            "description": "The answer.",
            "content": { "application/json": { "schema": answer(route.operation) } },
        });
    }
    if route.operation == Operation::Start {
        operation["responses"]["200"]["links"] = links();
    }
    match route.scope {
        None => operation["security"] = json!([]),
        Some(scope) => operation["x-reeve-scope"] = scope.as_str().into(),
    }
    if let Some(schema) = body(route.operation) {
        operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    operation
}

/// Says what can be asked about an execution that was started.
fn links() -> Value {
    let id = "$response.body#/id";
    let asked = ["executions.get", "executions.events", "executions.raw"]
        .map(|name| (name, json!({ "operationId": name, "parameters": { "id": id } })));
    let name = "executions.cancel";
    let told = (name, json!({ "operationId": name, "requestBody": { "id": id } }));
    asked.into_iter().chain([told]).map(|(name, link)| (name.to_owned(), link)).collect()
}

/// Returns the shape of a query parameter, and whether it must be there.
fn parameter(operation: Operation, name: &str) -> (Value, bool) {
    let whole = |least: u8| json!({ "type": "integer", "minimum": least, "maximum": u64::MAX });
    let schema = match (operation, name) {
        (Operation::Capability, "id") => return (refer("CapabilityId"), true),
        (_, "id") => return (refer("ExecutionId"), true),
        (_, "nonce") => {
            return (json!({ "type": "string", "pattern": "^[0-9A-Za-z]{8,128}$" }), true);
        }
        (_, "capability") => refer("CapabilityId"),
        (_, "before") => refer("ExecutionId"),
        (_, "state") => refer("State"),
        (_, "stream") => refer("Output"),
        (_, "limit") => whole(1),
        (_, "after" | "since") => whole(0),
        (_, "execution") => {
            let pattern = "^x-[0-9]{8}T[0-9]{6}Z-[0-9A-Fa-f]{8}(:[0-9]{1,19})?$";
            json!({ "type": "array", "items": { "type": "string", "pattern": pattern } })
        }
        // What a query may hold at all: no control characters.
        _ => json!({ "type": "string", "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$" }),
    };
    (schema, false)
}

/// Says of every whole number without bounds that it has 64 bits, which holds for all of JSON here.
fn bounded(schema: &Value) -> Value {
    match schema {
        Value::Array(items) => items.iter().map(bounded).collect(),
        Value::Object(members) => {
            let mut members: Map<String, Value> =
                members.iter().map(|(name, value)| (name.clone(), bounded(value))).collect();
            let word = "integer";
            let whole = members.get("type").is_some_and(|types| match types {
                Value::Array(types) => types.iter().any(|one| one == word),
                one => one == word,
            });
            if whole {
                members.entry("minimum").or_insert(i64::MIN.into());
                members.entry("maximum").or_insert(u64::MAX.into());
            }
            Value::Object(members)
        }
        other => other.clone(),
    }
}

/// The parts of a handler's schemas that others refer to, by the names that they have here.
fn definitions(capability: &Descriptor) -> Map<String, Value> {
    let schemas = [("input", Some(&capability.input)), ("output", capability.output.as_ref())];
    let mut found = Map::new();
    for (part, schema) in schemas {
        let place = format!("{}.{part}", capability.id);
        let own = schema.and_then(|schema| schema["$defs"].as_object());
        for (name, definition) in own.into_iter().flatten() {
            found.insert(format!("{place}.{name}"), placed(&bounded(definition), &place));
        }
    }
    found
}

/// Returns the input's and the output's schema of a handler, with references that lead somewhere in
/// this document.
fn placed_schemas(capability: &Descriptor) -> [Value; 2] {
    let any = json!({});
    let output = capability.output.as_ref().unwrap_or(&any);
    [("input", bounded(&capability.input)), ("output", output.clone())].map(|(part, mut schema)| {
        if let Some(members) = schema.as_object_mut() {
            members.remove("$defs");
            members.remove("$schema");
        }
        placed(&schema, &format!("{}.{part}", capability.id))
    })
}

/// Lets the references into a schema's own definitions lead to where these stand here.
fn placed(schema: &Value, place: &str) -> Value {
    match schema {
        Value::Array(items) => items.iter().map(|item| placed(item, place)).collect(),
        Value::Object(members) => {
            let moved = members.iter().map(|(name, value)| {
                let own = value.as_str().filter(|_| name == "$ref");
                let moved = own.and_then(|reference| reference.strip_prefix("#/$defs/"));
                let value = match moved {
                    Some(rest) => json!(format!("#/components/schemas/{place}.{rest}")),
                    None => placed(value, place),
                };
                (name.clone(), value)
            });
            Value::Object(moved.collect())
        }
        other => other.clone(),
    }
}

/// Describes the call of a handler without an execution.
fn direct_operation(capability: &Descriptor) -> Value {
    let [input, output] = placed_schemas(capability);
    let refused = refer("Refused");
    let scope = if direct::posts(capability) { Scope::Start } else { Scope::Observe };
    let mut operation = json!({
        "operationId": format!("call.{}", capability.id),
        "summary": capability.title,
        "description": capability.description,
        "x-reeve-scope": scope.as_str(),
        "responses": {
            "200": {
                "description": "What it returned.",
                "content": { "application/json": { "schema": output } },
            },
            "422": {
                "description": "Why it failed; it did run.",
                "content": { "application/json": { "schema": refused } },
            },
            "default": {
                "description": "Why it is not answered.",
                "content": { "application/json": { "schema": refused } },
            },
        },
    });
    if direct::posts(capability) {
        let content = json!({ "application/json": { "schema": input } });
        operation["requestBody"] = json!({ "required": true, "content": content });
        return operation;
    }
    let required = input["required"].as_array();
    let members = input["properties"].as_object();
    let parameters = members.into_iter().flatten().map(|(name, schema)| {
        let needed = required.is_some_and(|required| required.iter().any(|it| it == name));
        json!({ "name": name, "in": "query", "required": needed, "schema": schema })
    });
    operation["parameters"] = parameters.collect();
    operation
}

fn refer(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// An object with exactly these members.
fn object(required: Value, optional: Value) -> Value {
    let needed: Vec<String> =
        required.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
    let members = required.as_object().into_iter().chain(optional.as_object()).flatten();
    let members: Map<String, Value> =
        members.map(|(name, schema)| (name.clone(), schema.clone())).collect();
    json!({
        "type": "object",
        "properties": members,
        "required": needed,
        "additionalProperties": false,
    })
}

fn list_of(item: &Value) -> Value {
    json!({ "type": "array", "items": item })
}

fn answer(operation: Operation) -> Value {
    let (text, count) = (json!({ "type": "string" }), json!({ "type": "integer", "minimum": 0 }));
    let (flag, any) = (json!({ "type": "boolean" }), json!({ "type": "object" }));
    match operation {
        Operation::Instance => object(
            json!({ "instance": text, "version": text, "nonce": text, "proof": text }),
            json!({}),
        ),
        Operation::Health => object(
            json!({ "ok": flag, "instance": text, "version": text, "uptime_ms": count }),
            json!({}),
        ),
        Operation::OpenApi | Operation::Channel | Operation::Raw => any,
        Operation::List => object(
            json!({
                "count": count, "remembered": count, "active": count, "queued": count,
                "live_channels": count, "executions": list_of(&refer("Summary")),
            }),
            json!({ "next": text }),
        ),
        Operation::Get | Operation::Start => refer("Snapshot"),
        Operation::Events => object(
            json!({
                "execution_id": text, "state": refer("State"), "events": list_of(&refer("Event")),
                "last_sequence": count, "head": count, "more": flag, "truncated": flag,
            }),
            json!({
                "gaps": list_of(&object(
                    json!({ "from": count, "to": count, "reason": text }), json!({}))),
                "ahead": object(json!({ "after": count, "head": count }), json!({})),
            }),
        ),
        Operation::Protocol => json!({
            "type": "object",
            "required": ["protocol_version", "epoch", "event_types", "limits"],
            "properties": {
                "protocol_version": text, "epoch": text, "event_types": list_of(&text),
                "limits": refer("Limits"),
            },
        }),
        Operation::Cancel => object(
            json!({
                "outcome": { "enum": ["requested", "already_requested", "already_finished"] },
                "cancellable": flag, "execution": refer("Snapshot"),
            }),
            json!({}),
        ),
        Operation::Report => object(
            json!({ "through": count, "cancel": flag, "state": refer("State") }),
            json!({ "resend_from": count, "fenced": refer("Fault"), "force": flag, "by": text }),
        ),
        Operation::Capabilities => object(
            json!({
                "count": count, "capabilities": list_of(&refer("Descriptor")),
                "problems": list_of(&text), "digest": text,
            }),
            json!({}),
        ),
        Operation::Capability => refer("Descriptor"),
        Operation::Ticket => object(json!({ "ticket": text, "expires_in": count }), json!({})),
    }
}

fn body(operation: Operation) -> Option<Value> {
    let types: Vec<String> = Kind::TAGS.iter().map(|tag| format!("execution.{tag}")).collect();
    let (text, id) = (json!({ "type": "string" }), refer("ExecutionId"));
    match operation {
        Operation::Start => Some(object(
            json!({ "capability": refer("CapabilityId") }),
            json!({
                "input": { "type": ["object", "null"] },
                "idempotency_key": { "type": "string", "minLength": 1, "maxLength": KEY_MAX },
            }),
        )),
        Operation::Cancel => {
            Some(object(json!({ "id": id }), json!({ "force": { "type": "boolean" } })))
        }
        Operation::Report => Some(object(
            json!({
                "id": id, "pid": { "type": "integer", "minimum": 1, "maximum": u32::MAX },
            }),
            json!({
                "description": object(
                    json!({ "capability": refer("CapabilityId") }),
                    json!({
                        "title": text, "input": { "type": ["object", "null"] },
                        "cancellable": { "type": "boolean" },
                    }),
                ),
                "first": { "type": "integer", "minimum": 1, "maximum": i64::MAX },
                "events": { "type": "array", "maxItems": 500, "items": {
                    "type": "object",
                    "required": ["type"],
                    "properties": { "type": { "enum": types }, "data": { "type": "object" } },
                } },
            }),
        )),
        _ => None,
    }
}

fn schemas() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12()
        .for_serialize()
        .with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut generator = settings.into_generator();
    generator.subschema_for::<Snapshot>();
    generator.subschema_for::<Fault>();
    generator.subschema_for::<Descriptor>();
    generator.subschema_for::<Limits>();
    generator.subschema_for::<Event>();
    generator.subschema_for::<State>();
    generator.subschema_for::<Output>();
    let mut schemas = generator.take_definitions(true);
    let mut summary = schemas.get("Snapshot").cloned().unwrap_or_default();
    if let Some(members) = summary["properties"].as_object_mut() {
        members.remove("input");
    }
    if let Some(required) = summary["required"].as_array_mut() {
        required.retain(|name| name != "input");
    }
    schemas.insert("Summary".to_owned(), summary);
    schemas.insert("Refused".to_owned(), object(json!({ "error": refer("Fault") }), json!({})));
    schemas
}
