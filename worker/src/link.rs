//! The connection to a broker: finds it, greets it, carries frames, and comes back after a cut.
//!
//! An edge: it decides nothing about an execution. What goes out is taken at once and written
//! behind the caller's back, within a bound; a broker that never reads delays nobody. The lease
//! is read anew before each attempt, so that a successor is found.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use interprocess::local_socket::tokio::{Stream, prelude::*};
use interprocess::local_socket::{GenericFilePath, ToFsName};
use reeve_protocol::frame;
use reeve_protocol::lease::Lease;
use reeve_protocol::peer::{self, Bye, Hello};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Bytes that wait for a broker that does not read; beyond that the connection is cut.
const WAITING_MAX: usize = 16 << 20;
/// Frames that were read and not yet taken.
const FRAMES_MAX: usize = 64;
/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(2);
/// How long the last frames have to leave.
const CLOSE: Duration = Duration::from_millis(250);
/// The first pause between two attempts, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// Looks for the broker of the checkout.
pub type Discover = Box<dyn Fn() -> Option<Lease> + Send>;

/// What happened on the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// There is one, and hello was said.
    Connected,
    /// A frame came.
    Frame {
        /// Its kind.
        kind: u8,
        /// Its body.
        body: Bytes,
    },
    /// It is gone; another attempt follows.
    Disconnected,
    /// No broker could be reached; another attempt follows.
    Unreachable,
}

/// The connection, whether there is one right now or not.
pub struct Link {
    events: mpsc::Receiver<Happened>,
    out: Option<Outgoing>,
    task: JoinHandle<()>,
}

enum Happened {
    Connected(Outgoing),
    Frame { kind: u8, body: Bytes },
    Disconnected,
    Unreachable,
}

/// The way out of one connection.
#[derive(Clone)]
struct Outgoing {
    frames: mpsc::UnboundedSender<Bytes>,
    waiting: Arc<AtomicUsize>,
    cut: Arc<Notify>,
}

impl Link {
    /// Starts looking for a broker, within a tokio runtime. `seed` spreads the attempts of many
    /// workers; `hello` needs no instance.
    pub fn start(discover: Discover, hello: Hello, seed: u64) -> Self {
        let (tx, events) = mpsc::channel(FRAMES_MAX);
        let task = tokio::spawn(Dialler { discover, hello, jitter: Jitter(seed), tx }.run());
        Self { events, out: None, task }
    }

    /// Returns what happens next. Nothing is lost when the wait is given up.
    pub async fn next(&mut self) -> LinkEvent {
        match self.events.recv().await {
            Some(Happened::Connected(out)) => {
                self.out = Some(out);
                LinkEvent::Connected
            }
            Some(Happened::Frame { kind, body }) => LinkEvent::Frame { kind, body },
            Some(Happened::Disconnected) => {
                self.out = None;
                LinkEvent::Disconnected
            }
            Some(Happened::Unreachable) => LinkEvent::Unreachable,
            None => std::future::pending().await,
        }
    }

    /// Takes a whole frame for the broker; without a connection it is dropped.
    pub fn send(&mut self, bytes: Bytes) {
        let Some(out) = &self.out else { return };
        let waiting = out.waiting.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        if waiting > WAITING_MAX {
            tracing::warn!(waiting, "the broker does not read; the connection is cut");
            out.cut.notify_one();
            self.out = None;
        } else if out.frames.send(bytes).is_err() {
            self.out = None;
        }
    }

    /// Says goodbye and closes this connection; another attempt follows.
    pub fn disconnect(&mut self, reason: &str) {
        let mut bye = BytesMut::new();
        frame::put_message(&mut bye, peer::kind::BYE, &Bye { reason: reason.to_owned() });
        self.send(bye.freeze());
        self.out = None;
    }

    /// Says goodbye and closes for good, as soon as the last frames have left.
    pub async fn close(mut self, reason: &str) {
        if self.out.is_some() {
            self.events.close();
            self.disconnect(reason);
            if timeout(CLOSE, &mut self.task).await.is_ok() {
                return;
            }
        }
        self.task.abort();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The task behind a [`Link`].
struct Dialler {
    discover: Discover,
    hello: Hello,
    jitter: Jitter,
    tx: mpsc::Sender<Happened>,
}

impl Dialler {
    async fn run(mut self) {
        let mut failures = 0;
        loop {
            let heard = match self.connect().await {
                Some(stream) => {
                    let heard = self.serve(stream).await;
                    if self.tx.send(Happened::Disconnected).await.is_err() {
                        return;
                    }
                    heard
                }
                None if self.tx.send(Happened::Unreachable).await.is_err() => return,
                None => false,
            };
            if heard {
                // Whoever just spoke may be back at once.
                failures = 0;
                continue;
            }
            sleep(self.jitter.pause(failures)).await;
            failures += 1;
        }
    }

    async fn connect(&mut self) -> Option<Stream> {
        let lease = (self.discover)()?;
        self.hello.instance = Some(lease.instance.clone());
        match timeout(CONNECT, connect(&lease)).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the broker cannot be reached");
                None
            }
            Err(_) => None,
        }
    }

    /// Carries frames until the connection ends; returns whether the broker said anything.
    async fn serve(&mut self, stream: Stream) -> bool {
        let stream = Arc::new(stream);
        let (frames, rx) = mpsc::unbounded_channel();
        let mut hello = BytesMut::new();
        frame::put_message(&mut hello, peer::kind::HELLO, &self.hello);
        let waiting = Arc::new(AtomicUsize::new(hello.len()));
        let cut = Arc::new(Notify::new());
        if frames.send(hello.freeze()).is_err() {
            return false;
        }
        let out = Outgoing { frames, waiting: Arc::clone(&waiting), cut: Arc::clone(&cut) };
        if self.tx.send(Happened::Connected(out)).await.is_err() {
            return false;
        }
        let mut heard = false;
        tokio::select! {
            () = read(&stream, &self.tx, &mut heard) => {}
            () = write(&stream, rx, &waiting) => {}
            () = cut.notified() => {}
        }
        heard
    }
}

async fn connect(lease: &Lease) -> io::Result<Stream> {
    let name = lease.socket.as_path().to_fs_name::<GenericFilePath>()?;
    Stream::connect(name).await
}

async fn read(stream: &Stream, tx: &mpsc::Sender<Happened>, heard: &mut bool) {
    let mut stream = stream;
    let mut buffer = BytesMut::with_capacity(16 << 10);
    loop {
        match frame::take(&mut buffer) {
            Ok(Some((peer::kind::BYE, _))) => return,
            Ok(Some((kind, body))) => {
                *heard = true;
                if tx.send(Happened::Frame { kind, body }).await.is_err() {
                    // Nobody listens any more; what is to be written still is.
                    return std::future::pending().await;
                }
                continue;
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "the broker sent a frame that cannot be taken");
                return;
            }
        }
        match stream.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

async fn write(stream: &Stream, mut rx: mpsc::UnboundedReceiver<Bytes>, waiting: &AtomicUsize) {
    let mut stream = stream;
    while let Some(bytes) = rx.recv().await {
        if stream.write_all(&bytes).await.is_err() {
            return;
        }
        waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
    }
}

/// Spreads attempts: a small generator, for nothing that has to be unpredictable.
struct Jitter(u64);

impl Jitter {
    /// Returns the pause after so many failures: doubled each time, between half and all of it.
    fn pause(&mut self, failures: u32) -> Duration {
        let (first, longest) = PAUSES;
        let pause = first.saturating_mul(1 << failures.min(16)).min(longest);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let share = u32::try_from((mixed >> 31) % 512).expect("below 512");
        pause / 2 + pause / 1024 * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_cap_and_differ() {
        let mut jitter = Jitter(7);
        let pauses: Vec<Duration> = (0..12).map(|failures| jitter.pause(failures)).collect();
        assert!(pauses[0] >= PAUSES.0 / 2 && pauses[0] <= PAUSES.0);
        assert!(pauses.iter().all(|pause| *pause <= PAUSES.1));
        assert!(pauses[8..].iter().all(|pause| *pause >= PAUSES.1 / 2));
        assert_ne!(pauses[10], pauses[11]);
    }
}
