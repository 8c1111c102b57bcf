//! The TAIL of a finished trace, and finding the last INDEX of any trace.

use crate::block::{BLOCK_HEADER_BYTES, BlockHeader, BlockKind, FILE_HEADER_BYTES, encode_raw_block};
use crate::wire::WireError;

/// Length of a TAIL block, header and payload.
pub const TAIL_BYTES: usize = BLOCK_HEADER_BYTES + 16;

/// The payload of a TAIL block: distances in bytes from the start of other blocks to its own start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceTail {
    /// From the last INDEX.
    pub index_bytes: u64,
    /// From END; 0 if there is none (in every part of a trace but the last).
    pub end_bytes: u64,
}

impl TraceTail {
    /// Encodes the TAIL block, header and payload.
    pub fn encode_block(self) -> Vec<u8> {
        let payload = [self.index_bytes.to_le_bytes(), self.end_bytes.to_le_bytes()].concat();
        encode_raw_block(BlockKind::TAIL, &payload)
    }

    /// The tail of a block that is written this many bytes further on.
    #[must_use]
    pub fn moved_by(self, bytes: u64) -> Self {
        let moved = |distance: u64| if distance == 0 { 0 } else { distance.saturating_add(bytes) };
        Self { index_bytes: moved(self.index_bytes), end_bytes: moved(self.end_bytes) }
    }

    /// Decodes a TAIL payload.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let Ok([index, end]) = <[[u8; 8]; 2]>::try_from(payload.as_chunks::<8>().0) else {
            return Err(WireError::Limit);
        };
        if payload.len() > 16 {
            return Err(WireError::Limit);
        }
        Ok(Self { index_bytes: u64::from_le_bytes(index), end_bytes: u64::from_le_bytes(end) })
    }

    /// The tail of a file that ends with these bytes; `None` if they are not a TAIL block.
    pub fn from_last_bytes(bytes: &[u8; TAIL_BYTES]) -> Option<Self> {
        let (header, payload) = bytes.split_first_chunk::<BLOCK_HEADER_BYTES>()?;
        let header = BlockHeader::decode(header)?;
        let is_tail = header.kind == BlockKind::TAIL && header.stored_len == payload.len();
        Self::decode(&header.unpack(payload).ok().filter(|_| is_tail)?).ok()
    }
}

/// What [`locate_index`] finds in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexLocation {
    /// Length of the file without a truncated block at its end.
    pub whole_bytes: u64,
    /// Offset of the last INDEX block.
    pub index: Option<u64>,
    /// Offset of the END block.
    pub end: Option<u64>,
}

/// Finds the last INDEX of a file of `len_bytes`: through its TAIL, else from header to header.
/// `read(offset, buffer)` fills the buffer and returns whether it could. `None` if the headers do
/// not lead from one to the next up to the end: the file is damaged and must be read in full.
pub fn locate_index(len_bytes: u64, mut read: impl FnMut(u64, &mut [u8]) -> bool) -> Option<IndexLocation> {
    let mut last = [0; TAIL_BYTES];
    if let Some(at) = len_bytes.checked_sub(TAIL_BYTES as u64)
        && read(at, &mut last)
        && let Some(tail) = TraceTail::from_last_bytes(&last)
    {
        let back = |bytes: u64| at.checked_sub(bytes).filter(|_| bytes > 0);
        let index = Some(back(tail.index_bytes)?);
        return Some(IndexLocation { whole_bytes: len_bytes, index, end: back(tail.end_bytes) });
    }
    let (mut at, mut location) = (FILE_HEADER_BYTES as u64, IndexLocation::default());
    while at < len_bytes {
        let mut header = [0; BLOCK_HEADER_BYTES];
        let rest = len_bytes - at;
        if rest < BLOCK_HEADER_BYTES as u64 {
            // Truncated inside a header, as after a kill.
            break;
        }
        if !read(at, &mut header) {
            return None;
        }
        let header = BlockHeader::decode(&header)?;
        let total = (BLOCK_HEADER_BYTES + header.stored_len) as u64;
        if total > rest {
            break;
        }
        match header.kind {
            BlockKind::INDEX => location.index = Some(at),
            BlockKind::END => location.end = Some(at),
            _ => {}
        }
        at += total;
    }
    Some(IndexLocation { whole_bytes: at.min(len_bytes), ..location })
}
