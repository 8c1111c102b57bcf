//! Diagnostics for the user: one line on stderr when something goes wrong.
//!
//! The calling thread belongs to the program and may hold its allocator's lock. So there is no
//! stdio, no formatting and no allocation: the parts are copied into a buffer on the stack and
//! written with one `write(2)`. Each line says what happened, why, and what to do.

use crate::platform;

const LINE_BYTES: usize = 1024;

/// Writes `gpumemtrace: <parts>` and a newline to stderr. Keeps `errno`, and truncates a line after
/// 1024 bytes.
pub fn print_diagnostic(parts: &[&str]) {
    let mut line = [0u8; LINE_BYTES];
    let mut len = 0;
    for part in ["gpumemtrace: "].iter().chain(parts) {
        let space = LINE_BYTES - 1 - len;
        let bytes = &part.as_bytes()[..part.len().min(space)];
        line[len..len + bytes.len()].copy_from_slice(bytes);
        len += bytes.len();
    }
    line[len] = b'\n';
    let saved_errno = errno();
    platform::signals::without_write_signals(|| {
        if platform::has_reader(2) {
            // SAFETY: the buffer lives across the call; a failed write has no consequence.
            unsafe { libc::write(2, line.as_ptr().cast(), len + 1) };
        }
    });
    set_errno(saved_errno);
}

/// Reads the `errno` of the calling thread.
pub fn errno() -> i32 {
    // SAFETY: always a valid pointer to this thread's errno.
    unsafe { *platform::errno_location() }
}

/// Restores the `errno` of the calling thread, so that the program never sees the errors of our
/// calls.
pub fn set_errno(value: i32) {
    // SAFETY: always a valid pointer to this thread's errno.
    unsafe { *platform::errno_location() = value };
}

/// The system's message for an error, without the number that Rust adds.
pub(crate) fn error_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}
