//! Mappings, disk space, and memory reads that fail instead of faulting.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Keeps a forked child from inheriting this mapping. Old kernels refuse; that is harmless, because
/// the child's session is reset.
///
/// # Safety
/// The range is a mapping of ours.
pub(crate) unsafe fn hide_from_children(at: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::madvise(at.cast(), len, libc::MADV_DONTFORK) };
}

/// Gives a forked child zeros in place of this mapping. Old kernels refuse; then our atfork handler
/// does the same.
///
/// # Safety
/// The range is a mapping of ours.
pub(crate) unsafe fn zero_in_children(at: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::madvise(at.cast(), len, libc::MADV_WIPEONFORK) };
}

/// Fills a range of private anonymous memory with zeros, and gives its whole pages back.
///
/// # Safety
/// The range is a part of a mapping of ours, and no reference to it is in use.
pub(crate) unsafe fn zero_private_memory(at: *mut u8, len: usize) {
    const PAGE: usize = 4096;
    let head = at.align_offset(PAGE).min(len);
    let pages = (len - head) / PAGE * PAGE;
    let tail = len - head - pages;
    // SAFETY: the caller's promise; the three parts make up the range. The kernel gives pages that
    // were given back as zeros (madvise(2)).
    unsafe {
        at.write_bytes(0, head);
        if libc::madvise(at.add(head).cast(), pages, libc::MADV_DONTNEED) != 0 {
            at.add(head).write_bytes(0, pages);
        }
        at.add(head + pages).write_bytes(0, tail);
    }
}

/// Replaces the mapping at `to` by the mapping at `from`, in one step.
///
/// # Safety
/// Both are mappings of ours with this length, and no other thread knows `from`.
pub(crate) unsafe fn replace_mapping(from: *mut u8, to: *mut u8, len: usize) -> io::Result<()> {
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller's promise.
    let moved = unsafe { libc::mremap(from.cast(), len, len, how, to.cast::<libc::c_void>()) };
    if moved == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Allocates disk space for a range of a file, so that stores through a mapping cannot fail. Keeps
/// the content of the range.
pub(crate) fn allocate_file_range(file: &File, at: usize, len: usize) -> io::Result<()> {
    // SAFETY: our own descriptor.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), at as libc::off_t, len as libc::off_t) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// True if the file system may need new space for a store to a mapped block that is allocated. It
/// then raises SIGBUS on a full disk or at a quota (`page_mkwrite` of these file systems;
/// `tests/suite/durability/test_copy_on_write.py`).
pub(crate) fn copies_on_write(file: &File) -> bool {
    const BTRFS: i64 = 0x9123_683e;
    const BCACHEFS: i64 = 0xca45_1a4e;
    const NILFS: i64 = 0x3434;
    // SAFETY: an all-zero buffer is valid.
    let mut facts: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: our own descriptor; the buffer is ours.
    let known = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut facts) } == 0;
    known && [BTRFS, BCACHEFS, NILFS].contains(&facts.f_type)
}

/// Does the same as [`allocate_file_range`] through the mapping: the kernel returns an error where
/// a store would raise a signal. Needs Linux 5.14.
///
/// # Safety
/// The range is a part of a mapping of ours. Its content stays as it is.
pub(crate) unsafe fn populate_for_writing(at: *mut u8, len: usize) -> io::Result<()> {
    const MADV_POPULATE_WRITE: i32 = 23;
    // SAFETY: the caller's promise.
    let result = unsafe { libc::madvise(at.cast(), len, MADV_POPULATE_WRITE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads memory of this process through the kernel. Returns `None` where a load would fault.
pub(crate) fn read_memory(at: usize, out: &mut [u8]) -> Option<()> {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: out.len() };
    // SAFETY: both vectors error_text one buffer each; the kernel checks the remote address itself.
    let read =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    if read == out.len() as isize {
        return Some(());
    }
    read_proc_mem(at, out)
}

/// The fallback for sandboxes that forbid `process_vm_readv`.
fn read_proc_mem(at: usize, out: &mut [u8]) -> Option<()> {
    // SAFETY: a constant, NUL-terminated path; the descriptor is closed below.
    let fd = unsafe { libc::open(c"/proc/self/mem".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    // SAFETY: the buffer is ours, and the length is its own.
    let read = unsafe { libc::pread(fd, out.as_mut_ptr().cast(), out.len(), at as libc::off_t) };
    // SAFETY: our own descriptor.
    unsafe { libc::close(fd) };
    (read == out.len() as isize).then_some(())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn both_ways_read_mapped_memory_and_refuse_unmapped() {
        let value = 0x1122_3344_5566_7788_usize;
        for read in [read_memory, read_proc_mem] {
            let mut bytes = [0; 8];
            assert_eq!(read(&raw const value as usize, &mut bytes), Some(()));
            assert_eq!(usize::from_le_bytes(bytes), value);
            assert_eq!(read(16, &mut bytes), None);
        }
    }
}
