//! A limit for what a compressed file unpacks to.

use std::io::{self, Read};

/// Most bytes that a compressed file may unpack to. Reading them takes minutes; memory does not
/// grow with them.
const MAX_UNPACKED_BYTES: u64 = 32 << 30;

/// Unpacked bytes, up to a limit.
pub(super) struct LimitedRead<R> {
    unpacked: R,
    left_bytes: u64,
}

impl<R: Read> LimitedRead<R> {
    pub(super) fn new(unpacked: R) -> Self {
        Self { unpacked, left_bytes: MAX_UNPACKED_BYTES }
    }
}

impl<R: Read> Read for LimitedRead<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.unpacked.read(buffer)?;
        self.left_bytes = self.left_bytes.checked_sub(read as u64).ok_or_else(|| {
            let gibibytes = MAX_UNPACKED_BYTES >> 30;
            io::Error::other(format!("it unpacks to more than {gibibytes} GiB"))
        })?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_limit_are_an_error() {
        let mut limited = LimitedRead { unpacked: io::repeat(7), left_bytes: 100 };
        let mut unpacked = Vec::new();
        let error = limited.read_to_end(&mut unpacked).unwrap_err();
        assert_eq!(error.to_string(), "it unpacks to more than 32 GiB");
        assert!(unpacked.len() <= 100);
        let mut within = LimitedRead { unpacked: io::repeat(7).take(100), left_bytes: 100 };
        assert_eq!(within.read_to_end(&mut unpacked).unwrap(), 100);
    }
}
