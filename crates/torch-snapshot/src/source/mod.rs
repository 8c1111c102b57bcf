//! The bytes of a snapshot: recognized by content, and unpacked while they are read.
//!
//! A file is a snapshot, a zip archive with one ([`zip`]), or a page of PyTorch with one
//! ([`page`]). Each of them may be compressed ([`layers`]).

mod layers;
mod limit;
mod page;
mod zip;

use std::io::{BufRead, Cursor, Read, Seek};

use layers::{Compression, is_compressed_snapshot, remove_layers};
use zip::{ZIP_MAGIC, ZipArchive};

use crate::error::SnapshotError;

/// Bytes at the start of a file that [`looks_like_snapshot`] needs.
pub const SNIFF_BYTES: usize = 512;

/// The opcode that begins every pickle of protocol 2 and above.
const PROTO: u8 = 0x80;
/// The first pickle of `torch.save` in its format before zip: a number.
const LEGACY_SAVE: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e";
/// `torch.save` wrote three pickles before the object.
const LEGACY_SAVE_PICKLES: u32 = 3;

/// A source of bytes that can be read from any position.
pub(crate) trait SeekableRead: Read + Seek {}

impl<R: Read + Seek> SeekableRead for R {}

/// The form of an unpacked snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SnapshotForm {
    /// A pickle, and the number of those before it.
    Pickle {
        skipped_pickles: u32,
    },
    Json,
}

/// A snapshot without its compression.
pub(crate) struct PlainSnapshot<'a> {
    pub(crate) form: SnapshotForm,
    pub(crate) bytes: Box<dyn BufRead + 'a>,
    /// The bytes are unpacked: their checksum is compared at the end.
    pub(crate) is_packed: bool,
    /// `torch.save` wrote it, so code in it is that of other objects than snapshots.
    pub(crate) is_torch_save: bool,
}

/// True if a file with these first bytes may be a snapshot: a pickle or JSON, possibly compressed,
/// in an archive, or in a page of PyTorch.
pub fn looks_like_snapshot(first: &[u8]) -> bool {
    first.starts_with(ZIP_MAGIC) || may_begin_snapshot(first)
}

/// True for the first bytes of a snapshot outside of an archive.
fn may_begin_snapshot(first: &[u8]) -> bool {
    match Compression::of(first) {
        Some(compression) => is_compressed_snapshot(compression, first),
        None => page::is_memory_viz(first) || form_of(first).is_some(),
    }
}

/// The first unpacked bytes of a file that begins so. Fewer if the packed bytes do not suffice.
pub fn unpack_start(first: &[u8]) -> Vec<u8> {
    let mut unpacked = Vec::new();
    if let Ok((bytes, _)) = remove_layers(Box::new(Cursor::new(first))) {
        // What was unpacked before an error is kept.
        drop(bytes.take(first.len() as u64).read_to_end(&mut unpacked));
    }
    unpacked
}

fn form_of(first: &[u8]) -> Option<SnapshotForm> {
    match first {
        _ if first.starts_with(LEGACY_SAVE) => {
            Some(SnapshotForm::Pickle { skipped_pickles: LEGACY_SAVE_PICKLES })
        }
        [PROTO, 2..=5, ..] => Some(SnapshotForm::Pickle { skipped_pickles: 0 }),
        _ => match first.iter().find(|byte| !byte.is_ascii_whitespace())? {
            b'{' | b'[' => Some(SnapshotForm::Json),
            _ => None,
        },
    }
}

/// Finds the snapshot in a file, unpacks it and passes it to `read`.
pub(crate) fn with_plain_snapshot<T>(
    input: &mut dyn SeekableRead,
    read: impl FnOnce(PlainSnapshot<'_>) -> Result<T, SnapshotError>,
) -> Result<T, SnapshotError> {
    let mut first = Vec::with_capacity(ZIP_MAGIC.len());
    input.take(ZIP_MAGIC.len() as u64).read_to_end(&mut first)?;
    input.rewind()?;
    if !first.starts_with(ZIP_MAGIC) {
        return read(plain_snapshot(Box::new(input))?);
    }
    let mut archive = ZipArchive::open(input)?;
    let entry = archive.find_snapshot()?;
    let mut plain = plain_snapshot(archive.read(&entry)?)?;
    plain.is_packed = true;
    plain.is_torch_save |= entry.is_torch_save();
    read(plain)
}

fn plain_snapshot<'a>(bytes: Box<dyn Read + 'a>) -> Result<PlainSnapshot<'a>, SnapshotError> {
    let (mut bytes, is_packed) = remove_layers(bytes)?;
    let form = form_of(bytes.fill_buf()?)
        .ok_or(SnapshotError::OtherContents("it is neither a pickle of protocol 2 to 5 nor JSON"))?;
    let is_torch_save = matches!(form, SnapshotForm::Pickle { skipped_pickles: 1.. });
    Ok(PlainSnapshot { form, bytes, is_packed, is_torch_save })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_recognized_by_their_first_bytes() {
        let page = b"\n<!DOCTYPE html>\n<script>import {add_local_files} from \"x/MemoryViz.js\"";
        for first in [
            &b"\x80\x02}"[..],
            b"\x80\x05\x95",
            b"{\"segments\"",
            b" \n[{",
            b"PK\x03\x04",
            b"\xfd7zXZ\0",
            page,
        ] {
            assert!(looks_like_snapshot(first), "{first:?}");
        }
        for first in
            [&b""[..], b"\x80", b"\x80\x06", b"\x80\x01", b"gpumtrc\n", b"PK", b"\x1f\x8b", b"<html>hello"]
        {
            assert!(!looks_like_snapshot(first), "{first:?}");
        }
    }
}
