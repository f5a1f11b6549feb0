//! Direct routes: every handler capability under its own path, answered without an execution.
//!
//! The path is the id with slashes for its dots. One that only reads is asked by GET, with its
//! input in the query; any other by POST, with its input as the body. The same checks stand before
//! it as before a start.

use axum::body::Body;
use http::{Method, Request};
use reeve_protocol::capability::{CapabilityKind, Effect, Loaded};
use reeve_protocol::input::of_text;
use reeve_protocol::{Code, Descriptor, Fault};
use serde_json::{Map, Value};

use super::Surface;
use super::answer::Refusal;
use super::call::{object, parameters, shown};
use super::gate::Caller;
use crate::admit::admit;
use crate::token::Scope;

/// What every path of this surface begins with.
const BASE: &str = "/api/v1/";

/// Returns the path of a capability that has one of its own.
pub fn path_of(capability: &Descriptor) -> Option<String> {
    let handler = capability.kind == CapabilityKind::Handler;
    handler.then(|| format!("{BASE}{}", capability.id.as_str().replace('.', "/")))
}

/// Returns the capability behind a path.
pub fn find(path: &str, registry: &Loaded) -> Option<Descriptor> {
    let named = |one: &&Descriptor| path_of(one).is_some_and(|own| own == path);
    registry.descriptors.iter().find(named).cloned()
}

/// Returns whether a capability is asked for by POST.
pub fn posts(capability: &Descriptor) -> bool {
    capability.effect != Effect::Read
}

/// Answers a call.
pub async fn answer(
    request: Request<Body>,
    capability: &Descriptor,
    caller: Caller,
    surface: &Surface,
) -> Result<Value, Refusal> {
    let (taken, scope) = match posts(capability) {
        true => ("POST", Scope::Start),
        false => ("GET, HEAD", Scope::Observe),
    };
    let fits = match *request.method() {
        Method::POST => posts(capability),
        Method::GET | Method::HEAD => !posts(capability),
        _ => false,
    };
    if !fits {
        let message = format!("this route takes {taken}");
        return Err(Refusal::from(Fault::new(Code::MethodNotAllowed, message)).allow(taken));
    }
    caller.may(scope)?;
    let input = if posts(capability) {
        Value::Object(object(request, surface).await?)
    } else {
        from_query(request.uri().query(), &capability.input)?
    };
    let broker = surface.broker();
    let admitted = admit(broker, &surface.0.validators, &capability.id, input).await?;
    Ok(broker.call(admitted).await?)
}

/// Reads an input from a query, by the types that the schema wants.
fn from_query(query: Option<&str>, schema: &Value) -> Result<Value, Fault> {
    let mut input = Map::new();
    let known = schema["properties"].as_object();
    for (name, text) in parameters(query)? {
        let Some(member) = known.and_then(|known| known.get(&name)) else {
            let names: Vec<&str> = known.into_iter().flatten().map(|(name, _)| &**name).collect();
            let hint = match names.is_empty() {
                true => "this route takes no parameters".to_owned(),
                false => format!("known are {}", names.join(", ")),
            };
            let message = format!("unknown parameter {}", shown(&name));
            return Err(Fault::new(Code::InvalidRequest, message)
                .because("unknown_parameter")
                .hint(hint));
        };
        let value = of_text(&text, member, schema);
        if input.insert(name.clone(), value).is_some() {
            let message = format!("the parameter {} stands twice", shown(&name));
            return Err(Fault::new(Code::InvalidRequest, message).because("repeated"));
        }
    }
    Ok(Value::Object(input))
}
