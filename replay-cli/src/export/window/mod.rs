//! The part of a run that an export holds, and totals over it.

mod bounds;
mod totals;
#[cfg(test)]
mod totals_tests;

pub use bounds::ExportWindow;
pub(crate) use bounds::WindowArgs;
pub(crate) use totals::{Amount, WindowRow, WindowTotals};
