//! What is wrong with a manifest, and where.

use std::fmt;
use std::ops::Range;

use crate::strict::{clipped, harmless};

/// Errors told about one manifest, at most.
pub const ERRORS_MAX: usize = 100;
/// Characters of the line that is shown, at most.
const SNIPPET_MAX: usize = 100;
/// Characters of a message, at most.
const MESSAGE_MAX: usize = 400;

/// One thing that is wrong with a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestError {
    /// The file, as the caller named it.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column, in characters from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What was meant, perhaps.
    pub suggestion: Option<String>,
    /// The line itself, cut to what is around the column.
    snippet: String,
    /// Where in the snippet the mark goes, and how wide it is.
    mark: (usize, usize),
}

impl ManifestError {
    /// Returns the error as one line.
    pub fn headline(&self) -> String {
        let Self { file, line, column, message, .. } = self;
        let mut text = format!("{file}:{line}:{column}: {message}");
        if let Some(suggestion) = &self.suggestion {
            text.push_str(&format!("; did you mean \"{suggestion}\"?"));
        }
        text
    }
}

impl fmt::Display for ManifestError {
    /// Writes the headline, and below it the line with a mark.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline())?;
        if self.snippet.is_empty() {
            return Ok(());
        }
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        let (start, width) = self.mark;
        write!(f, "\n  {number} | {}", self.snippet)?;
        write!(f, "\n  {gutter} | {}{}", " ".repeat(start), "^".repeat(width))
    }
}

impl std::error::Error for ManifestError {}

/// Collects errors over one text.
pub(super) struct Diagnostics<'t> {
    text: &'t str,
    file: String,
    starts: Vec<usize>,
    errors: Vec<(usize, ManifestError)>,
    dropped: usize,
}

impl<'t> Diagnostics<'t> {
    pub(super) fn new(text: &'t str, file: &str) -> Self {
        let newlines = memchr::memchr_iter(b'\n', text.as_bytes()).map(|at| at + 1);
        let starts = std::iter::once(0).chain(newlines).collect();
        Self { text, file: clipped(file, 200), starts, errors: Vec::new(), dropped: 0 }
    }

    /// Returns the line that a byte is in, from 1.
    pub(super) fn line(&self, at: usize) -> usize {
        self.starts.partition_point(|start| *start <= at)
    }

    pub(super) fn push(&mut self, span: Range<usize>, message: &str, suggestion: Option<&str>) {
        if self.errors.len() >= ERRORS_MAX {
            self.dropped += 1;
            return;
        }
        let error = self.locate(span.clone(), message, suggestion);
        self.errors.push((span.start, error));
    }

    fn locate(&self, span: Range<usize>, message: &str, suggestion: Option<&str>) -> ManifestError {
        let at = self.text.floor_char_boundary(span.start.min(self.text.len()));
        let line = self.line(at);
        let start = self.starts[line - 1];
        let end = self.starts.get(line).map_or(self.text.len(), |next| next - 1);
        let whole = self.text[start..end].trim_end_matches('\r');
        let column = self.text[start..at].chars().count();
        let stop = self.text.floor_char_boundary(span.end.clamp(at, end.max(at)));
        let width = self.text[at..stop].chars().count().max(1);

        let skip = if column > SNIPPET_MAX * 3 / 4 { column - SNIPPET_MAX / 2 } else { 0 };
        let snippet: String = whole.chars().skip(skip).take(SNIPPET_MAX).map(tame).collect();
        let room = snippet.chars().count().saturating_sub(column - skip).max(1);
        ManifestError {
            file: self.file.clone(),
            line,
            column: column + 1,
            message: clipped(message, MESSAGE_MAX),
            suggestion: suggestion.map(|text| clipped(text, 64)),
            mark: (column - skip, width.min(room)),
            snippet,
        }
    }

    /// Returns the errors in the order of the text.
    pub(super) fn into_errors(mut self) -> Vec<ManifestError> {
        self.errors.sort_by_key(|(at, _)| *at);
        if self.dropped > 0 {
            let kept = ERRORS_MAX - 1;
            let count = self.dropped + 1;
            self.errors.truncate(kept);
            let at = self.text.len();
            let error = self.locate(at..at, &format!("{count} further errors"), None);
            self.errors.push((at, error));
        }
        self.errors.into_iter().map(|(_, error)| error).collect()
    }
}

fn tame(character: char) -> char {
    if character == '\t' { ' ' } else { harmless(character) }
}
