//! The report as text for somebody who has never seen the tool. One file per section.
//!
//! Constraint: it is read in terminals, logs and mails. Consequence: it makes sense without colour, fits a width, names
//! files as short as they stay clear, and says in words what was not found or not known.

mod backends;
pub(crate) mod check;
pub(crate) mod comparison;
mod header;
mod overview;
mod ranks;
mod sections;
mod sites;
mod snapshot;
mod summary;

use std::fmt::Write as _;

use gpumemtrace_replay::report::LeftOut;
use gpumemtrace_replay::{Report, Section, units};

pub(crate) use crate::terminal::layout::HANG;
use crate::terminal::style::Style;
pub(crate) use header::why_unnamed;
use sections::{fragmentation, leaks, oom, peak, timeline, torch_memory};
use sites::Sites;
pub(crate) use sites::short;

/// The whole text.
pub(crate) fn render(report: &Report, sections: &[Section], full_stacks: bool, style: Style) -> String {
    let mut out = String::new();
    let mut sites = Sites::new(full_stacks);
    for trace in 0..report.traces.len() {
        if trace > 0 {
            out.push('\n');
        }
        header::write(&mut out, report, trace, style);
        if sections.is_empty() {
            summary::write(&mut out, report, trace, style, &mut sites);
        }
        snapshot::write(&mut out, report, trace, sections, style);
        for section in sections {
            out.push('\n');
            match section {
                Section::Leaks => leaks::write(&mut out, report, trace, style, &mut sites),
                Section::Timeline => {
                    timeline::write(&mut out, report, trace, style, &mut sites);
                    torch_memory::write(&mut out, report, trace, style);
                }
                Section::Fragmentation => fragmentation::write(&mut out, report, trace, style, &mut sites),
                Section::Peak => peak::write(&mut out, report, trace, style, &mut sites),
                Section::Oom => oom::write(&mut out, report, trace, style, &mut sites),
            }
        }
    }
    ranks::write(&mut out, report, style);
    crate::terminal::layout::finish(&out, style)
}

/// A line, and the end of it: what it is made of ends no lines. Writing to a string cannot fail.
pub(in crate::render) fn put(out: &mut String, line: std::fmt::Arguments<'_>) {
    let begin = out.len();
    let _ = out.write_fmt(line);
    if out[begin..].contains('\n') {
        let line = out.split_off(begin).replace('\n', " ");
        out.push_str(&line);
    }
    while out.len() > begin && out.ends_with(' ') {
        out.pop();
    }
    out.push('\n');
}

/// A size, flush with those above and below it.
fn column(bytes: u64) -> String {
    format!("{:>width$}", units::size(bytes), width = units::chosen().columns())
}

/// Rows beyond those that a list shows: how many, and their bytes. `left_out` were taken out of it before.
fn beyond<T>(rows: &[T], most: usize, left_out: Option<LeftOut>, bytes: impl Fn(&T) -> u64) -> (u64, u64) {
    let rest = rows.get(most..).unwrap_or_default();
    let out = left_out.unwrap_or_default();
    let sum = rest.iter().fold(out.bytes.unwrap_or(0), |sum, row| sum.saturating_add(bytes(row)));
    (rest.len() as u64 + out.count, sum)
}

/// `1234567` as `1,234,567`.
fn thousands(number: u64) -> String {
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
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", thousands(number), if number == 1 { "" } else { "s" })
}

/// Nanoseconds for people.
pub(crate) fn duration(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match ns / 1_000_000_000 {
        0 if ns < 1_000_000 => format!("{} us", ns / 1000),
        0 => format!("{} ms", ns / 1_000_000),
        1..60 => format!("{seconds:.1} s"),
        whole if whole < 3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        whole => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// A share for people.
fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent > 0.0 && percent < 1.0 => "<1 %".to_owned(),
        percent if percent > 99.0 && percent < 100.0 => ">99 %".to_owned(),
        percent => format!("{percent:.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well_at_every_border() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 999_999, 1_000_000, 1_500_000_000, 61_000_000_000, 3_661_000_000_000].map(duration),
            ["0 us", "999 us", "1 ms", "1.5 s", "1 min 01 s", "1 h 01 min"]
        );
        assert_eq!([0.0, 0.001, 0.5, 0.999, 1.0].map(percent), ["0 %", "<1 %", "50 %", ">99 %", "100 %"]);
    }
}
