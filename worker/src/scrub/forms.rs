//! The forms that a text takes on its way into an output.

use std::collections::BTreeSet;
use std::fmt::Write;

/// Bytes of a secret from which on its parts are secrets, too.
pub(super) const LONG: usize = 24;
/// Bytes of such a part.
pub(super) const WINDOW: usize = 12;
/// Bytes of a line that is a secret of its own.
pub(super) const LINE_MIN: usize = 8;

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// What encoders of URLs leave as it is beside letters and digits: nothing, RFC 3986, whole components,
/// whole addresses, paths, forms.
const PLAIN: [&[u8]; 6] = [b"", b"-_.~", b"-_.!~*'()", b"-_.!~*'();,/?:@&=+$#", b"-_.~/", b"-_.*"];

/// What an output is searched for.
#[derive(Default)]
pub(super) struct Wanted {
    /// Found as a whole.
    pub exact: BTreeSet<Vec<u8>>,
    /// Every part of [`WINDOW`] bytes of a longer text; some more than once.
    pub windows: Vec<[u8; WINDOW]>,
}

impl Wanted {
    /// Adds a secret in all its forms.
    pub fn add(&mut self, secret: &str) {
        let text = secret.trim_matches(['\n', '\r']);
        let text = if text.is_empty() { secret } else { text };
        self.add_text(text);
        if !text.contains('\n') {
            return;
        }
        let unix = text.replace("\r\n", "\n");
        self.add_text(&unix);
        // A terminal ends its lines so.
        self.add_text(&unix.replace('\n', "\r\n"));
        for line in unix.lines().filter(|line| line.len() >= LINE_MIN) {
            // The parts of a long text are wanted already; no shorter line is among them.
            let covered =
                |form: &Vec<u8>| text.len() >= LONG && line.len() >= WINDOW && in_parts(line, form);
            self.exact.extend(all(line).into_iter().filter(|form| !covered(form)));
        }
    }

    fn add_text(&mut self, text: &str) {
        for form in all(text) {
            if text.len() < LONG || !in_parts(text, &form) {
                self.exact.insert(form);
                continue;
            }
            for window in form.windows(WINDOW) {
                let trimmed = trim_line_ends(window);
                match <[u8; WINDOW]>::try_from(trimmed) {
                    Ok(window) => self.windows.push(window),
                    // Line ends stay in an output, so what lies between them is looked for.
                    Err(_) if trimmed.len() >= LINE_MIN => drop(self.exact.insert(trimmed.into())),
                    Err(_) => {}
                }
            }
        }
    }
}

/// Returns whether a part of this form says enough of the text: where each character becomes many,
/// a few of them are in many a text.
fn in_parts(text: &str, form: &[u8]) -> bool {
    form.len() <= 2 * text.len()
}

fn trim_line_ends(bytes: &[u8]) -> &[u8] {
    let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
    let start = bytes.iter().position(|byte| !is_end(byte)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|byte| !is_end(byte)).map_or(start, |at| at + 1);
    &bytes[start..end]
}

/// Returns every form of a text, the text itself among them.
fn all(text: &str) -> BTreeSet<Vec<u8>> {
    let bytes = text.as_bytes();
    let mut forms = BTreeSet::from([bytes.to_vec()]);
    for alphabet in [STANDARD, URL] {
        forms.extend((0..3).map(|phase| base64(bytes, phase, alphabet)));
    }
    forms.insert(bytes.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect());
    forms.insert(bytes.iter().flat_map(|byte| format!("{byte:02X}").into_bytes()).collect());
    forms.insert(text.encode_utf16().flat_map(u16::to_le_bytes).collect());
    forms.insert(text.encode_utf16().flat_map(u16::to_be_bytes).collect());
    for plain in PLAIN {
        for (lower, space) in [(false, "%20"), (true, "%20"), (false, "+"), (true, "+")] {
            forms.insert(percent(bytes, Some(plain), lower, space));
        }
    }
    forms.extend([false, true].map(|lower| percent(bytes, None, lower, "%20")));
    let json = [
        Json::Plain,
        Json::Slash,
        Json::Html,
        Json::Ascii,
        Json::AsciiUpper,
        Json::Every,
        Json::EveryUpper,
    ];
    let json: BTreeSet<String> = json.into_iter().map(|style| style.of(text)).collect();
    // JSON within JSON, too.
    forms.extend(json.iter().map(|once| Json::Plain.of(once).into_bytes()));
    forms.extend(json.into_iter().map(String::into_bytes));
    forms.extend(shell(text).into_iter().map(String::into_bytes));
    forms
}

/// Returns the characters of a base64 text that are known when `bytes` stand anywhere in what is
/// encoded: after `phase` bytes, counted by threes.
fn base64(bytes: &[u8], phase: usize, alphabet: &[u8; 64]) -> Vec<u8> {
    let first = (phase * 8).div_ceil(6);
    let end = (phase + bytes.len()) * 8 / 6;
    let bit = |at: usize| {
        let (byte, shift) = (at / 8 - phase, 7 - at % 8);
        usize::from(bytes[byte] >> shift & 1)
    };
    let digit = |at: usize| (at * 6..at * 6 + 6).fold(0, |digit, at| digit << 1 | bit(at));
    (first..end).map(|at| alphabet[digit(at)]).collect()
}

/// Percent-encodes; everything where no plain characters are named. Forms write a space as `+`.
fn percent(bytes: &[u8], plain: Option<&[u8]>, lower: bool, space: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() * 3);
    for byte in bytes {
        match plain {
            Some(plain) if byte.is_ascii_alphanumeric() || plain.contains(byte) => out.push(*byte),
            _ if *byte == b' ' => out.extend_from_slice(space.as_bytes()),
            _ if lower => out.extend(format!("%{byte:02x}").into_bytes()),
            _ => out.extend(format!("%{byte:02X}").into_bytes()),
        }
    }
    out
}

/// How a writer of JSON escapes.
#[derive(Clone, Copy, PartialEq)]
enum Json {
    /// Only what must be.
    Plain,
    /// The slash, too.
    Slash,
    /// What HTML would act on, too.
    Html,
    /// Everything that is not ASCII, too.
    Ascii,
    /// The same with capital digits.
    AsciiUpper,
    /// Every character, by its number.
    Every,
    /// The same with capital digits.
    EveryUpper,
}

impl Json {
    fn of(self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 8);
        for c in text.chars() {
            if matches!(self, Self::Every | Self::EveryUpper) {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| self.unit(&mut out, *unit));
                continue;
            }
            let ascii_only = matches!(self, Self::Ascii | Self::AsciiUpper);
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '/' if self == Self::Slash => out.push_str("\\/"),
                '<' | '>' | '&' if self == Self::Html => self.unit(&mut out, c as u16),
                c if c < ' ' => self.unit(&mut out, c as u16),
                c if ascii_only && !c.is_ascii() => {
                    c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| self.unit(&mut out, *unit));
                }
                c => out.push(c),
            }
        }
        out
    }

    fn unit(self, out: &mut String, unit: u16) {
        let written = match self {
            Self::AsciiUpper | Self::EveryUpper => write!(out, "\\u{unit:04X}"),
            _ => write!(out, "\\u{unit:04x}"),
        };
        written.expect("a text takes everything");
    }
}

/// Quotes for a shell, in the ways that shells and their helpers do.
fn shell(text: &str) -> [String; 5] {
    let escaped = |special: &str| {
        text.chars().fold(String::new(), |mut out, c| {
            if special.contains(c) {
                out.push('\\');
            }
            out.push(c);
            out
        })
    };
    let ansi = text.replace('\\', "\\\\").replace('\'', "\\'");
    let ansi = ansi.replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t");
    [
        text.replace('\'', "'\\''"),
        text.replace('\'', "'\"'\"'"),
        escaped("\"$`\\!"),
        escaped(" \t!\"#$&'()*,;<=>?[\\]^`{|}~"),
        ansi,
    ]
}
