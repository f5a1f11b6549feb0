//! From text to a tree of TOML, within bounds.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::MANIFEST_MAX;
use super::diagnostic::Diagnostics;
use crate::frame::{DEPTH_MAX, NODES_MAX};

/// Bytes of a text of which every error of syntax is told, not only the first.
const RECOVER_MAX: usize = 64 << 10;
/// Errors of syntax for which the place of the first of two equal keys is looked up.
const LOOKUPS_MAX: usize = 10;

/// Parses a text; nothing when it cannot be, which then is among the errors.
pub(super) fn document<'t>(
    text: &'t str,
    diagnostics: &mut Diagnostics<'t>,
) -> Option<DeTable<'t>> {
    if text.len() > MANIFEST_MAX {
        let message = format!("{} bytes; a manifest has at most {MANIFEST_MAX}", text.len());
        diagnostics.push(0..0, &message, None);
        return None;
    }
    if let Some(at) = memchr::memchr(0, text.as_bytes()) {
        diagnostics.push(at..at + 1, "a NUL character", None);
        return None;
    }
    if let Err((at, message)) = scan(text.as_bytes()) {
        diagnostics.push(at..at + 1, &message, None);
        return None;
    }
    match DeTable::parse(text) {
        Ok(table) => return Some(table.into_inner()),
        Err(error) if text.len() > RECOVER_MAX => syntax(text, &error, true, diagnostics),
        Err(_) => {
            let (_, errors) = DeTable::parse_recoverable(text);
            for (count, error) in errors.iter().enumerate() {
                syntax(text, error, count < LOOKUPS_MAX, diagnostics);
            }
        }
    }
    None
}

/// Returns whether a text of TOML nests and counts no more than a manifest may.
pub(crate) fn is_bounded(text: &str) -> bool {
    text.len() <= MANIFEST_MAX && scan(text.as_bytes()).is_ok()
}

fn syntax(text: &str, error: &toml::de::Error, look: bool, diagnostics: &mut Diagnostics<'_>) {
    let span = error.span().unwrap_or(0..0);
    let first =
        if look && error.message() == "duplicate key" { first_of(text, &span) } else { None };
    let key = text.get(span.clone()).unwrap_or_default();
    let message = match (error.message(), first) {
        ("duplicate key", Some(at)) => {
            format!("`{key}` is declared twice, first in line {}", diagnostics.line(at))
        }
        ("duplicate key", None) => format!("`{key}` is declared twice"),
        ("recursion limit", _) => format!("too_deep: nested deeper than {DEPTH_MAX}"),
        (message, _) => message.to_owned(),
    };
    diagnostics.push(span, &message, None);
}

/// Returns where the key at `second` was declared before.
fn first_of(text: &str, second: &Range<usize>) -> Option<usize> {
    let line = text.get(..second.start)?.rfind('\n').map_or(0, |at| at + 1);
    let (before, _) = DeTable::parse_recoverable(text.get(..line)?);
    let key = text.get(second.clone())?;
    let end = text[line..].find('\n').map_or(text.len(), |length| line + length);
    let this = text.get(line..end)?.trim();
    if this.starts_with('[') {
        let header = DeTable::parse(this).ok()?;
        return place_of(before.get_ref(), header.get_ref());
    }
    let name = key.trim_matches(['"', '\'']);
    let mut last = None;
    latest(before.get_ref(), name, &mut last);
    last
}

/// Follows the only path of `header` through `table` and returns where its last key stands.
fn place_of(table: &DeTable<'_>, header: &DeTable<'_>) -> Option<usize> {
    let (key, below) = header.iter().next()?;
    let (found, value) = table.get_key_value(key)?;
    match (value.get_ref(), below.get_ref()) {
        (DeValue::Table(table), DeValue::Table(header)) if !header.is_empty() => {
            place_of(table, header)
        }
        _ => Some(found.span().start),
    }
}

fn latest(table: &DeTable<'_>, name: &str, last: &mut Option<usize>) {
    for (key, value) in table {
        if key.get_ref() == name {
            *last = (*last).max(Some(key.span().start));
        }
        if let DeValue::Table(table) = value.get_ref() {
            latest(table, name, last);
        }
    }
}

/// Bounds nesting and number of values, byte by byte, before anything recurses.
///
/// Counts too much rather than too little: a dot in a number counts as one in a key.
fn scan(bytes: &[u8]) -> Result<(), (usize, String)> {
    let mut dots = vec![0_usize];
    let mut nodes = 0_usize;
    let mut deep = 0_usize;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'#' => {
                at += memchr::memchr(b'\n', &bytes[at..]).unwrap_or(bytes.len() - at);
                continue;
            }
            quote @ (b'"' | b'\'') => {
                at = string_end(bytes, at, quote);
                continue;
            }
            b'[' | b'{' => {
                nodes += 1;
                dots.push(0);
            }
            b']' | b'}' if dots.len() > 1 => deep -= dots.pop().unwrap_or_default(),
            b'.' => {
                nodes += 1;
                deep += 1;
                if let Some(here) = dots.last_mut() {
                    *here += 1;
                }
            }
            b'=' => nodes += 1,
            byte @ (b',' | b'\n') => {
                nodes += usize::from(byte == b',');
                let ends = byte == b',' || dots.len() == 1;
                if let Some(here) = dots.last_mut().filter(|_| ends) {
                    deep -= std::mem::take(here);
                }
            }
            _ => {}
        }
        if dots.len() - 1 + deep > DEPTH_MAX {
            return Err((at, format!("too_deep: nested deeper than {DEPTH_MAX}")));
        }
        if nodes > NODES_MAX {
            return Err((at, format!("too_many_nodes: more than {NODES_MAX} values")));
        }
        at += 1;
    }
    Ok(())
}

/// Returns the position after the string that begins at `start`.
fn string_end(bytes: &[u8], start: usize, quote: u8) -> usize {
    let triple = [quote; 3];
    let long = bytes[start..].starts_with(&triple);
    let mut at = start + if long { 3 } else { 1 };
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if quote == b'"' => at += 1,
            b'\n' if !long => return at,
            byte if byte == quote && !long => return at + 1,
            byte if byte == quote && bytes[at..].starts_with(&triple) => {
                // Up to two quotes may stand right before the end.
                let run = bytes[at..].iter().take_while(|byte| **byte == quote).count();
                return at + run.min(5);
            }
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}
