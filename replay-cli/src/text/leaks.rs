//! `--leaks`: one paragraph per leaking line.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Leak, Steps};
use gpumemtrace_replay::sections::size;

use super::sites::{Sites, short, write_stack};
use super::{count, percent, put, thousands};
use crate::output::Style;

/// Most members named.
const MAX_MEMBERS: usize = 8;

pub(super) fn write(out: &mut String, report: &Report, trace: usize, style: Style, sites: &mut Sites) {
    let leaks: Vec<&Leak> = report.leaks.iter().flatten().filter(|leak| leak.trace == trace).collect();
    put(out, format_args!("{}", style.bold(&format!("Leaks{}", basis(report.steps.as_ref())))));
    if leaks.is_empty() {
        put(out, format_args!("  None: no line keeps more blocks from step to step."));
        return;
    }
    let several_devices = leaks.iter().any(|leak| leak.device != leaks[0].device);
    for (number, leak) in leaks.iter().enumerate() {
        out.push('\n');
        let device = if several_devices { format!(" (device {})", leak.device) } else { String::new() };
        put(
            out,
            format_args!("{}. {}{device}: {}", number + 1, style.bold(&short(&leak.site)), headline(leak)),
        );
        if let Some(source) = sites.source_line(&leak.site) {
            put(out, format_args!("       {source}"));
        }
        put(out, format_args!("   {}", explanation(leak)));
        if !leak.members.is_empty() {
            put(
                out,
                format_args!(
                    "   The blocks come from {} below it:",
                    count(leak.members.len() as u64, "line")
                ),
            );
            for member in leak.members.iter().take(MAX_MEMBERS) {
                put(out, format_args!("     - {}", short(member)));
            }
            if leak.members.len() > MAX_MEMBERS {
                put(out, format_args!("     - {} more", leak.members.len() - MAX_MEMBERS));
            }
        }
        if !leak.site.stack.is_empty() {
            put(out, format_args!("   Allocated at (own lines marked):"));
            write_stack(out, &leak.site.stack, "     ", style);
        }
    }
}

/// `train.py:41 in hook(): ` goes before it.
pub(super) fn headline(leak: &Leak) -> String {
    let alive = format!("{} ({}) alive", count(leak.blocks, "block"), size(leak.bytes));
    let Some(bytes) = leak.bytes_per_step else {
        return format!("grows over time, {alive}");
    };
    let mut text = size(bytes.0.round() as u64);
    match (leak.blocks_per_step.map(|blocks| blocks.0), leak.period_steps) {
        (Some(blocks), _) if blocks > 0.0 && blocks.fract() == 0.0 => {
            text = format!("{text} and {} per step", count(blocks as u64, "block"));
        }
        (Some(blocks), Some(period)) if blocks > 0.0 && period > 1 => {
            let all = (blocks * period as f64).round() as u64;
            let bytes = size((bytes.0 * period as f64).round() as u64);
            text = format!("{bytes} and {} every {period} steps", count(all, "block"));
        }
        (Some(blocks), _) if blocks > 0.0 => text = format!("{text} and {blocks:.2} blocks per step"),
        _ => text.push_str(" per step"),
    }
    if let Some(first) = leak.first_step {
        text = format!("{text} since step {}", thousands(first));
    }
    text = format!("{text}, {alive}");
    let judged = leak.evidence.get("judged_at_step").and_then(serde_json::Value::as_u64);
    if let (Some(left), Some(now)) = (leak.steps_to_oom, judged) {
        text = format!("{text}; OOM at about step {}", thousands(now.saturating_add(left)));
    }
    text
}

fn explanation(leak: &Leak) -> String {
    let mut text = match (&leak.freed_siblings.site, leak.freed_siblings.share) {
        (Some(site), share) if share > 0.0 => {
            format!(
                "{} of what this line allocated was freed, mostly at {}; this was not.",
                percent(share),
                short(site)
            )
        }
        (None, share) if share > 0.0 => {
            format!("{} of what this line allocated was freed; this was not.", percent(share))
        }
        _ => "Nothing that this line allocated was ever freed.".to_owned(),
    };
    if let Some(share) = leak.share_of_growth {
        text = format!("{text} {} of the device's growth.", percent(share));
    }
    if leak.shape == "retained_graph" {
        text = format!("{text} Looks like a graph that is kept: its tensors grow in lockstep.");
    } else if leak.shape == "accelerating" {
        text = format!("{text} It speeds up.");
    }
    let confidence =
        if leak.confidence > 0.99 { ">0.99".to_owned() } else { format!("{:.2}", leak.confidence) };
    format!("{text} Confidence {confidence}.")
}

fn basis(steps: Option<&Steps>) -> String {
    let Some(steps) = steps else { return String::new() };
    let number = steps.count.unwrap_or(0);
    match (steps.source, &steps.site) {
        (Some("optimizer"), Some(site)) => {
            format!(" (over {}, told by the optimizer call at {})", count(number, "step"), short(site))
        }
        (Some("marks"), _) => format!(" (over {} that the program marked)", count(number, "step")),
        (Some("period"), _) => {
            format!(" (over {}, told by the period of the allocations)", count(number, "step"))
        }
        (Some(source), _) => format!(" (over {}, told by {source})", count(number, "step")),
        (None, _) => " (no steps were recognised: judged over equal times)".to_owned(),
    }
}
