//! What a process says about itself on its events descriptor.
//!
//! Owns the way from raw lines to checked and clean events. A line that is none never harms the
//! run: it becomes a warning that names what is wrong with it, and after so many of those bad
//! lines are passed over in silence.

use std::io;
use std::os::fd::OwnedFd;

use reeve_protocol::event::{self, ChildEvent, Kind, Severity};
use reeve_protocol::sanitise;
use serde_json::Value;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::process::descriptor::{self, watched};
use crate::scrub::Scrubber;

/// Bytes of one line; a longer one is a bad line.
pub const LINE_BYTES: usize = 256 << 10;
/// Bad lines that are told of.
pub const WARNINGS_MAX: u32 = 20;
/// Characters of what is said about a bad line.
const REASON_CHARS: usize = 500;

/// Reads the events descriptor.
#[derive(Debug)]
pub(crate) struct Said {
    fd: AsyncFd<OwnedFd>,
    parser: Parser,
}

impl Said {
    /// Takes the reading end of the pipe; it must not block.
    pub fn new(fd: OwnedFd, line_chars: usize, scrubber: Scrubber) -> io::Result<Self> {
        let fd = watched(fd, Interest::READABLE)?;
        Ok(Self { fd, parser: Parser::new(line_chars, scrubber) })
    }

    /// Waits until there is something to read. Nothing is lost when the wait is given up.
    pub async fn ready(&self) {
        let _ = self.fd.readable().await;
    }

    /// Reads once through `scratch`; returns what was said, or `None` at the end.
    pub fn read(&mut self, scratch: &mut [u8]) -> Option<Vec<ChildEvent>> {
        match descriptor::read(&self.fd, scratch) {
            None => Some(Vec::new()),
            Some(0) => None,
            Some(length) => Some(self.parser.push(&scratch[..length])),
        }
    }

    /// Takes the end of the descriptor: what has no line end is a line, too.
    pub fn finish(mut self) -> Vec<ChildEvent> {
        self.parser.finish()
    }
}

/// Cuts bytes into lines and lines into events.
#[derive(Debug)]
struct Parser {
    line: Vec<u8>,
    too_long: bool,
    warnings: u32,
    line_chars: usize,
    scrubber: Scrubber,
}

impl Parser {
    fn new(line_chars: usize, scrubber: Scrubber) -> Self {
        Self { line: Vec::new(), too_long: false, warnings: 0, line_chars, scrubber }
    }

    fn push(&mut self, bytes: &[u8]) -> Vec<ChildEvent> {
        let mut events = Vec::new();
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            self.extend(&rest[..end]);
            events.extend(self.end_line());
            rest = &rest[end + 1..];
        }
        self.extend(rest);
        events
    }

    fn finish(&mut self) -> Vec<ChildEvent> {
        self.end_line().into_iter().collect()
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.too_long || self.line.len() + bytes.len() > LINE_BYTES {
            self.too_long = true;
            self.line = Vec::new();
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    /// Takes the line that is complete; an empty one says nothing.
    fn end_line(&mut self) -> Option<ChildEvent> {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.too_long) {
            return self.warning(&format!("a line is longer than {LINE_BYTES} bytes"));
        }
        if line.trim_ascii().is_empty() {
            return None;
        }
        let event = serde_json::from_slice::<Value>(&line)
            .map_err(|error| format!("a line is not JSON: {error}"))
            .and_then(|value| event::from_child(&value));
        match event {
            // Before a text is cut, and again when it is clean.
            Ok(ChildEvent::Kind(kind)) => {
                let kind = clean(self.scrubber.kind(kind), self.line_chars);
                Some(ChildEvent::Kind(self.scrubber.kind(kind)))
            }
            Ok(ChildEvent::Output(mut value)) => {
                self.scrubber.value(&mut value);
                Some(ChildEvent::Output(value))
            }
            Err(mut reason) => {
                self.scrubber.text(&mut reason);
                self.warning(&reason)
            }
        }
    }

    fn warning(&mut self, reason: &str) -> Option<ChildEvent> {
        self.warnings = self.warnings.saturating_add(1);
        if self.warnings > WARNINGS_MAX {
            return None;
        }
        let last = self.warnings == WARNINGS_MAX;
        Some(ChildEvent::Kind(Kind::Diagnostic {
            severity: Severity::Warning,
            code: "events_fd".to_owned(),
            summary: format!("ignored on the events descriptor: {}", reason_text(reason)),
            detail: last.then(|| "further ones are not shown".to_owned()),
            suggestion: None,
        }))
    }
}

/// Makes every text of an event safe to show, and no longer than so many characters.
pub(crate) fn clean(mut kind: Kind, line_chars: usize) -> Kind {
    let text = |text: &mut String| *text = sanitise::text(text, line_chars);
    match &mut kind {
        Kind::Progress { message, .. } => message.iter_mut().for_each(text),
        Kind::StepStarted { name, title } => [name, title].into_iter().for_each(text),
        Kind::StepCompleted { name, detail, .. } => {
            [name].into_iter().chain(detail).for_each(text);
        }
        Kind::Diagnostic { code, summary, detail, suggestion, .. } => {
            [code, summary].into_iter().chain(detail).chain(suggestion).for_each(text);
        }
        Kind::Log { message, cut, .. } => {
            let whole = sanitise::text(message, usize::MAX);
            *cut |= whole.chars().count() > line_chars;
            *message = sanitise::text(&whole, line_chars);
        }
        // Work may say nothing else.
        Kind::Created { .. }
        | Kind::Queued { .. }
        | Kind::Gate { .. }
        | Kind::Started {}
        | Kind::Resources { .. }
        | Kind::Suspended { .. }
        | Kind::Resumed { .. }
        | Kind::Cancelling { .. }
        | Kind::Cancelled { .. }
        | Kind::Completed { .. }
        | Kind::Failed { .. }
        | Kind::Unknown { .. } => {}
    }
    kind
}

fn reason_text(reason: &str) -> String {
    sanitise::text(reason, REASON_CHARS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn progress(current: u64, message: &str) -> ChildEvent {
        let message = Some(message.to_owned());
        ChildEvent::Kind(Kind::Progress { current, total: None, message })
    }

    fn warning(event: &ChildEvent) -> &str {
        let ChildEvent::Kind(Kind::Diagnostic {
            severity: Severity::Warning, code, summary, ..
        }) = event
        else {
            panic!("{event:?} is no warning");
        };
        assert_eq!(code, "events_fd");
        summary
    }

    #[test]
    fn lines_become_events_however_they_arrive() {
        let line = br#"{"type":"execution.progress","data":{"current":3,"message":"a\u001b[31mb"}}
{"type":"execution.output","data":{"n":1}}

{"type":"execution.progress","data":{"current":4,"message":"end"}}"#;
        for size in [1, 7, line.len()] {
            let mut parser = Parser::new(100, Scrubber::default());
            let mut events: Vec<_> =
                line.chunks(size).flat_map(|piece| parser.push(piece)).collect();
            events.extend(parser.finish());
            let output = ChildEvent::Output(json!({ "n": 1 }));
            assert_eq!(events, [progress(3, "ab"), output, progress(4, "end")]);
        }
    }

    #[test]
    fn a_bad_line_is_a_warning_that_names_what_is_wrong() {
        let mut parser = Parser::new(100, Scrubber::default());
        let events = parser.push(
            b"hello\n[]\n{\"type\":\"execution.failed\"}\n{\"type\":\"progress\"}\n\
            {\"type\":\"execution.progress\",\"data\":{\"current\":-1}}\n\xFF\n",
        );
        let warnings: Vec<_> = events.iter().map(warning).collect();
        assert_eq!(warnings.len(), 6);
        assert!(warnings[0].contains("not JSON"), "{warnings:?}");
        assert!(warnings[1].contains("one JSON object"), "{warnings:?}");
        assert!(warnings[2].contains("execution.failed"), "{warnings:?}");
    }

    #[test]
    fn a_line_is_bounded_and_the_next_one_counts_again() {
        let mut parser = Parser::new(100, Scrubber::default());
        let data = "x".repeat(LINE_BYTES - r#"{"type":"execution.output","data":""}"#.len());
        let fits = format!("{{\"type\":\"execution.output\",\"data\":\"{data}\"}}\n");
        assert_eq!(parser.push(fits.as_bytes()), [ChildEvent::Output(data.clone().into())]);
        let events = parser.push(format!(" {fits}").as_bytes());
        assert!(warning(&events[0]).contains("longer than"));
        assert_eq!(parser.push(fits.as_bytes()), [ChildEvent::Output(data.into())]);
    }

    #[test]
    fn only_the_first_bad_lines_are_told_of() {
        let mut parser = Parser::new(100, Scrubber::default());
        let events = parser.push("no\n".repeat(WARNINGS_MAX as usize + 5).as_bytes());
        assert_eq!(events.len(), WARNINGS_MAX as usize);
    }

    #[test]
    fn a_log_line_that_is_too_long_is_cut_and_marked() {
        let mut parser = Parser::new(4, Scrubber::default());
        let say = |text: &str| {
            format!(
                "{{\"type\":\"execution.log\",\"data\":{{\"stream\":\"stdout\",\"message\":\"{text}\"}}}}\n"
            )
        };
        let events = parser.push((say("abcd") + &say("abcde")).as_bytes());
        let lines: Vec<_> = events
            .iter()
            .map(|event| match event {
                ChildEvent::Kind(Kind::Log { message, cut, .. }) => (message.as_str(), *cut),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(lines, [("abcd", false), ("abc…", true)]);
    }
}
