//! What the memory of a peak is for: parameters, activations, named phases.

use gpumemtrace_replay::report::{Peak, PhaseBytes};

use crate::render::wording::categories::{explain_category, label_category};
use crate::terminal::format::{format_count, format_percent, put_line, size_column};
use crate::terminal::marks::HANG;

/// The peak by category, then by the phase in which the blocks were allocated.
pub(super) fn render_categories(out: &mut String, peak: &Peak) {
    if peak.live_bytes == 0 {
        return;
    }
    put_line(out, format_args!("  By category:"));
    for share in &peak.categories {
        let label = format!("{}{}", label_category(share.category), explain_category(share));
        render_row(out, peak.live_bytes, (share.bytes, Some(share.blocks), label));
    }
    let phases: Vec<&PhaseBytes> = peak.phases.iter().flatten().collect();
    if phases.is_empty() {
        return;
    }
    put_line(out, format_args!("  By phase of the allocation:"));
    for PhaseBytes { phase, bytes } in phases {
        let label = phase.clone().unwrap_or_else(|| "outside of all phases".to_owned());
        render_row(out, peak.live_bytes, (*bytes, None, label));
    }
}

fn render_row(out: &mut String, total: u64, (bytes, blocks, label): (u64, Option<u64>, String)) {
    let share = if total == 0 { 0.0 } else { bytes as f64 / total as f64 };
    let blocks = blocks.map(|blocks| format_count(blocks, "block")).unwrap_or_default();
    put_line(
        out,
        format_args!("  {}  {:>5}  {blocks:>14}  {HANG}{label}", size_column(bytes), format_percent(share)),
    );
}
