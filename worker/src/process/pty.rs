//! A terminal of its own for a process.
//!
//! Owns both ends of it: `Terminal` opens one and sets it up, [`launcher_main`] makes it the
//! controlling terminal of the program, which only the process itself can do, between its start
//! and the program. Nobody sits at the terminal: what is typed is not echoed.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::io::{self, Errno};
use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::stdio::stdin;
use rustix::termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

/// The hidden subcommand of our executable that leads to [`launcher_main`].
pub const LAUNCH: &str = "__launch";
/// What a shell exits with when it cannot execute a program.
const CANNOT_EXECUTE: i32 = 126;
/// What ends the input of a terminal when it is typed at the start of a line.
pub(crate) const END_OF_INPUT: u8 = 0x04;

/// A new terminal.
pub(crate) struct Terminal {
    /// The end that shows and types.
    pub master: OwnedFd,
    /// The end that the process has as its standard input and outputs.
    pub user: OwnedFd,
}

impl Terminal {
    /// Opens a terminal of this size, without echo.
    pub fn open(rows: u16, cols: u16) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let user = ioctl_tiocgptpeer(&master, flags)?;
        tcsetwinsize(&user, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 })?;
        let mut modes = tcgetattr(&user)?;
        modes.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&user, OptionalActions::Now, &modes)?;
        Ok(Self { master, user })
    }
}

/// Returns what is typed for this input: the bytes, and the end of the input after them.
pub(crate) fn typed(mut input: Vec<u8>) -> Vec<u8> {
    if input.last().is_some_and(|byte| *byte != b'\n') {
        // In the middle of a line the first one only hands over what is there.
        input.push(END_OF_INPUT);
    }
    input.push(END_OF_INPUT);
    input
}

/// Becomes the program that `args` name, in a session of its own on the terminal that is its
/// standard input: the program's absolute path, then its arguments.
///
/// Environment, directory and the events descriptor pass through as they are. Ends with the code
/// 126 where the program cannot be executed.
pub fn launcher_main(args: impl IntoIterator<Item = OsString>) -> ! {
    let mut args = args.into_iter();
    let program = PathBuf::from(args.next().unwrap_or_default());
    let failure = match own_terminal() {
        Ok(()) => Command::new(&program).args(args).exec(),
        Err(error) => error.into(),
    };
    eprintln!("reeve: cannot start {}: {failure}", program.display());
    std::process::exit(CANNOT_EXECUTE)
}

/// Leads a new session with the standard input as its terminal.
fn own_terminal() -> Result<(), Errno> {
    setsid()?;
    ioctl_tiocsctty(stdin())
}
