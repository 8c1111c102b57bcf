//! Sources of the bytes of a trace.

use std::io::{Cursor, Read};

/// Bytes of a trace that may come from a sparse file.
pub trait TraceBytes: Read + Send {
    /// Passes over a hole that begins at the next byte. Returns how many bytes it passed: 0 if the
    /// next byte is data, or if the source cannot tell. A hole reads as zeros, which are no block.
    fn skip_hole(&mut self) -> u64 {
        0
    }
}

impl<T: AsRef<[u8]> + Send> TraceBytes for Cursor<T> {}

impl<T: TraceBytes + ?Sized> TraceBytes for Box<T> {
    fn skip_hole(&mut self) -> u64 {
        (**self).skip_hole()
    }
}
