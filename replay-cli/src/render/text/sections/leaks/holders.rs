//! Which variables hold the blocks of a leak, from the holder scans in the trace.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Leak, ScanTrigger};

use crate::render::wording::Vocabulary;
use crate::render::wording::leaks::describe_trigger;
use crate::render::wording::leaks::holders::{
    describe_other_holders, describe_scan, describe_unresolved, explain_no_scan, format_holder, last_scan,
    shown_scan,
};
use crate::render::wording::moment::{format_moment, format_step};
use crate::terminal::format::{format_count, format_duration, format_number, put_line};
use crate::terminal::style::Style;

/// Most holders listed of one leak.
const MAX_HOLDERS: usize = 4;

/// The holders of a leak's blocks, and the blocks without a known holder.
pub(super) fn render_holders(out: &mut String, report: &Report, leak: &Leak, style: Style) {
    let (Some(holders), Some(coverage)) = (&leak.holders, &leak.holder_coverage) else {
        if let Some(reason) = explain_no_scan(report, leak) {
            put_line(out, format_args!("   {reason}"));
        }
        return;
    };
    let most = style.row_limit(MAX_HOLDERS);
    for holder in holders.iter().take(most) {
        let all = format_count(coverage.blocks, "block");
        let share = format!("{} of {all}", format_number(holder.blocks));
        put_line(out, format_args!("   Held by {}: {share}.", style.bold(&format_holder(holder))));
    }
    if let Some(others) = holders.get(most..).and_then(describe_other_holders) {
        put_line(out, format_args!("   Held by {others}."));
    }
    if let Some(unresolved) = describe_unresolved(coverage) {
        put_line(out, format_args!("   Holder unknown: {unresolved}."));
    }
    let last = last_scan(report, leak.trace).map(|scan| scan.scan);
    if let Some(scan) = shown_scan(report, leak).filter(|scan| Some(scan.scan) != last) {
        let words = Vocabulary::of_trace(&report.traces[leak.trace]);
        let (when, moment) = (describe_trigger(scan.trigger), format_moment(&words, scan.time_ns, scan.step));
        put_line(out, format_args!("   As of the holder scan {when}, {moment}."));
    }
}

/// `Held by` the holder of most blocks, or why there is none; `None` without a holder scan.
pub(in crate::render::text) fn describe_main_holder(
    report: &Report,
    leak: &Leak,
    style: Style,
) -> Option<String> {
    let Some(holders) = &leak.holders else { return explain_no_scan(report, leak).map(str::to_owned) };
    let holder = format_holder(holders.first()?);
    let as_of = shown_scan(report, leak).filter(|scan| scan.trigger != Some(ScanTrigger::Exit));
    let as_of = as_of.map(|scan| match scan.step {
        Some(_) => format_step(", as of step ", scan.step),
        None => format!(", as of {} in", format_duration(scan.time_ns)),
    });
    Some(format!("Held by {}{}.", style.bold(&holder), as_of.unwrap_or_default()))
}

/// When the last holder scan of a trace ran, how long it took, and why it failed.
pub(super) fn render_last_scan(out: &mut String, report: &Report, trace: usize) {
    let Some(scan) = last_scan(report, trace) else { return };
    out.push('\n');
    put_line(out, format_args!("{}", describe_scan(scan)));
}
