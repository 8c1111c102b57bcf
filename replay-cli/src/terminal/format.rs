//! Formats numbers for people, and appends lines to a text.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::escape::escape_except;
use super::marks::is_mark;

/// Appends one line. Line breaks in the arguments are escaped; trailing spaces are removed.
pub(crate) fn put_line(out: &mut String, line: std::fmt::Arguments<'_>) {
    let begin = out.len();
    let _ = out.write_fmt(line);
    if let Cow::Owned(line) = escape_except(&out[begin..], is_mark) {
        out.truncate(begin);
        out.push_str(&line);
    }
    while out.len() > begin && out.ends_with(' ') {
        out.pop();
    }
    out.push('\n');
}

/// A size, right-aligned in a column of sizes.
pub(crate) fn size_column(bytes: u64) -> String {
    format!("{:>width$}", super::units::format_bytes(bytes), width = super::units::chosen_units().columns())
}

/// `1234567` as `1,234,567`.
pub(crate) fn format_number(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `1 block`, `2 blocks`.
pub(crate) fn format_count(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", format_number(number), if number == 1 { "" } else { "s" })
}

/// A duration in the largest fitting unit: `999 us`, `1.5 s`, `1 h 01 min`.
pub(crate) fn format_duration(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match ns / 1_000_000_000 {
        0 if ns < 1_000_000 => format!("{} us", ns / 1000),
        0 => format!("{} ms", ns / 1_000_000),
        1..60 => format!("{seconds:.1} s"),
        whole if whole < 3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        whole => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// A share of 1 as a percentage. Only exact shares print as `0%` and `100%`.
pub(crate) fn format_percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent > 0.0 && percent < 1.0 => "<1%".to_owned(),
        percent if percent > 99.0 && percent < 100.0 => ">99%".to_owned(),
        percent => format!("{percent:.0}%"),
    }
}

/// A time since the Unix epoch in ISO 8601, UTC, to the second.
pub(crate) fn format_utc(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day since 1970-01-01 (`civil_from_days` of
/// <https://howardhinnant.github.io/date_algorithms.html>).
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // since 0000-03-01
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_since_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_since_march + 2) / 5 + 1;
    let month = if months_since_march < 10 { months_since_march + 3 } else { months_since_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_at_unit_boundaries() {
        assert_eq!([0, 999, 1000, 1_234_567].map(format_number), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 999_999, 1_000_000, 1_500_000_000, 61_000_000_000, 3_661_000_000_000].map(format_duration),
            ["0 us", "999 us", "1 ms", "1.5 s", "1 min 01 s", "1 h 01 min"]
        );
        assert_eq!([0.0, 0.001, 0.5, 0.999, 1.0].map(format_percent), ["0%", "<1%", "50%", ">99%", "100%"]);
    }

    #[test]
    fn utc_dates_cover_leap_days_and_year_ends() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(format_utc(seconds * 1_000_000_000 + 7), text);
        }
    }
}
