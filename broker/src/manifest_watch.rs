//! Watches the manifest's folder, so that an edit, also one by rename, is seen.

use std::cell::Cell;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::time::timeout;

/// How long a manifest is left alone before it is read.
const SETTLE: Duration = Duration::from_millis(50);
/// Changes in a row that are waited for.
const SETTLE_MAX: u32 = 20;

/// Tells that the manifest may have changed, for as long as it lives.
pub struct Watch {
    changed: Arc<Notify>,
    /// Whether a change was seen that has not settled yet.
    pending: Cell<bool>,
    _watcher: Option<RecommendedWatcher>,
}

impl Watch {
    /// Waits until the manifest may have changed and is left alone: who writes it empties it
    /// first, and what is read in between is no manifest of theirs. May be given up and called
    /// again.
    pub async fn settled(&self) {
        if !self.pending.get() {
            self.changed.notified().await;
            self.pending.set(true);
        }
        for _ in 0..SETTLE_MAX {
            if timeout(SETTLE, self.changed.notified()).await.is_err() {
                break;
            }
        }
        self.pending.set(false);
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
    Watch { changed, pending: Cell::new(false), _watcher: watcher.ok() }
}
