//! The lines that grew towards an out-of-memory error, and those that did not.

use gpumemtrace_replay::report::{Oom, OomCause, OomGrowth, OomGrowthPattern, SiteBytes};

use super::describe_pattern;
use crate::terminal::format::{format_count, format_percent};
use crate::terminal::units::format_bytes;

/// Least share of the allocated memory of a line that is listed after the first one.
const MIN_SHARE: f64 = 0.05;
/// Least share of the allocated memory of the first line that grew.
const MIN_FIRST_SHARE: f64 = 0.01;

/// The lines worth listing, at most `most`.
pub(crate) fn listed_growth(oom: &Oom, most: usize) -> Vec<&OomGrowth> {
    let is_listed = |(index, line): &(usize, &OomGrowth)| {
        let is_first = *index == 0 && oom.cause != OomCause::ExceedsDevice;
        share(line.bytes, oom) >= if is_first { MIN_FIRST_SHARE } else { MIN_SHARE }
    };
    oom.growth.iter().enumerate().filter(is_listed).map(|(_, line)| line).take(most).collect()
}

fn share(bytes: u64, oom: &Oom) -> f64 {
    bytes as f64 / oom.live_bytes.max(1) as f64
}

/// The largest call sites with older blocks, at most `most`.
pub(crate) fn listed_unchanged(oom: &Oom, most: usize) -> impl Iterator<Item = &SiteBytes> {
    oom.unchanged.iter().filter(|line| share(line.bytes, oom) >= MIN_SHARE).take(most)
}

/// `+1.50 GiB`; the memory of each step is no growth.
pub(crate) fn format_growth(line: &OomGrowth) -> String {
    let bytes = format_bytes(line.bytes);
    if line.pattern == OomGrowthPattern::EachStep { bytes } else { format!("+{bytes}") }
}

/// `76% of allocated memory`
pub(crate) fn share_of_live(line: &OomGrowth, oom: &Oom) -> String {
    format!("{} of allocated memory", format_percent(share(line.bytes, oom).min(1.0)))
}

/// `61 blocks, allocated 7 times since step 15`
pub(crate) fn describe_blocks(line: &OomGrowth) -> String {
    format!("{}{}", format_count(line.blocks, "block"), describe_pattern(line))
}
