//! Predictions as a table, the best first.

use gpumemtrace_whatif::{PredictionStatus, WhatIfAnswer, WhatIfRow};

use crate::render::wording::sites::short_site;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_number, put_line, size_column};
use crate::terminal::layout;
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;
use crate::terminal::units::format_bytes;

/// A header, the recorded run, then a row for each prediction.
pub(super) fn render_answer(answer: &WhatIfAnswer, style: Style) -> String {
    let mut out = String::new();
    let base = &answer.base;
    let torch = base.torch.as_deref().unwrap_or("unknown");
    let card = base.card_bytes.map_or_else(|| "unknown".to_owned(), format_bytes);
    put_line(
        &mut out,
        format_args!(
            "{}: GPU {}, PyTorch {}, card {card}",
            escape_text(&answer.path),
            answer.device,
            escape_text(torch)
        ),
    );
    put_line(&mut out, format_args!("  {}", describe_base(base)));
    out.push('\n');
    let title = "peak reserved    end reserved    retries    driver calls    setting";
    put_line(&mut out, format_args!("{}", style.bold(&format!("  {title}"))));
    render_row(&mut out, base, base, "as recorded", style);
    let most = style.row_limit(usize::MAX);
    for row in answer.rows.iter().take(most) {
        render_row(&mut out, row, base, "", style);
    }
    if let Some(hidden) = answer.rows.len().checked_sub(most).filter(|hidden| *hidden > 0) {
        put_line(&mut out, format_args!("  {} more; --top shows them", format_count(hidden as u64, "setting")));
    }
    render_reasons(&mut out, answer);
    layout::finish_text(&out, style)
}

/// Whether the model holds for this run.
fn describe_base(base: &WhatIfRow) -> String {
    match (base.status, &base.reason) {
        (PredictionStatus::Exact, _) => {
            "With the recorded settings, the model reserves the same bytes at every request.".to_owned()
        }
        (PredictionStatus::Indicative, Some(reason)) => format!("Predictions are indicative: {reason}."),
        (_, reason) => format!("No prediction: {}.", reason.as_deref().unwrap_or("unknown")),
    }
}

fn render_row(out: &mut String, row: &WhatIfRow, base: &WhatIfRow, note: &str, style: Style) {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), size_column);
    let calls: u64 = row.driver_calls.values().sum();
    let mut name = describe_setting(row, base);
    if !note.is_empty() {
        name = format!("{name} ({note})");
    }
    put_line(
        out,
        format_args!(
            "{:>15} {:>15} {:>10} {:>15}    {HANG}{}",
            bytes(row.peak_reserved_bytes),
            bytes(row.end_reserved_bytes),
            format_number(row.retries),
            format_number(calls),
            style.bold(&escape_text(&name))
        ),
    );
    if let Some(failure) = row.first_failure.as_ref().filter(|_| row.ooms > 0) {
        let site = failure.site.as_ref().map_or_else(|| "an unknown line".to_owned(), short_site);
        put_line(
            out,
            format_args!(
                "{:60}{HANG}out of memory in step {}: {} at {site}",
                "",
                failure.step,
                format_bytes(failure.request_bytes)
            ),
        );
    }
}

/// The setting to paste, and what else differs from the recorded run.
fn describe_setting(row: &WhatIfRow, base: &WhatIfRow) -> String {
    let mut name = match row.setting.as_str() {
        "" => "PyTorch's defaults".to_owned(),
        setting => format!("PYTORCH_ALLOC_CONF={setting}"),
    };
    if row.torch != base.torch {
        name += &format!(", PyTorch {}", row.torch.as_deref().unwrap_or("unknown"));
    }
    if row.card_bytes != base.card_bytes {
        name += &format!(", card of {}", row.card_bytes.map_or_else(|| "unknown size".to_owned(), format_bytes));
    }
    name
}

/// Reasons that not all rows share with the recorded run.
fn render_reasons(out: &mut String, answer: &WhatIfAnswer) {
    let own = |row: &&WhatIfRow| row.reason != answer.base.reason;
    let doubtful: Vec<&WhatIfRow> = answer.rows.iter().filter(own).collect();
    if doubtful.is_empty() {
        return;
    }
    out.push('\n');
    for row in doubtful {
        let word = if row.status == PredictionStatus::Refused { "refused" } else { "indicative" };
        let name = escape_text(&describe_setting(row, &answer.base));
        put_line(
            out,
            format_args!("  {name}: {HANG}{word}, because {}.", row.reason.as_deref().unwrap_or("unknown")),
        );
    }
}
