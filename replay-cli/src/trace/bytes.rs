//! The bytes of a trace's files, one after the other, without the holes of sparse files.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use gpumemtrace_format::reader::TraceBytes;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// A range of a file, read in order. Does not move the position of the file.
pub(crate) struct FileBytes {
    file: File,
    at: u64,
    end: u64,
}

impl FileBytes {
    /// The bytes from `at` to `end`, or to the end of the file if that comes first.
    pub(crate) fn new(file: File, at: u64, end: u64) -> Self {
        Self { file, at, end }
    }
}

impl Read for FileBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(self.end.saturating_sub(self.at) as usize);
        let read = self.file.read_at(&mut buffer[..wanted], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl TraceBytes for FileBytes {
    fn skip_hole(&mut self) -> u64 {
        let data = match seek(&self.file, SeekFrom::Data(self.at)) {
            Ok(data) => data,
            // Everything up to the end of the file is a hole.
            Err(Errno::NXIO) => self.file.metadata().map_or(self.at, |facts| facts.len()),
            // The file system has no holes, or cannot tell.
            Err(_) => self.at,
        };
        let begin = self.at;
        self.at = data.min(self.end).max(begin);
        self.at - begin
    }
}

/// Several [`FileBytes`] as one source.
pub(crate) struct JoinedBytes(pub(crate) VecDeque<FileBytes>);

impl Read for JoinedBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(first) = self.0.front_mut() {
            let read = first.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            self.0.pop_front();
        }
        Ok(0)
    }
}

impl TraceBytes for JoinedBytes {
    fn skip_hole(&mut self) -> u64 {
        self.0.front_mut().map_or(0, TraceBytes::skip_hole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn holes_are_passed_and_bounded_by_the_range() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 100]).unwrap();
        file.set_len(4 << 40).unwrap();
        file.write_all_at(b"data", 3 << 40).unwrap();
        let bytes = |at, end| FileBytes::new(file.try_clone().unwrap(), at, end);
        if seek(&file, SeekFrom::Data(1 << 40)).is_err() {
            return; // No holes on this file system.
        }
        assert_eq!(bytes(50, 1 << 40).skip_hole(), 0, "these are data");
        let mut all = bytes(1 << 20, 4 << 40);
        assert_eq!(all.skip_hole(), (3 << 40) - (1 << 20));
        let mut data = [0; 4];
        all.read_exact(&mut data).unwrap();
        assert_eq!(&data, b"data");
        assert!(all.skip_hole() <= 1 << 40);
        assert_eq!(bytes(1 << 40, 2 << 40).skip_hole(), 1 << 40);
        // After the last data.
        let mut rest = bytes((3 << 40) + (1 << 20), 4 << 40);
        assert_eq!(rest.skip_hole(), (1 << 40) - (1 << 20));
        assert_eq!(rest.read(&mut data).unwrap(), 0);
    }
}
