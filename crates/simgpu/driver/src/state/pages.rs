//! The host pages behind simulated memory.
//!
//! Address windows are reserved without memory, so a model of 40 GiB fits on a laptop. A range
//! becomes readable when it is allocated, and loses its pages and access when it is freed, so a use
//! after free faults. [`Pages`] is a trait so that tests of the state need no real memory.

use crate::values::known_bytes;

/// Operations on the host's memory.
pub(crate) trait Pages: Send {
    /// Reserves inaccessible addresses; `None` if the host refuses.
    fn reserve(&mut self, len: u64) -> Option<u64>;
    /// Makes a reserved range readable, writable and zero-filled.
    fn commit(&mut self, addr: u64, len: u64) -> bool;
    /// Drops the pages of a range and forbids access.
    fn decommit(&mut self, addr: u64, len: u64);
    /// Maps zero-filled readable memory anywhere, for pinned host memory.
    fn map_host(&mut self, len: u64) -> Option<u64>;
    /// Unmaps memory of [`map_host`](Self::map_host).
    fn unmap_host(&mut self, addr: u64, len: u64);
}

/// Pages in this process's address space.
#[derive(Debug, Default)]
pub(crate) struct HostPages {
    reserved: u64,
}

/// First hint for windows, so that addresses are alike in every run; the host may ignore it.
const FIRST_HINT: u64 = 0x3000_0000_0000;
const HOST_PAGE: u64 = 4096;

fn map(hint: u64, len: u64, protection: i32, flags: i32) -> Option<u64> {
    // SAFETY: without MAP_FIXED the kernel picks a free range, so no memory of the process is
    // touched; with it (see `decommit`) the range lies in a window that we reserved.
    let addr = unsafe { libc::mmap(hint as *mut libc::c_void, len as usize, protection, flags, -1, 0) };
    (addr != libc::MAP_FAILED).then_some(addr as u64)
}

impl Pages for HostPages {
    fn reserve(&mut self, len: u64) -> Option<u64> {
        // The hint is aligned to 2 MiB; without it, a margin is reserved and the start rounded up.
        const ALIGN: u64 = 2 << 20;
        let padded = len.checked_add(ALIGN)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let addr = map(FIRST_HINT + self.reserved, padded, libc::PROT_NONE, flags)?;
        self.reserved += padded.next_multiple_of(1 << 40);
        addr.checked_next_multiple_of(ALIGN)
    }

    fn commit(&mut self, addr: u64, len: u64) -> bool {
        // SAFETY: the range lies in our window and holds no object of the process.
        unsafe {
            libc::mprotect(addr as *mut libc::c_void, len as usize, libc::PROT_READ | libc::PROT_WRITE) == 0
        }
    }

    fn decommit(&mut self, addr: u64, len: u64) {
        known_bytes::on_freed(addr, len);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        if map(addr, len, libc::PROT_NONE, flags).is_none() {
            // The kernel's limit on mappings is reached: the range stays readable, but is zeroed.
            // SAFETY: as above; the advice drops pages of our own anonymous memory.
            unsafe { libc::madvise(addr as *mut libc::c_void, len as usize, libc::MADV_DONTNEED) };
        }
    }

    fn map_host(&mut self, len: u64) -> Option<u64> {
        let len = len.checked_next_multiple_of(HOST_PAGE)?;
        map(
            0,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        )
    }

    fn unmap_host(&mut self, addr: u64, len: u64) {
        // SAFETY: the range came from `map_host` with this length and is unmapped once.
        unsafe { libc::munmap(addr as *mut libc::c_void, len.next_multiple_of(HOST_PAGE) as usize) };
    }
}

#[cfg(test)]
pub(crate) mod fake {
    use super::Pages;

    /// Addresses without memory, for unit tests.
    #[derive(Debug, Default)]
    pub(crate) struct NoPages {
        pub(crate) next: u64,
        pub(crate) committed: i64,
    }

    impl Pages for NoPages {
        fn reserve(&mut self, len: u64) -> Option<u64> {
            self.next += 1 << 44;
            (len < 1 << 44).then_some(self.next)
        }
        fn commit(&mut self, _addr: u64, len: u64) -> bool {
            self.committed += len as i64;
            true
        }
        fn decommit(&mut self, _addr: u64, len: u64) {
            self.committed -= len as i64;
        }
        fn map_host(&mut self, len: u64) -> Option<u64> {
            self.next += 1 << 20;
            (len < 1 << 20).then_some(self.next)
        }
        fn unmap_host(&mut self, _addr: u64, _len: u64) {}
    }
}
