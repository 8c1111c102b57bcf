//! `dlclose`: after it, another module may lie at the addresses of one that is gone.
//!
//! Constraint: what the recorder has learned of a module's code is kept by address, and nobody else tells when a module goes.
//! Consequence: the real `dlclose` is called and the recorder told. Unlike `dlopen`, its result does not depend on who calls
//! it. A module that the loader unloads by itself is noticed later, by the writer.

/// The exported function.
#[cfg(not(test))]
mod hook {
    use std::ffi::{c_int, c_void};
    use std::sync::atomic::{AtomicPtr, Ordering};

    type Dlclose = unsafe extern "C" fn(*mut c_void) -> c_int;

    static REAL_DLCLOSE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

    fn real_dlclose() -> *mut c_void {
        let known = REAL_DLCLOSE.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let found = crate::dynamic::real_dlsym(libc::RTLD_NEXT, c"dlclose");
        REAL_DLCLOSE.store(found, Ordering::Relaxed);
        found
    }

    /// The hook.
    ///
    /// # Safety
    /// As the real one.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
        let real = real_dlclose();
        if real.is_null() {
            // No C library without it is known: better a module too many than a call into nowhere.
            return 0;
        }
        // SAFETY: holds a function of this type.
        let real = unsafe { std::mem::transmute::<*mut c_void, Dlclose>(real) };
        // SAFETY: the caller's own argument.
        let result = unsafe { real(handle) };
        gpumemtrace_recorder::note_module_unload();
        result
    }
}
