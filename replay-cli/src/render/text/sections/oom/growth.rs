//! The lines that grew towards an out-of-memory error, and those that did not.

use gpumemtrace_replay::report::{Oom, OomCause, OomGrowth, OomGrowthPattern};

use crate::render::text::sections::leaks::format_holder;
use crate::render::text::sites::SiteFormatter;
use crate::render::wording::oom::{describe_pattern, label_growth};
use crate::render::wording::sites::short_site;
use crate::terminal::format::{format_count, format_percent, put_line};
use crate::terminal::style::Style;
use crate::terminal::units::format_bytes;

/// Least share of the allocated memory of a line that is listed after the first one.
const MIN_SHARE: f64 = 0.05;
/// Least share of the allocated memory of the first line that grew.
const MIN_FIRST_SHARE: f64 = 0.01;

/// The lines worth listing, at most `most`.
pub(in crate::render::text) fn listed_growth(oom: &Oom, most: usize) -> Vec<&OomGrowth> {
    let is_listed = |(index, line): &(usize, &OomGrowth)| {
        let is_first = *index == 0 && oom.cause != OomCause::ExceedsDevice;
        share(line.bytes, oom) >= if is_first { MIN_FIRST_SHARE } else { MIN_SHARE }
    };
    oom.growth.iter().enumerate().filter(is_listed).map(|(_, line)| line).take(most).collect()
}

fn share(bytes: u64, oom: &Oom) -> f64 {
    bytes as f64 / oom.live_bytes.max(1) as f64
}

/// The lines that grew, with what holds their blocks.
pub(in crate::render::text) fn render_growth(
    out: &mut String,
    oom: &Oom,
    most: usize,
    style: Style,
    sites: &mut SiteFormatter,
) {
    for line in listed_growth(oom, most) {
        let site = style.bold(&short_site(&line.site));
        put_line(
            out,
            format_args!("  {}{} at {site} {}.", label_growth(line.pattern), sign(line), facts(line, oom)),
        );
        if let Some(source) = sites.source_line(&line.site) {
            put_line(out, format_args!("      {source}"));
        }
        if let Some(holder) = line.holders.as_ref().and_then(|holders| holders.first()) {
            put_line(out, format_args!("    Held by {}.", style.bold(&format_holder(holder))));
        }
    }
}

/// `+1.50 GiB`; the memory of each step is no growth.
fn sign(line: &OomGrowth) -> String {
    let bytes = format_bytes(line.bytes);
    if line.pattern == OomGrowthPattern::EachStep { bytes } else { format!("+{bytes}") }
}

/// `(76% of allocated memory), 61 blocks, allocated 7 times since step 15`.
fn facts(line: &OomGrowth, oom: &Oom) -> String {
    let share = format_percent(share(line.bytes, oom).min(1.0));
    let blocks = format_count(line.blocks, "block");
    format!("({share} of allocated memory), {blocks}{}", describe_pattern(line))
}

/// The largest call sites with older blocks, in one line.
pub(in crate::render::text) fn render_unchanged(out: &mut String, oom: &Oom, most: usize) {
    let listed = oom.unchanged.iter().filter(|line| share(line.bytes, oom) >= MIN_SHARE).take(most);
    let texts: Vec<String> =
        listed.map(|line| format!("{} at {}", format_bytes(line.bytes), short_site(&line.site))).collect();
    if !texts.is_empty() {
        put_line(out, format_args!("  Held since before: {}.", texts.join(", ")));
    }
}
