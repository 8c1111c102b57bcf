//! One event, and its 64-byte form in a ring.
//!
//! Constraint: the hook writes an event with plain stores and no allocation, and a reader may look at the same bytes
//! after the process was killed in the middle. Consequence: fixed size (one cache line), every field at a fixed place,
//! and one word, the last, that says whether the rest is complete.
//!
//! ```text
//! word 0  seq            place in the global order; NO_SEQ while unknown
//! word 1  time_ns        CLOCK_MONOTONIC
//! word 2  addr           device (or pinned host) address
//! word 3  size           bytes
//! word 4  aux0           by kind, see EventKind
//! word 5  aux1           by kind
//! word 6  python stack (low 32 bits) | native stack (high 32 bits)
//! word 7  kind 8 | device 8 | api 8 | flags 8 | result 16 | state 16      (low bits first; written last)
//! ```
//!
//! What PyTorch's tracker knows of a block lies between them (`event/detail.rs`).

use crate::defs::NodeId;

mod detail;
mod kind;

pub use detail::{Detail, TrackerState};
use detail::{HAS_DETAIL, HIGH_BITS_AT};
pub use kind::{EventKind, NOT_TOLD, TORCH_MPS, WITNESS_NVML, WITNESS_PROGRAM, WITNESS_RECORDER};

/// `Event::seq` of a driver call that was still running when the process died: it has no place in the order yet.
pub const NO_SEQ: u64 = u64::MAX;
/// `Event::device` when the ordinal could not be learned.
pub const NO_DEVICE: u8 = 0xff;
/// Words in one raw record.
pub const RECORD_WORDS: usize = 8;
/// Bytes in one raw record.
pub const RECORD_BYTES: usize = RECORD_WORDS * 8;

/// `Event::flags`: the size was computed from the request, because the driver did not tell it.
pub const FLAG_ESTIMATED: u8 = 1;
/// `Event::flags`: what was made has no memory of its own; memory is mapped into it (sparse and deferred arrays).
pub const FLAG_UNBACKED: u8 = 2;
/// `Event::flags`: the call was captured into a graph instead of being made.
pub const FLAG_CAPTURED: u8 = 4;
/// `Event::flags` of a `block_free`: the block was free at once, no other stream was still using it.
pub const FREED_AT_ONCE: u8 = 1;
/// `Detail::pool` where the version of PyTorch does not tell it.
pub const NO_POOL: u64 = u64::MAX;

/// A pool as events have it: both halves of PyTorch's `MempoolId_t` in one number. They are counters from 1, of which one is 0.
#[inline]
pub fn pool_number(first: u64, second: u64) -> u64 {
    match (u32::try_from(first), u32::try_from(second)) {
        (Ok(first), Ok(second)) => u64::from(first) << 32 | u64::from(second),
        _ => NO_POOL,
    }
}

/// aux0 of a [`EventKind::MARK`] that begins a step.
pub const MARK_STEP: u64 = 1;
/// aux0 of a [`EventKind::MARK`] that is a moment with a name: aux1, as of [`EventKind::RANGE_BEGIN`].
pub const MARK_NAMED: u64 = 2;
/// Record state: complete.
pub const STATE_DONE: u16 = 1;
/// Record state: the driver call has begun and has not returned.
pub const STATE_IN_FLIGHT: u16 = 2;

/// Operating-system thread id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ThreadId(pub u32);

/// Which entry point produced the event: an index into the `apis` list of the trace's metadata. 0 is "not an api".
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ApiId(pub u8);

/// One thing that happened. Sizes in bytes, times in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Place in the order of the whole process: dense from 0, so a missing number is a lost event.
    pub seq: u64,
    /// When.
    pub time_ns: u64,
    /// The thread that made the call.
    pub thread: ThreadId,
    /// What.
    pub kind: EventKind,
    /// Device ordinal as the program sees it, or [`NO_DEVICE`].
    pub device: u8,
    /// Entry point.
    pub api: ApiId,
    /// By kind: [`FLAG_ESTIMATED`] and its like of driver calls, [`FREED_AT_ONCE`]; bits 6 and 7 stay clear, files and rings use them.
    pub flags: u8,
    /// `CUresult` of a driver call; 0 is success, and always for PyTorch's events.
    pub result: u16,
    /// True when the call had not returned when the process died; `result`, and for an allocation `addr`, are unknown.
    pub in_flight: bool,
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
    /// By kind.
    pub aux: [u64; 2],
    /// Innermost Python frame; [`NodeId::NONE`] when there was none.
    pub python_stack: NodeId,
    /// Innermost native frame.
    pub native_stack: NodeId,
    /// What PyTorch's own tracker knows of a block; `None` where there is no tracker.
    pub detail: Option<Detail>,
}

impl Event {
    /// An event of which only the kind is known.
    #[inline]
    pub fn new(kind: EventKind) -> Self {
        Self {
            seq: NO_SEQ,
            time_ns: 0,
            thread: ThreadId(0),
            kind,
            device: NO_DEVICE,
            api: ApiId(0),
            flags: 0,
            result: 0,
            in_flight: false,
            addr: 0,
            size: 0,
            aux: [0; 2],
            python_stack: NodeId::NONE,
            native_stack: NodeId::NONE,
            detail: None,
        }
    }

    /// The ring form. The thread is not in it: a ring belongs to one thread. Nor is a detail that [`Self::detail_apart`] gives.
    #[inline]
    pub fn to_words(&self) -> [u64; RECORD_WORDS] {
        let mut words = self.plain_words();
        if let Some(packed) = self.packed_detail() {
            for (word, bits) in words[2..6].iter_mut().zip(packed.high_bits) {
                *word |= u64::from(bits) << HIGH_BITS_AT;
            }
            words[7] |= u64::from(packed.rounding & 0xff) << 16
                | u64::from(packed.rounding >> 8) << 32
                | u64::from(HAS_DETAIL) << 24;
        }
        words
    }

    /// The detail as a record of its own, to stand right before the event's: where it does not fit into that.
    #[inline]
    pub fn detail_apart(&self) -> Option<[u64; RECORD_WORDS]> {
        let detail = self.detail?;
        self.packed_detail().is_none().then(|| detail.to_words())
    }

    fn plain_words(&self) -> [u64; RECORD_WORDS] {
        let state = if self.in_flight { STATE_IN_FLIGHT } else { STATE_DONE };
        [
            self.seq,
            self.time_ns,
            self.addr,
            self.size,
            self.aux[0],
            self.aux[1],
            u64::from(self.python_stack.0) | u64::from(self.native_stack.0) << 32,
            u64::from(self.kind.0)
                | u64::from(self.device) << 8
                | u64::from(self.api.0) << 16
                | u64::from(self.flags & !HAS_DETAIL) << 24
                | u64::from(self.result) << 32
                | u64::from(state) << 48,
        ]
    }

    /// Reads the ring form; `None` when the record was never completed nor begun, or only carries a definition.
    pub fn from_words(words: &[u64; RECORD_WORDS], thread: ThreadId) -> Option<Self> {
        let last = words[7];
        let kind = EventKind(last as u8);
        let state = (last >> 48) as u16;
        if kind.is_definition() || !matches!(state, STATE_DONE | STATE_IN_FLIGHT) {
            return None;
        }
        let mut event = Self {
            seq: words[0],
            time_ns: words[1],
            thread,
            kind,
            device: (last >> 8) as u8,
            api: ApiId((last >> 16) as u8),
            flags: (last >> 24) as u8 & !HAS_DETAIL,
            result: (last >> 32) as u16,
            in_flight: state == STATE_IN_FLIGHT,
            addr: words[2],
            size: words[3],
            aux: [words[4], words[5]],
            python_stack: NodeId(words[6] as u32),
            native_stack: NodeId((words[6] >> 32) as u32),
            detail: None,
        };
        if (last >> 24) as u8 & HAS_DETAIL != 0 {
            event.unpack_detail(words);
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests;
