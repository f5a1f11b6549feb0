use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::*;
use crate::capability::{OnWorkerLoss, Stdin};
use crate::frame::DEPTH_MAX;
use crate::input::argv;

fn errors(text: &str) -> Vec<String> {
    let errors = parse(text, FILE).expect_err("must be refused");
    assert!(!errors.is_empty());
    errors.iter().map(ManifestError::headline).collect()
}

/// The manifest is refused for exactly this reason.
fn refused(text: &str, said: &str) {
    let errors = errors(text);
    assert!(errors.len() == 1 && errors[0].contains(said), "{text}\n{errors:#?}");
}

fn accepted(text: &str) -> Manifest {
    parse(text, FILE).unwrap_or_else(|errors| {
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        panic!("{text}\n{}", errors.join("\n"))
    })
}

/// A capability with these keys beside its command.
fn with(keys: &str) -> String {
    format!("[capability.a]\ncommand = [\"true\"]\n{keys}\n")
}

fn one(keys: &str) -> Descriptor {
    accepted(&with(keys)).capabilities.remove(&"a".parse().unwrap()).unwrap()
}

const FULL: &str = r#"
[capability.test]
title = "Unit tests"
description = "Runs them."
command = ["cargo", "test", "--workspace", "{filter?}"]
effect = "read"
confirm = "always"
overlap = { lock = "target" }
cancellable = true
idempotent = true
timeout = "20m"
cancel_grace = "3s"
cwd = "./crates//core/"
env = { set = { RUST_BACKTRACE = "1" }, allow = ["CARGO_HOME"] }
stdin = "input"
pty = false
on_worker_loss = "leave"
output = { type = "object" }
requires = [{ program = "cargo" }, { clean_tree = true }, { port = 80 }]
expect = { exit = 0, within = "2s", equals = { a = [1] } }
evidence = ["git", "reports/**/*.xml"]
secrets = ["TOKEN"]

[capability.test.input]
type = "object"
properties.filter = { type = "string" }

[capability."tests.unit"]
command = ["true"]

[flow.release]
input = { type = "object", properties.version = { type = "string" } }
steps = [
  { run = "test", with = { version = { arg = "version" } } },
  { handoff = { instructions = "Look.", timeout = "1h" } },
]

[policy]
dangerous = "ask"
confirm_timeout = "2m"
rules = [{ id = "deploy.*", actor = "mcp", decide = "deny" }]

[limits]
max_running = 2
silence = "1m"
"#;

#[test]
fn everything_that_can_be_declared_is_read() {
    let manifest = accepted(FULL);
    let test = &manifest.capabilities[&"test".parse().unwrap()];
    assert_eq!((test.title.as_str(), test.effect), ("Unit tests", Effect::Read));
    assert_eq!((test.confirm, test.kind), (Confirm::Always, CapabilityKind::Process));
    assert_eq!(test.overlap, Overlap::Lock("target".to_owned()));
    assert_eq!(test.timeout(), Some(Duration::from_secs(1200)));
    assert_eq!(test.provenance, FILE);
    let process = test.process.as_ref().unwrap();
    assert_eq!(process.cwd, "crates/core");
    assert_eq!(process.env_set["RUST_BACKTRACE"], "1");
    assert_eq!(process.env_allow, ["CARGO_HOME"]);
    assert_eq!((process.stdin, process.cancel_grace_ms), (Stdin::Input, 3_000));
    assert_eq!(process.on_worker_loss, OnWorkerLoss::Leave);
    assert_eq!(manifest.limits.max_running, 2);
    assert_eq!(manifest.limits.silence, Duration::from_secs(60));
    assert_eq!(manifest.limits.max_queued, Limits::default().max_queued);
}

#[test]
fn what_is_not_acted_on_yet_is_listed_with_its_line() {
    let manifest = accepted(FULL);
    let listed: Vec<_> =
        manifest.not_yet.iter().map(|not_yet| (not_yet.line, not_yet.path.as_str())).collect();
    assert_eq!(
        listed,
        [
            (19, "capability.test.requires"),
            (20, "capability.test.expect"),
            (21, "capability.test.evidence"),
            (22, "capability.test.secrets"),
            (31, "flow.release"),
            (39, "policy.dangerous"),
            (40, "policy.confirm_timeout"),
            (41, "policy.rules"),
        ]
    );
}

#[test]
fn a_capability_has_defaults() {
    let one = one("");
    assert_eq!((one.title.as_str(), one.effect), ("a", Effect::Write));
    assert_eq!((one.confirm, one.overlap), (Confirm::Policy, Overlap::Parallel));
    assert!(one.cancellable && !one.idempotent);
    assert_eq!(one.timeout_ms, None);
    assert_eq!(one.input, json!({"type": "object", "additionalProperties": false}));
    let process = one.process.unwrap();
    assert_eq!((process.cwd.as_str(), process.cancel_grace_ms), (".", 10_000));
    assert_eq!((process.stdin, process.pty), (Stdin::None, false));
}

#[test]
fn the_limits_grace_is_a_capabilitys_default() {
    let manifest = accepted(&format!("[limits]\ncancel_grace = \"2s\"\n{}", with("")));
    let one = manifest.capabilities.into_values().next().unwrap();
    assert_eq!(one.process.unwrap().cancel_grace_ms, 2_000);
}

#[test]
fn an_empty_manifest_declares_nothing() {
    let manifest = accepted("");
    assert_eq!(manifest, Manifest::empty());
    assert_eq!(manifest.digest, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_ne!(accepted("# other\n").digest, manifest.digest);
}

#[test]
fn an_unknown_key_is_told_with_the_nearest() {
    let text = "[capability.test]\ncommand = [\"true\"]\n\ntimout = \"1s\"\n";
    let errors = parse(text, FILE).unwrap_err();
    assert_eq!(
        errors[0].headline(),
        "reeve.toml:4:1: unknown key \"timout\" in capability \"test\"; did you mean \"timeout\"?"
    );
    assert_eq!(errors[0].suggestion.as_deref(), Some("timeout"));
    assert_eq!(
        errors[0].to_string().lines().skip(1).collect::<Vec<_>>(),
        ["  4 | timout = \"1s\"", "    | ^^^^^^"]
    );
    refused("[capabilty.a]\n", "did you mean \"capability\"?");
    refused(&with("risk = \"safe\""), "unknown key \"risk\"");
    refused(&with("env = { sett = {} }"), "did you mean \"set\"?");
    refused(&with("env.sett = {}"), "unknown key \"sett\" in `env`");
    refused("include = [\"a\"]\n", "unknown key \"include\"");
}

#[test]
fn everything_wrong_is_told_at_once_in_the_order_of_the_text() {
    let text = r#"
[capability.a]
comand = ["x"]
effect = "dangerus"
timeout = 5
cwd = "../x"

[capability."B"]
command = ["x"]

[capability.c]
command = ["x", "{nme}", "{"]
input = { properties.name = { type = "string" } }

[limits]
max_runing = 1
max_queued = -1
"#;
    let errors = errors(text);
    let expected = [
        ":2:13: capability \"a\" has no `command`",
        ":3:1: unknown key \"comand\" in capability \"a\"; did you mean \"command\"?",
        ":4:10: `effect` is \"read\" or \"write\" or \"dangerous\", not \"dangerus\"; did you mean \"dangerous\"?",
        ":5:11: `timeout` must be a duration such as",
        ":6:7: `cwd` is a path below",
        ":8:13: \"B\" is no capability id",
        ":12:17: the input declares no `nme`; did you mean \"name\"?",
        ":12:26: a `{` without its `}`",
        ":16:1: unknown limit \"max_runing\"; did you mean \"max_running\"?",
        ":17:14: `max_queued` is between 0 and",
    ];
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.starts_with(&format!("reeve.toml{expected}")), "{error}\n{expected}");
    }
}

#[test]
fn errors_are_bounded() {
    let text: String = (0..1_000).map(|n| format!("k{n} = 1\n")).collect();
    let errors = parse(&text, FILE).unwrap_err();
    assert_eq!(errors.len(), ERRORS_MAX);
    assert!(errors[ERRORS_MAX - 1].message.contains("901 further errors"));
}

#[test]
fn one_id_declared_twice_is_told_with_both_places() {
    let text = format!("{}\n[capability.b]\ncommand = [\"x\"]\n{}", with(""), with(""));
    let errors = errors(&text);
    assert!(errors[0].contains(":7:13: `a` is declared twice, first in line 1"), "{errors:#?}");
    refused(
        &with("title = \"x\"\ntitle = \"y\""),
        ":4:1: `title` is declared twice, first in line 3",
    );
    let quoted = "[capability.\"a.b\"]\ncommand=[\"x\"]\n[capability.\"a.b\"]\ncommand=[\"x\"]\n";
    assert!(super::tests::errors(quoted)[0].contains("first in line 1"));
    let dotted = "[capability]\na.command = [\"x\"]\na.command = [\"x\"]\n";
    refused(dotted, ":3:3: `command` is declared twice, first in line 2");
}

#[test]
fn a_text_that_is_no_toml_is_told_with_its_place() {
    for (text, place) in [("[capability.a\n", "1:"), ("x = \n", "1:"), ("\n\nx = 'a", "3:")] {
        let errors = errors(text);
        assert!(errors[0].starts_with(&format!("reeve.toml:{place}")), "{errors:?}");
    }
    assert!(errors("a = 1 2\n[b\nc = \"\n").len() > 1, "more than the first is told");
    refused("a = \"\0\"", "NUL");
}

#[test]
fn a_manifest_is_taken_at_its_size_and_refused_beyond() {
    let comment = |length: usize| format!("#{}", "x".repeat(length - 1));
    assert!(parse(&comment(MANIFEST_MAX), FILE).is_ok());
    refused(&comment(MANIFEST_MAX + 1), "at most 1048576");
}

#[test]
fn nesting_is_bounded_before_anything_recurses() {
    let dotted = |count: usize| format!("{} = 1\n", vec!["a"; count].join("."));
    for text in [
        dotted(100_000),
        dotted(DEPTH_MAX + 2),
        format!("[{}]\n", vec!["a"; 100_000].join(".")),
        format!("a = {}", "[".repeat(100_000)),
        format!("a = {}", "{ a = ".repeat(100_000)),
        format!("a = {}", "{ a.b.c.d.e.f.g = [".repeat(1_000)),
        (0..200).map(|n| format!("[{}]\n", vec!["t"; n + 1].join("."))).collect(),
    ] {
        refused(&text, "too_deep");
    }
    let in_text =
        format!("description = \"\"\"\n{}\n\"\"\"\n# {}", "[{.".repeat(1_000), "[".repeat(1_000));
    one(&in_text);
    one(&format!("description = '{}'", "[".repeat(1_000)));
}

#[test]
fn values_are_counted_before_anything_is_built() {
    for text in [
        format!("a = [{}]", "1,".repeat(500_000)),
        (0..90_000).map(|n| format!("k{n}=1\n")).collect(),
        "[[a]]\n".repeat(100_000),
    ] {
        refused(&text, "too_many_nodes");
    }
}

#[test]
fn capabilities_are_counted() {
    let text = |count: usize| -> String {
        (0..count).map(|n| format!("[capability.c{n}]\ncommand = [\"x\"]\n")).collect()
    };
    assert_eq!(accepted(&text(CAPABILITIES_MAX)).capabilities.len(), CAPABILITIES_MAX);
    refused(&text(CAPABILITIES_MAX + 1), "1001 capabilities; a manifest has at most 1000");
}

#[test]
fn an_id_has_its_shape() {
    for id in ["A", "a/b", "..", "a b", "a\\u0007", "\u{430}", "", "-a", &"a".repeat(65)] {
        refused(&format!("[capability.\"{id}\"]\ncommand = [\"x\"]\n"), "is no capability id");
    }
    for id in ["process.exec", "page.x.y", "ext.w.a", "executions.list", "health.report"] {
        refused(&format!("[capability.\"{id}\"]\ncommand = [\"x\"]\n"), "is reserved");
    }
    refused(
        "[capability.tests.unit]\ncommand = [\"x\"]\n[capability.tests]\ncommand = [\"x\"]\n",
        "an id with a dot is quoted: [capability.\"tests.unit\"]",
    );
}

#[test]
fn a_command_is_an_array_of_arguments() {
    refused("[capability.a]\ncommand = \"rm -rf /\"\n", "no shell reads it");
    refused("[capability.a]\ncommand = []\n", "at least one argument");
    refused("[capability.a]\ncommand = [\"x\", 1]\n", "must be a string, not an integer");
    refused("[capability.a]\n", "has no `command`");
    refused(
        "[capability.a]\ncommand = [\"{x}\"]\ninput = { required = [\"x\"], properties.x = { type = \"string\" } }\n",
        "cannot be a placeholder",
    );
    refused("[capability.a]\ncommand = [\"x\", \"a\\u0000\"]\n", "NUL");
}

#[test]
fn a_sensitive_member_goes_by_stdin_only() {
    for mark in ["format = \"password\"", "writeOnly = true", "x-reeve-sensitive = true"] {
        let input = format!(
            "input = {{ required = [\"k\"], properties.k = {{ type = \"string\", {mark} }} }}"
        );
        refused(
            &format!("[capability.a]\ncommand = [\"x\", \"--key={{k}}\"]\n{input}\n"),
            ":2:17: `k` is sensitive",
        );
        one(&format!("stdin = \"input\"\n{input}"));
    }
}

#[test]
fn a_mark_that_cannot_be_followed_is_refused_with_its_place() {
    let text = "[capability.a]\ncommand = [\"x\"]\nstdin = \"input\"\n\
        input = { not = { properties.k = { writeOnly = true } } }\n";
    refused(text, ":4:9: the input's schema: `not` leads to a mark");
    refused(text, "at /not");
}

#[test]
fn a_schema_is_compiled_when_it_is_declared() {
    refused(&with("input = { type = \"array\" }"), "must be \"object\"");
    refused(&with("input = { properties.a = { type = \"text\" } }"), "the input's schema");
    refused(&with("input = { properties.a = { \"$ref\" = \"http://x/y\" } }"), "leaves the schema");
    refused(&with("output = { \"$ref\" = \"file:///etc/passwd\" }"), "leaves the schema");
    refused(
        &with("input = { properties.a = { default = 1, type = \"string\" } }"),
        "the default of /a",
    );
    refused(&with("input = { properties.a = { default = 2026-01-01 } }"), "has no dates");
    refused(&with("input = { properties.a = { maximum = inf } }"), "JSON cannot write");
    refused(&with("input = 1"), "must be a table, not an integer");
    let all = format!("input = {{ allOf = [{}] }}", "{},".repeat(10_000));
    one(&all);
    let long = format!("input = {{ description = \"{}\" }}", "x".repeat(70_000));
    refused(&with(&long), "at most 65536");
}

#[test]
fn a_directory_stays_inside() {
    for cwd in ["..", "../../other", "a/../..", "a/../b", "/etc", "~", "~/x", "a\\..\\b", ""] {
        refused(&with(&format!("cwd = '{cwd}'")), "below the checkout's root");
    }
    assert_eq!(one("cwd = \"./\"").process.unwrap().cwd, ".");
    assert_eq!(one("cwd = \"a/./b..c\"").process.unwrap().cwd, "a/b..c");
}

#[test]
fn durations_have_units_and_bounds() {
    for (text, millis) in [
        ("90s", 90_000),
        ("20m", 1_200_000),
        ("1h30m", 5_400_000),
        ("500ms", 500),
        ("1m1ms", 60_001),
    ] {
        assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
    }
    for text in [
        "",
        "1",
        "s",
        "1s1m",
        "1m1m",
        "1 m",
        "-1s",
        "1.5s",
        "1d",
        "1S",
        "99999999999999999999s",
        "18446744073709551615h",
        "é",
        "1é",
    ] {
        assert_eq!(duration(text), None, "{text}");
    }
    refused(&with("timeout = \"soon\""), "is no duration");
    refused(&with("timeout = \"0s\""), "between 100ms and 168h");
    refused(&with("timeout = \"169h\""), "between 100ms and 168h");
    refused(&with("cancel_grace = \"11m\""), "between 0ms and 10m");
    assert_eq!(one("timeout = \"168h\"\ncancel_grace = \"0s\"").timeout_ms, Some(604_800_000));
}

#[test]
fn the_other_keys_are_held_to_their_form() {
    refused(&with("title = 1"), "`title` must be a string, not an integer");
    refused(&with("title = \"a\\u001b[31m\""), "control character");
    refused(&with(&format!("title = \"{}\"", "x".repeat(121))), "more than 120");
    refused(&with("effect = \"safe\""), "`effect` is");
    refused(&with("confirm = \"never\""), "`confirm` is");
    refused(&with("overlap = \"none\""), "`overlap` is");
    refused(&with("overlap = {}"), "names a lock");
    refused(&with("overlap = { lock = \"a b\" }"), "a lock's name");
    refused(&with("cancellable = \"yes\""), "true or false");
    refused(&with("stdin = \"null\""), "`stdin` is");
    refused(&with("stdin = \"input\"\npty = true"), "exclude each other");
    refused(&with("on_worker_loss = \"kill\""), "`on_worker_loss` is");
}

#[test]
fn variables_are_named_and_hold_no_secret() {
    refused(&with("env = { set = { \"A=B\" = \"1\" } }"), "no name of a variable");
    refused(&with("env = { allow = [\"1A\"] }"), "no name of a variable");
    refused(&with("env = { set = { REEVE_FENCE = \"1\" } }"), "by the worker alone");
    refused(&with("env = { allow = [\"REEVE_EXECUTION\"] }"), "by the worker alone");
    refused(&with("env = { set = { A = 1 } }"), "must be a string");
    refused(&with("env = { set = { A = \"a\\u0000\" } }"), "no NUL");
    refused(&with("env = { set = { A = \"ghp_0123456789abcdef0123\" } }"), "looks like a secret");
}

#[test]
fn later_keys_are_held_to_their_form() {
    refused(&with("requires = [{ programme = \"x\" }]"), "did you mean \"program\"?");
    refused(&with("requires = [{ program = \"x\", port = 1 }]"), "has one of");
    refused(&with("expect = { exit = \"0\" }"), "must be a whole number");
    refused(&with("evidence = \"git\""), "must be an array");
    refused("[flow.a]\nsteps = [{}]\n", "either `run` or `handoff`");
    refused("[flow.a]\n", "has no `steps`");
    refused("[policy]\ndangerous = \"maybe\"\n", "`dangerous` is");
    refused("[policy]\nrules = [{ id = \"a\" }]\n", "has no `decide`");
}

#[test]
fn every_limit_can_be_set_within_sane_bounds() {
    let Ok(Value::Object(all)) = serde_json::to_value(Limits::default()) else { panic!() };
    let known: BTreeSet<_> = limits::LIMITS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(known, all.keys().cloned().collect());
    for (name, range) in limits::LIMITS {
        let default = all[name].as_u64().unwrap();
        let (least, most, unit) = match range {
            limits::Range::Count(least, most) => (least, most, ""),
            limits::Range::Millis(least, most) => (least, most, "ms"),
        };
        assert!((least..=most).contains(&default), "{name}");
        let text = |value: u64| match unit {
            "" => format!("[limits]\n{name} = {value}\n"),
            unit => format!("[limits]\n{name} = \"{value}{unit}\"\n"),
        };
        if !["silence", "heartbeat"].contains(&name) {
            for value in [least, most] {
                let limits = serde_json::to_value(accepted(&text(value)).limits).unwrap();
                assert_eq!(limits[name], json!(value));
            }
        }
        assert!(errors(&text(most + 1))[0].contains("is between"), "{name}");
        if least > 0 {
            assert!(errors(&text(least - 1))[0].contains("is between"), "{name}");
        }
    }
    refused("[limits]\nsilence = \"3s\"\n", "at least twice `heartbeat`");
    refused("[limits]\nmax_running = \"4\"\n", "must be a whole number, not a string");
    refused("[limits]\nlinger = 4\n", "must be a duration");
    refused("[limits]\nmax_running = 99999999999999999999\n", "64 bits");
}

#[test]
fn an_error_holds_nothing_that_a_terminal_acts_on() {
    let text = "[capability.a]\n\"\u{202e}\u{2066}x\" = 1 # \u{200b}\ncommand = [\"x\"]\n";
    for error in parse(text, "re\u{1b}eve.toml").unwrap_err() {
        let shown = error.to_string();
        assert!(!shown.contains(['\u{202e}', '\u{2066}', '\u{1b}', '\u{200b}']), "{shown}");
    }
    let far = format!("{}command = [{}, 1]\n", "[capability.a]\n", "\"é\",".repeat(200));
    let error = parse(&far, FILE).unwrap_err().remove(0).to_string();
    assert!(error.lines().all(|line| line.chars().count() < 140), "{error}");
}

#[test]
fn a_declared_capability_is_ready_to_be_called() {
    let manifest = accepted(FULL);
    let ready = &manifest.ready[&"test".parse().unwrap()];
    let input = ready.validator.validate(json!({"filter": "a b"})).unwrap();
    let arguments = argv(ready.template.as_ref().unwrap(), &input).unwrap();
    assert_eq!(arguments, ["cargo", "test", "--workspace", "a b"]);
    for descriptor in manifest.capabilities.values().chain(&builtin()) {
        assert!(Ready::new(descriptor).is_ok());
    }
    assert!(ready.validator.validate(json!({"filter": "a", "command": "rm"})).is_err());
}

#[test]
fn the_published_schema_agrees_with_the_parser() {
    let schema = schema();
    crate::input::check_schema(&schema).unwrap();
    let validator = jsonschema::options().offline().build(&schema).unwrap();
    let json = |text: &str| serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
    assert!(validator.is_valid(&json(FULL)));
    for text in [
        "[capability.a]\ncomand = [\"x\"]\n".to_owned(),
        with("effect = \"safe\""),
        with("overlap = {}"),
        "[limits]\nmax_runing = 1\n".to_owned(),
        "[capability.\"A\"]\ncommand = [\"x\"]\n".to_owned(),
    ] {
        assert!(!validator.is_valid(&json(&text)), "{text}");
        assert!(parse(&text, FILE).is_err(), "{text}");
    }
    let keys = schema["$defs"]["capability"]["properties"].as_object().unwrap();
    let keys: BTreeSet<_> = keys.keys().map(String::as_str).collect();
    assert_eq!(keys, capability::KEYS.into_iter().collect());
}

const PAGE: &str = include_str!("../../../docs/MANIFEST.md");

#[test]
fn every_example_of_the_documentation_is_a_manifest() {
    let examples: Vec<_> =
        PAGE.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(examples.len() > 5);
    for example in examples {
        accepted(example);
    }
}

#[test]
fn the_documentation_names_every_key_and_limit() {
    for key in capability::KEYS {
        assert!(
            PAGE.contains(&format!("| `{key}` |")) || PAGE.contains(&format!("<id>.{key}` |")),
            "{key}"
        );
    }
    let Ok(Value::Object(all)) = serde_json::to_value(Limits::default()) else { panic!() };
    for (name, range) in limits::LIMITS {
        let default = all[name].as_u64().unwrap();
        let words = |millis| read::in_words(Duration::from_millis(millis));
        let row = match range {
            limits::Range::Count(least, most) => {
                format!("| `{name}` | {default} | {least} | {most} |")
            }
            limits::Range::Millis(least, most) => {
                format!("| `{name}` | {} | {} | {} |", words(default), words(least), words(most))
            }
        };
        assert!(PAGE.contains(&row), "{row}");
    }
    for id in RESERVED.iter().chain(&RESERVED_PREFIXES) {
        assert!(PAGE.contains(&format!("`{id}`")), "{id}");
    }
}

proptest::proptest! {
    /// Whatever stands in the file, it is read or refused, and every error has a place in it.
    #[test]
    fn any_text_is_read_or_refused(
        picks in proptest::collection::vec((0_usize..80, 0_u8..12, "\\PC{0,6}|[\\[\\]{}=.,#\"'\n]{1,4}"), 0..40),
    ) {
        let lines: Vec<_> = FULL.lines().collect();
        let mut text = String::new();
        for (line, what, noise) in picks {
            let line = lines[line % lines.len()];
            let cut = line.floor_char_boundary(line.len() / 2);
            match what {
                0 => text.push_str(&noise),
                1 => text.push_str(&format!("{}{noise}{}", &line[..cut], &line[cut..])),
                2 => text.push_str(&line[..cut]),
                3 => text.push_str(&format!("[{noise}]")),
                4 => text.push_str(&format!("[[{}", line.trim_start_matches('['))),
                _ => text.push_str(line),
            }
            text.push('\n');
        }
        if let Err(errors) = parse(&text, FILE) {
            proptest::prop_assert!(!errors.is_empty());
            for error in errors {
                proptest::prop_assert!(error.line <= text.lines().count() + 1, "{}", error);
            }
        }
    }
}

#[test]
fn the_published_schema_is_the_one_that_is_meant() {
    let published = include_str!("../../../docs/reeve.schema.json");
    let published: serde_json::Value = serde_json::from_str(published).unwrap();
    assert_eq!(published, schema(), "write it anew: reeve schema > docs/reeve.schema.json");
}
