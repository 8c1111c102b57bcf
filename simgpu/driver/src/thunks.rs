//! Addresses that differ from the exported ones (`SIMGPU_ALT_PROCADDR`).
//!
//! No document says that `cuGetProcAddress` returns the exported addresses, and a tracer that compares addresses must be tested where it
//! does not -> each function gets a jump of its own in a page of code made for it.

/// `mov r11, imm64; jmp r11`, padded.
const THUNK: usize = 16;

/// One thunk per target, in order; `None` when the host forbids new code.
pub(crate) fn make(targets: &[usize]) -> Option<Vec<usize>> {
    let len = (targets.len() * THUNK).next_multiple_of(4096);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh private mapping at an address of the kernel's choice.
    let page = unsafe {
        libc::mmap(std::ptr::null_mut(), len, rights, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    let base = page as usize;
    for (at, target) in targets.iter().enumerate() {
        let mut code = [0xCC_u8; THUNK];
        code[..2].copy_from_slice(&[0x49, 0xBB]);
        code[2..10].copy_from_slice(&target.to_le_bytes());
        code[10..13].copy_from_slice(&[0x41, 0xFF, 0xE3]);
        // SAFETY: the mapping is ours, writable and has room for every thunk.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), (base + at * THUNK) as *mut u8, THUNK) };
    }
    // SAFETY: the mapping is ours; from here on it is code and no longer writable.
    let done = unsafe { libc::mprotect(page, len, libc::PROT_READ | libc::PROT_EXEC) };
    (done == 0).then(|| (0..targets.len()).map(|at| base + at * THUNK).collect())
}

#[cfg(test)]
mod tests {
    extern "C" fn seven(add: u64) -> u64 {
        7 + add
    }

    #[test]
    fn a_thunk_calls_its_target() {
        let thunks = super::make(&[seven as *const () as usize, seven as *const () as usize]).unwrap();
        assert_ne!(thunks[1], seven as *const () as usize);
        // SAFETY: the thunk jumps to a function of this type.
        let thunk: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(thunks[1]) };
        assert_eq!(thunk(1), 8);
    }
}
