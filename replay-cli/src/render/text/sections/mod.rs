//! The sections of a report as text, and the table of them.
//!
//! A row has the flag of `replay` and the function that renders the section. To add a section, add
//! its file and a row: flag, help and the order of the report follow from the table.

mod categories;
pub(super) mod fragmentation;
mod fragmentation_history;
pub(super) mod leaks;
pub(super) mod oom;
pub(super) mod peak;
mod peak_changes;
mod peak_labels;
mod pools;
pub(super) mod timeline;

use gpumemtrace_replay::{Report, Section};

use super::sites::SiteFormatter;
use crate::terminal::style::Style;

/// Writes one section of the trace with this index in the report.
pub(crate) type RenderSection = fn(&mut String, &Report, usize, Style, &mut SiteFormatter);

/// A section of `replay`.
pub(crate) struct SectionRow {
    /// The part of the report that it prints.
    pub(crate) section: Section,
    /// The option without dashes.
    pub(crate) flag: &'static str,
    /// The help text of the option.
    pub(crate) help: &'static str,
    pub(crate) render: RenderSection,
}

/// All sections in the order of the report.
pub(crate) static SECTIONS: &[SectionRow] = &[
    SectionRow {
        section: Section::Leaks,
        flag: "leaks",
        help: "Call sites that retain more memory after each step",
        render: leaks::render_leaks,
    },
    SectionRow {
        section: Section::Peak,
        flag: "peak",
        help: "What filled the GPU at its peak, and what it was for",
        render: peak::render_peak,
    },
    SectionRow {
        section: Section::Timeline,
        flag: "timeline",
        help: "Memory over time",
        render: timeline::render_timeline_section,
    },
    SectionRow {
        section: Section::Fragmentation,
        flag: "fragmentation",
        help: "Why reserved memory is unused, and which call sites pin it",
        render: fragmentation::render_fragmentation,
    },
    SectionRow {
        section: Section::Oom,
        flag: "oom",
        help: "Why an allocation failed, and which remedies help",
        render: oom::render_oom,
    },
];
