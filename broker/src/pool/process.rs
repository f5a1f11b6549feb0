//! The process of one worker of the broker's own, and the two pipes to it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

use reeve_protocol::pool::{FromPool, LINE_MAX, ToPool};
use reeve_protocol::signal::signal_name;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::WorkerCommand;

/// What an execution sets for the processes below it; a broker that runs in one hands it to none.
const OF_AN_EXECUTION: [&str; 4] =
    ["REEVE_EXECUTION", "REEVE_FENCE", "REEVE_CHECKOUT", "REEVE_EVENTS_FD"];
/// Bytes that are read at once.
const READ: usize = 64 << 10;

/// A worker's process, as long as it is not reaped.
pub struct Handle {
    /// Its pid.
    pub pid: u32,
    /// Its start, in clock ticks since boot.
    pub start_ticks: u64,
    pidfd: AsyncFd<OwnedFd>,
}

impl Handle {
    /// Kills it; no other process can be meant.
    pub fn kill(&self) {
        if let Err(error) = pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL) {
            tracing::debug!(pid = self.pid, %error, "a worker is not killed");
        }
    }
}

/// A process that has just been started.
pub struct Started {
    /// What is held of it.
    pub process: Handle,
    /// What it is told.
    pub stdin: pipe::Sender,
    /// What it says.
    pub stdout: pipe::Receiver,
    /// What is to be reaped.
    pub child: Child,
}

/// Starts a worker, on a thread where that may take its time.
pub async fn start(command: WorkerCommand) -> io::Result<Started> {
    let spawned = tokio::task::spawn_blocking(move || {
        let mut process = Command::new(&command.program);
        process
            .args(&command.args)
            .current_dir(&command.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What a terminal sends to the broker's group is for the broker alone.
            .process_group(0);
        for name in OF_AN_EXECUTION {
            process.env_remove(name);
        }
        process.spawn()
    });
    let mut child = spawned.await.map_err(io::Error::other)??;
    let pid = child.id();
    let started = hold(&mut child);
    match started {
        Ok((process, stdin, stdout)) => Ok(Started { process, stdin, stdout, child }),
        Err(error) => {
            // Its input ends with what was taken of it, and so does it.
            tracing::warn!(pid, %error, "a worker is let go of again");
            drop(child.kill());
            drop(tokio::task::spawn_blocking(move || child.wait()).await);
            Err(error)
        }
    }
}

fn hold(child: &mut Child) -> io::Result<(Handle, pipe::Sender, pipe::Receiver)> {
    let pid = child.id();
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let raw = raw.ok_or_else(|| io::Error::other("its pid is none"))?;
    let pidfd = pidfd_open(raw, PidfdFlags::NONBLOCK)?;
    let pidfd = crate::machine::readable(pidfd)
        .ok_or_else(|| io::Error::other("its end cannot be waited for"))?;
    let stdin = child.stdin.take().ok_or_else(|| io::Error::other("it has no input"))?;
    let stdout = child.stdout.take().ok_or_else(|| io::Error::other("it has no output"))?;
    let start_ticks = crate::machine::start_ticks(pid);
    Ok((
        Handle { pid, start_ticks, pidfd },
        pipe::Sender::from_owned_fd(stdin.into())?,
        pipe::Receiver::from_owned_fd(stdout.into())?,
    ))
}

/// Writes line after line; the pipe is closed when no more can come.
pub async fn write(mut stdin: pipe::Sender, mut lines: mpsc::Receiver<ToPool>) {
    while let Some(line) = lines.recv().await {
        let mut text = serde_json::to_vec(&line).expect("what is told can be written down");
        text.push(b'\n');
        if let Err(error) = stdin.write_all(&text).await {
            tracing::debug!(%error, "a worker takes nothing");
            return;
        }
    }
}

/// Reads line after line until there is none, or one that is none of a worker's.
pub async fn read(mut stdout: pipe::Receiver, mut hear: impl FnMut(FromPool)) {
    let mut buffer = Vec::new();
    let mut chunk = vec![0; READ];
    loop {
        let count = match stdout.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        buffer.extend_from_slice(&chunk[..count]);
        while let Some(end) = memchr::memchr(b'\n', &buffer) {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(said) => hear(said),
                Err(error) => return tracing::error!(%error, "a worker says what is none of it"),
            }
        }
        if buffer.len() > LINE_MAX {
            return tracing::error!("a worker says more than {LINE_MAX} bytes in one line");
        }
    }
}

/// Hears a worker until its process has ended; says how, as the rest of a sentence.
pub async fn until_ended(
    process: &Handle,
    mut child: Child,
    hears: impl Future<Output = ()>,
) -> String {
    tokio::select! {
        // Everything that it said before its end is heard.
        biased;
        () = hears => {
            drop(process.pidfd.readable().await);
        }
        ended = process.pidfd.readable() => drop(ended),
    }
    let reaped = tokio::task::spawn_blocking(move || child.wait()).await;
    match reaped {
        Ok(Ok(status)) => describe(status),
        Ok(Err(_)) | Err(_) => "ended".to_owned(),
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => {
            let core = if status.core_dumped() { ", core dumped" } else { "" };
            let sender = if signal == Signal::KILL.as_raw() { ", sender unknown" } else { "" };
            format!("was ended by signal {signal} ({}){core}{sender}", signal_name(signal))
        }
        (None, None) => "ended".to_owned(),
    }
}
