//! The text of each section of a report.

mod categories;
mod cause_rows;
pub(super) mod fragmentation;
mod holders;
pub(super) mod leaks;
pub(super) mod oom;
pub(super) mod peak;
pub(super) mod timeline;
pub(super) mod torch_memory;
