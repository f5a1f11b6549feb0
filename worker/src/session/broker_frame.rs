//! What a broker says to a worker, decoded.

use reeve_protocol::frame::{self, BadFrame};
use reeve_protocol::peer::{
    Ack, Attached, Cancel, Fenced, Grant, Ping, Welcome, kind as frame_kind,
};

/// A frame from the broker.
#[derive(Clone, Debug, PartialEq)]
pub enum FromBroker {
    /// What it is and how it counts.
    Welcome(Box<Welcome>),
    /// The execution is known; it may have to wait.
    Attached(Attached),
    /// The worker is the writer.
    Grant(Grant),
    /// Stored through here.
    Ack(Ack),
    /// Somebody asks it to stop.
    Cancel(Cancel),
    /// The worker is no longer the writer.
    Fenced(Fenced),
    /// Prove that the command loop runs.
    Ping(Ping),
    /// The broker is about to leave.
    Drain,
}

impl FromBroker {
    /// Decodes a frame; `None` for a kind that a worker has no use for.
    ///
    /// # Errors
    ///
    /// When the body is not what its kind says.
    pub fn decode(kind: u8, body: &[u8]) -> Result<Option<Self>, BadFrame> {
        Ok(Some(match kind {
            frame_kind::WELCOME => Self::Welcome(Box::new(frame::decode(body)?)),
            frame_kind::ATTACHED => Self::Attached(frame::decode(body)?),
            frame_kind::GRANT => Self::Grant(frame::decode(body)?),
            frame_kind::ACK => Self::Ack(frame::decode(body)?),
            frame_kind::CANCEL => Self::Cancel(frame::decode(body)?),
            frame_kind::FENCED => Self::Fenced(frame::decode(body)?),
            frame_kind::PING => Self::Ping(frame::decode(body)?),
            frame_kind::DRAIN => Self::Drain,
            _ => return Ok(None),
        }))
    }
}
