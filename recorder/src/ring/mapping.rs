//! The memory-mapped ring file, which survives the process.
//!
//! Hooks store to the mapping with plain instructions while the writer thread reads it. Neither a
//! full disk nor a fork may turn a store into a signal. So the disk blocks of a ring are allocated
//! before the ring is used, and children do not inherit the mapping. File systems that copy on
//! write need new blocks for a store, so their files are not mapped. All access is by atomics, at
//! the offsets that `gpumemtrace_format::ring` defines. If the file cannot be mapped or must be
//! given up, the same addresses hold anonymous memory.
//!
//! A store also raises a signal if another process has truncated the file. So every access first
//! asks [`RingMapping::is_safe_at`] or [`RingMapping::is_intact`].

mod file_check;
mod truncation_guard;

pub(crate) use file_check::RingFileState;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use gpumemtrace_format::event::{RECORD_BYTES, RECORD_WORDS};
use gpumemtrace_format::ring::{
    COUNTERS_AGAIN_AT, COUNTERS_AT, END_AT, END_TIME_AT, NEXT_SEQ_AT, PAGE_BYTES, RING_HEAD_AT,
    RING_RECORDS_AT, RING_TAIL_AGAIN_AT, RING_TAIL_AT, RING_THREAD_AT, RingLayout, TRACE_BYTES_AT,
    decode_end_word, encode_end_word, encode_header, ring_bytes, seal, seal_completing, unseal,
};
use gpumemtrace_format::{Counter, EndReason};

use crate::platform;
use crate::platform::clock;
use crate::platform::guarded_file::GuardedFile;
use crate::platform::signals::without_write_signals;
use crate::ring::geometry::{RINGS, shape_within};
use crate::ring::protocol::ring::RingWords;
use file_check::{FIXED_HEADER_BYTES, SavedPage};
use truncation_guard::TruncationGuard;

/// Offsets in page 0 of both copies of the counters.
const COUNTER_COPIES_AT: [usize; 2] = [COUNTERS_AT, COUNTERS_AGAIN_AT];

/// The mapped ring file of a session. Never unmapped: a thread may be inside a hook at any time.
#[derive(Debug)]
pub(crate) struct RingMapping {
    base: *mut u8,
    file: GuardedFile,
    /// The file is sparse: a ring takes disk space when a thread first uses it.
    shape: RingLayout,
    /// The mapping is anonymous memory, not the file: its content dies with the process.
    is_memory: AtomicBool,
    /// Why the rings are in anonymous memory, in the user's words.
    memory_reason: OnceLock<&'static str>,
    /// Rings with disk space. Other rings may not even be read: on a full tmpfs that raises a
    /// signal too.
    is_allocated: [AtomicBool; RINGS],
    /// The header as it was written.
    header: [u8; FIXED_HEADER_BYTES],
    guard: TruncationGuard,
    saved: SavedPage,
}

// SAFETY: the mapping is shared memory that all threads touch through atomics only.
unsafe impl Send for RingMapping {}
// SAFETY: as above.
unsafe impl Sync for RingMapping {}

/// One ring of the mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedRing {
    base: *mut u8,
    /// Capacity in records minus one, used as a mask.
    last_slot: u64,
}

// SAFETY: points into `Shared`, which is never unmapped.
unsafe impl Send for MappedRing {}
// SAFETY: all access is by atomics.
unsafe impl Sync for MappedRing {}

/// Returns `EFBIG` if the process's limit on file sizes is below the size of the ring file.
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
    /// Sets the size of the file, maps it and writes its header.
    ///
    /// `memory_bytes` is the memory limit of the recorder. A file system without shared mappings
    /// gives anonymous memory instead; [`Self::is_memory`] then returns true.
    pub(crate) fn create(
        file: GuardedFile,
        trace_id: [u8; 16],
        pid: u32,
        memory_bytes: u64,
    ) -> io::Result<Self> {
        let shape = shape_within(memory_bytes);
        let len = shape.file_bytes() as usize;
        file.with(|file| file.set_len(len as u64))?;
        file.with(|file| platform::allocate_file_range(file, 0, PAGE_BYTES))?;
        let memory_reason = OnceLock::new();
        let mapped = if file.with(|file| Ok(platform::copies_on_write(file)))? {
            let _ = memory_reason
                .set("its file system copies on write and cannot reserve space for the ring file");
            None
        } else {
            match file.with(|file| map_file(file, len)) {
                Ok(base) => Some(base),
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => return Err(error),
                // Some file systems have no shared mappings.
                Err(_) => None,
            }
        };
        let is_memory = mapped.is_none();
        let base = mapped.map_or_else(|| map_anonymous(len), Ok)?;
        // A child must not write into its parent's trace. Old kernels refuse; the child's session
        // is reset anyway.
        // SAFETY: exactly the mapping made above.
        unsafe { platform::hide_from_children(base, len) };
        let header = encode_header(trace_id, pid, &shape);
        // SAFETY: page 0 is allocated, and no other thread knows the mapping yet.
        unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), base, header.len()) };
        let mut fixed_header = [0; FIXED_HEADER_BYTES];
        fixed_header.copy_from_slice(&header[..FIXED_HEADER_BYTES]);
        let guard = TruncationGuard::new(clock::now_ns(), platform::lease_break_ns());
        if is_memory {
            guard.set_safe_for_good();
        }
        Ok(Self {
            base,
            file,
            shape,
            is_memory: AtomicBool::new(is_memory),
            memory_reason,
            is_allocated: [const { AtomicBool::new(false) }; RINGS],
            header: fixed_header,
            guard,
            saved: SavedPage::empty(),
        })
    }

    /// Unmaps the file. No other thread may know the mapping.
    pub(crate) fn unmap(&self) {
        // SAFETY: exactly our mapping; by the caller's promise no other thread uses it.
        unsafe { libc::munmap(self.base.cast(), self.len_bytes()) };
    }

    fn len_bytes(&self) -> usize {
        self.shape.file_bytes() as usize
    }

    /// Capacity of the largest ring, in records.
    pub(crate) fn largest_ring_records(&self) -> usize {
        self.offset_and_records(0).1 as usize
    }

    /// Offset and capacity (in records) of a ring.
    fn offset_and_records(&self, index: usize) -> (usize, u32) {
        let (at, records) = self.shape.ring(index).unwrap_or((PAGE_BYTES as u64, 0));
        (at as usize, records)
    }

    /// Offset and length of a ring, in bytes.
    fn span(&self, index: usize) -> (usize, usize) {
        let (at, records) = self.offset_and_records(index);
        (at, ring_bytes(records) as usize)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is one of the aligned offsets inside page 0; the mapping is never unmapped.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    /// The counter that gives each event of the process its sequence number.
    #[inline]
    pub(crate) fn next_seq(&self) -> &AtomicU64 {
        self.word(NEXT_SEQ_AT)
    }

    #[inline]
    pub(crate) fn counter(&self, counter: Counter) -> u64 {
        self.word(COUNTERS_AT + 8 * counter as usize).load(Ordering::Relaxed)
    }

    /// Adds one to a counter.
    #[inline]
    pub(crate) fn count(&self, counter: Counter) {
        self.add_count(counter, 1);
    }

    /// Adds `times` to a counter and to its copy, which readers of the file compare.
    #[inline]
    pub(crate) fn add_count(&self, counter: Counter, times: u64) {
        if !self.is_intact() {
            self.saved.count_late(counter, times);
            return;
        }
        for at in COUNTER_COPIES_AT {
            self.word(at + 8 * counter as usize).fetch_add(times, Ordering::Relaxed);
        }
    }

    /// Stores how the process ends, for a reader that finds only the ring file.
    pub(crate) fn set_end(&self, kind: u32, status: i32, time_ns: u64) {
        if !self.is_intact() {
            return;
        }
        self.word(END_TIME_AT).store(time_ns, Ordering::Relaxed);
        self.word(END_AT).store(encode_end_word(kind, status, time_ns), Ordering::Release);
    }

    /// The end that [`Self::set_end`] stored, with its time.
    pub(crate) fn stored_end(&self) -> Option<(EndReason, u64)> {
        let end = self.word(END_AT).load(Ordering::Acquire);
        let time_ns = self.word(END_TIME_AT).load(Ordering::Relaxed);
        Some((decode_end_word(end, time_ns)?, time_ns))
    }

    /// Stores the length of the trace file, so that a reader detects a truncated one. 0 means
    /// unknown.
    pub(crate) fn set_trace_bytes(&self, bytes: u64) {
        if self.is_intact() {
            self.word(TRACE_BYTES_AT).store(bytes, Ordering::Release);
        }
    }

    /// True if the content of the rings dies with the process.
    pub(crate) fn is_memory(&self) -> bool {
        self.is_memory.load(Ordering::Acquire)
    }

    /// Why the rings are in anonymous memory. `None` while they are in the file.
    pub(crate) fn memory_reason(&self) -> Option<&'static str> {
        self.is_memory()
            .then(|| self.memory_reason.get().copied().unwrap_or("its file system cannot map files"))
    }

    /// The ring file, for operations other than loads and stores.
    pub(crate) fn file(&self) -> &GuardedFile {
        &self.file
    }

    /// Overwrites the header of the file after its content has moved, so that no reader uses the
    /// file.
    pub(crate) fn invalidate_file(&self) -> io::Result<()> {
        self.file.with(|file| file.write_all_at(&[0; 64], 0))
    }

    /// True if `path` still names the ring file.
    pub(crate) fn is_file_at(&self, path: &Path) -> bool {
        self.file.is_at(path)
    }

    /// The ring with number `index`, which must be below [`RINGS`].
    pub(crate) fn ring(&self, index: usize) -> MappedRing {
        debug_assert!(index < RINGS);
        let (at, records) = self.offset_and_records(index);
        // SAFETY: inside the mapping for every index below RINGS.
        let base = unsafe { self.base.add(at) };
        MappedRing { base, last_slot: u64::from(records) - 1 }
    }

    /// True if ring `index` may be read and written.
    fn is_allocated(&self, index: usize) -> bool {
        self.is_allocated[index].load(Ordering::Acquire)
    }

    /// Allocates disk space for a ring, so that storing to it cannot fail.
    pub(crate) fn allocate_ring(&self, index: usize) -> io::Result<()> {
        if !self.is_allocated(index) {
            self.allocate_disk_space(index)?;
            self.is_allocated[index].store(true, Ordering::Release);
        }
        Ok(())
    }

    fn allocate_disk_space(&self, index: usize) -> io::Result<()> {
        if self.is_memory() {
            return Ok(());
        }
        let (at, len) = self.span(index);
        // The program may have lowered its limit on file sizes since the start.
        let result =
            without_write_signals(|| self.file.with(|file| platform::allocate_file_range(file, at, len)));
        match result.as_ref().map_err(io::Error::raw_os_error) {
            // The program closed our descriptor, and our own lease prevents opening the file again.
            // SAFETY: a part of our mapping.
            Err(Some(libc::EWOULDBLOCK) | None) => unsafe {
                platform::populate_for_writing(self.base.add(at), len)
            },
            _ => result,
        }
    }
}

fn map_file(file: &File, len: usize) -> io::Result<*mut u8> {
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

fn map_anonymous(len: usize) -> io::Result<*mut u8> {
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
    /// The id of the thread that owns the ring; 0 if it was never used.
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
    fn tail_copy(&self) -> &AtomicU64 {
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
