//! What a process is started with, and why it may not start.
//!
//! Owns the description of one start and the one check that needs nothing but it: whether the
//! kernel would take the arguments and the environment. Starts nothing itself.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::process::{Resource, getrlimit};
use thiserror::Error;

use crate::scrub::Scrubber;

/// Bytes that one argument or variable may have, its final NUL included.
const ONE_MAX: u64 = 128 << 10;
/// Bytes that all of them may have, however large a stack is allowed.
const ALL_MAX: u64 = 6 << 20;

/// Everything that the start of one process depends on.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The program, absolute; also its `argv[0]`.
    pub program: PathBuf,
    /// The arguments after `argv[0]`.
    pub args: Vec<OsString>,
    /// The directory it starts in.
    pub cwd: PathBuf,
    /// Its whole environment; nothing is inherited beside it.
    pub env: Vec<(OsString, OsString)>,
    /// What it reads on its standard input.
    pub stdin: StdinSource,
    /// Where its output goes.
    pub output: OutputMode,
    /// Whether it gets a descriptor for events, named by `REEVE_EVENTS_FD`.
    pub events: bool,
    /// Characters of one line of output; the rest is cut and marked.
    pub line_chars: usize,
    /// Takes secrets out of what it writes and says.
    pub scrubber: Scrubber,
    /// Our own executable, which puts a process on a terminal; needed for that only.
    pub launcher: Option<PathBuf>,
    /// Whether to give it a cgroup of its own, where one can be made.
    pub cgroup: bool,
}

/// What a process reads on its standard input.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum StdinSource {
    /// Nothing: it reads the end at once.
    #[default]
    Null,
    /// These bytes, then the end. On a terminal they are typed: lines of at most 4,095 bytes.
    Bytes(Vec<u8>),
    /// What this process reads. On a terminal of its own nothing.
    Inherit,
}

impl fmt::Debug for StdinSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            // It may hold secrets.
            Self::Bytes(bytes) => write!(f, "Bytes(*** {})", bytes.len()),
            Self::Inherit => f.write_str("Inherit"),
        }
    }
}

/// Where the output of a process goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputMode {
    /// Into two pipes, one for each stream.
    #[default]
    Capture,
    /// Onto a terminal of its own, as one stream.
    Pty {
        /// The terminal's height.
        rows: u16,
        /// The terminal's width.
        cols: u16,
    },
}

/// Why a process did not start. Nothing of it has run.
#[derive(Debug, Error)]
pub enum SpawnError {
    /// The arguments or the environment must become smaller, or go through the standard input.
    #[error("arguments and environment of {bytes} bytes are over the system's limit of {limit}")]
    TooBig {
        /// How large they are, or the largest one of them.
        bytes: u64,
        /// How large they, or one of them, may be.
        limit: u64,
    },
    /// The directory it should start in is none.
    #[error("{} is not a directory", .0.display())]
    NoDirectory(PathBuf),
    /// A terminal was asked for without the executable that can set it up.
    #[error("a process on a terminal needs a launcher")]
    NoLauncher,
    /// The system has no room for another pipe, terminal or process.
    #[error("cannot set up {what}")]
    Setup {
        /// What was being set up.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The program cannot be executed.
    #[error("cannot start {}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl SpawnError {
    /// Names what was being set up when the system refused.
    pub(crate) fn setup<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Setup { what, source: source.into() }
    }
}

impl Spec {
    /// Checks what can be checked before anything is set up.
    pub(crate) fn check(&self) -> Result<(), SpawnError> {
        if !self.cwd.is_dir() {
            return Err(SpawnError::NoDirectory(self.cwd.clone()));
        }
        let stack = getrlimit(Resource::Stack).current.unwrap_or(u64::MAX);
        let (one, all) = self.exec_bytes();
        if one > ONE_MAX {
            return Err(SpawnError::TooBig { bytes: one, limit: ONE_MAX });
        }
        let limit = all_max(stack);
        if all > limit { Err(SpawnError::TooBig { bytes: all, limit }) } else { Ok(()) }
    }

    /// Returns the bytes of the largest argument or variable, and of all with their pointers.
    pub(crate) fn exec_bytes(&self) -> (u64, u64) {
        let program = self.program.as_os_str();
        // The program's path is there twice: as an argument and for the kernel itself.
        let args = [program, program].into_iter().chain(self.args.iter().map(OsString::as_os_str));
        let args = args.map(|arg| length(arg) + 1);
        let variables = self.env.iter().map(|(name, value)| length(name) + length(value) + 2);
        args.chain(variables).fold((0, 0), |(one, all), bytes| {
            (one.max(bytes), all + bytes + size_of::<usize>() as u64)
        })
    }
}

/// Returns how many bytes the kernel takes with a stack of this size.
pub(crate) fn all_max(stack: u64) -> u64 {
    (stack / 4).clamp(ONE_MAX, ALL_MAX)
}

fn length(text: &OsStr) -> u64 {
    text.as_bytes().len() as u64
}
