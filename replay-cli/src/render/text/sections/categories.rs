//! `--peak`: what the peak was for, what rose since the step before, and with `--blocks` every block.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::report::Category;
use gpumemtrace_replay::report::CategoryRule;
use gpumemtrace_replay::report::CategoryShare;
use gpumemtrace_replay::report::Confidence;
use gpumemtrace_replay::report::Peak;
use gpumemtrace_replay::report::PeakBlockRow;
use gpumemtrace_replay::report::PhaseBytes;
use gpumemtrace_replay::report::SincePreviousStep;

use crate::render::text::sites::short_site;
use crate::terminal::format::{format_count, format_number, format_percent, put_line, size_column};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most lines that changed which are listed.
const MAX_CHANGES: usize = 8;

/// What a category is called, with what it means to somebody who has not met it.
pub(in crate::render::text) fn category_label(category: Category) -> &'static str {
    match category {
        Category::Parameters => "parameters and buffers",
        Category::Gradients => "gradients",
        Category::OptimizerState => "optimizer state",
        Category::Activations => "activations (kept for backward)",
        Category::Temporaries => "temporaries (gone after their pass)",
        Category::Workspaces => "workspaces of libraries",
        Category::Inputs => "inputs (batches)",
        Category::Unknown => "not known",
    }
}

/// What it was for, and in which parts of the run it came.
pub(in crate::render::text) fn render_categories(out: &mut String, peak: &Peak) {
    if peak.live_bytes == 0 {
        return;
    }
    put_line(out, format_args!("  By what it is for:"));
    for share in &peak.categories {
        let line = (
            share.bytes,
            Some(share.blocks),
            format!("{}{}", category_label(share.category), explain_category(share)),
        );
        render_category_row(out, peak.live_bytes, line);
    }
    for PhaseBytes { phase, bytes } in peak.phases.iter().flatten() {
        let name = phase
            .as_deref()
            .map_or("came outside of all phases".to_owned(), |name| format!("came in phase {name}"));
        render_category_row(out, peak.live_bytes, (*bytes, None, name));
    }
}

/// How sure that is, or why nothing is known of most of it.
fn explain_category(share: &CategoryShare) -> String {
    if let Some(confidence) = share.confidence {
        return format!(", confidence {}", confidence.name());
    }
    let why = match share.rules.first().map(|first| first.rule) {
        Some(CategoryRule::KeptByProgram) => "made by the program's own lines, and kept",
        Some(CategoryRule::KeptByForward) => "made in a forward pass, and kept",
        Some(CategoryRule::CutShort) => "the run was broken off",
        Some(CategoryRule::NoPythonStack) => "no Python stack tells",
        Some(CategoryRule::NoPytorch) => "no PyTorch, and no library that is known",
        _ => return String::new(),
    };
    format!(": {why}")
}

fn render_category_row(out: &mut String, total: u64, (bytes, blocks, what): (u64, Option<u64>, String)) {
    let part = if total == 0 { 0.0 } else { bytes as f64 / total as f64 };
    let blocks = blocks.map(|blocks| format_count(blocks, "block")).unwrap_or_default();
    put_line(
        out,
        format_args!("  {}  {:>5}  {blocks:>14}  {HANG}{what}", size_column(bytes), format_percent(part)),
    );
}

/// What is more, or less, than at the peak of the step before.
pub(in crate::render::text) fn render_changes(out: &mut String, peak: &Peak, style: Style) {
    let most = style.row_limit(MAX_CHANGES);
    let Some(since) = &peak.since_previous_step else { return };
    out.push('\n');
    let SincePreviousStep { step, live_bytes, rise_bytes, changes, .. } = since;
    let how = format!("{}, whose peak was {}", format_signed(*rise_bytes), format_bytes(*live_bytes));
    let title = format!("Since the step before (step {}): {how}", format_number(*step));
    put_line(out, format_args!("  {}", style.bold(&title)));
    if changes.is_empty() {
        put_line(out, format_args!("    Each line held the same."));
    }
    for change in changes.iter().take(most) {
        let what = category_label(change.category).split(" (").next().unwrap_or_default();
        put_line(
            out,
            format_args!(
                "  {:>12}  {HANG}{what}: {}",
                format_signed(change.rise_bytes),
                short_site(&change.site)
            ),
        );
    }
    if changes.len() > most {
        let rest = &changes[most..];
        let bytes = rest.iter().fold(0i64, |sum, change| sum.saturating_add(change.rise_bytes));
        put_line(
            out,
            format_args!("  {:>12}  {} more", format_signed(bytes), format_count(rest.len() as u64, "line")),
        );
    }
}

fn format_signed(bytes: i64) -> String {
    let sign = match bytes {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", format_bytes(bytes.unsigned_abs()))
}

/// Every block, where they were asked for.
pub(in crate::render::text) fn render_blocks(out: &mut String, peak: &Peak) {
    let Some(blocks) = &peak.blocks else { return };
    out.push('\n');
    put_line(out, format_args!("  Every block, in the order in which they came:"));
    put_line(
        out,
        format_args!(
            "    {:<18} {:>15} {:>15} {:>7}  {:<15} {:<10} site",
            "address", "bytes", "requested", "step", "category", "confidence"
        ),
    );
    for block in blocks {
        let PeakBlockRow { addr, bytes, requested_bytes, step, category, confidence, site, .. } = block;
        let unknown = || "-".to_owned();
        put_line(
            out,
            format_args!(
                "    {:<18} {:>15} {:>15} {:>7}  {:<15} {:<10} {site}",
                format!("{addr:#x}"),
                format_number(*bytes),
                requested_bytes.map_or_else(unknown, format_number),
                step.map_or_else(unknown, format_number),
                category.name(),
                confidence.map_or("-", Confidence::name),
            ),
        );
    }
}
