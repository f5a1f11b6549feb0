//! Answers: JSON with the headers that every answer has.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderName, HeaderValue, StatusCode, header};
use reeve_protocol::{Code, Fault};
use serde_json::{Value, json};

/// The headers of every answer. No other site may read, frame or guess at any of it.
pub const ALWAYS: [(&str, &str); 6] = [
    ("cache-control", "no-store"),
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "same-origin"),
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
];

/// Seconds after which a busy broker may be asked again.
const RETRY_AFTER: &str = "1";

/// The status of a call that was good, ran and failed.
const FAILED: u16 = 422;

/// A request that is not answered as asked.
#[derive(Debug)]
pub struct Refusal {
    status: u16,
    fault: Fault,
    headers: Vec<(&'static str, &'static str)>,
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        // Where the end of an execution is read, a failure is what was asked for; here it is not.
        let status = Some(fault.code.http_status()).filter(|status| *status >= 400);
        Self { status: status.unwrap_or(FAILED), fault, headers: Vec::new() }
    }
}

impl Refusal {
    /// Answers with a status that says more than the code's own.
    #[must_use]
    pub fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Names the methods that are taken.
    #[must_use]
    pub fn allow(self, methods: &'static str) -> Self {
        self.header("allow", methods)
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Returns the status.
    pub fn code(&self) -> u16 {
        self.status
    }

    /// Ties the answer to a line of the broker's log, where nothing else ties it.
    #[must_use]
    pub fn about(mut self, correlation: &str) -> Self {
        // Whoever has no token learns nothing, not even how many asked before.
        if self.fault.correlation_id.is_empty() && self.fault.code != Code::Unauthorized {
            self.fault.correlation_id = correlation.to_owned();
        }
        self
    }

    /// Returns the fault.
    pub fn fault(&self) -> &Fault {
        &self.fault
    }

    fn extra(&self) -> Vec<(&'static str, &'static str)> {
        let mut headers = self.headers.clone();
        match self.fault.code {
            Code::Unauthorized => headers.push(("www-authenticate", "Bearer")),
            Code::Busy | Code::Unavailable => headers.push(("retry-after", RETRY_AFTER)),
            _ => {}
        }
        headers
    }

    /// Returns the answer.
    pub fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_REQUEST);
        let mut response = json_response(status, &json!({ "error": self.fault }));
        for (name, value) in self.extra() {
            response
                .headers_mut()
                .insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        response
    }

    /// Returns the answer as bytes, for a request that no library has seen.
    pub fn to_bytes(&self) -> Vec<u8> {
        let body = text(&json!({ "error": self.fault }));
        let phrase = StatusCode::from_u16(self.status)
            .ok()
            .and_then(|status| status.canonical_reason())
            .unwrap_or("Refused");
        let mut head = format!("HTTP/1.1 {} {phrase}\r\n", self.status);
        for (name, value) in ALWAYS.into_iter().chain(self.extra()) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!(
            "content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        ));
        head.push_str(&body);
        head.into_bytes()
    }
}

fn text(value: &Value) -> String {
    let mut text = value.to_string();
    text.push('\n');
    text
}

/// Returns an answer of JSON.
pub fn json_response(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(text(value)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // One request per connection: the next one's head is looked at as this one's was.
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    dress(&mut response);
    response
}

/// Returns an answer of plain text.
pub fn text_response(text: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    dress(&mut response);
    response
}

/// Puts the headers of every answer on.
pub fn dress(response: &mut Response) {
    for (name, value) in ALWAYS {
        response
            .headers_mut()
            .insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
}
