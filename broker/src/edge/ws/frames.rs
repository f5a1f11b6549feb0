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
            all: members.get("all").and_then(Value::as_bool).unwrap_or(false),
            epoch: members.get("epoch").and_then(Value::as_str).map(ToOwned::to_owned),
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
            force: members.get("force").and_then(Value::as_bool).unwrap_or(false),
        },
        _ => Asked::Ping { nonce: members.get("nonce").cloned().unwrap_or_default() },
    })
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
            after: Seq(other["after"].as_u64().unwrap_or_default()),
        }),
    }
}
