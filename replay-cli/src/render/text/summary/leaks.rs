//! The leaks in a summary: what grows how fast, where, and which variable holds it.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Leak, LeakKind};

use super::MAX_ROWS;
use crate::render::text::sections::leaks::describe_main_holder;
use crate::render::text::sites::SiteFormatter;
use crate::render::wording::leaks::explanation::explain_host_cache;
use crate::render::wording::leaks::growth::{describe_forecast, describe_growth, format_rate};
use crate::render::wording::leaks::{label_leak, name_graph};
use crate::render::wording::sites::short_site;
use crate::terminal::format::{format_count, put_line};
use crate::terminal::paths::shorten_paths_in;
use crate::terminal::style::Style;

pub(super) fn render_leaks(
    out: &mut String,
    report: &Report,
    leaks: &[&Leak],
    style: Style,
    sites: &mut SiteFormatter,
) {
    let most = style.row_limit(MAX_ROWS);
    for (number, leak) in leaks.iter().take(most).enumerate() {
        let is_alone = leaks.iter().filter(|other| other.device == leak.device).count() == 1;
        // The forecast is that of the GPU: once is enough, and after an error it is not news.
        let is_first = leaks.iter().position(|other| other.device == leak.device) == Some(number);
        let has_failed = report.oom.iter().flatten().any(|oom| oom.trace == leak.trace);
        let forecast =
            if is_first && !has_failed { describe_forecast(leak, is_alone) } else { String::new() };
        if number > 0 {
            out.push('\n');
        }
        render_leak(out, leak, &forecast, style, sites);
        if let Some(holder) = describe_main_holder(report, leak, style) {
            put_line(out, format_args!("  {holder}"));
        }
        if sites.full_stacks {
            sites.write_stack(out, &leak.site, "      ", style);
        }
    }
    if leaks.len() > most {
        put_line(
            out,
            format_args!("{} (see --leaks)", format_count((leaks.len() - most) as u64, "more leak")),
        );
    }
    render_total(out, leaks);
}

/// The rate of all leaks of allocated memory, if there are several.
fn render_total(out: &mut String, leaks: &[&Leak]) {
    let rates: Vec<f64> = leaks
        .iter()
        .filter(|leak| leak.kind == LeakKind::Tensors)
        .filter_map(|leak| Some(leak.bytes_per_step?.0))
        .collect();
    if rates.len() > 1 {
        let total = format_bytes(rates.iter().sum::<f64>().round() as u64);
        let sites = format_count(rates.len() as u64, "call site");
        out.push('\n');
        put_line(out, format_args!("Allocated memory grows by {total}/step at {sites}."));
    }
}

fn render_leak(out: &mut String, leak: &Leak, forecast: &str, style: Style, sites: &mut SiteFormatter) {
    let gpu = if leak.kind == LeakKind::PinnedHost || leak.device == 0 {
        String::new()
    } else {
        format!(" on GPU {}", leak.device)
    };
    let label = label_leak(leak.kind, leak.grows_by, leak.is_regular);
    let headline = format!("{label}: {}{gpu} at {}", format_rate(leak), short_site(&leak.site));
    put_line(out, format_args!("{}", style.warn(&headline)));
    if let Some(source) = sites.source_line(&leak.site) {
        put_line(out, format_args!("      {source}"));
    }
    let graph = name_graph(leak).map(|graph| format!("{graph}: ")).unwrap_or_default();
    put_line(out, format_args!("  {graph}{}.{forecast}", describe_growth(leak)));
    if let Some(doubt) = explain_host_cache(leak) {
        put_line(out, format_args!("  {}", shorten_paths_in(&doubt)));
    }
}
