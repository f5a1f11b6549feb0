//! The manifest as a file: opened without waiting, checked for who could have written it, bounded.
//!
//! Owns the way from a checkout to the text of its manifest and to what that declares. Its rule:
//! what is read is a regular file inside the checkout, whatever links lead to it. Never writes.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use reeve_protocol::fault::Code;
use reeve_protocol::manifest::{self, MANIFEST_MAX, Manifest};
use reeve_protocol::place::Place;
use reeve_worker::handler::Handlers;
use rustix::fs::{Mode, OFlags};

use crate::failure::{Exit, Failure};

/// A manifest that was read.
#[derive(Debug)]
pub struct Loaded {
    /// What it declares.
    pub manifest: Manifest,
    /// Its text.
    pub text: String,
    /// Says that other users may write it; nothing where that was said to be meant.
    pub others_may_write: Option<String>,
    /// What a person should know about it, each in a sentence; that, too.
    pub warnings: Vec<String>,
}

/// Why there is no manifest to go by.
#[derive(Debug)]
pub enum ManifestFileError {
    /// There is no such file.
    Missing(PathBuf),
    /// What lies there is not to be read.
    Refused {
        /// The file.
        path: PathBuf,
        /// Why, as the rest of a sentence.
        why: String,
    },
    /// It could not be read.
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It says something that is none of a manifest's, each told with its place.
    Invalid(Vec<String>),
}

impl From<ManifestFileError> for Failure {
    fn from(error: ManifestFileError) -> Self {
        match error {
            ManifestFileError::Missing(path) => {
                Self::with_code(Code::ActionNotFound, format!("there is no {}", path.display()))
                    .hint("make one with `reeve init`, or run a command as it is with `reeve exec`")
            }
            ManifestFileError::Refused { path, why } => {
                Self::new(Exit::Usage, format!("{} {why}", path.display()))
            }
            ManifestFileError::Io { path, source } => {
                Self::new(Exit::Failed, format!("cannot read {}: {source}", path.display()))
            }
            ManifestFileError::Invalid(problems) => {
                let mut failure = Self::new(Exit::Usage, "the manifest is not valid");
                failure.message.extend(problems.iter().map(|problem| format!("\n{problem}")));
                failure
            }
        }
    }
}

/// Reads and checks the manifest of a checkout, beside the handlers that this program has.
///
/// # Errors
///
/// [`ManifestFileError`] says what is in the way.
pub fn load(
    place: &Place,
    handlers: &Handlers,
    trust_writable: bool,
) -> Result<Loaded, ManifestFileError> {
    let path = place.manifest();
    let (text, mode) = read(&path, &place.root)?;
    let others_may_write = (mode & 0o022 != 0 && !trust_writable).then(|| {
        let (path, mode) = (path.display(), mode & 0o7777);
        format!("other users may write {path} (mode {mode:04o}); run `chmod go-w` on it")
    });
    let mut warnings: Vec<String> = others_may_write.iter().cloned().collect();
    let taken = handlers.ids().cloned().collect();
    let parsed = manifest::parse_beside(&text, manifest::FILE, &taken).map_err(|errors| {
        ManifestFileError::Invalid(errors.iter().map(ToString::to_string).collect())
    })?;
    warnings.extend(parsed.not_yet.iter().map(|it| {
        format!("{}:{}: {} is declared and not enforced yet", manifest::FILE, it.line, it.path)
    }));
    Ok(Loaded { manifest: parsed, text, others_may_write, warnings })
}

/// Reads the text of a file inside of `root`, and its mode.
fn read(path: &Path, root: &Path) -> Result<(String, u32), ManifestFileError> {
    let refused = |why: &str| ManifestFileError::Refused { path: path.to_owned(), why: why.into() };
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => ManifestFileError::Missing(path.to_owned()),
        _ => ManifestFileError::Io { path: path.to_owned(), source },
    };
    let real = std::fs::canonicalize(path).map_err(failed)?;
    if !real.starts_with(root) {
        return Err(refused("leads out of the checkout, and reeve does not follow it"));
    }
    // The links are resolved: one that appears now is somebody's trick.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::open(&real, flags, Mode::empty()) {
        Ok(descriptor) => File::from(descriptor),
        Err(rustix::io::Errno::LOOP) => return Err(refused("became a link while it was opened")),
        Err(rustix::io::Errno::NXIO) => return Err(refused("is no regular file")),
        Err(error) => return Err(failed(error.into())),
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(refused("is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MANIFEST_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > MANIFEST_MAX {
        return Err(refused("is larger than 1 MiB"));
    }
    let text = String::from_utf8(bytes).map_err(|_| refused("is no UTF-8"))?;
    Ok((text, metadata.mode()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use reeve_protocol::snapshot::Repository;

    use super::*;

    fn load(place: &Place, trust_writable: bool) -> Result<Loaded, ManifestFileError> {
        super::load(place, &Handlers::none(), trust_writable)
    }

    fn ground() -> (tempfile::TempDir, Place) {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap().join("repo");
        fs::create_dir(&root).unwrap();
        let place = Place {
            root,
            id: "0".repeat(16),
            git_dir: None,
            state_dir: PathBuf::new(),
            run_dir: PathBuf::new(),
            repository: Repository::default(),
        };
        (dir, place)
    }

    const TEXT: &str = "[capability.\"demo.x\"]\ncommand = [\"true\"]\n";

    #[test]
    fn a_manifest_is_read_and_one_that_others_may_write_is_mentioned() {
        let (_dir, place) = ground();
        assert!(matches!(load(&place, false), Err(ManifestFileError::Missing(_))));
        fs::write(place.manifest(), TEXT).unwrap();
        fs::set_permissions(place.manifest(), fs::Permissions::from_mode(0o644)).unwrap();
        let loaded = load(&place, false).unwrap();
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
        assert_eq!(loaded.manifest.capabilities.len(), 1);
        fs::set_permissions(place.manifest(), fs::Permissions::from_mode(0o664)).unwrap();
        assert_eq!(load(&place, false).unwrap().warnings.len(), 1);
        assert!(load(&place, true).unwrap().warnings.is_empty());
    }

    #[test]
    fn a_link_may_lead_within_the_checkout_only() {
        let (dir, place) = ground();
        fs::write(dir.path().join("outside.toml"), TEXT).unwrap();
        symlink(dir.path().join("outside.toml"), place.manifest()).unwrap();
        assert!(matches!(load(&place, false), Err(ManifestFileError::Refused { .. })));
        fs::remove_file(place.manifest()).unwrap();
        fs::write(place.root.join("inside.toml"), TEXT).unwrap();
        symlink("inside.toml", place.manifest()).unwrap();
        assert!(load(&place, false).is_ok());
        fs::remove_file(place.root.join("inside.toml")).unwrap();
        symlink("inside.toml", place.root.join("inside.toml")).unwrap();
        assert!(load(&place, false).is_err(), "a circle of links");
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let (_dir, place) = ground();
        let path = place.manifest();
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, Mode::RUSR, 0).unwrap();
        assert!(matches!(load(&place, false), Err(ManifestFileError::Refused { .. })));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(load(&place, false), Err(ManifestFileError::Refused { .. })));
        fs::remove_dir(&path).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(matches!(load(&place, false), Err(ManifestFileError::Refused { .. })));
    }

    #[test]
    fn a_manifest_over_its_bound_is_refused_without_reading_on() {
        let (_dir, place) = ground();
        let comment = format!("#{}", "x".repeat(MANIFEST_MAX - 1));
        fs::write(place.manifest(), &comment).unwrap();
        assert!(!matches!(load(&place, false), Err(ManifestFileError::Refused { .. })));
        fs::write(place.manifest(), comment + "y").unwrap();
        assert!(matches!(load(&place, false), Err(ManifestFileError::Refused { .. })));
    }
}
