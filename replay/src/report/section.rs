//! The sections that a report can be limited to.

/// A section of the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Section {
    /// `leaks`, `benign_growth` and `holders`.
    Leaks,
    /// `timeline`, `timelines`, `marks` and `torch_memory`.
    Timeline,
    /// `fragmentation`, `fragmentation_over_time` and `async_pools`.
    Fragmentation,
    /// `peak`.
    Peak,
    /// `oom`.
    Oom,
}
