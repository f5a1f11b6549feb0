//! The gates: what every request must show before anybody looks at where it goes.
//!
//! In this order: one host that is ours, an origin that is ours or none, no other site, a token,
//! its scope. A page of another site, a name that was made to resolve here and another program
//! on this machine each fail at one of them.

use http::{HeaderMap, header};
use reeve_protocol::{Code, Fault};

use super::Surface;
use super::answer::Refusal;
use crate::token::{Scope, Scopes};

/// What a request has shown.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// What it may do; nothing for a request without a token.
    pub scopes: Option<Scopes>,
}

impl Caller {
    /// Returns whether it may do this.
    ///
    /// # Errors
    ///
    /// `unauthorized` without a token, `forbidden` without the scope.
    pub fn may(self, scope: Scope) -> Result<(), Refusal> {
        let scopes = self.scopes.ok_or_else(unauthorized)?;
        if scopes.allow(scope) {
            return Ok(());
        }
        let message = format!("this token allows {scopes}; this needs {}", scope.as_str());
        let hint = format!("make one with `reeve token --scope {}`", scope.as_str());
        Err(Fault::new(Code::Forbidden, message).because("scope").hint(hint).into())
    }
}

/// Checks where a request comes from; says nothing of who it is.
///
/// # Errors
///
/// `forbidden`, naming the gate.
pub fn place(headers: &HeaderMap, port: u16) -> Result<(), Refusal> {
    let host = one(headers, "host").unwrap_or_default();
    let ours = ["127.0.0.1", "[::1]", "localhost"].map(|name| format!("{name}:{port}"));
    if !ours.iter().any(|name| name == host) {
        let message = format!("the host of this request is not {}", ours.join(" or "));
        return Err(forbidden("forbidden_host", message));
    }
    if headers.contains_key(header::ORIGIN) {
        let own = format!("http://{host}");
        if one(headers, "origin") != Some(own.as_str()) {
            let message = "this request comes from a page of another origin";
            return Err(forbidden("forbidden_origin", message));
        }
    }
    Ok(())
}

/// Checks that no other site made a browser send this.
///
/// # Errors
///
/// `forbidden`, naming the gate.
pub fn site(headers: &HeaderMap) -> Result<(), Refusal> {
    if headers.contains_key("sec-fetch-site") {
        let site = one(headers, "sec-fetch-site");
        if !matches!(site, Some("same-origin" | "none")) {
            return Err(forbidden("forbidden_site", "this request comes from another site"));
        }
    }
    Ok(())
}

/// Looks at the token of a request; one that is not there or not good is nobody's.
pub fn caller(headers: &HeaderMap, surface: &Surface) -> Caller {
    let token = one(headers, "authorization").and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim_start_matches(' '))
    });
    Caller { scopes: token.and_then(|token| surface.keys().check(token)) }
}

/// Says that no good token came; nothing in it tells why.
pub fn unauthorized() -> Refusal {
    Fault::new(Code::Unauthorized, "this needs a token")
        .hint("send `Authorization: Bearer TOKEN`; `reeve token` prints one")
        .into()
}

fn forbidden(reason: &str, message: impl Into<String>) -> Refusal {
    Fault::new(Code::Forbidden, message).because(reason).into()
}

/// Returns the value of a header that stands exactly once.
pub fn one<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() { None } else { value.to_str().ok() }
}
