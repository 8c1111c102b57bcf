//! Parsing of sizes and durations in options and variables: `10GiB`, `90s`, `1GiB,6h`.
//!
//! It is here because this is the one crate that the recorder and the command share. The command
//! checks an option before it starts the program, and the recorder parses the same text in an
//! environment variable, where it cannot ask back.

/// Bytes in a unit: 1,048,576 for `MiB` and `M`, 1,000,000 for `MB`, and so on from `K` to `T`, in
/// upper or lower case. 1 without a unit or for `B`.
pub fn bytes_in_unit(unit: &str) -> Option<u64> {
    let bytes = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    Some(bytes)
}

/// Parses bytes: a whole number above 0, with or without a [unit](bytes_in_unit).
pub fn parse_bytes(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text)?;
    number.checked_mul(bytes_in_unit(unit)?).filter(|bytes| *bytes > 0)
}

/// Parses a memory limit of the recorder: 32 MiB to 1 GiB.
pub fn parse_recorder_memory(text: &str) -> Option<u64> {
    parse_bytes(text).filter(|bytes| (32 << 20..=1 << 30).contains(bytes))
}

/// Parses nanoseconds: a whole number above 0 with `s`, `min`, `h` or `d`.
fn parse_duration_ns(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text)?;
    let seconds = match unit {
        "s" => 1,
        "min" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return None,
    };
    number.checked_mul(seconds)?.checked_mul(1_000_000_000).filter(|ns| *ns > 0)
}

/// When the recorder begins the next part of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PartLimit {
    /// Approximate size of a part.
    pub bytes: Option<u64>,
    /// Approximate duration of a part.
    pub ns: Option<u64>,
}

impl PartLimit {
    /// Parses a size, a duration, or both with a comma between them.
    pub fn parse(text: &str) -> Option<Self> {
        let mut limit = Self::default();
        for limit_text in text.split(',') {
            match (parse_duration_ns(limit_text), parse_bytes(limit_text)) {
                (Some(ns), _) if limit.ns.is_none() => limit.ns = Some(ns),
                (None, Some(bytes)) if limit.bytes.is_none() => limit.bytes = Some(bytes),
                _ => return None,
            }
        }
        Some(limit)
    }
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    Some((text[..digits].parse().ok()?, text[digits..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_parse_and_nonsense_is_refused() {
        assert_eq!(
            (parse_bytes("10GiB"), parse_bytes("1 MB"), parse_bytes("512")),
            (Some(10 << 30), Some(1_000_000), Some(512))
        );
        assert_eq!(
            (parse_duration_ns("90s"), parse_duration_ns("2h")),
            (Some(90_000_000_000), Some(7_200_000_000_000))
        );
        for wrong in ["", "GiB", "1.5GiB", "-1", "0", "1 parsec", "99999999999TiB"] {
            assert_eq!(parse_bytes(wrong), None, "{wrong}");
        }
        for wrong in ["", "s", "0s", "1", "1m", "99999999999999d"] {
            assert_eq!(parse_duration_ns(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn part_limit_is_a_size_a_duration_or_both() {
        let limit = |bytes, ns| Some(PartLimit { bytes, ns });
        assert_eq!(PartLimit::parse("1MiB"), limit(Some(1 << 20), None));
        assert_eq!(PartLimit::parse("1MiB,2s"), limit(Some(1 << 20), Some(2_000_000_000)));
        assert_eq!(PartLimit::parse("2s, 1MiB"), limit(Some(1 << 20), Some(2_000_000_000)));
        for wrong in ["", ",", "1MiB,1MiB", "1s,2s", "x", "1MiB,"] {
            assert_eq!(PartLimit::parse(wrong), None, "{wrong}");
        }
    }
}
