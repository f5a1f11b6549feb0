//! Which file a program's name means.
//!
//! Owns the search through `PATH`. It is done here and not by the system, so that the error says
//! what is wrong and so that the start itself needs no search.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use thiserror::Error;

/// Why a name is no program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProgramError {
    /// No directory of `PATH` has it.
    #[error("{} was not found in PATH", .0.display())]
    NotInPath(OsString),
    /// There is no such file.
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    /// The file may not be executed.
    #[error("{} is not executable", .0.display())]
    NotExecutable(PathBuf),
    /// It is a directory.
    #[error("{} is a directory", .0.display())]
    Directory(PathBuf),
}

/// Returns the absolute path of the program that `name` means in `cwd`.
///
/// A name with a slash is a path, relative to `cwd`. Any other is looked for in the directories
/// of `path`; one that is found but cannot be executed counts only if no other is found.
///
/// # Errors
///
/// [`ProgramError`] says what is in the way.
pub fn resolve_program(
    name: &OsStr,
    path: Option<&OsStr>,
    cwd: &Path,
) -> Result<PathBuf, ProgramError> {
    if name.as_encoded_bytes().contains(&b'/') {
        return executable(cwd.join(name));
    }
    let mut first = ProgramError::NotInPath(name.to_owned());
    if name.is_empty() {
        return Err(first);
    }
    for directory in std::env::split_paths(path.unwrap_or_default()) {
        match executable(cwd.join(directory).join(name)) {
            Ok(program) => return Ok(program),
            Err(ProgramError::Missing(_)) => {}
            Err(error) if matches!(first, ProgramError::NotInPath(_)) => first = error,
            Err(_) => {}
        }
    }
    Err(first)
}

fn executable(path: PathBuf) -> Result<PathBuf, ProgramError> {
    match path.metadata() {
        Err(_) => Err(ProgramError::Missing(path)),
        Ok(metadata) if metadata.is_dir() => Err(ProgramError::Directory(path)),
        Ok(_) if access(&path, Access::EXEC_OK).is_err() => Err(ProgramError::NotExecutable(path)),
        Ok(_) => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_for_in_path_and_a_path_from_the_directory() {
        let sh = resolve_program("sh".as_ref(), Some("/nowhere:/bin".as_ref()), Path::new("/"));
        assert_eq!(sh, Ok(PathBuf::from("/bin/sh")));
        let sh = resolve_program("./sh".as_ref(), None, Path::new("/bin"));
        assert_eq!(sh, Ok(PathBuf::from("/bin/./sh")));
        let sh = resolve_program("sh".as_ref(), Some("bin".as_ref()), Path::new("/"));
        assert_eq!(sh, Ok(PathBuf::from("/bin/sh")));
    }

    #[test]
    fn what_is_no_program_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let cwd = folder.path();
        std::fs::write(cwd.join("text"), "").expect("it can be written");
        std::fs::create_dir(cwd.join("folder")).expect("it can be made");
        let resolve = |name: &str, path: &str| {
            resolve_program(name.as_ref(), Some(path.as_ref()), cwd)
                .expect_err("it is none")
                .to_string()
        };

        assert_eq!(resolve("none", "/bin"), "none was not found in PATH");
        assert_eq!(resolve("", "/bin"), " was not found in PATH");
        assert!(resolve("./none", "/bin").ends_with("none does not exist"));
        assert!(resolve("text", ".").ends_with("text is not executable"));
        assert!(resolve("./folder", "").ends_with("folder is a directory"));
    }

    #[test]
    fn a_program_further_down_the_path_beats_a_file_that_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("sh"), "").expect("it can be written");
        let path = format!("{}:/bin", folder.path().display());
        let sh = resolve_program("sh".as_ref(), Some(path.as_ref()), Path::new("/"));
        assert_eq!(sh, Ok(PathBuf::from("/bin/sh")));
    }
}
