//! The states of an execution and the legal moves between them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where an execution stands.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It waits: for a worker, a lock, a person. Nothing has happened.
    #[default]
    Queued,
    /// It was entered; a side effect may have happened.
    Running,
    /// It was asked to stop and has not yet.
    Cancelling,
    /// It returned a value. Final.
    Succeeded,
    /// It failed. Final.
    Failed,
    /// It was stopped. Final.
    Cancelled,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Queued,
        Self::Running,
        Self::Cancelling,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Returns whether an execution in this state may move to `to`.
    pub fn may_move_to(self, to: Self) -> bool {
        matches!(
            (self, to),
            (Self::Queued, Self::Running | Self::Cancelled | Self::Failed)
                | (Self::Running, Self::Succeeded | Self::Failed | Self::Cancelling)
                | (Self::Cancelling, Self::Cancelled | Self::Succeeded | Self::Failed)
        )
    }

    /// Returns whether nothing can follow.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// Returns the word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Cancelling => "cancelling",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_listed_moves_are_legal() {
        let legal: Vec<String> = State::ALL
            .iter()
            .flat_map(|from| State::ALL.iter().map(move |to| (from, to)))
            .filter(|(from, to)| from.may_move_to(**to))
            .map(|(from, to)| format!("{from}>{to}"))
            .collect();
        assert_eq!(
            legal,
            [
                "queued>running",
                "queued>failed",
                "queued>cancelled",
                "running>cancelling",
                "running>succeeded",
                "running>failed",
                "cancelling>succeeded",
                "cancelling>failed",
                "cancelling>cancelled",
            ]
        );
    }

    #[test]
    fn a_final_state_has_no_way_out() {
        for from in State::ALL.into_iter().filter(|state| state.is_final()) {
            assert!(State::ALL.into_iter().all(|to| !from.may_move_to(to)), "{from}");
        }
    }
}
