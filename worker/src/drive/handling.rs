//! The drive's part about handlers: a thread of its own, its reports, and giving it up.

use std::time::Duration;

use reeve_protocol::{Code, Fault, Kind, Now};

use super::call::HandlerCall;
use super::verdict::{self, Stop};
use super::{Drive, Phase};
use crate::handler::{Ctx, Progress, Report, Reports, observed};

/// The name of a handler's thread.
const THREAD: &str = "handler";
/// Bytes of its stack: what it reads may be nested, and what comes from a socket is bounded.
const STACK: usize = 8 << 20;

/// A handler that was entered.
pub(super) struct Handling {
    reports: Reports,
    /// Our hold of its flag.
    progress: Progress,
    /// When it is waited for no longer.
    give_up_at: Option<Duration>,
}

impl Handling {
    /// Waits for its next reports.
    pub async fn next(&mut self) -> Vec<Report> {
        self.reports.next().await
    }

    /// Returns when it is waited for no longer.
    pub fn give_up_at(&self) -> Option<Duration> {
        self.give_up_at
    }

    /// Asks it to stop within the grace; the earliest end counts.
    pub fn ask_to_stop(&mut self, now: Duration, grace: Duration) {
        self.progress.cancel();
        let until = now + grace;
        self.give_up_at = Some(self.give_up_at.map_or(until, |at| at.min(until)));
    }
}

impl Drive<'_> {
    /// Enters a handler in a thread of its own.
    pub(super) fn enter(&mut self, call: HandlerCall) {
        let (progress, reports) = observed(self.call.limits.max_line_chars);
        let HandlerCall { handler, input, site, .. } = call;
        let ctx = Ctx::observed(site, self.call.execution, progress.clone());
        let work = move || {
            let returned = handler.enter(&ctx, input);
            ctx.progress.end(returned);
        };
        let thread = std::thread::Builder::new().name(THREAD.to_owned()).stack_size(STACK);
        match thread.spawn(work) {
            Ok(_) => {
                let now = self.clock.now();
                self.by_now = self.call.work.timeout().map(|timeout| now.mono + timeout);
                self.phase = Phase::Handling(Handling { reports, progress, give_up_at: None });
            }
            Err(error) => {
                let message = format!("no thread for the handler: {error}");
                let error = Fault::new(Code::Internal, message).because("not_started");
                self.fail(error);
            }
        }
    }

    /// Takes what the handler reported.
    pub(super) fn on_reports(&mut self, reports: Vec<Report>, now: Now) {
        for report in reports {
            match report {
                Report::Kind(kind) => {
                    let kind = self.scrubber.kind(kind);
                    self.note(|session| session.emit(kind, now));
                }
                Report::Ended(returned) => {
                    self.session.handle_released(Vec::new(), now);
                    let end = verdict::of_handler(returned, self.stop, self.call.work.timeout());
                    return self.finish(verdict::about(end, self.call.execution));
                }
            }
        }
    }

    /// Does what is due while a handler runs: ends the waiting for one that ignores its flag.
    pub(super) fn on_handler_time(&mut self, now: Now) {
        let Phase::Handling(handling) = &mut self.phase else { return };
        if self.by_now.is_some_and(|at| at <= now.mono) {
            self.by_now = None;
            self.stop = self.stop.or(Stop::TimedOut);
            handling.ask_to_stop(now.mono, self.call.work.grace());
        }
        if handling.give_up_at.is_none_or(|at| now.mono < at) {
            return;
        }
        // What it has reported so far counts, and its end too if it came just now.
        let waiting = handling.reports.take_all();
        self.on_reports(waiting, now);
        if matches!(self.phase, Phase::Handling(_)) {
            self.abandon(now);
        }
    }

    /// Waits for the handler no longer. Its thread goes on until its process ends, which keeps
    /// what it holds until then: nothing is said about a release.
    fn abandon(&mut self, now: Now) {
        self.abandoned = true;
        self.diagnose("abandoned", verdict::ABANDONED.to_owned(), now);
        let end = verdict::of_abandoned(self.stop, self.call.work.timeout());
        self.finish(verdict::about(end, self.call.execution));
    }

    fn fail(&mut self, error: Fault) {
        let end = Kind::Failed { error, receipt: None };
        self.finish(verdict::about(end, self.call.execution));
    }
}
