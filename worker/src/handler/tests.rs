#![allow(clippy::unwrap_used, reason = "a test may panic")]

use reeve_protocol::snapshot::Repository;
use reeve_protocol::{Kind, Limits, Output, SideEffect, place::Place};
use serde::Deserialize;
use serde_json::json;

use super::*;

/// Returns a checkout that nobody serves.
pub fn site(root: &std::path::Path) -> Site {
    let place = Place {
        root: root.to_owned(),
        id: "0".repeat(16),
        git_dir: None,
        state_dir: root.join("no-state"),
        run_dir: root.join("no-run"),
        repository: Repository { name: "it".into(), ..Repository::default() },
    };
    let broker = Arc::new(NoBroker);
    Site {
        place,
        limits: Limits::default(),
        version: "1.2.3".into(),
        handlers: Default::default(),
        broker,
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Greeting {
    /// Who is greeted.
    name: String,
    #[serde(default = "once")]
    times: u32,
}

fn once() -> u32 {
    1
}

#[derive(Serialize, JsonSchema)]
struct Greeted {
    text: String,
}

fn greet(ctx: &Ctx, input: Greeting) -> Result<Greeted, Fault> {
    ctx.progress.log("hello");
    ctx.checkpoint()?;
    if input.name.is_empty() {
        return Err(Fault::new(Code::ExecutionFailed, "nobody to greet"));
    }
    Ok(Greeted { text: format!("hello {}", input.name).repeat(input.times as usize) })
}

fn greeter(id: &str) -> Handler {
    Handler::new(id, "Greet", greet)
}

fn ctx() -> Ctx {
    Ctx::silent(Arc::new(site("/".as_ref())))
}

#[test]
fn what_a_handler_takes_and_returns_is_read_from_its_types() {
    let handler = greeter("demo.greet")
        .description("Greets.")
        .effect(Effect::Dangerous)
        .overlap(Overlap::Serial)
        .confirm_always()
        .cancellable()
        .idempotent()
        .timeout(Duration::from_secs(2));
    let descriptor = handler.descriptor().unwrap();
    assert_eq!((descriptor.kind, descriptor.effect), (CapabilityKind::Handler, Effect::Dangerous));
    assert_eq!(
        (descriptor.overlap.clone(), descriptor.confirm),
        (Overlap::Serial, Confirm::Always)
    );
    assert!(descriptor.cancellable && descriptor.idempotent && descriptor.is_executable());
    assert_eq!((descriptor.timeout_ms, descriptor.process.clone()), (Some(2_000), None));
    let input = &descriptor.input;
    assert_eq!((&input["type"], &input["required"]), (&json!("object"), &json!(["name"])));
    assert_eq!(input["properties"]["name"]["description"], "Who is greeted.");
    assert_eq!(input["additionalProperties"], json!(false));
    assert_eq!(descriptor.output.unwrap()["properties"]["text"]["type"], "string");
}

#[test]
fn a_direct_call_is_validated_completed_and_answered() {
    let handler = greeter("demo.greet");
    let input = handler.validate(json!({ "name": "you" })).unwrap();
    assert_eq!(input, json!({ "name": "you", "times": 1 }));
    assert_eq!(handler.call(&ctx(), input).unwrap(), json!({ "text": "hello you" }));
    let refused = handler.validate(json!({ "nam": "you" })).unwrap_err();
    assert_eq!(refused.code, Code::InvalidParams);
}

#[test]
fn a_fault_without_a_stage_of_a_handler_that_writes_may_have_done_something() {
    let nobody = || json!({ "name": "", "times": 1 });
    let writes = greeter("demo.greet").call(&ctx(), nobody()).unwrap_err();
    assert_eq!((writes.stage, writes.side_effect), (Some(Stage::Execute), SideEffect::Unknown));
    let reads = greeter("demo.greet").effect(Effect::Read).call(&ctx(), nobody()).unwrap_err();
    assert_eq!(reads.side_effect, SideEffect::None);
    let early = |_: &Ctx, _: Greeting| -> Result<Greeted, Fault> {
        Err(Fault::new(Code::ActionUnavailable, "not now").at(Stage::Usable))
    };
    let early = Handler::new("demo.early", "Early", early).call(&ctx(), nobody()).unwrap_err();
    assert_eq!((early.stage, early.side_effect), (Some(Stage::Usable), SideEffect::None));
}

#[test]
fn an_input_that_the_type_refuses_is_quoted_only_where_nothing_is_secret() {
    #[derive(Deserialize, JsonSchema)]
    struct Open {
        #[schemars(with = "String")]
        n: u8,
    }
    #[derive(Deserialize, JsonSchema)]
    struct Closed {
        #[schemars(with = "String", extend("format" = "password"))]
        n: u8,
    }
    let open = Handler::new("a.b", "", |_: &Ctx, input: Open| Ok(input.n));
    let closed = Handler::new("a.b", "", |_: &Ctx, input: Closed| Ok(input.n));
    let of = |handler: &Handler| handler.call(&ctx(), json!({ "n": "hunter2" })).unwrap_err();
    assert!(of(&open).message.contains("hunter2"));
    assert_eq!(of(&closed).code, Code::InvalidParams);
    assert!(!of(&closed).message.contains("hunter2"), "{}", of(&closed));
}

#[test]
fn a_panic_in_a_direct_call_is_a_fault_and_the_next_call_works() {
    let breaks = |_: &Ctx, input: Greeting| -> Result<Greeted, Fault> {
        assert!(input.name != "panic", "secret in {}", file!());
        greet(&ctx(), input)
    };
    let handler = Handler::new("demo.breaks", "Breaks", breaks);
    let call = |name: &str| handler.call(&ctx(), json!({ "name": name }));
    let fault = call("panic").unwrap_err();
    assert_eq!(fault.code, Code::Internal);
    assert!(!format!("{fault:?}").contains("secret") && !format!("{fault:?}").contains(".rs"));
    assert!(call("you").is_ok());
}

#[test]
fn a_handler_that_cannot_be_declared_is_refused_by_name() {
    let mut handlers = Handlers::builtin();
    let count = handlers.descriptors().len();
    let told = |bad: BadHandler| bad.to_string();
    for (id, why) in [
        ("No Id", "\"No Id\" is no capability id"),
        ("executions.demonstrate", "two handlers are called executions.demonstrate"),
        ("executions.mine", "the id executions.mine is reserved"),
        ("process.exec", "the id process.exec is reserved"),
    ] {
        let bad = told(handlers.add(greeter(id)).unwrap_err());
        assert!(bad.starts_with(why), "{bad}");
    }
    let of_text = Handler::new("a.text", "", |_: &Ctx, text: String| Ok(text));
    let bad = told(handlers.add(of_text).unwrap_err());
    assert!(bad.starts_with("the input of a.text: "), "{bad}");
    assert_eq!(handlers.descriptors().len(), count);
    handlers.add(greeter("demo.greet")).unwrap();
    assert!(handlers.get(&"demo.greet".parse().unwrap()).is_some());
}

#[test]
fn every_built_in_handler_is_declared_well() {
    let handlers = Handlers::builtin();
    for descriptor in handlers.descriptors() {
        let id = &descriptor.id;
        Validator::new(&descriptor.input).unwrap_or_else(|bad| panic!("{id}: {bad}"));
        input::check_schema(descriptor.output.as_ref().unwrap())
            .unwrap_or_else(|bad| panic!("{id}: {bad}"));
        assert!(reeve_protocol::manifest::is_reserved(id), "{id} can be taken by a manifest");
        assert!(!descriptor.description.is_empty() && !descriptor.title.is_empty(), "{id}");
        let stops = id.as_str() == "executions.cancel";
        let effect = if stops { Effect::Write } else { Effect::Read };
        assert_eq!((&*descriptor.provenance, descriptor.effect), ("built-in", effect), "{id}");
    }
    assert_eq!(handlers.descriptors().len(), handlers.ids().count());
}

#[test]
fn lines_are_clean_and_cut_at_their_bound_before_they_wait() {
    let (progress, mut reports) = observed(5);
    progress.log("12345\n123456\n\n\u{1b}[31mred");
    progress.step("name of a step", "x");
    let kinds: Vec<Kind> = reports
        .take_all()
        .into_iter()
        .map(|report| match report {
            Report::Kind(kind) => kind,
            Report::Ended(returned) => panic!("{returned:?}"),
        })
        .collect();
    let line =
        |message: &str, cut| Kind::Log { stream: Output::Stdout, message: message.to_owned(), cut };
    let step = Kind::StepStarted { name: "name…".to_owned(), title: "x".to_owned() };
    let expected =
        [line("12345", false), line("1234…", true), line("", false), line("red", false), step];
    assert_eq!(kinds, expected);
}

#[test]
fn who_is_listened_to_no_longer_waits_for_nobody() {
    let (progress, reports) = observed(100);
    let speaker = progress.clone();
    let speaks = std::thread::spawn(move || {
        (0..10 * WAITING_MAX).for_each(|n| speaker.log(&n.to_string()));
    });
    drop(reports);
    speaks.join().unwrap();
    assert!(!progress.cancelled());
}

#[test]
fn a_handler_may_call_another_one() {
    let inner = Arc::new(greeter("demo.inner"));
    let outer = move |ctx: &Ctx, _: Greeting| -> Result<Greeted, Fault> {
        inner.call(ctx, json!({ "name": "inner", "times": 1 }))?;
        panic!("after it")
    };
    let outer = Handler::new("demo.outer", "Outer", outer);
    let fault = outer.call(&ctx(), json!({ "name": "outer", "times": 1 })).unwrap_err();
    assert_eq!(fault.code, Code::Internal);
    assert!(fault.correlation_id.starts_with("call-"), "{fault:?}");
}
