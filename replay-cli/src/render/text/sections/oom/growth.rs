//! The lines that grew towards an out-of-memory error, and those that did not.

use gpumemtrace_replay::report::Oom;

use crate::render::text::sites::SiteFormatter;
use crate::render::wording::leaks::holders::format_holder;
use crate::render::wording::oom::growth::{
    describe_blocks, format_growth, listed_growth, listed_unchanged, share_of_live,
};
use crate::render::wording::oom::label_growth;
use crate::render::wording::sites::short_site;
use crate::terminal::format::put_line;
use crate::terminal::style::Style;
use crate::terminal::units::format_bytes;

/// The lines that grew, with what holds their blocks.
pub(in crate::render::text) fn render_growth(
    out: &mut String,
    oom: &Oom,
    most: usize,
    style: Style,
    sites: &mut SiteFormatter,
) {
    for line in listed_growth(oom, most) {
        let site = style.bold(&short_site(&line.site));
        put_line(
            out,
            format_args!(
                "  {}{} at {site} ({}), {}.",
                label_growth(line.pattern),
                format_growth(line),
                share_of_live(line, oom),
                describe_blocks(line)
            ),
        );
        if let Some(source) = sites.source_line(&line.site) {
            put_line(out, format_args!("      {source}"));
        }
        if let Some(holder) = line.holders.as_ref().and_then(|holders| holders.first()) {
            put_line(out, format_args!("    Held by {}.", style.bold(&format_holder(holder))));
        }
    }
}

/// The largest call sites with older blocks, in one line.
pub(in crate::render::text) fn render_unchanged(out: &mut String, oom: &Oom, most: usize) {
    let texts: Vec<String> = listed_unchanged(oom, most)
        .map(|line| format!("{} at {}", format_bytes(line.bytes), short_site(&line.site)))
        .collect();
    if !texts.is_empty() {
        put_line(out, format_args!("  Allocated earlier, not growing: {}.", texts.join(", ")));
    }
}
