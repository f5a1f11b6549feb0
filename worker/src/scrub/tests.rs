use proptest::prelude::*;
use serde_json::json;

use super::*;

const SHORT: &str = "hunter2-Zebra!";
const LONG: &str = "sk_live_51HxQ8/A+b~c d=&\"é'\\x0099887766";
const KEY: &str = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA75\nabcdefghij\nshort\n-----END KEY-----\n";

fn scrubber(secrets: &[&str]) -> Scrubber {
    Scrubber::new(&secrets.iter().map(|text| Secret::new(*text)).collect::<Vec<_>>())
}

fn scrubbed(scrubber: &Scrubber, pieces: &[&[u8]]) -> Vec<u8> {
    let mut stream = scrubber.stream().unwrap();
    let mut out = Vec::new();
    for piece in pieces {
        stream.push(piece, &mut out);
    }
    stream.finish(&mut out);
    out
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Encodes as every tool does, written anew for the tests.
fn base64(bytes: &[u8], alphabet: &str) -> Vec<u8> {
    let digits = alphabet.as_bytes();
    let mut out = Vec::new();
    for group in bytes.chunks(3) {
        let number = group.iter().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte))
            << (8 * (3 - group.len()));
        let known = group.len() + 1;
        out.extend((0..known).map(|at| digits[number >> (18 - 6 * at) & 63]));
        out.extend(std::iter::repeat_n(b'=', 4 - known));
    }
    out
}

const STANDARD: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn escaped(bytes: &[u8], kept: &str, upper: bool) -> Vec<u8> {
    let one = |byte: &u8| match kept.as_bytes().contains(byte) || byte.is_ascii_alphanumeric() {
        true if !kept.is_empty() => vec![*byte],
        _ if upper => format!("%{byte:02X}").into_bytes(),
        _ => format!("%{byte:02x}").into_bytes(),
    };
    bytes.iter().flat_map(one).collect()
}

/// Returns what tools make of a secret, and which part of that nobody may see.
fn printed(secret: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let bytes = secret.as_bytes();
    let whole = |form: Vec<u8>| (form.clone(), form);
    let hex = |upper: bool| {
        let digits = |byte: &u8| if upper { format!("{byte:02X}") } else { format!("{byte:02x}") };
        bytes.iter().map(digits).collect::<String>().into_bytes()
    };
    let ascii = |text: &str| {
        let mut out = String::new();
        for unit in text.encode_utf16() {
            match u8::try_from(unit).ok().filter(u8::is_ascii).map(char::from) {
                Some(c) => out.push(c),
                None => out.push_str(&format!("\\u{unit:04x}")),
            }
        }
        out.into_bytes()
    };
    let json = serde_json::to_string(secret).unwrap();
    let json = json[1..json.len() - 1].to_owned();
    let mut all = vec![
        whole(bytes.to_vec()),
        whole(hex(false)),
        whole(hex(true)),
        whole(secret.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        whole(secret.encode_utf16().flat_map(u16::to_be_bytes).collect()),
        whole(escaped(bytes, "-_.~", true)),
        whole(escaped(bytes, "-_.~", false)),
        whole(escaped(bytes, "-_.!~*'()", true)),
        whole(escaped(bytes, "", true)),
        whole(ascii(&json)),
        whole(
            secret.encode_utf16().flat_map(|unit| format!("\\u{unit:04X}").into_bytes()).collect(),
        ),
        whole(json.into_bytes()),
        whole(secret.replace('\'', "'\\''").into_bytes()),
    ];
    for before in ["", "a", "ab"] {
        for alphabet in [STANDARD.to_owned(), STANDARD.replace('+', "-").replace('/', "_")] {
            let around = [before.as_bytes(), bytes, b"tail"].concat();
            let form = base64(&around, &alphabet);
            // At both ends a character depends on what stands there.
            let from = (before.len() * 8).div_ceil(6);
            let known = form[from..(before.len() + bytes.len()) * 8 / 6].to_vec();
            all.push((form, known));
        }
    }
    all
}

#[test]
fn every_form_is_found_wherever_the_stream_is_cut() {
    for secret in [SHORT, LONG] {
        let scrubber = scrubber(&[secret]);
        for (form, known) in printed(secret) {
            let text = [b"before <", &form[..], b"> after\n"].concat();
            let whole = scrubbed(&scrubber, &[&text]);
            let shown = String::from_utf8_lossy(&form).into_owned();
            assert!(!has(&whole, &known), "{shown}");
            assert!(has(&whole, MARKER.as_bytes()), "{shown}");
            assert!(whole.starts_with(b"before <") && whole.ends_with(b"> after\n"), "{shown}");
            for at in 0..=text.len() {
                let (left, right) = text.split_at(at);
                assert_eq!(scrubbed(&scrubber, &[left, right]), whole, "{shown} cut at {at}");
            }
            for size in [1, 2, 3, 7] {
                let pieces: Vec<&[u8]> = text.chunks(size).collect();
                assert_eq!(scrubbed(&scrubber, &pieces), whole, "{shown} in pieces of {size}");
            }
        }
    }
}

#[test]
fn no_part_of_a_long_secret_is_left() {
    let scrubber = scrubber(&[LONG]);
    for length in [12, 13, 20, LONG.len()] {
        for part in LONG.as_bytes().windows(length) {
            let text = [b"<", part, b">"].concat();
            let out = scrubbed(&scrubber, &[&text]);
            assert_eq!(out, [b"<", MARKER.as_bytes(), b">"].concat());
        }
    }
    let shorter = &LONG.as_bytes()[..11];
    assert_eq!(scrubbed(&scrubber, &[shorter]), shorter);
    // One that is not long is itself or nothing.
    let scrubber = self::scrubber(&[SHORT]);
    let part = &SHORT.as_bytes()[..13];
    assert_eq!(scrubbed(&scrubber, &[part]), part);
}

#[test]
fn a_secret_of_several_lines_is_found_line_by_line() {
    let scrubber = scrubber(&[KEY]);
    for (text, expected) in [
        (KEY.to_owned(), "[redacted]\n".to_owned()),
        (KEY.replace('\n', "\r\n"), "[redacted]\r\n".to_owned()),
        ("a MIIEpAIBAAKCAQEA75 b\nc\n".into(), "a [redacted] b\nc\n".into()),
        ("> abcdefghij\n> short\n".into(), "> [redacted]\n> short\n".into()),
        ("KEY-----\nMIIEp\n".into(), "[redacted]\n".into()),
    ] {
        assert_eq!(String::from_utf8(scrubbed(&scrubber, &[text.as_bytes()])).unwrap(), expected);
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(String::from_utf8(scrubbed(&scrubber, &bytes)).unwrap(), expected);
    }
    let two = self::scrubber(&["line-one\nline-two"]);
    let out = scrubbed(&two, &[b"say line-two and ", b"line-", b"one\n"]);
    assert_eq!(out, b"say [redacted] and [redacted]\n");
}

#[test]
fn only_what_may_be_a_beginning_is_held_back() {
    let scrubber = scrubber(&[SHORT]);
    let mut stream = scrubber.stream().unwrap();
    let mut out = Vec::new();
    stream.push(b"listening\nhunter2-Z", &mut out);
    assert_eq!(out, b"listening\n");
    stream.push(b"oo hunter2", &mut out);
    assert_eq!(out, b"listening\nhunter2-Zoo ");
    stream.finish(&mut out);
    assert_eq!(out, b"listening\nhunter2-Zoo hunter2");
}

#[test]
fn a_long_secret_is_never_held_back_as_a_whole() {
    let secret: String = (0..20_000).map(|n| char::from(b'a' + (n * n % 23) as u8)).collect();
    let scrubber = scrubber(&[&secret]);
    let mut stream = scrubber.stream().unwrap();
    let mut out = Vec::new();
    for piece in secret.as_bytes().chunks(100) {
        stream.push(piece, &mut out);
        assert!(stream.held_len() < 12);
    }
    stream.finish(&mut out);
    assert_eq!(out, MARKER.as_bytes());
}

#[test]
fn a_few_escaped_characters_are_no_part_of_a_secret() {
    let scrubber = scrubber(&["пароль длиннее двадцати четырёх"]);
    let text = br#"{"a": "\u0434\u043b\u0438"}"#;
    assert_eq!(scrubbed(&scrubber, &[text]), text);
}

#[test]
fn clean_lines_stay_lines() {
    let scrubber = scrubber(&["line-one\nline-two"]);
    let mut lines = scrubber.lines().unwrap();
    assert_eq!(lines.push(b"first\nline-one\n"), (b"first\n".to_vec(), 1));
    assert_eq!(lines.push(b"line-two\nlast\n"), (b"[redacted]\nlast\n".to_vec(), 2));
    assert_eq!(lines.push(b"x line-one\n"), (Vec::new(), 0));
    assert_eq!(lines.finish(), (b"x [redacted]\n".to_vec(), 1));
}

#[test]
fn every_text_of_a_fact_is_scrubbed() {
    let scrubber = scrubber(&[SHORT]);
    let mut value = json!({"a": [SHORT, 1, {SHORT: format!("<{SHORT}>")}], "b": true});
    scrubber.value(&mut value);
    assert_eq!(value, json!({"a": [MARKER, 1, {MARKER: "<[redacted]>"}], "b": true}));
    let mut fault = Fault::new(reeve_protocol::Code::Internal, format!("got {SHORT}"))
        .hint(SHORT)
        .because(SHORT);
    fault.problems = vec![reeve_protocol::fault::Problem {
        pointer: format!("/{SHORT}"),
        message: SHORT.into(),
    }];
    let text = || SHORT.to_owned();
    for kind in [
        Kind::Progress { current: 1, total: None, message: Some(text()) },
        Kind::StepStarted { name: text(), title: text() },
        Kind::StepCompleted { name: text(), ok: true, detail: Some(text()) },
        Kind::Log { stream: reeve_protocol::Output::Stdout, message: text(), cut: false },
        Kind::Diagnostic {
            severity: reeve_protocol::event::Severity::Info,
            code: text(),
            summary: text(),
            detail: Some(text()),
            suggestion: Some(text()),
        },
        Kind::Completed { output: json!([SHORT]), receipt: Some(json!(SHORT)) },
        Kind::Failed { error: fault, receipt: Some(json!(SHORT)) },
        Kind::Unknown { tag: "x".into(), data: json!(SHORT) },
    ] {
        let out = format!("{:?}", scrubber.kind(kind));
        assert!(!out.contains(SHORT) && out.contains(MARKER), "{out}");
    }
}

#[test]
fn without_secrets_there_is_no_search() {
    let none = Scrubber::new(&[]);
    assert!(none.stream().is_none() && none.lines().is_none());
    let mut text = "as it is".to_owned();
    none.text(&mut text);
    assert_eq!(text, "as it is");
    assert!(!format!("{:?}", scrubber(&[SHORT])).contains("hunter"));
}

#[test]
fn a_marker_stays_whatever_the_secret() {
    for secret in ["redacted", "[redacted]", "dacted"] {
        let scrubber = scrubber(&[secret]);
        assert_eq!(scrubbed(&scrubber, &[b"a [redacted] b"]), b"a [redacted] b");
        let out = scrubbed(&scrubber, &[b"<redacted>"]);
        assert_eq!(scrubbed(&scrubber, &[&out]), out);
    }
}

#[test]
fn a_character_that_is_taken_out_in_part_is_still_text() {
    let scrubber = scrubber(&["0123456789aéöüßø-and-more-of-it"]);
    let mut text = "0123456789aè".to_owned();
    scrubber.text(&mut text);
    assert!(text.starts_with(MARKER), "{text}");
}

fn pieces(text: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| text[pair[0]..pair[1]].to_vec()).collect()
}

proptest! {
    #[test]
    fn nothing_of_a_secret_comes_out(
        secret in "[a-c \"'/%é\n\\\\]{6,40}",
        around in proptest::collection::vec("[a-c \n\\[\\]]{0,9}", 2..5),
        form in 0_usize..19,
        cuts in proptest::collection::vec(any::<usize>(), 0..6),
    ) {
        prop_assume!(secret.trim_matches(['\n', '\r']).len() >= 6);
        let scrubber = scrubber(&[&secret]);
        let trimmed = secret.trim_matches(['\n', '\r']).to_owned();
        let forms = printed(&trimmed);
        let (form, known) = &forms[form % forms.len()];
        let text = around.join(&*String::from_utf8_lossy(form)).into_bytes();
        let text = if std::str::from_utf8(form).is_ok() { text } else { form.clone() };
        let pieces = pieces(&text, &cuts);
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let out = scrubbed(&scrubber, &pieces);
        prop_assert!(!has(&out, known));
        if trimmed.len() >= 24 {
            for part in trimmed.as_bytes().windows(12) {
                let ends = |byte: &u8| matches!(byte, b'\n' | b'\r');
                let edge = part.first().is_some_and(ends) || part.last().is_some_and(ends);
                prop_assert!(edge || !has(&out, part), "{}", String::from_utf8_lossy(part));
            }
        }
        prop_assert_eq!(&scrubbed(&scrubber, &[&text]), &out);
        prop_assert_eq!(&scrubbed(&scrubber, &[&out]), &out);
    }

    #[test]
    fn text_without_a_secret_stays_as_it_is(
        text in proptest::collection::vec(0_u8..=255, 0..200),
        cuts in proptest::collection::vec(any::<usize>(), 0..6),
    ) {
        static MADE: std::sync::OnceLock<Scrubber> = std::sync::OnceLock::new();
        let scrubber = MADE.get_or_init(|| scrubber(&["qqqqqqqqqqqqqq", KEY, LONG]));
        let pieces = pieces(&text, &cuts);
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        prop_assert_eq!(scrubbed(scrubber, &pieces), text);
    }
}
