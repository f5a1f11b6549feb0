//! Everything that can be called here: what is built in, the handlers of this program, and what
//! the manifest of the checkout declares.

use reeve_protocol::capability::Loaded;
use reeve_protocol::manifest;
use reeve_protocol::place::Place;
use reeve_worker::handler::Handlers;
use serde_json::{Value, json};

use crate::manifest_file::{self, ManifestFileError};

/// What was read.
pub(super) struct Declared {
    /// What can be called; without the manifest's part where that cannot be taken.
    pub loaded: Loaded,
    /// What a person should know about the manifest, each in a sentence.
    pub warnings: Vec<String>,
    /// Why the manifest is not taken.
    pub error: Option<ManifestFileError>,
}

/// Reads what a checkout declares, for a program with these handlers.
pub(super) fn read(place: &Place, handlers: &Handlers) -> Declared {
    let mut loaded = Loaded { descriptors: manifest::builtin(), ..Loaded::default() };
    loaded.descriptors.extend(handlers.descriptors());
    match manifest_file::load(place, handlers, false) {
        Ok(read) => {
            loaded.descriptors.extend(read.manifest.capabilities.into_values());
            loaded.limits = Some(read.manifest.limits);
            loaded.digest = read.manifest.digest;
            loaded.text = read.text.into();
            Declared { loaded, warnings: read.warnings, error: None }
        }
        Err(error) => Declared { loaded, warnings: Vec::new(), error: Some(error) },
    }
}

/// Returns what is declared in the shape that it has on every surface.
pub(super) fn told(loaded: &Loaded) -> Value {
    json!({
        "count": loaded.descriptors.len(),
        "capabilities": loaded.descriptors,
        "problems": loaded.problems,
        "digest": loaded.digest,
    })
}
