//! The first manifest of a checkout: what its files suggest, written so that a person can edit it.
//!
//! Looks only at files that its caller reads for it, proposes only commands that those files
//! name, and runs none. What it writes is a manifest that [`crate::manifest::parse`] takes.

mod ecosystem;

use std::collections::BTreeSet;

use crate::capability::Effect;
use crate::id::CapabilityId;
use crate::manifest::{RESERVED, RESERVED_PREFIXES};
use crate::strict::clipped;

/// Capabilities proposed from one list of free names (scripts, targets, recipes), at most.
pub const NAMES_MAX: usize = 20;

/// One way to build and test that was found in a checkout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detected {
    /// What it is called, such as `Cargo`.
    pub name: &'static str,
    /// The file that it was found by.
    pub file: &'static str,
    /// What can be run.
    pub proposals: Vec<Proposal>,
}

/// One capability that is proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Its id, as far as no other has it.
    pub id: String,
    /// A few words for people.
    pub title: String,
    /// The argv template.
    pub command: Vec<String>,
    /// The class of what it may change.
    pub effect: Effect,
    /// How long it may run.
    pub timeout: &'static str,
    /// The lock that it holds.
    pub lock: Option<&'static str>,
    /// Variables that it needs from its caller.
    pub allow: &'static [&'static str],
    /// What the member `filter` of its input means, where it has one.
    pub filter: Option<&'static str>,
}

impl Proposal {
    fn new(id: &str, title: impl Into<String>, command: &[&str], effect: Effect) -> Self {
        Self {
            id: id.to_owned(),
            title: title.into(),
            command: command.iter().map(|text| (*text).to_owned()).collect(),
            effect,
            timeout: "10m",
            lock: None,
            allow: &[],
            filter: None,
        }
    }

    fn timeout(mut self, timeout: &'static str) -> Self {
        self.timeout = timeout;
        self
    }

    fn lock(mut self, lock: &'static str) -> Self {
        self.lock = Some(lock);
        self
    }

    fn allow(mut self, names: &'static [&'static str]) -> Self {
        self.allow = names;
        self
    }

    /// Adds the argument `{filter?}` and the input that it needs.
    fn filter(mut self, argument: &str, meaning: &'static str) -> Self {
        self.command.push(argument.to_owned());
        self.filter = Some(meaning);
        self
    }
}

/// Finds what the files of a checkout suggest.
///
/// `files` answers a path below the root with the file's text, or with nothing.
pub fn detect(files: &dyn Fn(&str) -> Option<String>) -> Vec<Detected> {
    let found = [
        ecosystem::cargo(files),
        ecosystem::node(files),
        ecosystem::python(files),
        ecosystem::go(files),
        ecosystem::just(files),
        ecosystem::make(files),
    ];
    found.into_iter().flatten().filter(|detected| !detected.proposals.is_empty()).collect()
}

/// Writes a manifest with what was found, or with one example where nothing was.
///
/// The first to want an id gets it; a later one gets the ecosystem's name before its own.
pub fn render(detected: &[Detected]) -> String {
    let mut out = String::from(HEAD);
    let mut taken = BTreeSet::new();
    for one in detected {
        out.push_str(&format!("\n# {}, found by {}.\n", one.name, one.file));
        for proposal in &one.proposals {
            if let Some(id) = free_id(&proposal.id, one.name, &taken) {
                capability(&mut out, &id, proposal);
                taken.insert(id);
            }
        }
    }
    if taken.is_empty() {
        out.push_str(EXAMPLE);
    }
    out
}

const HEAD: &str = "\
# What can be run in this checkout, for people, scripts and agents alike.
#
# Each [capability.<id>] is one command; a dotted id is quoted: [capability.\"tests.unit\"].
# `command` is a list of arguments, and no shell reads it. {name} stands for a member of
# `input`, {name?} leaves its argument out when the member is absent.
#
#   effect    \"read\", \"write\" or \"dangerous\": the worst that it may do
#   overlap   \"parallel\", \"serial\" or { lock = \"name\" }: what must not run beside it
#   timeout   such as \"90s\", \"20m\" or \"1h30m\"
";

const EXAMPLE: &str = "
# Nothing was recognised here, so this is only an example. Try: reeve run hello

[capability.hello]
title = \"Say hello\"
command = [\"echo\", \"Hello,\", \"{name}\"]
effect = \"read\"
timeout = \"10s\"
[capability.hello.input]
properties.name = { type = \"string\", default = \"world\", description = \"Who is greeted\" }
";

fn capability(out: &mut String, id: &str, proposal: &Proposal) {
    let key = if id.contains('.') { quoted(id) } else { id.to_owned() };
    let command: Vec<_> = proposal.command.iter().map(|text| quoted(text)).collect();
    out.push_str(&format!("\n[capability.{key}]\n"));
    out.push_str(&format!("title = {}\n", quoted(&clipped(&proposal.title, 100))));
    out.push_str(&format!("command = [{}]\n", command.join(", ")));
    out.push_str(&format!("effect = \"{}\"\n", proposal.effect));
    if let Some(lock) = proposal.lock {
        out.push_str(&format!("overlap = {{ lock = \"{lock}\" }}\n"));
    }
    out.push_str(&format!("timeout = \"{}\"\n", proposal.timeout));
    if !proposal.allow.is_empty() {
        let names: Vec<_> = proposal.allow.iter().map(|name| quoted(name)).collect();
        out.push_str(&format!("env = {{ allow = [{}] }}\n", names.join(", ")));
    }
    if let Some(meaning) = proposal.filter {
        let meaning = quoted(meaning);
        out.push_str(&format!("[capability.{key}.input]\n"));
        out.push_str(&format!(
            "properties.filter = {{ type = \"string\", description = {meaning} }}\n"
        ));
    }
}

/// Returns an id that nothing has, made from a free name; nothing when there is none.
fn free_id(name: &str, ecosystem: &str, taken: &BTreeSet<String>) -> Option<String> {
    let name = shaped(name);
    let prefixed = format!("{}.{name}", shaped(ecosystem));
    [name, prefixed].into_iter().find(|id| usable(id) && !taken.contains(id))
}

fn usable(id: &str) -> bool {
    let reserved =
        RESERVED.contains(&id) || RESERVED_PREFIXES.iter().any(|prefix| id.starts_with(prefix));
    !reserved && id.parse::<CapabilityId>().is_ok()
}

/// Makes the shape of an id out of a free name: `test:unit` becomes `test.unit`.
fn shaped(name: &str) -> String {
    let mut id = String::new();
    for character in name.chars() {
        match character.to_ascii_lowercase() {
            plain @ ('a'..='z' | '0'..='9' | '_' | '-') => id.push(plain),
            '.' | ':' | '/' if !id.is_empty() && !id.ends_with('.') => id.push('.'),
            _ => id.push('_'),
        }
    }
    id.trim_start_matches(['_', '-', '.']).trim_end_matches('.').to_owned()
}

/// Writes a text as a basic string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            other if other.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(other))),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests;
