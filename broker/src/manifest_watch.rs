//! Watches the manifest's folder, so that an edit, also one by rename, is seen.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

/// Tells that the manifest may have changed, for as long as it lives.
pub struct Watch {
    changed: Arc<Notify>,
    _watcher: Option<RecommendedWatcher>,
}

impl Watch {
    /// Waits until the manifest may have changed.
    pub async fn notified(&self) {
        self.changed.notified().await;
    }
}

/// Watches the folder of `manifest`; where the system cannot, nothing is ever told.
pub fn watch(manifest: &Path) -> Watch {
    let changed = Arc::new(Notify::new());
    let name: Option<OsString> = manifest.file_name().map(ToOwned::to_owned);
    let tell = Arc::clone(&changed);
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let Ok(event) = event else { return };
        let ours = event.paths.iter().any(|path| path.file_name() == name.as_deref());
        if ours && !matches!(event.kind, EventKind::Access(_)) {
            tell.notify_one();
        }
    });
    let watcher = watcher.and_then(|mut watcher| {
        let folder = manifest.parent().unwrap_or(Path::new("/"));
        watcher.watch(folder, RecursiveMode::NonRecursive).map(|()| watcher)
    });
    if let Err(error) = &watcher {
        tracing::warn!(%error, "the manifest is not watched; changes need a restart");
    }
    Watch { changed, _watcher: watcher.ok() }
}
