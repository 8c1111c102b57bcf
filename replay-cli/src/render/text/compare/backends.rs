//! One program on two backends: what leaks, and what is pinned by it, side by side.

use gpumemtrace_replay::compare::BackendComparison;
use gpumemtrace_replay::compare::LeakingLine;
use gpumemtrace_replay::compare::LineOnBoth;
use gpumemtrace_replay::compare::PinnedByLeaks;
use gpumemtrace_replay::report::Quantity;
use gpumemtrace_replay::report::display::format_bytes;

use crate::render::text::sites::short_site;
use crate::terminal::format::{format_number, put_line};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most lines listed.
const MOST: usize = 10;

pub(in crate::render::text) fn render_backends(out: &mut String, across: &BackendComparison, style: Style) {
    let names = across.backends.map(|backend| if backend == "mps" { "MPS" } else { "CUDA" });
    for row in &across.devices {
        render_device(out, row, names, style);
        out.push('\n');
    }
    if let [Some(before), Some(after)] = across.pinned_per_leaked_tensor_byte {
        put_line(
            out,
            format_args!(
                "  {HANG}Of each byte of tensors that leaks, as CUDA tells them, so many are pinned: {} {:.2}, {} {:.2}.",
                names[0], before.0, names[1], after.0
            ),
        );
        out.push('\n');
    }
    render_leaking_lines(out, &across.leaks, names, style);
    put_line(out, format_args!("{}", style.bold("What the two do not tell in the same way")));
    for sentence in &across.not_comparable {
        put_line(out, format_args!("  - {HANG}{sentence}"));
    }
    out.push('\n');
}

fn render_device(out: &mut String, row: &[Option<PinnedByLeaks>; 2], names: [&str; 2], style: Style) {
    let title = style.bold(&format!("{:<34}", "Leaked, and pinned by it"));
    let heads = [0, 1].map(|run| match &row[run] {
        Some(pinned) => format!("{}, device {}", names[run], pinned.device),
        None => names[run].to_owned(),
    });
    put_line(out, format_args!("{title}{:>18}{:>18}", heads[0], heads[1]));
    let mut put_row = |name: &str, of: &dyn Fn(&PinnedByLeaks) -> String| {
        let cells = row.each_ref().map(|pinned| pinned.as_ref().map_or_else(|| "-".to_owned(), of));
        put_line(out, format_args!("  {name:<32}{:>18}{:>18}", cells[0], cells[1]));
    };
    put_row("steps that count", &|pinned| match (pinned.first_step, pinned.last_step) {
        (Some(first), Some(last)) => format!("{} to {}", format_number(first), format_number(last)),
        _ => "unknown".to_owned(),
    });
    put_row("leaked, per step", &|pinned| format_quantity(pinned.leaked_bytes_per_step));
    put_row("reserved, per step (heaps)", &|pinned| format_quantity(pinned.pinned_bytes_per_step));
    put_row("from the device, per step", &|pinned| format_quantity(pinned.device_bytes_per_step));
    put_row("other growth, per step", &|pinned| format_quantity(pinned.other_growth_bytes_per_step));
    if row.iter().flatten().any(|pinned| pinned.sampled_tensor_bytes_per_step.is_some()) {
        put_row("tensors as sampled, per step", &|pinned| {
            format_quantity(pinned.sampled_tensor_bytes_per_step)
        });
    }
    put_row("amplification", &|pinned| {
        pinned.amplification.map_or_else(|| "unknown".to_owned(), |Quantity(ratio)| format!("{ratio:.2}"))
    });
    put_row("  give or take a segment", &|pinned| {
        let interval = pinned.amplification_interval;
        interval
            .map_or_else(|| "unknown".to_owned(), |[least, most]| format!("{:.2} to {:.2}", least.0, most.0))
    });
    for (name, why) in names.iter().zip(row).filter_map(|(name, one)| Some((name, one.as_ref()?.unknown?))) {
        put_line(out, format_args!("  {HANG}{name}: the amplification is unknown: {why}."));
    }
}

fn format_quantity(quantity: Option<Quantity>) -> String {
    match quantity {
        None => "unknown".to_owned(),
        Some(Quantity(bytes)) if bytes < 0.0 => format!("-{}", format_bytes((-bytes).round() as u64)),
        Some(Quantity(bytes)) => format_bytes(bytes.round() as u64),
    }
}

fn render_leaking_lines(out: &mut String, lines: &[LineOnBoth], names: [&str; 2], style: Style) {
    if lines.is_empty() {
        put_line(out, format_args!("{}", style.bold("No line leaks on either of them")));
        out.push('\n');
        return;
    }
    let title = style.bold("Lines that leak, per step");
    put_line(out, format_args!("{title}"));
    put_line(out, format_args!("  {:>12}  {:>12}", names[0], names[1]));
    let most = style.row_limit(MOST);
    for line in lines.iter().take(most) {
        let cell = |side: &Option<LeakingLine>| match side {
            Some(leaking) => format_quantity(leaking.bytes_per_step),
            None => "not found".to_owned(),
        };
        let Some(site) = line.before.as_ref().or(line.after.as_ref()) else { continue };
        put_line(
            out,
            format_args!(
                "  {:>12}  {:>12}  {HANG}{}",
                cell(&line.before),
                cell(&line.after),
                short_site(&site.site)
            ),
        );
    }
    if lines.len() > most {
        put_line(out, format_args!("  {} more (--json names them)", lines.len() - most));
    }
    out.push('\n');
}
