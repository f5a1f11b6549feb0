//! Times as values: a wall-clock stamp for people, a monotonic reading for decisions.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A point in UTC, in microseconds since 1970. Informative only: nothing is decided by it.
///
/// In JSON an RFC 3339 text with six decimals, on the local wire a whole number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// The last second that every time zone can write: the end of 9999-12-30, near enough.
const LATEST: i64 = 253_402_207_200_000_000;

impl Timestamp {
    /// Takes microseconds since 1970-01-01T00:00:00Z, held within the years 1970 to 9999.
    pub fn from_micros(micros: i64) -> Self {
        Self(micros.clamp(0, LATEST))
    }

    /// Returns microseconds since 1970-01-01T00:00:00Z.
    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns how long after `earlier` this is; zero if the wall clock was turned back.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Returns the second as `yyyymmddThhmmssZ`.
    pub fn compact(self) -> String {
        self.jiff().strftime("%Y%m%dT%H%M%SZ").to_string()
    }

    fn jiff(self) -> jiff::Timestamp {
        jiff::Timestamp::from_microsecond(self.0).expect("the years 1970 to 9999 are in range")
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.jiff())
    }
}

impl FromStr for Timestamp {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, jiff::Error> {
        text.parse::<jiff::Timestamp>().map(|at| Self::from_micros(at.as_microsecond()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_i64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
        } else {
            i64::deserialize(deserializer).map(Self::from_micros)
        }
    }
}

impl JsonSchema for Timestamp {
    fn schema_name() -> Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// One reading of both clocks, handed to a core with every input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Time since an arbitrary start that never runs backwards; every decision uses this.
    pub mono: Duration,
    /// The wall clock, for people.
    pub wall: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_has_six_decimals_in_json() {
        let at = Timestamp::from_micros(1_788_829_327_000_042);
        let json = serde_json::to_string(&at).expect("a timestamp encodes");
        assert_eq!(json, "\"2026-09-08T01:02:07.000042Z\"");
        assert_eq!(serde_json::from_str::<Timestamp>(&json).expect("it reads back"), at);
        assert_eq!(at.compact(), "20260908T010207Z");
    }

    #[test]
    fn extreme_clocks_do_not_panic() {
        for micros in [i64::MIN, -1, 0, i64::MAX] {
            let at = Timestamp::from_micros(micros);
            assert!(!at.to_string().is_empty());
            assert!(!at.compact().is_empty());
        }
    }
}
