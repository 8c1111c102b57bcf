//! `dlsym`: how most callers find libcuda's functions.
//!
//! Constraint: the real `dlsym` looks at its return address to serve `RTLD_NEXT`, so a wrapper that calls it changes its
//! answer (and sends forwarding libraries into endless recursion). Consequence: ours is a naked function that jumps on to
//! the real one with stack and arguments untouched. Only a name that begins with "cu", asked of a real handle, takes the
//! other path, and there the real look-up comes first: what it does not find, we do not invent.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

pub(crate) type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The real `dlsym`. Read by the assembly below.
static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Finds the real `dlsym`. Called by the constructor, or by the first look-up if that comes earlier.
pub(crate) extern "C" fn resolve_dlsym() {
    // The version it had before glibc 2.34 moved it is kept for ever; musl and others have none of these.
    for version in [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"] {
        // SAFETY: constant, NUL-terminated names; `dlvsym` is not hooked.
        let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        if !found.is_null() {
            REAL_DLSYM.store(found, Ordering::Release);
            return;
        }
    }
    gpumemtrace_recorder::print_diagnostic(&[
        "this C library has no dlsym we know; nothing will be recorded.",
    ]);
    REAL_DLSYM.store(nothing_found as *mut c_void, Ordering::Release);
}

extern "C" fn nothing_found(_: *mut c_void, _: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

/// Looks a name up without meeting our own hook.
pub(crate) fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    if REAL_DLSYM.load(Ordering::Acquire).is_null() {
        resolve_dlsym();
    }
    // SAFETY: holds a function of this type once resolved.
    let dlsym = unsafe { std::mem::transmute::<*mut c_void, Dlsym>(REAL_DLSYM.load(Ordering::Acquire)) };
    // SAFETY: a NUL-terminated name; a bad handle gives null.
    unsafe { dlsym(handle, name.as_ptr()) }
}

/// A handle of a library that is already loaded, else null.
pub(crate) fn loaded_library(name: &CStr) -> *mut c_void {
    // SAFETY: a NUL-terminated name; with NOLOAD nothing is loaded and no constructor runs.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        forget_error();
    }
    handle
}

/// Takes back the error that a look-up of ours left for the program's next `dlerror`.
pub(crate) fn forget_error() {
    // SAFETY: returns and clears the calling thread's own message.
    unsafe { libc::dlerror() };
}

/// A loaded library, as the loader knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library {
    /// The file it was loaded from.
    pub path: &'static CStr,
    /// Where it is mapped.
    pub base: *mut c_void,
}

impl Library {
    /// The file it was loaded from.
    pub(crate) fn file(&self) -> &'static Path {
        Path::new(OsStr::from_bytes(self.path.to_bytes()))
    }

    /// True if its file name begins so.
    pub(crate) fn is_named(&self, prefix: &str) -> bool {
        let name = self.path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        name.starts_with(prefix.as_bytes())
    }
}

/// True if the address lies in a library whose file name begins so.
pub(crate) fn is_in_library(address: *const c_void, prefix: &str) -> bool {
    library_of(address).is_some_and(|library| library.is_named(prefix))
}

/// The name of the function at an address, or where in which library it lies.
pub(crate) fn describe(address: *const c_void) -> String {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the out-parameter is ours.
    unsafe { libc::dladdr(address, &raw mut info) };
    if !info.dli_sname.is_null() && info.dli_saddr.cast_const() == address {
        // SAFETY: the loader's names are NUL-terminated and live as long as the library.
        return unsafe { CStr::from_ptr(info.dli_sname) }.to_string_lossy().into_owned();
    }
    match library_of(address) {
        Some(library) => {
            let file = library.file().file_name().unwrap_or_default().to_string_lossy().into_owned();
            format!("{file}+{:#x}", (address as usize).wrapping_sub(library.base as usize))
        }
        None => format!("{address:p}"),
    }
}

/// The library that an address lies in.
pub(crate) fn library_of(address: *const c_void) -> Option<Library> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked about; the buffer is ours.
    let found: c_int = unsafe { libc::dladdr(address, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's names are NUL-terminated and live as long as the library, which is longer than any look-up in it.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(Library { path, base: info.dli_fbase })
}

#[cfg(all(not(test), target_arch = "x86_64"))]
mod exported {
    use super::{CStr, Dlsym, REAL_DLSYM, c_char, c_void, resolve_dlsym};

    /// The hook. Unknown territory for the compiler: no prologue, so that the real `dlsym` sees our caller as its own.
    ///
    /// # Safety
    /// As the real one.
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
            "cmp byte ptr [rsi], 0x63", // 'c', 'u': one byte at a time, for an empty name may be the last byte of a page
            "jne 3f",
            "cmp byte ptr [rsi + 1], 0x75",
            "je 4f",
            "3:",
            "jmp rax",
            "4:",
            "lea rcx, [rdi + 1]", // RTLD_NEXT (-1) and RTLD_DEFAULT (0) depend on the caller
            "cmp rcx, 1",
            "jbe 3b",
            "mov rdx, rax",
            "mov rcx, [rsp]", // who asks
            "jmp {cu}",
            real = sym REAL_DLSYM,
            resolve = sym resolve_dlsym,
            cu = sym dlsym_of_cu_name,
        )
    }

    /// The other path: the real look-up, then perhaps our function instead.
    unsafe extern "C" fn dlsym_of_cu_name(
        handle: *mut c_void,
        name: *const c_char,
        real: Dlsym,
        caller: *const c_void,
    ) -> *mut c_void {
        // SAFETY: the caller's own arguments.
        let found = unsafe { real(handle, name) };
        if found.is_null() {
            return found;
        }
        // SAFETY: the real `dlsym` has just read it as a NUL-terminated string.
        let name = unsafe { CStr::from_ptr(name) };
        crate::guard::quietly(|| crate::cuda::replacement_for_name(name, found, caller)).unwrap_or(found)
    }
}

#[cfg(not(any(test, target_arch = "x86_64")))]
compile_error!("the dlsym hook is written for x86-64; other architectures need their own tail-jump here");
