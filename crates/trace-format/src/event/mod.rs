//! One event, and its 64-byte record in a ring.
//!
//! The hook writes a record with plain stores and no allocation, and a reader may find it half
//! written after a kill. So a record is one cache line with every field at a fixed place, and its
//! last word, which is written last, says whether the record is complete.
//!
//! ```text
//! word 0  seq            place in the global order; NO_SEQ while unknown
//! word 1  time_ns        CLOCK_MONOTONIC
//! word 2  addr           address on the device, or in host memory
//! word 3  size           bytes
//! word 4  aux0           by kind, see EventKind
//! word 5  aux1           by kind
//! word 6  python stack (low 32 bits) | native stack (high 32 bits)
//! word 7  kind 8 | device 8 | api 8 | flags 8 | result 16 | state 16      (low bits first; written last)
//! ```
//!
//! [`Detail`] describes what PyTorch's tracker adds to a block and where it is stored
//! (`detail.rs`).

use crate::ids::{ApiId, NodeId, ThreadId};

mod detail;
mod kind;
mod kind_table;
mod tracker_state;

pub use detail::Detail;
use detail::{HAS_DETAIL, HIGH_BITS_AT};
pub use kind::{EventKind, EventKindRow};
pub use tracker_state::TrackerState;

/// `Event::seq` of a driver call that was in flight when the process died: it has no place in the
/// order.
pub const NO_SEQ: u64 = u64::MAX;
/// `Event::device` when the ordinal is unknown.
pub const NO_DEVICE: u8 = 0xff;
/// Words in one raw record.
pub const RECORD_WORDS: usize = 8;
/// Bytes in one raw record.
pub const RECORD_BYTES: usize = RECORD_WORDS * 8;

/// `Event::flags`: the size was computed from the request, because the driver did not report it.
pub const FLAG_ESTIMATED: u8 = 1;
/// `Event::flags`: the object has no memory of its own; memory is mapped into it (sparse and
/// deferred arrays).
pub const FLAG_UNBACKED: u8 = 2;
/// `Event::flags`: the call was captured into a graph and did not run.
pub const FLAG_CAPTURED: u8 = 4;
/// `Event::flags` of an allocation from a pool or of an allocation node: the memory is on the host.
pub const FLAG_HOST: u8 = 8;
/// `Event::flags` of an allocation from a pool or of an allocation node: the memory is managed.
pub const FLAG_MANAGED: u8 = 0x20;
/// `Event::flags` of a `block_free`: the block was available at once, no other stream was using it.
pub const FLAG_FREED_AT_ONCE: u8 = 1;
/// `Event::flags` of events of PyTorch's allocator: the event describes memory that existed before
/// the first recorded event.
pub const FLAG_EXISTED: u8 = 0x10;

/// `Detail::pool` where this version of PyTorch does not report the pool.
pub const NO_POOL: u64 = u64::MAX;

/// Packs both halves of PyTorch's `MempoolId_t` into one number. [`NO_POOL`] if a half needs more
/// than 32 bits: both are counters from 1, and one of them is 0.
#[inline]
pub fn pack_pool_id(first: u64, second: u64) -> u64 {
    match (u32::try_from(first), u32::try_from(second)) {
        (Ok(first), Ok(second)) => u64::from(first) << 32 | u64::from(second),
        _ => NO_POOL,
    }
}

/// aux0 of a [`EventKind::MARK`]: a step begins.
pub const MARK_STEP: u64 = 1;
/// aux0 of a [`EventKind::MARK`]: a named moment. aux1 is the code id of its name.
pub const MARK_NAMED: u64 = 2;

/// aux1 of a [`EventKind::MEMORY_SAMPLE`]: the program called the driver.
pub const SAMPLE_SOURCE_PROGRAM: u64 = 0;
/// aux1 of a [`EventKind::MEMORY_SAMPLE`]: the recorder called the driver, right after a call that
/// takes memory.
pub const SAMPLE_SOURCE_RECORDER: u64 = 1;
/// aux1 of a [`EventKind::MEMORY_SAMPLE`] from NVML: `size` is what this process uses, with its
/// contexts and code; aux0 is 0.
pub const SAMPLE_SOURCE_NVML: u64 = 2;

/// aux1 of a [`EventKind::TORCH_MEMORY`]: reported by `torch.mps`.
pub const TORCH_MPS: u64 = 1;
/// A number of a [`EventKind::TORCH_MEMORY`] that PyTorch did not report.
pub const NOT_REPORTED: u64 = u64::MAX;

/// State of a record that is complete.
pub const STATE_DONE: u16 = 1;
/// Record state: the driver call has begun and has not returned.
#[doc(hidden)]
pub const STATE_IN_FLIGHT: u16 = 2;
/// Record state: the driver call was left without a return, by a jump, an exception or the end of
/// its thread. Nothing will complete the record.
#[doc(hidden)]
pub const STATE_LEFT: u16 = 3;

/// An allocation, a free, a driver call or a report of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Place in the order of the whole process. Dense from 0, so a missing number is a lost event.
    pub seq: u64,
    /// Nanoseconds of `CLOCK_MONOTONIC` when the event was recorded.
    pub time_ns: u64,
    /// The thread that made the call.
    pub thread: ThreadId,
    /// What happened; says what `addr`, `size` and `aux` mean.
    pub kind: EventKind,
    /// Device ordinal as the program sees it, or [`NO_DEVICE`].
    pub device: u8,
    /// The function that was called.
    pub api: ApiId,
    /// By kind: [`FLAG_ESTIMATED`] and the others. Bits 6 and 7 are clear: files and rings use
    /// them.
    pub flags: u8,
    /// `CUresult` of a driver call, 0 is success; 0 for all other kinds.
    pub result: u16,
    /// The call did not return: `result`, and `addr` of an allocation, are unknown.
    pub in_flight: bool,
    /// Address, or a handle, by kind.
    pub addr: u64,
    /// Bytes; which ones depends on the kind.
    pub size: u64,
    /// Two numbers, by kind.
    pub aux: [u64; 2],
    /// Innermost Python frame, or [`NodeId::NONE`].
    pub python_stack: NodeId,
    /// Innermost native frame, or [`NodeId::NONE`].
    pub native_stack: NodeId,
    /// What PyTorch's tracker adds to a block; `None` without a tracker.
    pub detail: Option<Detail>,
}

impl Event {
    /// An event of a kind, with every other field zero or unknown.
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

    /// The record in a ring. The thread is not in it, as a ring belongs to one thread. A detail is
    /// in it unless [`Self::separate_detail_record`] returns one.
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

    /// The detail as a record of its own, to be written right before the event's. `None` if there
    /// is no detail or if the event's record holds it.
    #[inline]
    pub fn separate_detail_record(&self) -> Option<[u64; RECORD_WORDS]> {
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

    /// Decodes a record. `None` if it was never begun, or if its kind exists only in a ring.
    pub fn from_words(words: &[u64; RECORD_WORDS], thread: ThreadId) -> Option<Self> {
        let last = words[7];
        let kind = EventKind(last as u8);
        let state = (last >> 48) as u16;
        if kind.is_ring_only() || !matches!(state, STATE_DONE | STATE_IN_FLIGHT | STATE_LEFT) {
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
            in_flight: state != STATE_DONE,
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
