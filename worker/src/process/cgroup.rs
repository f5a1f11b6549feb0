//! A control group around one process tree, where the system grants one.
//!
//! Owns a cgroup v2 below the one this process is in. What is in it cannot leave it by forking,
//! so that killing the group misses nobody, and it counts kills for want of memory. It is a
//! bonus: where no cgroup can be made there is none, and nobody is told.
//!
//! Never kills a group that this process itself is still in.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::getpid;

/// Tells the groups that one process makes apart.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A group of its own for one tree; removed when it is dropped, if it is empty by then.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    parent: PathBuf,
}

impl Cgroup {
    /// Makes a group below this process's own, if that is possible.
    pub fn create() -> Option<Self> {
        let mounts = fs::read("/proc/self/mountinfo").ok()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let parent = own_path(&mounts, &own)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("reeve-{}-{number}", getpid().as_raw_pid()));
        fs::create_dir(&path).ok()?;
        Some(Self { path, parent })
    }

    /// Calls `start` while this process is in the group, so that a child is born into it.
    ///
    /// Returns the group only if the child is in it and this process is not.
    pub(crate) fn around<T>(group: Option<Self>, start: impl FnOnce() -> T) -> (T, Option<Self>) {
        let Some(group) = group.filter(|group| enter(&group.path)) else { return (start(), None) };
        let started = start();
        let left = enter(&group.parent);
        (started, left.then_some(group))
    }

    /// Kills every process in the group. Returns whether the kernel could.
    pub fn kill(&self) -> bool {
        fs::write(self.path.join("cgroup.kill"), "1").is_ok()
    }

    /// Returns whether a process in the group lives.
    pub fn is_populated(&self) -> bool {
        fs::read_to_string(self.path.join("cgroup.events"))
            .is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
    }

    /// Returns whether a process in the group was killed for want of memory.
    ///
    /// Only known where the memory controller was handed down to the group.
    pub fn out_of_memory(&self) -> Option<bool> {
        let events = fs::read_to_string(self.path.join("memory.events")).ok()?;
        let count = events.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
        Some(count.trim() != "0")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A group that still has processes stays: they were left alone on purpose.
        let _ = fs::remove_dir(&self.path);
    }
}

fn enter(group: &Path) -> bool {
    fs::write(group.join("cgroup.procs"), getpid().as_raw_pid().to_string()).is_ok()
}

/// Returns the directory of this process's own group.
fn own_path(mountinfo: &[u8], cgroup: &str) -> Option<PathBuf> {
    let own = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    mountinfo.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let separator = fields.iter().position(|field| *field == b"-")?;
        if *fields.get(separator + 1)? != b"cgroup2" {
            return None;
        }
        let root = unescaped(fields.get(3)?);
        let point = unescaped(fields.get(4)?);
        Some(point.join(Path::new(own).strip_prefix(root).ok()?))
    })
}

/// Reads the octal escapes of `mountinfo`.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| byte == b'\\');
        let code = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_below_its_mount() {
        let mounts = b"31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            33 31 0:30 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n\
            41 31 0:38 / /sys/fs/cgroup/uni\\040fied rw,relatime shared:7 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            own_path(mounts, "4:memory:/x\n0::/user.slice/me\n"),
            Some("/sys/fs/cgroup/uni fied/user.slice/me".into())
        );
        assert_eq!(own_path(mounts, "4:memory:/x\n"), None);
        assert_eq!(own_path(&mounts[..110], "0::/\n"), None);
    }

    #[test]
    fn a_mount_of_a_part_shows_that_part() {
        let mounts = b"41 31 0:38 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(own_path(mounts, "0::/docker/1/a"), Some("/sys/fs/cgroup/a".into()));
        assert_eq!(own_path(mounts, "0::/elsewhere"), None);
    }
}
