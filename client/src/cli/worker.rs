//! `reeve worker`: carries out what the broker that started it hands it, one thing at a time.
//!
//! Hears its broker on standard input and answers on standard output, then gives both away: what
//! the work itself prints goes to the log. Ends when nothing more can come. It never begins
//! anything that its broker has not granted.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use reeve_protocol::pool::{Assignment, DirectCall, FromPool, LINE_MAX, ToPool};
use reeve_protocol::redact::Sensitive;
use reeve_protocol::{Code, Fault};
use reeve_worker::drive::{self, Hooks};
use reeve_worker::handler::Ctx;
use reeve_worker::scrub::Scrubber;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::drive::worker_call;
use super::plan::{Asked, PlannedCall, not_ready, plan_of, site_of};
use super::{Here, block_on};
use crate::checkout;
use crate::failure::{Exit, Failure};

/// What a shell says of a process that SIGTERM ended.
const TERMINATED: i32 = 128 + 15;

/// Carry out what this checkout's broker hands over
///
/// Started by `reeve serve`, never by a person.
#[derive(Debug, clap::Args)]
pub(super) struct WorkerArgs {}

pub(super) fn run(here: &Here, _: WorkerArgs) -> Result<Exit, Failure> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| Failure::new(Exit::Failed, format!("cannot {what}: {error}"))
    };
    let (input, output) = take_pipes().map_err(failed("take over the broker's pipes"))?;
    block_on(async move {
        let input = pipe::Receiver::from_owned_fd(input);
        let output = pipe::Sender::from_owned_fd(output);
        let (Ok(input), Ok(output)) = (input, output) else {
            let message = "this is started by `reeve serve`, which hands it two pipes";
            return Err(Failure::new(Exit::Usage, message));
        };
        let stops = Stops::listen().map_err(failed("listen for signals"))?;
        Pooled { here, output, stops }.serve(input).await
    })
}

/// Takes the two pipes to the broker and leaves nothing of them where the work could reach it.
fn take_pipes() -> io::Result<(OwnedFd, OwnedFd)> {
    let input = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    let output = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    Ok((input, output))
}

/// Where signals that ask this process to end go: to the work under way, else to the process.
#[derive(Clone)]
struct Stops(Arc<Mutex<Option<mpsc::UnboundedSender<()>>>>);

impl Stops {
    fn listen() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let stops = Self(Arc::default());
        let told = stops.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                let work = told.0.lock().unwrap_or_else(PoisonError::into_inner);
                match work.as_ref() {
                    Some(work) if work.send(()).is_ok() => {}
                    _ => std::process::exit(TERMINATED),
                }
            }
        });
        Ok(stops)
    }

    /// Sends them to the work from now on.
    fn to_work(&self) -> mpsc::UnboundedReceiver<()> {
        let (sender, receiver) = mpsc::unbounded_channel();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }

    /// Sends them to the process from now on.
    fn to_process(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A worker of a broker's own.
struct Pooled<'a> {
    here: &'a Here,
    output: pipe::Sender,
    stops: Stops,
}

impl Pooled<'_> {
    /// Does what comes, until nothing more can.
    async fn serve(mut self, input: pipe::Receiver) -> Result<Exit, Failure> {
        let mut input = BufReader::new(input);
        let mut line = Vec::new();
        loop {
            if self.say(&FromPool::Ready).await.is_err() {
                return Ok(Exit::Ok);
            }
            line.clear();
            let most = u64::try_from(LINE_MAX).unwrap_or(u64::MAX);
            let read = (&mut input).take(most).read_until(b'\n', &mut line).await;
            if !matches!(read, Ok(count) if count > 0) {
                return Ok(Exit::Ok);
            }
            let told: ToPool = serde_json::from_slice(&line).map_err(|error| {
                Failure::new(Exit::Failed, format!("the broker says what is none of it: {error}"))
            })?;
            let again = match told {
                ToPool::Run(assignment) => self.carry_out(*assignment).await?,
                ToPool::Call(call) => {
                    drop(self.say(&self.answer(*call).await).await);
                    true
                }
            };
            if !again {
                return Ok(Exit::Ok);
            }
        }
    }

    /// Carries an execution out; returns whether this process is good for another one.
    async fn carry_out(&mut self, assignment: Assignment) -> Result<bool, Failure> {
        let planned = plan(self.here, assignment)?;
        let mut call = worker_call(&planned)?;
        call.bound = true;
        let place = self.here.place.clone();
        let (taken, mut was_taken) = mpsc::unbounded_channel();
        let first = Cell::new(true);
        let hooks = Hooks {
            discover: Box::new(move || checkout::discover(&place).ok()?.serving()),
            interrupts: self.stops.to_work(),
            on_local: Box::new(move |_| {
                if first.replace(false) {
                    let _ = taken.send(());
                }
            }),
            on_notice: Box::new(|notice| tracing::debug!(notice = %notice.text(), "the broker")),
            paused: Box::new(|| false),
        };
        let output = &mut self.output;
        let tell = async {
            if was_taken.recv().await.is_some() {
                drop(write(output, &FromPool::Taken).await);
            }
        };
        let (outcome, ()) = tokio::join!(drive::run(call, hooks), tell);
        self.stops.to_process();
        Ok(!outcome.survived && !outcome.abandoned)
    }

    /// Answers a call without an execution. It may not end for ever: then whoever waits for it
    /// ends this process.
    async fn answer(&self, call: DirectCall) -> FromPool {
        let refused = |fault| FromPool::Refused(Box::new(fault));
        let DirectCall { capability, input, limits } = call;
        let Some(handler) = self.here.handlers.get(&capability.id).map(Arc::clone) else {
            return refused(not_ready(&capability));
        };
        let Ok(sensitive) = Sensitive::new(&capability.input) else {
            return refused(not_ready(&capability));
        };
        let scrubber = Scrubber::new(&sensitive.withhold(&input).secrets);
        let site = Arc::new(site_of(self.here, &limits));
        let work = move || handler.call(&Ctx::silent(site), input.0);
        match tokio::task::spawn_blocking(work).await {
            Ok(Ok(mut value)) => {
                scrubber.value(&mut value);
                FromPool::Answer(value)
            }
            Ok(Err(mut fault)) => {
                scrubber.fault(&mut fault);
                refused(fault)
            }
            Err(_) => refused(Fault::new(Code::Internal, "the handler broke")),
        }
    }

    async fn say(&mut self, said: &FromPool) -> io::Result<()> {
        write(&mut self.output, said).await
    }
}

async fn write(output: &mut pipe::Sender, said: &FromPool) -> io::Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    output.write_all(&line).await
}

/// Plans what the broker has admitted, from what it has checked.
fn plan(here: &Here, assignment: Assignment) -> Result<PlannedCall, Failure> {
    let Assignment { execution, capability, input, description, limits } = assignment;
    let asked = Asked {
        id: execution,
        role: "pool",
        actor: description.actor.clone(),
        parent_id: description.parent_id,
    };
    let planned = plan_of(here, &capability, input.0, &limits, asked)?;
    Ok(PlannedCall { description, ..planned })
}
