//! A start within a program of Metal.
//!
//! Constraint: what Metal handed out before, nobody tells. Consequence: from the start on the devices' classes are swizzled, so all that is
//! made from then on is seen, with the heaps that are made then; what lies in older heaps is not, and the trace says `started`.

use super::start_stop::Answer;
use crate::metal;

/// Swizzles the classes of all devices. `mark` is called before anything can be recorded.
pub(super) fn begin(mark: impl FnOnce()) -> Answer {
    mark();
    stay();
    if metal::meet_all_devices() { Answer::Everything } else { Answer::NoDevice }
}

/// Threads may be inside a hook at any time, so the library must never be unloaded. One that was inserted never is.
fn stay() {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: an address of ours and a buffer of ours; the name lives as long as we do, and nothing is loaded.
    unsafe {
        if libc::dladdr(stay as *const std::ffi::c_void, &raw mut info) != 0 {
            libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}
