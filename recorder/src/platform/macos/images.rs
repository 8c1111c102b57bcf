//! The modules loaded in this process.
//!
//! Constraint: the loader's list may change while we read it, and what it says of a module that goes is gone with it. Consequence: all
//! of it is read as memory that may not be there, on the writer thread alone, and only when the loader has said that something changed.

use std::ffi::c_void;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use gpumemtrace_format::ModuleDef;

use super::mach;
use crate::platform::macho;
use crate::platform::process_memory::Guarded;

static ADDED: AtomicU64 = AtomicU64::new(0);
static REMOVED: AtomicU64 = AtomicU64::new(0);

extern "C" fn added(_: *const c_void, _: isize) {
    ADDED.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn removed(_: *const c_void, _: isize) {
    REMOVED.fetch_add(1, Ordering::Relaxed);
    // Here, and not when the writer looks: the loader says it before anything else can lie there.
    crate::platform::unload_counter::note_module_unload();
}

/// How many modules have been added and removed so far: equal values mean an unchanged list.
pub fn generation() -> (u64, u64) {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        // SAFETY: both functions only count, and this library is never unloaded.
        unsafe {
            mach::_dyld_register_func_for_add_image(added);
            mach::_dyld_register_func_for_remove_image(removed);
        }
    });
    (ADDED.load(Ordering::Relaxed), REMOVED.load(Ordering::Relaxed))
}

/// All loaded modules that have code.
pub(crate) fn loaded() -> Vec<ModuleDef> {
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
    let image = macho::image(&Guarded, header)?;
    Some(ModuleDef {
        load_bias: slide,
        start: image.code.start.wrapping_add(slide),
        end: image.code.end.wrapping_add(slide),
        path: macho::text(&Guarded, name).unwrap_or_default(),
        build_id: image.uuid.map(Vec::from).unwrap_or_default(),
    })
}

/// True if this library was loaded before the C library, which only one that was inserted is.
pub fn is_preloaded() -> bool {
    let modules = loaded();
    let here = is_preloaded as *const () as u64;
    let ours = modules.iter().position(|module| (module.start..module.end).contains(&here));
    let system = modules.iter().position(|module| module.path.ends_with("/libSystem.B.dylib"));
    matches!((ours, system), (Some(ours), Some(system)) if ours < system)
}
