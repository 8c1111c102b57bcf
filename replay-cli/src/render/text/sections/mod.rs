//! The sections of a report as text, and the table of them.
//!
//! A row names the flag of `replay` that asks for the section and the function that renders it. To add a section, add a
//! row: the flag, the help and the order of the report follow from the table.

mod categories;
mod cause_rows;
pub(super) mod fragmentation;
pub(super) mod leaks;
mod oom;
pub(super) mod peak;
mod timeline;
pub(super) mod torch_memory;

use gpumemtrace_replay::Report;
use gpumemtrace_replay::Section;

use super::sites::SiteFormatter;
use crate::terminal::style::Style;

/// Writes one section of the trace with this index in the report.
pub(super) type RenderSection = fn(&mut String, &Report, usize, Style, &mut SiteFormatter);

/// A section that `replay` can be asked for.
pub(crate) struct SectionRow {
    /// The part of the report that it shows.
    pub(crate) section: Section,
    /// The option without its dashes.
    pub(crate) flag: &'static str,
    /// The help of the option.
    pub(crate) help: &'static str,
    pub(super) render: RenderSection,
}

/// All sections, in the order in which they are shown.
pub(crate) static SECTIONS: &[SectionRow] = &[
    SectionRow {
        section: Section::Leaks,
        flag: "leaks",
        help: "Lines that leave something behind at every step",
        render: leaks::render_leaks,
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
        help: "Reserved memory that no tensor uses, and who keeps it",
        render: fragmentation::render_fragmentation,
    },
    SectionRow {
        section: Section::Peak,
        flag: "peak",
        help: "What filled the device at its peak",
        render: peak::render_peak,
    },
    SectionRow {
        section: Section::Oom,
        flag: "oom",
        help: "Why the program ran out of memory",
        render: oom::render_oom,
    },
];
