//! What the system says of a process by its number; a number alone names nobody.

use std::fs;

use reeve_protocol::place::ProcessStat;

/// Reads what `/proc` says of a process; `None` when there is none of that number.
pub fn look(pid: u32) -> Option<ProcessStat> {
    ProcessStat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}
