//! Sizes and times as people write them: `10GiB`, `90s`, `1GiB,6h`.
//!
//! Constraint: the recorder reads them in an environment variable, where nobody can ask back, and the command checks them before
//! it starts the program. Consequence: both use this one rule, and what does not follow it is refused.

/// Bytes: a whole number with `B`, `KiB`, `MiB`, `GiB` or `TiB`; `K`, `M`, `G` and `T` mean the same, and so do `KB`, `MB`, `GB` and `TB`.
pub fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let power = match unit.to_ascii_lowercase().as_str() {
        "b" | "" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return None,
    };
    number.checked_mul(1 << (10 * power)).filter(|bytes| *bytes > 0)
}

/// What the recorder may need: 32 MiB to 1 GiB.
pub fn recorder_memory(text: &str) -> Option<u64> {
    bytes(text).filter(|bytes| (32 << 20..=1 << 30).contains(bytes))
}

/// Nanoseconds: a whole number with `s`, `min`, `h` or `d`.
pub fn duration_ns(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let seconds = match unit {
        "s" => 1,
        "min" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return None,
    };
    number.checked_mul(seconds)?.checked_mul(1_000_000_000).filter(|ns| *ns > 0)
}

/// When a part ends: a size, a time, or both with a comma between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PartLimit {
    /// At most about so large.
    pub bytes: Option<u64>,
    /// At most about so long.
    pub ns: Option<u64>,
}

impl PartLimit {
    /// Reads one.
    pub fn parse(text: &str) -> Option<Self> {
        let mut limit = Self::default();
        for one in text.split(',') {
            match (duration_ns(one), bytes(one)) {
                (Some(ns), _) if limit.ns.is_none() => limit.ns = Some(ns),
                (None, Some(bytes)) if limit.bytes.is_none() => limit.bytes = Some(bytes),
                _ => return None,
            }
        }
        Some(limit)
    }
}

fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    Some((text[..digits].parse().ok()?, text[digits..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_nonsense_is_refused() {
        assert_eq!((bytes("10GiB"), bytes("1 MB"), bytes("512")), (Some(10 << 30), Some(1 << 20), Some(512)));
        assert_eq!((duration_ns("90s"), duration_ns("2h")), (Some(90_000_000_000), Some(7_200_000_000_000)));
        for wrong in ["", "GiB", "1.5GiB", "-1", "0", "1 parsec", "99999999999TiB"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
        for wrong in ["", "s", "0s", "1", "1m", "99999999999999d"] {
            assert_eq!(duration_ns(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_part_ends_by_size_by_time_or_by_both() {
        let limit = |bytes, ns| Some(PartLimit { bytes, ns });
        assert_eq!(PartLimit::parse("1MiB"), limit(Some(1 << 20), None));
        assert_eq!(PartLimit::parse("1MiB,2s"), limit(Some(1 << 20), Some(2_000_000_000)));
        assert_eq!(PartLimit::parse("2s, 1MiB"), limit(Some(1 << 20), Some(2_000_000_000)));
        for wrong in ["", ",", "1MiB,1MiB", "1s,2s", "x", "1MiB,"] {
            assert_eq!(PartLimit::parse(wrong), None, "{wrong}");
        }
    }
}
