//! What is wrong is refused before anything runs; what ended is told by its exit status.

use std::sync::Arc;
use std::time::Duration;

use reeve_protocol::Code;
use reeve_protocol::manifest;
use reeve_protocol::place::Place;
use reeve_protocol::snapshot::Repository;
use reeve_worker::handler::Handlers;
use serde_json::json;

use super::plan::{PlannedProcess, PlannedWork, mint};
use super::*;

const MANIFEST: &str = r#"
[capability."tests.unit"]
command = ["runner", "--filter", "{filter}"]
timeout = "90s"

[capability."tests.unit".input]
type = "object"
additionalProperties = false

[capability."tests.unit".input.properties.filter]
type = "string"
default = "all"
"#;

fn here() -> Here {
    let place = Place {
        root: "/repo".into(),
        id: "0".repeat(16),
        git_dir: None,
        state_dir: "/nowhere".into(),
        run_dir: "/nowhere".into(),
        repository: Repository::default(),
    };
    Here { dir: "/repo/sub".into(), place, handlers: Arc::new(Handlers::builtin()) }
}

fn args(capability: &str, set: &[&str]) -> RunArgs {
    RunArgs {
        capability: capability.parse().unwrap(),
        input: None,
        set: set.iter().map(|text| (*text).to_owned()).collect(),
        quiet: false,
        trust_writable: false,
        id: Some(mint().unwrap()),
    }
}

fn planned(capability: &str, set: &[&str]) -> Result<PlannedCall, Failure> {
    let manifest = manifest::parse(MANIFEST, manifest::FILE).unwrap_or_else(|errors| {
        panic!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    });
    plan(&here(), &manifest, &args(capability, set))
}

fn process(call: &PlannedCall) -> &PlannedProcess {
    match &call.work {
        PlannedWork::Process(process) => process,
        PlannedWork::Handler(handler) => panic!("{handler:?} is no process"),
    }
}

#[test]
fn a_call_is_planned_from_its_declaration() {
    let call = planned("tests.unit", &["filter=x y"]).unwrap();
    let of_call = process(&call);
    assert_eq!(of_call.argv, ["runner", "--filter", "x y"]);
    assert_eq!(call.description.input, json!({ "filter": "x y" }));
    assert_eq!(of_call.timeout, Some(Duration::from_secs(90)));
    assert!(of_call.cwd.starts_with("/repo"));
    assert_eq!(process(&planned("tests.unit", &[]).unwrap()).argv[2], "all");
}

#[test]
fn a_call_that_cannot_be_is_refused_with_its_code() {
    let unknown = planned("tests.unti", &[]).unwrap_err();
    assert_eq!((unknown.code, unknown.kind), (Some(Code::ActionNotFound), Exit::NotFound));
    assert_eq!(unknown.hints, ["did you mean tests.unit?"]);
    let params = planned("tests.unit", &["fliter=x"]).unwrap_err();
    assert_eq!((params.code, params.kind), (Some(Code::InvalidParams), Exit::Usage));
}

#[test]
fn an_input_over_the_limit_max_value_bytes_is_too_large() {
    let mut manifest = manifest::parse(MANIFEST, manifest::FILE).unwrap();
    let set = ["filter=12345"];
    let bytes = r#"{"filter":"12345"}"#.len();
    manifest.limits.max_value_bytes = bytes;
    assert!(plan(&here(), &manifest, &args("tests.unit", &set)).is_ok());
    manifest.limits.max_value_bytes = bytes - 1;
    let failure = plan(&here(), &manifest, &args("tests.unit", &set)).unwrap_err();
    assert_eq!((failure.code, failure.kind), (Some(Code::TooLarge), Exit::Usage));
}

fn ended(state: State, error: Option<Code>, child: Option<u8>, role: &'static str) -> u8 {
    let mut call = planned("tests.unit", &[]).unwrap();
    call.role = role;
    let error = error.map(|code| Fault::new(code, "x"));
    let driven = Driven { state, child, error, snapshot: None };
    finish(&mut Ui::new(Format::Json), |_, _, _| Ok(driven), call).unwrap().code()
}

#[test]
fn the_exit_status_tells_how_it_ended() {
    assert_eq!(ended(State::Succeeded, None, Some(0), "run"), 0);
    assert_eq!(ended(State::Failed, Some(Code::ExecutionFailed), Some(7), "run"), 1);
    assert_eq!(ended(State::Cancelled, Some(Code::Cancelled), None, "run"), 130);
    assert_eq!(ended(State::Failed, Some(Code::ActionUnavailable), None, "run"), 4);
    assert_eq!(ended(State::Failed, Some(Code::ExecutionFailed), Some(7), "exec"), 7);
    assert_eq!(ended(State::Cancelled, None, Some(143), "exec"), 143);
    assert_eq!(ended(State::Cancelled, None, None, "exec"), 130);
}
