//! What PyTorch's tracker adds to the event of a block, and where a ring record stores it.
//!
//! A detail must not cost a second cache line: each line that the writer thread has read is a cache
//! miss for the program. So it uses bits that a block's fields do not need, and bit 6 of the flags
//! says so:
//!
//! ```text
//! words 2, 3, 4   bits 48 to 63: bits 0 to 15, 16 to 31, 32 to 47 of the stream
//! word 5          bits 48 to 63: pool: 0xffff unknown; else bits 0 to 14 are one half of the id, the
//!                 other is 0: the first half if bit 15 is set, else the second
//! word 7          api 8 | result 16: size - requested, low 8 bits in api
//! ```
//! A detail that does not fit is a record of its own, right before the event's
//! ([`EventKind::DETAIL`]).

use super::{ApiId, Event, EventKind, NO_POOL, RECORD_WORDS, STATE_DONE};

/// What PyTorch's allocator reports to its trackers about a block, beyond address and size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Detail {
    /// Bytes requested, before rounding.
    pub requested_bytes: u64,
    /// The stream the block belongs to.
    pub stream: u64,
    /// See [`super::pack_pool_id`]; 0 is the default pool, [`NO_POOL`] unknown.
    pub pool: u64,
}

impl Detail {
    /// The record of its own, to be written right before the event's.
    pub fn to_words(self) -> [u64; RECORD_WORDS] {
        let kind = u64::from(EventKind::DETAIL.0) | u64::from(STATE_DONE) << 48;
        [self.requested_bytes, self.stream, self.pool, 0, 0, 0, 0, kind]
    }

    /// Decodes what [`Self::to_words`] encodes.
    pub(crate) fn from_words(words: &[u64; RECORD_WORDS]) -> Self {
        Self { requested_bytes: words[0], stream: words[1], pool: words[2] }
    }
}

/// A detail in the bits of a block's record.
pub(super) struct PackedDetail {
    pub(super) high_bits: [u16; 4],
    pub(super) rounding: u32,
}

/// Flag of a ring record: it holds a detail. Never set in [`Event::flags`].
pub(super) const HAS_DETAIL: u8 = 0x40;
/// Addresses and sizes need fewer bits.
pub(super) const HIGH_BITS_AT: u32 = 48;
pub(super) const POOL_UNKNOWN: u16 = 0xffff;
pub(super) const POOL_IS_FIRST: u16 = 0x8000;

impl Event {
    #[inline]
    pub(super) fn packed_detail(&self) -> Option<PackedDetail> {
        let detail = self.detail?;
        let rounding = self.size.wrapping_sub(detail.requested_bytes);
        let (first, second) = (detail.pool >> 32, detail.pool & 0xffff_ffff);
        let pool = match (first, second) {
            _ if detail.pool == NO_POOL => POOL_UNKNOWN,
            (0, id) if id < u64::from(POOL_IS_FIRST) => id as u16,
            (id, 0) if id < u64::from(POOL_IS_FIRST) - 1 => id as u16 | POOL_IS_FIRST,
            _ => return None,
        };
        let is_free = self.addr | self.size | self.aux[0] | self.aux[1] | detail.stream;
        let fits = is_free >> HIGH_BITS_AT == 0 && rounding >> 24 == 0 && self.api.0 == 0 && self.result == 0;
        let stream = [0, 16, 32].map(|shift| (detail.stream >> shift) as u16);
        let high_bits = [stream[0], stream[1], stream[2], pool];
        fits.then_some(PackedDetail { high_bits, rounding: rounding as u32 })
    }

    pub(super) fn unpack_detail(&mut self, words: &[u64; RECORD_WORDS]) {
        const LOW: u64 = (1 << HIGH_BITS_AT) - 1;
        let rounding = u64::from(self.api.0) | u64::from(self.result) << 8;
        (self.api, self.result) = (ApiId(0), 0);
        self.addr &= LOW;
        self.size &= LOW;
        self.aux = self.aux.map(|aux| aux & LOW);
        let [low, middle, high, pool] = [2, 3, 4, 5].map(|word: usize| words[word] >> HIGH_BITS_AT);
        self.detail = Some(Detail {
            requested_bytes: self.size.saturating_sub(rounding),
            stream: low | middle << 16 | high << 32,
            pool: match pool as u16 {
                POOL_UNKNOWN => NO_POOL,
                id if id & POOL_IS_FIRST != 0 => u64::from(id & !POOL_IS_FIRST) << 32,
                id => u64::from(id),
            },
        });
    }
}
