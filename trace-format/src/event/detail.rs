//! What PyTorch's own tracker adds to the event of a block, and where it lies in the record.
//!
//! Constraint: it must not cost a second cache line: each one that the writer thread has read is a miss for the program.
//! Consequence: it lies in bits that the fields of a block do not need, and bit 6 of the flags says so:
//!
//! ```text
//! words 2, 3, 4   bits 48 to 63: bits 0 to 15, 16 to 31, 32 to 47 of the stream
//! word 5          bits 48 to 63: pool: 0xffff unknown; else bit 15: first half of the id, 14 to 0: that half (the other is 0)
//! word 7          api 8 | result 16: size - requested, low 8 bits in api
//! ```
//! What does not fit there goes into a record of its own, right before the event's ([`EventKind::DETAIL`]).

use super::{ApiId, Event, EventKind, NO_POOL, RECORD_WORDS, STATE_DONE};

/// What PyTorch's allocator tells its trackers about a block, beside what it tells everybody.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Detail {
    /// What was asked for, before rounding.
    pub requested_bytes: u64,
    /// The stream the block belongs to.
    pub stream: u64,
    /// The pool: both halves of PyTorch's id, the first in the high 32 bits. 0 is the default pool.
    pub pool: u64,
}

impl Detail {
    /// The record that stands in a ring right before its event.
    pub fn to_words(self) -> [u64; RECORD_WORDS] {
        let kind = u64::from(EventKind::DETAIL.0) | u64::from(STATE_DONE) << 48;
        [self.requested_bytes, self.stream, self.pool, 0, 0, 0, 0, kind]
    }

    /// Reads [`Self::to_words`].
    pub(crate) fn from_words(words: &[u64; RECORD_WORDS]) -> Self {
        Self { requested_bytes: words[0], stream: words[1], pool: words[2] }
    }
}

/// What we see of PyTorch's allocator, and if it is not everything, why: aux0 of [`EventKind::TRACKER`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u64)]
pub enum TrackerState {
    /// Attached: everything.
    Attached = 1,
    /// A version whose fields we do not know.
    UnknownVersion = 2,
    /// This version of PyTorch has no tracker.
    NoTracker = 3,
    /// The library cannot be read, or has not the symbols that every wheel has.
    Unreadable = 4,
    /// Another allocator than the native one: each tensor is a call of the driver, or the program's own affair.
    OtherAllocator = 5,
    /// The cache is switched off: each tensor is a call of the driver.
    CacheOff = 6,
    /// What the tracker said first was not what the allocator reported.
    Disagreed = 7,
    /// The user asked for it not to be attached.
    NotWanted = 8,
    /// Tensors are served by our own caching allocator, which tells the same things itself.
    OwnAllocator = 9,
}

impl TrackerState {
    /// The name that reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::UnknownVersion => "unknown_version",
            Self::NoTracker => "no_tracker",
            Self::Unreadable => "unreadable",
            Self::OtherAllocator => "other_allocator",
            Self::CacheOff => "cache_off",
            Self::Disagreed => "disagreed",
            Self::NotWanted => "not_wanted",
            Self::OwnAllocator => "own_allocator",
        }
    }

    /// The state of this number, if this version knows it.
    pub fn from_number(number: u64) -> Option<Self> {
        use TrackerState::{
            Attached, CacheOff, Disagreed, NoTracker, NotWanted, OtherAllocator, OwnAllocator,
            UnknownVersion, Unreadable,
        };
        let all = [
            Attached,
            UnknownVersion,
            NoTracker,
            Unreadable,
            OtherAllocator,
            CacheOff,
            Disagreed,
            NotWanted,
            OwnAllocator,
        ];
        all.into_iter().find(|state| *state as u64 == number)
    }
}

/// A detail as it lies in a block's record.
pub(super) struct PackedDetail {
    pub(super) high_bits: [u16; 4],
    pub(super) rounding: u32,
}

/// Flag of a ring record: there is a detail in it. Never in [`Event::flags`], as bit 7.
pub(super) const HAS_DETAIL: u8 = 0x40;
/// Addresses and sizes need less.
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
