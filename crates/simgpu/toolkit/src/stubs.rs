//! Functions that do nothing and return success.
//!
//! A wheel needs several hundred functions that would only work on the device. Each is one numbered
//! entry with its own address, so that `SIMGPU_TRACE=1` can name it. `simgpu-setup` names entry
//! *n*.

use core::arch::naked_asm;
use core::ffi::{CStr, c_void};

use simgpu_common::Out;

use crate::versions::{trace, tracing};

/// The stubs: 2048 entries of 16 bytes, each `lea r11, [rip - 7]` (the entry's address) and `jmp
/// rel32` to the common body.
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

/// State of the common body: 0 = unknown yet, 1 = quiet, 2 = tracing.
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
    // SAFETY: all threads store the same byte; the assembly above only compares it.
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

/// Implements functions that return an object in their first argument; its contents are never read.
#[unsafe(no_mangle)]
extern "C" fn simgpu_make_object(out: Out<*const u64>) -> u32 {
    static OBJECT: [u64; 64] = [0; 64];
    out.put_if_wanted(OBJECT.as_ptr());
    0
}
