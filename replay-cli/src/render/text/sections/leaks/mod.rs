//! `--leaks`: one paragraph per leaking line.

mod holders;

use std::collections::BTreeMap;

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::Leak;
use gpumemtrace_replay::report::Omitted;
use gpumemtrace_replay::report::OomForecast;
use gpumemtrace_replay::report::Steps;
use gpumemtrace_replay::report::display::Vocabulary;
use gpumemtrace_replay::report::display::format_bytes;

use crate::render::text::sites::{SiteFormatter, short_site};
use crate::render::text::sum_hidden_rows;
use crate::terminal::format::{format_count, format_number, format_percent, put_line};
use crate::terminal::style::Style;
use holders::{render_holders, render_last_scan};

/// Beyond this many steps a prediction is no news.
pub(in crate::render::text) const FAR_STEPS: u64 = 1_000_000;
/// Below this many steps no growth can be told.
const FEW_STEPS: u64 = 5;
/// Most members named.
const MAX_MEMBERS: usize = 8;

pub(super) fn render_leaks(
    out: &mut String,
    report: &Report,
    trace: usize,
    style: Style,
    sites: &mut SiteFormatter,
) {
    let leaks: Vec<&Leak> = report.leaks.iter().flatten().filter(|leak| leak.trace == trace).collect();
    put_line(
        out,
        format_args!("{}", style.bold(&format!("Leaks{}", describe_step_basis(report.steps.as_ref())))),
    );
    if leaks.is_empty() {
        match filtered_leaks(report, trace).map_or(0, |out| out.count) {
            0 => put_line(out, format_args!("  None: no line holds more GPU memory from step to step.")),
            number => put_line(
                out,
                format_args!("  None at these lines; {} elsewhere.", format_count(number, "leak")),
            ),
        }
        if let Some(doubt) = few_steps_note(report, trace) {
            put_line(out, format_args!("  {doubt}"));
        }
        render_last_scan(out, report, trace);
        render_benign_growth(out, report, trace);
        return;
    }
    let several_devices = leaks.iter().any(|leak| leak.device != leaks[0].device);
    let most = style.row_limit(leaks.len());
    let was_scanned = report.holders.iter().flatten().any(|look| look.trace == trace);
    for (number, leak) in leaks.iter().take(most).enumerate() {
        out.push('\n');
        let device = if several_devices { format!(" (device {})", leak.device) } else { String::new() };
        put_line(
            out,
            format_args!(
                "{}. {}{device}: {}",
                number + 1,
                style.bold(&short_site(&leak.site)),
                leak_headline(leak)
            ),
        );
        if let Some(source) = sites.source_line(&leak.site) {
            put_line(out, format_args!("       {source}"));
        }
        put_line(out, format_args!("   {}", explain_leak(leak, &report.traces[trace].vocabulary())));
        if let Some(leaf) = &leak.leaf {
            put_line(
                out,
                format_args!("   It is allocated at {}, which others call as well.", short_site(leaf)),
            );
        }
        render_holders(out, leak, was_scanned, style);
        for call in &leak.backward_calls {
            put_line(
                out,
                format_args!("   By threads of autograd, for the backward() call at {}.", short_site(call)),
            );
        }
        if !leak.members.is_empty() {
            put_line(
                out,
                format_args!(
                    "   Its blocks come from {} below it:",
                    format_count(leak.members.len() as u64, "line")
                ),
            );
            for member in leak.members.iter().take(style.row_limit(MAX_MEMBERS)) {
                put_line(out, format_args!("     - {}", short_site(member)));
            }
            if leak.members.len() > style.row_limit(MAX_MEMBERS) {
                put_line(
                    out,
                    format_args!("     - {} more", leak.members.len() - style.row_limit(MAX_MEMBERS)),
                );
            }
        }
        if !leak.site.stack.is_empty() {
            let which = if leak.shape == "retained_graph" { "Most of it is allocated" } else { "Allocated" };
            put_line(out, format_args!("   {which} at (own lines marked with >):"));
            sites.write_stack(out, &leak.site, "     ", style);
        }
    }
    let (more, bytes) = sum_hidden_rows(&leaks, most, filtered_leaks(report, trace), |leak| leak.bytes);
    if more > 0 {
        out.push('\n');
        put_line(
            out,
            format_args!("{} more, {} in all.", format_count(more, "other leak"), format_bytes(bytes)),
        );
    }
    render_last_scan(out, report, trace);
    render_benign_growth(out, report, trace);
}

/// Leaks that a filter left out; of the report, so they are told with its only trace or not at all.
pub(in crate::render::text) fn filtered_leaks(report: &Report, trace: usize) -> Option<Omitted> {
    report.left_out.and_then(|lists| lists.leaks).filter(|_| trace == 0 && report.traces.len() == 1)
}

/// What grew and is no leak, by rule: so that nobody looks for it.
fn render_benign_growth(out: &mut String, report: &Report, trace: usize) {
    let mut by_rule: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for one in report.silent_growth.iter().flatten().filter(|one| one.trace == trace) {
        let (lines, bytes) = by_rule.entry(one.rule).or_default();
        *lines += 1;
        *bytes = bytes.saturating_add(one.bytes);
    }
    if by_rule.is_empty() {
        return;
    }
    let clauses: Vec<String> = by_rule
        .iter()
        .map(|(rule, (lines, bytes))| {
            format!(
                "{} {} ({})",
                format_bytes(*bytes),
                explain_benign_rule(rule),
                format_count(*lines, "line")
            )
        })
        .collect();
    out.push('\n');
    put_line(out, format_args!("Not leaks: {}.", clauses.join(", ")));
}

/// A rule of silence in words.
fn explain_benign_rule(rule: &str) -> &str {
    match rule {
        "warm_up" => "that came in the first steps",
        "one_off" => "that came a few times",
        "saturating" => "in what fills up or slows down",
        "ratchet" => "in what is made anew for the longest batch so far",
        "optimizer_state" => "of optimizer state",
        "library_workspace" => "of cuBLAS workspaces",
        "too_early" => "of which the steps are too few to tell",
        other => other,
    }
}

/// `train.py:41 in hook(): ` goes before it.
pub(in crate::render::text) fn leak_headline(leak: &Leak) -> String {
    let when = leak.last_step.map_or_else(
        || "near the end".to_owned(),
        |step| format!("at the end of step {}", format_number(step)),
    );
    let what = if leak.grows_by == "size" {
        format!("{} larger {when}", format_bytes(leak.bytes))
    } else {
        format!("{} ({}) {when}", format_count(leak.blocks, "block"), format_bytes(leak.bytes))
    };
    let Some(bytes) = leak.bytes_per_step else {
        return format!("grows over time, {what}");
    };
    let mut text = match leak.period_steps {
        Some(period) if period > 1 => {
            let in_all = |rate: f64| (rate * period as f64).round() as u64;
            let blocks = leak.blocks_per_step.map_or(0, |blocks| in_all(blocks.0));
            format!("{} every {period} steps", format_growth(in_all(bytes.0), blocks))
        }
        _ => {
            let about = if leak.is_regular { "" } else { "about " };
            let blocks = leak.blocks_per_step.map_or(0.0, |blocks| blocks.0);
            if blocks.fract() == 0.0 {
                format!("{about}{} per step", format_growth(bytes.0.round() as u64, blocks as u64))
            } else {
                format!("{about}{} and {blocks:.2} blocks per step", format_bytes(bytes.0.round() as u64))
            }
        }
    };
    if let Some(first) = leak.first_step {
        text = format!("{text} since step {}", format_number(first));
    }
    text = format!("{text}, {what}");
    match (leak.steps_to_oom, &leak.oom_step) {
        (Some(left), _) if left > FAR_STEPS => format!("{text}; no OOM within a million steps"),
        (Some(_), Some(step)) => format!("{text}; {}", format_oom_step(step)),
        _ => text,
    }
}

fn format_oom_step(step: &OomForecast) -> String {
    let about = format!("OOM at about step {}", format_number(step.expected));
    match step.latest {
        Some(latest) if latest == step.earliest => about,
        Some(latest) => format!("{about} ({} to {})", format_number(step.earliest), format_number(latest)),
        None => format!("{about} ({} or later)", format_number(step.earliest)),
    }
}

/// Why nothing found may mean nothing.
pub(in crate::render::text) fn few_steps_note(report: &Report, trace: usize) -> Option<String> {
    let steps = report.steps.as_ref()?;
    let before = report.traces[trace].since.and_then(|since| since.step).unwrap_or(0);
    match (steps.source, steps.count.unwrap_or(0).saturating_sub(before)) {
        (Some(_), number @ 0..FEW_STEPS) => {
            Some(format!("But {} are too few to tell growth from a start.", format_count(number, "step")))
        }
        _ => None,
    }
}

/// `4.00 MiB and 1 block`; of a block that gets larger there are no further blocks to count.
fn format_growth(bytes: u64, blocks: u64) -> String {
    match blocks {
        0 => format_bytes(bytes),
        blocks => format!("{} and {}", format_bytes(bytes), format_count(blocks, "block")),
    }
}

fn explain_leak(leak: &Leak, words: &Vocabulary) -> String {
    let mut parts = Vec::new();
    match leak.kind {
        "device" => parts.push(words.outside.to_owned()),
        "pinned_host" => parts.push("This is pinned host memory.".to_owned()),
        _ => {}
    }
    let share = leak.freed_siblings.share;
    let freed_at = leak.freed_siblings.site.as_ref().map(|site| format!(", mostly at {}", short_site(site)));
    let freed_at = freed_at.unwrap_or_default();
    parts.push(if leak.kind == "reserved" {
        format!(
            "{} reserves more and more that no tensor uses: freed on a stream or in a pool that does not serve \
             what comes next, or in pieces that fit nobody. The line is the one that asked for most of it.",
            words.reserver
        )
    } else if leak.grows_by == "size" {
        "Not more blocks but larger ones: a tensor that is extended (torch.cat), or a batch or sequence that \
         gets longer."
            .to_owned()
    } else if share > 0.0 {
        format!("{} of what this line allocated was freed{freed_at}; this was not.", format_percent(share))
    } else {
        "Nothing that this line allocated was ever freed.".to_owned()
    });
    if words.is_metal && leak.kind == "tensors" {
        parts.push(
            "Buffers are made here; a tensor of another line that was given one may be what keeps it."
                .to_owned(),
        );
    }
    if leak.shape == "retained_graph" {
        let rate = leak
            .bytes_per_step
            .map_or_else(String::new, |rate| format!(", {} per step", format_bytes(rate.0.round() as u64)));
        let line = leak.site.line.map_or_else(|| "?".to_owned(), |line| line.to_string());
        parts.push(format!(
            "Forward at line {line}, no backward{rate}: an autograd graph that is kept, whose tensors grow in the same steps."
        ));
    } else if leak.shape == "accelerating" {
        parts.push("It speeds up.".to_owned());
    }
    if !leak.is_regular {
        parts.push("It does not grow regularly: a cache that is still filling looks the same.".to_owned());
    }
    if let Some(share) = leak.share_of_growth {
        parts.push(format!("It is {} of the device's growth.", format_percent(share)));
    }
    parts.push(match leak.confidence {
        confidence if confidence > 0.99 => "Confidence >0.99.".to_owned(),
        confidence => format!("Confidence {confidence:.2}."),
    });
    parts.join(" ")
}

fn describe_step_basis(steps: Option<&Steps>) -> String {
    let Some(steps) = steps else { return String::new() };
    let number = steps.count.unwrap_or(0);
    match (steps.source, &steps.site) {
        (Some("optimizer"), Some(site)) => {
            format!(
                " (over {}, told by the optimizer call at {})",
                format_count(number, "step"),
                short_site(site)
            )
        }
        (Some("marks"), _) => {
            format!(
                " (over {} that the program marked; step 0 is what came before)",
                format_count(number, "step")
            )
        }
        (Some("period"), _) => {
            format!(" (over {}, told by the period of the allocations)", format_count(number, "step"))
        }
        (Some("nvtx"), _) => {
            let name = steps.range.as_deref().unwrap_or("unknown");
            let ranges = format!("told by the NVTX ranges \"{name}\"; step 0 is what came before");
            format!(" (over {}, {ranges})", format_count(number, "step"))
        }
        (Some(source), _) => format!(" (over {}, told by {source})", format_count(number, "step")),
        (None, _) => " (no steps were recognised: judged over equal times)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_numbers_of_steps_begin_is_said_where_a_program_may_count_otherwise() {
        let of = |source, range: Option<&str>| {
            let range = range.map(str::to_owned);
            describe_step_basis(Some(&Steps { source: Some(source), count: Some(40), site: None, range }))
        };
        let marked = " (over 40 steps that the program marked; step 0 is what came before)";
        assert_eq!(of("marks", None), marked);
        let ranges = " (over 40 steps, told by the NVTX ranges \"step #\"; step 0 is what came before)";
        assert_eq!(of("nvtx", Some("step #")), ranges);
        assert_eq!(of("period", None), " (over 40 steps, told by the period of the allocations)");
    }
}
