//! Scrubbing: the secrets of an execution, taken out of everything that it reports.
//!
//! A program may print what it was given, as it is or encoded, in one piece or in many. Whatever
//! is known to be a secret is looked for in every form that tools write (verbatim, base64,
//! percent, JSON, hexadecimal, UTF-16, quoted for a shell), and `[redacted]` stands in its place.
//! Of a long secret every part of 12 bytes counts, of one of several lines each line. An execution
//! without secrets pays nothing.
//!
//! Never guesses from a name or a shape what might be secret.

mod forms;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use reeve_protocol::redact::MARKER;
use reeve_protocol::secret::Secret;
use reeve_protocol::{Fault, Kind};
use serde_json::{Map, Value};

use forms::Wanted;
use stream::Patterns;
pub use stream::Stream;

/// Takes the secrets of one execution out of what it reports. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Scrubber(Option<Arc<Patterns>>);

impl Scrubber {
    /// Prepares the search for these secrets.
    pub fn new(secrets: &[Secret]) -> Self {
        if secrets.is_empty() {
            return Self(None);
        }
        let mut wanted = Wanted::default();
        secrets.iter().for_each(|secret| wanted.add(secret.reveal()));
        Self(Some(Arc::new(Patterns::new(wanted))))
    }

    /// Returns a search of one stream of bytes; nothing where there are no secrets.
    pub fn stream(&self) -> Option<Stream> {
        self.0.clone().map(Stream::new)
    }

    /// Returns a search of the lines of one stream; nothing where there are no secrets.
    pub fn lines(&self) -> Option<CleanLines> {
        self.stream().map(|stream| CleanLines { stream, rest: Vec::new() })
    }

    /// Scrubs a text.
    pub fn text(&self, text: &mut String) {
        let Some(mut stream) = self.stream() else { return };
        let mut out = Vec::with_capacity(text.len());
        stream.push(text.as_bytes(), &mut out);
        stream.finish(&mut out);
        if out != text.as_bytes() {
            *text = readable(out);
        }
    }

    /// Scrubs every text of a value, names of members included.
    pub fn value(&self, value: &mut Value) {
        if self.0.is_none() {
            return;
        }
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(members) => {
                let scrubbed = std::mem::take(members).into_iter().map(|(mut name, mut value)| {
                    self.text(&mut name);
                    self.value(&mut value);
                    (name, value)
                });
                *members = scrubbed.collect::<Map<_, _>>();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Scrubs every text of a fact.
    #[must_use]
    pub fn kind(&self, mut kind: Kind) -> Kind {
        if self.0.is_none() {
            return kind;
        }
        let text = |text: &mut String| self.text(text);
        match &mut kind {
            Kind::Created { title, input, .. } => {
                text(title);
                self.value(input);
            }
            Kind::Gate { name, reason, .. } => [name].into_iter().chain(reason).for_each(text),
            Kind::Progress { message, .. } => message.iter_mut().for_each(text),
            Kind::StepStarted { name, title } => [name, title].into_iter().for_each(text),
            Kind::StepCompleted { name, detail, .. } => {
                [name].into_iter().chain(detail).for_each(text);
            }
            Kind::Log { message, .. } => text(message),
            Kind::Diagnostic { code, summary, detail, suggestion, .. } => {
                [code, summary].into_iter().chain(detail).chain(suggestion).for_each(text);
            }
            Kind::Cancelling { by } => text(by),
            Kind::Cancelled { receipt } => receipt.iter_mut().for_each(|it| self.value(it)),
            Kind::Completed { output, receipt } => {
                [output].into_iter().chain(receipt).for_each(|it| self.value(it));
            }
            Kind::Failed { error, receipt } => {
                self.fault(error);
                receipt.iter_mut().for_each(|it| self.value(it));
            }
            Kind::Unknown { data, .. } => self.value(data),
            Kind::Queued { .. }
            | Kind::Started {}
            | Kind::Resources { .. }
            | Kind::Suspended { .. }
            | Kind::Resumed { .. } => {}
        }
        kind
    }

    /// Scrubs every text of a fault.
    pub fn fault(&self, fault: &mut Fault) {
        let Fault { reason, message, problems, suggestion, .. } = fault;
        let problems = problems.iter_mut().flat_map(|it| [&mut it.pointer, &mut it.message]);
        let texts = [message].into_iter().chain(reason).chain(suggestion).chain(problems);
        texts.for_each(|text| self.text(text));
    }
}

/// Scrubs the lines of a stream once more when they are clean: a secret may have been written
/// with terminal sequences in between.
#[derive(Debug)]
pub struct CleanLines {
    stream: Stream,
    /// The beginning of a line whose end is held back.
    rest: Vec<u8>,
}

impl CleanLines {
    /// Takes whole lines, and returns whole lines and how many they are.
    pub fn push(&mut self, text: &[u8]) -> (Vec<u8>, u32) {
        self.stream.push(text, &mut self.rest);
        let end = memchr::memrchr(b'\n', &self.rest).map_or(0, |at| at + 1);
        let rest = self.rest.split_off(end);
        counted(std::mem::replace(&mut self.rest, rest))
    }

    /// Takes the end of the stream.
    pub fn finish(&mut self) -> (Vec<u8>, u32) {
        self.stream.finish(&mut self.rest);
        if self.rest.last().is_some_and(|last| *last != b'\n') {
            self.rest.push(b'\n');
        }
        counted(std::mem::take(&mut self.rest))
    }
}

fn counted(text: Vec<u8>) -> (Vec<u8>, u32) {
    let lines = memchr::memchr_iter(b'\n', &text).count();
    let lines = u32::try_from(lines).expect("a read has fewer lines than bytes");
    (readable(text).into_bytes(), lines)
}

/// What is left of a character that was taken out in part is no text.
fn readable(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
