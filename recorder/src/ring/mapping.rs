//! The mapped ring file: what survives the process.
//!
//! Constraint: the hook stores to it with plain instructions, the writer thread reads it concurrently, and neither a full
//! disk nor a fork may turn a store into a signal. Consequence: the blocks behind a ring are allocated on disk before the
//! ring is used; the mapping is not inherited by children; all access is by atomics at the offsets of
//! `gpumemtrace_format::ring`. Where the file cannot be mapped, or must be let go, the same addresses are plain memory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use gpumemtrace_format::event::{RECORD_BYTES, RECORD_WORDS};
use gpumemtrace_format::ring::{
    COUNTERS_AGAIN_AT, COUNTERS_AT, END_AT, END_TIME_AT, NEXT_SEQ_AT, PAGE_BYTES, RING_HEAD_AT,
    RING_RECORDS_AT, RING_TAIL_AGAIN_AT, RING_TAIL_AT, RING_THREAD_AT, Shape, TRACE_BYTES_AT, encode_header,
    end_of, end_word, ring_bytes, seal, seal_completing, unseal,
};
use gpumemtrace_format::{Counter, EndReason};

use crate::platform;
use crate::platform::guarded_file::GuardedFile;
use crate::platform::signals::without_write_signals;
use crate::ring::geometry::{RINGS, shape_within};
use crate::ring::protocol::ring::RingWords;

/// The mapping. Never unmapped: a thread may be in the hook at any time.
#[derive(Debug)]
pub(crate) struct RingMapping {
    base: *mut u8,
    file: GuardedFile,
    /// Sparse: a ring takes room on disk when a thread first uses it.
    shape: Shape,
    /// The mapping is not of the file (any more): what is in it dies with the process.
    is_memory: AtomicBool,
    /// Rings with room on disk. Others may not even be read: on a full tmpfs that raises a signal too.
    has_room: [AtomicBool; RINGS],
}

// SAFETY: the mapping is shared memory that is only touched through atomics, from any thread.
unsafe impl Send for RingMapping {}
// SAFETY: as above.
unsafe impl Sync for RingMapping {}

/// One ring of the mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedRing {
    base: *mut u8,
    /// Its records less one: a mask.
    last_slot: u64,
}

// SAFETY: points into `Shared`, which is never unmapped.
unsafe impl Send for MappedRing {}
// SAFETY: all access is by atomics.
unsafe impl Sync for MappedRing {}

/// Refuses to make files where the program's own limit is below what the ring file needs.
pub(crate) fn check_file_size_limit(memory_bytes: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the buffer is ours.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    if known && limit.rlim_cur < shape_within(memory_bytes).file_bytes() {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    Ok(())
}

impl RingMapping {
    /// Sizes, maps and heads the file. `memory_bytes`: what the recorder may need.
    pub(crate) fn create(
        file: GuardedFile,
        trace_id: [u8; 16],
        pid: u32,
        memory_bytes: u64,
    ) -> io::Result<Self> {
        let shape = shape_within(memory_bytes);
        let len = shape.file_bytes() as usize;
        file.with(|file| file.set_len(len as u64))?;
        file.with(|file| platform::allocate(file, 0, PAGE_BYTES))?;
        let (base, is_memory) = match file.with(|file| map(file, len)) {
            Ok(base) => (base, false),
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => return Err(error),
            // Some file systems have no shared mappings.
            Err(_) => (memory(len)?, true),
        };
        // A child must not write into its parent's trace. Refusal (old kernels) is harmless: the child's session is reset.
        // SAFETY: exactly the mapping made above.
        unsafe { platform::hide_from_children(base, len) };
        let header = encode_header(trace_id, pid, &shape);
        // SAFETY: page 0 is allocated and nobody else knows the mapping yet.
        unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), base, header.len()) };
        Ok(Self {
            base,
            file,
            shape,
            is_memory: AtomicBool::new(is_memory),
            has_room: [const { AtomicBool::new(false) }; RINGS],
        })
    }

    /// Gives the addresses back, when nobody has learned of them.
    pub(crate) fn unmap(&self) {
        // SAFETY: exactly our mapping; by the caller's word nobody uses it.
        unsafe { libc::munmap(self.base.cast(), self.len()) };
    }

    /// Length of the mapping.
    fn len(&self) -> usize {
        self.shape.file_bytes() as usize
    }

    /// Records in the largest ring.
    pub(crate) fn largest_ring(&self) -> usize {
        self.place(0).1 as usize
    }

    /// Where a ring begins, and its records.
    fn place(&self, index: usize) -> (usize, u32) {
        let (at, records) = self.shape.ring(index).unwrap_or((PAGE_BYTES as u64, 0));
        (at as usize, records)
    }

    /// Where a ring begins, and how many bytes it has.
    fn span(&self, index: usize) -> (usize, usize) {
        let (at, records) = self.place(index);
        (at, ring_bytes(records) as usize)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is one of the aligned offsets inside page 0; the mapping is never unmapped.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    /// The counter that orders all events of the process.
    #[inline]
    pub(crate) fn next_seq(&self) -> &AtomicU64 {
        self.word(NEXT_SEQ_AT)
    }

    /// One loss counter.
    #[inline]
    pub(crate) fn counter(&self, counter: Counter) -> u64 {
        self.word(COUNTERS_AT + 8 * counter as usize).load(Ordering::Relaxed)
    }

    /// Counts something.
    #[inline]
    pub(crate) fn count(&self, counter: Counter) {
        self.count_more(counter, 1);
    }

    /// Counts something so many times. Twice: a reader of the file compares.
    #[inline]
    pub(crate) fn count_more(&self, counter: Counter, times: u64) {
        for at in [COUNTERS_AT, COUNTERS_AGAIN_AT] {
            self.word(at + 8 * counter as usize).fetch_add(times, Ordering::Relaxed);
        }
    }

    /// Notes how the process ends, for a reader that finds nothing but this file.
    pub(crate) fn set_end(&self, kind: u32, status: i32, time_ns: u64) {
        self.word(END_TIME_AT).store(time_ns, Ordering::Relaxed);
        self.word(END_AT).store(end_word(kind, status, time_ns), Ordering::Release);
    }

    /// What [`Self::set_end`] noted.
    pub(crate) fn end_as_set(&self) -> Option<(EndReason, u64)> {
        let end = self.word(END_AT).load(Ordering::Acquire);
        let time_ns = self.word(END_TIME_AT).load(Ordering::Relaxed);
        Some((end_of(end, time_ns)?, time_ns))
    }

    /// Notes how long the file of the trace is, for who finds it shorter; 0 while that is changing.
    pub(crate) fn set_trace_bytes(&self, bytes: u64) {
        self.word(TRACE_BYTES_AT).store(bytes, Ordering::Release);
    }

    /// True if what is in the rings dies with the process.
    pub(crate) fn is_memory(&self) -> bool {
        self.is_memory.load(Ordering::Acquire)
    }

    /// The ring file, for what is not done through the mapping.
    pub(crate) fn file(&self) -> &GuardedFile {
        &self.file
    }

    /// Puts memory with the same content in place of the mapped file. Nobody may be in the middle of a store.
    pub(crate) fn move_to_memory(&self) -> io::Result<()> {
        if self.is_memory() {
            return Ok(());
        }
        let copy = memory(self.len())?;
        let used = (0..RINGS).filter(|index| self.has_room(*index));
        let parts = used.map(|index| self.span(index));
        // The first page last: who is not inside may still count in it.
        for (at, len) in parts.chain([(0, PAGE_BYTES)]) {
            // SAFETY: both mappings have this length and do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(self.base.add(at), copy.add(at), len) };
        }
        // SAFETY: moves a mapping that nobody else knows over one of the same length that is ours.
        unsafe { platform::move_over(copy, self.base, self.len()) }?;
        // SAFETY: exactly our mapping.
        unsafe { platform::hide_from_children(self.base, self.len()) };
        self.is_memory.store(true, Ordering::Release);
        Ok(())
    }

    /// What was in the file is in the trace or in memory now: no reader may take it for what the process left.
    pub(crate) fn spoil_file(&self) -> io::Result<()> {
        self.file.with(|file| file.write_all_at(&[0; 64], 0))
    }

    /// True if this path still names our file.
    pub(crate) fn is_file_at(&self, path: &Path) -> bool {
        self.file.is_at(path)
    }

    /// A ring. `index` is less than [`RINGS`].
    pub(crate) fn ring(&self, index: usize) -> MappedRing {
        debug_assert!(index < RINGS);
        let (at, records) = self.place(index);
        // SAFETY: inside the mapping for every index below RINGS.
        let base = unsafe { self.base.add(at) };
        MappedRing { base, last_slot: u64::from(records) - 1 }
    }

    /// True if a ring may be looked at.
    fn has_room(&self, index: usize) -> bool {
        self.has_room[index].load(Ordering::Acquire)
    }

    /// Makes sure the file system has room for a ring, so that storing to it cannot fail.
    pub(crate) fn allocate_ring(&self, index: usize) -> io::Result<()> {
        if !self.has_room(index) {
            self.make_room(index)?;
            self.has_room[index].store(true, Ordering::Release);
        }
        Ok(())
    }

    fn make_room(&self, index: usize) -> io::Result<()> {
        if self.is_memory() {
            return Ok(());
        }
        let (at, len) = self.span(index);
        // The limit on file sizes may have been lowered since the start.
        let result = without_write_signals(|| self.file.with(|file| platform::allocate(file, at, len)));
        match result.as_ref().map_err(io::Error::raw_os_error) {
            // The program closed our descriptor, and our own lease keeps us from opening the file again.
            // SAFETY: a part of our mapping.
            Err(Some(libc::EWOULDBLOCK) | None) => unsafe { platform::populate(self.base.add(at), len) },
            _ => result,
        }
    }
}

fn map(file: &File, len: usize) -> io::Result<*mut u8> {
    // SAFETY: a new mapping of our own file; nothing else is affected.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base.cast()) }
}

fn memory(len: usize) -> io::Result<*mut u8> {
    // SAFETY: a new private mapping; pages appear when first touched, all zero.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base.cast()) }
}

impl MappedRing {
    /// The thread that owns the ring; 0 if it was never used.
    pub(crate) fn thread(self) -> &'static AtomicU32 {
        // SAFETY: an aligned offset inside the ring.
        unsafe { AtomicU32::from_ptr(self.base.add(RING_THREAD_AT).cast()) }
    }
}

impl RingWords<RECORD_WORDS> for MappedRing {
    #[inline]
    fn capacity(&self) -> u64 {
        self.last_slot + 1
    }

    #[inline]
    fn head(&self) -> &AtomicU64 {
        // SAFETY: an aligned offset inside the ring.
        unsafe { AtomicU64::from_ptr(self.base.add(RING_HEAD_AT).cast()) }
    }

    #[inline]
    fn tail(&self) -> &AtomicU64 {
        // SAFETY: an aligned offset inside the ring.
        unsafe { AtomicU64::from_ptr(self.base.add(RING_TAIL_AT).cast()) }
    }

    #[inline]
    fn tail_again(&self) -> &AtomicU64 {
        // SAFETY: an aligned offset inside the ring.
        unsafe { AtomicU64::from_ptr(self.base.add(RING_TAIL_AGAIN_AT).cast()) }
    }

    #[inline]
    fn slot(&self, number: u64) -> &[AtomicU64; RECORD_WORDS] {
        let at = RING_RECORDS_AT + (number & self.last_slot) as usize * RECORD_BYTES;
        // SAFETY: inside the ring, 64-byte aligned; eight AtomicU64 have the layout of eight words.
        unsafe { &*self.base.add(at).cast() }
    }

    #[inline]
    fn seal(&self, number: u64, words: &[u64; RECORD_WORDS]) -> u64 {
        seal(words, number, self.thread().load(Ordering::Relaxed))
    }

    #[inline]
    fn seal_completing(&self, number: u64, words: &[u64; RECORD_WORDS]) -> u64 {
        seal_completing(words, number, self.thread().load(Ordering::Relaxed))
    }

    #[inline]
    fn unseal(&self, number: u64, words: &[u64; RECORD_WORDS]) -> Option<[u64; RECORD_WORDS]> {
        unseal(words, number, self.thread().load(Ordering::Relaxed))
    }
}
