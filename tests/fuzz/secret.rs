//! What takes secrets out: of an input by its schema, and of an output by its bytes.

use reeve_protocol::secret::{SECRET_MIN, Secret};
use serde_json::{Value, json};

use crate::{bounded, bounded_over};

const WORD: &str = "hunter2-Zebra!";
const LONG: &str = "sk_live_51HxQ8/A+b~c d=&\"\u{e9}'\\x0099887766";

/// An input, divided into what everybody may see and what only its handler may.
pub mod redact {
    use std::sync::OnceLock;

    use reeve_protocol::redact::{MARKER, Sensitive};
    use reeve_protocol::strict;

    use super::*;

    pub fn good() -> Vec<Vec<u8>> {
        let inputs = [
            json!({ "password": WORD, "user": "me", "note": format!("it is {WORD}") }),
            json!({ "keys": [LONG, WORD], "deep": { "x-a": { "token": "abcdefgh" }, "b": 1 } }),
            json!({ "either": { "secret": ["one-two-three"] }, "password": { "not": "a text" } }),
            json!({ "password": "", "keys": [], "either": "plain" }),
        ];
        inputs.iter().map(|input| input.to_string().into_bytes()).collect()
    }

    fn marks() -> &'static Sensitive {
        static MARKS: OnceLock<Sensitive> = OnceLock::new();
        MARKS.get_or_init(|| {
            Sensitive::new(&json!({
                "type": "object",
                "properties": {
                    "password": { "format": "password" },
                    "keys": { "items": { "$ref": "#/$defs/key" } },
                    "deep": { "patternProperties": { "^x-": { "$ref": "#/$defs/holder" } } },
                    "either": { "anyOf": [{ "type": "string" }, { "$ref": "#/$defs/holder" }] },
                },
                "$defs": {
                    "key": { "x-reeve-sensitive": true },
                    "holder": { "properties": {
                        "token": { "writeOnly": true },
                        "secret": { "items": { "writeOnly": true } },
                    } },
                },
            }))
            .expect("these marks can be followed")
        })
    }

    fn texts<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
        match value {
            Value::String(text) => found.push(text),
            Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
            Value::Object(members) => members.values().for_each(|item| texts(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// What a pattern of the schema needs the first time that it is looked for.
    const REDACT_BYTES: u64 = 2 << 20;

    pub fn check(input: &[u8]) {
        let Ok(input) = strict::parse(input) else { return };
        let bytes = input.to_string().len();
        let divided = bounded_over(REDACT_BYTES, bytes, 256, || marks().withhold(&input));
        if input["password"].is_string() {
            assert_eq!(divided.shown["password"], json!({ "redacted": true }));
        }
        let mut shown = Vec::new();
        texts(&divided.shown, &mut shown);
        for secret in divided.secrets.iter().map(Secret::reveal) {
            // What is short or looks like the marker itself could not be told from it.
            if secret.len() >= SECRET_MIN
                && !MARKER.contains(secret)
                && !secret.contains(['[', ']'])
            {
                let leaked = shown.iter().find(|text| text.contains(secret));
                assert_eq!(leaked, None, "{secret:?} is still there");
            }
        }
        assert_eq!(marks().withhold(&divided.shown).shown, divided.shown, "once is enough");
    }
}

/// An output, in whatever pieces it comes.
pub mod scrub {
    use std::sync::OnceLock;

    use reeve_worker::scrub::Scrubber;

    use super::*;

    pub fn good() -> Vec<Vec<u8>> {
        let quoted = json!({ "a": LONG, "b": [WORD, WORD] }).to_string();
        let escaped: String = LONG.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let texts =
            [format!("before {WORD} after\n"), format!("{LONG}{WORD}{WORD}"), quoted, escaped];
        texts.into_iter().map(String::into_bytes).collect()
    }

    fn scrubbed(pieces: &[&[u8]]) -> Vec<u8> {
        static SCRUBBER: OnceLock<Scrubber> = OnceLock::new();
        let scrubber = SCRUBBER.get_or_init(|| Scrubber::new(&[WORD, LONG].map(Secret::new)));
        let mut stream = scrubber.stream().expect("there are secrets");
        let mut out = Vec::new();
        pieces.iter().for_each(|piece| stream.push(piece, &mut out));
        stream.finish(&mut out);
        out
    }

    pub fn check(input: &[u8]) {
        scrubbed(&[]);
        let out = bounded(input.len(), 32, || scrubbed(&[input]));
        for secret in [WORD, LONG] {
            let leaked = out.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!leaked, "{:?}", out.escape_ascii().to_string());
        }
        let (first, second) = input.split_at(input.len() / 3);
        let (second, third) = second.split_at(second.len() / 2);
        assert_eq!(scrubbed(&[first, second, third]), out, "no cut shows");
        assert_eq!(scrubbed(&[&out]), out, "once is enough");
    }
}
