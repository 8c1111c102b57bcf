//! Parsing of sizes and durations in options and variables: `10GiB`, `94.97GiB`, `90s`, `1GiB,6h`.
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

/// Parses bytes: a number above 0, with or without a [unit](bytes_in_unit). With a unit, the
/// number may have a fraction; a part of a byte is dropped.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let (whole, rest) = split_unit(text)?;
    let (fraction, unit) = match rest.strip_prefix('.') {
        Some(rest) => {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            (&rest[..digits], Some(rest[digits..].trim_start()).filter(|_| digits > 0)?)
        }
        None => ("", rest),
    };
    let unit_bytes = bytes_in_unit(unit)?;
    if !fraction.is_empty() && unit_bytes == 1 {
        return None;
    }
    let whole_bytes = whole.checked_mul(unit_bytes)?;
    whole_bytes.checked_add(bytes_in_fraction(fraction, unit_bytes)?).filter(|bytes| *bytes > 0)
}

/// The bytes in the digits behind a decimal point, rounded down.
fn bytes_in_fraction(digits: &str, unit_bytes: u64) -> Option<u64> {
    // More digits than this are less than a byte, even of a terabyte.
    let digits = &digits[..digits.len().min(18)];
    let numerator: u128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    u64::try_from(numerator * u128::from(unit_bytes) / 10_u128.pow(digits.len() as u32)).ok()
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
        for wrong in ["", "GiB", ".5GiB", "1.GiB", "1.5.5GiB", "-1", "0", "0.0GiB", "1.5", "1.5B"]
            .into_iter()
            .chain(["1 parsec", "1.5 parsec", "99999999999TiB", "18446744073709551615.5KiB"])
        {
            assert_eq!(parse_bytes(wrong), None, "{wrong}");
        }
        for wrong in ["", "s", "0s", "1", "1m", "99999999999999d"] {
            assert_eq!(parse_duration_ns(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn fraction_of_a_unit_is_rounded_down_to_bytes() {
        let parsed = [
            ("1.5GiB", 3 << 29),
            ("94.97GiB", 101_973_261_025),
            ("0.5 kB", 500),
            ("0.0009765625KiB", 1),
            ("1.0000000000000000000000001KiB", 1024),
            ("16777215.999TiB", 18_446_744_072_610_039_988),
        ];
        for (text, bytes) in parsed {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        assert_eq!(parse_bytes("0.0001KiB"), None, "less than a byte");
        let limit = PartLimit { bytes: Some(3 << 29), ns: None };
        assert_eq!(PartLimit::parse("1.5GiB"), Some(limit));
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
