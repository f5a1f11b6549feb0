//! `health.report`: how this checkout and its broker are.
//!
//! Its rule: what is not known is left out, and what keeps anything from working is a problem
//! with a sentence. Says nothing of where anything lies on this machine.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use reeve_protocol::capability::Effect;
use reeve_protocol::event::Severity;
use reeve_protocol::stream::Op;
use reeve_protocol::{Fault, Limits, sanitise};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::handler::{Ctx, Handler};

const DESCRIPTION: &str = "Returns the version of this program, what is checked out, whether a \
broker serves the checkout and how busy it is, the limits in force and the space that is left for \
its state, with a sentence for everything that is not as it should be.";

/// Bytes that are left for the state of a broker below which somebody should look.
const SPACE_MIN: u64 = 64 << 20;
/// Bytes of a small file of git's.
const SMALL: u64 = 4 << 10;
/// Bytes of git's list of packed names.
const PACKED: u64 = 4 << 20;
/// Characters of a branch's name that are told.
const BRANCH_CHARS: usize = 200;

/// Nothing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// How it is.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
struct Report {
    /// Whether there is no problem.
    ok: bool,
    /// What is not as it should be, each in a sentence.
    problems: Vec<String>,
    /// The version of the program that answers.
    version: String,
    /// The process that answers.
    pid: u32,
    /// What is checked out.
    checkout: Checkout,
    /// Whether a broker serves the checkout, and what it says of itself.
    broker: Broker,
    /// The bounds that count in this process.
    limits: Limits,
    /// The space for the state of brokers; absent where it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<Disk>,
}

/// What is checked out.
#[derive(Debug, Default, PartialEq, Serialize, JsonSchema)]
struct Checkout {
    /// The last part of its path.
    name: String,
    /// Its id.
    id: String,
    /// The branch, where one is checked out.
    #[serde(skip_serializing_if = "Option::is_none")]
    branch: Option<String>,
    /// The commit, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<String>,
}

/// The broker of the checkout.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
struct Broker {
    /// Whether one serves the checkout.
    serving: bool,
    /// What it says of itself, as `reeve status` shows it; absent where it says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Value>,
}

/// The space of a file system.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
struct Disk {
    /// Bytes that this user may still take.
    available_bytes: u64,
    /// Bytes in all.
    total_bytes: u64,
}

/// Declares it.
pub(super) fn handler() -> Handler {
    Handler::new("health.report", "Report the health", report)
        .description(DESCRIPTION)
        .effect(Effect::Read)
        .idempotent()
}

fn report(ctx: &Ctx, _: Nothing) -> Result<Report, Fault> {
    let site = ctx.site();
    let mut problems = Vec::new();
    let broker = broker(ctx, &mut problems);
    let disk = disk(&site.place.state_dir);
    if let Some(disk) = disk.as_ref().filter(|disk| disk.available_bytes < SPACE_MIN) {
        let left = disk.available_bytes >> 20;
        problems.push(format!("only {left} MiB are left for the state of brokers"));
    }
    for problem in &problems {
        ctx.progress.diagnostic(Severity::Warning, "health", problem, None, None);
    }
    let (branch, head) = checked_out(ctx.root());
    let repository = &site.place.repository;
    Ok(Report {
        ok: problems.is_empty(),
        problems,
        version: site.version.clone(),
        pid: std::process::id(),
        checkout: Checkout {
            name: repository.name.clone(),
            id: site.place.id.clone(),
            branch,
            head,
        },
        broker,
        limits: site.limits.clone(),
        disk,
    })
}

fn broker(ctx: &Ctx, problems: &mut Vec<String>) -> Broker {
    match ctx.ask(Op::Status {}) {
        Ok(status) => {
            let of_manifest = status["manifest_problems"].as_array().into_iter().flatten();
            let told = of_manifest.filter_map(Value::as_str).filter_map(|it| it.lines().next());
            problems.extend(told.map(|problem| format!("the manifest: {problem}")));
            if status["version"].as_str().is_some_and(|version| version != ctx.site().version) {
                problems.push("the broker is of another version than this program".to_owned());
            }
            Broker { serving: true, status: Some(status) }
        }
        Err(fault) if fault.reason.as_deref() == Some("no_broker") => {
            Broker { serving: false, status: None }
        }
        Err(fault) => {
            problems.push(format!("the broker does not answer: {}", fault.message));
            Broker { serving: true, status: None }
        }
    }
}

/// Returns the space of the file system that a directory lies on, or would.
fn disk(dir: &Path) -> Option<Disk> {
    let there = dir.ancestors().find(|dir| dir.is_dir())?;
    let space = rustix::fs::statvfs(there).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    Some(Disk { available_bytes: bytes(space.f_bavail), total_bytes: bytes(space.f_blocks) })
}

/// Returns the branch and the commit that are checked out.
fn checked_out(root: &Path) -> (Option<String>, Option<String>) {
    let Some(git) = git_dir(root) else { return (None, None) };
    let Some(head) = small(&git.join("HEAD"), SMALL) else { return (None, None) };
    let head = head.trim_end();
    let Some(name) = head.strip_prefix("ref: ") else { return (None, commit(head)) };
    let branch = name.strip_prefix("refs/heads/").map(|it| sanitise::text(it, BRANCH_CHARS));
    let is_plain = name.starts_with("refs/") && !name.split('/').any(|part| part == "..");
    let common = small(&git.join("commondir"), SMALL);
    let common = common.map_or_else(|| git.clone(), |common| git.join(common.trim_end()));
    let loose = is_plain.then(|| small(&common.join(name), SMALL)).flatten();
    let of_loose = loose.and_then(|text| commit(text.trim_end()));
    let packed = || {
        let list = small(&common.join("packed-refs"), PACKED)?;
        let mut lines = list.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(_, packed)| *packed == name).and_then(|(id, _)| commit(id))
    };
    (branch, of_loose.or_else(packed))
}

fn git_dir(root: &Path) -> Option<PathBuf> {
    let marker = root.join(".git");
    if marker.is_dir() {
        return Some(marker);
    }
    let named = small(&marker, SMALL)?;
    Some(root.join(named.strip_prefix("gitdir: ")?.trim_end()))
}

fn commit(text: &str) -> Option<String> {
    let is_id = matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| text.to_owned())
}

/// Reads a regular file up to a bound; a longer one is none of git's.
fn small(path: &Path, bytes_max: u64) -> Option<String> {
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    File::open(path).ok()?.take(bytes_max).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use reeve_protocol::Code;
    use serde_json::json;

    use super::*;
    use crate::handler::Ask;
    use crate::handler::tests::site;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    struct Says(Result<Value, Fault>);

    impl Ask for Says {
        fn ask(&self, op: Op) -> Result<Value, Fault> {
            assert_eq!(op, Op::Status {});
            self.0.clone()
        }
    }

    fn told(root: &Path, says: Option<Result<Value, Fault>>) -> Value {
        let mut site = site(root);
        if let Some(says) = says {
            site.broker = Arc::new(Says(says));
        }
        handler().call(&Ctx::silent(Arc::new(site)), json!({})).unwrap()
    }

    #[test]
    fn no_broker_is_no_problem_and_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let report = told(dir.path(), None);
        assert_eq!(
            (&report["ok"], &report["broker"]),
            (&json!(true), &json!({ "serving": false }))
        );
        assert_eq!(
            (&report["version"], &report["checkout"]["name"]),
            (&json!("1.2.3"), &json!("it"))
        );
        assert!(report["limits"]["max_running"].is_u64());
        let disk = &report["disk"];
        assert!(disk["available_bytes"].as_u64() <= disk["total_bytes"].as_u64(), "{disk}");
        assert!(!report.to_string().contains(dir.path().to_str().unwrap()), "{report}");
    }

    #[test]
    fn what_a_broker_says_is_told_and_its_problems_are_problems() {
        let dir = tempfile::tempdir().unwrap();
        let good = json!({ "version": "1.2.3", "workers": 2, "manifest_problems": [] });
        let report = told(dir.path(), Some(Ok(good.clone())));
        assert_eq!((&report["ok"], &report["broker"]["status"]), (&json!(true), &good));
        let bad = json!({ "version": "9", "manifest_problems": ["reeve.toml:1:1: odd\n  | x"] });
        let report = told(dir.path(), Some(Ok(bad)));
        let problems = report["problems"].as_array().unwrap();
        assert_eq!((&report["ok"], problems.len()), (&json!(false), 2));
        assert_eq!(problems[0], "the manifest: reeve.toml:1:1: odd");
        let silent = Fault::new(Code::Unavailable, "it is silent");
        let report = told(dir.path(), Some(Err(silent)));
        assert_eq!((&report["ok"], &report["broker"]["serving"]), (&json!(false), &json!(true)));
    }

    #[test]
    fn branch_and_commit_are_read_wherever_git_keeps_them() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let root = dir.path().join("main");
        let both = |root: &Path| checked_out(root);
        let (main, id) = (Some("main".to_owned()), Some(COMMIT.to_owned()));
        assert_eq!(both(&root), (None, None));
        write("main/.git/HEAD", "ref: refs/heads/main\n");
        assert_eq!(both(&root), (main.clone(), None), "no commit yet");
        write("main/.git/packed-refs", &format!("# pack-refs\n{COMMIT} refs/heads/main\n"));
        assert_eq!(both(&root), (main.clone(), id.clone()));
        let newer = COMMIT.replace('0', "f");
        write("main/.git/refs/heads/main", &format!("{newer}\n"));
        assert_eq!(both(&root), (main, Some(newer)));
        write("main/.git/HEAD", &format!("{COMMIT}\n"));
        assert_eq!(both(&root), (None, id.clone()));
        write("main/.git/HEAD", "ref: refs/../../secret\n");
        write("main/secret", COMMIT);
        assert_eq!(both(&root), (None, None));
        write("linked/.git", "gitdir: ../main/.git/worktrees/linked\n");
        write("main/.git/worktrees/linked/HEAD", "ref: refs/heads/other\n");
        write("main/.git/worktrees/linked/commondir", "../..\n");
        write("main/.git/refs/heads/other", COMMIT);
        assert_eq!(both(&dir.path().join("linked")), (Some("other".to_owned()), id));
    }
}
