//! Shareable file descriptors for memory.
//!
//! Each descriptor is an anonymous file with a token, so a duplicate in any process names the same
//! memory.

use crate::result_code::{ApiResult, INVALID_VALUE, OUT_OF_MEMORY};
use crate::state::foreign::{TOKEN, Token, TokenKind};

/// Returns a new descriptor that holds a token.
pub(crate) fn make(token: Token) -> ApiResult<i32> {
    // SAFETY: the name is terminated; the call returns a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_create, c"simgpu".as_ptr(), libc::MFD_CLOEXEC) as i32 };
    if fd < 0 {
        return Err(OUT_OF_MEMORY);
    }
    let bytes = token.to_bytes();
    // SAFETY: the buffer has the given length.
    if unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), TOKEN, 0) } != TOKEN as isize {
        close(fd);
        return Err(OUT_OF_MEMORY);
    }
    Ok(fd)
}

/// Reads the token of a descriptor and checks its kind.
pub(crate) fn read(fd: i32, wanted: TokenKind) -> ApiResult<Token> {
    let mut bytes = [0; TOKEN];
    // SAFETY: the buffer has the given length; the descriptor is the caller's.
    if unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), TOKEN, 0) } != TOKEN as isize {
        return Err(INVALID_VALUE);
    }
    Token::from_bytes(&bytes, wanted)
}

/// Closes a descriptor that the caller handed over.
pub(crate) fn close(fd: i32) {
    // SAFETY: the driver owns the descriptor.
    unsafe { libc::close(fd) };
}
