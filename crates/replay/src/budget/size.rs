//! Parses sizes, tolerances and limits of a budget file.
//!
//! A size is a number of bytes or a string such as `"1.5 GiB"`. A limit is a size or a count, or
//! a table with the limit and its own tolerance and `if_unknown`. Errors list what is expected.
//! `budget::tests` has examples of each.

use std::fmt;

use gpumemtrace_format::size_arg::bytes_in_unit;
use serde::de::{Error, MapAccess, Unexpected, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer};

use super::IfUnknown;

const SIZES: &str = "a size, such as 1073741824 or \"1.5 GiB\"";

/// Parses a size such as `512`, `1.5 GiB` or `20MB` into bytes. `None` for unknown units and for
/// sizes above 1e18.
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let (number, unit) = (text[..end].replace('_', ""), text[end..].trim());
    let factor = bytes_in_unit(unit)?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor);
    }
    let bytes = number.parse::<f64>().ok().filter(|number| number.is_finite())? * factor as f64;
    (bytes <= 1e18).then_some(bytes.round() as u64)
}

/// How far a value may exceed its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Tolerance {
    /// A share of the limit, in percent.
    Percent(f64),
    /// A fixed number of bytes.
    Bytes(u64),
}

impl Tolerance {
    /// Parses a percentage such as `2%`, or a size.
    fn parse(text: &str) -> Option<Self> {
        match text.trim().strip_suffix('%') {
            Some(percent) => {
                let percent = percent.trim().parse::<f64>().ok()?;
                (0.0..=1000.0).contains(&percent).then_some(Self::Percent(percent))
            }
            None => parse_bytes(text).map(Self::Bytes),
        }
    }

    /// The tolerance in bytes for a limit, rounded down.
    pub(crate) fn bytes_for_limit(self, limit: u64) -> u64 {
        match self {
            Self::Percent(percent) => (limit as f64 * percent / 100.0).floor() as u64,
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// A limit on a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BytesLimit {
    /// Highest value allowed, without the tolerance.
    pub bytes: u64,
    /// Overrides the budget's default.
    pub tolerance: Option<Tolerance>,
    /// Overrides the budget's default.
    pub if_unknown: Option<IfUnknown>,
}

/// A limit on a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountLimit {
    /// Highest count that is allowed.
    pub limit: u64,
    /// Overrides the budget's default.
    pub if_unknown: Option<IfUnknown>,
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SIZES)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        u64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        parse_bytes(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

struct BudgetSize(u64);

impl<'de> Deserialize<'de> for BudgetSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor).map(BudgetSize)
    }
}

impl<'de> Deserialize<'de> for Tolerance {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ToleranceVisitor;
        impl Visitor<'_> for ToleranceVisitor {
            type Value = Tolerance;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a tolerance, such as \"2%\" or \"16 MiB\"")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Tolerance, E> {
                SizeVisitor.visit_i64(number).map(Tolerance::Bytes)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Tolerance, E> {
                Tolerance::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(ToleranceVisitor)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitTable {
    limit: BudgetSize,
    tolerance: Option<Tolerance>,
    if_unknown: Option<IfUnknown>,
}

impl<'de> Deserialize<'de> for BytesLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LimitVisitor;
        impl<'de> Visitor<'de> for LimitVisitor {
            type Value = BytesLimit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{SIZES}, or {{ limit = SIZE, tolerance = \"2%\", if_unknown = \"pass\" }}")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<BytesLimit, E> {
                let bytes = SizeVisitor.visit_i64(number)?;
                Ok(BytesLimit { bytes, tolerance: None, if_unknown: None })
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<BytesLimit, E> {
                let bytes = SizeVisitor.visit_str(text)?;
                Ok(BytesLimit { bytes, tolerance: None, if_unknown: None })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<BytesLimit, A::Error> {
                let table = LimitTable::deserialize(MapAccessDeserializer::new(map))?;
                let LimitTable { limit: BudgetSize(bytes), tolerance, if_unknown } = table;
                Ok(BytesLimit { bytes, tolerance, if_unknown })
            }
        }
        deserializer.deserialize_any(LimitVisitor)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CountTable {
    limit: u64,
    if_unknown: Option<IfUnknown>,
}

impl<'de> Deserialize<'de> for CountLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CountVisitor;
        impl<'de> Visitor<'de> for CountVisitor {
            type Value = CountLimit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or { limit = NUMBER, if_unknown = \"pass\" }")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<CountLimit, E> {
                let limit =
                    u64::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))?;
                Ok(CountLimit { limit, if_unknown: None })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CountLimit, A::Error> {
                let CountTable { limit, if_unknown } =
                    CountTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(CountLimit { limit, if_unknown })
            }
        }
        deserializer.deserialize_any(CountVisitor)
    }
}
