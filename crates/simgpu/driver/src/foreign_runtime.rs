//! Names the modules with a CUDA runtime of NVIDIA's own, which cannot run on this driver.
//!
//! A library can be linked with `libcudart_static.a`, or NVIDIA's `libcudart.so` be opened by its
//! path. That runtime asks for undocumented tables to verify the driver, and without them each of
//! its calls fails with "operation not supported". This module prints the reason.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

static NAMED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Prints one line for each module that calls the driver's `cuGetExportTable`, at its first call.
pub(crate) fn name_caller() {
    let module = calling_module().unwrap_or_else(|| "a module of the program".to_owned());
    if NAMED.lock().unwrap_or_else(PoisonError::into_inner).insert(module.clone()) {
        let line = format!(
            "simgpu: the CUDA runtime in {module} runs only on NVIDIA's driver; all its calls fail\n"
        );
        // A closed stderr is no error: the program may run as a daemon.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// The path of the innermost module on the stack that is not this library.
fn calling_module() -> Option<String> {
    let own = module_of(calling_module as *const c_void)?;
    let mut walk = Walk { own: own.0, found: None };
    // SAFETY: the callback gets back what is passed here, which outlives the call.
    unsafe { _Unwind_Backtrace(visit, (&raw mut walk).cast()) };
    walk.found
}

struct Walk {
    own: usize,
    found: Option<String>,
}

/// The address and the path of the module that holds an address.
fn module_of(address: *const c_void) -> Option<(usize, String)> {
    // SAFETY: a plain struct of pointers, filled in by `dladdr`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `dladdr` takes any address.
    if unsafe { libc::dladdr(address, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of a module that is loaded, since it is on the stack.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    Some((info.dli_fbase as usize, path.to_string_lossy().into_owned()))
}

unsafe extern "C" {
    fn _Unwind_Backtrace(
        visit: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        walk: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(frame: *mut c_void) -> usize;
}

unsafe extern "C" fn visit(frame: *mut c_void, walk: *mut c_void) -> c_int {
    const GO_ON: c_int = 0;
    const STOP: c_int = 5;
    // SAFETY: the unwinder's own frame.
    let address = unsafe { _Unwind_GetIP(frame) };
    // SAFETY: the pointer that `calling_module` passed.
    let walk = unsafe { &mut *walk.cast::<Walk>() };
    walk.found =
        module_of(address as *const c_void).filter(|(base, _)| *base != walk.own).map(|(_, path)| path);
    if walk.found.is_some() { STOP } else { GO_ON }
}
