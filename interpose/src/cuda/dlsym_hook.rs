//! The `dlsym` hook: most callers find libcuda's functions by `dlsym`.
//!
//! The real `dlsym` reads its return address to serve `RTLD_NEXT`. An ordinary wrapper would change
//! that address, and with it the result: forwarding libraries would recurse without end. The hook
//! is therefore a naked function that jumps to the real one with stack and arguments untouched.
//! Only a name that begins with "cu", looked up in a real handle, takes the slow path. There the
//! real look-up also runs first: what it does not find is not replaced.
//!
//! "Real" is what the caller would reach without us. Another tool may replace `dlsym` too, such as
//! one that limits the memory of a container on a shared GPU. It must still get the look-ups.

#[cfg(all(not(test), target_arch = "x86_64"))]
mod exported {
    use std::ffi::{CStr, c_char, c_void};

    use gpumemtrace_recorder::{uninterrupted, without_cancellation};

    use crate::cuda::driver_lib::keep_loaded;
    use crate::cuda::resolver::replacement_for_name;
    use crate::loader::symbols::{DlsymFn, NEXT_DLSYM, resolve_dlsym};
    use crate::panic_guard::catch_panic;

    /// The hook. Naked, so that the real `dlsym` sees our caller's return address as its own.
    ///
    /// # Safety
    /// As the real `dlsym`.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
        core::arch::naked_asm!(
            "lea rax, [rip + {real}]",
            "mov rax, [rax]",
            "test rax, rax",
            "jnz 2f",
            "push rdi",
            "push rsi",
            "sub rsp, 8",
            "call {resolve}",
            "add rsp, 8",
            "pop rsi",
            "pop rdi",
            "lea rax, [rip + {real}]",
            "mov rax, [rax]",
            "2:",
            "test rsi, rsi",
            "jz 3f",
            // "cu": compared by the byte, since an empty name may be the last byte of a page.
            "cmp byte ptr [rsi], 0x63",
            "jne 3f",
            "cmp byte ptr [rsi + 1], 0x75",
            "je 4f",
            "3:",
            "jmp rax",
            "4:",
            // RTLD_NEXT (-1) and RTLD_DEFAULT (0) depend on the caller: always the real `dlsym`.
            "lea rcx, [rdi + 1]",
            "cmp rcx, 1",
            "jbe 3b",
            "mov rdx, rax",
            "mov rcx, [rsp]", // the return address: the caller
            "jmp {cu}",
            real = sym NEXT_DLSYM,
            resolve = sym resolve_dlsym,
            cu = sym dlsym_cu_name,
        )
    }

    /// The slow path: the real look-up, then possibly a hook in place of its result.
    unsafe extern "C-unwind" fn dlsym_cu_name(
        handle: *mut c_void,
        name: *const c_char,
        real: DlsymFn,
        caller: *const c_void,
    ) -> *mut c_void {
        // SAFETY: the caller's own arguments.
        let found = unsafe { real(handle, name) };
        if found.is_null() {
            return found;
        }
        // SAFETY: the real `dlsym` has just read it as a NUL-terminated string.
        let name = unsafe { CStr::from_ptr(name) };
        let replacement = || {
            let replacement = uninterrupted(|| replacement_for_name(name, found, caller));
            // The real look-up has just waited for the loader's lock, with signals as they are.
            without_cancellation(keep_loaded);
            replacement
        };
        catch_panic(replacement).unwrap_or(found)
    }
}

#[cfg(not(any(test, target_arch = "x86_64")))]
compile_error!("the dlsym hook is written for x86-64: other architectures need their own tail jump here");
