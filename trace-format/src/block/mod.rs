//! Framing: the file header and the header of each block.
//!
//! Constraint: a file may end anywhere (the process was killed, the disk was full) and any bit of it may have flipped.
//! Consequence: the header of a block has its own checksum, so that its length can be trusted even when its payload
//! cannot, and begins with a sync word, so that the next block can be found when a header cannot be trusted either.
//!
//! ```text
//! file   = magic:8 "gpumtrc\n"  version:u32  crc32c(the 12 bytes before):u32  block*
//! block  = sync:4 "GMTB"  kind:u8  encoding:u8  reserved:u16  stored_len:u32  raw_len:u32
//!          crc32c(payload as stored):u32  crc32c(the 20 bytes before):u32  payload:stored_len
//! ```
//! All little-endian. encoding 0: payload as it is; 1: one zstd frame that unpacks to exactly raw_len bytes; 2: pieces, each packed
//! by itself (`block/pieces.rs`).

use thiserror::Error;

use crate::FORMAT_VERSION;

mod pieces;

pub use pieces::{Packer, unpack_pieces};

/// First bytes of a trace file.
pub const FILE_MAGIC: [u8; 8] = *b"gpumtrc\n";
/// Bytes before the first block.
pub const FILE_HEADER_BYTES: usize = 16;
/// First bytes of every block.
pub const BLOCK_SYNC: [u8; 4] = *b"GMTB";
/// Bytes before a block's payload.
pub const BLOCK_HEADER_BYTES: usize = 24;
/// Largest payload, stored or unpacked, that a reader accepts and a writer makes.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 20;

const ENCODING_RAW: u8 = 0;
const ENCODING_ZSTD: u8 = 1;
const ENCODING_PIECES: u8 = 2;

/// What a block holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockKind(pub u8);

impl BlockKind {
    /// [`crate::meta::Meta`].
    pub const META: Self = Self(1);
    /// [`crate::rows`]: events.
    pub const EVENTS: Self = Self(2);
    /// [`crate::defs::encode_codes`].
    pub const CODES: Self = Self(3);
    /// [`crate::defs::encode_py_nodes`].
    pub const PY_NODES: Self = Self(4);
    /// [`crate::defs::encode_native_nodes`].
    pub const NATIVE_NODES: Self = Self(5);
    /// [`crate::defs::encode_modules`].
    pub const MODULES: Self = Self(6);
    /// [`crate::meta::End`]: the last block the program wrote. A parent may add metadata behind it.
    pub const END: Self = Self(7);
    /// [`crate::symbols`]: added by `gpumemtrace symbolize`, in front of everything else.
    pub const NAMES: Self = Self(8);

    /// [`crate::links`]: of the Python nodes in the block before.
    pub const LINKS: Self = Self(9);
    /// [`crate::index::Index`].
    pub const INDEX: Self = Self(10);
    /// [`crate::index::Tail`]: the last block of a finished trace.
    pub const TAIL: Self = Self(11);

    /// True for what has events.
    pub fn is_events(self) -> bool {
        self == Self::EVENTS
    }

    /// True for what says what ids mean.
    pub fn is_definitions(self) -> bool {
        (Self::CODES.0..=Self::MODULES.0).contains(&self.0) || matches!(self, Self::NAMES | Self::LINKS)
    }
}

/// Why a block could not be unpacked although its header is sound.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// The checksum differs.
    #[error("its checksum does not match")]
    Checksum,
    /// Not a known encoding.
    #[error("it uses encoding {0}, which this version does not know")]
    Encoding(u8),
    /// zstd refused it, or it unpacked to another length than the header says.
    #[error("it does not unpack")]
    Unpack,
}

/// The 16 bytes a trace begins with.
pub fn file_header() -> [u8; FILE_HEADER_BYTES] {
    let mut header = [0; FILE_HEADER_BYTES];
    header[..8].copy_from_slice(&FILE_MAGIC);
    header[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    let crc = crc32c::crc32c(&header[..12]);
    header[12..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// The version in a file header; `None` if these are not the first bytes of a trace, or are damaged.
pub fn file_version(header: &[u8; FILE_HEADER_BYTES]) -> Option<u32> {
    let crc = crc32c::crc32c(&header[..12]);
    let sound = header[..8] == FILE_MAGIC && header[12..] == crc.to_le_bytes();
    sound.then(|| u32_at(header, 8))
}

/// A block, ready to be written: header and payload. Payloads that do not get smaller are stored as they are.
///
/// `level` is a zstd level; the payload must not be longer than [`MAX_PAYLOAD_BYTES`].
pub fn encode_block(kind: BlockKind, payload: &[u8], level: i32) -> Vec<u8> {
    let packed = zstd::bulk::compress(payload, level).ok().filter(|packed| packed.len() < payload.len());
    match &packed {
        Some(packed) => frame(kind, ENCODING_ZSTD, packed, payload.len()),
        None => encode_raw_block(kind, payload),
    }
}

/// A block whose payload is stored as it is, so that its length is known beforehand.
pub fn encode_raw_block(kind: BlockKind, payload: &[u8]) -> Vec<u8> {
    frame(kind, ENCODING_RAW, payload, payload.len())
}

fn frame(kind: BlockKind, encoding: u8, stored: &[u8], raw_len: usize) -> Vec<u8> {
    let mut block = Vec::with_capacity(BLOCK_HEADER_BYTES + stored.len());
    block.extend_from_slice(&BLOCK_SYNC);
    block.extend_from_slice(&[kind.0, encoding, 0, 0]);
    block.extend_from_slice(&(stored.len() as u32).to_le_bytes());
    block.extend_from_slice(&(raw_len as u32).to_le_bytes());
    block.extend_from_slice(&crc32c::crc32c(stored).to_le_bytes());
    block.extend_from_slice(&crc32c::crc32c(&block).to_le_bytes());
    block.extend_from_slice(stored);
    block
}

/// A sound block header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// What the payload is.
    pub kind: BlockKind,
    /// Bytes of payload in the file.
    pub stored_len: usize,
    encoding: u8,
    raw_len: usize,
    payload_crc: u32,
}

impl BlockHeader {
    /// Reads a header; `None` unless sync word, checksum and limits are right.
    pub fn decode(bytes: &[u8; BLOCK_HEADER_BYTES]) -> Option<Self> {
        let (stored_len, raw_len) = (u32_at(bytes, 8) as usize, u32_at(bytes, 12) as usize);
        let sound = bytes[..4] == BLOCK_SYNC
            && crc32c::crc32c(&bytes[..20]) == u32_at(bytes, 20)
            && stored_len <= MAX_PAYLOAD_BYTES
            && raw_len <= MAX_PAYLOAD_BYTES;
        sound.then(|| Self {
            kind: BlockKind(bytes[4]),
            encoding: bytes[5],
            stored_len,
            raw_len,
            payload_crc: u32_at(bytes, 16),
        })
    }

    /// Bytes of payload once unpacked.
    pub fn raw_len(&self) -> usize {
        self.raw_len
    }

    /// Checks and unpacks the payload. Allocates at most `raw_len`, which is at most [`MAX_PAYLOAD_BYTES`].
    pub fn unpack(&self, stored: &[u8]) -> Result<Vec<u8>, PayloadError> {
        Unpacker::default().unpack(self, stored).map(<[u8]>::to_vec)
    }
}

/// Unpacks payloads one after the other in the same memory: getting it anew takes as long as unpacking a small block.
#[derive(Default)]
pub struct Unpacker {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    payload: Vec<u8>,
}

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

impl Unpacker {
    /// As [`BlockHeader::unpack`].
    pub fn unpack<'a>(
        &'a mut self,
        header: &BlockHeader,
        stored: &'a [u8],
    ) -> Result<&'a [u8], PayloadError> {
        if crc32c::crc32c(stored) != header.payload_crc {
            return Err(PayloadError::Checksum);
        }
        let raw = match header.encoding {
            ENCODING_RAW => stored,
            ENCODING_ZSTD => {
                self.payload.clear();
                self.payload.reserve_exact(header.raw_len);
                let zstd = self.zstd.get_or_insert_default();
                let unpacked = zstd.decompress_to_buffer(stored, &mut self.payload);
                unpacked.map_err(|_| PayloadError::Unpack)?;
                &self.payload
            }
            ENCODING_PIECES => {
                let zstd = self.zstd.get_or_insert_default();
                self.payload.resize(header.raw_len, 0);
                pieces::unpack(stored, zstd, &mut self.payload).ok_or(PayloadError::Unpack)?;
                &self.payload
            }
            other => return Err(PayloadError::Encoding(other)),
        };
        if raw.len() == header.raw_len { Ok(raw) } else { Err(PayloadError::Unpack) }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(block: &[u8]) -> (Option<BlockHeader>, &[u8]) {
        let (header, payload) = block.split_at(BLOCK_HEADER_BYTES);
        (BlockHeader::decode(header.try_into().unwrap()), payload)
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "calls libzstd")]
        fn a_block_comes_back_and_no_flipped_bit_goes_unnoticed(
            payload: Vec<u8>, at: prop::sample::Index, bit in 0u8..8,
        ) {
            let mut block = encode_block(BlockKind::EVENTS, &payload, 3);
            let (header, stored) = split(&block);
            let header = header.unwrap();
            prop_assert_eq!(header.kind, BlockKind::EVENTS);
            prop_assert_eq!(header.unpack(stored), Ok(payload));

            let at = at.index(block.len());
            block[at] ^= 1 << bit;
            let (header, stored) = split(&block);
            prop_assert!(header.is_none_or(|header| header.unpack(stored).is_err()));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls libzstd")]
    fn repetition_is_packed_and_noise_is_not() {
        let zeros = encode_block(BlockKind::META, &[0; 1000], 3);
        assert!(zeros.len() < 100);
        let (header, stored) = split(&zeros);
        assert_eq!(header.unwrap().unpack(stored), Ok(vec![0; 1000]));
        assert_eq!(encode_block(BlockKind::META, b"x", 3).len(), BLOCK_HEADER_BYTES + 1);
    }

    #[test]
    fn a_file_header_tells_its_version_and_its_damage() {
        let mut header = file_header();
        assert_eq!(file_version(&header), Some(FORMAT_VERSION));
        header[9] ^= 1;
        assert_eq!(file_version(&header), None);
    }
}
