//! Starts the recorder's own thread without the standard library.
//!
//! A thread of `std` registers thread-local destructors when it starts. Without memory, glibc ends
//! the process there ("failed to register TLS destructor"), and the program may use up its memory
//! between our `pthread_create` and the start. `tests/host/programs/limits/address_space.c` does.

use std::ffi::{CStr, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

type ThreadBody = Box<dyn FnOnce() + Send>;

struct ThreadStart {
    name: &'static CStr,
    body: ThreadBody,
}

/// Starts a detached thread. It inherits the signal mask.
pub(crate) fn spawn(name: &'static CStr, stack_bytes: usize, body: ThreadBody) -> io::Result<()> {
    let start = Box::into_raw(Box::new(ThreadStart { name, body }));
    let mut attributes = MaybeUninit::uninit();
    let mut thread = MaybeUninit::uninit();
    // SAFETY: the attributes are initialised first and destroyed last; the new thread takes over
    // `start`.
    let error = unsafe {
        let mut error = libc::pthread_attr_init(attributes.as_mut_ptr());
        if error == 0 {
            libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack_bytes);
            error = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run, start.cast());
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
        }
        error
    };
    if error == 0 {
        return Ok(());
    }
    // SAFETY: no thread took it over.
    drop(unsafe { Box::from_raw(start) });
    Err(io::Error::from_raw_os_error(error))
}

extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` leaves it to this thread.
    let start = unsafe { Box::from_raw(start.cast::<ThreadStart>()) };
    super::name_this_thread(start.name);
    // Unwinding out of the first function of a thread ends the process.
    let _ = catch_unwind(AssertUnwindSafe(start.body));
    std::ptr::null_mut()
}
