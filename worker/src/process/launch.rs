//! The start of a process, from its description to its first instruction.
//!
//! Owns what has to be in place before, what the child inherits and in which order its parent
//! lets go of it. Starts by `posix_spawn`, so that a large parent costs nothing: no code of ours
//! runs between fork and exec, and what must happen there happens in our own launcher.
//!
//! One start at a time: the end of the events pipe that the child inherits is open without
//! close-on-exec for that moment, and no other child may get it.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd, ioctl_fionbio};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{getpid, set_child_subreaper};

use crate::process::cgroup::Cgroup;
use crate::process::env;
use crate::process::procfs::{self, Member, Stat};
use crate::process::pty::{self, Terminal};
use crate::process::spec::{OutputMode, SpawnError, Spec, StdinSource, all_max};
use crate::process::tree::Tree;

/// Bytes that a pipe for output holds, where the system allows it.
const PIPE_BYTES: usize = 1 << 20;
/// The lowest number that the events descriptor may have in the child.
const EVENTS_FD_MIN: i32 = 3;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A process that was started, and this process's ends of what connects the two.
pub(crate) struct Launched {
    pub tree: Tree,
    pub stdout: OwnedFd,
    /// None where both streams are one.
    pub stderr: Option<OwnedFd>,
    pub events: Option<OwnedFd>,
    /// Where to write the input, and the input.
    pub stdin: Option<(OwnedFd, Vec<u8>)>,
}

/// The connections of a child: what is its, and what is ours.
struct Wiring {
    stdin: Stdio,
    stdout: Stdio,
    stderr: Stdio,
    ours: Ours,
}

struct Ours {
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
    stdin: Option<(OwnedFd, Vec<u8>)>,
}

/// Starts a process. Nothing of it has run when this fails.
pub(crate) fn launch(spec: Spec) -> Result<Launched, SpawnError> {
    spec.check()?;
    set_child_subreaper(Some(getpid())).map_err(SpawnError::setup("a subreaper"))?;
    let wiring = match spec.output {
        OutputMode::Capture => pipes(spec.stdin.clone())?,
        OutputMode::Pty { rows, cols } => terminal(spec.stdin.clone(), rows, cols)?,
    };
    let mut command = command(&spec)?;
    command.stdin(wiring.stdin).stdout(wiring.stdout).stderr(wiring.stderr);
    let (tree, events) = start(command, &spec)?;
    let Ours { stdout, stderr, stdin } = wiring.ours;
    Ok(Launched { tree, stdout, stderr, events, stdin })
}

/// Returns the command without its connections.
fn command(spec: &Spec) -> Result<Command, SpawnError> {
    let mut command = if let OutputMode::Pty { .. } = spec.output {
        // The launcher leads a session, which a leader of a group could not.
        let mut command = Command::new(spec.launcher.as_ref().ok_or(SpawnError::NoLauncher)?);
        command.arg(pty::LAUNCH).arg(&spec.program);
        command
    } else {
        let mut command = Command::new(&spec.program);
        command.process_group(0);
        command
    };
    command.args(&spec.args).current_dir(&spec.cwd).env_clear();
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    Ok(command)
}

/// Starts the command, and drops it with the child's ends of every connection.
fn start(mut command: Command, spec: &Spec) -> Result<(Tree, Option<OwnedFd>), SpawnError> {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let bystanders = procfs::children_of(getpid().as_raw_pid());
    let bystanders = bystanders.iter().map(Stat::member).collect();
    let group = if spec.cgroup { Cgroup::create() } else { None };
    let mut events = None;
    let mut inherited = None;
    if spec.events {
        let (ours, theirs) = pipe("the events pipe")?;
        let theirs = inheritable(&theirs).map_err(SpawnError::setup("the events pipe"))?;
        command.env(env::EVENTS_FD, OsString::from(theirs.as_raw_fd().to_string()));
        events = Some(ours);
        inherited = Some(theirs);
    }
    let (spawned, group) = Cgroup::around(group, || command.spawn());
    drop(inherited);
    let child = spawned.map_err(|source| refused(spec, source))?;
    let pid = i32::try_from(child.id()).expect("a pid is positive and small");
    let leader = Member::of(pid).expect("a child is there until it is collected");
    Ok((Tree::new(leader, bystanders, group), events))
}

/// Returns a copy of a descriptor that a child inherits, above its standard streams.
fn inheritable(fd: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let copy = fcntl_dupfd_cloexec(fd, EVENTS_FD_MIN)?;
    fcntl_setfd(&copy, FdFlags::empty())?;
    Ok(copy)
}

fn refused(spec: &Spec, source: std::io::Error) -> SpawnError {
    match source.kind() {
        std::io::ErrorKind::ArgumentListTooLong => {
            let (_, bytes) = spec.exec_bytes();
            SpawnError::TooBig { bytes, limit: all_max(0) }
        }
        _ => SpawnError::Program { program: spec.program.clone(), source },
    }
}

/// Connects a child through pipes.
fn pipes(input: StdinSource) -> Result<Wiring, SpawnError> {
    let (stdout, their_stdout) = pipe("the pipe of the standard output")?;
    let (stderr, their_stderr) = pipe("the pipe of the standard error")?;
    let (their_stdin, stdin) = match input {
        StdinSource::Null => (Stdio::null(), None),
        StdinSource::Inherit => (Stdio::inherit(), None),
        StdinSource::Bytes(bytes) => {
            let what = "the pipe of the standard input";
            let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).map_err(SpawnError::setup(what))?;
            ioctl_fionbio(&ours, true).map_err(SpawnError::setup(what))?;
            (theirs.into(), Some((ours, bytes)))
        }
    };
    Ok(Wiring {
        stdin: their_stdin,
        stdout: their_stdout.into(),
        stderr: their_stderr.into(),
        ours: Ours { stdout, stderr: Some(stderr), stdin },
    })
}

/// Connects a child through a terminal, at which its input is typed.
fn terminal(input: StdinSource, rows: u16, cols: u16) -> Result<Wiring, SpawnError> {
    let what = "a terminal";
    let Terminal { master, user } = Terminal::open(rows, cols).map_err(SpawnError::setup(what))?;
    ioctl_fionbio(&master, true).map_err(SpawnError::setup(what))?;
    let typist = fcntl_dupfd_cloexec(&master, 0).map_err(SpawnError::setup(what))?;
    let input = match input {
        StdinSource::Bytes(bytes) => bytes,
        StdinSource::Null | StdinSource::Inherit => Vec::new(),
    };
    Ok(Wiring {
        stdin: user.try_clone().map_err(SpawnError::setup(what))?.into(),
        stdout: user.try_clone().map_err(SpawnError::setup(what))?.into(),
        stderr: user.into(),
        ours: Ours { stdout: master, stderr: None, stdin: Some((typist, pty::typed(input))) },
    })
}

/// Makes a large pipe: our end to read from, which never blocks, and the child's to write to.
fn pipe(what: &'static str) -> Result<(OwnedFd, OwnedFd), SpawnError> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).map_err(SpawnError::setup(what))?;
    // A smaller pipe is slower, not wrong.
    let _ = fcntl_setpipe_size(&ours, PIPE_BYTES);
    ioctl_fionbio(&ours, true).map_err(SpawnError::setup(what))?;
    Ok((ours, theirs))
}
