//! The seat of a broker: the one right to serve a checkout, and the files that show it.
//!
//! Owns the lock, the lease file, the socket's name and the private directories they lie in. Its
//! rule: the lock is the only proof that a broker lives, and whoever holds it may remove what the
//! one before left behind. Never decides by a timeout, never takes a living broker's name away,
//! never unlinks a lock file, never follows a link to one.

pub mod process;

use std::fs::{self, DirBuilder, File, Metadata, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use interprocess::local_socket::tokio::Listener;
use interprocess::local_socket::{GenericFilePath, ListenerOptions, ToFsName};
use interprocess::os::unix::local_socket::ListenerOptionsExt;
use reeve_protocol::lease::{self, Lease};
use reeve_protocol::place::{Identity, Place};
use reeve_protocol::time::Timestamp;
use rustix::fs::{Mode, OFlags};

/// How often a lock that only readers hold is tried again, a millisecond apart.
const READER_PATIENCE: u32 = 2_000;

/// Why a checkout cannot be served, or its files not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum SeatError {
    /// Another broker holds the lock; what it says of itself, where that can be read.
    #[error("{}", served_by(.0.as_deref()))]
    AlreadyServed(Option<Box<Lease>>),
    /// Other users could write here, or somebody else did.
    #[error("{} {why}; {remedy}", path.display())]
    Dir {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// What to do about it.
        remedy: String,
    },
    /// The system said no.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What came of it.
        source: io::Error,
    },
}

fn served_by(lease: Option<&Lease>) -> String {
    let Some(lease) = lease else {
        return "this checkout is already served; its broker has not yet said by whom".to_owned();
    };
    format!(
        "this checkout is already served by pid {} (start tick {}), version {}, since {}, at {}",
        lease.pid,
        lease.start_ticks,
        lease.version,
        lease.started_at,
        lease.socket.display()
    )
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> SeatError + 'a {
    move |source| SeatError::Io { what, path: path.to_owned(), source }
}

fn unsafe_place(path: &Path, why: impl Into<String>, remedy: &str) -> SeatError {
    SeatError::Dir { path: path.to_owned(), why: why.into(), remedy: remedy.to_owned() }
}

/// The right to serve one checkout, held until it is dropped.
#[derive(Debug)]
pub struct Seat {
    place: Place,
    lease: Lease,
    socket_inode: Option<(u64, u64)>,
    machine_lock: File,
    _lock: File,
}

impl Seat {
    /// Takes the checkout: makes the directories, takes both locks, removes a dead broker's lease.
    ///
    /// Nothing can be connected to before [`Seat::listen`]. Needs no runtime.
    ///
    /// # Errors
    ///
    /// [`SeatError::AlreadyServed`] when a broker lives, however slow it is; the other variants
    /// name the file and what to do.
    pub fn take(
        place: &Place,
        me: &Identity,
        version: &str,
        instance: String,
        now: Timestamp,
    ) -> Result<Self, SeatError> {
        private_dir(&place.state_dir)?;
        private_dir(&place.run_dir)?;
        let lock = take_lock(&place.lock_file())?.ok_or_else(|| {
            SeatError::AlreadyServed(read_lease(&place.lease_file()).map(Box::new))
        })?;
        let machine_path = place.machine_lock_file();
        let machine_lock = take_lock(&machine_path)?
            .ok_or_else(|| SeatError::AlreadyServed(read_lease(&machine_path).map(Box::new)))?;
        remove_if_there(&place.lease_file())?;
        let lease = Lease {
            schema: lease::SCHEMA.to_owned(),
            pid: me.pid,
            start_ticks: me.start_ticks,
            boot_id: me.boot_id.clone(),
            host_id: me.host_id.clone(),
            root: place.root.clone(),
            socket: place.socket(),
            url: None,
            instance,
            version: version.to_owned(),
            started_at: now,
        };
        Ok(Self { place: place.clone(), lease, socket_inode: None, machine_lock, _lock: lock })
    }

    /// Says where HTTP is served; before [`Seat::listen`], which writes it down.
    pub fn at(&mut self, url: String) {
        self.lease.url = Some(url);
    }

    /// Binds the socket and then writes the lease, so that a lease names what can be connected to.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the socket cannot be bound or the lease not be written.
    pub fn listen(&mut self) -> Result<Listener, SeatError> {
        let listener = self.bind()?;
        self.write_lease()?;
        Ok(listener)
    }

    /// Returns what this broker says of itself.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Returns whether the socket's name still leads to the socket that was bound.
    pub fn socket_is_ours(&self) -> bool {
        self.socket_inode.is_some() && inode_of(&self.lease.socket) == self.socket_inode
    }

    /// Binds the socket anew after its file was deleted or replaced under a living broker, and
    /// writes the lease again if that is gone too. Connections stay; the old listener may be
    /// dropped after what waits in it was accepted.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// As [`Seat::listen`].
    pub fn rebind(&mut self) -> Result<Listener, SeatError> {
        private_dir(&self.place.run_dir)?;
        let listener = self.bind()?;
        let written = read_lease(&self.place.lease_file());
        if written.as_ref() != Some(&self.lease) {
            self.write_lease()?;
        }
        Ok(listener)
    }

    /// Leaves the checkout: removes what is still ours and lets the locks go.
    pub fn leave(self) {}

    fn bind(&mut self) -> Result<Listener, SeatError> {
        let path = self.lease.socket.as_path();
        // The lock is held: whatever lies here belongs to nobody who lives.
        remove_if_there(path)?;
        let name = path.to_fs_name::<GenericFilePath>().map_err(failed("name the socket", path))?;
        let listener = ListenerOptions::new()
            .name(name)
            .mode(0o600)
            .reclaim_name(false)
            .create_tokio()
            .map_err(failed("bind the socket", path))?;
        self.socket_inode = inode_of(path);
        Ok(listener)
    }

    fn write_lease(&mut self) -> Result<(), SeatError> {
        let bytes = self.lease.to_bytes();
        let path = self.place.lease_file();
        replace_file(&path, &bytes).map_err(failed("write the lease", &path))?;
        let copy = &mut self.machine_lock;
        copy.set_len(0)
            .and_then(|()| copy.seek(SeekFrom::Start(0)))
            .and_then(|_| copy.write_all(&bytes))
            .map_err(failed("write into the lock", &self.place.machine_lock_file()))
    }
}

impl Drop for Seat {
    /// The locks go last, with their files, after these lines.
    fn drop(&mut self) {
        if self.socket_is_ours() {
            let _ = fs::remove_file(&self.lease.socket);
        }
        let path = self.place.lease_file();
        if read_lease(&path).is_some_and(|lease| lease.instance == self.lease.instance) {
            let _ = fs::remove_file(&path);
        }
        let _ = self.machine_lock.set_len(0);
    }
}

/// Reads a lease; `None` when there is none that can be read, whatever lies there instead.
pub fn read_lease(path: &Path) -> Option<Lease> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(lease::BYTES_MAX as u64 + 1).read_to_end(&mut bytes).ok()?;
    Lease::parse(&bytes)
}

/// Returns whether a broker holds the lock at `path`. Creates nothing and waits for nothing.
///
/// # Errors
///
/// When something other than a lock lies there, or it cannot be read.
pub fn is_held(path: &Path) -> Result<bool, SeatError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(descriptor) => File::from(descriptor),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(false),
        Err(error) => return Err(not_a_lock(path, error)),
    };
    check_lock(path, &file.metadata().map_err(failed("look at the lock", path))?)?;
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(source)) => Err(failed("try the lock", path)(source)),
    }
}

/// Makes sure that `path` is a directory of this user's alone, making it where it is missing.
///
/// # Errors
///
/// When it is a link, belongs to somebody else, or is open to others.
pub fn private_dir(path: &Path) -> Result<(), SeatError> {
    match DirBuilder::new().mode(0o700).recursive(true).create(path) {
        Ok(()) => {}
        // A link or a file in the way: the check says so in better words.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed("make the directory", path)(error)),
    }
    check_private_dir(path)
}

/// Checks that `path` is a directory of this user's alone.
///
/// # Errors
///
/// When it is missing, is a link, belongs to somebody else, or is open to others.
pub fn check_private_dir(path: &Path) -> Result<(), SeatError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let descriptor: OwnedFd = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(descriptor) => descriptor,
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
            let why = "is a link or no directory, and reeve follows none";
            return Err(unsafe_place(path, why, "remove it, reeve makes its own"));
        }
        Err(error) => return Err(failed("open the directory", path)(error.into())),
    };
    let metadata = File::from(descriptor).metadata().map_err(failed("look at", path))?;
    let me = rustix::process::geteuid().as_raw();
    if metadata.uid() != me {
        let why = format!("belongs to user {}, and this is user {me}", metadata.uid());
        return Err(unsafe_place(
            path,
            why,
            "remove it, or set REEVE_STATE_DIR to a directory of yours",
        ));
    }
    if metadata.mode() & 0o077 != 0 {
        let why = format!("is open to other users (mode {:04o})", metadata.mode() & 0o7777);
        return Err(unsafe_place(path, why, &format!("run `chmod 700 {}`", path.display())));
    }
    Ok(())
}

/// Opens the lock and takes it; `None` when a broker holds it.
fn take_lock(path: &Path) -> Result<Option<File>, SeatError> {
    let flags =
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for _ in 0..READER_PATIENCE {
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
            .map(File::from)
            .map_err(|error| not_a_lock(path, error))?;
        let opened = file.metadata().map_err(failed("look at the lock", path))?;
        check_lock(path, &opened)?;
        match file.try_lock() {
            // Somebody may have put another file here since it was opened.
            Ok(()) if inode_of(path) == Some((opened.dev(), opened.ino())) => {
                return Ok(Some(file));
            }
            Ok(()) => {}
            Err(TryLockError::Error(source)) => return Err(failed("take the lock", path)(source)),
            Err(TryLockError::WouldBlock) => match file.try_lock_shared() {
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(source)) => {
                    return Err(failed("take the lock", path)(source));
                }
                // A broker's lock is exclusive, so these were readers, looking for a broker.
                Ok(()) => drop(file),
            },
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let busy = io::Error::new(io::ErrorKind::WouldBlock, "something that is no broker holds it");
    Err(failed("take the lock", path)(busy))
}

fn check_lock(path: &Path, metadata: &Metadata) -> Result<(), SeatError> {
    let me = rustix::process::geteuid().as_raw();
    let why = if !metadata.is_file() {
        "is no regular file".to_owned()
    } else if metadata.uid() != me {
        format!("belongs to user {}, and this is user {me}", metadata.uid())
    } else if metadata.nlink() > 1 {
        "has a second name".to_owned()
    } else {
        return Ok(());
    };
    Err(unsafe_place(path, why, "remove it, reeve makes its own"))
}

fn not_a_lock(path: &Path, error: rustix::io::Errno) -> SeatError {
    use rustix::io::Errno;
    let why = match error {
        Errno::LOOP => "is a link, and reeve follows none",
        Errno::ISDIR | Errno::NXIO | Errno::NODEV => "is no regular file",
        _ => return failed("open the lock", path)(error.into()),
    };
    unsafe_place(path, why, "remove it, reeve makes its own")
}

fn inode_of(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn remove_if_there(path: &Path) -> Result<(), SeatError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => {
            let directory = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_dir());
            let remedy = "remove it, reeve makes its own";
            if directory {
                return Err(unsafe_place(path, "is a directory", remedy));
            }
            Err(failed("remove", path)(error))
        }
    }
}

/// Writes a file of this user's alone, whole or not at all.
///
/// # Errors
///
/// When it cannot be written; a file that was there before stays.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let _ = fs::remove_file(&temporary);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(&temporary, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file.write_all(bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests;
