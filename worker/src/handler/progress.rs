//! A handler's reports on their way to the drive, and its flag.
//!
//! Owns the bounded channel between the handler's thread and the drive. The rule: nothing that
//! was reported is lost, so a handler that reports faster than it is listened to waits; one whose
//! call is no execution, or was given up, reports into the void and waits for nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use reeve_protocol::event::Severity;
use reeve_protocol::{Code, Fault, Kind, Output};
use tokio::sync::Notify;

use super::Returned;
use crate::process::clean;

/// Reports that wait for the drive, at most.
pub(crate) const WAITING_MAX: usize = 512;
/// Reports that are taken at once, at most.
pub(crate) const AT_ONCE: usize = 256;
/// How often a pause looks at the flag.
const LOOK: Duration = Duration::from_millis(10);

/// One report.
#[derive(Debug)]
pub(crate) enum Report {
    /// A fact.
    Kind(Kind),
    /// The call is over; always the last one.
    Ended(Returned),
}

/// Takes what a handler reports, and tells it whether it was asked to stop.
///
/// Cheap to clone; a clone may be used in another thread. All of it is free to call outside an
/// execution.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    flag: Arc<AtomicBool>,
    reporter: Option<Reporter>,
}

#[derive(Clone, Debug)]
struct Reporter {
    tx: SyncSender<Report>,
    bell: Arc<Notify>,
    line_chars: usize,
}

impl Progress {
    /// Returns one whose reports go nowhere.
    pub fn silent() -> Self {
        Self::default()
    }

    /// Says that a named phase begins.
    pub fn step(&self, name: &str, title: &str) {
        self.report(|| Kind::StepStarted { name: name.to_owned(), title: title.to_owned() });
    }

    /// Says how a named phase ended.
    pub fn step_done(&self, name: &str, ok: bool, detail: Option<&str>) {
        let detail = detail.map(str::to_owned);
        self.report(|| Kind::StepCompleted { name: name.to_owned(), ok, detail });
    }

    /// Says how far along it is; an empty message says nothing more. Of several in quick
    /// succession only the last one is kept.
    pub fn progress(&self, current: u64, total: Option<u64>, message: &str) {
        let message = (!message.is_empty()).then(|| message.to_owned());
        self.report(|| Kind::Progress { current, total, message });
    }

    /// Writes a line of output; a text of several lines becomes as many.
    pub fn log(&self, line: &str) {
        self.stream(Output::Stdout, line);
    }

    /// Writes a line to one of the two streams, such as one that a process of it has written.
    pub fn stream(&self, stream: Output, line: &str) {
        let lines = if line.is_empty() { "\n" } else { line };
        for line in lines.lines() {
            self.report(|| Kind::Log { stream, message: line.to_owned(), cut: false });
        }
    }

    /// Reports a finding, which says nothing about the outcome.
    pub fn diagnostic(
        &self,
        severity: Severity,
        code: &str,
        summary: &str,
        detail: Option<&str>,
        suggestion: Option<&str>,
    ) {
        self.report(|| Kind::Diagnostic {
            severity,
            code: code.to_owned(),
            summary: summary.to_owned(),
            detail: detail.map(str::to_owned),
            suggestion: suggestion.map(str::to_owned),
        });
    }

    /// Returns whether it was asked to stop.
    pub fn cancelled(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// Returns the fault to end with when it was.
    pub fn cancellation(&self) -> Fault {
        Fault::new(Code::Cancelled, "it was asked to stop and did")
    }

    /// Ends the call here, by `?`, if it was asked to stop.
    ///
    /// # Errors
    ///
    /// [`Progress::cancellation`] when it was.
    pub fn checkpoint(&self) -> Result<(), Fault> {
        if self.cancelled() { Err(self.cancellation()) } else { Ok(()) }
    }

    /// Waits so long, or until it is asked to stop.
    ///
    /// # Errors
    ///
    /// [`Progress::cancellation`] when it was.
    pub fn pause(&self, duration: Duration) -> Result<(), Fault> {
        let clock = crate::clock::Clock::start();
        loop {
            self.checkpoint()?;
            let left = duration.saturating_sub(clock.now().mono);
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK));
        }
    }

    /// Returns whether anybody takes the reports.
    pub fn observed(&self) -> bool {
        self.reporter.is_some()
    }

    /// Asks whoever holds a clone to stop; nothing more than the flag.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Release);
    }

    /// Reports the end.
    pub(crate) fn end(&self, returned: Returned) {
        if let Some(reporter) = &self.reporter {
            reporter.send(Report::Ended(returned));
        }
    }

    fn report(&self, kind: impl FnOnce() -> Kind) {
        if let Some(reporter) = &self.reporter {
            reporter.send(Report::Kind(clean(kind(), reporter.line_chars)));
        }
    }
}

impl Reporter {
    /// Waits while the drive has enough. Where nobody listens any more it is dropped.
    fn send(&self, report: Report) {
        if self.tx.send(report).is_ok() {
            self.bell.notify_one();
        }
    }
}

/// The drive's end of the channel.
#[derive(Debug)]
pub(crate) struct Reports {
    rx: Receiver<Report>,
    bell: Arc<Notify>,
}

/// Makes both ends; texts are cut at so many characters.
pub(crate) fn observed(line_chars: usize) -> (Progress, Reports) {
    let (tx, rx) = sync_channel(WAITING_MAX);
    let bell = Arc::new(Notify::new());
    let reporter = Reporter { tx, bell: Arc::clone(&bell), line_chars };
    let progress = Progress { flag: Arc::default(), reporter: Some(reporter) };
    (progress, Reports { rx, bell })
}

impl Reports {
    /// Waits for what is reported next, in order; never nothing. Nothing is lost when the wait is
    /// given up.
    pub async fn next(&mut self) -> Vec<Report> {
        loop {
            let taken = self.take(AT_ONCE);
            if !taken.is_empty() {
                return taken;
            }
            self.bell.notified().await;
        }
    }

    /// Takes what there is at this moment.
    pub fn take_all(&mut self) -> Vec<Report> {
        self.take(WAITING_MAX)
    }

    fn take(&mut self, max: usize) -> Vec<Report> {
        let mut taken = Vec::new();
        while taken.len() < max {
            match self.rx.try_recv() {
                Ok(report) => taken.push(report),
                // Whoever could report an end is gone without one.
                Err(TryRecvError::Disconnected) if taken.is_empty() => {
                    taken.push(Report::Ended(Returned::Panicked));
                    break;
                }
                Err(TryRecvError::Disconnected | TryRecvError::Empty) => break,
            }
        }
        taken
    }
}
