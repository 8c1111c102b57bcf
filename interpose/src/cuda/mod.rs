//! The driver's memory functions.
//!
//! [`table`] declares them, one row each; [`wrapper`] is what a row becomes; [`substitute`] decides when a caller who asks
//! for the real function gets ours, [`library`] which driver that is; [`uncovered`] counts what is not recorded;
//! [`questions`] is what a hook asks the driver, [`sample`] when it asks what is in use,
//! [`nvml`] whom the recorder's thread asks; [`facts`] is what the driver can tell about itself; [`context`] serves our
//! allocator.

mod driver_lib;
mod hooked_call;
mod hooks;
mod meminfo_sampler;
mod metadata;
mod nvml;
mod queries;
mod resolver;
mod shim_driver;
mod uncovered;

pub(crate) use driver_lib::{is_loaded, was_met};
pub(crate) use resolver::replacement_for_name;

/// The names of the driver's functions that are recorded.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    hooks::entries().map(|entry| entry.name)
}

/// Their names by `ApiId`.
#[cfg(feature = "metal-double")]
pub(crate) const NAMES: &[&str] = &hooks::NAMES;

/// Tells the recorder what it cannot know. No CUDA call is made here.
pub(crate) fn register() {
    gpumemtrace_recorder::register(gpumemtrace_recorder::Sources {
        facts: metadata::collect,
        mode: metadata::mode,
        #[cfg(not(feature = "metal-double"))]
        apis: &hooks::NAMES,
        #[cfg(feature = "metal-double")]
        apis: &crate::metal::NAMES,
        #[cfg(not(feature = "metal-double"))]
        uncovered_calls: uncovered::calls,
        #[cfg(feature = "metal-double")]
        uncovered_calls: || crate::metal::uncovered(uncovered::calls()),
        uncovered_names: uncovered::names,
        sample: nvml::sample,
    });
    gpumemtrace_pytorch_shim::install(&shim_driver::Driver);
}
