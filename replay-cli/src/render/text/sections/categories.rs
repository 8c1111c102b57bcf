//! `--peak`: what the peak was for, what rose since the step before, and with `--blocks` every block.

use gpumemtrace_replay::report::{Block, CategoryShare, Peak, PhaseBytes, SincePreviousStep};
use gpumemtrace_replay::sections::size;

use crate::render::text::sites::short;
use crate::render::text::{HANG, column, count, percent, put, thousands};
use crate::terminal::style::Style;

/// Most lines that changed which are listed.
const MAX_CHANGES: usize = 8;

/// What a category is called, with what it means to somebody who has not met it.
pub(in crate::render::text) fn words(category: &str) -> &str {
    match category {
        "parameters" => "parameters and buffers",
        "optimizer_state" => "optimizer state",
        "activations" => "activations (kept for backward)",
        "temporaries" => "temporaries (gone after their pass)",
        "workspaces" => "workspaces of libraries",
        "inputs" => "inputs (batches)",
        "unknown" => "not known",
        other => other,
    }
}

/// What it was for, and in which parts of the run it came.
pub(in crate::render::text) fn write(out: &mut String, peak: &Peak) {
    if peak.live_bytes == 0 {
        return;
    }
    put(out, format_args!("  By what it is for:"));
    for share in &peak.categories {
        let line = (share.bytes, Some(share.blocks), format!("{}{}", words(share.category), how(share)));
        row(out, peak.live_bytes, line);
    }
    for PhaseBytes { phase, bytes } in peak.phases.iter().flatten() {
        let name = phase
            .as_deref()
            .map_or("came outside of all phases".to_owned(), |name| format!("came in phase {name}"));
        row(out, peak.live_bytes, (*bytes, None, name));
    }
}

/// How sure that is, or why nothing is known of most of it.
fn how(share: &CategoryShare) -> String {
    if let Some(confidence) = share.confidence {
        return format!(", confidence {confidence}");
    }
    let why = match share.rules.first().map(|first| first.rule) {
        Some("kept_by_program") => "made by the program's own lines, and kept",
        Some("kept_by_forward") => "made in a forward pass, and kept",
        Some("cut_short") => "the run was broken off",
        Some("no_python_stack") => "no Python stack tells",
        Some("no_pytorch") => "no PyTorch, and no library that is known",
        _ => return String::new(),
    };
    format!(": {why}")
}

fn row(out: &mut String, total: u64, (bytes, blocks, what): (u64, Option<u64>, String)) {
    let part = if total == 0 { 0.0 } else { bytes as f64 / total as f64 };
    let blocks = blocks.map(|blocks| count(blocks, "block")).unwrap_or_default();
    put(out, format_args!("  {}  {:>5}  {blocks:>14}  {HANG}{what}", column(bytes), percent(part)));
}

/// What is more, or less, than at the peak of the step before.
pub(in crate::render::text) fn write_since(out: &mut String, peak: &Peak, style: Style) {
    let most = style.most(MAX_CHANGES);
    let Some(since) = &peak.since_previous_step else { return };
    out.push('\n');
    let SincePreviousStep { step, live_bytes, rise_bytes, changes, .. } = since;
    let how = format!("{}, whose peak was {}", signed(*rise_bytes), size(*live_bytes));
    let title = format!("Since the step before (step {}): {how}", thousands(*step));
    put(out, format_args!("  {}", style.bold(&title)));
    if changes.is_empty() {
        put(out, format_args!("    Each line held the same."));
    }
    for change in changes.iter().take(most) {
        let what = words(change.category).split(" (").next().unwrap_or_default();
        put(out, format_args!("  {:>12}  {HANG}{what}: {}", signed(change.rise_bytes), short(&change.site)));
    }
    if changes.len() > most {
        let rest = &changes[most..];
        let bytes = rest.iter().fold(0i64, |sum, change| sum.saturating_add(change.rise_bytes));
        put(out, format_args!("  {:>12}  {} more", signed(bytes), count(rest.len() as u64, "line")));
    }
}

fn signed(bytes: i64) -> String {
    let sign = match bytes {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", size(bytes.unsigned_abs()))
}

/// Every block, where they were asked for.
pub(in crate::render::text) fn write_blocks(out: &mut String, peak: &Peak) {
    let Some(blocks) = &peak.blocks else { return };
    out.push('\n');
    put(out, format_args!("  Every block, in the order in which they came:"));
    put(
        out,
        format_args!(
            "    {:<18} {:>15} {:>15} {:>7}  {:<15} {:<10} site",
            "address", "bytes", "requested", "step", "category", "confidence"
        ),
    );
    for block in blocks {
        let Block { addr, bytes, requested_bytes, step, category, confidence, site, .. } = block;
        let unknown = || "-".to_owned();
        put(
            out,
            format_args!(
                "    {:<18} {:>15} {:>15} {:>7}  {category:<15} {:<10} {site}",
                format!("{addr:#x}"),
                thousands(*bytes),
                requested_bytes.map_or_else(unknown, thousands),
                step.map_or_else(unknown, thousands),
                confidence.unwrap_or("-"),
            ),
        );
    }
}
