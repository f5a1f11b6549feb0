//! `objects.verify`: whether the files of a checkout are what they say they are.
//!
//! Owns the order of the work, its bounds and its report. The rule: it reads, never follows a
//! path out of the checkout, and says what it did not look at; a finding is no failure of the
//! call.

mod inside;
mod syntax;
mod text;
mod walk;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use reeve_protocol::capability::Effect;
use reeve_protocol::event::Severity;
use reeve_protocol::{Code, Fault, manifest, sanitise};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::handler::{Ctx, Handler};
use inside::{Root, Seen, Unread};
use syntax::Wrong;
use walk::Found;

const DESCRIPTION: &str = "Looks at the files that git would track: TOML, JSON and YAML that \
cannot be read, links of Markdown documents to files that are not there, merges left half done, \
symbolic links that lead nowhere, and the manifest. It changes nothing and never leaves the \
checkout. What it finds are findings of the call, not its failure.";

/// Files that are looked at, at most.
const FILES_MAX: usize = 20_000;
/// Bytes of a file that is read, at most.
const FILE_BYTES: u64 = 1 << 20;
/// Findings that are listed, at most.
const FINDINGS_MAX: usize = 200;
/// Findings of one file that are listed, at most.
const FINDINGS_OF_FILE: usize = 20;
/// Characters of a path or message that are told.
const TEXT_CHARS: usize = 300;
/// Bytes at the beginning of a file that tell whether it is text.
const TEXT_SAMPLE: usize = 8 << 10;

/// What is verified.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Input {
    /// Only this; all of it where it is left away.
    kind: Option<Subject>,
    /// How many findings are listed; more than 200 count as 200. The others are counted.
    #[schemars(range(min = 1))]
    limit: Option<u64>,
}

/// What can be verified.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
enum Subject {
    /// Whether `.toml` files are TOML.
    Toml,
    /// Whether `.json` files are JSON, and `.jsonc` files JSON with comments.
    Json,
    /// Whether `.yaml` and `.yml` files are YAML.
    Yaml,
    /// Whether links of Markdown documents to files lead to one.
    Markdown,
    /// Whether a file holds a merge left half done.
    Conflict,
    /// Whether symbolic links lead somewhere.
    Symlink,
    /// Whether the manifest is one.
    Manifest,
}

impl Subject {
    fn as_str(self) -> &'static str {
        match self {
            Self::Toml => "toml",
            Self::Json => "json",
            Self::Yaml => "yaml",
            Self::Markdown => "markdown",
            Self::Conflict => "conflict",
            Self::Symlink => "symlink",
            Self::Manifest => "manifest",
        }
    }
}

/// What was found.
#[derive(Debug, Default, PartialEq, Serialize, JsonSchema)]
struct Report {
    /// Whether nothing is wrong with anything that was looked at.
    ok: bool,
    /// How many files and links there are.
    files: u64,
    /// Of how many each thing was verified.
    verified: BTreeMap<&'static str, u64>,
    /// What is wrong, up to the limit.
    findings: Vec<Finding>,
    /// How many findings there are, listed or not.
    found: u64,
    /// What was not looked at.
    unseen: Unseen,
}

/// How much was not looked at, and why.
#[derive(Debug, Default, PartialEq, Serialize, JsonSchema)]
struct Unseen {
    /// Files larger than 1 MiB.
    too_large: u64,
    /// Files and directories that may not be read, or went away.
    unreadable: u64,
    /// Links that lead out of the checkout.
    outside: u64,
    /// YAML that is made of a template first.
    templates: u64,
    /// Whether there are more files than the bound of 20000.
    beyond_bound: bool,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct Finding {
    /// What was verified.
    kind: Subject,
    /// The file, from the root of the checkout.
    path: String,
    /// The line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    /// The column, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<u64>,
    /// What is wrong.
    message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    suggestion: Option<String>,
}

impl Finding {
    /// Returns the place as editors and people write it.
    fn place(&self) -> String {
        let tail = [self.line, self.column].into_iter().flatten();
        tail.fold(self.path.clone(), |place, number| format!("{place}:{number}"))
    }
}

/// Declares it.
pub(super) fn handler() -> Handler {
    Handler::new("objects.verify", "Verify the files of the checkout", verify)
        .description(DESCRIPTION)
        .effect(Effect::Read)
        .cancellable()
        .idempotent()
}

fn verify(ctx: &Ctx, input: Input) -> Result<Report, Fault> {
    let progress = &ctx.progress;
    progress.step("find", "Find the files");
    let root = Root::open(ctx.root()).map_err(|error| {
        Fault::new(Code::ExecutionFailed, format!("the checkout cannot be opened: {error}"))
    })?;
    let walked = walk::walk(ctx, ctx.root(), FILES_MAX)?;
    let total = walked.files.len() as u64;
    progress.step_done("find", true, Some(&format!("{total} files")));
    let limit = input.limit.and_then(|limit| usize::try_from(limit).ok());
    let mut verifier = Verifier {
        ctx,
        root,
        only: input.kind,
        limit: limit.unwrap_or(FINDINGS_MAX).min(FINDINGS_MAX),
        report: Report { files: total, ..Report::default() },
    };
    verifier.report.unseen.unreadable = walked.unreadable;
    verifier.report.unseen.beyond_bound = walked.truncated;
    progress.step("verify", "Verify them");
    verifier.manifest();
    for (number, found) in (1..).zip(&walked.files) {
        ctx.checkpoint()?;
        verifier.file(found);
        progress.progress(number, Some(total), &shown(&found.path));
    }
    let report = verifier.finish();
    let detail = format!("{} findings", report.found);
    progress.step_done("verify", report.ok, Some(&detail));
    Ok(report)
}

/// The work under way.
struct Verifier<'a> {
    ctx: &'a Ctx,
    root: Root,
    only: Option<Subject>,
    limit: usize,
    report: Report,
}

impl Verifier<'_> {
    fn wants(&self, subject: Subject) -> bool {
        self.only.is_none_or(|only| only == subject)
    }

    fn count(&mut self, subject: Subject) {
        *self.report.verified.entry(subject.as_str()).or_default() += 1;
    }

    fn finish(mut self) -> Report {
        if self.report.unseen.beyond_bound {
            let summary = format!("only the first {FILES_MAX} files were looked at");
            let progress = &self.ctx.progress;
            progress.diagnostic(Severity::Warning, "beyond_bound", &summary, None, None);
        }
        let listed = self.report.findings.len() as u64;
        if self.report.found > listed {
            let more = self.report.found - listed;
            let summary = format!("{more} further findings are counted and not listed");
            self.ctx.progress.diagnostic(Severity::Warning, "not_listed", &summary, None, None);
        }
        self.report.ok = self.report.found == 0;
        self.report
    }

    /// Notes findings of one file.
    fn note(&mut self, subject: Subject, path: &Path, wrongs: Vec<Wrong>) {
        for (number, wrong) in wrongs.into_iter().enumerate() {
            self.report.found += 1;
            if self.report.findings.len() == self.limit || number >= FINDINGS_OF_FILE {
                continue;
            }
            let has_place = wrong.line > 0;
            let finding = Finding {
                kind: subject,
                path: shown(path),
                line: has_place.then_some(wrong.line),
                column: has_place.then_some(wrong.column),
                message: sanitise::text(&wrong.message, TEXT_CHARS),
                suggestion: wrong.suggestion.map(str::to_owned),
            };
            let severity = match subject {
                Subject::Markdown | Subject::Symlink => Severity::Warning,
                Subject::Toml
                | Subject::Json
                | Subject::Yaml
                | Subject::Conflict
                | Subject::Manifest => Severity::Error,
            };
            let summary = format!("{}: {}", finding.place(), finding.message);
            let suggestion = finding.suggestion.as_deref();
            let progress = &self.ctx.progress;
            progress.diagnostic(severity, subject.as_str(), &summary, None, suggestion);
            self.report.findings.push(finding);
        }
    }

    /// Verifies one file or link as what its name says.
    fn file(&mut self, found: &Found) {
        let path = &found.path;
        if found.is_link {
            return self.link(path);
        }
        let subject = subject_of(path).filter(|subject| self.wants(*subject));
        if subject.is_none() && !self.wants(Subject::Conflict) {
            return;
        }
        let bytes = match self.root.read(path, FILE_BYTES) {
            Ok(bytes) => bytes,
            Err(Unread::TooLarge) => {
                self.report.unseen.too_large += 1;
                return;
            }
            Err(Unread::NoFile | Unread::Refused) => {
                self.report.unseen.unreadable += 1;
                return;
            }
        };
        let is_text = memchr::memchr(0, &bytes[..bytes.len().min(TEXT_SAMPLE)]).is_none();
        if self.wants(Subject::Conflict) && is_text {
            self.count(Subject::Conflict);
            let wrongs = text::conflicts(&bytes).into_iter().map(half_done).collect();
            self.note(Subject::Conflict, path, wrongs);
        }
        if let Some(subject) = subject {
            self.content(subject, path, &bytes);
        }
    }

    fn content(&mut self, subject: Subject, path: &Path, bytes: &[u8]) {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
                let (line, column) = syntax::place(&valid, valid.len());
                let message = "it is no UTF-8".to_owned();
                self.count(subject);
                let wrong = Wrong { line, column, message, suggestion: None };
                return self.note(subject, path, vec![wrong]);
            }
        };
        let wrong = match subject {
            Subject::Toml => syntax::toml(text),
            Subject::Json => syntax::json(text, takes_comments(path)),
            Subject::Yaml if is_template(path, text) => {
                self.report.unseen.templates += 1;
                return;
            }
            Subject::Yaml => syntax::yaml(text),
            Subject::Markdown => {
                self.count(subject);
                return self.document(path, text);
            }
            Subject::Conflict | Subject::Symlink | Subject::Manifest => None,
        };
        self.count(subject);
        self.note(subject, path, wrong.into_iter().collect());
    }

    /// Verifies the links of a document.
    fn document(&mut self, path: &Path, text: &str) {
        let mut wrongs = Vec::new();
        let mut known: BTreeMap<PathBuf, Seen> = BTreeMap::new();
        for link in text::links(text, path) {
            if self.ctx.progress.cancelled() {
                return;
            }
            let look = || self.leads_to(&link.path);
            let seen = *known.entry(link.path.clone()).or_insert_with(look);
            match seen {
                // Of those that are only counted the place is not looked up.
                Seen::Missing | Seen::Circle if wrongs.len() >= FINDINGS_OF_FILE => {
                    wrongs.push(Wrong::somewhere(String::new()));
                }
                Seen::Missing | Seen::Circle => {
                    let (line, column) = syntax::place(text, link.offset);
                    let message = format!("the link to {:?} leads nowhere", link.target);
                    wrongs.push(Wrong { line, column, ..Wrong::somewhere(message) });
                }
                Seen::Outside => self.report.unseen.outside += 1,
                Seen::There | Seen::Unknown => {}
            }
        }
        self.note(Subject::Markdown, path, wrongs);
    }

    /// Follows a link of a document; a name without an ending is a page to some generators.
    fn leads_to(&self, path: &Path) -> Seen {
        let seen = self.root.look(path);
        if seen != Seen::Missing || path.extension().is_some() {
            return seen;
        }
        let page = PathBuf::from(format!("{}.md", path.display()));
        if self.root.look(&page) == Seen::There { Seen::There } else { seen }
    }

    /// Verifies a symbolic link.
    fn link(&mut self, path: &Path) {
        if !self.wants(Subject::Symlink) {
            return;
        }
        let Ok(target) = std::fs::read_link(self.ctx.root().join(path)) else {
            self.report.unseen.unreadable += 1;
            return;
        };
        let mut seen = self.root.look(path);
        if seen == Seen::Outside
            && let Some(inside) = self.root.relative(&target)
        {
            seen = self.root.look(inside);
        }
        let why = match seen {
            Seen::There => None,
            Seen::Missing => Some("leads nowhere"),
            Seen::Circle => Some("leads in a circle"),
            Seen::Outside => {
                self.report.unseen.outside += 1;
                return;
            }
            Seen::Unknown => {
                self.report.unseen.unreadable += 1;
                return;
            }
        };
        self.count(Subject::Symlink);
        // Where something lies on this machine is nobody's business.
        let to = if target.is_absolute() { "an absolute path".to_owned() } else { quoted(&target) };
        let wrong = why.map(|why| Wrong::somewhere(format!("the symbolic link to {to} {why}")));
        self.note(Subject::Symlink, path, wrong.into_iter().collect());
    }

    /// Verifies the manifest, where there is one.
    fn manifest(&mut self) {
        if !self.wants(Subject::Manifest) {
            return;
        }
        let path = Path::new(manifest::FILE);
        let Ok(bytes) = self.root.read(path, FILE_BYTES) else { return };
        self.count(Subject::Manifest);
        let taken = &self.ctx.site().handlers;
        let errors = match std::str::from_utf8(&bytes) {
            Ok(text) => manifest::parse_beside(text, manifest::FILE, taken).err(),
            // It is told as TOML that is no UTF-8.
            Err(_) => None,
        };
        let wrongs = errors.into_iter().flatten().map(|error| Wrong {
            line: error.line as u64,
            column: error.column as u64,
            message: match error.suggestion {
                Some(meant) => format!("{}; did you mean {meant:?}?", error.message),
                None => error.message,
            },
            suggestion: None,
        });
        self.note(Subject::Manifest, path, wrongs.collect());
    }
}

fn half_done(line: u64) -> Wrong {
    Wrong {
        line,
        column: 1,
        message: "a merge was left half done here".to_owned(),
        suggestion: Some("keep one of the two sides and take the markers out"),
    }
}

/// Returns what a file says it is, by its name.
fn subject_of(path: &Path) -> Option<Subject> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    match &*extension {
        "toml" => Some(Subject::Toml),
        "json" | "jsonc" | "code-workspace" => Some(Subject::Json),
        "yaml" | "yml" => Some(Subject::Yaml),
        "md" | "markdown" => Some(Subject::Markdown),
        _ => None,
    }
}

/// Returns whether the tools that read this file allow comments in its JSON.
fn takes_comments(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let known = ["tsconfig", "jsconfig", "devcontainer", "api-extractor", ".eslintrc"];
    let of_editor = [".vscode", ".devcontainer", ".zed"];
    !is_json
        || known.iter().any(|beginning| name.starts_with(beginning))
        || path.iter().any(|part| of_editor.iter().any(|dir| part == *dir))
}

/// Returns whether YAML is the outcome of a template that stands in its place.
fn is_template(path: &Path, text: &str) -> bool {
    path.iter().any(|part| part == "templates") && text.contains("{{")
}

fn shown(path: &Path) -> String {
    sanitise::text(&path.to_string_lossy(), TEXT_CHARS)
}

fn quoted(path: &Path) -> String {
    format!("{:?}", shown(path))
}

#[cfg(test)]
mod tests;
