//! What a manifest may declare and this version does not act on yet.
//!
//! It is held to its form, so that a manifest which uses it stays right when it is acted on, and
//! noted, so that nobody believes that it is.

use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::read::{Node, Reader};
use crate::id::CapabilityId;
use crate::strict::shown;

const EXPECT: [&str; 10] = [
    "description",
    "exit",
    "file",
    "matches",
    "output",
    "http",
    "pointer",
    "equals",
    "command",
    "within",
];
const REQUIRES: [&str; 5] = ["program", "file", "clean_tree", "port", "succeeded"];
const DECISIONS: [(&str, ()); 3] = [("allow", ()), ("ask", ()), ("deny", ())];
const WITHIN: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(24 * 3600));

/// Looks at the later keys of one capability.
pub(super) fn of_capability<'t>(reader: &mut Reader<'t>, id: &CapabilityId, table: &DeTable<'t>) {
    for (key, node) in table {
        match key.get_ref().as_ref() {
            "secrets" => drop(reader.texts(node, "`secrets`")),
            "evidence" => drop(reader.texts(node, "`evidence`")),
            "requires" => requires(reader, node),
            "expect" => expect(reader, node),
            _ => continue,
        }
        reader.later(key.span(), format!("capability.{id}.{}", key.get_ref()));
    }
}

fn requires<'t>(reader: &mut Reader<'t>, node: &Node<'t>) {
    for item in reader.array(node, "`requires`").into_iter().flatten() {
        let Some(table) = reader.table(item, "each of `requires`") else { continue };
        reader.known(table, &REQUIRES, "`requires`");
        if table.len() != 1 {
            let message =
                "each of `requires` has one of program, file, clean_tree, port, succeeded";
            reader.error(item.span(), message);
        }
        for (key, value) in table {
            let what = format!("`{}`", shown(key.get_ref()));
            match key.get_ref().as_ref() {
                "program" | "file" | "succeeded" => drop(reader.raw(value, &what)),
                "clean_tree" => drop(reader.boolean(value, &what)),
                "port" => drop(reader.integer(value, &what)),
                _ => {}
            }
        }
    }
}

fn expect<'t>(reader: &mut Reader<'t>, node: &Node<'t>) {
    let Some(table) = reader.table(node, "`expect`") else { return };
    reader.known(table, &EXPECT, "`expect`");
    for (key, value) in table {
        let what = format!("`{}`", shown(key.get_ref()));
        match key.get_ref().as_ref() {
            "description" | "file" | "matches" | "output" | "http" | "pointer" => {
                drop(reader.raw(value, &what));
            }
            "exit" => drop(reader.integer(value, &what)),
            "command" => drop(reader.texts(value, &what)),
            "within" => drop(reader.duration(value, &what, WITHIN)),
            "equals" => drop(reader.json(value, &what, 1)),
            _ => {}
        }
    }
}

/// Looks at `[flow]`.
pub(super) fn flows<'t>(reader: &mut Reader<'t>, node: &Node<'t>) {
    let Some(table) = reader.table(node, "`flow`") else { return };
    for (key, node) in table {
        let id = key.get_ref();
        if id.parse::<CapabilityId>().is_err() {
            reader.error(key.span(), &format!("\"{}\" is no id of a flow", shown(id)));
            continue;
        }
        let place = format!("flow \"{id}\"");
        let Some(flow) = reader.table(node, &place) else { continue };
        reader.known(flow, &["title", "description", "input", "steps"], &place);
        for (key, max) in [("title", 120), ("description", 4_000)] {
            if let Some(node) = flow.get(key) {
                reader.text(node, &format!("`{key}`"), max);
            }
        }
        if let Some(node) = flow.get("input") {
            reader.table(node, "`input`");
            reader.json(node, "`input`", 1);
        }
        match flow.get("steps") {
            Some(node) => steps(reader, node),
            None => reader.error(key.span(), &format!("{place} has no `steps`")),
        }
        reader.later(key.span(), format!("flow.{id}"));
    }
}

fn steps<'t>(reader: &mut Reader<'t>, node: &Node<'t>) {
    for item in reader.array(node, "`steps`").into_iter().flatten() {
        let Some(step) = reader.table(item, "each of `steps`") else { continue };
        reader.known(step, &["run", "with", "expect", "handoff"], "a step");
        if step.contains_key("run") == step.contains_key("handoff") {
            reader.error(item.span(), "a step has either `run` or `handoff`");
        }
        if let Some(node) = step.get("run") {
            reader.raw(node, "`run`");
        }
        if let Some(node) = step.get("with") {
            reader.table(node, "`with`");
            reader.json(node, "`with`", 1);
        }
        if let Some(node) = step.get("expect") {
            expect(reader, node);
        }
        let handoff = step.get("handoff").and_then(|node| reader.table(node, "`handoff`"));
        if let Some(handoff) = handoff {
            reader.known(handoff, &["instructions", "timeout"], "`handoff`");
            if let Some(node) = handoff.get("instructions") {
                reader.text(node, "`instructions`", 4_000);
            }
            if let Some(node) = handoff.get("timeout") {
                reader.duration(node, "`timeout`", WITHIN);
            }
        }
    }
}

/// Looks at `[policy]`.
pub(super) fn policy<'t>(reader: &mut Reader<'t>, node: &Node<'t>) {
    const KEYS: [&str; 6] =
        ["read", "write", "dangerous", "confirm_timeout", "handoff_timeout", "rules"];
    let Some(table) = reader.table(node, "`policy`") else { return };
    reader.known(table, &KEYS, "`policy`");
    for (key, value) in table {
        let what = format!("`{}`", shown(key.get_ref()));
        match key.get_ref().as_ref() {
            "read" | "write" | "dangerous" => drop(reader.word(value, &what, &DECISIONS)),
            "confirm_timeout" | "handoff_timeout" => drop(reader.duration(value, &what, WITHIN)),
            "rules" => rules(reader, value),
            _ => continue,
        }
        reader.later(key.span(), format!("policy.{}", key.get_ref()));
    }
}

fn rules<'t>(reader: &mut Reader<'t>, node: &Node<'t>) {
    for item in reader.array(node, "`rules`").into_iter().flatten() {
        let Some(rule) = reader.table(item, "each of `rules`") else { continue };
        reader.known(rule, &["effect", "id", "actor", "decide"], "a rule");
        if !rule.contains_key("decide") {
            reader.error(item.span(), "a rule has no `decide`");
        }
        for (key, value) in rule {
            let what = format!("`{}`", shown(key.get_ref()));
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("decide", _) => drop(reader.word(value, &what, &DECISIONS)),
                ("effect", DeValue::String(_)) => {
                    let words = [("read", ()), ("write", ()), ("dangerous", ())];
                    reader.word(value, &what, &words);
                }
                ("id" | "actor" | "effect", _) => drop(reader.raw(value, &what)),
                _ => {}
            }
        }
    }
}
