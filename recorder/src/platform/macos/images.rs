//! The list of modules loaded in this process.
//!
//! The loader's list may change while it is read, and the data of a removed module goes with it. So
//! everything is read as memory that may not be mapped, on the writer thread alone, and only when
//! the loader has reported a change.

use std::ffi::c_void;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use gpumemtrace_format::ModuleDef;

use super::mach;
use crate::platform::macho;
use crate::platform::process_memory::Guarded;

static ADDED: AtomicU64 = AtomicU64::new(0);
static REMOVED: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_added(_: *const c_void, _: isize) {
    ADDED.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn count_removed(_: *const c_void, _: isize) {
    REMOVED.fetch_add(1, Ordering::Relaxed);
    // Counted here, not when the writer checks: the loader calls this before another module can lie
    // there.
    crate::platform::unload_counter::note_module_unload();
}

/// The number of modules that the loader has added and removed so far. Equal values mean an
/// unchanged list.
pub fn loaded_module_counts() -> (u64, u64) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: both functions only count, and this library is never unloaded.
        unsafe {
            mach::_dyld_register_func_for_add_image(count_added);
            mach::_dyld_register_func_for_remove_image(count_removed);
        }
    });
    (ADDED.load(Ordering::Relaxed), REMOVED.load(Ordering::Relaxed))
}

/// Lists all loaded modules that have code.
pub(crate) fn loaded_modules() -> Vec<ModuleDef> {
    // SAFETY: no arguments; an index that is too large by now gives null.
    (0..unsafe { mach::_dyld_image_count() }).filter_map(module).collect()
}

fn module(index: u32) -> Option<ModuleDef> {
    // SAFETY: as above.
    let (header, slide, name) = unsafe {
        (
            mach::_dyld_get_image_header(index) as usize,
            mach::_dyld_get_image_vmaddr_slide(index) as u64,
            mach::_dyld_get_image_name(index) as usize,
        )
    };
    let image = macho::read_image(&Guarded, header)?;
    Some(ModuleDef {
        load_bias: slide,
        start: image.code.start.wrapping_add(slide),
        end: image.code.end.wrapping_add(slide),
        path: macho::read_c_string(&Guarded, name).unwrap_or_default(),
        build_id: image.uuid.map(Vec::from).unwrap_or_default(),
    })
}

/// True if this library was inserted: it then lies before the C library in the loader's list.
pub fn is_preloaded() -> bool {
    let modules = loaded_modules();
    let here = is_preloaded as *const () as u64;
    let ours = modules.iter().position(|module| (module.start..module.end).contains(&here));
    let system = modules.iter().position(|module| module.path.ends_with("/libSystem.B.dylib"));
    matches!((ours, system), (Some(ours), Some(system)) if ours < system)
}
