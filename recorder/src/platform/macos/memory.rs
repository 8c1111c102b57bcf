//! Mappings, disk space, and memory reads that fail instead of faulting.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::mach;

/// The value of `VM_INHERIT_NONE` in `mach/vm_inherit.h`.
const NOT_INHERITED: u32 = 2;

/// Keeps a forked child from inheriting this mapping.
///
/// # Safety
/// The range is a mapping of ours.
pub(crate) unsafe fn hide_from_children(at: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { mach::minherit(at.cast(), len, NOT_INHERITED as i32) };
}

/// Does nothing: the kernel cannot zero a mapping in a child, so our atfork handler does it. macOS
/// has no `fork` system call outside of the C library that would bypass the handler.
///
/// # Safety
/// No requirement; the signature is that of Linux.
pub(crate) unsafe fn zero_in_children(_: *mut u8, _: usize) {}

/// Fills a range of private anonymous memory with zeros.
///
/// # Safety
/// The range is a part of a mapping of ours, and no reference to it is in use.
pub(crate) unsafe fn zero_private_memory(at: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { at.write_bytes(0, len) };
}

/// Replaces the mapping at `to` by the mapping at `from`, in one step.
///
/// # Safety
/// Both are mappings of ours with this length, and no other thread knows `from`.
pub(crate) unsafe fn replace_mapping(from: *mut u8, to: *mut u8, len: usize) -> io::Result<()> {
    /// The value of `VM_FLAGS_FIXED | VM_FLAGS_OVERWRITE`.
    const FIXED_OVERWRITE: i32 = 0x4000;
    let (mut address, mut current, mut most) = (to as u64, 0, 0);
    // SAFETY: the caller's promise. Afterwards the same pages are mapped at both addresses, and the
    // first is unmapped.
    unsafe {
        let result = mach::mach_vm_remap(
            mach::this_task(),
            &raw mut address,
            len as u64,
            0,
            FIXED_OVERWRITE,
            mach::this_task(),
            from as u64,
            0,
            &raw mut current,
            &raw mut most,
            NOT_INHERITED,
        );
        if result != 0 {
            return Err(io::Error::other(format!("mach_vm_remap returned {result}")));
        }
        libc::munmap(from.cast(), len);
    }
    Ok(())
}

/// Always false: APFS writes in place unless a snapshot shares the block.
pub(crate) fn copies_on_write(_: &File) -> bool {
    false
}

/// Allocates disk space for a range of a file that was never written, so that stores through a
/// mapping cannot fail. Writes zeros, because macOS cannot allocate a range alone. (After a
/// snapshot of the file system, a store needs new disk space all the same.)
pub(crate) fn allocate_file_range(file: &File, at: usize, len: usize) -> io::Result<()> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    let mut done = 0;
    while done < len {
        let zeros = &ZEROS[..ZEROS.len().min(len - done)];
        file.write_all_at(zeros, (at + done) as u64)?;
        done += zeros.len();
    }
    Ok(())
}

/// Always fails. On Linux it is needed when our own lease prevents reopening a file.
///
/// # Safety
/// No requirement; the signature is that of Linux.
pub(crate) unsafe fn populate_for_writing(_: *mut u8, _: usize) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ENOTSUP))
}

/// Reads memory of this process through the kernel. Returns `None` where a load would fault.
pub(crate) fn read_memory(at: usize, out: &mut [u8]) -> Option<()> {
    let mut read_bytes = 0;
    // SAFETY: the buffer is ours, and the length is its own; the kernel checks the other address
    // itself.
    let result = unsafe {
        mach::mach_vm_read_overwrite(
            mach::this_task(),
            at as u64,
            out.len() as u64,
            out.as_mut_ptr() as u64,
            &raw mut read_bytes,
        )
    };
    (result == 0 && read_bytes == out.len() as u64).then_some(())
}
