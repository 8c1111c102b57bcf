//! The limit on the size of an export.

use std::io::{self, Write};

/// Bytes that any export may have.
const MIN_LIMIT: u64 = 512 << 20;
/// Bytes that it may have for each byte of the traces in addition. `torch-snapshot-json`, the
/// largest format, needs fewer than 40.
const BYTES_PER_BYTE: u64 = 256;

/// Passes on an export until it is larger than a trace of this size can need: a hostile trace of
/// some kilobytes must not fill a disk.
pub(super) struct LimitedOutput<W> {
    out: W,
    left: u64,
}

impl<W: Write> LimitedOutput<W> {
    pub(super) fn new(out: W, input_bytes: u64) -> Self {
        Self { out, left: MIN_LIMIT.saturating_add(input_bytes.saturating_mul(BYTES_PER_BYTE)) }
    }
}

impl<W: Write> Write for LimitedOutput<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(io::Error::other(
                "the output exceeds 512 MiB plus 256 bytes for each byte of the traces; export a part with --since and --until",
            ));
        }
        let written = self.out.write(bytes)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_ends_at_the_limit() {
        let mut out = LimitedOutput::new(io::sink(), 1 << 20);
        let block = vec![0; 1 << 20];
        let written = (0..2000).take_while(|_| out.write_all(&block).is_ok()).count();
        assert_eq!(written, 512 + 256);
    }
}
