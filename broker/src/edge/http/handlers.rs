//! The answers of the routes: each decodes, asks the broker, and hands its answer on.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, Request};
use reeve_protocol::snapshot::{Actor, ActorKind};
use reeve_protocol::{CapabilityId, Code, ExecutionId, Fault, Output, Seq, State};
use serde_json::{Value, json};

use super::Surface;
use super::answer::{self, Refusal};
use super::call::{Query, body, flag_member, text_member};
use super::gate::{Caller, one, unauthorized};
use super::route::{Operation, Route};
use super::ticket;
use crate::admit::admit;
use crate::plane::Input;
use crate::reads::ListQuery;

/// Letters and digits of a caller's nonce.
const NONCE: std::ops::RangeInclusive<usize> = 8..=128;
/// Characters of an idempotency key, at most.
pub const KEY_MAX: usize = 128;

pub fn instance(query: &Query, surface: &Surface) -> Result<Value, Refusal> {
    let nonce: String = query.needed("nonce")?;
    if !NONCE.contains(&nonce.len()) || !nonce.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(Fault::new(Code::InvalidRequest, "nonce: 8 to 128 letters and digits")
            .because("shape")
            .into());
    }
    let about = &surface.broker().about;
    Ok(json!({
        "instance": about.instance,
        "version": about.version,
        "nonce": nonce,
        "proof": surface.keys().proof(&nonce),
    }))
}

/// Asks the plane for nothing, which it must answer.
pub async fn health(surface: &Surface) -> Result<Value, Refusal> {
    let broker = surface.broker();
    let (subscriber, _signal) = broker.switchboard.reader();
    let asked = broker.ask(|request| Input::Subscribe {
        request,
        subscriber,
        executions: Vec::new(),
        all: false,
    });
    let answered = asked.await;
    broker.switchboard.reader_left(subscriber);
    answered?;
    Ok(json!({
        "ok": true,
        "instance": broker.about.instance,
        "version": broker.about.version,
        "uptime_ms": u64::try_from(broker.uptime().as_millis()).unwrap_or(u64::MAX),
    }))
}

pub async fn list(query: &Query, surface: &Surface) -> Result<Value, Refusal> {
    let state = match query.get("state") {
        None => None,
        Some(word) => Some(serde_json::from_value::<State>(word.into()).map_err(|_| {
            Fault::new(Code::InvalidRequest, "state: this is no state")
                .because("shape")
                .hint("there are queued, running, cancelling, succeeded, failed and cancelled")
        })?),
    };
    let query = ListQuery {
        state,
        capability: query.typed::<CapabilityId>("capability")?,
        limit: query.number("limit")?,
        before: query.typed::<ExecutionId>("before")?,
    };
    Ok(surface.broker().list(&query).await?)
}

pub async fn events(query: &Query, surface: &Surface) -> Result<Value, Refusal> {
    let id = query.needed("id")?;
    let after = Seq(query.number("after")?.unwrap_or_default());
    Ok(surface.broker().events(id, after, query.number("limit")?).await?)
}

pub async fn raw(query: &Query, surface: &Surface) -> Result<Response, Refusal> {
    let id: ExecutionId = query.needed("id")?;
    let stream = match query.get("stream") {
        None => None,
        Some(word) => Some(serde_json::from_value::<Output>(word.into()).map_err(|_| {
            Fault::new(Code::InvalidRequest, "stream: there are stdout, stderr and handler")
                .because("shape")
        })?),
    };
    let (output, missing) = surface.broker().output(id, stream).await?;
    let mut response = answer::text_response(output);
    let name = format!("attachment; filename=\"{id}.log\"");
    let headers = response.headers_mut();
    headers.insert("content-disposition", name.parse().expect("an id is a header's value"));
    headers.insert(
        "reeve-truncated",
        HeaderValue::from_static(if missing { "true" } else { "false" }),
    );
    Ok(response)
}

pub async fn start(request: Request<Body>, surface: &Surface) -> Result<Value, Refusal> {
    let members = body(request, &["capability", "input", "idempotency_key"], surface).await?;
    let id: CapabilityId = text_member(&members, "capability")?;
    let key = match members.get("idempotency_key") {
        None => None,
        Some(key) => {
            let good = key.as_str().filter(|key| (1..=KEY_MAX).contains(&key.chars().count()));
            let message = || format!("\"idempotency_key\" is a text of 1 to {KEY_MAX} characters");
            let refusal = || Fault::new(Code::InvalidArgs, message()).because("shape");
            Some(good.ok_or_else(refusal)?.to_owned())
        }
    };
    let input = members.get("input").cloned().unwrap_or_default();
    let admitted = admit(surface.broker(), &surface.0.validators, &id, input).await?;
    let actor = Actor { kind: ActorKind::Http, peer: None, pid: None };
    surface.broker().start(admitted, actor, key).await.map_err(|fault| {
        let conflict = fault.reason.as_deref() == Some("idempotency_conflict");
        let refusal = Refusal::from(fault);
        if conflict { refusal.status(409) } else { refusal }
    })
}

pub async fn cancel(request: Request<Body>, surface: &Surface) -> Result<Value, Refusal> {
    let members = body(request, &["id", "force"], surface).await?;
    let id: ExecutionId = text_member(&members, "id")?;
    let force = flag_member(&members, "force")?;
    Ok(surface.broker().cancel(id, "http", force).await?)
}

pub fn ticket(
    request: &Request<Body>,
    caller: Caller,
    surface: &Surface,
) -> Result<Value, Refusal> {
    let scopes = caller.scopes.ok_or_else(unauthorized)?;
    let origin = one(request.headers(), "origin");
    let made = surface.0.tickets.make(scopes, origin, surface.broker().uptime())?;
    Ok(json!({ "ticket": made, "expires_in": ticket::GOOD_FOR.as_secs() }))
}

/// Looks for a ticket where one is taken, and uses it up.
pub fn by_ticket(
    request: &Request<Body>,
    route: Option<&'static Route>,
    surface: &Surface,
) -> Option<Caller> {
    let route = route.filter(|route| route.operation == Operation::Channel)?;
    let upgrades = request.headers().contains_key("upgrade");
    let anonymous = !request.headers().contains_key("authorization");
    let query = Query::parse(request.uri().query(), route.query, &["execution"]).ok()?;
    let ticket = query.get("ticket").filter(|_| upgrades && anonymous)?;
    let origin = one(request.headers(), "origin");
    let scopes = surface.0.tickets.use_up(ticket, origin, surface.broker().uptime())?;
    Some(Caller { scopes: Some(scopes) })
}
