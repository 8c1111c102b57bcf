//! The memory that one thread owns while it records: ring producer, stack memos, caches, scratch
//! buffer.
//!
//! All blocks lie in one anonymous mapping, one block for each ring. A page costs nothing until it
//! is first touched, and all zero bytes are a valid block, so no block is ever initialised by hand.

use std::{io, ptr};

use gpumemtrace_format::CodeId;
use gpumemtrace_format::event::RECORD_WORDS;

use crate::ring::geometry::RINGS;
use crate::ring::mapping::MappedRing;
use crate::ring::protocol::ring;
use crate::stacks::cache::FrameKey;
use crate::stacks::native::NativeStack;
use crate::stacks::python::code::SCRATCH_BYTES;
use crate::stacks::python::memo::PythonStackMemo;

/// The producing end of a ring in the mapped ring file.
pub(crate) type ThreadRingProducer = ring::RingProducer<MappedRing, RECORD_WORDS>;

/// One thread's private part of the session. All zero bytes are a valid value.
#[derive(Debug)]
pub(crate) struct ThreadBlock {
    pub(crate) producer: ThreadRingProducer,
    pub(crate) python: PythonStackMemo,
    pub(crate) native: NativeStack,
    /// Code objects that this thread has defined.
    pub(crate) codes: CodeCache,
    /// Buffer into which a code object is copied.
    pub(crate) scratch: [u8; SCRATCH_BYTES],
}

/// Ids of code objects by address and tag. Direct-mapped: a colliding entry replaces the old one.
#[derive(Debug)]
pub(crate) struct CodeCache {
    entries: [(usize, u64, CodeId); CODE_ENTRIES],
}

const CODE_ENTRIES: usize = 1024;

impl CodeCache {
    fn entry(&mut self, frame: &FrameKey) -> &mut (usize, u64, CodeId) {
        let hash = (frame.code as u64 >> 4 ^ frame.tag).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &mut self.entries[(hash >> 40) as usize % CODE_ENTRIES]
    }

    /// The id under which this thread defined the code object of `frame`, unless it was replaced
    /// since.
    pub(crate) fn lookup(&mut self, frame: &FrameKey) -> Option<CodeId> {
        let (code, tag, id) = *self.entry(frame);
        (code == frame.code && tag == frame.tag).then_some(id)
    }

    pub(crate) fn insert(&mut self, frame: &FrameKey, id: CodeId) {
        *self.entry(frame) = (frame.code, frame.tag, id);
    }
}

/// The mapping that holds one [`ThreadBlock`] for each ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadBlocks(*mut ThreadBlock);

impl ThreadBlocks {
    pub(crate) fn map() -> io::Result<Self> {
        // SAFETY: a new private mapping; pages appear when first touched, all zero.
        let blocks = unsafe {
            libc::mmap(
                ptr::null_mut(),
                RINGS * size_of::<ThreadBlock>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if blocks == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self(blocks.cast())) }
    }

    /// Releases the mapping. No thread may hold a block.
    pub(crate) fn unmap(self) {
        // SAFETY: exactly the mapping of `map`; by the caller's promise no thread holds a part of
        // it.
        unsafe { libc::munmap(self.0.cast(), RINGS * size_of::<ThreadBlock>()) };
    }

    /// The block that belongs to ring `index`, which must be below [`RINGS`].
    pub(crate) fn block(self, index: usize) -> *mut ThreadBlock {
        debug_assert!(index < RINGS);
        // SAFETY: `index` is below RINGS, the length of the table.
        unsafe { self.0.add(index) }
    }
}
