//! The encoder: what the pump writes for the local socket, as JSON documents.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use reeve_protocol::frame::{self, BadFrame};
use reeve_protocol::peer::{kind, withheld};
use reeve_protocol::stream::{Followed, Gap, GapReason, Joined, OverlayChanged, Subbed};
use reeve_protocol::{Batch, Event, ExecutionId, Handle};
use serde_json::{Value, json};

use super::FRAME_MAX;
use super::ready::Ready;

/// What is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Sent {
    /// A document that is still to be framed.
    Document(String),
    /// Whole frames.
    Frames(Bytes),
}

/// Turns frames into documents; knows the names of what is followed.
#[derive(Debug, Default)]
pub struct Encoder {
    names: BTreeMap<Handle, ExecutionId>,
}

impl Encoder {
    /// Takes every frame out of `frames` and returns the documents they make.
    ///
    /// # Errors
    ///
    /// When a stored event cannot be read.
    pub fn take(&mut self, frames: &mut BytesMut, ready: &Ready) -> Result<Vec<Sent>, BadFrame> {
        let mut documents = Vec::new();
        while let Some((frame_kind, body)) = frame::take(frames)? {
            match frame_kind {
                kind::SUBBED => {
                    let subbed: Subbed = frame::decode(&body)?;
                    subbed.executions.iter().for_each(|followed| self.learn(followed));
                }
                kind::JOINED => self.learn(&frame::decode::<Joined>(&body)?.followed),
                kind::BATCH => {
                    let batch = Batch::parse(body)?;
                    if let Some(id) = self.names.get(&batch.handle()) {
                        documents.push(Sent::Frames(ready.frames(*id, &batch)?));
                    }
                }
                kind::GAP => {
                    let gap: Gap = frame::decode(&body)?;
                    let lagged = |id: &ExecutionId| Sent::Document(lagged(*id, &gap));
                    documents.extend(self.names.get(&gap.handle).map(lagged));
                }
                kind::OVERLAY => {
                    let changed: OverlayChanged = frame::decode(&body)?;
                    documents.extend(self.names.get(&changed.handle).map(|id| {
                        Sent::Document(document(&json!({
                            "type": "stream.overlay",
                            "execution_id": id,
                            "overlay": changed.overlay,
                        })))
                    }));
                }
                // Its last event says that an execution is over.
                kind::END => {}
                _ => tracing::debug!(frame_kind, "a frame of an unknown kind is not shown"),
            }
        }
        Ok(documents)
    }

    fn learn(&mut self, followed: &Followed) {
        self.names.insert(followed.handle, followed.execution);
    }
}

/// Says that positions cannot be shown; `dropped` counts those that once were.
fn lagged(id: ExecutionId, gap: &Gap) -> String {
    let dropped = match gap.reason {
        GapReason::Retention | GapReason::Shed => gap.to.0 - gap.from.0 + 1,
        GapReason::Epoch | GapReason::Ahead => 0,
    };
    document(&json!({
        "type": "stream.lagged",
        "execution_id": id,
        "from": gap.from,
        "to": gap.to,
        "dropped": dropped,
        "reason": gap.reason,
        "resume_after": gap.resume_after,
    }))
}

/// Writes a document.
pub fn document(value: &Value) -> String {
    value.to_string()
}

/// Writes an event; its largest value is replaced by a reference if it fits no frame.
pub fn event(event: &Event) -> String {
    let text = serde_json::to_string(event).expect("an event is JSON");
    if text.len() <= FRAME_MAX {
        return text;
    }
    let mut value = serde_json::to_value(event).expect("an event is JSON");
    let link = format!("/api/v1/executions/get?id={}", event.execution_id);
    for _ in 0..4 {
        let Some(members) = value["data"].as_object_mut() else { break };
        let sizes = members.iter_mut().map(|(_, value)| (value.to_string().len(), value));
        let Some((bytes, largest)) = sizes.max_by_key(|(bytes, _)| *bytes) else { break };
        *largest = withheld(bytes, FRAME_MAX, &link);
        let text = document(&value);
        if text.len() <= FRAME_MAX {
            return text;
        }
    }
    value["data"] = withheld(text.len(), FRAME_MAX, &link);
    document(&value)
}

#[cfg(test)]
mod tests {
    use reeve_protocol::{Kind, Seq, Timestamp};

    use super::*;

    #[test]
    fn a_value_that_fits_no_frame_is_a_reference_and_everything_else_stays() {
        let at = Timestamp::from_micros(1_800_000_000_000_000);
        let id = ExecutionId::mint(at, 1);
        let of = |output: Value| Event {
            execution_id: id,
            sequence: Seq(4),
            timestamp: at,
            kind: Kind::Completed { output, receipt: Some(json!({ "ok": true })) },
        };
        let small = event(&of(json!("x".repeat(FRAME_MAX / 2))));
        assert!(!small.contains("withheld"));
        let text = event(&of(json!("x".repeat(FRAME_MAX))));
        assert!(text.len() < 1_000);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["sequence"], 4);
        assert_eq!(value["data"]["receipt"]["ok"], true);
        assert_eq!(value["data"]["output"]["withheld"], "too_large");
        assert_eq!(value["data"]["output"]["bytes"], FRAME_MAX + 2);
        assert_eq!(value["data"]["output"]["limit"], 262_144);
        assert_eq!(value["data"]["output"]["self"], format!("/api/v1/executions/get?id={id}"));
    }
}
