//! Compression and pages around a snapshot, removed while the bytes are read.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;

use super::limit::LimitedRead;
use super::page::{Base64Decoder, is_memory_viz};
use super::{SNIFF_BYTES, may_begin_snapshot};
use crate::error::SnapshotError;

const BUFFER_BYTES: usize = 1 << 18;
/// A compressed page has two layers.
const MAX_LAYERS: usize = 3;
/// Most memory that unpacking takes. `xz -9` and `zstd --long` need half of it.
const MAX_DICTIONARY_KIB: u32 = 128 << 10;

/// A compression of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Compression {
    Gzip,
    Xz,
    Zstd,
}

impl Compression {
    /// The compression of a file with these first bytes.
    pub(super) fn of(first: &[u8]) -> Option<Self> {
        match first {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            _ => None,
        }
    }

    fn unpack<'a>(self, packed: Box<dyn BufRead + 'a>) -> Result<Box<dyn Read + 'a>, SnapshotError> {
        let unpacked: Box<dyn Read + 'a> = match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(packed)),
            Self::Xz => Box::new(XzReader::new_mem_limit(packed, true, MAX_DICTIONARY_KIB)),
            // zstd refuses windows above 128 MiB by default.
            Self::Zstd => Box::new(zstd::Decoder::with_buffer(packed)?),
        };
        Ok(Box::new(LimitedRead::new(unpacked)))
    }
}

/// True if the compressed bytes may be those of a snapshot. They may end too early to tell: xz and
/// zstd unpack whole blocks only.
pub(super) fn is_compressed_snapshot(compression: Compression, first: &[u8]) -> bool {
    if compression != Compression::Gzip {
        return true;
    }
    let mut start = [0; SNIFF_BYTES];
    let mut unpacked = MultiGzDecoder::new(first);
    let mut len = 0;
    while let Ok(read @ 1..) = unpacked.read(&mut start[len..]) {
        len += read;
    }
    let start = &start[..len];
    Compression::of(start).is_some() || may_begin_snapshot(start)
}

/// Unpacks compressed bytes, and the snapshot in a page. Also returns whether there was any of
/// these.
pub(super) fn remove_layers<'a>(
    bytes: Box<dyn Read + 'a>,
) -> Result<(Box<dyn BufRead + 'a>, bool), SnapshotError> {
    let mut bytes = buffer(bytes)?;
    for layer in 0..MAX_LAYERS {
        let first = bytes.fill_buf()?;
        bytes = if let Some(compression) = Compression::of(first) {
            buffer(compression.unpack(bytes)?)?
        } else if is_memory_viz(first) {
            buffer(Box::new(Base64Decoder::find(bytes)?))?
        } else {
            return Ok((bytes, layer > 0));
        };
    }
    Ok((bytes, true))
}

/// A buffer that begins with [`SNIFF_BYTES`], even if reads are short.
fn buffer<'a>(mut bytes: Box<dyn Read + 'a>) -> io::Result<Box<dyn BufRead + 'a>> {
    let mut first = Vec::with_capacity(SNIFF_BYTES);
    bytes.by_ref().take(SNIFF_BYTES as u64).read_to_end(&mut first)?;
    let whole: Chain<Cursor<Vec<u8>>, _> = Cursor::new(first).chain(bytes);
    Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, whole)))
}
