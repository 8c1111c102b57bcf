//! NVTX ranges, recorded as an NVTX injection library.
//!
//! NVTX has no shared library to hook: each user compiles in a copy of its header. At the first
//! call that copy opens the library in `NVTX_INJECTION64_PATH` and lets it fill in a function
//! table. Our functions return what NVTX returns without a tool, so programs behave the same.
//! Ranges are recorded only while a recording runs and never begin one: a range does not use the
//! GPU.
//!
//! Source of tables and types: `nvtx3/nvtxDetail/nvtxTypes.h` and `nvToolsExt.h` of NVTX 3.

use std::ffi::{CStr, c_char, c_int, c_void};

use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::{Draft, is_recording, record_event, record_named_event};

use crate::panic_guard::catch_panic;

/// NVTX's `NvtxGetExportTableFunc_t` as in nvtxTypes.h.
type NvtxGetExportTable = unsafe extern "C" fn(u32) -> *const c_void;

/// NVTX's `NvtxExportTableCallbacks` as in nvtxTypes.h.
#[repr(C)]
struct NvtxCallbacks {
    struct_size: usize,
    get_table: Option<unsafe extern "C" fn(u32, *mut *mut *mut *const c_void, *mut u32) -> c_int>,
}

/// NVTX's `NVTX_ETID_CALLBACKS` as in nvtxTypes.h.
const CALLBACKS_TABLE: u32 = 1;
/// `NVTX_CB_MODULE_CORE`, with the index and function of each entry that is filled in.
const CORE: (u32, &[(usize, *const c_void)]) = (
    1,
    &[
        (4, start_ex as *const c_void),
        (5, start_a as *const c_void),
        (8, push_ex as *const c_void),
        (9, push_a as *const c_void),
        (10, push_w as *const c_void),
        (11, pop as *const c_void),
    ],
);
/// Id of the callback table `NVTX_CB_MODULE_CORE2` as in nvtxTypes.h.
const CORE2: (u32, &[(usize, *const c_void)]) = (
    5,
    &[
        (2, domain_start_ex as *const c_void),
        (4, domain_push_ex as *const c_void),
        (5, domain_pop as *const c_void),
        (10, domain_register_a as *const c_void),
    ],
);

/// `NVTX_NO_PUSH_POP_TRACKING`: what push and pop return without a tool.
const NOT_TRACKED: c_int = -2;
/// NVTX's `NVTX_MESSAGE_TYPE_ASCII`, `_UNICODE` and `_REGISTERED` (nvToolsExt.h).
const ASCII: i32 = 1;
const UNICODE: i32 = 2;
const REGISTERED: i32 = 3;
/// Longer wide-character names are cut.
const MAX_WIDE_CHARS: usize = 256;

/// `nvtxEventAttributes_t`, version 2 and later.
#[repr(C)]
struct NvtxEventAttributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_void,
}

/// NVTX calls this once for each copy of its header. Returns 1 if attached.
///
/// # Safety
/// `get_export_table` is null or the function of an NVTX instance.
#[cfg_attr(not(test), unsafe(export_name = "InitializeInjectionNvtx2"))]
unsafe extern "C" fn initialize_injection(get_export_table: Option<NvtxGetExportTable>) -> c_int {
    // Without a preload no recording was requested: the variable came from a parent process.
    if !gpumemtrace_recorder::is_preloaded() {
        return 0;
    }
    let attached = catch_panic(|| {
        // SAFETY: the caller's promise; the table is NVTX's own, and constant.
        let callbacks = unsafe { get_export_table?(CALLBACKS_TABLE).cast::<NvtxCallbacks>().as_ref() }?;
        if callbacks.struct_size < size_of::<NvtxCallbacks>() {
            return None;
        }
        for (module, functions) in [CORE, CORE2] {
            // SAFETY: NVTX's own callbacks; both modules exist in every version 3.
            unsafe { fill_table(callbacks, module, functions) };
        }
        Some(())
    });
    c_int::from(attached.is_some())
}

/// Writes our functions into the entries that the table of a module has.
///
/// # Safety
/// `callbacks` belongs to an NVTX instance that is being initialized.
unsafe fn fill_table(callbacks: &NvtxCallbacks, module: u32, functions: &[(usize, *const c_void)]) {
    let (mut table, mut len) = (std::ptr::null_mut::<*mut *const c_void>(), 0u32);
    let Some(get_table) = callbacks.get_table else { return };
    // SAFETY: both out-parameters are ours.
    if unsafe { get_table(module, &raw mut table, &raw mut len) } == 0 || table.is_null() {
        return;
    }
    for (index, function) in functions {
        if *index < len as usize {
            // SAFETY: within the table, with entries that are null or point to function variables.
            unsafe {
                let variable = *table.add(*index);
                if !variable.is_null() {
                    variable.write(*function);
                }
            }
        }
    }
}

/// Records the begin of a range. `any_thread`: another thread may end it.
fn begin_range(name: &[u8], any_thread: bool) {
    let draft =
        Draft { aux: [0, u64::from(any_thread)], ..Draft::new(EventKind::RANGE_BEGIN, ApiId::default()) };
    record_named_event(&draft, name);
}

/// Begins a range; null is a range without a name.
///
/// # Safety
/// `name` is null or NUL-terminated.
unsafe fn begin_range_ascii(name: *const c_char, any_thread: bool) {
    catch_panic(|| {
        if is_recording() {
            // SAFETY: not null, so NUL-terminated by the caller's promise.
            let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
            begin_range(name.to_bytes(), any_thread);
        }
        Some(())
    });
}

/// As [`begin_range_ascii`], for wide characters; those outside ASCII become `?`.
///
/// # Safety
/// `name` is null or ends with a zero character; `wchar_t` has 32 bits on Linux.
unsafe fn begin_range_wide(name: *const u32, any_thread: bool) {
    catch_panic(|| {
        if !is_recording() || name.is_null() {
            return None;
        }
        let mut bytes = [0u8; MAX_WIDE_CHARS];
        let mut len = 0;
        while len < MAX_WIDE_CHARS {
            // SAFETY: reads at most to the terminating zero.
            match unsafe { name.add(len).read() } {
                0 => break,
                char => bytes[len] = u8::try_from(char).ok().filter(u8::is_ascii).unwrap_or(b'?'),
            }
            len += 1;
        }
        begin_range(&bytes[..len], any_thread);
        Some(())
    });
}

/// Begins a range with the name in `attributes`, if they have a known version.
///
/// # Safety
/// `attributes` is null or a struct as NVTX documents it.
unsafe fn begin_range_ex(attributes: *const NvtxEventAttributes, any_thread: bool) {
    // SAFETY: the caller's promise.
    let Some(attributes) = (unsafe { attributes.as_ref() }) else { return };
    if (attributes.size as usize) < size_of::<NvtxEventAttributes>() {
        return;
    }
    match attributes.message_type {
        // SAFETY: the type states what `message` points to; registered strings are our copies
        // (`domain_register_a`).
        ASCII | REGISTERED => unsafe { begin_range_ascii(attributes.message.cast(), any_thread) },
        // SAFETY: as above.
        UNICODE => unsafe { begin_range_wide(attributes.message.cast(), any_thread) },
        // SAFETY: null stands for a range without a name.
        _ => unsafe { begin_range_ascii(std::ptr::null(), any_thread) },
    }
}

fn end_range() {
    catch_panic(|| {
        if is_recording() {
            record_event(&Draft::new(EventKind::RANGE_END, ApiId::default()));
        }
        Some(())
    });
}

unsafe extern "C" fn push_a(name: *const c_char) -> c_int {
    // SAFETY: NVTX's contract with its caller.
    unsafe { begin_range_ascii(name, false) };
    NOT_TRACKED
}

unsafe extern "C" fn push_w(name: *const u32) -> c_int {
    // SAFETY: as above.
    unsafe { begin_range_wide(name, false) };
    NOT_TRACKED
}

unsafe extern "C" fn push_ex(attributes: *const NvtxEventAttributes) -> c_int {
    // SAFETY: as above.
    unsafe { begin_range_ex(attributes, false) };
    NOT_TRACKED
}

extern "C" fn pop() -> c_int {
    end_range();
    NOT_TRACKED
}

unsafe extern "C" fn start_a(name: *const c_char) -> u64 {
    // SAFETY: as above.
    unsafe { begin_range_ascii(name, true) };
    0
}

unsafe extern "C" fn start_ex(attributes: *const NvtxEventAttributes) -> u64 {
    // SAFETY: as above.
    unsafe { begin_range_ex(attributes, true) };
    0
}

unsafe extern "C" fn domain_push_ex(_: *const c_void, attributes: *const NvtxEventAttributes) -> c_int {
    // SAFETY: as above.
    unsafe { begin_range_ex(attributes, false) };
    NOT_TRACKED
}

unsafe extern "C" fn domain_start_ex(_: *const c_void, attributes: *const NvtxEventAttributes) -> u64 {
    // SAFETY: as above.
    unsafe { begin_range_ex(attributes, true) };
    0
}

extern "C" fn domain_pop(_: *const c_void) -> c_int {
    end_range();
    NOT_TRACKED
}

/// Returns a copy of the text as the handle. It is never freed: handles stay valid for the life of
/// the process.
unsafe extern "C" fn domain_register_a(_: *const c_void, text: *const c_char) -> *mut c_char {
    // SAFETY: NUL-terminated by NVTX's contract; null is returned as it is.
    if text.is_null() { std::ptr::null_mut() } else { unsafe { libc::strdup(text) } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static TEST_TABLE: [Cell<*const c_void>; 16] = const { [const { Cell::new(std::ptr::null()) }; 16] };
    }

    unsafe extern "C" fn get_short_core_table(
        module: u32,
        table: *mut *mut *mut *const c_void,
        len: *mut u32,
    ) -> c_int {
        if module != 1 {
            return 0;
        }
        let slots: Vec<*mut *const c_void> =
            TEST_TABLE.with(|slots| slots[..10].iter().map(|slot| slot.as_ptr().cast_mut()).collect());
        // SAFETY: out-parameters of the test.
        unsafe {
            *len = slots.len() as u32;
            *table = slots.leak().as_mut_ptr();
        }
        1
    }

    #[test]
    fn only_existing_table_entries_are_filled_in() {
        let callbacks =
            NvtxCallbacks { struct_size: size_of::<NvtxCallbacks>(), get_table: Some(get_short_core_table) };
        for (module, functions) in [CORE, CORE2] {
            // SAFETY: the table is that of the test.
            unsafe { fill_table(&callbacks, module, functions) };
        }
        TEST_TABLE.with(|slots| {
            assert_eq!(slots[9].get(), push_a as *const c_void);
            assert!(slots[11].get().is_null(), "beyond the end of the table");
            assert!(slots[1].get().is_null());
        });
    }

    #[test]
    fn event_attributes_layout_matches_nvtx_header() {
        assert_eq!(size_of::<NvtxEventAttributes>(), 48);
        assert_eq!(std::mem::offset_of!(NvtxEventAttributes, message_type), 32);
        assert_eq!(std::mem::offset_of!(NvtxEventAttributes, message), 40);
        // Unused in tests otherwise.
        let _ = (initialize_injection as *const (), NOT_TRACKED);
    }
}
