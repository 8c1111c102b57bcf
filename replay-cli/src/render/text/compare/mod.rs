//! Two runs side by side, as a table of what differs.

mod backends;

use gpumemtrace_replay::compare::AmountChange;
use gpumemtrace_replay::compare::ChangeStatus;
use gpumemtrace_replay::compare::ComparedRun;
use gpumemtrace_replay::compare::Comparison;
use gpumemtrace_replay::compare::LeakChange;
use gpumemtrace_replay::compare::LeakSide;
use gpumemtrace_replay::compare::LineChange;
use gpumemtrace_replay::compare::TotalChange;
use gpumemtrace_replay::report::Quantity;
use gpumemtrace_replay::report::display::Vocabulary;
use gpumemtrace_replay::report::display::format_bytes;

use crate::render::text::sites::{SiteFormatter, short_site};
use crate::terminal::format::{format_count, format_number, put_line};
use crate::terminal::layout;
use crate::terminal::marks::HANG;
use crate::terminal::marks::sanitize;
use crate::terminal::style::Style;

/// The whole text, with so many lines at most.
pub(in crate::render::text) fn render_comparison(
    comparison: &Comparison,
    most: usize,
    style: Style,
) -> String {
    let mut out = String::new();
    render_run_headers(&mut out, comparison, style);
    out.push('\n');
    if let Some(across) = &comparison.across {
        backends::render_backends(&mut out, across, style);
    }
    if !comparison.differs {
        put_line(&mut out, format_args!("{}", style.bold("No difference")));
        put_line(
            &mut out,
            format_args!("  Every quantity is the same, to the byte. Times and addresses are not compared."),
        );
        return layout::finish_text(&out, style);
    }
    render_totals(&mut out, comparison, style);
    render_lines(&mut out, comparison, most, style);
    render_leak_changes(&mut out, &comparison.leaks, style);
    if !comparison.ooms.is_empty() {
        out.push('\n');
        put_line(&mut out, format_args!("{}", style.warn("Out of memory")));
    }
    for oom in &comparison.ooms {
        if let Some(site) = oom.after.as_ref().or(oom.before.as_ref()) {
            let times = |number| format_count(number, "time");
            let (before, after) = (times(oom.count.before), times(oom.count.after));
            put_line(&mut out, format_args!("  {before} -> {after}  {}", short_site(site)));
        }
    }
    layout::finish_text(&out, style)
}

fn render_run_headers(out: &mut String, comparison: &Comparison, style: Style) {
    for (name, run) in ["Before", "After"].iter().zip(&comparison.runs) {
        let command =
            run.command.as_ref().map_or_else(|| "unknown command".to_owned(), |command| command.join(" "));
        put_line(
            out,
            format_args!(
                "{:<7} {}",
                format!("{name}:"),
                style.bold(&format!("{}: {}", run.path, sanitize(&command)))
            ),
        );
        if !run.complete {
            put_line(out, format_args!("  {}", style.warn("Incomplete; its numbers are lower bounds:")));
        }
        for reason in &run.incomplete {
            put_line(out, format_args!("  - {}", sanitize(reason)));
        }
    }
    if let Some(steps) = &comparison.steps {
        let [before, after] = &comparison.runs;
        let told = before.step_source.map(|source| format!(" (told by {source})")).unwrap_or_default();
        put_line(
            out,
            format_args!(
                "  Compared by steps {} to {}{told}.",
                format_number(steps.first),
                format_number(steps.last)
            ),
        );
        if before.steps != after.steps {
            let ended = |run: &ComparedRun| {
                run.steps.map_or_else(|| "unknown steps".to_owned(), |steps| format_count(steps, "step"))
            };
            put_line(
                out,
                format_args!(
                    "  {} ended in the first run, {} in the second: what is not by steps is of runs of unequal length.",
                    ended(before),
                    ended(after)
                ),
            );
        }
    }
    for note in &comparison.notes {
        put_line(out, format_args!("  - {note}"));
    }
}

/// What a quantity means to whoever has never heard its name.
fn describe_total(total: &TotalChange, runs: &[Vocabulary; 2]) -> String {
    let is_metal = runs.iter().any(|words| words.is_metal);
    let is_other = runs.iter().any(|words| !words.is_metal);
    let words = match &*total.name {
        "peak_live_bytes" if is_metal && is_other => "peak of tensors, buffers",
        "peak_live_bytes" => "peak of tensors",
        "peak_reserved_bytes" if is_metal && is_other => "peak reserved, in heaps",
        "peak_reserved_bytes" if is_metal => "peak of Metal heaps",
        "peak_reserved_bytes" => "peak reserved by PyTorch",
        "peak_device_bytes" if is_metal && is_other => "peak from the driver, Metal",
        "peak_device_bytes" if is_metal => "peak from Metal",
        "peak_device_bytes" => "peak from the driver",
        "gap_bytes" => "reserved and unused",
        "retained_bytes" => "retained at the last step end",
        "peak_bytes_per_step" => "peak of a step",
        "bytes_per_step" => "allocated in a step",
        "allocations_per_step" => "allocations in a step",
        "ooms" => "times out of memory",
        name => match name.split_once('.') {
            Some(("gap", cause)) => return format!("  of it {}", cause.replace('_', " ")),
            Some(("held_by", owner)) => return format!("  of it {owner}"),
            _ => name,
        },
    };
    words.to_owned()
}

/// In the order in which they are read: the parts of a quantity behind it.
fn total_order(total: &TotalChange) -> usize {
    let order = [
        "steps",
        "ooms",
        "peak_live_bytes",
        "peak_reserved_bytes",
        "gap_bytes",
        "gap.",
        "peak_device_bytes",
        "held_by.",
        "retained_bytes",
        "peak_bytes_per_step",
        "bytes_per_step",
        "allocations_per_step",
    ];
    let is_it = |name: &str| total.name == name || name.ends_with('.') && total.name.starts_with(name);
    order.iter().position(|name| is_it(name)).unwrap_or(order.len())
}

fn render_totals(out: &mut String, comparison: &Comparison, style: Style) {
    let mut sorted: Vec<&TotalChange> = comparison.totals.iter().collect();
    let words = comparison.runs.each_ref().map(|run| run.words);
    sorted.sort_by_key(|total| (total.device, total_order(total)));
    for (at, total) in sorted.iter().enumerate() {
        if at == 0 || sorted[at - 1].device != total.device {
            if at > 0 {
                out.push('\n');
            }
            let title =
                total.device.map_or_else(|| "The run".to_owned(), |device| format!("Device {device}"));
            let title = style.bold(&format!("{title:<32}"));
            put_line(out, format_args!("{title}{:>14}{:>14}{:>14}", "before", "after", "change"));
        }
        let number = |value: Option<u64>| match (value, total.unit) {
            (None, _) => "unknown".to_owned(),
            (Some(value), "bytes") => format_bytes(value),
            (Some(value), _) => format_number(value),
        };
        let change =
            total.change.map(|change| format_change(change, total.unit == "bytes")).unwrap_or_default();
        put_line(
            out,
            format_args!(
                "  {:<30}{:>14}{:>14}{change:>14}",
                describe_total(total, &words),
                number(total.before),
                number(total.after)
            ),
        );
    }
}

/// `+4.00 MiB`, `-3`; `=` where nothing changes.
fn format_change(change: i64, is_bytes: bool) -> String {
    let amount = change.unsigned_abs();
    let amount = if is_bytes { format_bytes(amount) } else { format_number(amount) };
    match change {
        0 => "=".to_owned(),
        1.. => format!("+{amount}"),
        _ => format!("-{amount}"),
    }
}

fn status_word(status: ChangeStatus) -> &'static str {
    match status {
        ChangeStatus::Appeared => "appeared",
        ChangeStatus::Grew => "grew",
        ChangeStatus::Changed => "changed",
        ChangeStatus::Shrank => "shrank",
        ChangeStatus::Disappeared => "went",
    }
}

fn render_lines(out: &mut String, comparison: &Comparison, most: usize, style: Style) {
    let lines = &comparison.lines;
    if lines.is_empty() {
        return;
    }
    if !comparison.totals.is_empty() {
        out.push('\n');
    }
    let several_devices = lines.iter().any(|line| line.device != lines[0].device);
    let by_steps = comparison.steps.is_some();
    let in_a_step = if by_steps { format!("{:>13}", "in a step") } else { String::new() };
    let title = format!("{:<10}", format_count(lines.len() as u64, "line"));
    put_line(
        out,
        format_args!(
            "{}{:>13}{:>13}{in_a_step}{:>13}",
            style.bold(&title),
            "at the peak",
            "retained",
            "allocations"
        ),
    );
    let mut sites = SiteFormatter::new(false);
    for line in lines.iter().take(most) {
        let bytes = |change: AmountChange| format_change(change.change, true);
        let in_a_step =
            line.bytes_per_step.map(|change| format!("{:>13}", bytes(change))).unwrap_or_default();
        let allocations = line.allocations_per_step.or(line.allocations);
        let allocations = allocations.map(|change| format_change(change.change, false)).unwrap_or_default();
        let device = if several_devices { format!("device {}: ", line.device) } else { String::new() };
        put_line(
            out,
            format_args!(
                "{:<10}{:>13}{:>13}{in_a_step}{allocations:>13}  {HANG}{device}{}",
                status_word(line.status),
                bytes(line.at_peak_bytes),
                bytes(line.retained_bytes),
                format_line_site(line)
            ),
        );
        if let Some(differ) = line.steps_that_differ.filter(|_| is_quiet(line)) {
            put_line(
                out,
                format_args!("{:>12}it allocates something else in {}", "", format_count(differ, "step")),
            );
        }
        // A line of the run before may be another line by now.
        if let Some(source) = line.after.as_ref().and_then(|site| sites.source_line(site)) {
            put_line(out, format_args!("{:>12}{}", "", style.dim(&source)));
        }
    }
    if lines.len() > most {
        put_line(
            out,
            format_args!(
                "  and {} more (--all lists them)",
                format_count((lines.len() - most) as u64, "line")
            ),
        );
    }
}

/// True where none of the numbers that are shown differs.
fn is_quiet(line: &LineChange) -> bool {
    let by_steps = [line.bytes_per_step, line.allocations_per_step];
    let shown = [line.at_peak_bytes, line.retained_bytes];
    shown.into_iter().chain(by_steps.into_iter().flatten()).all(|change| change.change == 0)
}

fn format_line_site(line: &LineChange) -> String {
    let Some(site) = line.site() else { return String::new() };
    let moved =
        line.before.as_ref().and_then(|before| before.line).filter(|before| site.line != Some(*before));
    let moved = moved.map(|before| format!(" (was line {before})")).unwrap_or_default();
    format!("{}{moved}", short_site(site))
}

fn render_leak_changes(out: &mut String, leaks: &[LeakChange], style: Style) {
    if leaks.is_empty() {
        return;
    }
    out.push('\n');
    put_line(out, format_args!("{}", style.bold("Leaks")));
    for leak in leaks.iter().take(style.row_limit(usize::MAX)) {
        let Some(shown) = leak.after.as_ref().or(leak.before.as_ref()) else { continue };
        let rate = match (&leak.before, &leak.after) {
            (Some(before), Some(after)) => format!("{} -> {}", format_rate(before), format_rate(after)),
            _ => format_rate(shown),
        };
        let word = match leak.status {
            ChangeStatus::Appeared => style.warn("new"),
            ChangeStatus::Grew => style.warn("faster"),
            ChangeStatus::Shrank => "slower".to_owned(),
            ChangeStatus::Disappeared => "gone".to_owned(),
            ChangeStatus::Changed => "changed".to_owned(),
        };
        put_line(out, format_args!("  {word}: {}: {rate}", short_site(&shown.site)));
    }
    let more = leaks.len().saturating_sub(style.row_limit(usize::MAX)) as u64;
    if more > 0 {
        put_line(out, format_args!("  and {} more", format_count(more, "leak")));
    }
}

fn format_rate(side: &LeakSide) -> String {
    match side.bytes_per_step {
        Some(Quantity(rate)) if rate >= 0.0 => format!("{} per step", format_bytes(rate as u64)),
        _ => format_bytes(side.bytes),
    }
}
