//! What a command prints: data on standard output, everything else on standard error.
//!
//! Owns both streams; nothing else in this crate prints. Its rule: a reader that went away is no
//! error and ends no work, and colour goes to terminals only. Never makes text safe: whoever reads
//! a file or a socket has done that.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use serde::Serialize;

use crate::failure::{Exit, Failure, chain};
use crate::render;
use crate::writer::{Backlog, To};

/// How data is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// One JSON document
    Json,
    /// One JSON document a line
    Ndjson,
}

/// What a piece of text is, where colour tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Something went well.
    Good,
    /// Something is under way.
    Busy,
    /// Something went wrong.
    Bad,
    /// Something beside the point.
    Faint,
    /// Something to find at a glance.
    Strong,
}

impl Paint {
    fn code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Busy => "36",
            Self::Bad => "31",
            Self::Faint => "2",
            Self::Strong => "1",
        }
    }
}

/// The two streams of a command.
pub struct Ui {
    /// How data is written.
    pub format: Format,
    out: BufWriter<Sink>,
    out_colour: bool,
    err_colour: bool,
    quiet: bool,
    closed: bool,
    broken: Option<io::Error>,
}

impl Ui {
    /// Takes the streams of this process.
    pub fn new(format: Format) -> Self {
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Self {
            format,
            out: BufWriter::new(Sink::Direct(io::stdout())),
            out_colour: colour && io::stdout().is_terminal(),
            err_colour: colour && io::stderr().is_terminal(),
            quiet: false,
            closed: false,
            broken: None,
        }
    }

    /// Writes on a thread of its own from here on, so that a reader who pauses holds nobody up.
    ///
    /// # Errors
    ///
    /// When the system has no room for another thread.
    pub fn write_apart(&mut self) -> io::Result<Backlog> {
        self.flush();
        let backlog = Backlog::start()?;
        self.out = BufWriter::new(Sink::Apart(backlog.clone()));
        Ok(backlog)
    }

    /// Writes by itself again: `backlog` is what was written apart, to its end or given up.
    pub fn write_here(&mut self, backlog: &Backlog, is_written: bool) {
        self.flush();
        backlog.end();
        // Who still takes the last piece would hold up whoever writes another one.
        self.closed |= !is_written;
        self.out = BufWriter::new(Sink::Direct(io::stdout()));
        if is_written && backlog.dropped() > 0 {
            let dropped = backlog.dropped();
            self.warn(format_args!("{dropped} bytes are not shown: nobody read them in time"));
        }
    }

    /// Keeps notes back from here on; failures are still told.
    pub fn be_quiet(&mut self) {
        self.quiet = true;
    }

    /// Returns whether nobody reads the data any more.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns the columns of the terminal that data goes to, if it goes to one.
    pub fn columns(&self) -> Option<usize> {
        let size = io::stdout().is_terminal().then(|| rustix::termios::tcgetwinsize(io::stdout()));
        size?.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
    }

    /// Colours a text that goes to standard output.
    pub fn paint(&self, paint: Paint, text: &str) -> String {
        painted(self.out_colour, paint, text)
    }

    /// Writes a line of data.
    pub fn line(&mut self, line: impl fmt::Display) {
        if !self.closed {
            let written = writeln!(self.out, "{line}");
            self.check(written);
        }
    }

    /// Writes lines of data that have their ends already.
    pub fn text(&mut self, lines: &str) {
        if !self.closed {
            let written = self.out.write_all(lines.as_bytes());
            self.check(written);
        }
    }

    /// Writes a value: indented for [`Format::Json`], else on one line.
    pub fn json(&mut self, value: &impl Serialize) {
        if self.format == Format::Json {
            self.document(value);
        } else {
            self.json_text(serde_json::to_string(value));
        }
    }

    /// Writes a value indented, for people.
    pub fn document(&mut self, value: &impl Serialize) {
        self.json_text(serde_json::to_string_pretty(value));
    }

    fn json_text(&mut self, text: serde_json::Result<String>) {
        if self.closed {
            return;
        }
        let written = text
            .map_err(io::Error::from)
            .and_then(|text| writeln!(self.out, "{}", render::inert_json(&text)));
        self.check(written);
    }

    /// Hands on what was written, so that it is seen now.
    pub fn flush(&mut self) {
        if !self.closed {
            let written = self.out.flush();
            self.check(written);
        }
    }

    /// Tells the person in front of it something.
    pub fn note(&mut self, text: impl fmt::Display) {
        if !self.quiet {
            self.tell(&text.to_string());
        }
    }

    /// Passes on a line that the work itself wrote beside its data.
    pub fn pass(&mut self, line: impl fmt::Display) {
        self.tell(&line.to_string());
    }

    /// Tells of something that someone should look at.
    pub fn warn(&mut self, text: impl fmt::Display) {
        let word = painted(self.err_colour, Paint::Busy, "warning");
        self.tell(&format!("{word}: {text}"));
    }

    /// Tells why the command could not do its work.
    pub fn fail(&mut self, failure: &Failure) {
        let code = failure.code.map(|code| format!("[{code}]")).unwrap_or_default();
        let word = painted(self.err_colour, Paint::Bad, &format!("error{code}"));
        self.tell(&format!("{word}: {}", failure.message));
        for hint in &failure.hints {
            let word = painted(self.err_colour, Paint::Strong, "hint");
            self.tell(&format!("{word}: {hint}"));
        }
    }

    /// Hands on the rest; `exit` stands unless data was lost on the way.
    pub fn finish(mut self, exit: Exit) -> Exit {
        self.flush();
        let Some(error) = self.broken.take() else { return exit };
        let message = format!("cannot write to standard output: {}", chain(&error));
        self.fail(&Failure::new(Exit::Failed, message));
        if exit == Exit::Ok { Exit::Failed } else { exit }
    }

    fn tell(&mut self, line: &str) {
        // What was written before stands before it.
        self.flush();
        // Where nobody reads what is told, nobody misses it.
        let _ = match self.out.get_ref() {
            Sink::Direct(_) => writeln!(io::stderr(), "{line}"),
            Sink::Apart(backlog) => backlog.push(To::Err, format!("{line}\n").as_bytes()),
        };
    }

    fn check(&mut self, written: io::Result<()>) {
        let Err(error) = written else { return };
        self.closed = true;
        if error.kind() != io::ErrorKind::BrokenPipe {
            self.broken = Some(error);
        }
    }
}

/// Where data goes.
enum Sink {
    Direct(Stdout),
    Apart(Backlog),
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Direct(out) => out.write(bytes),
            Self::Apart(backlog) => backlog.push(To::Out, bytes).map(|()| bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Direct(out) => out.flush(),
            Self::Apart(backlog) => backlog.check(),
        }
    }
}

fn painted(colour: bool, paint: Paint, text: &str) -> String {
    if colour { format!("\u{1b}[{}m{text}\u{1b}[0m", paint.code()) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_only_where_it_is_wanted() {
        assert_eq!(painted(true, Paint::Bad, "x"), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!(painted(false, Paint::Bad, "x"), "x");
    }

    #[test]
    fn a_reader_that_went_away_is_no_error_and_a_full_disk_is_one() {
        let mut ui = Ui::new(Format::Text);
        ui.check(Err(io::ErrorKind::BrokenPipe.into()));
        ui.line("nobody sees this");
        assert!(ui.is_closed());
        assert_eq!(ui.finish(Exit::Ok), Exit::Ok);
        let mut ui = Ui::new(Format::Text);
        ui.check(Err(io::ErrorKind::StorageFull.into()));
        assert_eq!(ui.finish(Exit::Ok), Exit::Failed);
    }
}
