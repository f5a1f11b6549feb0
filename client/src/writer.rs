//! The writer: brings what a command prints to its two streams, on a thread of its own.
//!
//! Owns the queue between the two. The rule: whoever prints never waits for whoever reads; what
//! waits is counted, so that work which prints can be left unread until there is room again. The
//! order of both streams is the order in which they were written to. Never looks at what it
//! writes.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that wait before [`Backlog::is_full`] says so.
const FULL: usize = 1 << 20;
/// Bytes that wait at most: work that is being ended is read to its end, whoever reads.
const MOST: usize = 16 << 20;

/// Where a piece goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// To standard output.
    Out,
    /// To standard error.
    Err,
}

/// What is not written yet.
#[derive(Clone)]
pub struct Backlog {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<(To, Vec<u8>)>,
    /// Bytes that wait, with those that are being written.
    bytes: usize,
    /// Bytes that found no room.
    dropped: u64,
    /// Why standard output takes nothing any more.
    closed: Option<io::Error>,
    over: bool,
}

impl Backlog {
    /// Starts the thread that writes to the streams of this process.
    ///
    /// # Errors
    ///
    /// When the system has no room for another thread.
    pub fn start() -> io::Result<Self> {
        Self::with(io::stdout(), io::stderr())
    }

    fn with(
        mut out: impl Write + Send + 'static,
        mut err: impl Write + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new() });
        let backlog = Self { shared: Arc::clone(&shared) };
        std::thread::Builder::new().name("writer".to_owned()).spawn(move || {
            while let Some((to, bytes)) = shared.next() {
                let written = match to {
                    To::Out => out.write_all(&bytes).and_then(|()| out.flush()),
                    // Where nobody reads what is told, nobody misses it.
                    To::Err => err.write_all(&bytes).or(Ok(())),
                };
                shared.on_written(bytes.len(), written);
            }
        })?;
        Ok(backlog)
    }

    /// Returns whether nothing that can wait should be added.
    pub fn is_full(&self) -> bool {
        self.shared.lock().bytes >= FULL
    }

    /// Waits until everything was written, or cannot be; returns whether that is so.
    pub fn is_written_within(&self, patience: Duration) -> bool {
        let queue = self.shared.lock();
        let waited = self.shared.changed.wait_timeout_while(queue, patience, |it| it.bytes > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.bytes == 0
    }

    /// Returns how many bytes found no room.
    pub fn dropped(&self) -> u64 {
        self.shared.lock().dropped
    }

    /// Adds bytes; waits for nobody.
    ///
    /// # Errors
    ///
    /// When standard output takes nothing any more; the error says why.
    pub fn push(&self, to: To, bytes: &[u8]) -> io::Result<()> {
        let mut queue = self.shared.lock();
        if to == To::Out {
            queue.check()?;
        }
        if queue.bytes + bytes.len() > MOST {
            queue.dropped += bytes.len() as u64;
            return Ok(());
        }
        if !bytes.is_empty() {
            queue.bytes += bytes.len();
            queue.pieces.push_back((to, bytes.to_vec()));
            self.shared.changed.notify_all();
        }
        Ok(())
    }

    /// Returns how standard output stands.
    ///
    /// # Errors
    ///
    /// When it takes nothing any more.
    pub fn check(&self) -> io::Result<()> {
        self.shared.lock().check()
    }

    /// Ends the thread once it has written what it has begun to; what waits is given up.
    pub fn end(&self) {
        let mut queue = self.shared.lock();
        queue.over = true;
        queue.pieces.clear();
        self.shared.changed.notify_all();
    }
}

impl Queue {
    fn check(&self) -> io::Result<()> {
        let Some(error) = &self.closed else { return Ok(()) };
        Err(error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next piece; none once it is over.
    fn next(&self) -> Option<(To, Vec<u8>)> {
        let mut queue = self.lock();
        loop {
            if queue.over {
                return None;
            }
            if let Some(piece) = queue.pieces.pop_front() {
                return Some(piece);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn on_written(&self, bytes: usize, written: io::Result<()>) {
        let mut queue = self.lock();
        queue.bytes -= bytes;
        if let Err(error) = written {
            queue.closed = Some(error);
            queue.pieces.retain(|(to, _)| *to == To::Err);
            queue.bytes = queue.pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        }
        if queue.bytes == 0 {
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A stream whose reader takes a piece when it is told to, and then says which.
    struct Slow(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            drop(self.1.send(bytes.to_vec()));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_prints_never_waits_and_is_told_that_it_is_full() {
        let ((take, taken), (seen, read)) = (channel(), channel());
        let backlog = Backlog::with(Slow(taken, seen), io::sink()).expect("a thread");
        backlog.push(To::Out, b"first").expect("it is open");
        assert!(!backlog.is_full());
        let large = vec![b'x'; FULL];
        backlog.push(To::Out, &large).expect("it is open");
        assert!(backlog.is_full() && !backlog.is_written_within(Duration::ZERO));
        for _ in 0..20 {
            backlog.push(To::Out, &large).expect("it is open");
        }
        assert!(backlog.dropped() > 0, "there is an end to what waits");
        take.send(()).expect("it writes");
        assert_eq!(read.recv().expect("it was written"), b"first");
        drop(take);
        assert!(backlog.is_written_within(Duration::MAX));
        let error = backlog.push(To::Out, b"x").expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        backlog.push(To::Err, b"x").expect("what is told is no data");
        backlog.end();
    }
}
