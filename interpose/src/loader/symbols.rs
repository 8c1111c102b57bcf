//! Look-ups of symbols and loaded libraries, past our own `dlsym` hook.
//!
//! A failed look-up of ours must not show up in the program's next `dlerror`: [`clear_dlerror`]
//! removes it.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The signature of `dlsym`.
pub(crate) type DlsymFn = unsafe extern "C-unwind" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The real `dlsym`; null until resolved. The assembly of `cuda::dlsym_hook` reads it.
pub(crate) static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Finds the real `dlsym`. The constructor calls this, or the first look-up if it comes earlier.
pub(crate) extern "C" fn resolve_dlsym() {
    // glibc 2.34 moved `dlsym` into libc and keeps the older version; musl has no such versions.
    for version in [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"] {
        // SAFETY: constant NUL-terminated names; `dlvsym` is not hooked.
        let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        if !found.is_null() {
            REAL_DLSYM.store(found, Ordering::Release);
            return;
        }
    }
    gpumemtrace_recorder::print_diagnostic(&[
        "cannot find dlsym in this C library, so nothing is recorded; gpumemtrace needs glibc.",
    ]);
    REAL_DLSYM.store(find_nothing as *mut c_void, Ordering::Release);
}

extern "C-unwind" fn find_nothing(_: *mut c_void, _: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

/// Looks a name up past our own hook. Null if there is none; `dlerror` is set then.
pub(crate) fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    if REAL_DLSYM.load(Ordering::Acquire).is_null() {
        resolve_dlsym();
    }
    // SAFETY: it holds a function of this type once resolved.
    let dlsym = unsafe { std::mem::transmute::<*mut c_void, DlsymFn>(REAL_DLSYM.load(Ordering::Acquire)) };
    // SAFETY: a NUL-terminated name; a bad handle gives null.
    unsafe { dlsym(handle, name.as_ptr()) }
}

/// As [`real_dlsym`], but leaves no error behind.
pub(crate) fn look_up_or_null(library: *mut c_void, name: &CStr) -> *mut c_void {
    let found = real_dlsym(library, name);
    if found.is_null() {
        clear_dlerror();
    }
    found
}

/// A handle of a library that is already loaded, else null. The caller must `dlclose` it.
pub(crate) fn loaded_library(name: &CStr) -> *mut c_void {
    // SAFETY: a NUL-terminated name; `RTLD_NOLOAD` loads nothing and runs no constructor.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        clear_dlerror();
    }
    handle
}

/// Clears the error that a look-up of ours left for the program's next `dlerror`.
pub(crate) fn clear_dlerror() {
    // SAFETY: `dlerror` returns and clears the calling thread's own message.
    unsafe { libc::dlerror() };
}

/// A loaded library, as `dladdr` reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedLibrary {
    /// The file it was loaded from.
    pub path: &'static CStr,
    /// The address at which it is loaded.
    pub base: *mut c_void,
}

impl LoadedLibrary {
    /// [`path`](Self::path) as a path.
    pub(crate) fn file(&self) -> &'static Path {
        Path::new(OsStr::from_bytes(self.path.to_bytes()))
    }

    /// True if its file name, without folders, begins with `prefix`.
    pub(crate) fn has_file_name_prefix(&self, prefix: &str) -> bool {
        let name = self.path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        name.starts_with(prefix.as_bytes())
    }
}

/// True if the address lies in a library with this file name prefix.
pub(crate) fn is_in_library(address: *const c_void, prefix: &str) -> bool {
    library_at(address).is_some_and(|library| library.has_file_name_prefix(prefix))
}

/// The name of the function at an address, or `library+offset` if it has none.
pub(crate) fn describe_address(address: *const c_void) -> String {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be passed; the buffer is ours.
    unsafe { libc::dladdr(address, &raw mut info) };
    if !info.dli_sname.is_null() && info.dli_saddr.cast_const() == address {
        // SAFETY: the loader's names are NUL-terminated and live as long as the library.
        return unsafe { CStr::from_ptr(info.dli_sname) }.to_string_lossy().into_owned();
    }
    match library_at(address) {
        Some(library) => {
            let file = library.file().file_name().unwrap_or_default().to_string_lossy().into_owned();
            format!("{file}+{:#x}", (address as usize).wrapping_sub(library.base as usize))
        }
        None => format!("{address:p}"),
    }
}

/// The library that contains an address.
pub(crate) fn library_at(address: *const c_void) -> Option<LoadedLibrary> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be passed; the buffer is ours.
    let found: c_int = unsafe { libc::dladdr(address, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's names are NUL-terminated and live as long as the library, and callers
    // use them only while it is loaded.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(LoadedLibrary { path, base: info.dli_fbase })
}
