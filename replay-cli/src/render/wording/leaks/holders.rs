//! Which variables hold the blocks of a leak, as phrases.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Ending, Holder, HolderCoverage, HolderScan, Leak, LeakKind, ScanTrigger};

use super::{describe_trigger, explain_unresolved};
use crate::render::wording::Vocabulary;
use crate::render::wording::moment::format_step;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_duration, format_number};

/// Why there are no holders, and what to do; `None` without a scan or without tensors.
pub(crate) fn explain_no_scan(report: &Report, leak: &Leak) -> Option<&'static str> {
    let scan = last_scan(report, leak.trace).filter(|_| leak.kind == LeakKind::Tensors)?;
    Some(if scan.trigger == Some(ScanTrigger::Exit) && scan.failed.is_none() {
        "No references found: the blocks were already freed at exit. Call `gpumemtrace.holders()` inside \
         your loop."
    } else {
        "No references found: no holder scan covers these blocks. Call `gpumemtrace.holders()` inside your \
         loop."
    })
}

/// How to learn what holds the leaks of a trace; `None` if it was scanned or cannot be.
pub(crate) fn suggest_holders(report: &Report, trace: usize) -> Option<&'static str> {
    let info = &report.traces[trace];
    let can_scan = info.python.is_some() && info.torch.is_some() && !Vocabulary::of_trace(info).is_metal;
    if !can_scan || last_scan(report, trace).is_some() {
        return None;
    }
    Some(match (info.searches_holders, info.end) {
        (false, _) => "To see what holds these blocks: gpumemtrace run --holders",
        (true, Ending::Running) => "No holder scan has run yet; one starts once the trace shows growth.",
        (true, _) => "No holder scan ran before the program ended.",
    })
}

/// The scan whose holders the report shows for a leak.
pub(crate) fn shown_scan<'a>(report: &'a Report, leak: &Leak) -> Option<&'a HolderScan> {
    let number = leak.holder_coverage.as_ref()?.scan;
    let mut scans = report.holders.iter().flatten();
    scans.find(|scan| scan.trace == leak.trace && scan.scan == number)
}

pub(crate) fn last_scan(report: &Report, trace: usize) -> Option<&HolderScan> {
    let scans = report.holders.iter().flatten().filter(|scan| scan.trace == trace);
    scans.max_by_key(|scan| scan.scan)
}

/// `train.kept (list, 34 items) -> tensor -> grad_fn chain`.
pub(crate) fn format_holder(holder: &Holder) -> String {
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
    escape_text(&text)
}

/// `2 blocks (no variable leads to their tensors)`, by reason; `None` if all blocks have a holder.
pub(crate) fn describe_unresolved(coverage: &HolderCoverage) -> Option<String> {
    let reasons = coverage.unresolved.iter().map(|rest| {
        let blocks = format_count(rest.blocks, "block");
        format!("{blocks} ({})", explain_unresolved(rest.why))
    });
    let reasons: Vec<String> = reasons.collect();
    (!reasons.is_empty()).then(|| reasons.join(", "))
}

/// `3 other names: 12 blocks`; `None` without further holders.
pub(crate) fn describe_other_holders(more: &[Holder]) -> Option<String> {
    let blocks = more.iter().fold(0u64, |sum, holder| sum.saturating_add(holder.blocks));
    let others = format_count(more.len() as u64, "other name");
    (!more.is_empty()).then(|| format!("{others}: {}", format_count(blocks, "block")))
}

/// When a holder scan ran, how long it took, and why it failed.
pub(crate) fn describe_scan(scan: &HolderScan) -> String {
    let when = describe_trigger(scan.trigger);
    let scanned = format!("Holder scan: {when}{}", format_step(", in step ", scan.step));
    if let Some(why) = &scan.failed {
        return format!("{scanned}; it failed: {}.", escape_text(why));
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
