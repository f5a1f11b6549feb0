//! One running process: what it writes, what it says and how it ends.
//!
//! Owns the order of these. The end is the first process's own end, seen through its pidfd, not
//! the end of its output: a grandchild may hold a pipe open for as long as it likes. What was
//! written by then is still read, for half a second at most.
//!
//! Signals nothing by itself; see [`Tree`].

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use reeve_protocol::event::ChildEvent;
use reeve_protocol::{LogChunk, Output, Timestamp};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::process::cgroup::Cgroup;
use crate::process::descriptor::watched;
use crate::process::exit::Exit;
use crate::process::launch::{Launched, launch};
use crate::process::reader::{READ_BYTES, Reader};
use crate::process::said::Said;
use crate::process::spec::{SpawnError, Spec};
use crate::process::tree::Tree;

/// How long output is read after the end of the first process.
pub const DRAIN: Duration = Duration::from_millis(500);

/// Something that a process did.
#[derive(Clone, Debug, PartialEq)]
pub enum ChildOutput {
    /// It wrote lines.
    Log(LogChunk),
    /// It said something on its events descriptor.
    Said(Vec<ChildEvent>),
    /// Its first process ended. Output that was on its way may still follow.
    Exited(Exit),
}

/// A process that was started, until its output has ended.
#[derive(Debug)]
pub struct Running {
    tree: Tree,
    pidfd: AsyncFd<OwnedFd>,
    stdout: Option<Reader>,
    stderr: Option<Reader>,
    said: Option<Said>,
    stdin: Option<JoinHandle<()>>,
    now: fn() -> Timestamp,
    scratch: Vec<u8>,
    ready: VecDeque<ChildOutput>,
    /// Whether the last read found as much as it could take.
    flooded: bool,
    /// Until when output is read; set when the first process has ended.
    drain_until: Option<Instant>,
}

/// Why [`Running`] woke up.
enum Wake {
    /// The process has ended, or its output has been read for long enough.
    Due,
    Stdout,
    Stderr,
    Said,
}

impl Running {
    /// Starts a process, within a tokio runtime; `now` stamps its output.
    ///
    /// # Errors
    ///
    /// [`SpawnError`]; then nothing of it runs.
    pub fn spawn(spec: Spec, now: fn() -> Timestamp) -> Result<Self, SpawnError> {
        let line_chars = spec.line_chars;
        let scrubber = spec.scrubber.clone();
        let Launched { tree, stdout, stderr, events, stdin } = launch(spec)?;
        let setup = |what| move |error: io::Error| SpawnError::Setup { what, source: error };
        let reader = |fd, stream| {
            Reader::new(fd, stream, line_chars, &scrubber).map_err(setup("a reader of the output"))
        };
        let pidfd = pidfd(&tree).map_err(setup("a watch of the process"))?;
        let stdin = match stdin {
            Some((fd, input)) => {
                let fd = watched(fd, Interest::WRITABLE).map_err(setup("a writer of the input"))?;
                Some(tokio::spawn(write_all(fd, input)))
            }
            None => None,
        };
        Ok(Self {
            pidfd,
            stdout: Some(reader(stdout, Output::Stdout)?),
            stderr: stderr.map(|fd| reader(fd, Output::Stderr)).transpose()?,
            said: events
                .map(|fd| {
                    Said::new(fd, line_chars, scrubber.clone())
                        .map_err(setup("a reader of the events"))
                })
                .transpose()?,
            stdin,
            now,
            scratch: vec![0; READ_BYTES],
            ready: VecDeque::new(),
            flooded: false,
            drain_until: None,
            tree,
        })
    }

    /// Returns the process with all that it has started.
    pub fn tree(&mut self) -> &mut Tree {
        &mut self.tree
    }

    /// Stops listening, and returns what is left to be killed or to be let go.
    pub fn into_tree(mut self) -> Tree {
        if let Some(stdin) = self.stdin.take() {
            stdin.abort();
        }
        self.tree
    }

    /// Returns the next thing that the process did, `None` once it has ended and was read out.
    ///
    /// Nothing is lost when the wait is given up.
    pub async fn next(&mut self) -> Option<ChildOutput> {
        loop {
            if std::mem::take(&mut self.flooded) {
                // Everybody else on this thread has a turn, however fast the process writes.
                tokio::task::yield_now().await;
            }
            self.look();
            if let Some(output) = self.ready.pop_front() {
                return Some(output);
            }
            let listening = self.stdout.is_some() || self.stderr.is_some() || self.said.is_some();
            if self.drain_until.is_some() && !listening {
                return None;
            }
            match self.wake().await {
                Wake::Due => {}
                Wake::Stdout => self.on_stdout(),
                Wake::Stderr => self.on_stderr(),
                Wake::Said => self.on_said(),
            }
        }
    }

    /// Sees to what is due: asked here and not only waited for, no flood of output can hide it.
    fn look(&mut self) {
        match self.drain_until {
            None => self.on_exit(),
            Some(until) if Instant::now() >= until => self.on_drained(),
            Some(_) => {}
        }
    }

    async fn wake(&self) -> Wake {
        let stream = async |reader: &Option<Reader>| match reader {
            Some(reader) => reader.ready().await,
            None => pending().await,
        };
        let said = async || match &self.said {
            Some(said) => said.ready().await,
            None => pending().await,
        };
        let due = async || match self.drain_until {
            Some(until) => tokio::time::sleep_until(until).await,
            // An error shows again when the process is looked at.
            None => drop(self.pidfd.readable().await),
        };
        tokio::select! {
            () = due() => Wake::Due,
            () = stream(&self.stdout) => Wake::Stdout,
            () = stream(&self.stderr) => Wake::Stderr,
            () = said() => Wake::Said,
        }
    }

    fn on_exit(&mut self) {
        let Some(mut exit) = self.exit() else { return };
        exit.oom = self.tree.cgroup().and_then(Cgroup::out_of_memory);
        exit.ours = exit.signal.is_some_and(|signal| self.tree.has_sent(signal));
        self.ready.push_back(ChildOutput::Exited(exit));
        self.drain_until = Some(Instant::now() + DRAIN);
    }

    /// Reads the status of the first process, and leaves it there: its number stays taken.
    fn exit(&self) -> Option<Exit> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = self.pidfd.try_io(Interest::READABLE, |pidfd| {
            waitid(WaitId::PidFd(pidfd.as_fd()), options)?.ok_or(io::ErrorKind::WouldBlock.into())
        });
        match status {
            Ok(status) => Some(Exit::of(&status)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            // Somebody else has collected it: it ended, and how is not known.
            Err(_) => Some(Exit::default()),
        }
    }

    fn on_stdout(&mut self) {
        let stdout = self.stdout.take().expect("a stream that woke is open");
        self.stdout = self.read(stdout);
    }

    fn on_stderr(&mut self) {
        let stderr = self.stderr.take().expect("a stream that woke is open");
        self.stderr = self.read(stderr);
    }

    fn read(&mut self, mut reader: Reader) -> Option<Reader> {
        let mut chunks = VecDeque::new();
        let length = reader.read(&mut self.scratch, self.now, &mut chunks);
        self.flooded = length.is_some_and(|length| length >= READ_BYTES / 2);
        let open = if length.is_some() {
            Some(reader)
        } else {
            reader.finish(self.now, &mut chunks);
            None
        };
        self.ready.extend(chunks.into_iter().map(ChildOutput::Log));
        open
    }

    fn on_said(&mut self) {
        let mut said = self.said.take().expect("a descriptor that woke is open");
        let events = match said.read(&mut self.scratch) {
            Some(events) => {
                self.said = Some(said);
                events
            }
            None => said.finish(),
        };
        self.say(events);
    }

    /// Closes what somebody else still holds open.
    fn on_drained(&mut self) {
        let mut chunks = VecDeque::new();
        for reader in [self.stdout.take(), self.stderr.take()].into_iter().flatten() {
            reader.finish(self.now, &mut chunks);
        }
        self.ready.extend(chunks.into_iter().map(ChildOutput::Log));
        let events = self.said.take().map(Said::finish).unwrap_or_default();
        self.say(events);
    }

    fn say(&mut self, events: Vec<ChildEvent>) {
        if !events.is_empty() {
            self.ready.push_back(ChildOutput::Said(events));
        }
    }
}

fn pidfd(tree: &Tree) -> io::Result<AsyncFd<OwnedFd>> {
    let leader = Pid::from_raw(tree.leader().pid).expect("a pid is positive");
    // The child was not collected, so that the number still is its own.
    let pidfd = pidfd_open(leader, PidfdFlags::NONBLOCK)?;
    watched(pidfd, Interest::READABLE)
}

/// Writes the input; a process that does not want it all is none of our business.
async fn write_all(fd: AsyncFd<OwnedFd>, input: Vec<u8>) {
    let mut rest = &input[..];
    while !rest.is_empty() {
        let written = fd
            .async_io(Interest::WRITABLE, |fd| {
                rustix::io::retry_on_intr(|| rustix::io::write(fd, rest)).map_err(io::Error::from)
            })
            .await;
        match written {
            Ok(length) => rest = &rest[length..],
            Err(_) => return,
        }
    }
}
