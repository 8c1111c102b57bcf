//! Checks of the ring file behind the mapping, and the two ways to give the file up.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use gpumemtrace_format::Counter;
use gpumemtrace_format::ring::{NEXT_SEQ_AT, PAGE_BYTES};

use super::{COUNTER_COPIES_AT, RINGS, RingMapping, map_anonymous};
use crate::platform::cancellation::without_cancellation;
use crate::platform::{self, LeaseRequest, clock};

/// Bytes of the header that stay the same while the file is ours.
pub(super) const FIXED_HEADER_BYTES: usize = 48;

/// What a check of the ring file found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RingFileState {
    /// No other process can have changed it, now and for some time.
    Intact,
    /// Its size and header are unchanged, but another process may truncate it at any moment.
    Unprotected,
    /// Another process has truncated or replaced its content: an access to the mapping may fault.
    Damaged,
}

/// What is known of page 0 without touching the mapping.
#[derive(Debug)]
pub(super) struct SavedPage {
    next_seq: AtomicU64,
    counters: [AtomicU64; Counter::ALL.len()],
    /// Counts that came while the mapping could not be accessed.
    late: [AtomicU64; Counter::ALL.len()],
}

impl SavedPage {
    pub(super) fn empty() -> Self {
        Self {
            next_seq: AtomicU64::new(0),
            counters: [const { AtomicU64::new(0) }; Counter::ALL.len()],
            late: [const { AtomicU64::new(0) }; Counter::ALL.len()],
        }
    }

    pub(super) fn count_late(&self, counter: Counter, times: u64) {
        self.late[counter as usize].fetch_add(times, Ordering::Relaxed);
    }
}

impl RingMapping {
    /// True if the mapping may be accessed at `now_ns`, by the last check of the file.
    #[inline]
    pub(crate) fn is_safe_at(&self, now_ns: u64) -> bool {
        self.guard.is_safe_at(now_ns)
    }

    /// True if the mapping may be accessed now. Repeats the check if the last one is too old.
    pub(crate) fn is_intact(&self) -> bool {
        self.is_safe_at(clock::event_ns())
            || without_cancellation(|| self.check_file() == RingFileState::Intact)
    }

    /// Checks the file with system calls. Does not touch the mapping.
    pub(crate) fn check_file(&self) -> RingFileState {
        if self.is_memory() {
            return RingFileState::Intact;
        }
        let now_ns = clock::now_ns();
        if self.guard.has_lease() {
            match self.file.with(|file| Ok(platform::lease_request(file))) {
                // The kernel lets a process that waits to read in as a reader only.
                Ok(LeaseRequest::None | LeaseRequest::Read) => {
                    self.guard.renew(now_ns, true);
                    return RingFileState::Intact;
                }
                // A process waits to write, or has waited so long that the kernel let it go on.
                Ok(LeaseRequest::Write) if self.is_file_unchanged() => return RingFileState::Unprotected,
                Ok(LeaseRequest::Write) => return RingFileState::Damaged,
                // The program closed our descriptor, and the lease keeps us from opening another.
                Err(_) => {}
            }
        }
        if !self.is_file_unchanged() {
            return RingFileState::Damaged;
        }
        self.guard.renew(now_ns, false);
        RingFileState::Intact
    }

    fn is_file_unchanged(&self) -> bool {
        let found = self.file.with(|file| {
            let mut header = [0; FIXED_HEADER_BYTES];
            let bytes = file.metadata()?.len();
            file.read_exact_at(&mut header, 0)?;
            Ok((bytes, header))
        });
        let len_bytes = self.len_bytes() as u64;
        match found {
            Ok((bytes, header)) => bytes >= len_bytes && header == self.header,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            Err(_) => self.file.len_at_path().is_none_or(|bytes| bytes >= len_bytes),
        }
    }

    /// Notes whether the writer thread holds the lease on the file.
    pub(crate) fn set_lease(&self, is_held: bool) {
        self.guard.set_lease(is_held);
    }

    /// True if the writer thread holds the lease on the file.
    pub(crate) fn has_lease(&self) -> bool {
        self.guard.has_lease()
    }

    /// Copies the counters, in case the file is truncated while the process is stopped. The mapping
    /// must be safe to access.
    pub(crate) fn save_counters(&self) {
        self.saved.next_seq.store(self.next_seq().load(Ordering::Relaxed), Ordering::Relaxed);
        for (counter, _) in Counter::ALL {
            self.saved.counters[*counter as usize].store(self.counter(*counter), Ordering::Relaxed);
        }
    }

    /// Replaces the mapped file by anonymous memory with the same content, at the same addresses.
    /// `reason` is what [`Self::memory_reason`] then returns.
    ///
    /// No hook may be recording meanwhile. Returns an error if the content cannot be read; the file
    /// then stays mapped.
    pub(crate) fn move_to_memory(&self, reason: &'static str) -> io::Result<()> {
        if self.is_memory() {
            return Ok(());
        }
        let copy = map_anonymous(self.len_bytes())?;
        let allocated = (0..RINGS).filter(|index| self.is_allocated(*index));
        let parts = allocated.map(|index| self.span(index));
        // The first page comes last: threads outside of hooks may still increment its counters.
        for (at, len) in parts.chain([(0, PAGE_BYTES)]) {
            // SAFETY: inside the new mapping, which no other thread knows.
            let to = unsafe { std::slice::from_raw_parts_mut(copy.add(at), len) };
            // The kernel reads for us: a load faults if the file was truncated meanwhile.
            if platform::read_memory(self.base as usize + at, to).is_none() {
                // SAFETY: exactly the mapping made above.
                unsafe { libc::munmap(copy.cast(), self.len_bytes()) };
                return Err(io::Error::other("the ring file was truncated"));
            }
        }
        let _ = self.memory_reason.set(reason);
        self.replace_file(copy)
    }

    /// Replaces the mapped file by empty anonymous memory with the last known counters. The content
    /// of the rings is lost.
    pub(crate) fn abandon_file(&self) -> io::Result<()> {
        if self.is_memory() {
            return Ok(());
        }
        let empty = map_anonymous(self.len_bytes())?;
        let store = |at: usize, value: u64| {
            // SAFETY: inside page 0 of the new mapping, which no other thread knows.
            unsafe { empty.add(at).cast::<[u8; 8]>().write(value.to_ne_bytes()) };
        };
        store(NEXT_SEQ_AT, self.saved.next_seq.load(Ordering::Relaxed));
        for (counter, _) in Counter::ALL {
            let value = self.saved.counters[*counter as usize].load(Ordering::Relaxed);
            for at in COUNTER_COPIES_AT {
                store(at + 8 * *counter as usize, value);
            }
        }
        self.replace_file(empty)
    }

    fn replace_file(&self, memory: *mut u8) -> io::Result<()> {
        // SAFETY: moves a mapping that no other thread knows over one of the same length that is
        // ours.
        unsafe { platform::replace_mapping(memory, self.base, self.len_bytes()) }?;
        // SAFETY: exactly our mapping.
        unsafe { platform::hide_from_children(self.base, self.len_bytes()) };
        self.is_memory.store(true, Ordering::Release);
        self.guard.set_safe_for_good();
        for (counter, _) in Counter::ALL {
            self.add_count(*counter, self.saved.late[*counter as usize].swap(0, Ordering::Relaxed));
        }
        Ok(())
    }
}
