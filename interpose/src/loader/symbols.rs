//! Look-ups of symbols and loaded libraries, past our own `dlsym` hook and without the loader's
//! lock ([`gpumemtrace_recorder::elf`] says why).

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

use gpumemtrace_recorder::elf::find_module;

/// The signature of `dlsym`.
pub(crate) type DlsymFn = unsafe extern "C-unwind" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The C library's `dlsym`; null until resolved.
static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// The `dlsym` that callers would reach without us: that of another preloaded tool, or the C
/// library's. Null until resolved. The assembly of `cuda::dlsym_hook` reads it.
pub(crate) static NEXT_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Load address of the library that [`NEXT_DLSYM`] lies in, if that is not the C library's.
static OTHER_TOOL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Finds the real `dlsym`. The constructor calls this, or the first look-up if it comes earlier:
/// sanitizer runtimes make one before they can serve any other call.
pub(crate) extern "C" fn resolve_dlsym() {
    // glibc 2.34 moved `dlsym` into libc and keeps the older version; musl has no such versions.
    for version in [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"] {
        // SAFETY: constant NUL-terminated names; `dlvsym` is not hooked.
        let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        if !found.is_null() {
            REAL_DLSYM.store(found, Ordering::Release);
            NEXT_DLSYM.store(found, Ordering::Release);
            return;
        }
    }
    gpumemtrace_recorder::print_diagnostic(&[
        "cannot find dlsym in this C library, so nothing is recorded; gpumemtrace needs glibc.",
    ]);
    REAL_DLSYM.store(find_nothing as *mut c_void, Ordering::Release);
    NEXT_DLSYM.store(find_nothing as *mut c_void, Ordering::Release);
}

/// Passes look-ups on to the definition of `dlsym` that follows ours in the loader's order, or to
/// the first one if we came last.
pub(crate) fn find_next_dlsym() {
    let here = REAL_DLSYM.as_ptr() as usize;
    let real = REAL_DLSYM.load(Ordering::Acquire);
    let (mut first, mut is_after_us) = (None, false);
    let next = find_module(|module| {
        if module.contains(here, 1) {
            is_after_us = true;
            return None;
        }
        let found = Some((module.symbol(c"dlsym")?, module.start(), module.contains(real as usize, 1)));
        first = first.or(found);
        if is_after_us { found } else { None }
    });
    // That of the C library has several versions, of which the right one is known already.
    if let Some((address, start, false)) = next.or(first) {
        OTHER_TOOL.store(start as *mut c_void, Ordering::Release);
        NEXT_DLSYM.store(address as *mut c_void, Ordering::Release);
    }
}

/// True if the address lies in another tool that replaces `dlsym`.
pub(crate) fn is_in_other_tool(address: *const c_void) -> bool {
    let tool = OTHER_TOOL.load(Ordering::Acquire);
    !tool.is_null() && library_at(address).is_some_and(|library| library.base == tool)
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

/// Address of a library's own definition of `name`; null if there is none, or no such library.
pub(crate) fn symbol_in(library: &CStr, name: &CStr) -> *mut c_void {
    let found = find_module(|module| module.is_named(library).then(|| module.symbol(name)));
    found.flatten().map_or(std::ptr::null_mut(), |address| address as *mut c_void)
}

/// True if a library of this name is loaded.
pub(crate) fn is_loaded(library: &CStr) -> bool {
    find_module(|module| module.is_named(library).then_some(())).is_some()
}

/// A loaded library: file and address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedLibrary {
    /// The file it was loaded from; empty for the program itself.
    pub path: &'static CStr,
    /// Address of its first segment.
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
    // The loader's list is locked during the search, so nothing is allocated there.
    let mut text = [0; 256];
    let len = find_module(|module| {
        let name = module.contains(address as usize, 1).then(|| module.name_of(address as usize))?;
        let bytes = name.unwrap_or_default().to_bytes();
        let len = bytes.len().min(text.len());
        text[..len].copy_from_slice(&bytes[..len]);
        Some(len)
    });
    if let Some(len) = len.filter(|len| *len > 0) {
        return String::from_utf8_lossy(&text[..len]).into_owned();
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
    find_module(|module| {
        module.contains(address as usize, 1).then(|| LoadedLibrary {
            // SAFETY: the loader's names live as long as the library, and callers use them only
            // while it is loaded.
            path: unsafe { CStr::from_ptr(module.path.as_ptr()) },
            base: module.start() as *mut c_void,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_described_by_its_function_or_its_library() {
        let getenv = symbol_in(c"libc.so.6", c"getenv");
        assert_eq!(describe_address(getenv), "getenv");
        let inside = describe_address(getenv.wrapping_byte_add(1));
        assert!(inside.starts_with("libc.so.6+0x"), "{inside}");
        assert!(describe_address((&raw const inside).cast()).starts_with("0x"), "on the stack");
        assert!(is_loaded(c"libc.so.6") && !is_loaded(c"libno_such_library.so"));
    }
}
