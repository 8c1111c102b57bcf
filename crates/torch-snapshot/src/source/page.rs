//! Pages of PyTorch's `torch.cuda._memory_viz`, which have a pickle in base64.
//!
//! `trace_plot`, `segment_plot` and `profile_plot` write `[{"name": "snapshot.pickle", "base64":
//! "gASV..."}]` into a script:
//! <https://github.com/pytorch/pytorch/blob/v2.9.1/torch/cuda/_memory_viz.py#L436>

use std::io::{self, BufRead, ErrorKind, Read};

use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::read::DecoderReader;

use crate::error::SnapshotError;

/// The script that such a page loads.
const VIEWER: &[u8] = b"MemoryViz.js";
const KEY: &[u8] = b"base64\"";
/// The text begins within this number of bytes of the page.
const MAX_BYTES_BEFORE: u64 = 1 << 20;

/// Encoders differ in whether they pad.
static ENGINE: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// True for the first bytes of a page that PyTorch's viewer shows.
pub(super) fn is_memory_viz(first: &[u8]) -> bool {
    let begins_with_tag = first.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'<');
    begins_with_tag && first.windows(VIEWER.len()).any(|part| part == VIEWER)
}

/// The decoded bytes of the first text in base64 of a page.
pub(super) struct Base64Decoder<R: BufRead>(DecoderReader<'static, GeneralPurpose, TextInQuotes<R>>);

impl<R: BufRead> Base64Decoder<R> {
    /// Finds the text behind the key `base64`.
    pub(super) fn find(mut page: R) -> Result<Self, SnapshotError> {
        let mut before = page.by_ref().take(MAX_BYTES_BEFORE);
        let mut has_key = false;
        loop {
            let mut part = Vec::new();
            before.read_until(b'"', &mut part)?;
            if part.last() != Some(&b'"') {
                return Err(SnapshotError::OtherContents("the page holds no snapshot"));
            }
            let is_value = part.iter().all(|byte| matches!(byte, b':' | b'"') || byte.is_ascii_whitespace());
            if has_key && is_value {
                let text = TextInQuotes { page, is_over: false };
                return Ok(Self(DecoderReader::new(text, &ENGINE)));
            }
            has_key = part == KEY;
        }
    }
}

impl<R: BufRead> Read for Base64Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

/// The bytes up to a quote.
struct TextInQuotes<R> {
    page: R,
    is_over: bool,
}

impl<R: BufRead> Read for TextInQuotes<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_over || buffer.is_empty() {
            return Ok(0);
        }
        let text = self.page.fill_buf()?;
        if text.is_empty() {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "the page was cut"));
        }
        let text = &text[..text.len().min(buffer.len())];
        let quote = text.iter().position(|byte| *byte == b'"');
        let len = quote.unwrap_or(text.len());
        buffer[..len].copy_from_slice(&text[..len]);
        self.is_over = quote.is_some();
        self.page.consume(len);
        Ok(len)
    }
}
