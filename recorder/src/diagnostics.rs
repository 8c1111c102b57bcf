//! One line on stderr, when something went wrong that the user should know.
//!
//! Constraint: we are a guest in someone else's process, possibly under its allocator's lock. Consequence: no stdio, no
//! formatting machinery, no allocation: the parts are copied into a buffer on the stack and written with one `write(2)`.
//! The sentence says what, why, and what to do.

use crate::platform;

const LINE_BYTES: usize = 1024;

/// Writes `gpumemtrace: <parts>` and a newline; what does not fit is cut.
pub fn print_diagnostic(parts: &[&str]) {
    let mut line = [0u8; LINE_BYTES];
    let mut len = 0;
    for part in ["gpumemtrace: "].iter().chain(parts) {
        let room = LINE_BYTES - 1 - len;
        let bytes = &part.as_bytes()[..part.len().min(room)];
        line[len..len + bytes.len()].copy_from_slice(bytes);
        len += bytes.len();
    }
    line[len] = b'\n';
    let saved_errno = errno();
    platform::signals::without_write_signals(|| {
        if platform::is_heard(2) {
            // SAFETY: the buffer lives across the call; a failing write has no consequence for us.
            unsafe { libc::write(2, line.as_ptr().cast(), len + 1) };
        }
    });
    set_errno(saved_errno);
}

/// The calling thread's `errno`.
pub fn errno() -> i32 {
    // SAFETY: always a valid pointer to this thread's errno.
    unsafe { *platform::errno_place() }
}

/// Puts `errno` back, so that our system calls never show in the program's.
pub fn set_errno(value: i32) {
    // SAFETY: always a valid pointer to this thread's errno.
    unsafe { *platform::errno_place() = value };
}

/// The system's words for an error number.
pub(crate) fn error_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}
