//! Serving a checkout: from taking the seat to leaving it.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use actix::Actor;
use reeve_protocol::capability::Loaded;
use reeve_protocol::lease::Lease;
use reeve_protocol::place::{Identity, Place};
use reeve_protocol::{Limits, Timestamp};
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::actor::BrokerActor;
use crate::board::Board;
use crate::clock::Clock;
use crate::edge::http::{self, Surface};
use crate::edge::local;
use crate::handle::{About, Broker};
use crate::machine::{Machine, Orphans};
use crate::plane::Plane;
use crate::seat::{Seat, SeatError};
use crate::store::memory::Memory;
use crate::switchboard::Switchboard;
use crate::token::{Keys, TokenError};

/// How often the socket's file, idleness and the manifest's settling are looked at.
const TICK: Duration = Duration::from_secs(1);
/// How long readers have to take their goodbye.
const FAREWELL: Duration = Duration::from_millis(100);

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
    let state_dir = &options.place.state_dir;
    let keys = Keys::open(state_dir)?;
    let listened = http::listen(options.port, state_dir).await;
    let port_wanted = options.port.unwrap_or(0);
    let tcp = listened.map_err(|source| ServeError::Port { port: port_wanted, source })?;
    let port = tcp.local_addr().map_err(system("see the port"))?.port();
    seat.at(format!("http://127.0.0.1:{port}"));
    let listener = seat.listen()?;
    let epoch = random_hex(8)?;
    let limits = Arc::new(options.limits.clone());
    let machine = Machine::new(Arc::clone(&options.orphans));
    let store: Arc<dyn crate::store::Store> = Arc::new(Memory::new(options.limits.clone()));
    let board = Arc::new(Board::default());
    let switchboard = Arc::new(Switchboard::default());
    let plane = Plane::new(options.limits.clone(), epoch.clone());
    let addr = BrokerActor::new(
        plane,
        Arc::clone(&store),
        Arc::clone(&board),
        Arc::clone(&switchboard),
        machine.clone(),
        clock,
    )
    .start();
    machine.bind(addr.clone());
    let about = About {
        pid: options.identity.pid,
        version: options.version.clone(),
        instance,
        epoch,
        started_at,
        repository: options.place.repository.clone(),
    };
    let broker = Broker {
        addr,
        board,
        store,
        switchboard,
        registry: Arc::new(RwLock::new(Arc::new(Loaded::default()))),
        about: Arc::new(about),
        limits,
        clock,
        stop: Arc::new(Notify::new()),
        end: Arc::new(Notify::new()),
    };
    broker.declare(load(&options.load).await);
    let open = Arc::new(AtomicUsize::new(0));
    let mut accepting =
        actix::spawn(local::accept(listener, broker.clone(), machine.clone(), Arc::clone(&open)));
    let surface = Surface::new(broker.clone(), port, keys);
    let accepting_http = actix::spawn(http::accept(tcp, surface));
    ready(seat.lease());
    let changed = crate::manifest_watch::watch(&options.place.manifest());
    let mut idle_for = Duration::ZERO;
    let mut signals = Signals::new()?;
    loop {
        tokio::select! {
            () = signals.next() => break,
            () = broker.end.notified() => break,
            () = changed.settled() => broker.declare(load(&options.load).await),
            () = tokio::time::sleep(TICK) => {
                if !seat.socket_is_ours() {
                    tracing::warn!("the socket's file is gone; it is bound again");
                    match seat.rebind() {
                        Ok(listener) => {
                            accepting.abort();
                            accepting = actix::spawn(local::accept(
                                listener,
                                broker.clone(),
                                machine.clone(),
                                Arc::clone(&open),
                            ));
                        }
                        Err(error) => tracing::error!(%error, "the socket cannot be bound again"),
                    }
                }
                idle_for = if broker.is_idle() { idle_for + TICK } else { Duration::ZERO };
                if options.idle.is_some_and(|bound| idle_for >= bound) {
                    tracing::info!("nothing ran, waited or watched; this broker leaves");
                    break;
                }
            }
        }
    }
    accepting.abort();
    accepting_http.abort();
    broker.stop.notify_waiters();
    tokio::time::sleep(FAREWELL).await;
    seat.leave();
    Ok(())
}

/// Reads the manifest without holding up the plane.
async fn load(load: &Load) -> Loaded {
    let load = Arc::clone(load);
    tokio::task::spawn_blocking(move || load()).await.unwrap_or_else(|error| Loaded {
        problems: vec![format!("the manifest could not be read: {error}")],
        ..Loaded::default()
    })
}

/// The signals that end a broker in order.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Self, ServeError> {
        let open = |kind| signal(kind).map_err(system("listen for signals"));
        Ok(Self {
            terminate: open(SignalKind::terminate())?,
            interrupt: open(SignalKind::interrupt())?,
            hangup: open(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

fn random_hex(bytes: usize) -> Result<String, ServeError> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random)
        .map_err(|error| system("get random bytes")(std::io::Error::other(error.to_string())))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}
