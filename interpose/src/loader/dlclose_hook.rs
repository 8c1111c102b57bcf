//! The `dlclose` hook: the addresses of an unloaded module may be reused by another one.
//!
//! The recorder caches unwind information by code address, so it must know when a module is
//! unloaded. The hook calls the real `dlclose` and then notifies the recorder. Unlike `dlopen`,
//! the result of `dlclose` does not depend on its caller, so an ordinary wrapper is safe. When the
//! loader unloads a module on its own, the recorder's writer thread notices later.
//!
//! A module that must stay loaded is secured before the real `dlclose`
//! ([`set_before_unload`]): both take the loader's lock.

use std::sync::OnceLock;

static BEFORE_UNLOAD: OnceLock<fn()> = OnceLock::new();

/// Registers what runs before each unload. Only the first registration counts.
pub(crate) fn set_before_unload(function: fn()) {
    let _ = BEFORE_UNLOAD.set(function);
}

#[cfg(not(test))]
mod exported {
    use std::ffi::{c_int, c_void};
    use std::sync::atomic::{AtomicPtr, Ordering};

    use gpumemtrace_recorder::{uninterrupted, without_cancellation};

    use crate::panic_guard::catch_panic;

    type DlcloseFn = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

    static REAL_DLCLOSE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

    fn real_dlclose() -> *mut c_void {
        let known = REAL_DLCLOSE.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let found = crate::loader::symbols::real_dlsym(libc::RTLD_NEXT, c"dlclose");
        REAL_DLCLOSE.store(found, Ordering::Relaxed);
        found
    }

    /// The hook.
    ///
    /// # Safety
    /// As the real `dlclose`.
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn dlclose(handle: *mut c_void) -> c_int {
        let real = real_dlclose();
        if real.is_null() {
            // No known C library lacks `dlclose`. Keeping the module loaded beats a call to null.
            return 0;
        }
        // SAFETY: the address was looked up under this name, which has this signature.
        let real = unsafe { std::mem::transmute::<*mut c_void, DlcloseFn>(real) };
        if let Some(before_unload) = super::BEFORE_UNLOAD.get() {
            // Signals stay as they are: this waits for the loader's lock, as the real call does.
            catch_panic(|| {
                without_cancellation(before_unload);
                Some(())
            });
        }
        let mut watch = None;
        catch_panic(|| {
            watch = uninterrupted(gpumemtrace_recorder::watch_unloads);
            Some(())
        });
        // A destructor of the module may unwind: a cancelled thread, a C++ exception.
        let _note = NoteUnload(watch);
        // SAFETY: the caller's own argument.
        unsafe { real(handle) }
    }

    struct NoteUnload(Option<gpumemtrace_recorder::UnloadWatch>);

    impl Drop for NoteUnload {
        fn drop(&mut self) {
            if let Some(watch) = self.0.take() {
                catch_panic(|| {
                    uninterrupted(|| watch.finish());
                    Some(())
                });
            }
            gpumemtrace_recorder::note_module_unload();
        }
    }
}
