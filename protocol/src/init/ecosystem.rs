//! What the files of each ecosystem suggest.

use std::collections::BTreeSet;

use serde_json::Value;
use toml::Table;

use super::{Detected, NAMES_MAX, Proposal};
use crate::capability::Effect;

type Files<'f> = &'f dyn Fn(&str) -> Option<String>;

/// Bytes of a file that is looked at, at most; a larger one suggests nothing by what it says.
const FILE_MAX: usize = 1 << 20;
const RUST_ENV: &[&str] = &["CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"];
const GO_ENV: &[&str] = &["GOPATH", "GOCACHE", "GOMODCACHE", "GOPROXY"];
const PYTHON_ENV: &[&str] = &["VIRTUAL_ENV"];

fn bounded(text: String) -> String {
    if text.len() > FILE_MAX { String::new() } else { text }
}

fn toml(text: &str) -> Table {
    if crate::manifest::is_bounded(text) { text.parse().unwrap_or_default() } else { Table::new() }
}

pub(super) fn cargo(files: Files<'_>) -> Option<Detected> {
    let manifest = toml(&bounded(files("Cargo.toml")?));
    let whole: &[&str] = if manifest.contains_key("workspace") { &["--workspace"] } else { &[] };
    let cargo = |id: &str, title: &str, arguments: &[&str], effect| {
        let command = [&["cargo"], arguments, whole].concat();
        Proposal::new(id, title, &command, effect).lock("target").allow(RUST_ENV)
    };
    let linted = files("clippy.toml").or_else(|| files(".clippy.toml")).is_some()
        || manifest.contains_key("lints")
        || manifest.get("workspace").is_some_and(|workspace| workspace.get("lints").is_some());
    let mut proposals = vec![
        cargo("build", "Build", &["build"], Effect::Write).timeout("30m"),
        cargo("test", "Tests", &["test"], Effect::Read)
            .timeout("30m")
            .filter("{filter?}", "Only tests whose name contains this"),
        cargo("check", "Check that it compiles", &["check", "--all-targets"], Effect::Read)
            .timeout("20m"),
    ];
    if linted {
        proposals.push(
            cargo("lint", "Lints (clippy)", &["clippy", "--all-targets"], Effect::Read)
                .timeout("20m"),
        );
    }
    let all: &[&str] = if whole.is_empty() { &[] } else { &["--all"] };
    let format = |check: &[&'static str]| [&["cargo", "fmt"], all, check].concat();
    proposals.push(
        Proposal::new("fmt.check", "Check formatting", &format(&["--check"]), Effect::Read)
            .timeout("2m")
            .allow(RUST_ENV),
    );
    proposals.push(
        Proposal::new("fmt", "Format", &format(&[]), Effect::Write).timeout("2m").allow(RUST_ENV),
    );
    Some(Detected { name: "Cargo", file: "Cargo.toml", proposals })
}

pub(super) fn node(files: Files<'_>) -> Option<Detected> {
    let package = bounded(files("package.json")?);
    let package = crate::strict::parse(package.as_bytes()).unwrap_or_default();
    let (name, manager) = node_manager(files, &package);
    let names = package.get("scripts").and_then(Value::as_object).into_iter().flatten();
    let names = names.map(|(name, _)| name.as_str());
    // npm runs `pretest` and `posttest` around `test` by itself.
    let all: BTreeSet<&str> = names.clone().collect();
    let hook = |name: &str| {
        ["pre", "post"].iter().any(|hook| {
            name.strip_prefix(hook).is_some_and(|rest| all.contains(rest) || rest == "install")
        })
    };
    let proposals = names
        .filter(|name| !hook(name) && !matches!(*name, "prepare" | "prepublishOnly" | "install"))
        .filter(|name| is_plain(name))
        .take(NAMES_MAX)
        .map(|script| {
            let command = [manager, "run", script];
            let effect = effect_of(script);
            Proposal::new(script, format!("{manager} run {script}"), &command, effect)
                .timeout(timeout_of(script))
        })
        .collect();
    Some(Detected { name, file: "package.json", proposals })
}

fn node_manager(files: Files<'_>, package: &Value) -> (&'static str, &'static str) {
    let pinned = package.get("packageManager").and_then(Value::as_str).unwrap_or_default();
    if files("pnpm-lock.yaml").is_some() || pinned.starts_with("pnpm@") {
        ("pnpm", "pnpm")
    } else if files("yarn.lock").is_some() || pinned.starts_with("yarn@") {
        ("Yarn", "yarn")
    } else {
        ("npm", "npm")
    }
}

pub(super) fn python(files: Files<'_>) -> Option<Detected> {
    let text = |name: &str| files(name).map(bounded);
    const MARKS: [&str; 5] =
        ["pyproject.toml", "setup.cfg", "setup.py", "requirements.txt", "pytest.ini"];
    let file = MARKS.into_iter().find(|name| files(name).is_some())?;
    let project = toml(&text("pyproject.toml").unwrap_or_default());
    let tool = |name: &str| project.get("tool").is_some_and(|tools| tools.get(name).is_some());
    let setup = text("setup.cfg").unwrap_or_default();
    let named = |name: &str| {
        [
            "pyproject.toml",
            "setup.cfg",
            "requirements.txt",
            "requirements-dev.txt",
            "dev-requirements.txt",
        ]
        .iter()
        .any(|file| text(file).is_some_and(|text| names_package(&text, name)))
    };
    let python = |id: &str, title: &str, arguments: &[&str], effect| {
        let command = [&["python3", "-m"], arguments].concat();
        Proposal::new(id, title, &command, effect).allow(PYTHON_ENV)
    };
    let pytest = tool("pytest")
        || files("pytest.ini").is_some()
        || files("conftest.py").is_some()
        || files("tests/conftest.py").is_some()
        || setup.contains("[tool:pytest]")
        || named("pytest");
    let test = if pytest {
        python("test", "Tests (pytest)", &["pytest"], Effect::Read)
            .filter("-k={filter?}", "Only tests that match this expression of pytest")
    } else {
        python("test", "Tests (unittest)", &["unittest", "discover"], Effect::Read)
            .filter("-k={filter?}", "Only tests whose name contains this")
    };
    let mut proposals = vec![test.timeout("20m")];
    if tool("ruff") || files("ruff.toml").is_some() || files(".ruff.toml").is_some() {
        proposals
            .push(python("lint", "Lints (ruff)", &["ruff", "check"], Effect::Read).timeout("5m"));
        proposals.push(
            python(
                "fmt.check",
                "Check formatting (ruff)",
                &["ruff", "format", "--check"],
                Effect::Read,
            )
            .timeout("5m"),
        );
        proposals
            .push(python("fmt", "Format (ruff)", &["ruff", "format"], Effect::Write).timeout("5m"));
    }
    if tool("mypy") || files("mypy.ini").is_some() || setup.contains("[mypy]") {
        proposals.push(python("types", "Check types (mypy)", &["mypy", "."], Effect::Read));
    }
    Some(Detected { name: "Python", file, proposals })
}

/// Returns whether a text names a package where a list of requirements would.
fn names_package(text: &str, name: &str) -> bool {
    text.lines().any(|line| {
        line.split([',', '=', '[', ']', '"', '\'', ' ', '<', '>', '~', '!', ';'])
            .any(|word| word == name)
    })
}

pub(super) fn go(files: Files<'_>) -> Option<Detected> {
    files("go.mod")?;
    let go = |id: &str, title: &str, arguments: &[&str], effect| {
        Proposal::new(id, title, &[&["go"], arguments].concat(), effect).allow(GO_ENV)
    };
    let mut test = go("test", "Tests", &["test"], Effect::Read)
        .timeout("20m")
        .filter("-run={filter?}", "Only tests whose name matches this pattern");
    test.command.push("./...".to_owned());
    let proposals = vec![
        go("build", "Build", &["build", "./..."], Effect::Write).timeout("20m"),
        test,
        go("vet", "Check for mistakes (vet)", &["vet", "./..."], Effect::Read),
    ];
    Some(Detected { name: "Go", file: "go.mod", proposals })
}

pub(super) fn just(files: Files<'_>) -> Option<Detected> {
    const NAMES: [&str; 3] = ["justfile", "Justfile", ".justfile"];
    let (file, text) = NAMES.into_iter().find_map(|name| files(name).map(|text| (name, text)))?;
    let proposals = named(recipes(&bounded(text)), "just");
    Some(Detected { name: "just", file, proposals })
}

/// Returns the recipes of a justfile that need no argument and are not private.
fn recipes(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut private = false;
    for line in text.lines() {
        if line.starts_with('[') {
            private |= line.contains("private");
            continue;
        }
        if line.starts_with([' ', '\t', '#']) || line.trim().is_empty() {
            continue;
        }
        let hidden = std::mem::take(&mut private);
        let line = line.strip_prefix('@').unwrap_or(line);
        let Some((head, rest)) = line.split_once(':') else { continue };
        let mut words = head.split_whitespace();
        let Some(name) = words.next() else { continue };
        let assigns =
            rest.starts_with('=') || matches!(name, "set" | "export" | "alias" | "mod" | "import");
        let complete = words.all(|word| word.contains('=') || word.starts_with('*'));
        if !assigns && !hidden && complete && !name.starts_with('_') {
            found.push(name.to_owned());
        }
    }
    found
}

pub(super) fn make(files: Files<'_>) -> Option<Detected> {
    const NAMES: [&str; 3] = ["GNUmakefile", "makefile", "Makefile"];
    let (file, text) = NAMES.into_iter().find_map(|name| files(name).map(|text| (name, text)))?;
    let proposals = named(targets(&bounded(text)), "make");
    Some(Detected { name: "Make", file, proposals })
}

/// Returns the targets of a Makefile that are names of work rather than of files: those that it
/// declares phony, or, where it declares none, those without a dot or a slash.
fn targets(text: &str) -> Vec<String> {
    let mut phony = BTreeSet::new();
    let mut all = Vec::new();
    let text = text.replace("\\\n", " ");
    for line in text.lines() {
        if line.starts_with(['\t', ' ', '#']) {
            continue;
        }
        let line = line.split('#').next().unwrap_or_default();
        let Some((head, rest)) = line.split_once(':') else { continue };
        // `a := 1` and `a ::= 1` are variables, and so is what stands before a `=`.
        if rest.starts_with('=') || rest.starts_with(":=") || head.contains('=') {
            continue;
        }
        if head.trim() == ".PHONY" {
            phony.extend(rest.split_whitespace().map(str::to_owned));
            continue;
        }
        all.extend(head.split_whitespace().map(str::to_owned));
    }
    all.retain(|name| phony.contains(name) || (phony.is_empty() && !name.contains(['.', '/'])));
    all
}

/// Makes proposals of names that `program` runs as its only argument.
fn named(names: Vec<String>, program: &str) -> Vec<Proposal> {
    let mut seen = BTreeSet::new();
    names
        .into_iter()
        .filter(|name| is_plain(name) && seen.insert(name.clone()))
        .take(NAMES_MAX)
        .map(|name| {
            Proposal::new(&name, format!("{program} {name}"), &[program, &name], effect_of(&name))
                .timeout(timeout_of(&name))
        })
        .collect()
}

/// Returns whether a name can be written into a command as it is.
fn is_plain(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
    first && name.len() <= 64 && name.bytes().all(plain)
}

/// Guesses from a name whether the work only looks.
fn effect_of(name: &str) -> Effect {
    const LOOKS: [&str; 9] =
        ["test", "tests", "lint", "check", "typecheck", "types", "vet", "verify", "coverage"];
    const CHANGES: [&str; 6] = ["fix", "write", "update", "fmt", "format", "watch"];
    let words = || name.split([':', '-', '_', '.', '/']);
    let has = |list: &[&str]| words().any(|word| list.contains(&word));
    if has(&["deploy", "publish", "release"]) {
        Effect::Dangerous
    } else if has(&["check"]) || (has(&LOOKS) && !has(&CHANGES)) {
        Effect::Read
    } else {
        Effect::Write
    }
}

/// Guesses from a name how long the work may take.
fn timeout_of(name: &str) -> &'static str {
    let serves = ["dev", "serve", "start", "watch", "preview"];
    if name.split([':', '-', '_', '.']).any(|word| serves.contains(&word)) { "24h" } else { "20m" }
}
