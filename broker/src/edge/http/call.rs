//! Calls: the parameters and the body of a request, read strictly.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use reeve_protocol::{Code, Fault, strict};
use serde_json::{Map, Value};

use super::Surface;
use super::answer::Refusal;
use super::gate::one;
use super::head::{BODY_MAX, body_too_large};

/// How long a body may take.
const BODY_DEADLINE: Duration = Duration::from_secs(10);
/// A larger body is read on a thread of its own.
const INLINE_BYTES: usize = 64 << 10;
/// Parameters of a query, at most.
const PARAMETERS_MAX: usize = 2_000;

/// The parameters of a query, in order.
#[derive(Debug, Default)]
pub struct Query(Vec<(&'static str, String)>);

impl Query {
    /// Reads a query; what is not known is refused, naming what is.
    ///
    /// # Errors
    ///
    /// `invalid_request`, naming the parameter.
    pub fn parse(
        text: Option<&str>,
        known: &'static [(&'static str, &'static str)],
        repeats: &[&str],
    ) -> Result<Self, Fault> {
        let mut read: Vec<(&'static str, String)> = Vec::new();
        for (name, value) in parameters(text)? {
            let Some((name, _)) = known.iter().find(|(known, _)| *known == name) else {
                return Err(unknown_parameter(&name, known));
            };
            let twice = read.iter().any(|(other, _)| other == name);
            if twice && !repeats.contains(name) {
                return Err(bad(format!("the parameter {name} stands twice")).because("repeated"));
            }
            read.push((name, value));
        }
        Ok(Self(read))
    }

    /// Returns a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| *other == name).map(|(_, value)| value.as_str())
    }

    /// Returns every value of a parameter.
    pub fn all<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.0.iter().filter(move |(other, _)| *other == name).map(|(_, value)| value.as_str())
    }

    /// Returns a parameter in its type.
    ///
    /// # Errors
    ///
    /// `invalid_request` when it does not have the shape.
    pub fn typed<T: std::str::FromStr<Err: std::fmt::Display>>(
        &self,
        name: &str,
    ) -> Result<Option<T>, Fault> {
        let parse = |text: &str| {
            text.parse::<T>().map_err(|error| bad(format!("{name}: {error}")).because("shape"))
        };
        self.get(name).map(parse).transpose()
    }

    /// Returns a parameter that must be there.
    ///
    /// # Errors
    ///
    /// `invalid_request` when it is missing or does not have the shape.
    pub fn needed<T: std::str::FromStr<Err: std::fmt::Display>>(
        &self,
        name: &str,
    ) -> Result<T, Fault> {
        self.typed(name)?
            .ok_or_else(|| bad(format!("the parameter {name} is missing")).because("missing"))
    }

    /// Returns a whole number of at least zero.
    ///
    /// # Errors
    ///
    /// `invalid_request` for anything else.
    pub fn number(&self, name: &str) -> Result<Option<u64>, Fault> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| digits);
        number.map(Some).ok_or_else(|| {
            bad(format!("{name}: {} is no whole number from 0 on", shown(text))).because("shape")
        })
    }
}

/// Takes a query apart, whatever its parameters are called.
///
/// # Errors
///
/// `invalid_request` when one is no text, or there are too many.
pub fn parameters(text: Option<&str>) -> Result<Vec<(String, String)>, Fault> {
    let mut parameters = Vec::new();
    for part in text.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
        if parameters.len() >= PARAMETERS_MAX {
            return Err(bad(format!("a query has at most {PARAMETERS_MAX} parameters")));
        }
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        parameters.push((decode(name)?, decode(value)?));
    }
    Ok(parameters)
}

fn unknown_parameter(name: &str, known: &[(&str, &str)]) -> Fault {
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let hint = match names.is_empty() {
        true => "this route takes no parameters".to_owned(),
        false => format!("known are {}", names.join(", ")),
    };
    bad(format!("unknown parameter {}", shown(name))).because("unknown_parameter").hint(hint)
}

fn bad(message: String) -> Fault {
    Fault::new(Code::InvalidRequest, message)
}

/// Shows a little of what was sent, made harmless.
pub fn shown(text: &str) -> String {
    format!("{:?}", reeve_protocol::sanitise::text(text, strict::SHOWN_MAX))
}

fn decode(text: &str) -> Result<String, Fault> {
    let wrong = || bad("a parameter is no text in UTF-8, escaped with %".to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let decoded = match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
                let (high, low) = (digit().ok_or_else(wrong)?, digit().ok_or_else(wrong)?);
                u8::try_from(high * 16 + low).expect("two digits are a byte")
            }
            other => other,
        };
        bytes.push(decoded);
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong().because("shape"))?;
    if text.chars().any(char::is_control) {
        return Err(bad("a parameter has no control characters".to_owned()).because("shape"));
    }
    Ok(text)
}

/// Reads the body of a request as one JSON object with known members.
///
/// # Errors
///
/// A refusal that says at which step it stopped.
pub async fn body(
    request: Request<Body>,
    known: &[&str],
    surface: &Surface,
) -> Result<Map<String, Value>, Refusal> {
    let members = object(request, surface).await?;
    if let Some(name) = members.keys().find(|name| !known.contains(&name.as_str())) {
        return Err(bad(format!("unknown member {}", shown(name)))
            .because("unknown_field")
            .hint(format!("known are {}", known.join(", ")))
            .into());
    }
    Ok(members)
}

/// Reads the body of a request as one JSON object.
///
/// # Errors
///
/// A refusal that says at which step it stopped.
pub async fn object(
    request: Request<Body>,
    surface: &Surface,
) -> Result<Map<String, Value>, Refusal> {
    content(request.headers())?;
    let limited =
        Limited::new(request.into_body(), usize::try_from(BODY_MAX).unwrap_or(usize::MAX));
    let read = tokio::time::timeout(BODY_DEADLINE, limited.collect()).await;
    let bytes = match read {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(body_too_large().into()),
        Ok(Err(error)) => {
            tracing::debug!(error, "a body broke off");
            return Err(bad("the body is not framed as its head says".to_owned())
                .because("framing")
                .into());
        }
        Err(_) => {
            let message = format!("the body did not come within {} s", BODY_DEADLINE.as_secs());
            return Err(Fault::new(Code::Timeout, message).because("body_deadline").into());
        }
    };
    match parse(bytes, surface).await? {
        Value::Object(members) => Ok(members),
        _ => Err(bad("the body is no JSON object".to_owned()).because("shape").into()),
    }
}

/// Checks that a body is plain JSON.
fn content(headers: &HeaderMap) -> Result<(), Refusal> {
    let unsupported = |reason: &str, message: &str| -> Refusal {
        Fault::new(Code::Unsupported, message).because(reason).into()
    };
    if headers.contains_key("content-encoding")
        && !one(headers, "content-encoding").is_some_and(|it| it.eq_ignore_ascii_case("identity"))
    {
        return Err(unsupported("unsupported_encoding", "a body is sent as it is, not compressed"));
    }
    let kind = one(headers, "content-type").unwrap_or_default().to_ascii_lowercase();
    let mut parts = kind.split(';').map(str::trim);
    let json = parts.next() == Some("application/json");
    let utf8 = parts.all(|part| matches!(part, "charset=utf-8" | "charset=\"utf-8\"" | ""));
    if !json || !utf8 {
        let message = "a body is JSON in UTF-8, and Content-Type says application/json";
        return Err(unsupported("content_type", message));
    }
    Ok(())
}

async fn parse(bytes: Bytes, surface: &Surface) -> Result<Value, Fault> {
    let parsed = if bytes.len() <= INLINE_BYTES {
        strict::parse(&bytes)
    } else {
        let _turn = surface.decoding().await;
        tokio::task::spawn_blocking(move || strict::parse(&bytes))
            .await
            .map_err(|_| Fault::new(Code::Internal, "a body could not be read"))?
    };
    parsed.map_err(|error| {
        bad(format!("the body is no JSON that is taken: {error}")).because(error.reason())
    })
}

/// Takes a member that is a text of some shape out of a body.
///
/// # Errors
///
/// `INVALID_ARGS` when it is missing or has another type, `invalid_request` for another shape.
pub fn text_member<T: std::str::FromStr<Err: std::fmt::Display>>(
    members: &Map<String, Value>,
    name: &str,
) -> Result<T, Fault> {
    let text = members.get(name).and_then(Value::as_str).ok_or_else(|| {
        Fault::new(Code::InvalidArgs, format!("{name:?} is a text and must be there"))
            .because("shape")
    })?;
    text.parse().map_err(|error: T::Err| {
        bad(reeve_protocol::sanitise::text(&format!("{name}: {error}"), 200)).because("shape")
    })
}

/// Takes a member that is true or false, false if it is missing.
///
/// # Errors
///
/// `INVALID_ARGS` when it has another type.
pub fn flag_member(members: &Map<String, Value>, name: &str) -> Result<bool, Fault> {
    match members.get(name) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => {
            Err(Fault::new(Code::InvalidArgs, format!("{name:?} is true or false"))
                .because("shape"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[(&str, &str)] = &[("id", ""), ("after", ""), ("execution", "")];

    fn query(text: &str) -> Result<Query, Fault> {
        Query::parse(Some(text), KNOWN, &["execution"])
    }

    #[test]
    fn parameters_are_read_as_they_were_meant() {
        let read = query("id=a%2Bb+c&execution=1&execution=2&after=42").unwrap();
        assert_eq!(read.get("id"), Some("a+b c"));
        assert_eq!(read.all("execution").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(read.number("after"), Ok(Some(42)));
        assert!(query("").unwrap().get("id").is_none());
    }

    #[test]
    fn what_is_unknown_or_broken_is_refused() {
        let fault = query("afer=42").unwrap_err();
        assert_eq!(fault.reason.as_deref(), Some("unknown_parameter"));
        assert!(fault.suggestion.unwrap().contains("after"));
        for text in ["id=%zz", "id=%00", "id=%ff", "id=%f", "id=%", "id=1&id=2", "id=%0a"] {
            assert_eq!(query(text).unwrap_err().code, Code::InvalidRequest, "{text}");
        }
        for text in ["after=-1", "after=", "after=1.0", "after=+1", "after=99999999999999999999"] {
            assert!(query(text).unwrap().number("after").is_err(), "{text}");
        }
    }
}
