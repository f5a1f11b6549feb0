//! `executions.demonstrate`: an execution that shows what executions look like.

use std::time::Duration;

use reeve_protocol::capability::Effect;
use reeve_protocol::{Code, Fault};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::handler::{Ctx, Handler};

const DESCRIPTION: &str = "Runs so many steps and changes nothing. Each one is started, logs a \
line, is completed and counts as progress, so that a watcher sees every kind of event that work \
usually has; it can be told to take its time, and to fail at a step.";

/// Steps, at most.
const STEPS_MAX: u64 = 100;
/// How long a step takes, at most.
const DELAY_MAX: Duration = Duration::from_secs(10);

/// What is demonstrated.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Input {
    /// How many steps; more than 100 count as 100.
    #[serde(default = "three")]
    steps: u64,
    /// How long each step takes, in milliseconds; more than 10000 count as 10000.
    #[serde(default)]
    delay_ms: u64,
    /// The step to fail at, from 1.
    #[schemars(range(min = 1, max = 100))]
    fail_at: Option<u64>,
}

/// What was demonstrated.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
struct Output {
    /// How many steps were done.
    steps: u64,
    /// How long all of them took, in milliseconds.
    elapsed_ms: u64,
    /// Whether this was an execution, so that somebody could watch it.
    observed: bool,
}

fn three() -> u64 {
    3
}

/// Declares it.
pub(super) fn handler() -> Handler {
    Handler::new("executions.demonstrate", "Demonstrate an execution", demonstrate)
        .description(DESCRIPTION)
        .effect(Effect::Read)
        .cancellable()
        .idempotent()
}

fn demonstrate(ctx: &Ctx, input: Input) -> Result<Output, Fault> {
    let clock = Clock::start();
    let progress = &ctx.progress;
    let steps = input.steps.min(STEPS_MAX);
    let delay = Duration::from_millis(input.delay_ms).min(DELAY_MAX);
    for step in 1..=steps {
        ctx.checkpoint()?;
        let name = format!("step-{step}");
        progress.step(&name, &format!("Step {step} of {steps}"));
        progress.log(&format!("step {step} is at work"));
        progress.pause(delay)?;
        if input.fail_at == Some(step) {
            progress.step_done(&name, false, Some("it was asked to fail here"));
            return Err(Fault::new(
                Code::ExecutionFailed,
                format!("failed at step {step}, as asked"),
            )
            .because("demonstration")
            .hint("leave `fail_at` away to see it succeed"));
        }
        progress.step_done(&name, true, None);
        progress.progress(step, Some(steps), "");
    }
    let elapsed_ms = u64::try_from(clock.now().mono.as_millis()).unwrap_or(u64::MAX);
    Ok(Output { steps, elapsed_ms, observed: progress.observed() })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use reeve_protocol::Code;
    use serde_json::{Value, json};

    use super::*;
    use crate::handler::Handler;
    use crate::handler::tests::site;

    fn call(handler: &Handler, input: Value) -> Result<Value, Fault> {
        let ctx = Ctx::silent(Arc::new(site("/".as_ref())));
        handler.call(&ctx, handler.validate(input)?)
    }

    #[test]
    fn outside_an_execution_it_does_the_same_and_says_that_nobody_saw_it() {
        let output = call(&handler(), json!({})).unwrap();
        assert_eq!((&output["steps"], &output["observed"]), (&json!(3), &json!(false)));
        assert!(output["elapsed_ms"].is_u64());
        let fault = call(&handler(), json!({ "fail_at": 3 })).unwrap_err();
        assert_eq!(
            (fault.code, fault.reason.as_deref()),
            (Code::ExecutionFailed, Some("demonstration"))
        );
        assert_eq!(fault.side_effect, reeve_protocol::SideEffect::None);
        assert!(call(&handler(), json!({ "fail_at": 4 })).is_ok(), "there is no such step");
    }

    #[test]
    fn more_than_the_bounds_counts_as_the_bounds() {
        for (asked, done) in [(0, 0), (100, 100), (101, 100), (u64::MAX, 100)] {
            let output = call(&handler(), json!({ "steps": asked })).unwrap();
            assert_eq!(output["steps"], done);
        }
        let progress = crate::handler::Progress::silent();
        progress.cancel();
        assert!(progress.pause(DELAY_MAX).is_err(), "a pause ends with the flag");
        for wrong in [json!({ "steps": -1 }), json!({ "steps": "x" }), json!({ "fail_at": 0 })] {
            assert_eq!(call(&handler(), wrong).unwrap_err().code, Code::InvalidParams);
        }
    }
}
