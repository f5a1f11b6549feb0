#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::handler::tests::site;

/// A checkout with these files.
fn checkout(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    dir
}

fn verified(dir: &TempDir, input: Value) -> Value {
    let root = fs::canonicalize(dir.path()).unwrap();
    let mut site = site(&root);
    site.handlers = ["mine.own".parse().unwrap()].into();
    let handler = handler();
    let input = handler.validate(input).unwrap();
    handler.call(&Ctx::silent(Arc::new(site)), input).unwrap()
}

/// Returns kind and place of every finding.
fn places(report: &Value) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap().iter();
    let place = |it: &Value| match it["line"].as_u64() {
        Some(line) => {
            format!("{} {}:{line}", it["kind"].as_str().unwrap(), it["path"].as_str().unwrap())
        }
        None => format!("{} {}", it["kind"].as_str().unwrap(), it["path"].as_str().unwrap()),
    };
    findings.map(place).collect()
}

#[test]
fn a_checkout_in_order_has_no_findings() {
    let dir = checkout(&[
        ("a.toml", "a = 1\n"),
        ("b.json", "{}"),
        ("tsconfig.json", "{ /* why */ \"a\": 1, }"),
        ("c.yml", "a: [1]\n"),
        ("docs/d.md", "[to](../b.json) [page](e) [out](https://x.y) ![i](/a.toml)\n"),
        ("docs/e.md", "\u{feff}# E\n"),
        ("chart/templates/f.yaml", "{{- if .x }}\na: b\n{{ end }}\n"),
        ("reeve.toml", "[capability.one]\ncommand = ['true']\n"),
        ("binary", "\0<<<<<<< a\n=======\n>>>>>>> b\n"),
    ]);
    symlink("a.toml", dir.path().join("link")).unwrap();
    symlink("../outside", dir.path().join("out")).unwrap();
    symlink(fs::canonicalize(dir.path()).unwrap().join("b.json"), dir.path().join("own")).unwrap();
    let report = verified(&dir, json!({}));
    assert_eq!((&report["ok"], &report["found"]), (&json!(true), &json!(0)), "{report}");
    assert_eq!(report["files"], 12);
    let counts = json!({
        "toml": 2, "json": 2, "yaml": 1, "markdown": 2, "conflict": 8, "symlink": 2, "manifest": 1,
    });
    assert_eq!(report["verified"], counts);
    assert_eq!(
        (&report["unseen"]["templates"], &report["unseen"]["outside"]),
        (&json!(1), &json!(1))
    );
}

/// A checkout with one fault of each kind.
fn faulty() -> TempDir {
    let dir = checkout(&[
        ("a.toml", "a = 1\nb =\n"),
        ("b.json", "{\n\"a\": }"),
        ("c.yaml", "a: 1\nb: [\n"),
        ("d.md", "# D\n\n[gone](nowhere.md)\n"),
        ("e.txt", "x\n<<<<<<< HEAD\na\n=======\nb\n>>>>>>> other\n"),
        (
            "reeve.toml",
            "[capability.one]\ncommand = ['true']\ntimout = '1s'\n[capability.\"mine.own\"]\ncommand = ['true']\n",
        ),
    ]);
    symlink("gone", dir.path().join("f")).unwrap();
    symlink("g", dir.path().join("g")).unwrap();
    dir
}

#[test]
fn each_kind_of_fault_is_found_at_its_place() {
    let dir = faulty();
    let report = verified(&dir, json!({}));
    assert_eq!(report["ok"], false);
    let expected = [
        "manifest reeve.toml:3",
        "manifest reeve.toml:4",
        "toml a.toml:2",
        "json b.json:2",
        "yaml c.yaml:3",
        "markdown d.md:3",
        "conflict e.txt:2",
        "symlink f",
        "symlink g",
    ];
    assert_eq!(places(&report), expected);
    let meant = report["findings"][0]["message"].as_str().unwrap();
    assert!(meant.contains("did you mean \"timeout\"?"), "{meant}");
}

#[test]
fn one_kind_alone_looks_at_nothing_else() {
    let dir = faulty();
    for (kind, findings) in [
        ("manifest", 2),
        ("toml", 1),
        ("json", 1),
        ("yaml", 1),
        ("markdown", 1),
        ("conflict", 1),
        ("symlink", 2),
    ] {
        let report = verified(&dir, json!({ "kind": kind }));
        assert_eq!(report["found"], findings, "{report}");
        let verified = report["verified"].as_object().unwrap();
        assert_eq!(verified.keys().collect::<Vec<_>>(), [kind]);
    }
    assert!(handler().validate(json!({ "kind": "rule" })).is_err());
    assert!(handler().validate(json!({ "limit": 0 })).is_err());
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    let files: Vec<(String, &str)> =
        (0..=FINDINGS_MAX).map(|n| (format!("{n}.json"), "{")).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (&**name, *text)).collect();
    let dir = checkout(&files);
    for (limit, listed) in [(1, 1), (200, 200), (201, 200), (u64::MAX, 200)] {
        let report = verified(&dir, json!({ "limit": limit }));
        assert_eq!(report["findings"].as_array().unwrap().len(), listed);
        assert_eq!(report["found"], 201);
    }
    fs::remove_file(dir.path().join("0.json")).unwrap();
    let report = verified(&dir, json!({}));
    assert_eq!(
        (report["findings"].as_array().unwrap().len(), &report["found"]),
        (200, &json!(200))
    );
}

#[test]
fn one_file_does_not_take_the_whole_list() {
    let links = |count: usize| "[a](gone)\n\n".repeat(count);
    let dir =
        checkout(&[("a.md", &links(FINDINGS_OF_FILE + 1)), ("b.md", &links(FINDINGS_OF_FILE))]);
    let report = verified(&dir, json!({}));
    assert_eq!(report["found"], 2 * FINDINGS_OF_FILE + 1);
    assert_eq!(report["findings"].as_array().unwrap().len(), 2 * FINDINGS_OF_FILE);
}

#[test]
fn a_file_over_the_bound_is_counted_and_not_read() {
    let fits = format!("\"{}\"", "x".repeat(FILE_BYTES as usize - 2));
    let dir = checkout(&[("fits.json", &fits), ("large.json", &format!("{fits}x"))]);
    let report = verified(&dir, json!({}));
    assert_eq!(
        (&report["found"], &report["unseen"]["too_large"]),
        (&json!(0), &json!(1)),
        "{report}"
    );
}

#[test]
fn what_cannot_be_read_is_counted() {
    let dir = checkout(&[("a.json", "{}")]);
    let kind = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, dir.path().join("b.json"), kind, mode, 0).unwrap();
    let report = verified(&dir, json!({}));
    assert_eq!((&report["ok"], &report["files"]), (&json!(true), &json!(1)), "{report}");
}

#[test]
fn bytes_that_are_no_text_are_told_with_their_place() {
    let dir = checkout(&[]);
    fs::write(dir.path().join("a.json"), b"\"\n\xff\"").unwrap();
    let report = verified(&dir, json!({}));
    assert_eq!(places(&report), ["json a.json:2"]);
}

#[test]
fn it_stops_when_it_is_asked_to() {
    let dir = faulty();
    let ctx = Ctx::silent(Arc::new(site(dir.path())));
    ctx.progress.cancel();
    let fault = handler().call(&ctx, json!({})).unwrap_err();
    assert_eq!(fault.code, Code::Cancelled);
}

#[test]
fn where_a_link_leads_on_this_machine_is_not_told() {
    let dir = checkout(&[]);
    let root = fs::canonicalize(dir.path()).unwrap();
    symlink(root.join("secret-name"), dir.path().join("link")).unwrap();
    let report = verified(&dir, json!({}));
    assert_eq!(places(&report), ["symlink link"]);
    assert!(!report.to_string().contains("secret-name"), "{report}");
}
