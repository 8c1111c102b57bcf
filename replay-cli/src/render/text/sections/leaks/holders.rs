//! Which variables hold the blocks of a leak, from the holder scans in the trace.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Holder, HolderScan, Leak, LeakKind, ScanTrigger};

use crate::render::text::moment::{format_moment, format_step};
use crate::render::wording::Vocabulary;
use crate::render::wording::leaks::{describe_trigger, explain_unresolved};
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
    if let Some(more) = holders.get(most..).filter(|more| !more.is_empty()) {
        let blocks = more.iter().fold(0u64, |sum, holder| sum.saturating_add(holder.blocks));
        let others = format_count(more.len() as u64, "other name");
        put_line(out, format_args!("   Held by {others}: {}.", format_count(blocks, "block")));
    }
    if !coverage.unresolved.is_empty() {
        let reasons: Vec<String> = coverage
            .unresolved
            .iter()
            .map(|rest| {
                let blocks = format_count(rest.blocks, "block");
                format!("{blocks} ({})", explain_unresolved(rest.why))
            })
            .collect();
        put_line(out, format_args!("   Holder unknown: {}.", reasons.join(", ")));
    }
    let last = last_scan(report, leak.trace).map(|scan| scan.scan);
    if let Some(scan) = shown_scan(report, leak).filter(|scan| Some(scan.scan) != last) {
        let (when, moment) = (describe_trigger(scan.trigger), format_moment(scan.time_ns, scan.step));
        put_line(out, format_args!("   As of the holder scan {when}, {moment}."));
    }
}

/// Why there are no holders, and what to do; `None` without a scan or without tensors.
fn explain_no_scan(report: &Report, leak: &Leak) -> Option<&'static str> {
    let scan = last_scan(report, leak.trace).filter(|_| leak.kind == LeakKind::Tensors)?;
    Some(if scan.trigger == Some(ScanTrigger::Exit) && scan.failed.is_none() {
        "No references found: the blocks were already freed at exit. Call `gpumemtrace.holders()` inside \
         your loop."
    } else {
        "No references found: no holder scan covers these blocks. Call `gpumemtrace.holders()` inside your \
         loop."
    })
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

/// How to learn what holds the leaks of a trace; `None` if it was scanned or cannot be.
pub(in crate::render::text) fn suggest_holders(report: &Report, trace: usize) -> Option<&'static str> {
    let info = &report.traces[trace];
    let can_scan = info.python.is_some() && info.torch.is_some() && !Vocabulary::of_trace(info).is_metal;
    (can_scan && last_scan(report, trace).is_none())
        .then_some("To see what holds these blocks: gpumemtrace run --holders")
}

/// The scan whose holders the report shows for a leak.
fn shown_scan<'a>(report: &'a Report, leak: &Leak) -> Option<&'a HolderScan> {
    let number = leak.holder_coverage.as_ref()?.scan;
    let mut scans = report.holders.iter().flatten();
    scans.find(|scan| scan.trace == leak.trace && scan.scan == number)
}

fn last_scan(report: &Report, trace: usize) -> Option<&HolderScan> {
    let scans = report.holders.iter().flatten().filter(|scan| scan.trace == trace);
    scans.max_by_key(|scan| scan.scan)
}

/// `train.kept (list, 34 items) -> tensor -> grad_fn chain`.
pub(in crate::render::text) fn format_holder(holder: &Holder) -> String {
    let items = holder.items.map(|items| match holder.limit_items {
        Some(limit) => format!("{} of at most {}", format_number(items), format_count(limit, "item")),
        None => format_count(items, "item"),
    });
    let what: Vec<String> = holder.type_name.iter().cloned().chain(items).collect();
    let mut text = holder.name.clone();
    if !what.is_empty() {
        text = format!("{text} ({})", what.join(", "));
    }
    for link in &holder.chain {
        text = format!("{text} -> {link}");
    }
    text
}

/// When the last holder scan of a trace ran, how long it took, and why it failed.
pub(super) fn render_last_scan(out: &mut String, report: &Report, trace: usize) {
    let Some(scan) = last_scan(report, trace) else { return };
    out.push('\n');
    put_line(out, format_args!("{}", describe_scan(scan)));
}

fn describe_scan(scan: &HolderScan) -> String {
    let when = describe_trigger(scan.trigger);
    let scanned = format!("Holder scan: {when}{}", format_step(", in step ", scan.step));
    if let Some(why) = &scan.failed {
        return format!("{scanned}; it failed: {why}.");
    }
    let time = scan.walk_ns.map(|ns| format!(", {}", format_duration(ns))).unwrap_or_default();
    if scan.is_cut == Some(true) {
        let limit = scan.limit_ns.map(|limit| format!(" of {}", format_duration(limit)));
        let limit = limit.unwrap_or_default();
        return format!("{scanned}{time}; it reached its time limit{limit}, so holders may be missing.");
    }
    format!("{scanned}{time}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_is_printed_from_name_to_block() {
        let holder = Holder {
            name: "train._val_cache".to_owned(),
            type_name: Some("list".to_owned()),
            items: Some(390),
            limit_items: None,
            chain: vec!["tensor".to_owned(), "grad_fn chain".to_owned()],
            blocks: 1,
            bytes: 512,
        };
        assert_eq!(format_holder(&holder), "train._val_cache (list, 390 items) -> tensor -> grad_fn chain");
        let bounded = Holder { limit_items: Some(1000), chain: Vec::new(), ..holder.clone() };
        assert_eq!(format_holder(&bounded), "train._val_cache (list, 390 of at most 1,000 items)");
        let plain = Holder { type_name: None, items: None, chain: Vec::new(), ..holder };
        assert_eq!(format_holder(&plain), "train._val_cache");
    }
}
