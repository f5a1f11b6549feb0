//! Processes: one program at a time, with everything it starts.
//!
//! Owns how a process capability's program is found, started, listened to, asked to stop and
//! ended. The rule: a program and all that descends from it are one tree, known by pid *and*
//! start time, and the end of the first process is the end of the run, whoever still holds its
//! output open. Every line that leaves here is clean.
//!
//! Never decides why a process should stop or what its end means for an execution, and never
//! signals a process that it has not just recognised.
//!
//! One process runs one tree: as subreaper it is handed every orphan of it, and could not tell
//! two trees apart.

pub mod cgroup;
pub mod child;
pub mod env;
pub mod escalate;
pub mod exit;
pub mod orphan;
pub mod program;
pub mod pty;
pub mod reader;
pub mod sample;
pub mod spec;
pub mod tree;

mod descriptor;
mod launch;
mod procfs;
mod said;
#[cfg(test)]
mod tests;

pub use child::{ChildOutput, Running};
pub use escalate::Escalation;
pub use exit::Exit;
pub use procfs::Member;
pub use program::{ProgramError, resolve_program};
pub use pty::launcher_main;
pub(crate) use said::clean;
pub use sample::Usage;
pub use spec::{OutputMode, SpawnError, Spec, StdinSource};
pub use tree::Tree;
