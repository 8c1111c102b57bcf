//! Framing: the file header and the header of each block.
//!
//! A file may end anywhere (the process was killed, the disk was full) and any bit of it may have
//! flipped. So the header of a block has a checksum of its own: its length can be trusted even if
//! its payload cannot. It begins with a sync word, so that a reader finds the next block behind
//! damage.
//!
//! ```text
//! file   = magic:8 "gpumtrc\n"  version:u32  crc32c(the 12 bytes before):u32  block*
//! block  = sync:4 "GMTB"  kind:u8  encoding:u8  reserved:u16  stored_len:u32  raw_len:u32
//!          crc32c(payload as stored):u32  crc32c(the 20 bytes before):u32  payload:stored_len
//! ```
//! All numbers are little-endian. Encoding 0 is the payload as it is; 1 is one zstd frame that
//! unpacks to exactly `raw_len` bytes; 2 is pieces, each packed on its own ([`BlockPacker`]).

use crate::FORMAT_VERSION;

mod kind;
mod pieces;
mod unpack;

pub use kind::BlockKind;
pub use pieces::{BlockPacker, unpack_pieces};
pub use unpack::PayloadError;
pub(crate) use unpack::PayloadUnpacker;

/// First bytes of a trace file.
pub const FILE_MAGIC: [u8; 8] = *b"gpumtrc\n";
/// Length of the file header.
pub const FILE_HEADER_BYTES: usize = 16;
/// First bytes of every block.
#[doc(hidden)]
pub const BLOCK_SYNC: [u8; 4] = *b"GMTB";
/// Length of a block header.
pub const BLOCK_HEADER_BYTES: usize = 24;
/// Largest payload, stored or unpacked, in bytes. A reader refuses more.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 20;

const ENCODING_RAW: u8 = 0;
const ENCODING_ZSTD: u8 = 1;
const ENCODING_PIECES: u8 = 2;

/// The header of a trace file.
pub fn file_header() -> [u8; FILE_HEADER_BYTES] {
    let mut header = [0; FILE_HEADER_BYTES];
    header[..8].copy_from_slice(&FILE_MAGIC);
    header[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    let crc = crc32c::crc32c(&header[..12]);
    header[12..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// The version in a file header; `None` if the magic or the checksum is wrong.
pub(crate) fn file_version(header: &[u8; FILE_HEADER_BYTES]) -> Option<u32> {
    let crc = crc32c::crc32c(&header[..12]);
    let sound = header[..8] == FILE_MAGIC && header[12..] == crc.to_le_bytes();
    sound.then(|| u32_at(header, 8))
}

/// A block, header and payload, packed with zstd at this level where that makes it smaller. The
/// payload must not be longer than [`MAX_PAYLOAD_BYTES`].
pub fn encode_block(kind: BlockKind, payload: &[u8], level: i32) -> Vec<u8> {
    let packed = zstd::bulk::compress(payload, level).ok().filter(|packed| packed.len() < payload.len());
    match &packed {
        Some(packed) => frame(kind, ENCODING_ZSTD, packed, payload.len()),
        None => encode_raw_block(kind, payload),
    }
}

/// A block whose payload is stored as it is, so that its length is known in advance.
#[doc(hidden)]
pub fn encode_raw_block(kind: BlockKind, payload: &[u8]) -> Vec<u8> {
    frame(kind, ENCODING_RAW, payload, payload.len())
}

/// Renews both checksums of a block after a change of its payload, which is stored as it is.
pub(crate) fn reseal_raw_block(block: &mut [u8]) {
    let Some((header, payload)) = block.split_first_chunk_mut::<BLOCK_HEADER_BYTES>() else { return };
    header[16..20].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    let crc = crc32c::crc32c(&header[..20]);
    header[20..].copy_from_slice(&crc.to_le_bytes());
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

/// A valid block header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// What the payload holds.
    pub kind: BlockKind,
    /// Length of the payload in the file.
    pub stored_len: usize,
    encoding: u8,
    raw_len: usize,
    payload_crc: u32,
}

impl BlockHeader {
    /// Decodes a header; `None` if the sync word, the checksum or a limit is wrong.
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

    /// Length of the payload once unpacked.
    pub(crate) fn raw_len(&self) -> usize {
        self.raw_len
    }

    /// Checks and unpacks the payload. Allocates at most [`MAX_PAYLOAD_BYTES`].
    pub fn unpack(&self, stored: &[u8]) -> Result<Vec<u8>, PayloadError> {
        PayloadUnpacker::default().unpack(self, stored).map(<[u8]>::to_vec)
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
        fn block_round_trips_and_every_flipped_bit_is_detected(
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
    fn payload_is_packed_only_if_that_makes_it_smaller() {
        let zeros = encode_block(BlockKind::META, &[0; 1000], 3);
        assert!(zeros.len() < 100);
        let (header, stored) = split(&zeros);
        assert_eq!(header.unwrap().unpack(stored), Ok(vec![0; 1000]));
        assert_eq!(encode_block(BlockKind::META, b"x", 3).len(), BLOCK_HEADER_BYTES + 1);
    }

    #[test]
    fn file_header_holds_version_and_detects_damage() {
        let mut header = file_header();
        assert_eq!(file_version(&header), Some(FORMAT_VERSION));
        header[9] ^= 1;
        assert_eq!(file_version(&header), None);
    }
}
