//! Whether a text is the TOML, JSON or YAML that its name says.
//!
//! Pure. What is said about a text never quotes it.

use saphyr_parser::Parser;
use serde::de::IgnoredAny;
use toml::de::DeTable;

/// Something that is wrong with a text, and where: line and column from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub suggestion: Option<&'static str>,
}

impl Wrong {
    /// Makes one that has no place within its file.
    pub fn somewhere(message: String) -> Self {
        Self { line: 0, column: 0, message, suggestion: None }
    }

    fn at(text: &str, offset: usize, message: impl Into<String>) -> Self {
        let (line, column) = place(text, offset);
        Self { line, column, message: message.into(), suggestion: None }
    }
}

/// Returns line and column of an offset, both from 1.
pub(super) fn place(text: &str, offset: usize) -> (u64, u64) {
    let before = &text[..text.floor_char_boundary(offset.min(text.len()))];
    let line = before.bytes().filter(|byte| *byte == b'\n').count();
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
    (count(line) + 1, count(column) + 1)
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Checks TOML.
pub(super) fn toml(text: &str) -> Option<Wrong> {
    let error = DeTable::parse(text).err()?;
    let offset = error.span().map_or(0, |span| span.start);
    Some(Wrong::at(text, offset, error.message()))
}

/// Checks JSON; `lenient` allows comments and commas at an end, as some tools do.
pub(super) fn json(text: &str, lenient: bool) -> Option<Wrong> {
    let error = serde_json::from_str::<IgnoredAny>(text).err()?;
    let strict = strict_json(&error);
    let stripped = without_comments(text);
    if stripped == text {
        return Some(strict);
    }
    match serde_json::from_str::<IgnoredAny>(&stripped) {
        Ok(_) if lenient => None,
        Ok(_) => Some(Wrong {
            message: "it has comments or commas at an end, which JSON has not".to_owned(),
            suggestion: Some("name it .jsonc, or take them out"),
            ..strict
        }),
        Err(error) if lenient => Some(strict_json(&error)),
        Err(_) => Some(strict),
    }
}

fn strict_json(error: &serde_json::Error) -> Wrong {
    let told = error.to_string();
    let message = told.split(" at line ").next().unwrap_or_default().to_owned();
    let (line, column) = (count(error.line()).max(1), count(error.column()).max(1));
    Wrong { line, column, message, suggestion: None }
}

/// Puts blanks in place of comments and of commas before a closing bracket, so that every other
/// character keeps its place.
fn without_comments(text: &str) -> String {
    let mut out = text.as_bytes().to_vec();
    let bytes = text.as_bytes();
    let mut comma = None;
    let mut at = 0;
    while at < bytes.len() {
        let from = at;
        match bytes[at] {
            b'"' => {
                at = end_of_string(bytes, at);
                comma = None;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at = memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |end| from + end);
                blank(&mut out[from..at]);
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end = memchr::memmem::find(&bytes[at + 2..], b"*/");
                at = end.map_or(bytes.len(), |end| from + 2 + end + 2);
                blank(&mut out[from..at]);
            }
            b',' => {
                comma = Some(at);
                at += 1;
            }
            b'}' | b']' => {
                if let Some(comma) = comma.take() {
                    out[comma] = b' ';
                }
                at += 1;
            }
            byte => {
                if !byte.is_ascii_whitespace() {
                    comma = None;
                }
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn blank(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
}

/// Checks YAML: one document or several.
pub(super) fn yaml(text: &str) -> Option<Wrong> {
    let error = Parser::new_from_str(text).find_map(Result::err)?;
    let mark = error.marker();
    Some(Wrong {
        line: count(mark.line()).max(1),
        column: count(mark.col()) + 1,
        message: error.info().to_owned(),
        suggestion: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(wrong: Option<Wrong>) -> (u64, u64) {
        let wrong = wrong.expect("something is wrong");
        assert!(!wrong.message.is_empty());
        (wrong.line, wrong.column)
    }

    #[test]
    fn good_texts_are_good() {
        assert_eq!(toml("a = 1\n[b]\nc = [1, 2]\n"), None);
        assert_eq!(toml(""), None);
        assert_eq!(json(r#"{"a": ["//", "/*", ",]"]}"#, false), None);
        assert_eq!(yaml("a: 1\n---\n- b\n- {c: d}\n...\n"), None);
        assert_eq!(yaml(""), None);
        assert_eq!(yaml("a: &x 1\nb: *x\n"), None);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        assert_eq!(at(toml("a = 1\nb = \n")).0, 2);
        assert_eq!(at(toml("a = 1\na = 2\n")), (2, 1));
        assert_eq!(at(json("{\n  \"a\": }\n", false)), (2, 8));
        assert_eq!(at(json("", false)).0, 1);
        assert_eq!(at(yaml("a: 1\n b: [2\n")).0, 2);
        assert_eq!(at(yaml("a: b: c\n")).0, 1);
        assert_eq!(place("é\nüx", "é\nü".len()), (2, 2));
    }

    #[test]
    fn nothing_that_is_told_quotes_the_text() {
        for wrong in [
            toml("password = hunter2\n"),
            toml("hunter2 hunter2"),
            json("{\"password\": hunter2}", false),
            yaml("password: [hunter2\nhunter2: : %"),
        ] {
            let wrong = wrong.expect("it is wrong");
            assert!(!wrong.message.contains("hunter2"), "{wrong:?}");
        }
    }

    #[test]
    fn comments_are_taken_where_tools_take_them_and_named_elsewhere() {
        let text = "{ // one\n  \"a\": [1, 2,], /* \"b\": 3 */\n  \"c\": \"// no\",\n}\n";
        assert_eq!(json(text, true), None);
        let wrong = json(text, false).expect("it is no JSON");
        assert!(wrong.message.contains("comments") && wrong.suggestion.is_some(), "{wrong:?}");
        assert_eq!(at(json("{ // one\n  \"a\": \n}", true)), (3, 1));
        for odd in ["/*", "//", "\"", "\"\\", "[,", "{\"a\": 1 /", "é/*é*/,}"] {
            assert!(json(odd, true).is_some(), "{odd}");
        }
    }

    #[test]
    fn depth_harms_nobody() {
        let deep = |open: &str| open.repeat(200_000);
        assert!(toml(&format!("a = {}", deep("["))).is_some());
        assert!(json(&deep("["), true).is_some());
        assert!(yaml(&deep("[")).is_some());
        assert!(yaml(&deep("- ")).is_none_or(|wrong| wrong.line == 1));
    }
}
