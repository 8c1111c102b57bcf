//! The largest value of an argument for each setting, as a table.

use gpumemtrace_whatif::{LargestAnswer, LargestOfSetting};

use super::whatif::describe_failure;
use crate::render::wording::alloc_conf_of;
use crate::render::wording::whatif::describe_range;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_number, put_line, size_column};
use crate::terminal::layout;
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;
use crate::terminal::units::{chosen_units, format_bytes};

/// A header, a row for each setting with the first value that fails, then the answer.
pub(super) fn render_largest(answer: &LargestAnswer, style: Style) -> String {
    let mut out = String::new();
    put_line(&mut out, format_args!("{}", style.bold(&describe_runs(answer))));
    put_line(
        &mut out,
        format_args!(
            "  {HANG}Only small tensors were computed. Larger values are assumed to need more memory."
        ),
    );
    out.push('\n');
    let (width, name) = (chosen_units().columns(), escape_text(&answer.argument));
    let column = name.chars().count().max(12);
    let title = format!("  {name:>column$}  {:>width$}  {:>width$}  setting", "reserved", "headroom");
    put_line(&mut out, format_args!("{}", style.bold(&title)));
    for of_setting in &answer.settings {
        render_setting(&mut out, of_setting, column, style);
    }
    out.push('\n');
    put_line(&mut out, format_args!("{HANG}{}", describe_largest(answer, style)));
    layout::finish_text(&out, style)
}

fn describe_runs(answer: &LargestAnswer) -> String {
    let count = if answer.devices == 1 { String::new() } else { format!("{} x ", answer.devices) };
    let torch = answer.torch.as_deref().map(|version| format!(", PyTorch {version}")).unwrap_or_default();
    format!(
        "{}: {count}{}, simulated, {}{torch}, {} each",
        escape_text(&answer.argument),
        escape_text(&answer.card),
        format_bytes(answer.card_bytes),
        format_count(u64::from(answer.steps), "step")
    )
}

fn render_setting(out: &mut String, of_setting: &LargestOfSetting, column: usize, style: Style) {
    let width = chosen_units().columns();
    let setting = match &of_setting.setting {
        None => "current settings".to_owned(),
        Some(setting) => style.bold(&escape_text(setting)),
    };
    let best = of_setting.best();
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| format!("{:>width$}", "unknown"), size_column);
    match best {
        Some(run) => {
            let (reserved, headroom) = (size_column(run.peak_reserved_bytes), bytes(run.headroom_bytes));
            let value = format_number(run.value);
            put_line(out, format_args!("  {value:>column$}  {reserved}  {headroom}  {HANG}{setting}"));
        }
        None => put_line(
            out,
            format_args!("  {:>column$}  {:>width$}  {:>width$}  {HANG}{setting}", "none", "", ""),
        ),
    }
    let range = best.and_then(|run| run.peak_reserved_range);
    if let Some(range) = range.filter(|range| range.least_bytes < range.most_bytes) {
        put_line(out, format_args!("      {HANG}{}", describe_range(&range)));
    }
    let failing = of_setting.runs.iter().find(|run| !run.fits);
    if let Some((run, failure)) = failing.and_then(|run| Some((run, run.first_failure.as_ref()?))) {
        let (value, failure) = (format_number(run.value), describe_failure(failure, true));
        put_line(out, format_args!("      {HANG}with {value}, {failure}"));
    }
}

/// The largest value of all settings, and the one without a change if it is smaller.
fn describe_largest(answer: &LargestAnswer, style: Style) -> String {
    let (name, card) = (escape_text(&answer.argument), escape_text(&answer.card));
    let card = format!("{card}, {}", format_bytes(answer.card_bytes));
    let best = answer.settings.iter().rev().max_by_key(|of_setting| of_setting.largest);
    let now = answer.settings.first().and_then(|of_setting| of_setting.largest);
    let Some((best, largest)) = best.and_then(|best| Some((best, best.largest?))) else {
        return format!("No {name} that was tried fits on {card}.");
    };
    let value = style.bold(&format_number(largest));
    let with = match &best.setting {
        Some(setting) if best.largest > now => {
            let variable = alloc_conf_of(answer.torch.as_deref().unwrap_or_default());
            format!(" with {variable}={}", escape_text(setting))
        }
        _ => String::new(),
    };
    let instead = match now {
        Some(now) if now < largest => format!(", and {} without it", format_number(now)),
        None if !with.is_empty() => ", and none without it".to_owned(),
        _ => String::new(),
    };
    format!("Largest {name} that fits on {card}: {value}{with}{instead}")
}
