//! Doors to what is private here and reads what a stranger wrote, for the targets of the fuzz test.
//!
//! No part of the interface: it is there with the feature `fuzz` only, and decides nothing.

use bytes::{Bytes, BytesMut};
use reeve_protocol::Fault;
use reeve_protocol::frame::BadFrame;

use crate::edge::http::call::{Query, parameters};
use crate::edge::http::head;
use crate::edge::worker;
use crate::edge::ws::{PARAMETERS, frames, target};

/// Looks at the head of a request: whether it is whole, or the status that refuses it.
///
/// # Errors
///
/// The status.
pub fn http_head(seen: &[u8]) -> Result<bool, u16> {
    head::check(&BytesMut::from(seen)).map_err(|refusal| refusal.code())
}

/// Takes a query apart.
///
/// # Errors
///
/// The refusal.
pub fn query(text: &str) -> Result<Vec<(String, String)>, Fault> {
    parameters(Some(text))
}

/// Reads the query of an upgrade, and shows what it makes of it.
///
/// # Errors
///
/// The refusal.
pub fn channel_query(text: &str) -> Result<String, Fault> {
    let query = Query::parse(Some(text), PARAMETERS, &["execution"])?;
    target::parse(&query).map(|target| format!("{target:?}"))
}

/// Reads a text frame of a client, and shows what it makes of it.
///
/// # Errors
///
/// The refusal.
pub fn client_text(text: &str) -> Result<String, Fault> {
    frames::parse(text).map(|asked| format!("{asked:?}"))
}

/// Reads a frame of a worker; whether its kind is known.
///
/// # Errors
///
/// Why it is not taken.
pub fn worker_frame(kind: u8, body: Bytes) -> Result<bool, BadFrame> {
    worker::decode(kind, body).map(|frame| frame.is_some())
}
