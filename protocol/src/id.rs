//! Names and numbers: executions, capabilities, sequences, fences, handles.
//!
//! An id is checked by its shape where it enters and is a proof of that shape afterwards.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::time::Timestamp;

/// Why a text is no id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}")]
pub struct BadId {
    text: String,
    what: &'static str,
}

impl BadId {
    fn new(text: &str, what: &'static str) -> Self {
        Self { text: text.chars().take(64).collect(), what }
    }
}

/// The name of one execution: `x-`, the UTC second it was minted in, `-`, 8 hexadecimal digits.
///
/// 27 bytes, always lower case in the digits; `x-20260908T010203Z-0a1b2c3d`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecutionId([u8; 27]);

impl ExecutionId {
    /// Mints the id of an execution created at `at` with 32 random bits.
    pub fn mint(at: Timestamp, random: u32) -> Self {
        let text = format!("x-{}-{random:08x}", at.compact());
        let mut bytes = [b'0'; 27];
        bytes.copy_from_slice(text.as_bytes());
        Self(bytes)
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("an id is ASCII")
    }
}

impl FromStr for ExecutionId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId::new(text, "an execution id (x-<yyyymmddThhmmssZ>-<8 hex digits>)");
        let mut bytes: [u8; 27] = text.as_bytes().try_into().map_err(|_| bad())?;
        let shape = bytes.iter().enumerate().all(|(at, byte)| match at {
            0 => *byte == b'x',
            1 | 18 => *byte == b'-',
            10 => *byte == b'T',
            17 => *byte == b'Z',
            2..=16 => byte.is_ascii_digit(),
            _ => byte.is_ascii_hexdigit(),
        });
        if !shape {
            return Err(bad());
        }
        bytes[19..].make_ascii_lowercase();
        Ok(Self(bytes))
    }
}

/// The name of a capability: `[a-z][a-z0-9_.-]{0,63}`, dots divide it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CapabilityId(Box<str>);

impl CapabilityId {
    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for CapabilityId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let first = text.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
        let rest = text.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte)
        });
        if first && rest && text.len() <= 64 && !text.contains("..") && !text.ends_with('.') {
            Ok(Self(text.into()))
        } else {
            Err(BadId::new(text, "a capability id ([a-z][a-z0-9_.-]{0,63}, no \"..\")"))
        }
    }
}

/// The position of an event in its execution: dense, from 1. `Seq::NONE` is before the first.
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
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// The position before the first event.
    pub const NONE: Self = Self(0);

    /// Returns the next position.
    #[must_use]
    pub fn next(self) -> Self {
        self.plus(1)
    }

    /// Returns the position `count` further on.
    #[must_use]
    pub fn plus(self, count: u64) -> Self {
        Self(self.0.checked_add(count).expect("a sequence stays below 2^64"))
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a writer's right to an execution; rises whenever the writer changes.
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
#[serde(transparent)]
pub struct Fence(pub u64);

impl Fence {
    /// Returns the next fence.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("a fence stays below 2^64"))
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The short number of an execution within one life of a broker; names it in frames.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Handle(pub u32);

macro_rules! text_id {
    ($name:ident, $schema:literal, $max:literal, $pattern:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                $schema.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "maxLength": $max, "pattern": $pattern })
            }
        }
    };
}

text_id!(ExecutionId, "ExecutionId", 27, "^x-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}$");
text_id!(CapabilityId, "CapabilityId", 64, r"^[a-z](\.?[a-z0-9_-])*$");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_execution_id_reads_back_as_written() {
        let id = ExecutionId::mint(Timestamp::from_micros(1_788_829_323_000_000), 0x0a1b_2c3d);
        assert_eq!(id.as_str().len(), 27);
        assert_eq!(id.to_string().parse::<ExecutionId>(), Ok(id));
        assert_eq!(id.to_string().to_ascii_uppercase().replacen('X', "x", 1).parse(), Ok(id));
    }

    #[test]
    fn a_wrong_shape_is_refused() {
        for text in [
            "",
            "x-1",
            "../../etc/passwd",
            "x-20260908T010203Z-0a1b2c3",
            "y-20260908T010203Z-0a1b2c3d",
            "x-20260908T0102030-0a1b2c3d",
            "x-20260908T010203Z-0a1b2c3g",
            "x-20260908T010203Z-0a1b2c3d0",
        ] {
            assert!(text.parse::<ExecutionId>().is_err(), "{text}");
        }
        for text in ["", "Test", "a/b", "..", "a..b", "a b", "-a", "é", "a."] {
            assert!(text.parse::<CapabilityId>().is_err(), "{text}");
        }
        assert!("tests.unit-1_x".parse::<CapabilityId>().is_ok());
        assert!("a".repeat(64).parse::<CapabilityId>().is_ok());
        assert!("a".repeat(65).parse::<CapabilityId>().is_err());
    }
}
