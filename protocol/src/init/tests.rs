use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::capability::{Descriptor, Overlap};
use crate::manifest::{FILE, Manifest, parse};

fn found(files: &[(&str, &str)]) -> Vec<Detected> {
    let files: BTreeMap<_, _> = files.iter().copied().collect();
    detect(&|path| files.get(path).map(|text| (*text).to_owned()))
}

/// Renders what was found and reads it back: nothing is wrong, and nothing waits for later.
fn manifest(files: &[(&str, &str)]) -> Manifest {
    let text = render(&found(files));
    let manifest = parse(&text, FILE).unwrap_or_else(|errors| panic!("{text}\n{}", errors[0]));
    assert_eq!(manifest.not_yet, []);
    assert!(!manifest.capabilities.is_empty());
    manifest
}

fn ids(manifest: &Manifest) -> Vec<&str> {
    manifest.capabilities.keys().map(CapabilityId::as_str).collect()
}

fn one<'m>(manifest: &'m Manifest, id: &str) -> &'m Descriptor {
    &manifest.capabilities[&id.parse().unwrap()]
}

fn command<'m>(manifest: &'m Manifest, id: &str) -> Vec<&'m str> {
    one(manifest, id).process.as_ref().unwrap().command.iter().map(String::as_str).collect()
}

#[test]
fn an_empty_checkout_gets_an_example() {
    let manifest = manifest(&[]);
    assert_eq!(ids(&manifest), ["hello"]);
    let ready = manifest.ready.values().next().unwrap();
    let input = ready.validator.validate(json!(null)).unwrap();
    let arguments = crate::input::argv(ready.template.as_ref().unwrap(), &input).unwrap();
    assert_eq!(arguments, ["echo", "Hello,", "world"]);
}

#[test]
fn a_crate_of_cargo_is_built_and_tested() {
    let manifest = manifest(&[("Cargo.toml", "[package]\nname = \"x\"\n")]);
    assert_eq!(ids(&manifest), ["build", "check", "fmt", "fmt.check", "test"]);
    assert_eq!(command(&manifest, "test"), ["cargo", "test", "{filter?}"]);
    assert_eq!(one(&manifest, "test").effect, Effect::Read);
    assert_eq!(one(&manifest, "build").effect, Effect::Write);
    assert_eq!(one(&manifest, "check").overlap, Overlap::Lock("target".to_owned()));
    assert_eq!(command(&manifest, "fmt.check"), ["cargo", "fmt", "--check"]);
}

#[test]
fn a_workspace_of_cargo_is_taken_whole() {
    let manifest = manifest(&[("Cargo.toml", "[workspace]\nlints.clippy.all = \"warn\"\n")]);
    assert_eq!(command(&manifest, "test"), ["cargo", "test", "--workspace", "{filter?}"]);
    assert_eq!(command(&manifest, "lint"), ["cargo", "clippy", "--all-targets", "--workspace"]);
    assert_eq!(command(&manifest, "fmt.check"), ["cargo", "fmt", "--all", "--check"]);
}

#[test]
fn scripts_of_a_package_run_with_its_manager() {
    let package = r#"{"scripts": {"test": "x", "pretest": "x", "test:unit": "x", "build": "x",
        "prepare": "x", "lint": "x", "lint:fix": "x", "dev": "x", "we ird": "x", "-rf": "x", "deploy": "x"}}"#;
    for (lock, manager) in
        [("package-lock.json", "npm"), ("pnpm-lock.yaml", "pnpm"), ("yarn.lock", "yarn")]
    {
        let manifest = manifest(&[("package.json", package), (lock, "")]);
        assert_eq!(
            ids(&manifest),
            ["build", "deploy", "dev", "lint", "lint.fix", "test", "test.unit"]
        );
        assert_eq!(command(&manifest, "test.unit"), [manager, "run", "test:unit"]);
        assert_eq!(one(&manifest, "lint").effect, Effect::Read);
        assert_eq!(one(&manifest, "lint.fix").effect, Effect::Write);
        assert_eq!(one(&manifest, "deploy").effect, Effect::Dangerous);
    }
}

#[test]
fn python_is_tested_by_what_it_is_set_up_for() {
    let plain = manifest(&[("requirements.txt", "requests\n")]);
    assert_eq!(command(&plain, "test"), ["python3", "-m", "unittest", "discover", "-k={filter?}"]);
    assert_eq!(ids(&plain), ["test"]);
    for files in [
        [("pyproject.toml", "[tool.pytest.ini_options]\n[tool.ruff]\n")],
        [("pyproject.toml", "[project]\ndependencies = [\"pytest>=8\"]\n[tool.ruff]\n")],
    ] {
        let manifest = manifest(&files);
        assert_eq!(command(&manifest, "test"), ["python3", "-m", "pytest", "-k={filter?}"]);
        assert_eq!(command(&manifest, "lint"), ["python3", "-m", "ruff", "check"]);
    }
    let old = manifest(&[("setup.cfg", "[tool:pytest]\n[mypy]\n")]);
    assert_eq!(ids(&old), ["test", "types"]);
}

#[test]
fn go_is_built_vetted_and_tested() {
    let manifest = manifest(&[("go.mod", "module x\n")]);
    assert_eq!(ids(&manifest), ["build", "test", "vet"]);
    assert_eq!(command(&manifest, "test"), ["go", "test", "-run={filter?}", "./..."]);
}

#[test]
fn targets_of_a_makefile_are_those_that_name_work() {
    let text = ".PHONY: all test \\\n  clean\nCC := gcc\nX ?= a:b\nall: main.o\n\tcc\nmain.o: main.c\n\tcc x:y\ntest: all ; run\nclean:\n\trm\n%.o: %.c\n$(OUT): x\n";
    let phony = manifest(&[("Makefile", text)]);
    assert_eq!(ids(&phony), ["all", "clean", "test"]);
    assert_eq!(command(&phony, "test"), ["make", "test"]);
    let bare = manifest(&[("Makefile", "build: x\nmain.o: y\nlib/x: z\n.SUFFIXES:\n")]);
    assert_eq!(ids(&bare), ["build"]);
    let many: String = (0..500).map(|n| format!("t{n}:\n")).collect();
    assert_eq!(manifest(&[("Makefile", &many)]).capabilities.len(), NAMES_MAX);
}

#[test]
fn recipes_of_a_justfile_are_those_that_need_no_argument() {
    let text = "set shell := [\"sh\"]\nx := \"1\"\nalias b := build\nexport A := \"1\"\n\n# Builds.\nbuild target='all': dep\n  cargo build a:b\n@quiet:\n  x\n_hidden:\n  x\n[private]\nsecret:\n  x\ntest name:\n  x\nrun *args:\n  x\n";
    let manifest = manifest(&[("justfile", text)]);
    assert_eq!(ids(&manifest), ["build", "quiet", "run"]);
    assert_eq!(command(&manifest, "build"), ["just", "build"]);
}

#[test]
fn ids_that_several_want_are_told_apart() {
    let manifest = manifest(&[
        ("Cargo.toml", "[package]\n"),
        ("package.json", r#"{"scripts": {"test": "x", "health:report": "x", "page:a": "x"}}"#),
        ("Makefile", "test:\nbuild:\n"),
        ("go.mod", ""),
    ]);
    let ids = ids(&manifest);
    for id in ["test", "npm.test", "make.test", "go.test", "npm.health.report", "npm.page.a"] {
        assert!(ids.contains(&id), "{ids:?}");
    }
}

#[test]
fn files_that_make_no_sense_are_harmless() {
    let deep = "[".repeat(100_000);
    let large = "x".repeat(2 << 20);
    let nested = format!("a = {}", "{ a.b.c.d.e.f.g.h.i.j = [".repeat(1_000));
    for text in ["", "\0", "{", "[[", "= = =", ":", &deep, &nested, &large] {
        for file in
            ["Cargo.toml", "package.json", "pyproject.toml", "Makefile", "justfile", "go.mod"]
        {
            manifest(&[(file, text)]);
        }
    }
}

#[test]
fn what_is_found_is_written_with_where_it_was_found() {
    let text = render(&found(&[("go.mod", ""), ("Makefile", "a:\n")]));
    assert!(text.contains("# Go, found by go.mod."), "{text}");
    assert!(text.contains("# Make, found by Makefile."), "{text}");
}

proptest! {
    /// Whatever the names are, what is written is a manifest.
    #[test]
    fn any_name_makes_a_manifest(names in proptest::collection::vec("\\PC{0,20}|[a-zA-Z0-9:._/-]{1,80}", 0..30)) {
        let scripts: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), json!("x"))).collect();
        let package = json!({ "scripts": scripts }).to_string();
        let targets: String = names.iter().map(|name| format!("{name}:\n")).collect();
        manifest(&[("package.json", &package), ("Makefile", &targets), ("justfile", &targets)]);
    }
}
