//! Frames of the local socket: length, kind, body; and the one way to read MessagePack.
//!
//! A frame is a big-endian `u32` (the bytes after it), a `u8` kind and the body. An end that
//! meets a kind it does not know skips the frame. Bodies are MessagePack with field names, but
//! for batches, which have a header of their own ([`crate::batch`]).

use std::collections::HashSet;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of a frame after its length, at most.
pub const FRAME_MAX: usize = 1 << 20;
/// Nesting of a value, at most.
pub const DEPTH_MAX: usize = 64;
/// Values in one document, at most.
pub const NODES_MAX: usize = 50_000;

/// Why a frame cannot be taken. The connection that it came on is closed with this reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadFrame(String);

impl BadFrame {
    /// Names what was wrong.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// Appends a frame to `out`.
///
/// # Panics
///
/// When the body is over [`FRAME_MAX`]; writers bound what they put into a frame.
pub fn put(out: &mut BytesMut, kind: u8, body: &[u8]) {
    assert!(body.len() < FRAME_MAX, "a frame's body stays below the bound");
    out.reserve(5 + body.len());
    out.put_u32(u32::try_from(body.len() + 1).expect("a frame fits"));
    out.put_u8(kind);
    out.extend_from_slice(body);
}

/// Returns the five bytes that stand before a body of this length.
pub fn prefix(kind: u8, body_length: usize) -> [u8; 5] {
    let length = u32::try_from(body_length + 1).expect("a frame fits").to_be_bytes();
    [length[0], length[1], length[2], length[3], kind]
}

/// Appends a frame with a MessagePack body to `out`.
pub fn put_message<T: Serialize>(out: &mut BytesMut, kind: u8, message: &T) {
    put(out, kind, &encode(message));
}

/// Encodes a value as MessagePack with field names.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    rmp_serde::to_vec_named(value).expect("a message is MessagePack")
}

/// Takes the next whole frame out of `buffer`; `None` when more bytes are needed.
///
/// # Errors
///
/// When the length is zero or over the bound; nothing can be read from that connection any more.
pub fn take(buffer: &mut BytesMut) -> Result<Option<(u8, Bytes)>, BadFrame> {
    if buffer.len() < 4 {
        return Ok(None);
    }
    let length = u32::from_be_bytes(buffer[..4].try_into().expect("four bytes")) as usize;
    if length == 0 {
        return Err(BadFrame::new("bad_frame: a frame has no kind"));
    }
    if length > FRAME_MAX {
        return Err(BadFrame::new(format!(
            "frame_too_large: a frame of {length} bytes; the limit is {FRAME_MAX}"
        )));
    }
    if buffer.len() < 4 + length {
        buffer.reserve(4 + length - buffer.len());
        return Ok(None);
    }
    buffer.advance(4);
    let mut frame = buffer.split_to(length).freeze();
    let kind = frame.get_u8();
    Ok(Some((kind, frame)))
}

/// Decodes one MessagePack value that fills all of `bytes`.
///
/// Refused are: deeper than [`DEPTH_MAX`], more than [`NODES_MAX`] values, extension types,
/// keys that are no text or stand twice, numbers that are not finite, bytes left over.
///
/// # Errors
///
/// [`BadFrame`] names what was wrong.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BadFrame> {
    check(bytes)?;
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(bytes);
    deserializer.set_max_depth(DEPTH_MAX * 2);
    T::deserialize(&mut deserializer).map_err(|error| BadFrame::new(format!("bad_frame: {error}")))
}

/// Walks over one MessagePack value and refuses what [`decode`] must not see.
///
/// # Errors
///
/// [`BadFrame`] names what was wrong.
pub fn check(bytes: &[u8]) -> Result<(), BadFrame> {
    let mut walk = Walk { rest: bytes, nodes: 0 };
    walk.value(0)?;
    if walk.rest.is_empty() {
        Ok(())
    } else {
        Err(BadFrame::new(format!("bad_frame: {} bytes after the value", walk.rest.len())))
    }
}

struct Walk<'a> {
    rest: &'a [u8],
    nodes: usize,
}

impl<'a> Walk<'a> {
    fn value(&mut self, depth: usize) -> Result<(), BadFrame> {
        if depth > DEPTH_MAX {
            return Err(BadFrame::new(format!("too_deep: more than {DEPTH_MAX} levels")));
        }
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(BadFrame::new(format!("too_many_nodes: more than {NODES_MAX} values")));
        }
        let marker = self.number(1)?;
        match marker {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => Ok(()),
            0x80..=0x8f => self.map(marker & 0x0f, depth),
            0x90..=0x9f => self.array(marker & 0x0f, depth),
            0xa0..=0xbf => self.text(marker & 0x1f).map(drop),
            0xc4..=0xc6 => {
                let length = self.number(1 << (marker - 0xc4))?;
                self.bytes(length).map(drop)
            }
            0xca => {
                let bits = u32::try_from(self.number(4)?).expect("four bytes");
                self.finite(f64::from(f32::from_bits(bits)))
            }
            0xcb => {
                let bits = self.number(8)?;
                self.finite(f64::from_bits(bits))
            }
            0xcc..=0xcf => self.number(1 << (marker - 0xcc)).map(drop),
            0xd0..=0xd3 => self.number(1 << (marker - 0xd0)).map(drop),
            0xd9..=0xdb => {
                let length = self.number(1 << (marker - 0xd9))?;
                self.text(length).map(drop)
            }
            0xdc | 0xdd => {
                let length = self.number(2 << (marker - 0xdc))?;
                self.array(length, depth)
            }
            0xde | 0xdf => {
                let length = self.number(2 << (marker - 0xde))?;
                self.map(length, depth)
            }
            _ => Err(BadFrame::new(format!("bad_frame: type 0x{marker:02x} is not taken"))),
        }
    }

    fn array(&mut self, length: u64, depth: usize) -> Result<(), BadFrame> {
        (0..length).try_for_each(|_| self.value(depth + 1))
    }

    fn map(&mut self, length: u64, depth: usize) -> Result<(), BadFrame> {
        let mut few: [&[u8]; 16] = [&[]; 16];
        let mut many = HashSet::new();
        for n in 0..length {
            let key = self.key()?;
            let at = usize::try_from(n).unwrap_or(usize::MAX);
            let twice = if at < few.len() {
                let twice = few[..at].contains(&key);
                few[at] = key;
                twice
            } else {
                few.contains(&key) || !many.insert(key)
            };
            if twice {
                let key = String::from_utf8_lossy(&key[..key.len().min(64)]).into_owned();
                return Err(BadFrame::new(format!("bad_frame: duplicate key {key:?}")));
            }
            self.value(depth + 1)?;
        }
        Ok(())
    }

    fn key(&mut self) -> Result<&'a [u8], BadFrame> {
        let marker = self.number(1)?;
        match marker {
            0xa0..=0xbf => self.text(marker & 0x1f),
            0xd9..=0xdb => {
                let length = self.number(1 << (marker - 0xd9))?;
                self.text(length)
            }
            _ => Err(BadFrame::new("bad_frame: a key is no text")),
        }
    }

    fn text(&mut self, length: u64) -> Result<&'a [u8], BadFrame> {
        let bytes = self.bytes(length)?;
        match std::str::from_utf8(bytes) {
            Ok(_) => Ok(bytes),
            Err(_) => Err(BadFrame::new("bad_frame: a text is not UTF-8")),
        }
    }

    fn finite(&self, number: f64) -> Result<(), BadFrame> {
        if number.is_finite() {
            Ok(())
        } else {
            Err(BadFrame::new("bad_frame: a number is not finite"))
        }
    }

    fn number(&mut self, width: usize) -> Result<u64, BadFrame> {
        let bytes = self.bytes(width as u64)?;
        Ok(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn bytes(&mut self, length: u64) -> Result<&'a [u8], BadFrame> {
        let length = usize::try_from(length).ok().filter(|length| *length <= self.rest.len());
        let Some(length) = length else {
            return Err(BadFrame::new("bad_frame: a length is beyond the end"));
        };
        let (bytes, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(bytes)
    }
}
