//! The record of trust: a file of this user's alone, beside the token and outside of the checkout.
//!
//! Reads and writes it; what it means is decided in [`reeve_protocol::trust`]. A record that is not
//! certainly this user's own counts for nothing.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use reeve_protocol::capability::Loaded;
use reeve_protocol::place::Place;
use reeve_protocol::trust::{self, BYTES_MAX, Record, Standing};
use reeve_protocol::{Fault, Timestamp};
use rustix::fs::{Mode, OFlags};

use crate::seat::{SeatError, private_dir, replace_file};

/// Why nothing was trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The state directory cannot be used.
    #[error(transparent)]
    Place(#[from] SeatError),
    /// The file could not be written.
    #[error("cannot write {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Returns the file of a checkout.
pub fn file(place: &Place) -> PathBuf {
    place.state_dir.join("trust.json")
}

/// Trusts this text from now on, with or without a broker.
///
/// # Errors
///
/// When the file cannot be written; then what was trusted before still is.
pub fn record(place: &Place, text: &str, now: Timestamp) -> Result<(), TrustError> {
    private_dir(&place.state_dir)?;
    let path = file(place);
    replace_file(&path, &Record::new(place, text, now).to_bytes())
        .map_err(|source| TrustError::Io { path, source })
}

/// Returns how a manifest of this digest stands.
pub fn standing(place: &Place, digest: &str) -> Standing {
    let record = read(place).and_then(|bytes| Record::parse(&bytes, place));
    trust::standing(record, digest)
}

/// Refuses to run for others what no person has trusted. Reads a file: not for the plane's thread.
///
/// # Errors
///
/// `ACTION_UNAVAILABLE` with the reason `untrusted` or `changed`; nothing has run.
pub fn check(place: &Place, loaded: &Loaded) -> Result<(), Fault> {
    trust::demand(&standing(place, &loaded.digest), loaded)
}

/// Reads the file, if it is this user's alone.
fn read(place: &Place) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(file(place), flags, Mode::empty()).ok()?);
    let metadata = file.metadata().ok()?;
    let own = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_file() || !own || metadata.mode() & 0o077 != 0 {
        tracing::warn!("the record of trust is not this user's alone and counts for nothing");
        return None;
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() <= BYTES_MAX).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use reeve_protocol::snapshot::Repository;

    use super::*;

    fn ground() -> (tempfile::TempDir, Place) {
        let dir = tempfile::tempdir().unwrap();
        let place = Place {
            root: "/r".into(),
            id: "0".repeat(16),
            git_dir: None,
            state_dir: dir.path().join("state"),
            run_dir: dir.path().join("run"),
            repository: Repository::default(),
        };
        (dir, place)
    }

    fn loaded(text: &str) -> Loaded {
        let record = Record::new(&ground().1, text, Timestamp::default());
        Loaded { text: text.into(), digest: record.digest, ..Loaded::default() }
    }

    fn reason(place: &Place, text: &str) -> Option<String> {
        check(place, &loaded(text)).err().and_then(|fault| fault.reason)
    }

    #[test]
    fn what_is_recorded_is_trusted_until_it_changes_or_moves() {
        let (_dir, place) = ground();
        assert_eq!(reason(&place, "a = 1").as_deref(), Some("untrusted"));
        record(&place, "a = 1", Timestamp::default()).unwrap();
        assert_eq!(reason(&place, "a = 1"), None);
        let mode = fs::metadata(file(&place)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(reason(&place, "a = 2").as_deref(), Some("changed"));
        let moved = Place { root: "/elsewhere".into(), ..place.clone() };
        assert_eq!(reason(&moved, "a = 1").as_deref(), Some("untrusted"));
        let other = Place { git_dir: Some("/elsewhere/.git".into()), ..place.clone() };
        assert_eq!(reason(&other, "a = 1").as_deref(), Some("untrusted"));
        record(&place, "a = 2", Timestamp::default()).unwrap();
        assert_eq!(reason(&place, "a = 2"), None);
        assert_eq!(fs::read_dir(&place.state_dir).unwrap().count(), 1);
    }

    #[test]
    fn a_record_that_others_could_have_written_counts_for_nothing() {
        let (dir, place) = ground();
        record(&place, "a = 1", Timestamp::default()).unwrap();
        let path = file(&place);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        assert_eq!(reason(&place, "a = 1").as_deref(), Some("untrusted"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(reason(&place, "a = 1"), None);
        let aside = dir.path().join("aside");
        fs::rename(&path, &aside).unwrap();
        symlink(&aside, &path).unwrap();
        assert_eq!(reason(&place, "a = 1").as_deref(), Some("untrusted"));
        record(&place, "a = 1", Timestamp::default()).unwrap();
        assert_eq!(reason(&place, "a = 1"), None);
    }

    #[test]
    fn a_record_at_its_bound_is_read_and_a_larger_one_is_not() {
        let (_dir, place) = ground();
        record(&place, "a = 1", Timestamp::default()).unwrap();
        let mut bytes = fs::read(file(&place)).unwrap();
        bytes.resize(BYTES_MAX, b' ');
        fs::write(file(&place), &bytes).unwrap();
        assert_eq!(reason(&place, "a = 1"), None);
        bytes.push(b' ');
        fs::write(file(&place), &bytes).unwrap();
        assert_eq!(reason(&place, "a = 1").as_deref(), Some("untrusted"));
    }
}
