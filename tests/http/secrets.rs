//! Secrets, from outside: a program gets them, and nobody else ever sees one.

use std::fs::{self, File};
use std::path::Path;

use reeve_tests::{Running, until};
use serde_json::{Value, json};

use crate::Served;

const MANIFEST: &str = r#"
[capability.login]
command = ["sh", "say.sh"]
stdin = "input"
[capability.login.input]
required = ["password", "key"]
properties.password = { type = "string", format = "password" }
properties.key = { anyOf = [{ type = "string", x-reeve-sensitive = true }, { type = "null" }] }
properties.servers = { type = "array", items = { '$ref' = '#/$defs/server' } }
properties.password_policy = { type = "string" }
'$defs'.server = { type = "object", properties.name = { type = "string" }, properties.token = { writeOnly = true } }
"#;

/// Writes everything in small pieces and on every way there is.
const SCRIPT: &str = r#"
cat > got.json
pieces() {
    at=0
    while [ "$at" -le "$1" ]; do
        dd if=forms.bin bs=61 skip="$at" count=1 2>/dev/null
        at=$((at + 1))
    done
}
count=$(($(wc -c < forms.bin) / 61))
pieces "$count"
pieces "$count" >&2
cat events.jsonl > "/proc/self/fd/$REEVE_EVENTS_FD"
echo $$ > pid
until [ -e go ]; do sleep 0.02; done
exit "$(cat go)"
"#;

const PASSWORD: &str = "hunter2-Zebra/é";
const KEY: &str = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA75\nabcdefghij+/==\n-----END KEY-----";
const TOKEN: &str = "tok_live_51HxQ8&b c=\"d\"'99887766";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: Vec<u8> =
        bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1)).collect();
    let digit = |six: &[u8]| six.iter().fold(0, |sum, bit| sum << 1 | usize::from(*bit));
    bits.chunks_exact(6).map(|six| char::from(DIGITS[digit(six)])).collect()
}

/// Returns the ways in which a tool may write a secret.
fn forms(secret: &str) -> Vec<Vec<u8>> {
    let bytes = secret.as_bytes();
    let percent: String = bytes
        .iter()
        .map(|byte| match byte.is_ascii_alphanumeric() {
            true => char::from(*byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect();
    let json = json!(secret).to_string();
    vec![
        bytes.to_vec(),
        base64(bytes).into_bytes(),
        base64(&[b"x", bytes].concat()).as_bytes()[2..].to_vec(),
        base64(&[b"xy", bytes].concat()).as_bytes()[3..].to_vec(),
        hex(bytes).into_bytes(),
        hex(bytes).to_uppercase().into_bytes(),
        percent.into_bytes(),
        json.as_bytes()[1..json.len() - 1].to_vec(),
        secret.replace('\'', "'\\''").into_bytes(),
        secret.encode_utf16().flat_map(u16::to_le_bytes).collect(),
        secret.encode_utf16().flat_map(u16::to_be_bytes).collect(),
    ]
}

/// Returns what must be found nowhere.
fn needles() -> Vec<Vec<u8>> {
    let mut needles: Vec<Vec<u8>> = [PASSWORD, KEY, TOKEN].into_iter().flat_map(forms).collect();
    needles.extend(KEY.lines().map(|line| line.as_bytes().to_vec()));
    needles.extend(TOKEN.as_bytes().windows(12).map(<[u8]>::to_vec));
    needles
}

#[track_caller]
fn clean(place: &str, bytes: impl AsRef<[u8]>) {
    let bytes = bytes.as_ref();
    for needle in needles() {
        let found = bytes.windows(needle.len()).any(|window| window == needle);
        let needle = String::from_utf8_lossy(&needle);
        assert!(!found, "{place} has {needle:?}: {}", String::from_utf8_lossy(bytes));
    }
}

fn clean_below(folder: &Path) {
    for entry in fs::read_dir(folder).expect("a folder can be listed").flatten() {
        let path = entry.path();
        if path.is_dir() {
            clean_below(&path);
        } else if path.is_file() {
            clean(&path.display().to_string(), fs::read(&path).expect("a file can be read"));
        }
    }
}

fn input() -> Value {
    json!({
        "password": PASSWORD,
        "key": KEY,
        "servers": [{"name": "a", "token": {"inner": [TOKEN]}}, {"name": "b"}],
        "password_policy": "at least eight",
    })
}

/// Prepares what the program says, and starts it with its input on standard input.
fn login(served: &Served, format: &str) -> Running {
    let checkout = &served.checkout;
    let mut all = Vec::new();
    for form in [PASSWORD, KEY, TOKEN].into_iter().flat_map(forms) {
        all.extend([b"<", &form[..], b">\n"].concat());
    }
    // What a terminal acts on stands in the middle.
    all.extend(b"<hunter2\x1b[31m-Zeb\x1b]0;title\x07ra/\xc3\x1b[0m\xa9>\n");
    all.extend(format!("<{}\x1b[1m{}>\nend\n", &TOKEN[..15], &TOKEN[15..]).bytes());
    fs::write(checkout.root().join("forms.bin"), all).expect("a file can be written");
    let fact = |kind: &str, data: Value| json!({ "type": kind, "data": data }).to_string();
    let lines = [
        fact("execution.progress", json!({ "current": 1, "message": format!("with {TOKEN}") })),
        fact("execution.step.started", json!({ "name": PASSWORD, "title": KEY })),
        fact("execution.log", json!({ "stream": "stdout", "message": format!("x{PASSWORD}x") })),
        fact(
            "execution.diagnostic",
            json!({ "severity": "info", "code": PASSWORD, "summary": base64(TOKEN.as_bytes()) }),
        ),
        fact("execution.output", json!({ PASSWORD: [TOKEN, KEY, hex(PASSWORD.as_bytes())] })),
        fact("execution.progress", json!({ "current": PASSWORD })),
        format!("no JSON: {PASSWORD} {TOKEN}"),
        format!("{{\"{PASSWORD}\": 1}}"),
    ];
    checkout.write("events.jsonl", &(lines.join("\n") + "\n"));
    checkout.write("say.sh", SCRIPT);
    let path = checkout.home().join("input.json");
    fs::write(&path, input().to_string()).expect("a file can be written");
    let stdin = File::open(&path).expect("a file can be read");
    fs::remove_file(&path).expect("a file can be removed");
    let args = ["run", "login", "--input", "-", "--format", format];
    let mut command = checkout.command(args);
    Running::spawn(command.stdin(stdin))
}

/// A secret reaches the program whole, and is on no other surface, whatever the program prints.
#[test]
fn a_secret_is_seen_by_its_program_alone() {
    for (format, code) in [("text", 0), ("json", 3), ("ndjson", 0)] {
        let served = Served::of(MANIFEST, &[]);
        let checkout = &served.checkout;
        let run = login(&served, format);
        let child = until("the program to have said everything", || {
            checkout.read("pid")?.trim().parse::<u32>().ok()
        });
        for pid in [run.pid(), served.broker.pid(), child] {
            let command = fs::read(format!("/proc/{pid}/cmdline")).expect("it runs");
            clean("a command line", command);
        }
        checkout.write("go", &code.to_string());
        let ran = run.wait();
        assert_eq!(ran.code(), i32::from(code != 0), "{ran:?}");
        clean("what a run writes", &ran.stdout);
        clean("what a run says", &ran.stderr);

        let got: Value = serde_json::from_str(&checkout.read("got.json").expect("it read it"))
            .expect("a program gets JSON");
        assert_eq!(got, input(), "the program itself gets everything");

        let one = checkout.list().remove(0);
        let id = one["id"].as_str().expect("an id").to_owned();
        let shown = checkout.show(&id);
        assert_eq!(shown["input"]["password"], json!({ "redacted": true }));
        assert_eq!(shown["input"]["key"], json!({ "redacted": true }));
        assert_eq!(
            shown["input"]["servers"],
            json!([{"name": "a", "token": {"redacted": true}}, {"name": "b"}])
        );
        assert_eq!(shown["input"]["password_policy"], "at least eight");
        let history = checkout.history(&id);
        let lines: Vec<&str> =
            history.iter().filter_map(|event| event["data"]["message"].as_str()).collect();
        assert!(lines.iter().filter(|line| **line == "<[redacted]>").count() > 50, "{lines:#?}");
        assert!(lines.contains(&"end") && lines.contains(&"x[redacted]x"), "{lines:#?}");

        clean("the list", json!(checkout.list()).to_string());
        clean("a snapshot", shown.to_string());
        clean("the history", json!(history).to_string());
        let text = checkout.run(["executions", "events", &id]);
        clean("the history as text", text.stdout);
        for target in [
            "/api/v1/executions".to_owned(),
            format!("/api/v1/executions/get?id={id}"),
            format!("/api/v1/executions/events?id={id}&limit=500"),
            "/api/v1/capabilities".to_owned(),
        ] {
            let answer = served.get(&target);
            assert_eq!(answer.status, 200, "{answer:?}");
            clean(&target, answer.body);
        }
        clean_below(&checkout.home().join("state"));
        let stopped = checkout.run(["stop"]);
        assert_eq!(stopped.code(), 0, "{stopped:?}");
        let Served { broker, checkout, .. } = served;
        clean("the broker's log", broker.wait().stderr);
        drop(checkout);
    }
}

/// Nothing is started with a secret that could not be found again, and no refusal repeats one.
#[test]
fn a_refusal_repeats_no_secret() {
    let served = Served::of(MANIFEST, &[]);
    let url = "/api/v1/executions/start";
    for (input, reason) in [
        (json!({ "password": "five5", "key": KEY }), "secret_too_short"),
        (json!({ "password": "x".repeat(33_000), "key": KEY }), "secret_too_long"),
        (json!({ "password": [TOKEN], "key": KEY }), ""),
        (json!({ "password": PASSWORD, "key": { TOKEN: 1 } }), ""),
        (json!({ "password": PASSWORD, "key": KEY, "servers": TOKEN }), ""),
    ] {
        let answer = served.post(url, &json!({ "capability": "login", "input": input }));
        assert_eq!(answer.status, 400, "{answer:?}");
        assert_eq!(answer.reason(), reason);
        clean("a refusal", &answer.body);
        assert!(!answer.body.contains("five5"));
    }
    served.still_fine();
}

/// Whoever reports an execution of what is declared here shows no marked value of it, either.
#[test]
fn a_report_from_elsewhere_shows_no_marked_input() {
    let served = Served::of(MANIFEST, &[]);
    let id = reeve_tests::wire::id(7);
    let report = json!({
        "id": id, "pid": std::process::id(), "first": 1,
        "description": { "capability": "login", "title": "Elsewhere", "input": input() },
        "events": [
            { "type": "execution.created",
              "data": { "capability": "login", "title": "Elsewhere", "input": input() } },
            { "type": "execution.queued", "data": { "ahead": 0 } },
        ],
    });
    let answer = served.post("/api/v1/executions/report", &report);
    assert_eq!(answer.status, 200, "{answer:?}");
    let shown = served.get(&format!("/api/v1/executions/get?id={id}"));
    clean("a reported snapshot", &shown.body);
    let events = served.get(&format!("/api/v1/executions/events?id={id}"));
    assert_eq!(events.json()["events"].as_array().map(Vec::len), Some(2), "{events:?}");
    clean("a reported history", &events.body);
    assert_eq!(shown.json()["input"]["password_policy"], "at least eight");
}
