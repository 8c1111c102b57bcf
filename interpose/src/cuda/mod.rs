//! The driver's memory functions.
//!
//! [`table`] declares them, one row each; [`wrapper`] is what a row becomes; [`substitute`] decides when a caller who asks
//! for the real function gets ours, [`library`] which driver that is; [`uncovered`] counts what is not recorded;
//! [`questions`] is what a hook asks the driver, [`sample`] when it asks what is in use,
//! [`nvml`] whom the recorder's thread asks; [`facts`] is what the driver can tell about itself; [`context`] serves our
//! allocator.

mod context;
mod facts;
mod library;
mod nvml;
mod questions;
mod sample;
mod substitute;
mod table;
mod uncovered;
mod wrapper;

pub(crate) use library::{is_loaded, was_met};
pub(crate) use substitute::replacement_for_name;

/// The names of the driver's functions that are recorded.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    table::entries().map(|entry| entry.name)
}

/// Their names by `ApiId`.
#[cfg(feature = "metal-double")]
pub(crate) const NAMES: &[&str] = &table::NAMES;

/// Tells the recorder what it cannot know. No CUDA call is made here.
pub(crate) fn register() {
    gpumemtrace_recorder::register(gpumemtrace_recorder::Sources {
        facts: facts::collect,
        mode: facts::mode,
        #[cfg(not(feature = "metal-double"))]
        apis: &table::NAMES,
        #[cfg(feature = "metal-double")]
        apis: &crate::metal::NAMES,
        #[cfg(not(feature = "metal-double"))]
        uncovered_calls: uncovered::calls,
        #[cfg(feature = "metal-double")]
        uncovered_calls: || crate::metal::uncovered(uncovered::calls()),
        uncovered_names: uncovered::names,
        sample: nvml::sample,
    });
    gpumemtrace_pytorch_shim::install_driver(&context::Driver);
}
