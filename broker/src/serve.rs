//! Serving a checkout: from taking the seat to leaving it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use actix::Actor;
use interprocess::local_socket::tokio::Listener;
use reeve_protocol::capability::Loaded;
use reeve_protocol::lease::Lease;
use reeve_protocol::place::{Identity, Place};
use reeve_protocol::{Limits, State, Timestamp};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};
use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;

use crate::actor::BrokerActor;
use crate::board::Board;
use crate::clock::Clock;
use crate::edge::http::ticket::Tickets;
use crate::edge::http::{self, Surface};
use crate::edge::local;
use crate::handle::{About, Broker, STOPPING, Stop};
use crate::machine::{Machine, Orphans};
use crate::manifest_watch::Watch;
use crate::plane::Plane;
use crate::pool::{WorkerCommand, Workers};
use crate::seat::{Seat, SeatError};
use crate::store::memory::Memory;
use crate::switchboard::Switchboard;
use crate::token::{Keys, TokenError};

/// How often the socket's file, idleness and the manifest's settling are looked at.
const TICK: Duration = Duration::from_secs(1);
/// How long readers have to take their goodbye.
const FAREWELL: Duration = Duration::from_millis(100);

/// How long a link that opens the pages is good.
const LINK_GOOD_FOR: Duration = Duration::from_secs(60);

/// Reads a manifest. Takes as long as it takes: it runs on a thread of its own.
pub type Load = Arc<dyn Fn() -> Loaded + Send + Sync>;

/// What a broker is started with.
pub struct Options {
    /// The checkout, and where its files lie.
    pub place: Place,
    /// This process.
    pub identity: Identity,
    /// The bounds, manifest and command line already taken together.
    pub limits: Limits,
    /// Reads the manifest; called again whenever its file changes.
    pub load: Load,
    /// Finds and ends what lost executions leave behind.
    pub orphans: Arc<dyn Orphans>,
    /// How a worker of the broker's own is started; absent in a broker that makes none.
    pub worker: Option<WorkerCommand>,
    /// Leave when nothing ran, waited or watched for so long.
    pub idle: Option<Duration>,
    /// The port of HTTP: a given one, 0 for any, `None` for the last one of this checkout.
    pub port: Option<u16>,
    /// What the broker calls its version.
    pub version: String,
}

/// Why a checkout is not served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The seat could not be taken; somebody else may have it.
    #[error(transparent)]
    Seat(#[from] SeatError),
    /// The token cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The port cannot be listened on.
    #[error("cannot listen on port {port} of 127.0.0.1")]
    Port {
        /// Which; 0 for any.
        port: u16,
        /// What came of it.
        #[source]
        source: std::io::Error,
    },
    /// The system refused something that a broker needs.
    #[error("cannot {what}")]
    System {
        /// What was tried, as a verb.
        what: &'static str,
        /// What came of it.
        #[source]
        source: std::io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> ServeError {
    move |source| ServeError::System { what, source }
}

/// Serves a checkout until it is told to stop; `ready` is called once clients can connect.
///
/// # Errors
///
/// [`ServeError::Seat`] with [`SeatError::AlreadyServed`] when another broker lives.
pub fn serve(options: Options, ready: impl FnOnce(&Lease) + 'static) -> Result<(), ServeError> {
    keep_to_itself();
    let clock = Clock::start();
    let now = clock.now().wall;
    let instance = random_hex(16)?;
    let seat =
        Seat::take(&options.place, &options.identity, &options.version, instance.clone(), now)?;
    actix::System::new().block_on(run(options, seat, instance, now, clock, ready))
}

async fn run(
    options: Options,
    mut seat: Seat,
    instance: String,
    started_at: Timestamp,
    clock: Clock,
    ready: impl FnOnce(&Lease),
) -> Result<(), ServeError> {
    raise_open_files();
    // Listened for before anybody knows of this broker: a stop that comes early is one, too.
    let mut signals = Signals::new()?;
    let changed = crate::manifest_watch::watch(&options.place.manifest());
    let state_dir = &options.place.state_dir;
    let keys = Keys::open(state_dir)?;
    let listened = http::listen(options.port, state_dir).await;
    let port_wanted = options.port.unwrap_or(0);
    let tcp = listened.map_err(|source| ServeError::Port { port: port_wanted, source })?;
    let port = tcp.local_addr().map_err(system("see the port"))?.port();
    seat.at(format!("http://127.0.0.1:{port}"));
    let listener = seat.listen()?;
    let about = About {
        pid: options.identity.pid,
        version: options.version.clone(),
        instance,
        epoch: random_hex(8)?,
        started_at,
        repository: options.place.repository.clone(),
    };
    let (broker, machine, tell_stop) = assemble(&options, about, clock);
    let loaded = tokio::select! {
        loaded = load(&options.load) => Some(loaded),
        () = signals.next() => None,
    };
    let Some(loaded) = loaded else {
        seat.leave();
        return Ok(());
    };
    broker.declare(loaded);
    let surface = Surface::new(broker.clone(), port, keys);
    let mut door = Door::open(seat, listener, broker, machine);
    let accepting_http = actix::spawn(http::accept(tcp, surface));
    ready(door.seat.lease());
    door.broker.workers.warm_up();
    attend(&options, &mut door, &mut signals, &changed).await;
    wind_up(&door.broker, &mut signals).await;
    door.accepting.abort();
    accepting_http.abort();
    tell_stop.send_replace(true);
    tokio::time::sleep(FAREWELL).await;
    door.seat.leave();
    Ok(())
}

/// Puts the broker together; what it returns last tells every connection that it ends.
fn assemble(
    options: &Options,
    about: About,
    clock: Clock,
) -> (Broker, Machine, watch::Sender<bool>) {
    let workers = Workers::new(options.worker.clone(), options.limits.max_running, clock);
    let machine = Machine::new(Arc::clone(&options.orphans), workers.clone());
    let store: Arc<dyn crate::store::Store> = Arc::new(Memory::new(options.limits.clone()));
    let board = Arc::new(Board::default());
    let switchboard = Arc::new(Switchboard::default());
    let plane = Plane::new(options.limits.clone(), about.epoch.clone());
    let addr = BrokerActor::new(
        plane,
        Arc::clone(&store),
        Arc::clone(&board),
        Arc::clone(&switchboard),
        machine.clone(),
        workers.clone(),
        clock,
    )
    .start();
    machine.bind(addr.clone());
    workers.bind(addr.clone());
    let (tell_stop, stop) = Stop::new();
    let broker = Broker {
        addr,
        board,
        store,
        switchboard,
        registry: Arc::new(RwLock::new(Arc::new(Loaded::default()))),
        about: Arc::new(about),
        place: Arc::new(options.place.clone()),
        limits: Arc::new(options.limits.clone()),
        clock,
        workers,
        closing: Arc::default(),
        stop,
        end: Arc::new(Notify::new()),
        at_once: Arc::default(),
        codes: Arc::new(Tickets::new(LINK_GOOD_FOR)),
    };
    (broker, machine, tell_stop)
}

/// Serves until a signal, a request or idleness ends it.
async fn attend(options: &Options, door: &mut Door, signals: &mut Signals, changed: &Watch) {
    let mut idle_for = Duration::ZERO;
    // A read of its own, however long it takes: nothing else waits for it.
    let mut reading: Option<JoinHandle<Loaded>> = None;
    let end = Arc::clone(&door.broker.end);
    loop {
        tokio::select! {
            () = signals.next() => return,
            () = end.notified() => return,
            () = changed.settled(), if reading.is_none() => {
                let read = Arc::clone(&options.load);
                reading = Some(actix::spawn(async move { load(&read).await }));
            }
            loaded = finished(&mut reading) => door.broker.declare(loaded),
            () = tokio::time::sleep(TICK) => {
                door.see_to_the_socket();
                idle_for = if door.broker.is_idle() { idle_for + TICK } else { Duration::ZERO };
                if options.idle.is_some_and(|bound| idle_for >= bound) {
                    tracing::info!("nothing ran, waited or watched; this broker leaves");
                    return;
                }
            }
        }
    }
}

/// Asks what this broker has started to stop, and waits for that as long as it may take; what
/// others brought goes on. A second request to end is taken at its word.
async fn wind_up(broker: &Broker, signals: &mut Signals) {
    broker.closing.store(true, Ordering::Relaxed);
    let under_way = broker.workers.under_way();
    if under_way.is_empty() || broker.at_once.load(Ordering::Relaxed) {
        return broker.workers.close();
    }
    tracing::info!(count = under_way.len(), "what this broker has started is asked to stop");
    // Those that wait go first: one that runs leaves its place to one that waits, for which no
    // worker would be made any more.
    let (waiting, others): (Vec<_>, Vec<_>) = under_way.into_iter().partition(|id| {
        broker.board.by_id(*id).is_some_and(|shown| shown.snapshot.state == State::Queued)
    });
    for id in waiting.into_iter().chain(others) {
        if let Err(fault) = broker.cancel(id, "broker", false).await {
            tracing::debug!(%id, %fault, "it needs no stop");
        }
    }
    broker.workers.close();
    let again = Arc::clone(&broker.end);
    let over = broker.workers.until_over();
    tokio::select! {
        () = over => {}
        () = tokio::time::sleep(broker.limits.cancel_grace + STOPPING) => {
            tracing::warn!("what this broker has started goes on without it");
        }
        () = signals.next() => {}
        () = again.notified() => {}
    }
}

/// Waits for a read that is under way and takes it out; waits for ever if there is none.
async fn finished(reading: &mut Option<JoinHandle<Loaded>>) -> Loaded {
    let Some(task) = reading else { return std::future::pending().await };
    let loaded = task.await.unwrap_or_else(|error| unreadable(&error.to_string()));
    *reading = None;
    loaded
}

/// The local socket, and who accepts on it.
struct Door {
    seat: Seat,
    accepting: JoinHandle<()>,
    broker: Broker,
    machine: Machine,
    open: Arc<AtomicUsize>,
}

impl Door {
    fn open(seat: Seat, listener: Listener, broker: Broker, machine: Machine) -> Self {
        let open = Arc::new(AtomicUsize::new(0));
        let accepting = local::accept(listener, broker.clone(), machine.clone(), Arc::clone(&open));
        Self { seat, accepting: actix::spawn(accepting), broker, machine, open }
    }

    /// Binds the socket again if somebody has removed its file.
    fn see_to_the_socket(&mut self) {
        if self.seat.socket_is_ours() {
            return;
        }
        tracing::warn!("the socket's file is gone; it is bound again");
        match self.seat.rebind() {
            Ok(listener) => {
                self.accepting.abort();
                let (broker, machine) = (self.broker.clone(), self.machine.clone());
                let accepting = local::accept(listener, broker, machine, Arc::clone(&self.open));
                self.accepting = actix::spawn(accepting);
            }
            Err(error) => tracing::error!(%error, "the socket cannot be bound again"),
        }
    }
}

/// Reads the manifest without holding up the plane, nor the end of this process.
async fn load(load: &Load) -> Loaded {
    let load = Arc::clone(load);
    let (tell, told) = oneshot::channel();
    let thread = std::thread::Builder::new().name("manifest".to_owned());
    let spawned = thread.spawn(move || drop(tell.send(load())));
    match spawned {
        Err(error) => unreadable(&error.to_string()),
        Ok(_) => told.await.unwrap_or_else(|_| unreadable("its reader broke")),
    }
}

fn unreadable(why: &str) -> Loaded {
    Loaded { problems: vec![format!("the manifest could not be read: {why}")], ..Loaded::default() }
}

/// Keeps this process's memory from everybody: no core file, no tracing, nothing under `/proc` for
/// others of this user. Whatever it starts is as it was.
fn keep_to_itself() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "other processes of this user may look into this one");
    }
    // The bound of others stays: what is started may raise its own again.
    let none = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "this process may leave a core file");
    }
}

/// Raises the number of files that this process may open as far as it may: every connection and
/// every watched process takes one.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, ?limit, "the number of open files stays as it is");
    }
}

/// The signals that end a broker in order.
struct Signals {
    terminate: Signal,
    /// Not listened to where whoever started this process had it ignored, as `nohup` does.
    interrupt: Option<Signal>,
    hangup: Option<Signal>,
}

impl Signals {
    fn new() -> Result<Self, ServeError> {
        let open = |kind| signal(kind).map_err(system("listen for signals"));
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let heeded = |kind: SignalKind| {
            (!is_ignored(&status, kind.as_raw_value())).then(|| open(kind)).transpose()
        };
        Ok(Self {
            terminate: open(SignalKind::terminate())?,
            interrupt: heeded(SignalKind::interrupt())?,
            hangup: heeded(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            () = received(self.interrupt.as_mut()) => {}
            () = received(self.hangup.as_mut()) => {}
        }
    }
}

async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Returns whether a process of this `/proc/<pid>/status` ignores a signal.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn random_hex(bytes: usize) -> Result<String, ServeError> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random)
        .map_err(|error| system("get random bytes")(std::io::Error::other(error.to_string())))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_cannot_be_dumped() {
        keep_to_itself();
        let behavior = rustix::process::dumpable_behavior().unwrap();
        assert_eq!(behavior, DumpableBehavior::NotDumpable);
        assert_eq!(getrlimit(Resource::Core).current, Some(0));
    }

    #[test]
    fn an_inherited_ignore_is_read_from_the_status_of_the_process() {
        let status = "Name:\treeve\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, SignalKind::hangup().as_raw_value()));
        assert!(!is_ignored(status, SignalKind::interrupt().as_raw_value()));
        assert!(!is_ignored("", SignalKind::hangup().as_raw_value()));
    }
}
