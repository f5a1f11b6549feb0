//! Looking at the inside of a checkout, and at nothing else.
//!
//! Owns the descriptor of the root and every opening beneath it. The rule: the system resolves
//! each path and refuses one that leads out, so that no link, however it is exchanged meanwhile,
//! shows what lies elsewhere.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Attempts where the system says that the tree is being changed.
const ATTEMPTS: usize = 4;

/// The root of a checkout.
pub(super) struct Root {
    fd: OwnedFd,
    path: PathBuf,
    /// Whether the system resolves within bounds; kernels before 5.6 and some sandboxes do not.
    beneath: bool,
}

/// What was found where a path leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Something is there.
    There,
    /// Nothing is there.
    Missing,
    /// It leads in a circle.
    Circle,
    /// It leads out of the checkout, where nobody looks.
    Outside,
    /// It may not be looked at.
    Unknown,
}

/// Why a file was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It is larger than the bound.
    TooLarge,
    /// It is no regular file, or none any more.
    NoFile,
    /// The system refuses it.
    Refused,
}

impl Root {
    /// Opens the root of a checkout.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        let probe = rustix::fs::openat2(&fd, ".", flags, Mode::empty(), ResolveFlags::BENEATH);
        Ok(Self { fd, path: path.to_owned(), beneath: probe.is_ok() })
    }

    /// Reads a regular file whole that no link leads to.
    pub fn read(&self, path: &Path, bytes_max: u64) -> Result<Vec<u8>, Unread> {
        let flags =
            OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(self.at(path, flags, ResolveFlags::NO_SYMLINKS).map_err(refused)?);
        let metadata = file.metadata().map_err(|_| Unread::Refused)?;
        if !metadata.is_file() {
            return Err(Unread::NoFile);
        }
        if metadata.size() > bytes_max {
            return Err(Unread::TooLarge);
        }
        let mut bytes = Vec::new();
        file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|_| Unread::Refused)?;
        // It may have grown since.
        let fits = u64::try_from(bytes.len()).is_ok_and(|length| length <= bytes_max);
        if fits { Ok(bytes) } else { Err(Unread::TooLarge) }
    }

    /// Follows a path to its end.
    pub fn look(&self, path: &Path) -> Seen {
        if !self.beneath {
            return self.look_by_name(path);
        }
        match self.at(path, OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::empty()) {
            Ok(_) => Seen::There,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => Seen::Missing,
            Err(Errno::LOOP) => Seen::Circle,
            Err(Errno::XDEV) => Seen::Outside,
            Err(_) => Seen::Unknown,
        }
    }

    /// Returns an absolute path as one from the root, if it leads there by its name.
    pub fn relative<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        path.strip_prefix(&self.path).ok()
    }

    fn at(&self, path: &Path, flags: OFlags, more: ResolveFlags) -> Result<OwnedFd, Errno> {
        if !self.beneath {
            return rustix::fs::openat(&self.fd, path, flags, Mode::empty());
        }
        let resolve = ResolveFlags::BENEATH | more;
        for _ in 1..ATTEMPTS {
            match rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN) => {}
                other => return other,
            }
        }
        rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), resolve)
    }

    fn look_by_name(&self, path: &Path) -> Seen {
        match std::fs::canonicalize(self.path.join(path)) {
            Ok(real) if real.starts_with(&self.path) => Seen::There,
            Ok(_) => Seen::Outside,
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => Seen::Circle,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Seen::Missing,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Seen::Missing,
            Err(_) => Seen::Unknown,
        }
    }
}

fn refused(error: Errno) -> Unread {
    match error {
        Errno::NOENT | Errno::LOOP | Errno::XDEV | Errno::NXIO | Errno::NOTDIR => Unread::NoFile,
        _ => Unread::Refused,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_outside_of_the_root_is_seen_or_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(dir.path()).unwrap();
        fs::write(path.join("outside"), "secret").unwrap();
        let root_path = path.join("root");
        fs::create_dir_all(root_path.join("sub")).unwrap();
        fs::write(root_path.join("file"), "12345").unwrap();
        for (target, name) in [
            ("../outside", "out"),
            ("nothing", "broken"),
            ("circle", "circle"),
            ("file", "in"),
            ("../../outside", "sub/out"),
        ] {
            symlink(target, root_path.join(name)).unwrap();
        }
        let mut root = Root::open(&root_path).unwrap();
        for beneath in [root.beneath, false] {
            root.beneath = beneath;
            let look = |path: &str| root.look(Path::new(path));
            assert_eq!(
                (look("file"), look("in"), look("sub/../file")),
                (Seen::There, Seen::There, Seen::There)
            );
            assert_eq!(
                (look("broken"), look("no/thing"), look("file/x")),
                (Seen::Missing, Seen::Missing, Seen::Missing)
            );
            assert_eq!(
                (look("out"), look("sub/out"), look("circle")),
                (Seen::Outside, Seen::Outside, Seen::Circle)
            );
            let read = |path: &str, max| root.read(Path::new(path), max);
            assert_eq!(read("file", 5), Ok(b"12345".to_vec()));
            assert_eq!(read("file", 4), Err(Unread::TooLarge));
            for path in ["out", "in", "sub", "nothing"] {
                assert_eq!(read(path, 100), Err(Unread::NoFile), "{path}");
            }
        }
    }

    #[test]
    fn a_pipe_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(CWD, dir.path().join("pipe"), kind, Mode::RUSR, 0).unwrap();
        let root = Root::open(dir.path()).unwrap();
        assert_eq!(root.read(Path::new("pipe"), 10), Err(Unread::NoFile));
    }
}
