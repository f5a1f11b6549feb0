//! Where a checkout and its broker are found: plain values, made by whoever may look at files.

use std::path::PathBuf;

use crate::snapshot::Repository;

/// A checkout and the places that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The canonical root of the checkout.
    pub root: PathBuf,
    /// The checkout's id: 16 hexadecimal digits that no spelling of the path changes.
    pub id: String,
    /// The git common directory, where the checkout is a git work tree.
    pub git_dir: Option<PathBuf>,
    /// Lock, lease, token and store: `…/reeve/<id>/`, 0700.
    pub state_dir: PathBuf,
    /// Sockets: short, local, 0700.
    pub run_dir: PathBuf,
    /// What events and snapshots say of the checkout.
    pub repository: Repository,
}

impl Place {
    /// Returns the file whose lock proves that a broker lives.
    pub fn lock_file(&self) -> PathBuf {
        self.state_dir.join("lock")
    }

    /// Returns the file that says where the broker is found.
    pub fn lease_file(&self) -> PathBuf {
        self.state_dir.join("lease.json")
    }

    /// Returns the broker's socket; its name is short enough for every system.
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join(format!("{}.sock", self.id))
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> PathBuf {
        self.root.join("reeve.toml")
    }
}
