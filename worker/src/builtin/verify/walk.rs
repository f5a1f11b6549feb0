//! Which files of a checkout are looked at: those that git would track.
//!
//! The rule: what `.gitignore` and git's own exclude file name is left out, as are git's
//! directory and other repositories inside of this one; links are seen and not followed.

use std::path::{Path, PathBuf};

use ignore::{DirEntry, WalkBuilder};
use reeve_protocol::Fault;

use crate::handler::Ctx;

/// A file or a link, by its path from the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Where it lies.
    pub path: PathBuf,
    /// Whether it is a symbolic link.
    pub is_link: bool,
}

/// What a walk has found.
#[derive(Debug, Default)]
pub(super) struct Walked {
    /// In the order of their paths.
    pub files: Vec<Found>,
    /// Directories that could not be read.
    pub unreadable: u64,
    /// Whether there are more than the bound.
    pub truncated: bool,
}

/// Walks a checkout, up to so many files.
///
/// # Errors
///
/// When it was asked to stop.
pub(super) fn walk(ctx: &Ctx, root: &Path, files_max: usize) -> Result<Walked, Fault> {
    let mut walked = Walked::default();
    let mut builder = WalkBuilder::new(root);
    builder
        .standard_filters(false)
        .git_ignore(true)
        .git_exclude(true)
        .require_git(false)
        .same_file_system(true)
        .sort_by_file_name(std::ffi::OsStr::cmp)
        .filter_entry(is_ours);
    for entry in builder.build() {
        ctx.checkpoint()?;
        let Ok(entry) = entry else {
            walked.unreadable += 1;
            continue;
        };
        let kind = entry.file_type();
        let is_link = kind.is_some_and(|kind| kind.is_symlink());
        if !is_link && !kind.is_some_and(|kind| kind.is_file()) {
            continue;
        }
        let Ok(path) = entry.path().strip_prefix(root) else { continue };
        if walked.files.len() == files_max {
            walked.truncated = true;
            break;
        }
        walked.files.push(Found { path: path.to_owned(), is_link });
    }
    Ok(walked)
}

/// Returns whether an entry belongs to this repository.
fn is_ours(entry: &DirEntry) -> bool {
    if entry.depth() == 0 {
        return true;
    }
    let is_dir = entry.file_type().is_some_and(|kind| kind.is_dir());
    entry.file_name() != ".git" && !(is_dir && entry.path().join(".git").symlink_metadata().is_ok())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    use super::*;
    use crate::handler::tests::site;

    fn names(root: &Path, max: usize) -> (Vec<String>, bool) {
        let ctx = Ctx::silent(Arc::new(site(root)));
        let walked = walk(&ctx, root, max).unwrap();
        let name = |found: &Found| found.path.to_str().unwrap().to_owned();
        (walked.files.iter().map(name).collect(), walked.truncated)
    }

    #[test]
    fn what_git_would_track_is_found_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for path in [
            "a",
            ".hidden",
            "sub/b",
            "sub/ignored.log",
            "target/x",
            ".git/config",
            "other/.git/HEAD",
            "other/c",
            "exclude",
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        fs::write(root.join(".gitignore"), "*.log\n/target\n").unwrap();
        fs::create_dir_all(root.join(".git/info")).unwrap();
        fs::write(root.join(".git/info/exclude"), "exclude\n").unwrap();
        symlink("sub", root.join("link")).unwrap();
        let expected = [".gitignore", ".hidden", "a", "link", "sub/b"];
        assert_eq!(names(root, 5), (expected.map(str::to_owned).to_vec(), false));
        assert_eq!(
            names(root, 4),
            (expected[..4].iter().map(|it| (*it).to_owned()).collect(), true)
        );
    }

    #[test]
    fn a_walk_ends_with_the_flag() {
        let dir = tempfile::tempdir().unwrap();
        let ctx = Ctx::silent(Arc::new(site(dir.path())));
        ctx.progress.cancel();
        assert!(walk(&ctx, dir.path(), 1).is_err());
    }
}
