//! Mappings, and reads that the kernel refuses instead of faulting.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::mach;

/// `VM_INHERIT_NONE`.
const NOT_INHERITED: u32 = 2;

/// A child made by `fork` does not get this mapping.
///
/// # Safety
/// The range is a mapping of ours.
pub(crate) unsafe fn hide_from_children(at: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { mach::minherit(at.cast(), len, NOT_INHERITED as i32) };
}

/// Nothing is emptied by the kernel here: the handler that `fork` calls in the child does it. A system call of `fork` without the C library,
/// which would go past that, does not exist on macOS.
///
/// # Safety
/// None; as on Linux.
pub(crate) unsafe fn empty_in_children(_: *mut u8, _: usize) {}

/// Puts one mapping in the place of another, in one step.
///
/// # Safety
/// Both are mappings of ours of this length, and nobody else knows `from`.
pub(crate) unsafe fn move_over(from: *mut u8, to: *mut u8, len: usize) -> io::Result<()> {
    /// `VM_FLAGS_FIXED | VM_FLAGS_OVERWRITE`.
    const IN_ITS_PLACE: i32 = 0x4000;
    let (mut address, mut current, mut most) = (to as u64, 0, 0);
    // SAFETY: the caller's promise. The same pages are at both places afterwards, and what is given back is the first name for them.
    unsafe {
        let answer = mach::mach_vm_remap(
            mach::this_task(),
            &raw mut address,
            len as u64,
            0,
            IN_ITS_PLACE,
            mach::this_task(),
            from as u64,
            0,
            &raw mut current,
            &raw mut most,
            NOT_INHERITED,
        );
        if answer != 0 {
            return Err(io::Error::other(format!("mach_vm_remap answered {answer}")));
        }
        libc::munmap(from.cast(), len);
    }
    Ok(())
}

/// Makes sure that the file system has room for a part of a file that nobody has written to, so that storing to it through a mapping
/// cannot fail: zeros are written, because room cannot be had for a part alone. (Where a snapshot of the file system is made later, a
/// store needs new room all the same.)
pub(crate) fn allocate(file: &File, at: usize, len: usize) -> io::Result<()> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    let mut done = 0;
    while done < len {
        let piece = &ZEROS[..ZEROS.len().min(len - done)];
        file.write_all_at(piece, (at + done) as u64)?;
        done += piece.len();
    }
    Ok(())
}

/// Not to be had here. On Linux it is for a file that our own lease keeps us from opening again.
///
/// # Safety
/// None; as on Linux.
pub(crate) unsafe fn populate(_: *mut u8, _: usize) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ENOTSUP))
}

/// Reads this process's memory; `None` where a load would fault.
pub(crate) fn read_memory(at: usize, out: &mut [u8]) -> Option<()> {
    let mut read_bytes = 0;
    // SAFETY: the buffer is ours and as long as we say; the kernel checks the other address itself.
    let answer = unsafe {
        mach::mach_vm_read_overwrite(
            mach::this_task(),
            at as u64,
            out.len() as u64,
            out.as_mut_ptr() as u64,
            &raw mut read_bytes,
        )
    };
    (answer == 0 && read_bytes == out.len() as u64).then_some(())
}
