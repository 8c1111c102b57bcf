//! The host pages behind simulated memory.
//!
//! A model of 40 GiB must train on a laptop, and use after free must be noticed -> address windows are reserved without memory, a
//! range becomes readable when it is allocated and loses its pages and its rights when it is freed. The state logic sees only this
//! trait, so that its tests need neither memory nor a process of their own.

/// What the state logic asks of the host's memory.
pub(crate) trait Pages: Send {
    /// Reserves addresses without memory and without access; `None` when the host refuses.
    fn reserve(&mut self, len: u64) -> Option<u64>;
    /// Makes a reserved range readable and writable, zero-filled.
    fn commit(&mut self, addr: u64, len: u64) -> bool;
    /// Drops the pages of a range and forbids access to it.
    fn decommit(&mut self, addr: u64, len: u64);
    /// Fresh readable memory anywhere (pinned host memory).
    fn map_host(&mut self, len: u64) -> Option<u64>;
    /// Gives such memory back.
    fn unmap_host(&mut self, addr: u64, len: u64);
}

/// The process's own address space.
#[derive(Debug, Default)]
pub(crate) struct HostPages {
    reserved: u64,
}

/// Windows are asked for here so that addresses look alike from run to run; the host may place them elsewhere.
const FIRST_HINT: u64 = 0x3000_0000_0000;
const HOST_PAGE: u64 = 4096;

fn map(hint: u64, len: u64, protection: i32, flags: i32) -> Option<u64> {
    // SAFETY: without MAP_FIXED the kernel picks a free range, so no memory of the process is touched; with it (see `decommit`) the
    // range lies in a window that we reserved.
    let addr = unsafe { libc::mmap(hint as *mut libc::c_void, len as usize, protection, flags, -1, 0) };
    (addr != libc::MAP_FAILED).then_some(addr as u64)
}

impl Pages for HostPages {
    fn reserve(&mut self, len: u64) -> Option<u64> {
        // 2 MiB alignment comes from the hint; where the hint is refused, a margin is reserved and the start moved up.
        const ALIGN: u64 = 2 << 20;
        let padded = len.checked_add(ALIGN)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let addr = map(FIRST_HINT + self.reserved, padded, libc::PROT_NONE, flags)?;
        self.reserved += padded.next_multiple_of(1 << 40);
        addr.checked_next_multiple_of(ALIGN)
    }

    fn commit(&mut self, addr: u64, len: u64) -> bool {
        // SAFETY: the range lies in a window of ours that holds no live object of the process.
        unsafe {
            libc::mprotect(addr as *mut libc::c_void, len as usize, libc::PROT_READ | libc::PROT_WRITE) == 0
        }
    }

    fn decommit(&mut self, addr: u64, len: u64) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        if map(addr, len, libc::PROT_NONE, flags).is_none() {
            // The kernel's limit on mappings is reached: the range stays readable, but must still come back as zeros.
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
        // SAFETY: the range came from `map_host` with this length and is given back once.
        unsafe { libc::munmap(addr as *mut libc::c_void, len.next_multiple_of(HOST_PAGE) as usize) };
    }
}

#[cfg(test)]
pub(crate) mod fake {
    use super::Pages;

    /// Addresses without memory, for tests of the state logic.
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
