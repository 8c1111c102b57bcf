//! The sections that a report can be limited to.

use std::any::Any;
use std::fmt::Debug;

/// A section of the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Section {
    /// `leaks`, `benign_growth` and `holders`.
    Leaks,
    /// `timeline`, `timelines`, `marks` and `torch_memory`.
    Timeline,
    /// `fragmentation`, `fragmentation_over_time`, `setting_effects` and `async_pools`.
    Fragmentation,
    /// The key `peak`, of each device.
    Peak,
    /// The key `oom`, of all errors.
    Oom,
    /// The section of a registered analysis, by its key ([`crate::EventAnalysis`]).
    Extra(&'static str),
}

/// A row of a [`Section::Extra`] section. A renderer downcasts it from [`Any`] to its type.
pub trait SectionData: Any + Debug + erased_serde::Serialize {}

impl<T: Any + Debug + erased_serde::Serialize> SectionData for T {}

erased_serde::serialize_trait_object!(SectionData);
