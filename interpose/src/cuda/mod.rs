//! The CUDA driver's memory functions.
//!
//! * [`hooks`] declares the recorded functions, one row each; [`hooked_call`] records around them.
//! * [`dlsym_hook`] replaces `dlsym`, through which most callers find these functions.
//! * [`resolver`] decides which look-ups get a hook; [`driver_lib`] knows which driver is recorded.
//! * [`uncovered`] counts calls that move memory and are not recorded.
//! * [`queries`] asks the driver for state; [`driver_fn`] calls its functions past the hooks.
//! * [`meminfo_sampler`] and [`nvml`] sample the memory in use.
//! * [`metadata`] describes the driver and its devices; [`shim_driver`] serves our allocator.

mod dlsym_hook;
mod driver_fn;
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

pub(crate) use driver_lib::{is_driver_loaded, is_recorded_driver_known, keep_loaded, note_startup_modules};
pub(crate) use metadata::collect as collect_metadata;
pub(crate) use nvml::{can_sample as can_sample_process_usage, sample as sample_process_usage};
pub(crate) use shim_driver::ShimDriver;
pub(crate) use uncovered::{calls as uncovered_calls, names as uncovered_names};

/// Names of the hooked functions by `ApiId`; the first one is unused.
pub(crate) const API_NAMES: &[&str] = &hooks::API_NAMES;

/// Exported names of the driver functions that have a hook, for calls that are already linked.
pub(crate) fn hooked_names() -> impl Iterator<Item = &'static str> {
    resolver::hooked_functions().map(|function| function.name)
}
