//! The live channel: events over a WebSocket, one JSON document per text frame.
//!
//! A channel is a reader like any other: a position per execution and no queue. What it is sent
//! comes from the same pump that feeds the local socket.

mod channel;
mod encode;
pub mod frames;
mod lengths;
pub mod ready;
mod schema;
pub mod target;

pub use schema::control as control_schema;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use reeve_protocol::{Code, Fault};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::http::Surface;
use super::http::answer::{Refusal, dress};
use super::http::call::Query;
use super::http::gate::{Caller, one};

pub use self::channel::heartbeat_seconds;
pub use self::target::PARAMETERS;

/// Channels that are open at once, at most.
pub const CHANNELS_MAX: usize = 64;
/// Bytes of one frame that we send, at most.
pub const FRAME_MAX: usize = 256 << 10;
/// The documents that are no events, by their type.
pub const STREAM_TYPES: &[&str] = &[
    "stream.ready",
    "stream.heartbeat",
    "stream.lagged",
    "stream.overlay",
    "stream.closing",
    "stream.subscribed",
    "stream.unsubscribed",
    "stream.cancelled",
    "stream.pong",
    "stream.error",
];
/// The version of RFC 6455.
const VERSION: &str = "13";

/// Answers an upgrade, and leaves a channel behind that serves itself.
///
/// # Errors
///
/// A refusal: no upgrade, another version, no key, a bad target, too many channels.
pub fn upgrade(
    mut request: Request<Body>,
    query: &Query,
    caller: Caller,
    surface: &Surface,
) -> Result<Response, Refusal> {
    let headers = request.headers();
    if !is_upgrade(headers) {
        let message = "/events is a WebSocket";
        return Err(upgrade_required(message).header("upgrade", "websocket"));
    }
    if one(headers, "sec-websocket-version") != Some(VERSION) {
        let message = "version 13 of the WebSocket protocol is spoken here";
        return Err(upgrade_required(message).header("sec-websocket-version", VERSION));
    }
    let key = one(headers, "sec-websocket-key").filter(|key| is_key(key)).ok_or_else(|| {
        Fault::new(Code::InvalidRequest, "Sec-WebSocket-Key is no key of 16 bytes in base64")
            .because("key")
    })?;
    let accept = derive_accept_key(key.as_bytes());
    let target = target::parse(query)?;
    let slot = surface.channel_slot().ok_or_else(|| {
        Fault::new(Code::Unavailable, format!("{CHANNELS_MAX} live channels are open"))
            .because("too_many_channels")
            .hint("close one, or follow several executions on one channel")
    })?;
    let upgraded = hyper::upgrade::on(&mut request);
    let (surface, scopes) = (surface.clone(), caller.scopes);
    actix::spawn(async move {
        let _slot = slot;
        match upgraded.await {
            Ok(upgraded) => channel::serve(upgraded, target, scopes, surface).await,
            Err(error) => tracing::debug!(%error, "an upgrade came to nothing"),
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    dress(&mut response);
    let headers = response.headers_mut();
    headers.insert("connection", HeaderValue::from_static("upgrade"));
    headers.insert("upgrade", HeaderValue::from_static("websocket"));
    let accept = HeaderValue::from_str(&accept).expect("base64 is a header's value");
    headers.insert("sec-websocket-accept", accept);
    Ok(response)
}

fn upgrade_required(message: &str) -> Refusal {
    Fault::new(Code::UpgradeRequired, message)
        .hint("open it with a WebSocket client, or read GET /api/v1/executions/events (executions.events)")
        .into()
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    let names = |name: &str, word: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .any(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(word)))
    };
    names("upgrade", "websocket") && names("connection", "upgrade")
}

/// 16 bytes in base64 are 22 of its letters and two signs of padding.
fn is_key(key: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    key.strip_suffix("==").is_some_and(|rest| rest.len() == 22 && rest.bytes().all(letter))
}
