//! Capabilities of a manifest: each one a process.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use serde_json::{Value, json};
use toml::de::{DeTable, DeValue};

use super::read::{Node, Reader};
use super::{CAPABILITIES_MAX, Manifest, later};
use crate::capability::{
    CapabilityKind, Confirm, Descriptor, Effect, OnWorkerLoss, Overlap, Process, Stdin,
};
use crate::id::CapabilityId;
use crate::input::{self, Ready, Template, Validator};
use crate::strict::shown;

/// Ids that a manifest cannot declare, because they are built in.
pub const RESERVED: [&str; 5] =
    ["agent.run", "capabilities.list", "health.report", "objects.verify", "process.exec"];
/// Beginnings of ids that a manifest cannot declare.
pub const RESERVED_PREFIXES: [&str; 4] = ["executions.", "ext.", "page.", "reeve."];

/// Every key of a capability.
pub(super) const KEYS: [&str; 21] = [
    "title",
    "description",
    "command",
    "effect",
    "confirm",
    "overlap",
    "cancellable",
    "idempotent",
    "timeout",
    "cancel_grace",
    "cwd",
    "env",
    "stdin",
    "pty",
    "on_worker_loss",
    "input",
    "output",
    "secrets",
    "requires",
    "expect",
    "evidence",
];

/// How long a capability may be given to run.
pub(super) const TIMEOUT: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(7 * 24 * 3600));
/// How long after SIGTERM a capability's processes may be given.
pub(super) const GRACE: (Duration, Duration) = (Duration::ZERO, Duration::from_secs(600));

const TITLE_MAX: usize = 120;
const DESCRIPTION_MAX: usize = 4_000;
const ENV_MAX: usize = 256;

/// Reads all of `[capability]`.
pub(super) fn read_all<'t>(reader: &mut Reader<'t>, node: &Node<'t>, manifest: &mut Manifest) {
    let Some(table) = reader.table(node, "`capability`") else { return };
    if table.len() > CAPABILITIES_MAX {
        let count = table.len();
        let message = format!("{count} capabilities; a manifest has at most {CAPABILITIES_MAX}");
        return reader.error(node.span(), &message);
    }
    let grace = manifest.limits.cancel_grace;
    for (key, node) in table {
        let Some(id) = read_id(reader, key.get_ref(), key.span()) else { continue };
        let Some(table) = reader.table(node, &format!("capability \"{id}\"")) else { continue };
        let mut one = One { reader, id: id.clone(), key: key.span(), table };
        if let Some((descriptor, ready)) = one.read(grace) {
            manifest.capabilities.insert(id.clone(), descriptor);
            manifest.ready.insert(id, ready);
        }
    }
}

/// Returns whether an id is kept for what reeve itself makes, and for what it builds in.
pub fn is_reserved(id: &CapabilityId) -> bool {
    let text = id.as_str();
    RESERVED.contains(&text) || RESERVED_PREFIXES.iter().any(|prefix| text.starts_with(prefix))
}

fn read_id(reader: &mut Reader<'_>, text: &str, span: Range<usize>) -> Option<CapabilityId> {
    let id = match text.parse::<CapabilityId>() {
        Ok(id) => id,
        Err(_) => {
            let text = shown(text);
            let message = format!(
                "\"{text}\" is no capability id: a lower-case letter, then at most 63 of a-z 0-9 _ . -"
            );
            reader.error(span, &message);
            return None;
        }
    };
    if reader.taken.contains(&id) {
        let message = format!(
            "the id \"{id}\" belongs to a capability that this program has itself; choose another"
        );
        reader.error(span, &message);
        return None;
    }
    if is_reserved(&id) {
        reader.error(span, &format!("the id \"{id}\" is reserved; choose another"));
        return None;
    }
    Some(id)
}

/// One capability while it is read.
struct One<'r, 'n, 't> {
    reader: &'r mut Reader<'t>,
    id: CapabilityId,
    key: Range<usize>,
    table: &'n DeTable<'t>,
}

impl<'n, 't> One<'_, 'n, 't> {
    fn node(&self, key: &str) -> Option<&'n Node<'t>> {
        self.table.get(key)
    }

    fn boolean(&mut self, key: &str) -> Option<bool> {
        let node = self.node(key)?;
        self.reader.boolean(node, &format!("`{key}`"))
    }

    fn duration(&mut self, key: &str, bounds: (Duration, Duration)) -> Option<Duration> {
        let node = self.node(key)?;
        self.reader.duration(node, &format!("`{key}`"), bounds)
    }

    fn word<T: Clone>(&mut self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let node = self.node(key)?;
        self.reader.word(node, &format!("`{key}`"), words)
    }

    fn text(&mut self, key: &str, max: usize) -> Option<String> {
        let node = self.node(key)?;
        self.reader.text(node, &format!("`{key}`"), max)
    }

    fn read(&mut self, grace: Duration) -> Option<(Descriptor, Ready)> {
        self.keys();
        later::of_capability(self.reader, &self.id, self.table);
        let title = self.text("title", TITLE_MAX).unwrap_or_else(|| self.id.to_string());
        let description = self.text("description", DESCRIPTION_MAX).unwrap_or_default();
        let effect = self.effect();
        let confirm = [("policy", Confirm::Policy), ("always", Confirm::Always)];
        let confirm = self.word("confirm", &confirm).unwrap_or_default();
        let overlap = self.overlap();
        let cancellable = self.boolean("cancellable").unwrap_or(true);
        let idempotent = self.boolean("idempotent").unwrap_or(false);
        let timeout = self.duration("timeout", TIMEOUT);
        let output = self.output();
        let validator = self.input();
        let process = self.process(grace);
        let template = self.template(validator.as_ref());
        let (validator, process) = (validator?, process?);
        let descriptor = Descriptor {
            id: self.id.clone(),
            title,
            description,
            kind: CapabilityKind::Process,
            input: validator.schema().clone(),
            output,
            effect,
            confirm,
            overlap,
            cancellable,
            idempotent,
            timeout_ms: timeout.map(millis),
            process: Some(process),
            provenance: self.reader.file.clone(),
        };
        Some((descriptor, Ready { validator, template: Some(template?) }))
    }

    /// Notes unknown keys; a table among them that looks like a capability is one whose id
    /// should have been quoted.
    fn keys(&mut self) {
        let id = self.id.clone();
        for (key, node) in self.table {
            let name = key.get_ref().as_ref();
            let looks_nested = matches!(
                node.get_ref(), DeValue::Table(inner) if inner.contains_key("command")
            );
            if !KEYS.contains(&name) && looks_nested {
                let name = shown(name);
                let message = format!(
                    "unknown key \"{name}\" in capability \"{id}\"; an id with a dot is quoted: [capability.\"{id}.{name}\"]"
                );
                self.reader.error(key.span(), &message);
                return;
            }
        }
        self.reader.known(self.table, &KEYS, &format!("capability \"{id}\""));
    }

    fn effect(&mut self) -> Effect {
        let words =
            [("read", Effect::Read), ("write", Effect::Write), ("dangerous", Effect::Dangerous)];
        self.word("effect", &words).unwrap_or_default()
    }

    fn overlap(&mut self) -> Overlap {
        let Some(node) = self.node("overlap") else { return Overlap::default() };
        if let DeValue::Table(table) = node.get_ref() {
            self.reader.known(table, &["lock"], "`overlap`");
            let Some(lock) = table.get("lock") else {
                self.reader
                    .error(node.span(), "`overlap` as a table names a lock: { lock = \"…\" }");
                return Overlap::default();
            };
            let Some(name) = self.reader.raw(lock, "`lock`") else { return Overlap::default() };
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
            if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
                self.reader.error(lock.span(), "a lock's name is 1 to 64 of A-Z a-z 0-9 _ . -");
            }
            return Overlap::Lock(name);
        }
        let words = [("parallel", Overlap::Parallel), ("serial", Overlap::Serial)];
        self.word("overlap", &words).unwrap_or_default()
    }

    fn output(&mut self) -> Option<Value> {
        let node = self.node("output")?;
        let schema = self.reader.json(node, "`output`", 1)?;
        if let Err(error) = input::check_schema(&schema) {
            let message = format!("the output's schema: {error}");
            self.reader.error(node.span(), &message);
            return None;
        }
        Some(schema)
    }

    /// Compiles the input's schema; nothing when it is wrong, which then is among the errors.
    fn input(&mut self) -> Option<Validator> {
        let (schema, span) = match self.node("input") {
            Some(node) => {
                self.reader.table(node, "`input`")?;
                (self.reader.json(node, "`input`", 1)?, node.span())
            }
            None => (json!({}), self.key.clone()),
        };
        match input::closed(schema).and_then(|schema| Validator::new(&schema)) {
            Ok(validator) => Some(validator),
            Err(error) => {
                self.reader.error(span, &format!("the input's schema: {error}"));
                None
            }
        }
    }

    fn process(&mut self, grace: Duration) -> Option<Process> {
        let command = self.command();
        let cwd = self.cwd();
        let (env_set, env_allow) = self.env();
        let words = [("none", Stdin::None), ("input", Stdin::Input)];
        let stdin = self.word("stdin", &words).unwrap_or_default();
        let pty = self.boolean("pty").unwrap_or(false);
        if pty && stdin == Stdin::Input {
            let span = self.node("stdin").map_or(self.key.clone(), |node| node.span());
            let message = "a terminal would show its input: `stdin = \"input\"` and `pty = true` exclude each other";
            self.reader.error(span, message);
        }
        let cancel_grace = self.duration("cancel_grace", GRACE).unwrap_or(grace);
        let words = [("end", OnWorkerLoss::End), ("leave", OnWorkerLoss::Leave)];
        let on_worker_loss = self.word("on_worker_loss", &words).unwrap_or_default();
        Some(Process {
            command: command?,
            cwd: cwd?,
            env_set,
            env_allow,
            stdin,
            pty,
            cancel_grace_ms: millis(cancel_grace),
            on_worker_loss,
        })
    }

    fn command(&mut self) -> Option<Vec<String>> {
        let Some(node) = self.node("command") else {
            let message = format!("capability \"{}\" has no `command`", self.id);
            self.reader.error(self.key.clone(), &message);
            return None;
        };
        if let DeValue::String(_) = node.get_ref() {
            let message = "`command` is an array of arguments, such as [\"cargo\", \"test\"]; no shell reads it";
            self.reader.error(node.span(), message);
            return None;
        }
        self.reader.texts(node, "`command`")
    }

    /// Checks the command against the input. Without a schema only the command's own form is.
    fn template(&mut self, validator: Option<&Validator>) -> Option<Template> {
        let node = self.node("command")?;
        let DeValue::Array(items) = node.get_ref() else { return None };
        let texts = items.iter().map(|item| item.get_ref().as_str().map(str::to_owned));
        let command: Vec<String> = texts.collect::<Option<_>>()?;
        let errors = match Template::new(&command, validator?.schema()) {
            Ok(template) => return Some(template),
            Err(errors) => errors,
        };
        for error in errors {
            let item = error.argument.and_then(|at| items.get(at));
            let span = item.map_or(node.span(), |item| item.span());
            self.reader.suggest(span, &error.message, error.suggestion.as_deref());
        }
        None
    }

    fn cwd(&mut self) -> Option<String> {
        let Some(node) = self.node("cwd") else { return Some(".".to_owned()) };
        let text = self.reader.text(node, "`cwd`", 1_024)?;
        let absolute = text.starts_with('/') || text.starts_with('~');
        let elsewhere = text.split('/').any(|part| part == "..") || text.contains('\\');
        if absolute || elsewhere || text.is_empty() {
            let message = "`cwd` is a path below the checkout's root, with `/`, without `..`";
            self.reader.error(node.span(), message);
            return None;
        }
        let parts = text.split('/').filter(|part| !part.is_empty() && *part != ".");
        let path = parts.collect::<Vec<_>>().join("/");
        Some(if path.is_empty() { ".".to_owned() } else { path })
    }

    fn env(&mut self) -> (BTreeMap<String, String>, Vec<String>) {
        let mut set = BTreeMap::new();
        let mut allow = Vec::new();
        let Some(node) = self.node("env") else { return (set, allow) };
        let Some(table) = self.reader.table(node, "`env`") else { return (set, allow) };
        self.reader.known(table, &["set", "allow"], "`env`");
        let entries = table.get("set").and_then(|node| self.reader.table(node, "`env.set`"));
        for (key, node) in entries.into_iter().flatten() {
            self.variable(key.get_ref(), key.span());
            if let Some(value) = self.value(key.get_ref(), node) {
                set.insert(key.get_ref().to_string(), value);
            }
        }
        let names = table.get("allow").and_then(|node| self.reader.array(node, "`env.allow`"));
        for node in names.into_iter().flatten() {
            let Some(name) = self.reader.raw(node, "each of `env.allow`") else { continue };
            self.variable(&name, node.span());
            allow.push(name);
        }
        if set.len() + allow.len() > ENV_MAX {
            self.reader.error(node.span(), &format!("more than {ENV_MAX} variables"));
        }
        (set, allow)
    }

    fn variable(&mut self, name: &str, span: Range<usize>) {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let first = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
        if !first || name.len() > 256 || !name.bytes().all(plain) {
            let message = format!("\"{}\" is no name of a variable", shown(name));
            self.reader.error(span, &message);
        } else if name.starts_with("REEVE_") {
            let message = "variables that begin with REEVE_ are set by the worker alone";
            self.reader.error(span, message);
        }
    }

    fn value(&mut self, name: &str, node: &Node<'t>) -> Option<String> {
        let value = self.reader.raw(node, &format!("the variable `{}`", shown(name)))?;
        if value.contains('\0') || value.len() > input::ARGUMENT_MAX {
            self.reader.error(node.span(), "a value has no NUL and fits 128 KiB");
            return None;
        }
        if looks_secret(&value) {
            let message = "this looks like a secret; let the caller's variable through with `env.allow` instead";
            self.reader.error(node.span(), message);
            return None;
        }
        Some(value)
    }
}

/// Returns whether a value begins like a key that a well-known service gives out.
fn looks_secret(value: &str) -> bool {
    const BEGINNINGS: [&str; 12] = [
        "-----BEGIN ",
        "AKIA",
        "ghp_",
        "gho_",
        "ghs_",
        "github_pat_",
        "glpat-",
        "npm_",
        "sk-",
        "sk_live_",
        "xoxb-",
        "xoxp-",
    ];
    value.len() >= 16 && BEGINNINGS.iter().any(|beginning| value.starts_with(beginning))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
