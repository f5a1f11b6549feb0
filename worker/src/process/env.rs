//! Which variables a process sees.
//!
//! Owns the rule: a small base set of the caller's variables, those that its capability allows,
//! those that it sets, and ours over all of them. A process started twice by two callers sees
//! the same environment, but for what was allowed on purpose. Reads no environment itself.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use reeve_protocol::{ExecutionId, Fence};

/// Names the execution that a process belongs to; also how an orphan is recognised.
pub const EXECUTION: &str = "REEVE_EXECUTION";
/// Holds the fence that the execution runs under.
pub const FENCE: &str = "REEVE_FENCE";
/// Holds the root of the checkout.
pub const CHECKOUT: &str = "REEVE_CHECKOUT";
/// Holds the number of the descriptor that events are written to.
pub const EVENTS_FD: &str = "REEVE_EVENTS_FD";

/// What every process gets from its caller, where the caller has it. A `*` ends a prefix.
pub const BASE: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TERM",
    "COLORTERM",
    "NO_COLOR",
    "TZ",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
];

/// Who a process is started for.
#[derive(Clone, Copy, Debug)]
pub struct Mark<'a> {
    /// The execution.
    pub execution: ExecutionId,
    /// Its fence.
    pub fence: Fence,
    /// The root of the checkout.
    pub checkout: &'a OsStr,
}

/// Returns the whole environment of a process, in the order of its names.
///
/// `allow` has the same form as [`BASE`]. Nothing of the caller's passes as ours: its `REEVE_`
/// variables are left out even if they are allowed.
pub fn environment(
    caller: impl IntoIterator<Item = (OsString, OsString)>,
    allow: &[String],
    set: &BTreeMap<String, String>,
    mark: Mark<'_>,
) -> Vec<(OsString, OsString)> {
    let patterns: Vec<&str> =
        BASE.iter().copied().chain(allow.iter().map(String::as_str)).collect();
    let allowed = |name: &OsStr| {
        let name = name.as_encoded_bytes();
        !name.starts_with(b"REEVE_") && patterns.iter().any(|pattern| matches(pattern, name))
    };
    let mut env: BTreeMap<OsString, OsString> =
        caller.into_iter().filter(|(name, _)| allowed(name)).collect();
    env.extend(set.iter().map(|(name, value)| (name.into(), value.into())));
    env.insert(EXECUTION.into(), mark.execution.to_string().into());
    env.insert(FENCE.into(), mark.fence.to_string().into());
    env.insert(CHECKOUT.into(), mark.checkout.to_owned());
    env.into_iter().collect()
}

fn matches(pattern: &str, name: &[u8]) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix.as_bytes()),
        None => pattern.as_bytes() == name,
    }
}

#[cfg(test)]
mod tests {
    use reeve_protocol::Timestamp;

    use super::*;

    #[test]
    fn a_process_sees_base_allowed_set_and_ours_only() {
        let caller = [
            ("PATH", "/bin"),
            ("LC_ALL", "C"),
            ("LCX", "no"),
            ("SECRET", "no"),
            ("TOKEN", "yes"),
            ("CI_JOB", "1"),
            ("HOME", "/home/me"),
            ("REEVE_EXECUTION", "forged"),
            ("REEVE_FENCE", "9"),
            ("REEVE_SOCKET", "no"),
        ];
        let allow = ["TOKEN", "CI_*", "REEVE_*"].map(str::to_owned);
        let set = [("HOME", "/elsewhere"), ("MODE", "a b"), ("REEVE_CHECKOUT", "forged")];
        let set = set.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let execution = ExecutionId::mint(Timestamp::default(), 7);
        let mark = Mark { execution, fence: Fence(3), checkout: OsStr::new("/co") };

        let env = environment(caller.map(|(k, v)| (k.into(), v.into())), &allow, &set, mark);

        let execution = execution.to_string();
        let expected = [
            ("CI_JOB", "1"),
            ("HOME", "/elsewhere"),
            ("LC_ALL", "C"),
            ("MODE", "a b"),
            ("PATH", "/bin"),
            ("REEVE_CHECKOUT", "/co"),
            ("REEVE_EXECUTION", execution.as_str()),
            ("REEVE_FENCE", "3"),
            ("TOKEN", "yes"),
        ];
        assert_eq!(env, expected.map(|(k, v)| (k.into(), v.into())));
    }
}
