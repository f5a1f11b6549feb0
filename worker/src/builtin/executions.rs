//! `executions.*` and `capabilities.list`: the broker's own answers, as capabilities.

use std::borrow::Cow;

use reeve_protocol::capability::Effect;
use reeve_protocol::stream::Op;
use reeve_protocol::{CapabilityId, ExecutionId, Fault, Seq, State};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::handler::{Ctx, Handler};

/// An answer of the broker, as it is on every surface.
#[derive(Debug, Serialize)]
struct Answer(Value);

impl JsonSchema for Answer {
    fn schema_name() -> Cow<'static, str> {
        "Answer".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object" })
    }
}

/// Nothing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// Which executions are listed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListInput {
    /// Only those in this state.
    state: Option<State>,
    /// Only those of this capability.
    capability: Option<CapabilityId>,
    /// At most so many.
    #[schemars(range(min = 1))]
    limit: Option<u64>,
    /// Only those older than this one.
    before: Option<ExecutionId>,
}

/// Which execution.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GetInput {
    /// Its name.
    id: ExecutionId,
}

/// Which part of a history.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EventsInput {
    /// The name of the execution.
    id: ExecutionId,
    /// The last position that is known already.
    #[serde(default)]
    after: u64,
    /// At most so many.
    #[schemars(range(min = 1))]
    limit: Option<u64>,
}

/// What is stopped, and how.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CancelInput {
    /// The name of the execution.
    id: ExecutionId,
    /// Whether to kill it at once.
    #[serde(default)]
    force: bool,
}

/// Declares all of them.
pub(super) fn handlers() -> Vec<Handler> {
    let read = |handler: Handler, description: &str| {
        handler.description(description).effect(Effect::Read).idempotent()
    };
    vec![
        read(
            Handler::new("capabilities.list", "List what can be called", capabilities),
            "Returns everything that is declared here, with the schemas of its input and output. \
             Where no broker serves the checkout, what this program and the manifest declare.",
        ),
        read(
            Handler::new("executions.list", "List executions", list),
            "Returns what the broker of this checkout knows of, newest first.",
        ),
        read(
            Handler::new("executions.get", "Show an execution", get),
            "Returns one execution as it stands now.",
        ),
        read(
            Handler::new("executions.events", "Read the history of an execution", events),
            "Returns one page of an execution's events, from the one after a position.",
        ),
        Handler::new("executions.cancel", "Ask an execution to stop", cancel)
            .description(
                "Asks an execution to stop, and says whether it was asked before or is over.",
            )
            .effect(Effect::Write)
            .idempotent(),
        read(
            Handler::new("executions.protocol", "Show the contract of the streams", protocol),
            "Returns how executions are followed, the schema of every event, and the limits in force.",
        ),
    ]
}

fn capabilities(ctx: &Ctx, _: Nothing) -> Result<Answer, Fault> {
    ctx.ask(Op::Capabilities {}).map(Answer)
}

fn list(ctx: &Ctx, input: ListInput) -> Result<Answer, Fault> {
    let ListInput { state, capability, limit, before } = input;
    ctx.ask(Op::List { state, capability, limit, before }).map(Answer)
}

fn get(ctx: &Ctx, input: GetInput) -> Result<Answer, Fault> {
    ctx.ask(Op::Get { id: input.id }).map(Answer)
}

fn events(ctx: &Ctx, input: EventsInput) -> Result<Answer, Fault> {
    let EventsInput { id, after, limit } = input;
    ctx.ask(Op::Events { id, after: Seq(after), limit }).map(Answer)
}

fn cancel(ctx: &Ctx, input: CancelInput) -> Result<Answer, Fault> {
    let CancelInput { id, force } = input;
    let by =
        ctx.execution().map_or_else(|| "a handler".to_owned(), |own| format!("execution {own}"));
    ctx.ask(Op::Cancel { id, by, force }).map(Answer)
}

fn protocol(ctx: &Ctx, _: Nothing) -> Result<Answer, Fault> {
    ctx.ask(Op::Protocol {}).map(Answer)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use reeve_protocol::Code;
    use serde_json::json;

    use super::*;
    use crate::handler::tests::site;
    use crate::handler::{Ask, Handlers};

    const ID: &str = "x-20260908T010203Z-0a1b2c3d";

    #[derive(Default)]
    struct Noted(Mutex<Vec<Op>>);

    impl Ask for Noted {
        fn ask(&self, op: Op) -> Result<Value, Fault> {
            self.0.lock().unwrap().push(op);
            Ok(json!({ "answered": true }))
        }
    }

    fn call(ctx: &Ctx, id: &str, input: Value) -> Result<Value, Fault> {
        let handlers = Handlers::builtin();
        let handler = handlers.get(&id.parse().unwrap()).unwrap();
        handler.call(ctx, handler.validate(input)?)
    }

    #[test]
    fn each_asks_the_broker_for_what_it_is_called() {
        let noted = Arc::new(Noted::default());
        let mut site = site("/".as_ref());
        site.broker = Arc::clone(&noted) as Arc<dyn Ask>;
        let ctx = Ctx::silent(Arc::new(site));
        let id: ExecutionId = ID.parse().unwrap();
        for (name, input, op) in [
            ("capabilities.list", json!({}), Op::Capabilities {}),
            (
                "executions.list",
                json!({ "state": "running", "capability": "a.b", "limit": 3, "before": ID }),
                Op::List {
                    state: Some(State::Running),
                    capability: Some("a.b".parse().unwrap()),
                    limit: Some(3),
                    before: Some(id),
                },
            ),
            ("executions.get", json!({ "id": ID }), Op::Get { id }),
            (
                "executions.events",
                json!({ "id": ID, "after": 4 }),
                Op::Events { id, after: Seq(4), limit: None },
            ),
            (
                "executions.cancel",
                json!({ "id": ID, "force": true }),
                Op::Cancel { id, by: "a handler".into(), force: true },
            ),
            ("executions.protocol", json!({}), Op::Protocol {}),
        ] {
            assert_eq!(call(&ctx, name, input).unwrap(), json!({ "answered": true }), "{name}");
            assert_eq!(noted.0.lock().unwrap().pop(), Some(op), "{name}");
        }
    }

    #[test]
    fn without_a_broker_each_says_what_to_do() {
        let ctx = Ctx::silent(Arc::new(site("/".as_ref())));
        for (name, input) in [
            ("executions.list", json!({})),
            ("executions.get", json!({ "id": ID })),
            ("executions.events", json!({ "id": ID })),
            ("executions.cancel", json!({ "id": ID })),
            ("executions.protocol", json!({})),
        ] {
            let fault = call(&ctx, name, input).unwrap_err();
            assert_eq!(fault.code, Code::Unavailable, "{name}");
            assert!(fault.suggestion.is_some_and(|it| it.contains("reeve serve")), "{name}");
        }
        for wrong in [json!({ "limit": 0 }), json!({ "state": "odd" }), json!({ "x": 1 })] {
            assert_eq!(call(&ctx, "executions.list", wrong).unwrap_err().code, Code::InvalidParams);
        }
    }
}
