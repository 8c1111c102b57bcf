//! Functions that do nothing and say success.
//!
//! A wheel asks for several hundred functions whose work would be done on the device -> a row of numbered entries, each at its own
//! address, so that `SIMGPU_TRACE=1` can name the one that was called; `simgpu-setup` gives entry *n* the name of the *n*-th such function.

use core::arch::naked_asm;
use core::ffi::{CStr, c_void};

use simgpu_common::Out;

use crate::facts::{trace, tracing};

/// The row: 2048 entries of 16 bytes, each `lea r11, [rip - 7]` (7 bytes: the entry's own address) and `jmp rel32` (5 bytes).
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn simgpu_stub_row() {
    naked_asm!(
        ".rept 2048",
        "lea r11, [rip - 7]",
        ".byte 0xe9",
        ".long {body} - . - 4",
        ".balign 16, 0xcc",
        ".endr",
        body = sym body,
    )
}

/// Where every entry ends up: 0 = unknown yet, 1 = quiet, 2 = tracing.
static mut MODE: u8 = 0;

#[unsafe(naked)]
extern "C" fn body() {
    naked_asm!(
        "cmp byte ptr [rip + {mode}], 1",
        "jne 2f",
        "xor eax, eax",
        "ret",
        "2:",
        "sub rsp, 8",
        "mov rdi, r11",
        "call {slow}",
        "add rsp, 8",
        "xor eax, eax",
        "ret",
        mode = sym MODE,
        slow = sym slow,
    )
}

extern "C" fn slow(entry: *const c_void) {
    let mode = if tracing() { 2 } else { 1 };
    // SAFETY: every thread stores the same byte; the assembly above only compares it.
    unsafe { (&raw mut MODE).write_volatile(mode) };
    if mode == 1 {
        return;
    }
    // SAFETY: a plain struct of pointers, filled in by `dladdr`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `entry` is an address in this library.
    let found = unsafe { libc::dladdr(entry, &raw mut info) };
    if found != 0 && !info.dli_sname.is_null() {
        // SAFETY: a name from the loaded library's own string table.
        let name = unsafe { CStr::from_ptr(info.dli_sname) };
        trace(&format!("stub {}", name.to_string_lossy()));
    }
}

/// Stands in for functions that make an object behind their first argument: they all make this one, which is never looked into.
#[unsafe(no_mangle)]
extern "C" fn simgpu_make_object(out: Out<*const u64>) -> u32 {
    static OBJECT: [u64; 64] = [0; 64];
    out.put_if_wanted(OBJECT.as_ptr());
    0
}
