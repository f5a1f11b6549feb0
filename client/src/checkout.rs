//! The checkout that a command means: its root, its id, its places, and whether a broker serves it.
//!
//! Owns the reading of git's markers, of the machine's names and of `/proc`. Its rule: a checkout
//! is known by its directory's inode, so every spelling of its path leads to the same broker, and
//! a broker lives exactly while its lock is held. Never starts git, never waits, never creates a
//! directory for a command that only looks.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use reeve_broker::seat::{self, SeatError};
use reeve_protocol::lease::Lease;
use reeve_protocol::place::{Identity, Place, ProcessStat};
use reeve_protocol::sanitise;
use reeve_protocol::snapshot::Repository;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use sha2::{Digest, Sha256};

/// Bytes of a socket's path, at most; every system takes these.
const SOCKET_PATH_MAX: usize = 100;
/// Bytes of a small file that are read.
const SMALL_FILE: u64 = 4 << 10;
/// Characters of a branch's name that are shown.
const BRANCH_CHARS: usize = 200;

/// Why no checkout can be named.
#[derive(Debug, thiserror::Error)]
pub enum CheckoutError {
    /// The directory that the command was started in, or given, is not there.
    #[error("cannot find the directory {}: {source}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nothing says where state may be kept.
    #[error("HOME is not set; set it, or REEVE_STATE_DIR to a directory of yours")]
    Homeless,
    /// This system has no `/proc` that can be read.
    #[error("cannot read {}: {source}", path.display())]
    Proc {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What the environment says of where things may lie.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// `REEVE_STATE_DIR`.
    pub state_dir: Option<PathBuf>,
    /// `XDG_STATE_HOME`.
    pub state_home: Option<PathBuf>,
    /// `XDG_CACHE_HOME`.
    pub cache_home: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// The directory of the user's session: `/run/user/<uid>`.
    pub session: PathBuf,
    /// The last resort for sockets: `/tmp/reeve-<uid>`, short wherever home lies.
    pub short: PathBuf,
}

impl Surroundings {
    /// Reads the environment of this process.
    pub fn of_process() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        // A relative path would mean another place in every directory.
        let path = |name: &str| {
            env::var_os(name)
                .filter(|value: &OsString| !value.is_empty())
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let state_dir = env::var_os("REEVE_STATE_DIR").filter(|value| !value.is_empty());
        Self {
            state_dir: state_dir.and_then(|path| std::path::absolute(path).ok()),
            state_home: path("XDG_STATE_HOME"),
            cache_home: path("XDG_CACHE_HOME"),
            home: path("HOME"),
            session: PathBuf::from(format!("/run/user/{uid}")),
            short: PathBuf::from(format!("/tmp/reeve-{uid}")),
        }
    }

    fn state_base(&self) -> Result<PathBuf, CheckoutError> {
        let of_home = || self.home.as_ref().map(|home| home.join(".local/state"));
        self.state_dir
            .clone()
            .or_else(|| self.state_home.clone().or_else(of_home).map(|dir| dir.join("reeve")))
            .ok_or(CheckoutError::Homeless)
    }

    /// Chooses where sockets lie: the session's directory where it is ours, else the cache, else
    /// the short directory, which is as private: others cannot take its name away in a sticky
    /// `/tmp`, and one that they made first is refused by its owner.
    fn run_dir(&self, id: &str) -> PathBuf {
        let me = rustix::process::geteuid().as_raw();
        let session = fs::symlink_metadata(&self.session)
            .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == me)
            .then(|| self.session.join("reeve"));
        let of_home = || self.home.as_ref().map(|home| home.join(".cache"));
        let cache = self.cache_home.clone().or_else(of_home).map(|dir| dir.join("reeve/run"));
        let socket = format!("/{id}.sock").len();
        [session, cache]
            .into_iter()
            .flatten()
            .find(|dir| dir.as_os_str().len() + socket <= SOCKET_PATH_MAX)
            .unwrap_or_else(|| self.short.clone())
    }
}

/// Finds the checkout that holds `start`, or the current directory.
///
/// # Errors
///
/// When the directory is not there or nothing says where state may be kept.
pub fn find(start: Option<&Path>) -> Result<Place, CheckoutError> {
    find_in(start.unwrap_or(Path::new(".")), &Surroundings::of_process())
}

/// Finds the checkout that holds `start` in the given surroundings.
///
/// # Errors
///
/// As [`find`].
pub fn find_in(start: &Path, around: &Surroundings) -> Result<Place, CheckoutError> {
    let missing = |source| CheckoutError::Directory { path: start.to_owned(), source };
    let start_dir = fs::canonicalize(start).map_err(missing)?;
    let (root, git) = root_of(&start_dir);
    let state_base = around.state_base()?;
    let id = checkout_id(&root, &host_secret(&state_base)).map_err(missing)?;
    let name = root.file_name().map_or_else(|| "/".into(), |name| name.to_string_lossy());
    let repository = Repository {
        name: sanitise::text(&name, BRANCH_CHARS),
        id: id.clone(),
        branch: git.as_deref().and_then(branch_of),
    };
    Ok(Place {
        root,
        git_dir: git.map(|git| common_dir_of(&git)),
        state_dir: state_base.join(&id),
        run_dir: around.run_dir(&id),
        repository,
        id,
    })
}

/// Returns the root and, where it is a work tree, its own git directory.
fn root_of(start: &Path) -> (PathBuf, Option<PathBuf>) {
    for dir in start.ancestors() {
        if let Some(git) = git_dir_of(dir) {
            return (dir.to_owned(), Some(git));
        }
    }
    let declared = start.ancestors().find(|dir| dir.join("reeve.toml").is_file());
    (declared.unwrap_or(start).to_owned(), None)
}

/// Returns the git directory of the work tree whose root `dir` is.
///
/// The marker is a directory, or in a linked work tree, a submodule or with a separate git
/// directory a file that names one.
fn git_dir_of(dir: &Path) -> Option<PathBuf> {
    let marker = dir.join(".git");
    let metadata = fs::metadata(&marker).ok()?;
    if metadata.is_dir() {
        return marker.join("HEAD").symlink_metadata().is_ok().then_some(marker);
    }
    let content = read_small(&marker)?;
    let named = content.strip_prefix(b"gitdir: ")?.trim_ascii_end();
    (!named.is_empty()).then(|| dir.join(Path::new(std::ffi::OsStr::from_bytes(named))))
}

fn common_dir_of(git: &Path) -> PathBuf {
    let common = read_small(&git.join("commondir"))
        .map(|content| git.join(Path::new(std::ffi::OsStr::from_bytes(content.trim_ascii_end()))))
        .unwrap_or_else(|| git.to_owned());
    fs::canonicalize(&common).unwrap_or(common)
}

fn branch_of(git: &Path) -> Option<String> {
    let head = read_small(&git.join("HEAD"))?;
    let name = head.strip_prefix(b"ref: refs/heads/")?.trim_ascii_end();
    Some(sanitise::text(&String::from_utf8_lossy(name), BRANCH_CHARS))
}

/// Hashes what stays the same however the root is spelled, moved or mounted.
///
/// A device's number may change with every boot, so it is used only where the file system does not
/// know when the directory was made.
fn checkout_id(root: &Path, host: &[u8]) -> io::Result<String> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let stat = rustix::fs::statx(rustix::fs::CWD, root, AtFlags::empty(), wanted)?;
    let mut hasher = Sha256::new();
    hasher.update(b"reeve checkout 1\0");
    hasher.update(u64::try_from(host.len()).unwrap_or(u64::MAX).to_be_bytes());
    hasher.update(host);
    hasher.update(stat.stx_ino.to_be_bytes());
    if StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME) {
        hasher.update(stat.stx_btime.tv_sec.to_be_bytes());
        hasher.update(stat.stx_btime.tv_nsec.to_be_bytes());
    } else {
        hasher.update(stat.stx_dev_major.to_be_bytes());
        hasher.update(stat.stx_dev_minor.to_be_bytes());
    }
    Ok(first_digits(hasher))
}

fn first_digits(hasher: Sha256) -> String {
    hasher.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns what tells this machine from others; never shown as it is.
fn host_secret(state_base: &Path) -> Vec<u8> {
    for file in ["/etc/machine-id", "/var/lib/dbus/machine-id"] {
        let id = read_small(Path::new(file)).unwrap_or_default();
        let id = id.trim_ascii();
        if id.len() == 32 && id.iter().all(u8::is_ascii_hexdigit) {
            return id.to_owned();
        }
    }
    let own = state_base.join("host-id");
    // Of those that start together one makes the file, and all read that one.
    if let Some(id) = read_small(&own).or_else(|| mint_host_id(&own)) {
        return id;
    }
    tracing::debug!("no machine id and no place for one");
    b"unknown".to_vec()
}

fn mint_host_id(path: &Path) -> Option<Vec<u8>> {
    seat::private_dir(path.parent()?).ok()?;
    let mut random = [0_u8; 16];
    getrandom::fill(&mut random).ok()?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let temporary = path.with_extension(&text);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(&temporary, flags, Mode::RUSR | Mode::WUSR).ok()?;
    let written = File::from(file).write_all(text.as_bytes());
    let _ = written.and_then(|()| fs::hard_link(&temporary, path));
    let _ = fs::remove_file(&temporary);
    read_small(path)
}

/// Reads a regular file of at most a few kilobytes; waits for no FIFO.
fn read_small(path: &Path) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(SMALL_FILE).read_to_end(&mut bytes).ok()?;
    (!bytes.is_empty()).then_some(bytes)
}

/// Returns this process's identity.
///
/// # Errors
///
/// When `/proc` cannot be read.
pub fn identity() -> Result<Identity, CheckoutError> {
    let unreadable = |path: &str, source| CheckoutError::Proc { path: path.into(), source };
    let stat_file = "/proc/self/stat";
    let stat = fs::read(stat_file).map_err(|source| unreadable(stat_file, source))?;
    let stat = ProcessStat::parse(&stat)
        .ok_or_else(|| unreadable(stat_file, io::ErrorKind::InvalidData.into()))?;
    let boot_file = "/proc/sys/kernel/random/boot_id";
    let boot_id = fs::read_to_string(boot_file).map_err(|source| unreadable(boot_file, source))?;
    let state_base = Surroundings::of_process().state_base()?;
    let mut host = Sha256::new();
    host.update(b"reeve host 1\0");
    host.update(host_secret(&state_base));
    Ok(Identity {
        pid: std::process::id(),
        start_ticks: stat.start_ticks,
        boot_id: boot_id.trim().to_owned(),
        host_id: first_digits(host),
    })
}

/// What was found where a checkout's broker would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A broker lives here.
    Serving(Box<Lease>),
    /// A broker lives, and says nothing of itself that can be read: it starts or ends just now, or
    /// somebody removed its lease.
    Mute,
    /// No broker lives; the last one ended without leaving.
    Stale(Box<Lease>),
    /// No broker lives.
    NoBroker,
}

impl Found {
    /// Returns the lease of a living broker.
    pub fn serving(self) -> Option<Lease> {
        match self {
            Self::Serving(lease) => Some(*lease),
            Self::Mute | Self::Stale(_) | Self::NoBroker => None,
        }
    }
}

/// Looks for the broker of a checkout.
///
/// # Errors
///
/// When the state directory is open to others, or what lies there is no lock.
pub fn discover(place: &Place) -> Result<Found, SeatError> {
    let state_exists = fs::symlink_metadata(&place.state_dir).is_ok();
    let mut left = None;
    if state_exists {
        seat::check_private_dir(&place.state_dir)?;
        let held = seat::is_held(&place.lock_file())?;
        let lease = seat::read_lease(&place.lease_file()).map(Box::new);
        match (held, lease) {
            (true, Some(lease)) => return Ok(Found::Serving(lease)),
            (true, None) => return Ok(Found::Mute),
            (false, lease) => left = lease,
        }
    }
    if fs::symlink_metadata(&place.run_dir).is_ok() {
        seat::check_private_dir(&place.run_dir)?;
        let path = place.machine_lock_file();
        if seat::is_held(&path)? {
            let lease = seat::read_lease(&path).map(Box::new);
            return Ok(lease.map_or(Found::Mute, Found::Serving));
        }
    }
    Ok(left.map_or(Found::NoBroker, Found::Stale))
}

#[cfg(test)]
mod tests;
