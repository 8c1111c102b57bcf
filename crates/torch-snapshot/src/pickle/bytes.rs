//! The bytes of a pickle, through a buffer that is cheap to ask for one byte.

use std::io::{ErrorKind, Read};

use crate::error::SnapshotError;
use crate::values::MAX_TEXT_BYTES;

const BUFFER_BYTES: usize = 1 << 18;
/// Longest line of the opcodes that have numbers as text.
const MAX_LINE_BYTES: usize = 1 << 12;

/// Reads numbers and texts, and counts bytes.
pub(super) struct PickleBytes<'a> {
    source: &'a mut dyn Read,
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    /// Bytes before the buffer.
    before: u64,
    text: Vec<u8>,
}

impl<'a> PickleBytes<'a> {
    pub(super) fn new(source: &'a mut dyn Read) -> Self {
        Self { source, buffer: vec![0; BUFFER_BYTES], at: 0, end: 0, before: 0, text: Vec::new() }
    }

    /// Bytes read so far.
    pub(super) fn offset(&self) -> u64 {
        self.before + self.at as u64
    }

    pub(super) fn damaged(&self, why: &'static str) -> SnapshotError {
        SnapshotError::Damaged { offset: self.offset(), why }
    }

    #[cold]
    fn fill(&mut self) -> Result<(), SnapshotError> {
        self.before += self.end as u64;
        (self.at, self.end) = (0, 0);
        loop {
            match self.source.read(&mut self.buffer) {
                Ok(0) => return Err(self.damaged("it ends too early; was the file copied in full?")),
                Ok(read) => {
                    self.end = read;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, SnapshotError> {
        if self.at == self.end {
            self.fill()?;
        }
        let byte = self.buffer[self.at];
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        if let Some(bytes) = self.buffer[self.at..self.end].first_chunk::<N>() {
            let bytes = *bytes;
            self.at += N;
            return Ok(bytes);
        }
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    /// The next `len` bytes; of a long text only the start.
    pub(super) fn text(&mut self, len: u64) -> Result<&[u8], SnapshotError> {
        self.text.clear();
        let mut rest = len;
        while rest > 0 {
            if self.at == self.end {
                self.fill()?;
            }
            let taken = usize::try_from(rest).unwrap_or(usize::MAX).min(self.end - self.at);
            let kept = taken.min(MAX_TEXT_BYTES.saturating_sub(self.text.len()));
            self.text.extend_from_slice(&self.buffer[self.at..self.at + kept]);
            self.at += taken;
            rest -= taken as u64;
        }
        Ok(&self.text)
    }

    /// The bytes up to a line feed, without it.
    pub(super) fn line(&mut self) -> Result<&[u8], SnapshotError> {
        self.text.clear();
        loop {
            match self.byte()? {
                b'\n' => return Ok(&self.text),
                byte if self.text.len() < MAX_LINE_BYTES => self.text.push(byte),
                _ => return Err(self.damaged("a line is too long")),
            }
        }
    }
}
