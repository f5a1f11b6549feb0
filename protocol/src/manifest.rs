//! The manifest: what the `reeve.toml` of a checkout declares.
//!
//! One pass reads the text and says everything that is wrong with it, each with its place. What
//! is let through is whole: every schema compiles, every command fits its input, every limit is
//! sane. Size, nesting and number of values are bounded before anything recurses. Never opens a
//! file and never starts a command.

mod bounds;
mod capability;
mod diagnostic;
mod later;
mod limits;
mod read;
mod schema;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::capability::{CapabilityKind, Confirm, Descriptor, Effect, Overlap};
use crate::id::CapabilityId;
use crate::input::Ready;
use crate::limits::Limits;

pub use capability::{RESERVED, RESERVED_PREFIXES, is_reserved};
pub use diagnostic::{ERRORS_MAX, ManifestError};
pub use read::duration;
pub use schema::schema;

pub(crate) use bounds::is_bounded;

use diagnostic::Diagnostics;
use read::Reader;

/// The name of the file, at the root of a checkout.
pub const FILE: &str = "reeve.toml";
/// Bytes of a manifest, at most. Whoever reads the file stops there.
pub const MANIFEST_MAX: usize = 1 << 20;
/// Capabilities in one manifest, at most.
pub const CAPABILITIES_MAX: usize = 1_000;

/// What a manifest declares, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// What can be called, by id.
    pub capabilities: BTreeMap<CapabilityId, Descriptor>,
    /// The compiled schema and template of each capability.
    pub ready: BTreeMap<CapabilityId, Ready>,
    /// The bounds, with what the manifest sets.
    pub limits: Limits,
    /// SHA-256 over the text, in hexadecimal digits.
    pub digest: String,
    /// What is declared and not enforced by this version, in the order of the text.
    pub not_yet: Vec<NotYet>,
}

/// Something that is declared and that this version does not act on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NotYet {
    /// Its line, from 1.
    pub line: usize,
    /// Its place, such as `capability.test.requires`.
    pub path: String,
}

impl Manifest {
    /// Returns the manifest of a checkout that has none.
    pub fn empty() -> Self {
        Self {
            capabilities: BTreeMap::new(),
            ready: BTreeMap::new(),
            limits: Limits::default(),
            digest: digest(""),
            not_yet: Vec::new(),
        }
    }
}

/// Parses the text of a manifest. `file` is the name that errors give it.
///
/// # Errors
///
/// Everything that is wrong, in the order of the text; never an empty list, and never more than
/// [`ERRORS_MAX`].
pub fn parse(text: &str, file: &str) -> Result<Manifest, Vec<ManifestError>> {
    parse_beside(text, file, &BTreeSet::new())
}

/// Parses the text of a manifest beside capabilities that are not declared in it: it cannot declare
/// what has one of these ids.
///
/// # Errors
///
/// As [`parse`].
pub fn parse_beside(
    text: &str,
    file: &str,
    taken: &BTreeSet<CapabilityId>,
) -> Result<Manifest, Vec<ManifestError>> {
    let mut diagnostics = Diagnostics::new(text, file);
    let table = match bounds::document(text, &mut diagnostics) {
        Some(table) => table,
        None => return Err(diagnostics.into_errors()),
    };
    let mut reader = Reader::new(diagnostics, file, taken);
    let mut manifest = Manifest { digest: digest(text), ..Manifest::empty() };
    reader.document(&table, &mut manifest);
    let (errors, mut not_yet) = reader.finish();
    not_yet.sort();
    manifest.not_yet = not_yet;
    if errors.is_empty() { Ok(manifest) } else { Err(errors) }
}

/// Returns the SHA-256 of a text in hexadecimal digits.
pub fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the descriptors that need no manifest: `process.exec`, as which a caller's own
/// command appears. It has no command of its own and no input, so nobody can start it by name.
pub fn builtin() -> Vec<Descriptor> {
    vec![Descriptor {
        id: "process.exec".parse().expect("the id has the shape of one"),
        title: "Run a command".to_owned(),
        description: "A command that its caller runs itself, by `reeve exec`.".to_owned(),
        kind: CapabilityKind::Process,
        input: json!({ "type": "object", "additionalProperties": false }),
        output: None,
        effect: Effect::Write,
        confirm: Confirm::Policy,
        overlap: Overlap::Parallel,
        cancellable: true,
        idempotent: false,
        timeout_ms: None,
        process: None,
        provenance: "built-in".to_owned(),
    }]
}

#[cfg(test)]
mod tests;
