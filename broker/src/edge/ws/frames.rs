//! What a client may say on a channel: one JSON object per text frame.

use reeve_protocol::stream::FollowFrom;
use reeve_protocol::{Code, ExecutionId, Fault, Seq, strict};
use serde_json::{Map, Value};

use super::target::follow;

/// What a client asks.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// Follow further executions, or everything.
    Subscribe {
        /// By name, each from a cursor.
        executions: Vec<FollowFrom>,
        /// Everything from now on.
        all: bool,
        /// The history that the cursors belong to.
        epoch: Option<String>,
    },
    /// Follow these no longer; none named means all.
    Unsubscribe {
        /// Which.
        executions: Vec<ExecutionId>,
    },
    /// Everything through a sequence has arrived.
    Ack,
    /// Ask an execution to stop.
    Cancel {
        /// Which.
        execution: ExecutionId,
        /// Kill at once.
        force: bool,
    },
    /// Answer, to see that the channel lives.
    Ping {
        /// Comes back with the answer.
        nonce: Value,
    },
}

/// Reads a frame.
///
/// # Errors
///
/// `invalid_request`, naming what is wrong.
pub fn parse(text: &str) -> Result<Asked, Fault> {
    let value = strict::parse(text.as_bytes())
        .map_err(|error| bad(format!("a frame is one JSON object: {error}")))?;
    let members = value.as_object().ok_or_else(|| bad("a frame is one JSON object".to_owned()))?;
    let known: &[&str] = match members.get("type").and_then(Value::as_str) {
        Some("subscribe") => &["executions", "all", "epoch"],
        Some("unsubscribe") => &["executions"],
        Some("ack") => &["execution", "sequence"],
        Some("cancel") => &["execution", "force"],
        Some("ping") => &["nonce"],
        _ => {
            let hint = "there are subscribe, unsubscribe, ack, cancel and ping";
            return Err(bad("a frame of an unknown type".to_owned()).hint(hint));
        }
    };
    if members.keys().any(|name| name != "type" && !known.contains(&name.as_str())) {
        return Err(bad("a frame has an unknown member".to_owned())
            .hint(format!("known are type, {}", known.join(", "))));
    }
    asked(members)
}

fn asked(members: &Map<String, Value>) -> Result<Asked, Fault> {
    Ok(match members["type"].as_str() {
        Some("subscribe") => Asked::Subscribe {
            executions: list(members)?.iter().map(from).collect::<Result<_, _>>()?,
            all: flag(members, "all")?,
            epoch: match members.get("epoch") {
                None | Some(Value::Null) => None,
                Some(Value::String(epoch)) => Some(epoch.clone()),
                Some(_) => return Err(bad("\"epoch\" is a text".to_owned())),
            },
        },
        Some("unsubscribe") => Asked::Unsubscribe {
            executions: list(members)?.iter().map(id).collect::<Result<_, _>>()?,
        },
        Some("ack") => {
            id(members.get("execution").unwrap_or(&Value::Null))?;
            Asked::Ack
        }
        Some("cancel") => Asked::Cancel {
            execution: id(members.get("execution").unwrap_or(&Value::Null))?,
            force: flag(members, "force")?,
        },
        _ => Asked::Ping { nonce: members.get("nonce").cloned().unwrap_or_default() },
    })
}

fn flag(members: &Map<String, Value>, name: &str) -> Result<bool, Fault> {
    match members.get(name) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(bad(format!("{name:?} is true or false"))),
    }
}

fn bad(message: String) -> Fault {
    Fault::new(Code::InvalidRequest, message)
}

fn list(members: &Map<String, Value>) -> Result<&[Value], Fault> {
    match members.get("executions") {
        None => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(bad("\"executions\" is a list".to_owned())),
    }
}

fn id(value: &Value) -> Result<ExecutionId, Fault> {
    value
        .as_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| bad("an execution is named by its id".to_owned()))
}

fn from(value: &Value) -> Result<FollowFrom, Fault> {
    match value {
        Value::String(text) => follow(text, Seq::NONE),
        other => Ok(FollowFrom {
            execution: id(&other["execution"])?,
            after: match &other["after"] {
                Value::Null => Seq::NONE,
                after => Seq(after
                    .as_u64()
                    .ok_or_else(|| bad("\"after\" is a whole number".to_owned()))?),
            },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_of_another_type_is_refused_and_never_taken_for_its_default() {
        let id = "x-20260908T010203Z-0a1b2c3d";
        for (good, bad) in [
            (
                r#"{"type":"subscribe","all":true}"#.to_owned(),
                r#"{"type":"subscribe","all":1}"#.to_owned(),
            ),
            (
                r#"{"type":"subscribe","epoch":"e"}"#.to_owned(),
                r#"{"type":"subscribe","epoch":7}"#.to_owned(),
            ),
            (
                format!(
                    r#"{{"type":"subscribe","executions":[{{"execution":"{id}","after":3}}]}}"#
                ),
                format!(
                    r#"{{"type":"subscribe","executions":[{{"execution":"{id}","after":"3"}}]}}"#
                ),
            ),
            (
                format!(r#"{{"type":"cancel","execution":"{id}","force":true}}"#),
                format!(r#"{{"type":"cancel","execution":"{id}","force":"yes"}}"#),
            ),
        ] {
            assert!(parse(&good).is_ok(), "{good}");
            assert!(parse(&bad).is_err(), "{bad}");
        }
    }
}
