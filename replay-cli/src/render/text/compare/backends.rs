//! One program on two backends: what leaks, and what the device reserves because of it, side by
//! side. The table fits 80 columns.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::compare::{Backend, BackendComparison, LeakingLine, LineOnBoth, PinnedByLeaks};
use gpumemtrace_replay::report::Quantity;

use crate::render::wording::explain_unknown_amplification;
use crate::render::wording::sites::short_site;
use crate::terminal::format::{format_count, format_number, put_line};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most call sites listed.
const MAX_SITES: usize = 10;
/// Columns of the row names.
const NAME_WIDTH: usize = 34;

pub(super) fn render_backends(out: &mut String, across: &BackendComparison, style: Style) {
    let names = across.backends.map(|backend| match backend {
        Backend::Mps => "MPS",
        Backend::Cuda => "CUDA",
    });
    for row in &across.devices {
        render_device(out, row, names, style);
        out.push('\n');
    }
    if let [Some(before), Some(after)] = across.pinned_per_leaked_tensor_byte {
        put_line(
            out,
            format_args!(
                "  {HANG}Reserved for each leaked byte (of CUDA's count): {} {:.2}, {} {:.2}.",
                names[0], before.0, names[1], after.0
            ),
        );
        out.push('\n');
    }
    render_leaking_lines(out, &across.leaks, names, style);
    put_line(out, format_args!("{}", style.bold("Not comparable between the backends")));
    for sentence in &across.not_comparable {
        put_line(out, format_args!("  - {HANG}{}", sentence.message));
    }
    out.push('\n');
}

fn render_device(out: &mut String, row: &[Option<PinnedByLeaks>; 2], names: [&str; 2], style: Style) {
    let title = style.bold(&format!("{:<NAME_WIDTH$}", "Leaked, and reserved for it"));
    let heads = [0, 1].map(|run| match &row[run] {
        Some(pinned) => format!("{}, GPU {}", names[run], pinned.device),
        None => names[run].to_owned(),
    });
    put_line(out, format_args!("{title}{:>18}{:>18}", heads[0], heads[1]));
    let mut put_row = |name: &str, of: &dyn Fn(&PinnedByLeaks) -> String| {
        let cells = row.each_ref().map(|pinned| pinned.as_ref().map_or_else(|| "-".to_owned(), of));
        let name = format!("  {name}");
        put_line(out, format_args!("{name:<NAME_WIDTH$}{:>18}{:>18}", cells[0], cells[1]));
    };
    put_row("compared steps", &|pinned| match (pinned.first_step, pinned.last_step) {
        (Some(first), Some(last)) => format!("{} to {}", format_number(first), format_number(last)),
        _ => "unknown".to_owned(),
    });
    put_row("leaked per step", &|pinned| format_quantity(pinned.leaked_bytes_per_step));
    put_row("reserved (heaps) per step", &|pinned| format_quantity(pinned.pinned_bytes_per_step));
    put_row("device memory per step", &|pinned| format_quantity(pinned.device_bytes_per_step));
    put_row("other growth per step", &|pinned| format_quantity(pinned.other_growth_bytes_per_step));
    if row.iter().flatten().any(|pinned| pinned.sampled_tensor_bytes_per_step.is_some()) {
        put_row("allocated as sampled, per step", &|pinned| {
            format_quantity(pinned.sampled_tensor_bytes_per_step)
        });
    }
    put_row("reserved per leaked byte", &|pinned| {
        pinned.amplification.map_or_else(|| "unknown".to_owned(), |Quantity(ratio)| format!("{ratio:.2}"))
    });
    put_row("  plus or minus one segment", &|pinned| {
        let interval = pinned.amplification_interval;
        interval
            .map_or_else(|| "unknown".to_owned(), |[least, most]| format!("{:.2} to {:.2}", least.0, most.0))
    });
    let unknown = names.iter().zip(row).filter_map(|(name, one)| Some((name, one.as_ref()?.unknown?)));
    for (name, why) in unknown {
        let why = explain_unknown_amplification(why);
        put_line(out, format_args!("  {HANG}{name}: reserved per leaked byte is unknown: {why}."));
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
        put_line(out, format_args!("{}", style.bold("No leaks on either backend")));
        out.push('\n');
        return;
    }
    let title = style.bold("Leaks, per step");
    put_line(out, format_args!("{title}"));
    put_line(out, format_args!("  {:>12}  {:>12}", names[0], names[1]));
    let most = style.row_limit(MAX_SITES);
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
        let more = format_count((lines.len() - most) as u64, "more call site");
        put_line(out, format_args!("  and {more} (see --json)"));
    }
    out.push('\n');
}
