//! Which variables hold the blocks of a leak, from the holder scans in the trace.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Holder, HolderScan, Leak, LeakKind};

use crate::render::text::moment::format_step;
use crate::render::wording::leaks::{describe_trigger, explain_unresolved};
use crate::terminal::format::{format_count, format_duration, format_number, put_line};
use crate::terminal::style::Style;

/// Most holders listed of one leak.
const MAX_HOLDERS: usize = 4;

/// The holders of a leak's blocks, and the blocks without a known holder.
pub(super) fn render_holders(out: &mut String, leak: &Leak, was_scanned: bool, style: Style) {
    let (Some(holders), Some(coverage)) = (&leak.holders, &leak.holder_coverage) else {
        if was_scanned && leak.kind == LeakKind::Tensors {
            put_line(
                out,
                format_args!(
                    "   Holder unknown: the holder scan ran after these blocks were freed, or before they \
                     were a leak. Call gpumemtrace.holders() inside your loop."
                ),
            );
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
}

/// The holder of most blocks; `None` without a holder scan.
pub(in crate::render::text) fn describe_main_holder(leak: &Leak) -> Option<String> {
    leak.holders.as_ref()?.first().map(format_holder)
}

/// `train.kept (list, 34 items) -> tensor -> grad_fn chain`.
pub(in crate::render::text) fn format_holder(holder: &Holder) -> String {
    let items = holder.items.map(|items| format_count(items, "item"));
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
    let scans = report.holders.iter().flatten().filter(|scan| scan.trace == trace);
    let Some(scan) = scans.max_by_key(|scan| scan.scan) else { return };
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
            chain: vec!["tensor".to_owned(), "grad_fn chain".to_owned()],
            blocks: 1,
            bytes: 512,
        };
        assert_eq!(format_holder(&holder), "train._val_cache (list, 390 items) -> tensor -> grad_fn chain");
        let plain = Holder { type_name: None, items: None, chain: Vec::new(), ..holder };
        assert_eq!(format_holder(&plain), "train._val_cache");
    }
}
