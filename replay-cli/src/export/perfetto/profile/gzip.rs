//! Decompresses gzip files (RFC 1952) as they are read.

use std::io::{self, BufRead as _, BufReader, Read};

use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZFlush, MZStatus};

/// Flags of the header.
const HAS_CRC: u8 = 2;
const HAS_EXTRA: u8 = 4;
const HAS_NAME: u8 = 8;
const HAS_COMMENT: u8 = 16;

/// The first member of a gzip file. Its checksum is not compared: damage shows as invalid JSON.
pub(super) struct GzipReader<R> {
    input: BufReader<R>,
    state: Box<InflateState>,
    is_done: bool,
}

impl<R: Read> GzipReader<R> {
    /// Reads the header. Fails if it is cut.
    pub(super) fn new(input: R) -> io::Result<Self> {
        let mut input = BufReader::with_capacity(1 << 16, input);
        let mut header = [0; 10];
        input.read_exact(&mut header)?;
        let flags = header[3];
        if flags & HAS_EXTRA != 0 {
            let mut length = [0; 2];
            input.read_exact(&mut length)?;
            io::copy(&mut (&mut input).take(u64::from(u16::from_le_bytes(length))), &mut io::sink())?;
        }
        for text in [HAS_NAME, HAS_COMMENT] {
            if flags & text != 0 {
                input.skip_until(0)?;
            }
        }
        if flags & HAS_CRC != 0 {
            input.read_exact(&mut [0; 2])?;
        }
        Ok(Self { input, state: InflateState::new_boxed(DataFormat::Raw), is_done: false })
    }
}

impl<R: Read> Read for GzipReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while !self.is_done && !out.is_empty() {
            let bytes = self.input.fill_buf()?;
            let is_end = bytes.is_empty();
            let result = inflate(&mut self.state, bytes, out, MZFlush::None);
            self.input.consume(result.bytes_consumed);
            match result.status {
                Ok(MZStatus::StreamEnd) => self.is_done = true,
                Ok(_) if !is_end || result.bytes_written > 0 => {}
                _ => return Err(io::Error::other("the compressed data is cut or damaged")),
            }
            if result.bytes_written > 0 {
                return Ok(result.bytes_written);
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compressed(text: &[u8]) -> Vec<u8> {
        let mut file = vec![0x1f, 0x8b, 8, HAS_NAME, 0, 0, 0, 0, 0, 3];
        file.extend(b"trace.json\0");
        file.extend(miniz_oxide::deflate::compress_to_vec(text, 6));
        file.extend([0; 8]);
        file
    }

    #[test]
    fn compressed_files_are_read() {
        let text = b"0123456789".repeat(50_000);
        let mut read = Vec::new();
        GzipReader::new(&compressed(&text)[..]).unwrap().read_to_end(&mut read).unwrap();
        assert_eq!(read, text);
    }

    #[test]
    fn cut_file_is_an_error() {
        let file = compressed(&b"0123456789".repeat(50_000));
        let mut reader = GzipReader::new(&file[..file.len() - 20]).unwrap();
        assert!(reader.read_to_end(&mut Vec::new()).is_err());
        assert!(GzipReader::new(&file[..5]).is_err());
    }
}
