//! Text from outside, made safe to show: the one sanitiser.
//!
//! Owns what clean text is and the only two ways to it: [`text`] for a title, message or error of
//! one line, [`Lines`] for the raw output of a process. Terminal sequences vanish whole, other
//! controls become a space, and what would turn or hide the text around it becomes visible, so
//! that clean text is inert in a terminal, a page and a log alike. Cleaning clean text changes
//! nothing, and how the input was cut into pieces never shows.
//!
//! Never keeps more of a line than its bound, and never guesses at encodings: what is not UTF-8
//! is U+FFFD.

use crate::batch::CUT;

/// Characters that one unterminated terminal sequence may swallow.
const SEQUENCE_MAX: usize = 4_096;
/// Bytes of output that are looked at as a whole before they are looked at line by line.
const WINDOW: usize = 16 << 10;
/// The last character of a text that was cut.
const ELLIPSIS: char = '…';

/// Returns whether `bytes` are clean text: lines in UTF-8 that no reader can be harmed by.
///
/// Tabs and line ends are the only controls, but for [`CUT`] right before a line end.
pub fn is_clean(bytes: &[u8]) -> bool {
    all_plain(bytes) || std::str::from_utf8(bytes).is_ok_and(has_clean_chars)
}

/// Makes `text` one clean line of at most `max_chars` characters.
///
/// A longer text ends with `…` as its last allowed character.
pub fn text(text: &str, max_chars: usize) -> String {
    if max_chars == 0 {
        return String::new();
    }
    let mut terminal = Terminal::default();
    let mut line = Bounded::new(max_chars);
    let mut returned = false;
    for c in text.chars() {
        let seen = terminal.take(c);
        match seen {
            Seen::Nothing => {}
            Seen::Plain(c) => line.push(c),
            Seen::Hidden(c) => line.push_visible(c),
            Seen::LineEnd if returned => {}
            Seen::Control | Seen::Return | Seen::LineEnd => line.push(' '),
        }
        returned = matches!(seen, Seen::Return);
    }
    line.text
}

/// Turns the raw output of a process into clean lines, piece by piece.
///
/// A line that redraws itself with carriage returns is the last thing it showed. A line longer
/// than the bound keeps its first characters, ends with `…` and is marked with [`CUT`]; a process
/// cannot set that mark itself. Holds two lines at most, however long the input's lines are.
#[derive(Debug)]
pub struct Lines {
    terminal: Terminal,
    /// What the line shows so far.
    line: Bounded,
    /// What it showed before it was redrawn.
    before: Bounded,
    /// The first bytes of a character whose other bytes have not come yet.
    partial: Vec<u8>,
}

impl Lines {
    /// Starts with nothing; lines are cut at `max_chars` characters, at least one.
    pub fn new(max_chars: usize) -> Self {
        let max_chars = max_chars.max(1);
        Self {
            terminal: Terminal::default(),
            line: Bounded::new(max_chars),
            before: Bounded::new(max_chars),
            partial: Vec::with_capacity(4),
        }
    }

    /// Takes the next bytes, adds the lines that they complete to `out` and returns how many.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> u32 {
        let mut lines = 0;
        let mut rest = bytes;
        while let Some(end) = window_end(rest) {
            let (window, after) = rest.split_at(end);
            lines += match self.ready_to_copy(window) {
                Some(count) => {
                    out.extend_from_slice(window);
                    count
                }
                None => self.push_lines(window, out),
            };
            rest = after;
        }
        self.feed(rest);
        lines
    }

    /// Takes the end of the output: a last line without a line end is a line, too.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> u32 {
        self.flush_partial();
        if self.line.text.is_empty() && self.before.text.is_empty() {
            self.terminal = Terminal::default();
            return 0;
        }
        self.end_line(out);
        1
    }

    /// Returns how many lines `window` has if it can be copied as it is.
    fn ready_to_copy(&self, window: &[u8]) -> Option<u32> {
        if !self.is_idle() || !all_plain(window) {
            return None;
        }
        let mut start = 0;
        let mut count = 0;
        for end in memchr::memchr_iter(b'\n', window) {
            if end - start > self.line.max {
                return None;
            }
            start = end + 1;
            count += 1;
        }
        Some(count)
    }

    fn is_idle(&self) -> bool {
        self.terminal.is_ground()
            && self.line.text.is_empty()
            && self.before.text.is_empty()
            && self.partial.is_empty()
    }

    /// Takes whole lines, one by one.
    fn push_lines(&mut self, window: &[u8], out: &mut Vec<u8>) -> u32 {
        let mut start = 0;
        let mut count = 0;
        for end in memchr::memchr_iter(b'\n', window) {
            self.feed(&window[start..end]);
            self.end_line(out);
            start = end + 1;
            count += 1;
        }
        count
    }

    /// Takes bytes of one line, without its end.
    fn feed(&mut self, bytes: &[u8]) {
        let mut rest = self.complete_partial(bytes);
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(text) => return self.feed_text(text),
                Err(error) => error,
            };
            let (valid, bad) = rest.split_at(error.valid_up_to());
            self.feed_text(std::str::from_utf8(valid).expect("valid up to here"));
            let Some(length) = error.error_len() else {
                self.partial.extend_from_slice(bad);
                return;
            };
            self.feed_char(char::REPLACEMENT_CHARACTER);
            rest = &bad[length..];
        }
    }

    /// Ends the character that was left unfinished, if there is one; returns the bytes after it.
    fn complete_partial<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let mut rest = bytes;
        while let (false, Some((&next, after))) = (self.partial.is_empty(), rest.split_first()) {
            self.partial.push(next);
            let decoded = match std::str::from_utf8(&self.partial) {
                Ok(text) => text.chars().next(),
                Err(error) if error.error_len().is_none() => None,
                Err(_) => {
                    // The byte does not continue the character: it starts something of its own.
                    self.flush_partial();
                    return rest;
                }
            };
            if let Some(c) = decoded {
                self.partial.clear();
                self.feed_char(c);
            }
            rest = after;
        }
        rest
    }

    fn flush_partial(&mut self) {
        if !self.partial.is_empty() {
            self.partial.clear();
            self.feed_char(char::REPLACEMENT_CHARACTER);
        }
    }

    fn feed_text(&mut self, text: &str) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let run = if self.terminal.is_ground() { plain_run(rest.as_bytes()) } else { 0 };
            if run > 0 {
                self.line.push_ascii(&rest[..run]);
                rest = &rest[run..];
            } else {
                self.feed_char(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }

    fn feed_char(&mut self, c: char) {
        match self.terminal.take(c) {
            Seen::Nothing => {}
            Seen::Plain(c) => self.line.push(c),
            Seen::Hidden(c) => self.line.push_visible(c),
            Seen::Control | Seen::LineEnd => self.line.push(' '),
            Seen::Return => self.carriage_return(),
        }
    }

    /// Starts the line anew, and keeps what it showed until it shows something again.
    fn carriage_return(&mut self) {
        if !self.line.is_blank() || self.before.text.is_empty() {
            std::mem::swap(&mut self.line, &mut self.before);
        }
        self.line.clear();
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        self.flush_partial();
        let redrawn = self.line.is_blank() && !self.before.text.is_empty();
        let shown = if redrawn { &self.before } else { &self.line };
        out.extend_from_slice(shown.text.as_bytes());
        if shown.cut {
            out.push(CUT);
        }
        out.push(b'\n');
        self.line.clear();
        self.before.clear();
        self.terminal = Terminal::default();
    }
}

/// A text that takes so many characters and no more.
#[derive(Debug)]
struct Bounded {
    text: String,
    chars: usize,
    max: usize,
    cut: bool,
}

impl Bounded {
    fn new(max: usize) -> Self {
        Self { text: String::new(), chars: 0, max, cut: false }
    }

    fn push(&mut self, c: char) {
        if self.chars < self.max {
            self.text.push(c);
            self.chars += 1;
        } else {
            self.cut();
        }
    }

    fn push_ascii(&mut self, run: &str) {
        let taken = run.len().min(self.max - self.chars);
        self.text.push_str(&run[..taken]);
        self.chars += taken;
        if taken < run.len() {
            self.cut();
        }
    }

    /// Writes down what cannot be seen.
    fn push_visible(&mut self, c: char) {
        for c in format!("⟦U+{:04X}⟧", u32::from(c)).chars() {
            self.push(c);
        }
    }

    fn cut(&mut self) {
        if !self.cut {
            self.text.pop();
            self.text.push(ELLIPSIS);
            self.cut = true;
        }
    }

    fn is_blank(&self) -> bool {
        self.text.bytes().all(|byte| byte == b' ' || byte == b'\t')
    }

    fn clear(&mut self) {
        self.text.clear();
        self.chars = 0;
        self.cut = false;
    }
}

/// What one character of the input amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It belongs to a terminal sequence.
    Nothing,
    /// It is text.
    Plain(char),
    /// It turns or hides the text around it.
    Hidden(char),
    /// It is a control with no meaning here.
    Control,
    /// It is a carriage return.
    Return,
    /// It is a line feed.
    LineEnd,
}

/// Where a terminal would be within a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// In none.
    #[default]
    Ground,
    /// After ESC.
    Escape,
    /// After ESC and an intermediate: a charset switch and its like.
    Intermediate,
    /// In a control sequence.
    Csi,
    /// In a string that ends with ST: OSC, DCS, APC, PM and SOS.
    Text,
    /// After ESC within such a string.
    TextEscape,
}

/// Follows terminal sequences in their 7-bit and 8-bit forms, as far as finding their end takes.
///
/// A sequence ends with its line or the redrawing of its line at the latest, and after
/// [`SEQUENCE_MAX`] characters.
#[derive(Debug, Default)]
struct Terminal {
    place: Place,
    swallowed: usize,
}

impl Terminal {
    fn is_ground(&self) -> bool {
        self.place == Place::Ground
    }

    fn take(&mut self, c: char) -> Seen {
        self.swallowed += 1;
        if self.swallowed > SEQUENCE_MAX || matches!(c, '\n' | '\r') {
            return self.ground(c);
        }
        let next = match (self.place, c) {
            (Place::Ground, _) => return self.ground(c),
            // CAN and SUB end any sequence.
            (_, '\u{18}' | '\u{1A}') => Place::Ground,
            (Place::Text, '\u{1B}') => Place::TextEscape,
            (Place::Text, '\u{7}' | '\u{9C}') | (Place::TextEscape, '\\') => Place::Ground,
            (Place::Text, c) if !('\u{80}'..='\u{9F}').contains(&c) => Place::Text,
            (Place::Escape | Place::TextEscape, '[') => Place::Csi,
            (Place::Escape | Place::TextEscape, ']' | 'P' | 'X' | '^' | '_') => Place::Text,
            (Place::Escape | Place::TextEscape | Place::Intermediate, ' '..='/') => {
                Place::Intermediate
            }
            (Place::Escape | Place::TextEscape | Place::Intermediate, '0'..='~') => Place::Ground,
            (Place::Csi, ' '..='?') => Place::Csi,
            (Place::Csi, '@'..='~') => Place::Ground,
            // Not part of any sequence: the broken one ends before it.
            _ => return self.ground(c),
        };
        self.place = next;
        Seen::Nothing
    }

    fn ground(&mut self, c: char) -> Seen {
        self.swallowed = 0;
        self.place = match c {
            '\u{1B}' => Place::Escape,
            '\u{9B}' => Place::Csi,
            '\u{90}' | '\u{98}' | '\u{9D}'..='\u{9F}' => Place::Text,
            _ => Place::Ground,
        };
        match c {
            _ if self.place != Place::Ground => Seen::Nothing,
            '\n' => Seen::LineEnd,
            '\r' => Seen::Return,
            '\t' => Seen::Plain(c),
            c if c.is_control() => Seen::Control,
            c if is_hidden(c) => Seen::Hidden(c),
            c => Seen::Plain(c),
        }
    }
}

/// Returns whether a character shows nothing itself and changes how others are shown.
fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{61C}'
            | '\u{200E}'
            | '\u{200F}'
            | '\u{2028}'..='\u{202E}'
            | '\u{2066}'..='\u{2069}'
            | '\u{FEFF}'
            | '\u{E0000}'..='\u{E007F}'
    )
}

fn has_clean_chars(text: &str) -> bool {
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let clean = match c {
            '\n' | '\t' => true,
            c if c == char::from(CUT) => chars.peek() == Some(&'\n'),
            c => !c.is_control() && !is_hidden(c),
        };
        if !clean {
            return false;
        }
    }
    true
}

/// Returns whether `bytes` are printable ASCII, tabs and line ends; one pass without branches.
fn all_plain(bytes: &[u8]) -> bool {
    bytes.chunks(128).all(|block| block.iter().fold(true, |all, byte| all & is_plain(*byte)))
}

fn is_plain(byte: u8) -> bool {
    (byte.wrapping_sub(b' ') < 0x5F) | (byte == b'\t') | (byte == b'\n')
}

/// Returns how many bytes at the start of a line are printable ASCII or tabs.
fn plain_run(bytes: &[u8]) -> usize {
    let stops = |byte: &u8| !is_plain(*byte) || *byte == b'\n';
    bytes.iter().position(stops).unwrap_or(bytes.len())
}

/// Returns where a window of whole lines ends, just after its last line end.
fn window_end(bytes: &[u8]) -> Option<usize> {
    let window = &bytes[..bytes.len().min(WINDOW)];
    let last = memchr::memrchr(b'\n', window)
        .or_else(|| memchr::memchr(b'\n', &bytes[window.len()..]).map(|at| at + window.len()));
    last.map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(max_chars: usize, pieces: &[&[u8]]) -> (String, u32) {
        let mut lines = Lines::new(max_chars);
        let mut out = Vec::new();
        let mut count = 0;
        for piece in pieces {
            count += lines.push(piece, &mut out);
        }
        count += lines.finish(&mut out);
        (String::from_utf8(out).expect("output is UTF-8"), count)
    }

    fn cleaned(bytes: &[u8]) -> String {
        lines(2_000, &[bytes]).0
    }

    #[test]
    fn clean_text_is_told_from_text_that_is_not() {
        for clean in ["", "a\tb\n", "grün ✓ 日本\n", "cut…\u{1}\n", "👩\u{200D}💻"] {
            assert!(is_clean(clean.as_bytes()), "{clean:?}");
        }
        for dirty in [
            "\u{1}",
            "\u{1}a\n",
            "\r\n",
            "\0",
            "\u{1B}[m",
            "\u{7F}",
            "\u{85}",
            "\u{9B}m",
            "\u{202A}",
            "\u{202E}",
            "\u{2066}",
            "\u{2069}",
            "\u{200E}",
            "\u{200F}",
            "\u{61C}",
            "\u{2028}",
            "\u{2029}",
            "\u{FEFF}",
            "\u{E0000}",
            "\u{E0041}",
            "\u{E007F}",
        ] {
            assert!(!is_clean(dirty.as_bytes()), "{dirty:?}");
            assert!(!is_clean(format!("{}{dirty}", "long ".repeat(99)).as_bytes()), "{dirty:?}");
        }
        assert!(!is_clean(b"\xFF"));
        assert!(!is_clean(b"\xC3"));
    }

    #[test]
    fn terminal_sequences_vanish_whole() {
        for sequence in [
            "\u{1B}[31;1m",
            "\u{1B}[?25l",
            "\u{1B}[2J",
            "\u{1B}]0;title\u{7}",
            "\u{1B}(B",
            "\u{1B}]8;;http://x\u{1B}\\",
            "\u{1B}]52;c;aGk=\u{9C}",
            "\u{1B}P1$r0m\u{1B}\\",
            "\u{1B}_apc\u{1B}\\",
            "\u{1B}^pm\u{1B}\\",
            "\u{1B}Xsos\u{1B}\\",
            "\u{1B}7",
            "\u{1B}c",
            "\u{9B}31m",
            "\u{9D}0;title\u{7}",
            "\u{90}q\u{9C}",
            "\u{1B}[31\u{18}",
            "\u{1B}#8",
            "\u{1B}]0;a\u{1B}[0m",
            "\u{1B}\u{1B}[1m",
            "\u{1B} F",
        ] {
            assert_eq!(text(&format!("a{sequence}b"), 99), "ab", "{sequence:?}");
            assert_eq!(cleaned(format!("a{sequence}b\n").as_bytes()), "ab\n", "{sequence:?}");
        }
    }

    #[test]
    fn an_unterminated_sequence_ends_with_its_line_and_at_its_bound() {
        assert_eq!(text("a\u{1B}]0;never ended", 99), "a");
        assert_eq!(text("a\u{1B}]0;never ended\nb", 99), "a b");
        assert_eq!(cleaned(b"a\x1B]0;never ended\nb\n"), "a\nb\n");
        assert_eq!(cleaned(b"a\x1B[31\nmb\n"), "a\nmb\n");

        let long = format!("\u{1B}]{}end", "x".repeat(SEQUENCE_MAX - 1));
        assert_eq!(text(&long, 99), "end");
    }

    #[test]
    fn other_controls_become_one_space_each() {
        assert_eq!(text("a\0b\u{8}c\u{7F}d\u{85}e\tf", 99), "a b c d e\tf");
        assert_eq!(text("a\r\nb\nc\rd\n\r", 99), "a b c d  ");
        assert_eq!(cleaned(b"a\0b\x01\n"), "a b \n");
    }

    #[test]
    fn hidden_characters_are_written_out() {
        assert_eq!(text("a\u{202E}b\u{FEFF}\u{E0041}", 99), "a⟦U+202E⟧b⟦U+FEFF⟧⟦U+E0041⟧");
        assert_eq!(cleaned("\u{2028}\u{61C}\n".as_bytes()), "⟦U+2028⟧⟦U+061C⟧\n");
    }

    #[test]
    fn a_text_is_cut_only_beyond_its_bound() {
        assert_eq!(text("äbcd", 4), "äbcd");
        assert_eq!(text("äbcde", 4), "äbc…");
        assert_eq!(text("äbcde", 1), "…");
        assert_eq!(text("abc", 0), "");
        assert_eq!(text("abc\u{1B}[0m", 3), "abc");
    }

    #[test]
    fn a_line_is_cut_only_beyond_its_bound() {
        assert_eq!(lines(4, &[b"abcd\nabcde\n\xC3\xA4bcd\n"]).0, "abcd\nabc…\u{1}\näbcd\n");
        assert_eq!(lines(4, &["日本日本日本\n".as_bytes()]).0, "日本日…\u{1}\n");
        assert_eq!(lines(1, &[b"a\nab\n"]).0, "a\n…\u{1}\n");
    }

    #[test]
    fn a_redrawn_line_is_the_last_thing_it_showed() {
        assert_eq!(cleaned(b"10%\r20%\r100%\n"), "100%\n");
        assert_eq!(cleaned(b"10%\r20%\r\r\n"), "20%\n");
        assert_eq!(cleaned(b"10%\r     \r\x1B[K\n"), "10%\n");
        assert_eq!(cleaned(b"a\r\n\r\n  \r\nb"), "a\n\n  \nb\n");
    }

    #[test]
    fn what_is_not_utf8_becomes_a_replacement_character() {
        assert_eq!(cleaned(b"a\xFFb\xC3\xA4\xE2\x82\n"), "a\u{FFFD}bä\u{FFFD}\n");
        assert_eq!(lines(9, &[b"\xE2\x82", b"\xAC\xE2", b"x\n"]).0, "€\u{FFFD}x\n");
        assert_eq!(lines(9, &[b"\xF0\x9F"]).0, "\u{FFFD}\n");
    }

    #[test]
    fn a_last_line_needs_no_end_and_a_last_sequence_is_none() {
        assert_eq!(lines(9, &[b"a\nb"]), ("a\nb\n".to_owned(), 2));
        assert_eq!(lines(9, &[b"a\n\x1B[0m"]), ("a\n".to_owned(), 1));
        assert_eq!(lines(9, &[b""]), (String::new(), 0));
    }

    #[test]
    fn a_line_without_end_needs_no_memory() {
        let mut lines = Lines::new(2_000);
        let mut out = Vec::new();
        let piece = vec![b'y'; 1 << 20];
        for _ in 0..32 {
            assert_eq!(lines.push(&piece, &mut out), 0);
        }
        assert!(lines.line.text.capacity() + lines.before.text.capacity() < 32 << 10);
        assert_eq!(lines.push(b"\n", &mut out), 1);
        assert_eq!(out.len(), 1_999 + '…'.len_utf8() + 2);
    }

    fn raw_output() -> impl Strategy<Value = Vec<u8>> {
        let fragment = prop_oneof![
            4 => "[a-z äß日👩]{0,12}".prop_map(String::into_bytes),
            3 => prop::sample::select(vec![
                &b"\n"[..], b"\r\n", b"\r", b"\x1B", b"\x1B[", b"\x1B]", b"\x1B\\", b"\x07",
                b"31m", b"\xC2\x9B", b"\xC2\x9C", b"\xC2", b"\xE2\x80", b"\xAE", b"\x01", b"\x01\n",
                b"\0", b"\x18", b"\xF3\xA0\x81", b"\x81", b"\t", b"  ", b"\x1B(B", b"\xFF",
            ]).prop_map(<[u8]>::to_vec),
            1 => prop::collection::vec(any::<u8>(), 0..12),
        ];
        prop::collection::vec(fragment, 0..40).prop_map(|fragments| fragments.concat())
    }

    proptest! {
        #[test]
        fn output_is_clean_and_stays_as_it_is(raw in raw_output(), max in 1_usize..40) {
            let (once, count) = lines(max, &[&raw]);
            prop_assert!(is_clean(once.as_bytes()));
            prop_assert_eq!(once.matches('\n').count(), count as usize);
            // The mark of a cut line is not text: whoever cleans again takes it off first.
            let unmarked = once.replace('\u{1}', "");
            prop_assert!(unmarked.lines().all(|line| line.chars().count() <= max));
            prop_assert_eq!(&lines(max, &[unmarked.as_bytes()]).0, &unmarked);
        }

        #[test]
        fn pieces_do_not_show(
            raw in raw_output(),
            max in 1_usize..40,
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(raw.len() + 1)).collect();
            cuts.extend([0, raw.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|pair| &raw[pair[0]..pair[1]]).collect();
            prop_assert_eq!(lines(max, &pieces), lines(max, &[&raw]));
            let bytes: Vec<_> = raw.chunks(1).collect();
            prop_assert_eq!(lines(max, &bytes), lines(max, &[&raw]));
        }

        #[test]
        fn texts_are_clean_and_stay_as_they_are(raw in raw_output(), max in 0_usize..40) {
            let once = text(&String::from_utf8_lossy(&raw), max);
            prop_assert!(is_clean(once.as_bytes()));
            prop_assert!(!once.contains('\n'));
            prop_assert!(once.chars().count() <= max);
            prop_assert_eq!(text(&once, max), once);
        }

        #[test]
        fn clean_lines_are_copied(raw in "([a-z\t ~]{0,30}\n){0,20}") {
            prop_assert_eq!(lines(30, &[raw.as_bytes()]).0, raw);
        }
    }
}
