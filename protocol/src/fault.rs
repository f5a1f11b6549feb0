//! Faults: what went wrong, where a call stopped, and what may have happened.
//!
//! One closed list of codes on every surface. A code is never renamed or reused.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $http:literal, $exit:literal;)*) => {
        /// What a caller may branch on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)*
        }

        impl Code {
            /// Every code, in the order of the contract.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the word on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// Returns the HTTP status that an answer with this code carries (RFC 9110).
            pub fn http_status(self) -> u16 {
                match self { $(Self::$variant => $http,)* }
            }

            /// Returns the exit status of `reeve run` when a call ends with this code.
            pub fn exit(self) -> u8 {
                match self { $(Self::$variant => $exit,)* }
            }
        }
    };
}

codes! {
    /// The capability is not declared.
    ActionNotFound = "ACTION_NOT_FOUND", 404, 3;
    /// The arguments could not be decoded.
    InvalidArgs = "INVALID_ARGS", 400, 2;
    /// The arguments break the capability's schema.
    InvalidParams = "INVALID_PARAMS", 400, 2;
    /// A person or the policy said no.
    PermissionDenied = "PERMISSION_DENIED", 403, 4;
    /// The capability is declared but cannot run now.
    ActionUnavailable = "ACTION_UNAVAILABLE", 409, 4;
    /// It ran and failed; the effect may be partial.
    ExecutionFailed = "EXECUTION_FAILED", 200, 1;
    /// It ran, and the declared expectation was not observed.
    ExpectationFailed = "EXPECTATION_FAILED", 200, 1;
    /// A step of a flow failed; earlier steps may have taken effect.
    StepFailed = "STEP_FAILED", 200, 1;
    /// The person who was asked to act cancelled.
    HandoffCancelled = "HANDOFF_CANCELLED", 200, 1;
    /// The person who was asked to act did not in time.
    HandoffTimeout = "HANDOFF_TIMEOUT", 200, 1;
    /// The person acted, and the expectation was not met.
    HandoffFailed = "HANDOFF_FAILED", 200, 1;
    /// The process that ran it, or the broker, is not there.
    Unavailable = "unavailable", 503, 1;
    /// A fault of ours.
    Internal = "internal", 500, 1;
    /// It was cancelled.
    Cancelled = "cancelled", 200, 130;
    /// No such execution, question or route.
    NotFound = "not_found", 404, 3;
    /// The request is not of the form that was asked for.
    InvalidRequest = "invalid_request", 400, 2;
    /// This caller may not.
    Forbidden = "forbidden", 403, 4;
    /// The caller did not say who it is.
    Unauthorized = "unauthorized", 401, 4;
    /// A size limit was passed.
    TooLarge = "too_large", 413, 2;
    /// A form of request that is not taken.
    Unsupported = "unsupported", 415, 2;
    /// The peer took too long.
    Timeout = "timeout", 408, 2;
    /// A limit on work is reached; later is better.
    Busy = "busy", 429, 5;
    /// The route does not take this method.
    MethodNotAllowed = "method_not_allowed", 405, 2;
    /// The route is a WebSocket.
    UpgradeRequired = "upgrade_required", 426, 2;
    /// The writer's right to this execution is over.
    Fenced = "fenced", 409, 1;
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What may have happened before a call stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SideEffect {
    /// Nothing: starting it again is safe.
    #[default]
    None,
    /// It was sent, and its effect was not observed.
    Possible,
    /// Some of it happened.
    Partial,
    /// Nobody can say.
    Unknown,
}

/// The eight stages of a call.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// 1: the capability is looked up.
    Resolve,
    /// 2: the arguments are decoded and secrets restored.
    Decode,
    /// 3: the arguments are validated and normalised.
    Validate,
    /// 4: the policy or a person agrees.
    Confirm,
    /// 5: the target is made usable.
    Usable,
    /// 6: it runs. From here on a side effect may have happened.
    Execute,
    /// 7: the outcome is observed.
    Observe,
    /// 8: the receipt is made.
    Report,
}

/// One thing that is wrong with an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// Where, as a JSON Pointer (RFC 6901) into the input.
    pub pointer: String,
    /// What was expected there.
    pub message: String,
}

/// A failure as a caller sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fault {
    /// What to branch on.
    pub code: Code,
    /// Where the call stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// What may have happened.
    #[serde(default)]
    pub side_effect: SideEffect,
    /// One word that narrows the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A sentence for people.
    pub message: String,
    /// What is wrong with the input, each with its place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
    /// Ties this fault to the execution (its id) or to the log line of the broker.
    #[serde(default)]
    pub correlation_id: String,
}

impl Fault {
    /// Makes a fault that stopped before anything could happen.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            stage: None,
            side_effect: SideEffect::None,
            reason: None,
            message: message.into(),
            problems: Vec::new(),
            suggestion: None,
            correlation_id: String::new(),
        }
    }

    /// Names the stage at which the call stopped.
    #[must_use]
    pub fn at(mut self, stage: Stage) -> Self {
        self.stage = Some(stage);
        self
    }

    /// Narrows the code by one word.
    #[must_use]
    pub fn because(mut self, reason: &str) -> Self {
        self.reason = Some(reason.to_owned());
        self
    }

    /// Says what may have happened.
    #[must_use]
    pub fn with_effect(mut self, side_effect: SideEffect) -> Self {
        self.side_effect = side_effect;
        self
    }

    /// Says what to do about it.
    #[must_use]
    pub fn hint(mut self, suggestion: impl Into<String>) -> Self {
        self.suggestion = Some(suggestion.into());
        self
    }

    /// Ties the fault to what it belongs to.
    #[must_use]
    pub fn about(mut self, correlation_id: impl fmt::Display) -> Self {
        self.correlation_id = correlation_id.to_string();
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)?;
        if let Some(suggestion) = &self.suggestion {
            write!(f, " ({suggestion})")?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}
