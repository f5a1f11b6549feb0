//! Signals by name.

use std::borrow::Cow;

/// The names of the signals from 1 on, as on Linux (`signal(7)`).
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// Returns the name of a signal, `SIGTERM` for 15.
pub fn signal_name(signal: i32) -> Cow<'static, str> {
    let known = usize::try_from(signal)
        .ok()
        .and_then(|it| it.checked_sub(1))
        .and_then(|index| NAMES.get(index));
    match known {
        Some(name) => format!("SIG{name}").into(),
        None if (34..=64).contains(&signal) => format!("SIGRTMIN+{}", signal - 34).into(),
        None => "unknown".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_their_names() {
        for (signal, name) in
            [(1, "SIGHUP"), (9, "SIGKILL"), (15, "SIGTERM"), (19, "SIGSTOP"), (31, "SIGSYS")]
        {
            assert_eq!(signal_name(signal), name);
        }
        assert_eq!(signal_name(35), "SIGRTMIN+1");
        assert_eq!(signal_name(0), "unknown");
        assert_eq!(signal_name(-1), "unknown");
    }
}
