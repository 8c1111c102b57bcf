//! A payload in pieces, each packed on its own.
//!
//! zstd packs up to 128 KiB with one set of statistics, but the columns of an EVENTS payload
//! differ. The encoder says where the payload may be split. Most pieces are one repeated byte and
//! take no call of zstd on either side.
//!
//! ```text
//! stored = piece*      piece = form:u8  unpacked:varint  then
//!          form 0: the bytes   form 1: length:varint, a zstd frame   form 2: the byte that repeats
//! ```

use zstd::bulk::{Compressor, Decompressor};

use super::{BlockKind, ENCODING_PIECES, encode_raw_block, frame};
use crate::wire::{Cursor, put_varint};

const RAW: u8 = 0;
const ZSTD: u8 = 1;
const REPEATED: u8 = 2;
/// A shorter piece is not packed.
const MIN_PACKED_BYTES: usize = 64;
/// The payload is not split into shorter pieces: a call of zstd takes ten microseconds at least.
const MIN_PIECE_BYTES: usize = 4096;

/// Packs blocks in pieces, with one zstd context for all of them.
pub struct BlockPacker {
    zstd: Option<Compressor<'static>>,
    scratch: Vec<u8>,
}

impl std::fmt::Debug for BlockPacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockPacker").finish_non_exhaustive()
    }
}

impl BlockPacker {
    /// Packs at this zstd level.
    pub fn new(level: i32) -> Self {
        Self { zstd: Compressor::new(level).ok(), scratch: Vec::new() }
    }

    /// A block, header and payload. `split_offsets` are ascending offsets in the payload where its
    /// statistics change.
    pub fn encode_block(&mut self, kind: BlockKind, payload: &[u8], split_offsets: &[usize]) -> Vec<u8> {
        let mut stored = Vec::with_capacity(payload.len() / 2);
        let mut begin = 0;
        for end in split_offsets.iter().copied().chain([payload.len()]) {
            let is_large = end >= begin + MIN_PIECE_BYTES || end == payload.len();
            if let Some(piece) = payload.get(begin..end).filter(|piece| is_large && !piece.is_empty()) {
                self.put(&mut stored, piece);
                begin = end;
            }
        }
        if stored.len() < payload.len() {
            frame(kind, ENCODING_PIECES, &stored, payload.len())
        } else {
            encode_raw_block(kind, payload)
        }
    }

    fn put(&mut self, stored: &mut Vec<u8>, piece: &[u8]) {
        let mut head = |form: u8| {
            stored.push(form);
            put_varint(stored, piece.len() as u64);
        };
        if piece.len() > 2 && piece.iter().all(|byte| *byte == piece[0]) {
            head(REPEATED);
            stored.push(piece[0]);
            return;
        }
        if let Some(packed) = self.packed(piece) {
            stored.push(ZSTD);
            put_varint(stored, piece.len() as u64);
            put_varint(stored, packed.len() as u64);
            stored.extend_from_slice(packed);
            return;
        }
        head(RAW);
        stored.extend_from_slice(piece);
    }

    /// The zstd frame of a piece; `None` if that is not smaller.
    fn packed(&mut self, piece: &[u8]) -> Option<&[u8]> {
        let zstd = self.zstd.as_mut().filter(|_| piece.len() >= MIN_PACKED_BYTES)?;
        self.scratch.clear();
        self.scratch.reserve(zstd::zstd_safe::compress_bound(piece.len()));
        let len = zstd.compress_to_buffer(piece, &mut self.scratch).ok()?;
        (len < piece.len()).then_some(&self.scratch[..])
    }
}

/// Unpacks pieces; `None` if they are damaged or their length is not `raw_len`. Allocates
/// `raw_len`.
#[doc(hidden)]
pub fn unpack_pieces(stored: &[u8], raw_len: usize) -> Option<Vec<u8>> {
    let mut raw = vec![0; raw_len];
    unpack_pieces_into(stored, &mut Decompressor::new().ok()?, &mut raw).map(|()| raw)
}

/// Unpacks pieces that fill `rest` exactly; `None` if they are damaged or of another length.
pub(super) fn unpack_pieces_into(
    stored: &[u8],
    zstd: &mut Decompressor<'_>,
    mut rest: &mut [u8],
) -> Option<()> {
    let mut cursor = Cursor::new(stored);
    while !cursor.is_empty() {
        let form = cursor.byte().ok()?;
        let len = usize::try_from(cursor.varint().ok()?).ok()?;
        let (piece, after) = rest.split_at_mut_checked(len)?;
        rest = after;
        match form {
            RAW => piece.copy_from_slice(cursor.take(len).ok()?),
            ZSTD => {
                let packed = cursor.bytes().ok()?;
                if zstd.decompress_to_buffer(packed, piece).ok()? != len {
                    return None;
                }
            }
            REPEATED => piece.fill(cursor.byte().ok()?),
            _ => return None,
        }
    }
    rest.is_empty().then_some(())
}

#[cfg(test)]
mod tests {
    use super::super::{BLOCK_HEADER_BYTES, BlockHeader};
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn unpacked(block: &[u8]) -> Vec<u8> {
        let (header, stored) = block.split_at(BLOCK_HEADER_BYTES);
        BlockHeader::decode(header.try_into().unwrap()).unwrap().unpack(stored).unwrap()
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "calls libzstd")]
        fn payload_round_trips_wherever_it_is_split(
            runs in vec((0u8..4, 1usize..6000), 0..9), noise: Vec<u8>, split_offsets in vec(any::<prop::sample::Index>(), 0..9),
        ) {
            let mut payload: Vec<u8> = runs.iter().flat_map(|(byte, len)| vec![*byte; *len]).collect();
            payload.extend(noise);
            let mut split_offsets: Vec<usize> = split_offsets.iter().map(|cut| cut.index(payload.len() + 1)).collect();
            split_offsets.sort_unstable();
            let block = BlockPacker::new(3).encode_block(BlockKind::EVENTS, &payload, &split_offsets);
            prop_assert_eq!(unpacked(&block), payload);
        }

        #[test]
        #[cfg_attr(miri, ignore = "calls libzstd")]
        fn arbitrary_pieces_unpack_to_raw_len_or_are_refused(stored: Vec<u8>, raw_len in 0usize..1000) {
            let raw = unpack_pieces(&stored, raw_len);
            prop_assert!(raw.is_none_or(|raw| raw.len() == raw_len));
        }
    }

    #[test]
    fn repeated_byte_takes_five_bytes() {
        let block = BlockPacker::new(3).encode_block(BlockKind::EVENTS, &vec![7; 100_000], &[]);
        assert_eq!(block.len(), BLOCK_HEADER_BYTES + 5);
        assert_eq!(unpacked(&block), vec![7; 100_000]);
    }
}
