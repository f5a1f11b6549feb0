//! What text can be wrong about whatever its kind: links that lead nowhere, and merges half done.
//!
//! Pure. Whether a link leads anywhere is for whoever may look.

use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, LinkType, Options, Parser, Tag};

/// A link of a document to a file of the checkout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// Where it stands, in bytes.
    pub offset: usize,
    /// What it says.
    pub target: String,
    /// Where it leads, from the root.
    pub path: PathBuf,
}

/// Returns the links of a Markdown document that lead to files; `path` is the document's own.
pub(super) fn links(text: &str, path: &Path) -> Vec<Link> {
    let options = Options::ENABLE_TABLES
        | Options::ENABLE_FOOTNOTES
        | Options::ENABLE_TASKLISTS
        | Options::ENABLE_YAML_STYLE_METADATA_BLOCKS;
    let events = Parser::new_ext(text, options).into_offset_iter();
    events
        .filter_map(|(event, range)| {
            let (link_type, target) = match event {
                Event::Start(Tag::Link { link_type, dest_url, .. }) => (link_type, dest_url),
                Event::Start(Tag::Image { link_type, dest_url, .. }) => (link_type, dest_url),
                _ => return None,
            };
            if matches!(link_type, LinkType::Autolink | LinkType::Email) {
                return None;
            }
            let leads_to = leads_to(&target, path)?;
            Some(Link { offset: range.start, target: target.into_string(), path: leads_to })
        })
        .collect()
}

/// Returns the file that a link means, from the root; nothing where it means something else.
fn leads_to(target: &str, from: &Path) -> Option<PathBuf> {
    // Templates, and names that documentation tools resolve.
    let is_name = ["{{", "${", "<%", "::", "`"].iter().any(|mark| target.contains(mark));
    if target.starts_with("//") || has_scheme(target) || is_name {
        return None;
    }
    let end = target.find(['#', '?']).unwrap_or(target.len());
    let file = decoded(&target[..end])?;
    if file.is_empty() {
        return None;
    }
    // A leading slash means the root of the checkout, as forges show it.
    let (base, file) = match file.strip_prefix('/') {
        Some(file) => (Path::new(""), file),
        None => (from.parent().unwrap_or(Path::new("")), &*file),
    };
    within(&base.join(file))
}

/// Resolves the dots of a path by name; nothing if it leads above the root.
fn within(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => out.push(name),
            Component::CurDir => {}
            Component::ParentDir if out.pop() => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(if out.as_os_str().is_empty() { ".".into() } else { out })
}

fn has_scheme(target: &str) -> bool {
    let Some((scheme, _)) = target.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// Decodes `%20` and the like; nothing where that yields no text or a NUL.
fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.as_bytes().iter();
    while let Some(&byte) = bytes.next() {
        let rest = bytes.as_slice();
        let escape = (byte == b'%').then(|| rest.get(..2)).flatten();
        let value = escape
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match value {
            Some(value) => {
                out.push(value);
                bytes.nth(1);
            }
            None => out.push(byte),
        }
    }
    String::from_utf8(out).ok().filter(|text| !text.contains('\0'))
}

/// Returns the lines, from 1, at which a merge was left half done: both sides stand there, each
/// behind its marker.
pub(super) fn conflicts(bytes: &[u8]) -> Vec<u64> {
    let mut found = Vec::new();
    let mut open = None;
    let mut divided = false;
    for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if is_marker(line, b'<') {
            (open, divided) = (Some(number), false);
        } else if line == b"=======" {
            divided = true;
        } else if is_marker(line, b'>') {
            if let Some(start) = open.take().filter(|_| divided) {
                found.push(start);
            }
            divided = false;
        }
    }
    found
}

fn is_marker(line: &[u8], sign: u8) -> bool {
    line.len() > 8 && line[..7].iter().all(|byte| *byte == sign) && line[7] == b' '
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str, path: &str) -> Vec<String> {
        let links = links(text, Path::new(path));
        links.into_iter().map(|link| link.path.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_link_leads_from_its_document_or_from_the_root() {
        let text =
            "[a](b.md) ![c](img/d%20e.png \"t\") [f](/g/h#x) [i](../j?raw=1) [k][l]\n\n[l]: ./m\n";
        assert_eq!(
            targets(text, "docs/x.md"),
            ["docs/b.md", "docs/img/d e.png", "g/h", "j", "docs/m"]
        );
        assert_eq!(targets("[a](.)", "x.md"), ["."]);
    }

    #[test]
    fn what_is_no_file_of_the_checkout_is_left_alone() {
        for text in [
            "[a](https://b/c)",
            "[a](mailto:b@c)",
            "[a](#b)",
            "[a](//b/c)",
            "[a](../../issues)",
            "<https://a.b>",
            "<a@b.c>",
            "`[a](b)`",
            "```\n[a](b)\n```",
            "    [a](b)",
            "[a]({{ url }})",
            "[a](crate::b)",
            "[`a`](`b`)",
            "[a](%00)",
            "[a](%ff)",
            "[a]()",
            "[a] (b)",
        ] {
            assert_eq!(targets(text, "x.md"), Vec::<String>::new(), "{text}");
        }
        assert_eq!(targets("[a](100%)", "x.md"), ["100%"]);
    }

    #[test]
    fn a_merge_half_done_is_found_and_lookalikes_are_not() {
        let conflict = "a\n<<<<<<< HEAD\nb\n=======\nc\n>>>>>>> other\n";
        assert_eq!(conflicts(conflict.as_bytes()), [2]);
        assert_eq!(conflicts(conflict.replace('\n', "\r\n").as_bytes()), [2]);
        assert_eq!(conflicts(conflict.repeat(2).as_bytes()), [2, 8]);
        for fine in [
            "Title\n=======\n",
            ">>>>>>> a quote of a quote\n",
            "<<<<<<< HEAD\nb\n",
            "  <<<<<<< HEAD\n=======\n  >>>>>>> other\n",
            "<<<<<<<\n=======\n>>>>>>>\n",
            "<<<<<<<< HEAD\n=======\n>>>>>>>> other\n",
            ">>>>>>> x\n=======\n<<<<<<< y\n",
            "",
        ] {
            assert_eq!(conflicts(fine.as_bytes()), Vec::<u64>::new(), "{fine}");
        }
    }
}
