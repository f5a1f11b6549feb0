//! Trust: which manifest a person has agreed to, and how another one differs from it.
//!
//! A manifest is code. What it declares runs for others (over HTTP, from a page, for an agent) only
//! if exactly this text was trusted, in exactly this checkout. Pure rules: reads and writes nothing.

use serde::{Deserialize, Serialize};

use crate::capability::Loaded;
use crate::fault::{Code, Fault, Stage};
use crate::place::Place;
use crate::sanitise;
use crate::time::Timestamp;

/// The version of the record.
pub const SCHEMA: &str = "reeve-trust/1";
/// Bytes of a record, at most: a manifest of full size, every byte of it escaped.
pub const BYTES_MAX: usize = 8 << 20;
/// Changed lines that a fault shows, at most.
pub const SHOWN_MAX: usize = 12;
/// Characters of a line that is shown.
const LINE_CHARS: usize = 160;
/// Changed lines on one side that are compared with each other; more are told as replaced.
const COMPARED_MAX: usize = 1_000;

/// What was trusted, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: String,
    /// The root of the checkout.
    pub root: String,
    /// Its git common directory, where it has one.
    pub git_dir: Option<String>,
    /// SHA-256 of the text, in hexadecimal digits.
    pub digest: String,
    /// The whole text of the manifest.
    pub text: String,
    /// When it was trusted.
    pub trusted_at: Timestamp,
}

/// How a manifest stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// This very text was trusted.
    Trusted,
    /// Nothing was ever trusted here.
    Untrusted,
    /// Another text was.
    Changed(Box<Record>),
}

impl Standing {
    /// Returns its word.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Trusted => "trusted",
            Self::Untrusted => "untrusted",
            Self::Changed(_) => "changed",
        }
    }
}

impl Record {
    /// Makes the record of a text that is trusted now.
    pub fn new(place: &Place, text: &str, now: Timestamp) -> Self {
        let (root, git_dir) = whereabouts(place);
        Self {
            schema: SCHEMA.to_owned(),
            root,
            git_dir,
            digest: crate::manifest::digest(text),
            text: text.to_owned(),
            trusted_at: now,
        }
    }

    /// Reads a record; `None` for everything that is none of this schema, of another checkout, or
    /// not of the text that it holds.
    pub fn parse(bytes: &[u8], place: &Place) -> Option<Self> {
        let record: Self = serde_json::from_slice(bytes).ok()?;
        let here = (record.root.clone(), record.git_dir.clone()) == whereabouts(place);
        let whole = record.digest == crate::manifest::digest(&record.text);
        (record.schema == SCHEMA && here && whole).then_some(record)
    }

    /// Returns the content of a record's file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("a record is JSON");
        bytes.push(b'\n');
        bytes
    }
}

fn whereabouts(place: &Place) -> (String, Option<String>) {
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    (text(&place.root), place.git_dir.as_deref().map(text))
}

/// Returns how a manifest of this digest stands.
pub fn standing(record: Option<Record>, digest: &str) -> Standing {
    match record {
        None => Standing::Untrusted,
        Some(record) if record.digest == digest => Standing::Trusted,
        Some(record) => Standing::Changed(Box::new(record)),
    }
}

/// Refuses to run for others what no person has trusted.
///
/// # Errors
///
/// `ACTION_UNAVAILABLE` with the reason `untrusted` or `changed`; nothing has run.
pub fn demand(standing: &Standing, loaded: &Loaded) -> Result<(), Fault> {
    let fault = |message: String, reason: &str| {
        Fault::new(Code::ActionUnavailable, message).at(Stage::Usable).because(reason)
    };
    match standing {
        Standing::Trusted => Ok(()),
        Standing::Untrusted => {
            let message = "nobody has trusted the manifest of this checkout, so it runs for nobody but its own user";
            Err(fault(message.to_owned(), "untrusted").hint("read it, then run `reeve trust`"))
        }
        Standing::Changed(record) => {
            let mut message = "the manifest has changed since it was trusted:".to_owned();
            for line in diff(&record.text, &loaded.text, SHOWN_MAX) {
                message.push('\n');
                message.push_str(&line);
            }
            Err(fault(message, "changed").hint("look at the change, then run `reeve trust`"))
        }
    }
}

/// Returns what differs between two texts, line by line, with how many lines are left out where
/// there are more than `max`. Every line is safe to show.
pub fn diff(old: &str, new: &str, max: usize) -> Vec<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[same..], &new[same..]);
    let same = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[..old.len() - same], &new[..new.len() - same]);
    let changes = if old.len().max(new.len()) > COMPARED_MAX {
        let taken = old.iter().map(|line| ('-', *line));
        taken.chain(new.iter().map(|line| ('+', *line))).collect()
    } else {
        changes(old, new)
    };
    let shown =
        |(sign, line): &(char, &str)| format!("{sign} {}", sanitise::text(line, LINE_CHARS));
    let mut lines: Vec<String> = changes.iter().take(max).map(shown).collect();
    match changes.len() {
        0 => lines.push("(only its line ends)".to_owned()),
        count if count > max => lines.push(format!("… and {} more lines", count - max)),
        _ => {}
    }
    lines
}

/// Returns the fewest lines to take out and to put in.
fn changes<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<(char, &'t str)> {
    let width = new.len() + 1;
    // How many lines are common from each pair of positions on.
    let mut common = vec![0_u16; (old.len() + 1) * width];
    for at in (0..old.len()).rev() {
        for to in (0..new.len()).rev() {
            common[at * width + to] = if old[at] == new[to] {
                common[(at + 1) * width + to + 1] + 1
            } else {
                common[(at + 1) * width + to].max(common[at * width + to + 1])
            };
        }
    }
    let (mut at, mut to, mut changes) = (0, 0, Vec::new());
    while at < old.len() || to < new.len() {
        let both = at < old.len() && to < new.len();
        if both && old[at] == new[to] {
            (at, to) = (at + 1, to + 1);
        } else if to == new.len()
            || (both && common[(at + 1) * width + to] >= common[at * width + to + 1])
        {
            changes.push(('-', old[at]));
            at += 1;
        } else {
            changes.push(('+', new[to]));
            to += 1;
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::snapshot::Repository;

    fn place(root: &str, git_dir: Option<&str>) -> Place {
        Place {
            root: root.into(),
            id: "0".repeat(16),
            git_dir: git_dir.map(Into::into),
            state_dir: "/state".into(),
            run_dir: "/run".into(),
            repository: Repository::default(),
        }
    }

    fn record(text: &str) -> Record {
        Record::new(&place("/r", Some("/r/.git")), text, Timestamp::from_micros(1))
    }

    #[test]
    fn a_record_is_good_for_its_own_checkout_and_text_only() {
        let record = record("a = 1\n");
        let bytes = record.to_bytes();
        assert_eq!(Record::parse(&bytes, &place("/r", Some("/r/.git"))), Some(record.clone()));
        assert_eq!(Record::parse(&bytes, &place("/other", Some("/r/.git"))), None);
        assert_eq!(Record::parse(&bytes, &place("/r", Some("/other"))), None);
        assert_eq!(Record::parse(&bytes, &place("/r", None)), None);
        for forged in [
            Record { text: "b = 1\n".to_owned(), ..record.clone() },
            Record { schema: "reeve-trust/2".to_owned(), ..record },
        ] {
            assert_eq!(Record::parse(&forged.to_bytes(), &place("/r", Some("/r/.git"))), None);
        }
        assert_eq!(Record::parse(b"{}", &place("/r", None)), None);
    }

    #[test]
    fn only_the_very_text_that_was_trusted_is() {
        let text = "[capability.a]\ncommand = [\"a\"]\n";
        let loaded = |text: &str| Loaded { text: Arc::from(text), ..Loaded::default() };
        let digest = crate::manifest::digest;
        assert_eq!(standing(Some(record(text)), &digest(text)), Standing::Trusted);
        assert_eq!(demand(&Standing::Trusted, &loaded(text)), Ok(()));
        assert_eq!(standing(None, &digest(text)), Standing::Untrusted);
        let fault = demand(&Standing::Untrusted, &loaded(text)).unwrap_err();
        assert_eq!(
            (fault.code, fault.reason.as_deref()),
            (Code::ActionUnavailable, Some("untrusted"))
        );
        assert_eq!(fault.side_effect, crate::SideEffect::None);

        let changed = text.replace("[\"a\"]", "[\"b\\u001b\"]").replace("\\u001b", "\u{1b}[2J");
        let found = standing(Some(record(text)), &digest(&changed));
        assert_eq!(found.as_str(), "changed");
        let fault = demand(&found, &loaded(&changed)).unwrap_err();
        assert_eq!(fault.reason.as_deref(), Some("changed"));
        assert!(fault.message.ends_with("\n- command = [\"a\"]\n+ command = [\"b\"]"), "{fault}");
    }

    #[test]
    fn a_diff_shows_the_fewest_lines_and_no_more_than_its_bound() {
        assert_eq!(diff("a\nb\nc\nd\n", "a\nc\nx\nd\ne\n", 9), ["- b", "+ x", "+ e"]);
        assert_eq!(diff("a\n", "a\n", 9), ["(only its line ends)"]);
        assert_eq!(diff("", "a\n", 9), ["+ a"]);
        let long: String = (0..20).map(|n| format!("{n}\n")).collect();
        let lines = diff("", &long, 12);
        assert_eq!((lines.len(), lines[12].as_str()), (13, "… and 8 more lines"));
        assert_eq!(diff("", &long, 20).len(), 20);
        let many =
            |from: usize| -> String { (from..from + 1_001).map(|n| format!("{n}\n")).collect() };
        assert_eq!(diff(&many(0), &many(5_000), 1)[1], "… and 2001 more lines");
        assert!(diff(&"x".repeat(1_000), "", 9)[0].chars().count() <= LINE_CHARS + 2);
    }
}
