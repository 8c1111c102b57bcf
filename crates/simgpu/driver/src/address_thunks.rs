//! Addresses that differ from the exports (`SIMGPU_ALT_PROCADDR`).
//!
//! `cuGetProcAddress` need not return exported addresses, so a tracer must not rely on it. Each
//! function gets a jump in a separate executable page.

/// Size of `mov r11, imm64; jmp r11`, padded.
const THUNK: usize = 16;

/// Returns one thunk per target, in order; `None` if the host forbids executable pages.
pub(crate) fn make(targets: &[usize]) -> Option<Vec<usize>> {
    let thunk = |target: &usize| {
        let mut code = [0xCC_u8; THUNK];
        code[..2].copy_from_slice(&[0x49, 0xBB]);
        code[2..10].copy_from_slice(&target.to_le_bytes());
        code[10..13].copy_from_slice(&[0x41, 0xFF, 0xE3]);
        code
    };
    map_code(&targets.iter().map(thunk).collect::<Vec<_>>())
}

/// Puts pieces of code into executable pages that are never freed. Returns their addresses, in
/// order; `None` if the host forbids executable pages.
pub(crate) fn map_code<const LEN: usize>(pieces: &[[u8; LEN]]) -> Option<Vec<usize>> {
    let len = (pieces.len() * LEN).next_multiple_of(4096);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new private mapping at an address that the kernel picks.
    let page = unsafe {
        libc::mmap(std::ptr::null_mut(), len, rights, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    let code = pieces.as_flattened();
    // SAFETY: the mapping is ours, writable and has room for all pieces.
    unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), code.len()) };
    // SAFETY: the mapping is ours; it becomes executable and read-only.
    let done = unsafe { libc::mprotect(page, len, libc::PROT_READ | libc::PROT_EXEC) };
    (done == 0).then(|| (0..pieces.len()).map(|at| page as usize + at * LEN).collect())
}

#[cfg(test)]
mod tests {
    extern "C" fn seven(add: u64) -> u64 {
        7 + add
    }

    #[test]
    fn thunk_calls_its_target() {
        let thunks = super::make(&[seven as *const () as usize, seven as *const () as usize]).unwrap();
        assert_ne!(thunks[1], seven as *const () as usize);
        // SAFETY: the thunk jumps to a function of this type.
        let thunk: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(thunks[1]) };
        assert_eq!(thunk(1), 8);
    }
}
