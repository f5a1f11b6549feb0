//! Readers of text: JSON, heads of requests, queries, manifests, output, lines of a child.

use reeve_broker::fuzz;
use reeve_protocol::{manifest as manifests, sanitise as sanitiser, strict};
use serde_json::{Value, json};

use crate::{bounded, bounded_over};

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Returns whether nothing in a text acts on whoever shows it.
fn is_inert(text: &str) -> bool {
    !text.chars().any(|c| {
        (c.is_control() && c != '\n' && c != '\t') || ('\u{202a}'..='\u{202e}').contains(&c)
    })
}

/// The body of a start: strict JSON, then the checks of an input, then arguments made of it.
pub mod json_request {
    use std::sync::OnceLock;

    use reeve_protocol::input::{Template, Validator, argv};

    use super::*;

    pub fn good() -> Vec<Vec<u8>> {
        texts(&[
            &format!("[{}0]", "0,".repeat(300)),
            &format!("[{}0]", "{\"\":0},".repeat(300)),
            r#"{"seconds":3,"mode":"fast","name":"aaa"}"#,
            r#"{"seconds":0,"tags":["a","b"],"deep":{"x":{"y":[1,2.5,-3,null,true]}}}"#,
            r#" { "seconds" : 60 , "name" : "\u00e9\n\ud83e\udd4a" } "#,
            r#"{"seconds":1,"big":18446744073709551615,"small":-9223372036854775808}"#,
            r#"[[[[{"a":1e10,"b":0.1,"c":"","d":{}}]]]]"#,
        ])
    }

    fn declared() -> &'static (Validator, Template) {
        static DECLARED: OnceLock<(Validator, Template)> = OnceLock::new();
        DECLARED.get_or_init(|| {
            let schema = json!({
                "type": "object",
                "required": ["seconds"],
                "properties": {
                    "seconds": { "type": "integer", "minimum": 0, "maximum": 60 },
                    "mode": { "enum": ["fast", "slow"], "default": "slow" },
                    "name": { "type": "string", "pattern": "^(a+)+$" },
                    "tags": { "type": "array", "items": { "type": "string" } },
                    "deep": { "type": "object" },
                },
            });
            let words =
                ["run", "--for={seconds}", "{name?}", "--mode", "{mode}"].map(str::to_owned);
            let template = Template::new(&words, &schema).expect("a good template");
            (Validator::new(&schema).expect("a good schema"), template)
        })
    }

    /// Writes the one zero that only a lenient reader tells from the other as what it is.
    fn plain(value: Value) -> Value {
        match value {
            Value::Array(items) => items.into_iter().map(plain).collect(),
            Value::Object(members) => {
                members.into_iter().map(|(name, value)| (name, plain(value))).collect()
            }
            Value::Number(number) if number.to_string() == "-0.0" => json!(0),
            other => other,
        }
    }

    pub fn check(input: &[u8]) {
        let parsed = bounded(input.len(), 160, || strict::parse(input));
        let value = match parsed {
            Ok(value) => value,
            Err(error) => return assert!(is_inert(&error.to_string()), "{error:?}"),
        };
        let lenient: Value = serde_json::from_slice(input).expect("whoever is strict is stricter");
        assert_eq!(value, plain(lenient), "two readers read the same");
        assert_eq!(strict::parse(value.to_string().as_bytes()).as_ref(), Ok(&value));
        let (validator, template) = declared();
        match bounded(input.len(), 160, || validator.validate(value)) {
            Ok(taken) => {
                assert_eq!(
                    validator.validate(taken.clone()).as_ref(),
                    Ok(&taken),
                    "once is enough"
                );
                if let Ok(arguments) = argv(template, &taken) {
                    assert!((4..=5).contains(&arguments.len()), "{arguments:?}");
                    assert_eq!(&arguments[..1], ["run"]);
                    let options = arguments.iter().filter(|word| word.starts_with('-')).count();
                    assert_eq!(options, 2, "no value becomes an option: {arguments:?}");
                }
            }
            Err(fault) => assert!(is_inert(&fault.message), "{:?}", fault.message),
        }
    }
}

/// The head of a request, as it comes in.
pub mod http_head {
    use super::*;

    pub fn good() -> Vec<Vec<u8>> {
        texts(&[
            "GET /api/v1/executions?state=running HTTP/1.1\r\nHost: 127.0.0.1:80\r\nAuthorization: Bearer x\r\n\r\n",
            "POST /api/v1/executions/start HTTP/1.1\r\nHost: localhost:1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nCookie: a=\u{e9}\r\n\r\n0\r\n\r\n",
            "GET http://localhost:1/events HTTP/1.1\r\nHost: localhost:1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n",
            "HEAD * HTTP/1.0\r\nHost: a\r\n\r\n",
        ])
    }

    pub fn check(input: &[u8]) {
        let whole = bounded(input.len(), 32, || fuzz::http_head(input));
        for part in 1..=4 {
            match fuzz::http_head(&input[..input.len() * part / 5]) {
                Ok(false) => {}
                // What came afterwards is the body's business.
                Ok(true) => assert_eq!(whole, Ok(true), "part {part} was good"),
                Err(_) => assert!(whole.is_err(), "part {part} was refused"),
            }
        }
        if whole == Ok(true) {
            let end = input.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head");
            let head = &input[..end];
            let lines = head.split(|byte| *byte == b'\n').count();
            assert!(lines <= 97 && end <= 16 << 10);
            let hosts = head.split(|byte| *byte == b'\n').filter(|line| {
                line.get(..5).is_some_and(|name| name.eq_ignore_ascii_case(b"host:"))
            });
            assert_eq!(hosts.count(), 1);
        }
        assert!(whole.err().is_none_or(|status| (400..=505).contains(&status)));
    }
}

/// The query of a request.
pub mod query_string {
    use super::*;

    pub fn good() -> Vec<Vec<u8>> {
        let id = "x-20261130T120000Z-0a1b2c3d";
        texts(&[
            &format!("execution={id}:42&execution={id}&after=7&epoch=abc"),
            &format!("id={id}&limit=50"),
            "a=%C3%A9+%2B&b&c=&=d&&",
            "state=running&capability=tests.unit",
        ])
    }

    pub fn check(input: &[u8]) {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let read = match bounded(text.len(), 64, || fuzz::query(text)) {
            Ok(read) => read,
            Err(fault) => return assert!(is_inert(&fault.message), "{:?}", fault.message),
        };
        let escaped =
            |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
        let parts =
            read.iter().map(|(name, value)| format!("{}={}", escaped(name), escaped(value)));
        let again = parts.collect::<Vec<_>>().join("&");
        assert_eq!(fuzz::query(&again).as_ref(), Ok(&read));
        if let Err(fault) = bounded(text.len(), 64, || fuzz::channel_query(text)) {
            assert!(is_inert(&fault.message), "{:?}", fault.message);
        }
    }
}

/// The text of a manifest.
pub mod manifest {
    use super::*;

    pub fn good() -> Vec<Vec<u8>> {
        texts(&[
            "[capability.test]\ntitle = \"Tests\"\ncommand = [\"cargo\", \"test\", \"{filter?}\"]\neffect = \"read\"\n\
             overlap = { lock = \"target\" }\ntimeout = \"20m\"\n[capability.test.input]\nproperties.filter = { type = \"string\" }\n",
            "[capability.\"a.b\"]\ncommand = [\"x\"]\ncwd = \"sub\"\nenv = { set = { A = \"1\" }, allow = [\"B\"] }\n\
             stdin = \"input\"\npty = true\ncancel_grace = \"5s\"\nrequires = [{ program = \"cargo\" }]\n",
            "[limits]\nmax_running = 2\n[policy]\ndangerous = \"ask\"\n[capability.c]\ncommand = [\"y\", \"{n}\"]\n\
             [capability.c.input]\nrequired = [\"n\"]\nproperties.n = { type = \"integer\", minimum = 0 }\n",
            "# nothing\n",
        ])
    }

    /// A schema is compiled, and a pattern in it, however short the text is.
    const MANIFEST_BYTES: u64 = 2 << 20;

    pub fn check(input: &[u8]) {
        let Ok(text) = std::str::from_utf8(input) else { return };
        match bounded_over(MANIFEST_BYTES, text.len(), 64, || manifests::parse(text, "reeve.toml"))
        {
            Ok(read) => {
                let again = manifests::parse(text, "reeve.toml").expect("it reads again");
                assert_eq!(read.digest, again.digest);
                assert_eq!(read.capabilities, again.capabilities);
                assert!(read.capabilities.len() <= manifests::CAPABILITIES_MAX);
            }
            Err(errors) => {
                assert!(!errors.is_empty(), "a refusal says why");
                for error in errors {
                    assert!(is_inert(&error.to_string()), "{:?}", error.to_string());
                }
            }
        }
    }
}

/// Text of a stranger, made fit to be seen.
pub mod sanitise {
    use super::*;

    pub fn good() -> Vec<Vec<u8>> {
        texts(&[
            "plain\tand clean\nlines\n",
            "\u{1b}[1;31mred\u{1b}[0m \u{1b}]0;title\u{7}after\r\n",
            "10%\r20%\r100%\ndone\n",
            "\u{1b}P1;2|secret\u{1b}\\ \u{9b}31m \u{90}x\u{9c} \u{1b}(0lqk\u{1b}(B\n",
            "a\u{8}b \u{202e}turned\u{202c} \u{200b}\u{feff} e\u{301} \u{1f468}\u{200d}\u{1f469}\n",
            "zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich\n",
        ])
    }

    fn cleaned(input: &[u8], cut: usize, max_chars: usize) -> (Vec<u8>, u32) {
        let (mut lines, mut out) = (sanitiser::Lines::new(max_chars), Vec::new());
        let mut count = lines.push(&input[..cut], &mut out);
        count += lines.push(&input[cut..], &mut out);
        count += lines.finish(&mut out);
        (out, count)
    }

    pub fn check(input: &[u8]) {
        for max_chars in [3, 80, 2_000] {
            let (out, count) = bounded(input.len(), 64, || cleaned(input, 0, max_chars));
            assert!(sanitiser::is_clean(&out), "{:?}", out.escape_ascii().to_string());
            assert_eq!(memchr_count(&out), count as usize, "as many lines as it says");
            let in_two = cleaned(input, input.len() / 3, max_chars);
            assert_eq!((&out, count), (&in_two.0, in_two.1), "no cut shows");
            let text = String::from_utf8(out).expect("clean text is UTF-8");
            for line in text.lines() {
                let line = line.strip_suffix('\u{1}').unwrap_or(line);
                assert!(is_inert(line), "{line:?}");
                assert!(line.chars().count() <= max_chars, "{line:?}");
                assert_eq!(sanitiser::text(line, usize::MAX), line, "clean stays as it is");
            }
            let text = String::from_utf8_lossy(input);
            let one = bounded(input.len(), 64, || sanitiser::text(&text, max_chars));
            assert!(is_inert(&one) && !one.contains('\n'), "{one:?}");
            assert!(one.chars().count() <= max_chars);
            assert_eq!(sanitiser::text(&one, max_chars), one, "clean stays as it is");
        }
    }

    fn memchr_count(bytes: &[u8]) -> usize {
        bytes.iter().filter(|byte| **byte == b'\n').count()
    }
}

/// A line that a process writes to the descriptor it is given for that.
pub mod child_line {
    use reeve_protocol::event::from_child;

    use super::*;

    pub fn good() -> Vec<Vec<u8>> {
        texts(&[
            r#"{"type":"execution.progress","data":{"current":1,"total":2,"message":"m"}}"#,
            r#"{"type":"execution.step.started","data":{"name":"build","title":"Building"}}"#,
            r#"{"type":"execution.step.completed","data":{"name":"build","ok":true}}"#,
            r#"{"type":"execution.diagnostic","data":{"severity":"error","code":"c","summary":"s"}}"#,
            r#"{"type":"execution.log","data":{"stream":"stdout","message":"hello"}}"#,
            r#"{"type":"execution.output","data":[1,2,{"three":4}]}"#,
        ])
    }

    pub fn check(input: &[u8]) {
        let Ok(line) = strict::parse(input) else { return };
        let said = bounded(input.len(), 160, || from_child(&line));
        assert_eq!(said, from_child(&line));
    }
}
