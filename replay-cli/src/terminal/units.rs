//! Formats sizes in the unit that the user chose.
//!
//! All sizes of one report use the same unit, so that they can be compared at a glance. The command
//! chooses it once for the process, before it prints. JSON numbers are always bytes.

use std::str::FromStr;
use std::sync::OnceLock;

/// A unit of sizes in text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Units {
    /// The binary unit in which the number has at most four digits before the point.
    #[default]
    Auto,
    /// A number of bytes.
    Bytes,
    /// Units of 2^10 bytes.
    KiB,
    /// Units of 2^20 bytes.
    MiB,
    /// Units of 2^30 bytes.
    GiB,
    /// Units of 10^6 bytes.
    MB,
    /// Units of 10^9 bytes.
    GB,
}

impl Units {
    /// All units by name.
    pub(crate) const NAMED: [(&'static str, Self); 7] = [
        ("auto", Self::Auto),
        ("bytes", Self::Bytes),
        ("KiB", Self::KiB),
        ("MiB", Self::MiB),
        ("GiB", Self::GiB),
        ("MB", Self::MB),
        ("GB", Self::GB),
    ];

    fn bytes_each(self) -> Option<u64> {
        match self {
            Self::Auto | Self::Bytes => None,
            Self::KiB => Some(1 << 10),
            Self::MiB => Some(1 << 20),
            Self::GiB => Some(1 << 30),
            Self::MB => Some(1_000_000),
            Self::GB => Some(1_000_000_000),
        }
    }

    /// A size: `512 B`, `4.00 MiB`, `22.90 GiB`. A size above 0 never prints as 0.
    pub(crate) fn text(self, bytes: u64) -> String {
        match (self, self.bytes_each()) {
            (_, Some(each)) => {
                let name = Self::NAMED.iter().find(|(_, unit)| *unit == self).map_or("", |(name, _)| *name);
                // What would print as 0.00.
                if bytes > 0 && u128::from(bytes) * 200 < u128::from(each) {
                    return format!("<0.01 {name}");
                }
                format!("{} {name}", grouped(&format!("{:.2}", bytes as f64 / each as f64)))
            }
            (Self::Bytes, None) => format!("{} B", grouped(&bytes.to_string())),
            (_, None) => automatic(bytes),
        }
    }

    /// The width of a column of sizes up to the memory of any GPU.
    pub(crate) fn columns(self) -> usize {
        match self {
            Self::Auto | Self::GiB | Self::GB => 11,
            Self::MiB | Self::MB => 14,
            Self::KiB | Self::Bytes => 18,
        }
    }
}

impl FromStr for Units {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let named = Self::NAMED.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        named.map(|(_, units)| *units).ok_or(())
    }
}

/// Groups the digits before the point by thousands.
fn grouped(number: &str) -> String {
    let (whole, fraction) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut text = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + fraction
}

fn automatic(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.996 would print as 1024.00.
    while value >= 1023.995 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

static CHOSEN: OnceLock<Units> = OnceLock::new();

/// Sets the unit of all sizes in this process. Only the first call has an effect.
pub(crate) fn choose_units(units: Units) {
    let _ = CHOSEN.set(units);
}

/// The unit of this process.
pub(crate) fn chosen_units() -> Units {
    CHOSEN.get().copied().unwrap_or_default()
}

/// A size in the unit of this process.
pub(crate) fn format_bytes(bytes: u64) -> String {
    chosen_units().text(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_at_unit_boundaries() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (4 << 20, "4.00 MiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (24_588_664_832, "22.90 GiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Units::Auto.text(bytes), text);
        }
        let of = |bytes| Units::NAMED.map(|(_, units)| units.text(bytes));
        let many = [
            "22.90 GiB",
            "24,588,664,832 B",
            "24,012,368.00 KiB",
            "23,449.58 MiB",
            "22.90 GiB",
            "24,588.66 MB",
            "24.59 GB",
        ];
        assert_eq!(of(24_588_664_832), many);
        let few = ["512 B", "512 B", "0.50 KiB", "<0.01 MiB", "<0.01 GiB", "<0.01 MB", "<0.01 GB"];
        assert_eq!(of(512), few);
        assert_eq!(of(0)[1..], ["0 B", "0.00 KiB", "0.00 MiB", "0.00 GiB", "0.00 MB", "0.00 GB"]);
    }

    /// The page has a second implementation; `web/test/format.test.mjs` reads the same file.
    #[test]
    fn numbers_are_those_of_the_page() {
        for line in include_str!("../../web/test/numbers.txt").lines() {
            let (number, text) = line.split_once(' ').unwrap();
            let found = match number.split_once('/') {
                Some((part, whole)) => {
                    let [part, whole] = [part, whole].map(|text| text.parse::<f64>().unwrap());
                    crate::terminal::format::format_percent(part / whole)
                }
                None => Units::Auto.text(number.parse().unwrap()),
            };
            assert_eq!(found, text, "{number}");
        }
    }

    proptest! {
        #[test]
        fn sizes_above_zero_do_not_print_as_zero_and_fit_their_column(bytes in 1u64..1 << 43) {
            for (name, units) in Units::NAMED {
                let text = units.text(bytes);
                prop_assert!(!text.starts_with("0 ") && !text.starts_with("0.00 "), "{name}: {text}");
                prop_assert!(text.len() <= units.columns() || bytes > 1 << 39, "{name}: {text}");
            }
        }
    }
}
