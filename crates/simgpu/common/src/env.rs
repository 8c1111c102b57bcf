//! Values of environment variables.
//!
//! A typing error must neither change the simulation silently nor end the program: an invalid value
//! prints one line to stderr that names the variable, the value and the default used.

/// Parses a number of bytes: `268435456`, `256M`, `80G`, `64KiB`, `2T`. `M` and `MiB` are 2^20
/// bytes, `MB` is 1,000,000, and so on.
///
/// ```
/// assert_eq!(simgpu_common::parse_size("256M"), Some(256 << 20));
/// assert_eq!(simgpu_common::parse_size("1.5 GiB"), Some(3 << 29));
/// assert_eq!(simgpu_common::parse_size("80 apples"), None);
/// ```
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let bytes_in_unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
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
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(bytes_in_unit);
    }
    let fraction = number.parse::<f64>().ok()?;
    let bytes = fraction * bytes_in_unit as f64;
    (0.0..9e18).contains(&bytes).then_some(bytes as u64)
}

/// Parses `1`, `0`, `true`, `false`, `on`, `off`, `yes`, `no`; an empty value is false.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" => Some(true),
        "" | "0" | "false" | "off" | "no" => Some(false),
        _ => None,
    }
}

/// Prints one line about an invalid value.
pub fn warn(name: &str, value: &str, wanted: &str, used: &str) {
    say(&format!("simgpu: {name}={value:?} is not {wanted}; using {used}"));
}

/// Prints a line to stderr. A closed stderr is no error: the program may run as a daemon.
pub fn say(line: &str) {
    use std::io::Write as _;
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_every_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64k", 65536),
            ("80G", 80 << 30),
            ("2TiB", 2 << 40),
            ("0.5M", 1 << 19),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for text in ["", "G", "-1", "1.2.3", "99999999999T", "12 Q"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
