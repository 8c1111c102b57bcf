//! Diagnostics for the user: one line on stderr when something goes wrong.
//!
//! The calling thread belongs to the program and may hold its allocator's lock. So there is no
//! stdio, no formatting and no allocation: the parts are copied into a buffer on the stack and
//! written with one `write(2)`. Each line says what happened, why, and what to do.

use std::iter;

use gpumemtrace_format::text::needs_escape;

use crate::platform::{self, cancellation::without_cancellation};

const LINE_BYTES: usize = 1024;

/// Writes `gpumemtrace: <parts>` and a newline to stderr. Keeps `errno`, and truncates a line after
/// 1024 bytes.
pub fn print_diagnostic(parts: &[&str]) {
    print_parts(parts.iter().copied());
}

/// As [`print_diagnostic`], for parts that lie in several places.
pub(crate) fn print_parts<'a>(parts: impl Iterator<Item = &'a str>) {
    let mut line = [0u8; LINE_BYTES];
    let len = escape_into(&mut line[..LINE_BYTES - 1], parts);
    line[len] = b'\n';
    let saved_errno = errno();
    without_cancellation(|| {
        platform::signals::without_write_signals(|| {
            if platform::has_reader(2) {
                // SAFETY: the buffer lives across the call; a failed write has no consequence.
                unsafe { libc::write(2, line.as_ptr().cast(), len + 1) };
            }
        });
    });
    set_errno(saved_errno);
}

/// Copies the parts with escapes such as `\u{1b}` for control characters and direction marks: paths
/// and messages may hold any text. Returns how many bytes it wrote; text that does not fit is left
/// out.
fn escape_into<'a>(line: &mut [u8], parts: impl Iterator<Item = &'a str>) -> usize {
    let mut len = 0;
    let mut push = |bytes: &[u8]| match line.get_mut(len..len + bytes.len()) {
        Some(space) => {
            space.copy_from_slice(bytes);
            len += bytes.len();
            true
        }
        None => false,
    };
    for c in iter::once("gpumemtrace: ").chain(parts).flat_map(str::chars) {
        let fits = if needs_escape(c) {
            c.escape_unicode().all(|c| push(&[c as u8]))
        } else {
            push(c.encode_utf8(&mut [0; 4]).as_bytes())
        };
        if !fits {
            break;
        }
    }
    len
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

#[cfg(test)]
mod tests {
    use super::{escape_into, iter};

    #[test]
    fn messages_are_cut_at_characters_and_hold_no_controls() {
        let mut line = [0; 40];
        let len = escape_into(&mut line, ["\x1b[1m", "é\u{202e}"].into_iter());
        assert_eq!(str::from_utf8(&line[..len]), Ok("gpumemtrace: \\u{1b}[1mé\\u{202e}"));
        for size in 13..20 {
            let len = escape_into(&mut line[..size], iter::once("字字字"));
            assert!(len <= size && str::from_utf8(&line[..len]).is_ok());
        }
    }
}
