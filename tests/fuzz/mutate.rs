//! Inputs that are nearly good: a good one, and a few edits.
//!
//! Pure noise is refused at the first byte of nearly everything; what is nearly good gets deep.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Bytes of an input, at most.
const INPUT_MAX: usize = 64 << 10;
/// Bytes that are said again, most of the time: what is long is slow.
const REPEATED_MAX: usize = 1 << 10;
/// Edits of one input, at most.
const EDITS_MAX: usize = 8;
/// Numbers that are just within or just beyond something.
const NUMBERS: &[u64] = &[
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    1 << 20,
    (1 << 20) + 1,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];
/// Bytes that mean something to somebody.
const BYTES: &[u8] =
    b"\0\x01\x07\x08\t\n\r\x1b\x7f\x80\x9b\xc0\xc1\xed\xf8\xff\"'\\{}[]:,.%&=+-/ 0";
/// Texts that mean something to somebody.
const TEXTS: &[&str] = &[
    "\r\n\r\n",
    "\u{1b}]8;;",
    "\u{1b}[",
    "\u{1b}P",
    "\u{202e}",
    "\u{feff}",
    "\u{9b}",
    "é",
    "🥊",
    "%00",
    "%ff",
    "1e999",
    "-0",
    "null",
    "\\ud800",
    "\\u0000",
    "[[[[[[[[",
    "{\"a\":",
    "---",
];

/// One edit. Its places are parts of whatever length the input has by then.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Turns a bit around.
    Flip(Index, u8),
    /// Replaces a byte.
    Replace(Index, Index),
    /// Puts bytes in.
    Insert(Index, Vec<u8>),
    /// Puts a text in, of these or of the target's own.
    Word(Index, Index),
    /// Takes a piece out.
    Remove(Index, Index),
    /// Says a piece again, so many times.
    Repeat(Index, Index, u16),
    /// Puts a piece of another good input in.
    Splice(Index, Index, Index, Index),
    /// Overwrites with a big-endian number of 1, 2, 4 or 8 bytes.
    Number(Index, Index, u8),
    /// Puts a number in as digits.
    Digits(Index, Index),
    /// Ends here.
    Cut(Index),
}

/// Which good input, and what is done to it.
pub type Recipe = (Index, Vec<Edit>);

/// Returns recipes; mostly short ones, which stay nearly good.
pub fn recipes() -> impl Strategy<Value = Recipe> {
    let at = any::<Index>;
    let edit = prop_oneof![
        3 => (at(), 0..8_u8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        3 => (at(), at()).prop_map(|(at, byte)| Edit::Replace(at, byte)),
        2 => (at(), vec(any::<u8>(), 1..8)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        4 => (at(), at()).prop_map(|(at, word)| Edit::Word(at, word)),
        2 => (at(), at()).prop_map(|(at, end)| Edit::Remove(at, end)),
        2 => (at(), at(), 1..200_u16).prop_map(|(at, end, times)| Edit::Repeat(at, end, times)),
        2 => (at(), at(), at(), at()).prop_map(|(at, which, a, b)| Edit::Splice(at, which, a, b)),
        2 => (at(), at(), 0..4_u8).prop_map(|(at, number, width)| Edit::Number(at, number, width)),
        1 => (at(), at()).prop_map(|(at, number)| Edit::Digits(at, number)),
        1 => at().prop_map(Edit::Cut),
    ];
    (any::<Index>(), vec(edit, 0..=EDITS_MAX))
}

/// Makes the input of a recipe.
pub fn make((which, edits): &Recipe, good: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut input = which.get(good).clone();
    for edit in edits {
        apply(edit, &mut input, good, words);
        input.truncate(INPUT_MAX);
    }
    input
}

fn apply(edit: &Edit, input: &mut Vec<u8>, good: &[Vec<u8>], words: &[&str]) {
    let length = input.len();
    let gap = |at: &Index| at.index(length + 1);
    let piece = |a: &Index, b: &Index| {
        let (a, b) = (gap(a), gap(b));
        a.min(b)..a.max(b)
    };
    match edit {
        Edit::Flip(at, bit) if length > 0 => input[at.index(length)] ^= 1 << bit,
        Edit::Replace(at, byte) if length > 0 => input[at.index(length)] = *byte.get(BYTES),
        Edit::Flip(..) | Edit::Replace(..) => {}
        Edit::Insert(at, bytes) => put(input, gap(at), bytes),
        Edit::Word(at, word) => {
            let at = gap(at);
            let word = word.index(TEXTS.len() + words.len());
            let word = TEXTS.get(word).unwrap_or_else(|| &words[word - TEXTS.len()]);
            put(input, at, word.as_bytes());
        }
        Edit::Remove(a, b) => drop(input.drain(piece(a, b))),
        Edit::Repeat(a, b, times) => {
            let piece = piece(a, b);
            let most = if times % 16 == 0 { INPUT_MAX } else { REPEATED_MAX };
            let times = usize::from(*times).min(most / piece.len().max(1));
            let again = input[piece.clone()].repeat(times);
            put(input, piece.end, &again);
        }
        Edit::Splice(at, which, a, b) => {
            let other = which.get(good);
            let (a, b) = (a.index(other.len() + 1), b.index(other.len() + 1));
            put(input, gap(at), &other[a.min(b)..a.max(b)]);
        }
        Edit::Number(at, number, width) => {
            let bytes = number.get(NUMBERS).to_be_bytes();
            let bytes = &bytes[8 - (1 << width)..];
            let at = gap(at);
            let end = (at + bytes.len()).min(length);
            input.splice(at..end, bytes.iter().copied());
        }
        Edit::Digits(at, number) => {
            put(input, gap(at), number.get(NUMBERS).to_string().as_bytes());
        }
        Edit::Cut(at) => input.truncate(gap(at)),
    }
}

fn put(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    input.splice(at..at, bytes.iter().copied());
}
