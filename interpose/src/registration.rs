//! What the hooks register with the recorder: metadata callbacks, names of the hooked functions,
//! and counters of calls that are not recorded.
//!
//! The constructor calls [`register`] once. This module lies above `cuda` and `metal`, so neither
//! of them needs the other's metadata. Registering calls no driver function; the recorder's
//! thread runs the callbacks later.

use gpumemtrace_format::Meta;
use gpumemtrace_recorder::HookCallbacks;

use crate::attachment;
#[cfg(target_os = "linux")]
use crate::cuda;
#[cfg(any(target_os = "macos", feature = "metal-double"))]
use crate::metal;

#[cfg(any(target_os = "macos", feature = "metal-double"))]
const API_NAMES: &[&str] = &metal::API_NAMES;
#[cfg(not(any(target_os = "macos", feature = "metal-double")))]
const API_NAMES: &[&str] = cuda::API_NAMES;

/// Registers the callbacks with the recorder, and the driver's functions with our own allocator.
pub(crate) fn register() {
    gpumemtrace_recorder::register_callbacks(HookCallbacks {
        add_metadata: collect_metadata,
        add_hook_mode: mode,
        api_names: API_NAMES,
        uncovered_calls,
        #[cfg(target_os = "linux")]
        uncovered_names: cuda::uncovered_names,
        #[cfg(target_os = "macos")]
        uncovered_names: Vec::new,
        #[cfg(target_os = "linux")]
        prepare_samples: || {
            // The thread that runs this may wait for the loader's lock.
            cuda::keep_loaded();
            cuda::can_sample_process_usage()
        },
        #[cfg(target_os = "macos")]
        prepare_samples: || false,
        #[cfg(target_os = "linux")]
        record_samples: cuda::sample_process_usage,
        #[cfg(target_os = "macos")]
        record_samples: || false,
    });
    #[cfg(target_os = "linux")]
    gpumemtrace_pytorch_shim::install_driver(&cuda::ShimDriver);
    #[cfg(target_os = "macos")]
    metal::register();
}

/// Adds what the driver and the devices report about themselves.
fn collect_metadata(meta: &mut Meta) {
    #[cfg(target_os = "linux")]
    if attachment::is_loaded_after_driver() {
        meta.set_text("attached", "late");
    }
    #[cfg(any(target_os = "macos", feature = "metal-double"))]
    metal::collect_metadata(meta);
    #[cfg(target_os = "linux")]
    cuda::collect_metadata(meta);
}

/// Adds the ways in which calls reach the hooks. The result changes whenever the list changes.
#[cfg(target_os = "linux")]
fn mode(meta: &mut Meta) -> u8 {
    let pluggable = gpumemtrace_pytorch_shim::current_mode();
    set_modes(
        meta,
        &[
            (gpumemtrace_recorder::is_preloaded(), "preload"),
            (pluggable.is_some(), "pluggable"),
            (attachment::is_started_by_program(), "started"),
            #[cfg(feature = "metal-double")]
            (metal::has_device(), "metal"),
        ],
    );
    if let Some(mode) = pluggable {
        meta.set_text("pluggable", mode.name());
    }
    let key = pluggable.map_or(0, |mode| mode as u8);
    #[cfg(feature = "metal-double")]
    let key = key | u8::from(metal::has_device()) << 7;
    key
}

/// Adds the ways in which calls reach the hooks. The result changes whenever the list changes.
#[cfg(target_os = "macos")]
fn mode(meta: &mut Meta) -> u8 {
    let (is_started, has_device) = (attachment::is_started_by_program(), metal::has_device());
    set_modes(
        meta,
        &[(gpumemtrace_recorder::is_preloaded(), "preload"), (is_started, "started"), (has_device, "metal")],
    );
    u8::from(has_device) | u8::from(is_started) << 1
}

fn set_modes(meta: &mut Meta, modes: &[(bool, &str)]) {
    meta.set_list("mode", modes.iter().filter(|(on, _)| *on).map(|(_, name)| (*name).to_owned()).collect());
}

/// Calls that move memory and are not recorded, so far.
fn uncovered_calls() -> u64 {
    #[cfg(target_os = "linux")]
    let calls = cuda::uncovered_calls();
    #[cfg(target_os = "macos")]
    let calls = 0_u64;
    #[cfg(any(target_os = "macos", feature = "metal-double"))]
    let calls = calls.saturating_add(metal::uncovered());
    calls
}
