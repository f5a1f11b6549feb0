//! The target of a channel: what is followed, and from where.

use std::collections::BTreeMap;

use reeve_protocol::stream::FollowFrom;
use reeve_protocol::{Code, ExecutionId, Fault, Handle, Seq};

use crate::edge::http::call::Query;

/// The parameters of a channel.
pub const PARAMETERS: &[(&str, &str)] = &[
    ("execution", "An execution to follow, as ID or ID:SEQUENCE; may stand several times."),
    ("after", "The sequence to go on after, where an execution names none of its own."),
    ("since", "Everything, with what is newer than this: the `horizon` of an earlier channel."),
    ("epoch", "The history that the sequences belong to, from `stream.ready`."),
    ("ticket", "A ticket in place of the token, for browsers."),
];

/// What a channel follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Executions, each once; none for everything.
    pub executions: Vec<FollowFrom>,
    /// Whether everything is followed.
    pub all: bool,
    /// The number from which executions are new to a reader of everything.
    pub since: Option<Handle>,
    /// The history that the cursors belong to.
    pub epoch: Option<String>,
}

/// Reads the target of an upgrade.
///
/// # Errors
///
/// `invalid_request`, by shape, before anything is looked up.
pub fn parse(query: &Query) -> Result<Target, Fault> {
    let after = query.number("after")?;
    let mut executions = BTreeMap::new();
    for text in query.all("execution") {
        let from = follow(text, Seq(after.unwrap_or_default()))?;
        executions.insert(from.execution, from);
    }
    if executions.is_empty() && after.is_some() {
        let message = "a channel of everything starts now; `after` belongs to named executions";
        return Err(Fault::new(Code::InvalidRequest, message).because("shape"));
    }
    let since = query.number("since")?;
    let since = since.map(|since| Handle(u32::try_from(since).unwrap_or(u32::MAX)));
    let all = executions.is_empty() || since.is_some();
    let epoch = query.get("epoch").map(ToOwned::to_owned);
    Ok(Target { executions: executions.into_values().collect(), all, since, epoch })
}

/// Reads `ID` or `ID:SEQUENCE`.
pub fn follow(text: &str, after: Seq) -> Result<FollowFrom, Fault> {
    let bad = |message: String| Fault::new(Code::InvalidRequest, message).because("shape");
    let (id, sequence) = match text.split_once(':') {
        None => (text, None),
        Some((id, sequence)) => (id, Some(sequence)),
    };
    let execution: ExecutionId = id.parse().map_err(|error| {
        bad(reeve_protocol::sanitise::text(&format!("execution: {error}"), 200))
    })?;
    let after = match sequence {
        None => after,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Seq(digits.parse().map_err(|_| bad("execution: no sequence after ':'".to_owned()))?)
        }
        Some(_) => return Err(bad("execution: no sequence after ':'".to_owned())),
    };
    Ok(FollowFrom { execution, after })
}
