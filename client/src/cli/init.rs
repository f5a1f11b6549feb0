//! `reeve init`: writes a manifest for this checkout.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use reeve_protocol::init;
use rustix::fs::{Mode, OFlags};
use serde_json::json;

use super::{Here, trust};
use crate::failure::{Exit, Failure};
use crate::ui::{Format, Ui};

/// Bytes of a file of the checkout that are read.
const READ_BYTES: u64 = 1 << 20;

/// Write a manifest for this checkout
///
/// Declares what the files of the checkout suggest, and trusts that. Changes no file of the
/// checkout but reeve.toml.
#[derive(Debug, clap::Args)]
pub(super) struct InitArgs {
    /// Replace a manifest that is there
    #[arg(long)]
    force: bool,
}

pub(super) fn run(ui: &mut Ui, here: &Here, args: InitArgs) -> Result<Exit, Failure> {
    let path = here.place.manifest();
    let text = proposal(&here.place.root);
    write(&path, &text, args.force)?;
    // Whoever writes it knows what it says.
    if let Err(failure) = trust::record(&here.place, &text) {
        ui.warn(format_args!("it is not trusted yet: {}", failure.message));
    }
    match ui.format {
        Format::Text => {
            ui.line(path.display());
            ui.note("see what it declares with `reeve capabilities list`");
        }
        Format::Json | Format::Ndjson => ui.json(&json!({ "written": path })),
    }
    Ok(Exit::Ok)
}

/// Returns the manifest that the checkout's files suggest.
fn proposal(root: &Path) -> String {
    init::render(&init::detect(&|path| text_of(&root.join(path))))
}

/// Reads the start of a regular file; waits for no FIFO.
fn text_of(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(READ_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes the manifest whole or not at all, and never over one that is there without being told.
fn write(path: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let shown = path.display();
    if !force && fs::symlink_metadata(path).is_ok() {
        return Err(there_already(path));
    }
    let temporary = path.with_extension(format!("toml.{}.tmp", std::process::id()));
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(Exit::Failed, format!("cannot write {shown}: {error}"))
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let descriptor = rustix::fs::open(&temporary, flags, mode).map_err(|error| failed(&error))?;
    let written = File::from(descriptor).write_all(text.as_bytes()).and_then(|()| {
        // A link to a new name fails where the name is taken; a rename would replace it.
        if force { fs::rename(&temporary, path) } else { fs::hard_link(&temporary, path) }
    });
    let _ = fs::remove_file(&temporary);
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(there_already(path)),
        other => other.map_err(|error| failed(&error)),
    }
}

fn there_already(path: &Path) -> Failure {
    Failure::new(Exit::Usage, format!("{} is there already", path.display()))
        .hint("`reeve init --force` replaces it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_replaced_only_when_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reeve.toml");
        write(&path, "one", false).unwrap();
        assert_eq!(write(&path, "two", false).unwrap_err().kind, Exit::Usage);
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        write(&path, "two", true).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_proposed_is_a_manifest() {
        let dir = tempfile::tempdir().unwrap();
        let valid = |text: &str| reeve_protocol::manifest::parse(text, "reeve.toml").unwrap();
        assert!(!valid(&proposal(dir.path())).capabilities.is_empty());
        fs::write(dir.path().join("Cargo.toml"), "[package]\nname = \"x\"\n").unwrap();
        let text = proposal(dir.path());
        assert!(text.contains("cargo"), "{text}");
        assert!(!valid(&text).capabilities.is_empty());
    }
}
