//! Who holds what leaks, beneath the leak.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::Holder;
use gpumemtrace_replay::report::HolderScan;
use gpumemtrace_replay::report::Leak;

use crate::terminal::format::{format_count, format_duration, format_number, put_line};
use crate::terminal::style::Style;

/// Most holders of one leak.
const MAX_HOLDERS: usize = 4;

/// Who holds it, and what of it nobody was found for.
pub(in crate::render::text) fn render_holders(
    out: &mut String,
    leak: &Leak,
    was_scanned: bool,
    style: Style,
) {
    let (Some(holders), Some(seen)) = (&leak.holders, &leak.holders_seen) else {
        if was_scanned && leak.kind == "tensors" {
            put_line(
                out,
                format_args!(
                    "   Who holds it is not known: when the program looked, its blocks were gone, or it was no leak yet."
                ),
            );
        }
        return;
    };
    let most = style.row_limit(MAX_HOLDERS);
    for holder in holders.iter().take(most) {
        let of = format!("{} of {}", format_number(holder.blocks), format_count(seen.blocks, "block"));
        put_line(out, format_args!("   Held by {}: {of}.", style.bold(&format_holder(holder))));
    }
    if let Some(more) = holders.get(most..).filter(|more| !more.is_empty()) {
        let blocks = more.iter().fold(0u64, |all, one| all.saturating_add(one.blocks));
        let others = format_count(more.len() as u64, "other name");
        put_line(out, format_args!("   {others} hold {}.", format_count(blocks, "block")));
    }
    if !seen.unresolved.is_empty() {
        let reasons: Vec<String> = seen
            .unresolved
            .iter()
            .map(|one| format!("{} {}", format_count(one.blocks, "block"), explain_unresolved(&one.why)))
            .collect();
        put_line(out, format_args!("   Who holds the others is not known: {}.", reasons.join("; ")));
    }
}

/// `train.kept (list, 34 items) <- tensor <- grad_fn chain`.
fn format_holder(holder: &Holder) -> String {
    let items = holder.items.map(|items| format_count(items, "item"));
    let what: Vec<String> = holder.kind.iter().cloned().chain(items).collect();
    let mut text = holder.name.clone();
    if !what.is_empty() {
        text = format!("{text} ({})", what.join(", "));
    }
    for link in &holder.chain {
        text = format!("{text} <- {link}");
    }
    text
}

/// A reason in words.
fn explain_unresolved(why: &str) -> &str {
    match why {
        "no_tensor" => "no tensor of Python's has",
        "no_name" => "are in tensors that no name leads to",
        "saved_unread" => "may be in graphs that this version of PyTorch does not let be read",
        "out_of_time" => "were not found before the time was up",
        "not_looked_at" => "were not looked at, being so many",
        "not_listed" => "have further names",
        "unreadable" => "have a name that cannot be read",
        other => other,
    }
}

/// What is to be known of the looks: which was the last, and why one found nothing.
pub(in crate::render::text) fn render_last_scan(out: &mut String, report: &Report, trace: usize) {
    let scans = report.holders.iter().flatten().filter(|scan| scan.trace == trace);
    let Some(scan) = scans.max_by_key(|scan| scan.look) else { return };
    out.push('\n');
    put_line(out, format_args!("{}", describe_scan(scan)));
}

fn describe_scan(look: &HolderScan) -> String {
    let when = match look.when.as_deref() {
        Some("exit") => "at its end",
        Some("oom") => "when memory ran out",
        Some("signal") => "at a signal",
        Some("call") => "when it said so",
        _ => "at a moment that is not known",
    };
    let step = look.step.map_or_else(String::new, |step| format!(", in step {}", format_number(step)));
    let mut text = format!("The program looked who holds its blocks {when}{step}");
    if let Some(why) = &look.failed {
        return format!("{text}, and could not: {why}.");
    }
    if let Some(ns) = look.walk_ns {
        text = format!("{text}; the walk took {}", format_duration(ns));
    }
    if look.is_cut == Some(true) {
        let limit = look.limit_ns.map_or_else(String::new, |limit| format!(" of {}", format_duration(limit)));
        text = format!("{text} and ended at its limit{limit}: not all was found");
    }
    format!("{text}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_told_from_the_name_to_the_block() {
        let holder = Holder {
            name: "train._val_cache".to_owned(),
            kind: Some("list".to_owned()),
            items: Some(390),
            chain: vec!["tensor".to_owned(), "grad_fn chain".to_owned()],
            blocks: 1,
            bytes: 512,
        };
        assert_eq!(format_holder(&holder), "train._val_cache (list, 390 items) <- tensor <- grad_fn chain");
        let plain = Holder { kind: None, items: None, chain: Vec::new(), ..holder };
        assert_eq!(format_holder(&plain), "train._val_cache");
    }
}
