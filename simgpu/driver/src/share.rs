//! Tokens in files: the file descriptors that processes send each other.
//!
//! A descriptor must name memory in whichever process reads it -> it is an anonymous file that holds a token, so a duplicate of it, in
//! this process or another, says the same.

use crate::rc::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
use crate::state::foreign::{Subject, TOKEN, Token};

/// A new descriptor that holds a token.
pub(crate) fn make(token: Token) -> Answer<i32> {
    // SAFETY: a terminated name; a new descriptor.
    let fd = unsafe { libc::memfd_create(c"simgpu".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(OUT_OF_MEMORY);
    }
    let bytes = token.to_bytes();
    // SAFETY: the buffer is as long as we say.
    if unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), TOKEN, 0) } != TOKEN as isize {
        close(fd);
        return Err(OUT_OF_MEMORY);
    }
    Ok(fd)
}

/// The token that a descriptor holds.
pub(crate) fn read(fd: i32, wanted: Subject) -> Answer<Token> {
    let mut bytes = [0; TOKEN];
    // SAFETY: the buffer is as long as we say; a descriptor of the caller's.
    if unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), TOKEN, 0) } != TOKEN as isize {
        return Err(INVALID_VALUE);
    }
    Token::from_bytes(&bytes, wanted)
}

/// Closes a descriptor that the caller has handed over.
pub(crate) fn close(fd: i32) {
    // SAFETY: the descriptor is the driver's now.
    unsafe { libc::close(fd) };
}
