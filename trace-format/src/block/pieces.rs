//! A payload in pieces, each packed by itself.
//!
//! Constraint: zstd packs 128 KiB with one table of how often each byte comes, and one column's bytes are not like another's.
//! Consequence: whoever makes a payload says where in it something else begins, and a piece that is one byte over and over, as
//! most are, costs neither side a call of zstd.
//!
//! ```text
//! stored = piece*      piece = form:u8  unpacked:varint  then  0: the bytes; 1: length:varint, a zstd frame; 2: the one byte
//! ```

use zstd::bulk::{Compressor, Decompressor};

use super::{BlockKind, ENCODING_PIECES, encode_raw_block, frame};
use crate::wire::{Cursor, put_varint};

const AS_IT_IS: u8 = 0;
const ZSTD: u8 = 1;
const REPEATED: u8 = 2;
/// Less than this is not packed.
const WORTH_PACKING_BYTES: usize = 64;
/// Cuts that would leave less than this are not made: a call of zstd takes ten microseconds whatever it packs.
const SMALLEST_PIECE_BYTES: usize = 4096;

/// Packs blocks; keeps what zstd needs for it.
pub struct Packer {
    zstd: Option<Compressor<'static>>,
    scratch: Vec<u8>,
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packer").finish_non_exhaustive()
    }
}

impl Packer {
    /// Of a level of zstd.
    pub fn new(level: i32) -> Self {
        Self { zstd: Compressor::new(level).ok(), scratch: Vec::new() }
    }

    /// A block, ready to be written, whose payload may be cut at these ascending offsets.
    pub fn encode_block(&mut self, kind: BlockKind, payload: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut stored = Vec::with_capacity(payload.len() / 2);
        let mut begin = 0;
        for end in cuts.iter().copied().chain([payload.len()]) {
            let is_large = end >= begin + SMALLEST_PIECE_BYTES || end == payload.len();
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
        head(AS_IT_IS);
        stored.extend_from_slice(piece);
    }

    /// With zstd, where that makes it smaller.
    fn packed(&mut self, piece: &[u8]) -> Option<&[u8]> {
        let zstd = self.zstd.as_mut().filter(|_| piece.len() >= WORTH_PACKING_BYTES)?;
        self.scratch.clear();
        self.scratch.reserve(zstd::zstd_safe::compress_bound(piece.len()));
        let len = zstd.compress_to_buffer(piece, &mut self.scratch).ok()?;
        (len < piece.len()).then_some(&self.scratch[..])
    }
}

/// What is in the pieces, if it is so long. Allocates no more than that.
pub fn unpack_pieces(stored: &[u8], raw_len: usize) -> Option<Vec<u8>> {
    let mut raw = vec![0; raw_len];
    unpack(stored, &mut Decompressor::new().ok()?, &mut raw).map(|()| raw)
}

/// Puts what is in the pieces into `rest`, if it is so long.
pub(super) fn unpack(stored: &[u8], zstd: &mut Decompressor<'_>, mut rest: &mut [u8]) -> Option<()> {
    let mut cursor = Cursor::new(stored);
    while !cursor.is_empty() {
        let form = cursor.byte().ok()?;
        let len = usize::try_from(cursor.varint().ok()?).ok()?;
        let (piece, after) = rest.split_at_mut_checked(len)?;
        rest = after;
        match form {
            AS_IT_IS => piece.copy_from_slice(cursor.take(len).ok()?),
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
        fn a_payload_comes_back_wherever_it_is_cut(
            runs in vec((0u8..4, 1usize..6000), 0..9), noise: Vec<u8>, cuts in vec(any::<prop::sample::Index>(), 0..9),
        ) {
            let mut payload: Vec<u8> = runs.iter().flat_map(|(byte, len)| vec![*byte; *len]).collect();
            payload.extend(noise);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(payload.len() + 1)).collect();
            cuts.sort_unstable();
            let block = Packer::new(3).encode_block(BlockKind::EVENTS, &payload, &cuts);
            prop_assert_eq!(unpacked(&block), payload);
        }

        #[test]
        #[cfg_attr(miri, ignore = "calls libzstd")]
        fn any_bytes_are_unpacked_or_refused(stored: Vec<u8>, raw_len in 0usize..1000) {
            let raw = unpack_pieces(&stored, raw_len);
            prop_assert!(raw.is_none_or(|raw| raw.len() == raw_len));
        }
    }

    #[test]
    fn a_byte_over_and_over_costs_next_to_nothing() {
        let block = Packer::new(3).encode_block(BlockKind::EVENTS, &vec![7; 100_000], &[]);
        assert_eq!(block.len(), BLOCK_HEADER_BYTES + 5);
        assert_eq!(unpacked(&block), vec![7; 100_000]);
    }
}
