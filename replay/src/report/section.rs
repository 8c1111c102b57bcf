//! The parts that a report can be asked for.

/// A part of the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Section {
    /// `leaks`.
    Leaks,
    /// `timeline`.
    Timeline,
    /// `fragmentation`.
    Fragmentation,
    /// `peak`.
    Peak,
    /// `oom`.
    Oom,
}
