//! Tidy: rules of this repository that no compiler knows.

use std::fs;
use std::path::{Path, PathBuf};

/// Lines of one file, at most.
const FILE_LINES_MAX: usize = 1_000;

/// Who may not say what: paths that begin so, and words that their code may not contain.
const FORBIDDEN: &[(&str, &[&str])] = &[
    (
        "protocol/src/",
        &[
            "tokio",
            "actix",
            "std::fs",
            "std::net",
            "std::process",
            "std::thread",
            "std::env",
            "Instant",
            "SystemTime",
        ],
    ),
    (
        "broker/src/plane/",
        &[
            "tokio",
            "actix",
            "async ",
            "std::fs",
            "std::net",
            "std::process",
            "std::thread",
            "HashMap",
            "Instant",
            "SystemTime",
            "crate::store",
            "crate::edge",
            "crate::board",
        ],
    ),
    (
        "broker/src/pump.rs",
        &["tokio", "actix", "async ", "std::fs", "std::net", "HashMap", "Instant", "SystemTime"],
    ),
    ("broker/src/store/", &["actix", "crate::edge", "crate::actor", "crate::board"]),
    ("broker/src/edge/", &["crate::actor", "plane::Plane"]),
    ("broker/src/", &["reeve_worker", "reeve_client", "tokio::spawn("]),
    (
        "worker/src/session",
        &[
            "tokio",
            "async ",
            "std::fs",
            "std::net",
            "std::process",
            "std::thread",
            "HashMap",
            "Instant",
            "SystemTime",
        ],
    ),
    (
        "worker/src/process/escalate.rs",
        &["tokio", "async ", "std::fs", "Instant", "SystemTime", "HashMap"],
    ),
    ("worker/src/", &["reeve_broker", "reeve_client"]),
    ("client/src/follow.rs", &["tokio", "std::fs", "std::net", "Instant", "SystemTime", "HashMap"]),
    ("client/src/link.rs", &["reeve_broker", "reeve_worker", "clap::"]),
    ("client/src/watcher.rs", &["reeve_broker", "reeve_worker", "clap::"]),
];

/// Words that nobody's code may contain, and who is exempt.
const NOWHERE: &[(&str, &[&str])] = &[
    ("dbg!(", &[]),
    ("todo!(", &[]),
    ("unimplemented!(", &[]),
    ("#[ignore", &[]),
    ("println!(", &["xtask/", "client/src/ui.rs", "tests/"]),
    ("print!(", &["xtask/", "client/src/ui.rs", "tests/"]),
];

/// Looks at every source file and returns what is wrong, one line each.
pub fn problems(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    for file in sources(root) {
        let path = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).unwrap_or_default();
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            problems.push(format!("{path}: {lines} lines; divide it by what it tracks"));
        }
        if path != "xtask/src/tidy.rs" {
            look_for_words(&path, &text, &mut problems);
        }
    }
    every_limit_is_tested(root, &mut problems);
    every_event_is_documented(root, &mut problems);
    problems
}

fn look_for_words(path: &str, text: &str, problems: &mut Vec<String>) {
    let is_test = path.contains("tests") || path.ends_with("contract.rs");
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    for (number, line) in code.lines().enumerate() {
        let said = line.split("//").next().unwrap_or(line);
        let mut complain = |word: &str, why: &str| {
            problems.push(format!("{path}:{}: {word:?} {why}", number + 1));
        };
        for (word, exempt) in NOWHERE {
            let allowed = exempt.iter().any(|prefix| path.starts_with(prefix));
            if said.contains(word) && !allowed && !said.contains(&format!("e{word}")) {
                complain(word, "is not left in code");
            }
        }
        if is_test {
            continue;
        }
        for (prefix, words) in FORBIDDEN {
            if path.starts_with(prefix) {
                for word in words.iter().filter(|word| said.contains(**word)) {
                    complain(word, "is not for this module");
                }
            }
        }
    }
}

/// A bound without a test that sets it, or reads it by its name, is not known to hold.
fn every_limit_is_tested(root: &Path, problems: &mut Vec<String>) {
    let limits = fs::read_to_string(root.join("protocol/src/limits.rs")).unwrap_or_default();
    let fields = limits.lines().filter_map(|line| {
        line.strip_prefix("    pub ").and_then(|rest| rest.split(':').next()).map(str::to_owned)
    });
    let tests: String = sources(root)
        .iter()
        .filter(|file| {
            let path = file.to_string_lossy();
            path.contains("tests") || path.ends_with("contract.rs") || path.contains("/tests/")
        })
        .filter_map(|file| fs::read_to_string(file).ok())
        .collect();
    for field in fields.filter(|field| !field.starts_with("fn ")) {
        let set = [":", " =", "="].map(|after| format!("{field}{after}"));
        let named = tests.contains(&format!("{field:?}"));
        if !named && !set.iter().any(|set| tests.contains(set)) {
            problems.push(format!("protocol/src/limits.rs: no test names the limit {field:?}"));
        }
    }
}

/// A client must be able to read what every event means.
fn every_event_is_documented(root: &Path, problems: &mut Vec<String>) {
    let events = fs::read_to_string(root.join("protocol/src/event.rs")).unwrap_or_default();
    let page = fs::read_to_string(root.join("docs/EXECUTIONS.md")).unwrap_or_default();
    let table = events.split("kinds! {").nth(1).unwrap_or_default();
    for line in table.lines().take_while(|line| *line != "}") {
        let tag = line.strip_suffix(" {").or(line.strip_suffix(" {}")).and_then(|line| {
            let (_, rest) = line.split_once('"')?;
            rest.strip_suffix('"')
        });
        if let Some(tag) = tag.filter(|tag| !page.contains(&format!("`execution.{tag}`"))) {
            problems.push(format!("docs/EXECUTIONS.md: execution.{tag} is not described"));
        }
    }
}

fn sources(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for top in ["protocol", "broker", "worker", "client", "tests", "xtask"] {
        walk(&root.join(top), &mut files);
    }
    files.sort();
    files
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            walk(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_is_tidy() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
        let problems = problems(root);
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn a_clock_in_the_plane_is_found() {
        let mut problems = Vec::new();
        look_for_words("broker/src/plane/x.rs", "let t = Instant::now();", &mut problems);
        look_for_words("worker/src/x.rs", "dbg!(1)", &mut problems);
        look_for_words("worker/src/x.rs", "eprintln!(\"fine\")", &mut problems);
        assert_eq!(problems.len(), 2, "{problems:?}");
    }
}
