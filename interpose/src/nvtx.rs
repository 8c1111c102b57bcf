//! What the program says of itself: NVTX ranges, and steps by our own function.
//!
//! Constraint: NVTX has no library to hook. Each user of it carries its own copy of the same header, which at its first call
//! opens the library that `NVTX_INJECTION64_PATH` names and lets it fill in a table of functions. Consequence: we are such a
//! library. Ranges answer what they answer without a tool, so that no program can tell; and they are only recorded while a
//! recording runs, because a range is no use of a GPU.
//!
//! Tables and types: `nvtx3/nvtxDetail/nvtxTypes.h` and `nvToolsExt.h` of NVTX 3.

use std::ffi::{CStr, c_char, c_int, c_void};

use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::{Draft, is_recording, record_event, record_named_event};

use crate::guard::quietly;

/// `NvtxGetExportTableFunc_t`.
type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    struct_size: usize,
    get_table: Option<unsafe extern "C" fn(u32, *mut *mut *mut *const c_void, *mut u32) -> c_int>,
}

/// `NVTX_ETID_CALLBACKS`.
const CALLBACKS: u32 = 1;
/// `NVTX_CB_MODULE_CORE` and its entries.
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
/// `NVTX_CB_MODULE_CORE2` and its entries.
const CORE2: (u32, &[(usize, *const c_void)]) = (
    5,
    &[
        (2, domain_start_ex as *const c_void),
        (4, domain_push_ex as *const c_void),
        (5, domain_pop as *const c_void),
        (10, domain_register_a as *const c_void),
    ],
);

/// What a push answers when no tool keeps count of ranges (`NVTX_NO_PUSH_POP_TRACKING`).
const NOT_TRACKED: c_int = -2;
/// `NVTX_MESSAGE_TYPE_ASCII`, `_UNICODE`, `_REGISTERED`.
const ASCII: i32 = 1;
const UNICODE: i32 = 2;
const REGISTERED: i32 = 3;
/// Characters of a name that are looked at.
const MOST_CHARS: usize = 256;

/// `nvtxEventAttributes_t`, version 2 and later.
#[repr(C)]
struct Attributes {
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

/// NVTX calls this once for each copy of its header. 1: attached.
///
/// # Safety
/// `get_export_table` is that of an NVTX instance, or null.
#[cfg_attr(not(test), unsafe(export_name = "InitializeInjectionNvtx2"))]
unsafe extern "C" fn initialize_injection(get_export_table: Option<GetExportTable>) -> c_int {
    // Where we are not preloaded, nobody asked for a recording: the variable came from a parent.
    if !gpumemtrace_recorder::is_preloaded() {
        return 0;
    }
    let attached = quietly(|| {
        // SAFETY: the caller's promise; the table is NVTX's own and constant.
        let callbacks = unsafe { get_export_table?(CALLBACKS).cast::<Callbacks>().as_ref() }?;
        if callbacks.struct_size < size_of::<Callbacks>() {
            return None;
        }
        for (module, functions) in [CORE, CORE2] {
            // SAFETY: the function is NVTX's own; the modules exist in every version 3.
            unsafe { fill(callbacks, module, functions) };
        }
        Some(())
    });
    c_int::from(attached.is_some())
}

/// # Safety
/// `callbacks` belongs to an NVTX instance that is being initialised.
unsafe fn fill(callbacks: &Callbacks, module: u32, functions: &[(usize, *const c_void)]) {
    let (mut table, mut len) = (std::ptr::null_mut::<*mut *const c_void>(), 0u32);
    let Some(get_table) = callbacks.get_table else { return };
    // SAFETY: both places are ours.
    if unsafe { get_table(module, &raw mut table, &raw mut len) } == 0 || table.is_null() {
        return;
    }
    for (index, function) in functions {
        if *index < len as usize {
            // SAFETY: inside the table, whose entries are the addresses of variables that hold functions, or null.
            unsafe {
                let variable = *table.add(*index);
                if !variable.is_null() {
                    variable.write(*function);
                }
            }
        }
    }
}

fn begin(name: &[u8], any_thread: bool) {
    let draft =
        Draft { aux: [0, u64::from(any_thread)], ..Draft::new(EventKind::RANGE_BEGIN, ApiId::default()) };
    record_named_event(&draft, name);
}

/// # Safety
/// `name` is null or NUL-terminated.
unsafe fn begin_ascii(name: *const c_char, any_thread: bool) {
    quietly(|| {
        if is_recording() {
            // SAFETY: the caller's promise.
            let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
            begin(name.to_bytes(), any_thread);
        }
        Some(())
    });
}

/// # Safety
/// `name` is null or ends with a zero character. `wchar_t` has 32 bits on Linux.
unsafe fn begin_wide(name: *const u32, any_thread: bool) {
    quietly(|| {
        if !is_recording() || name.is_null() {
            return None;
        }
        let mut bytes = [0u8; MOST_CHARS];
        let mut len = 0;
        while len < MOST_CHARS {
            // SAFETY: not past the zero.
            match unsafe { name.add(len).read() } {
                0 => break,
                char => bytes[len] = u8::try_from(char).ok().filter(u8::is_ascii).unwrap_or(b'?'),
            }
            len += 1;
        }
        begin(&bytes[..len], any_thread);
        Some(())
    });
}

/// # Safety
/// `attributes` is null or what NVTX documents.
unsafe fn begin_ex(attributes: *const Attributes, any_thread: bool) {
    // SAFETY: the caller's promise.
    let Some(attributes) = (unsafe { attributes.as_ref() }) else { return };
    if (attributes.size as usize) < size_of::<Attributes>() {
        return;
    }
    match attributes.message_type {
        // SAFETY: the type says what it points to; registered strings are ours, see `domain_register_a`.
        ASCII | REGISTERED => unsafe { begin_ascii(attributes.message.cast(), any_thread) },
        // SAFETY: as above.
        UNICODE => unsafe { begin_wide(attributes.message.cast(), any_thread) },
        // SAFETY: null is a range without a name.
        _ => unsafe { begin_ascii(std::ptr::null(), any_thread) },
    }
}

fn end() {
    quietly(|| {
        if is_recording() {
            record_event(&Draft::new(EventKind::RANGE_END, ApiId::default()));
        }
        Some(())
    });
}

unsafe extern "C" fn push_a(name: *const c_char) -> c_int {
    // SAFETY: NVTX's contract with its user.
    unsafe { begin_ascii(name, false) };
    NOT_TRACKED
}

unsafe extern "C" fn push_w(name: *const u32) -> c_int {
    // SAFETY: as above.
    unsafe { begin_wide(name, false) };
    NOT_TRACKED
}

unsafe extern "C" fn push_ex(attributes: *const Attributes) -> c_int {
    // SAFETY: as above.
    unsafe { begin_ex(attributes, false) };
    NOT_TRACKED
}

extern "C" fn pop() -> c_int {
    end();
    NOT_TRACKED
}

unsafe extern "C" fn start_a(name: *const c_char) -> u64 {
    // SAFETY: as above.
    unsafe { begin_ascii(name, true) };
    0
}

unsafe extern "C" fn start_ex(attributes: *const Attributes) -> u64 {
    // SAFETY: as above.
    unsafe { begin_ex(attributes, true) };
    0
}

unsafe extern "C" fn domain_push_ex(_: *const c_void, attributes: *const Attributes) -> c_int {
    // SAFETY: as above.
    unsafe { begin_ex(attributes, false) };
    NOT_TRACKED
}

unsafe extern "C" fn domain_start_ex(_: *const c_void, attributes: *const Attributes) -> u64 {
    // SAFETY: as above.
    unsafe { begin_ex(attributes, true) };
    0
}

extern "C" fn domain_pop(_: *const c_void) -> c_int {
    end();
    NOT_TRACKED
}

/// The handle of a registered string is a copy of it, which lives as long as the process, as NVTX's own would.
unsafe extern "C" fn domain_register_a(_: *const c_void, text: *const c_char) -> *mut c_char {
    // SAFETY: NUL-terminated by NVTX's contract; null is passed back.
    if text.is_null() { std::ptr::null_mut() } else { unsafe { libc::strdup(text) } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static SLOTS: [Cell<*const c_void>; 16] = const { [const { Cell::new(std::ptr::null()) }; 16] };
    }

    unsafe extern "C" fn one_table(module: u32, table: *mut *mut *mut *const c_void, len: *mut u32) -> c_int {
        if module != 1 {
            return 0;
        }
        let slots: Vec<*mut *const c_void> =
            SLOTS.with(|slots| slots[..10].iter().map(|slot| slot.as_ptr().cast_mut()).collect());
        // SAFETY: the test's own places.
        unsafe {
            *len = slots.len() as u32;
            *table = slots.leak().as_mut_ptr();
        }
        1
    }

    #[test]
    fn only_what_the_table_has_is_filled_in() {
        let callbacks = Callbacks { struct_size: size_of::<Callbacks>(), get_table: Some(one_table) };
        for (module, functions) in [CORE, CORE2] {
            // SAFETY: the tables are those above.
            unsafe { fill(&callbacks, module, functions) };
        }
        SLOTS.with(|slots| {
            assert_eq!(slots[9].get(), push_a as *const c_void);
            assert!(slots[11].get().is_null(), "the table ends before it");
            assert!(slots[1].get().is_null());
        });
    }

    #[test]
    fn attributes_lie_as_in_the_header() {
        assert_eq!(size_of::<Attributes>(), 48);
        assert_eq!(std::mem::offset_of!(Attributes, message_type), 32);
        assert_eq!(std::mem::offset_of!(Attributes, message), 40);
        // Not called without a recording, but they must exist with these signatures.
        let _ = (initialize_injection as *const (), NOT_TRACKED);
    }
}
