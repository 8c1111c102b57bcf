//! Reading memory of this process: with plain loads, or through the kernel.
//!
//! Stack walks must be fast once the layout of the data is known to be right, and must not crash
//! the program before that. So a walk is generic over [`Memory`]. [`Direct`] is a plain load;
//! [`Guarded`] asks the kernel, which returns an error where a load would fault; tests use a map of
//! words.

/// Bytes that one SSE instruction compares.
pub(crate) const WINDOW_BYTES: usize = 16;

/// The content of [`WINDOW_BYTES`] bytes of memory. Aligned, so that it can be an operand of an SSE
/// instruction.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C, align(16))]
pub struct Window([u8; WINDOW_BYTES]);

/// Read access to an address space. All methods return `None` if an address cannot be read.
pub trait Memory {
    /// Reads `out.len()` bytes from address `at`.
    fn read(&self, at: usize, out: &mut [u8]) -> Option<()>;

    /// Reads a pointer-sized word.
    fn word(&self, at: usize) -> Option<usize> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Some(u64::from_le_bytes(bytes) as usize)
    }

    /// Reads a 32-bit word.
    fn half(&self, at: usize) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }

    /// Reads one byte from address `at`.
    fn byte(&self, at: usize) -> Option<u8> {
        let mut bytes = [0; 1];
        self.read(at, &mut bytes)?;
        Some(bytes[0])
    }

    /// Reads a window. It need not be aligned in memory.
    #[inline]
    fn window(&self, at: usize) -> Option<Window> {
        let mut window = Window::default();
        self.read(at, &mut window.0)?;
        Some(window)
    }

    /// Whether both addresses still hold the content of the given windows.
    fn are_windows_unchanged(&self, at: [usize; 2], windows: &[Window; 2]) -> Option<bool> {
        Some([self.window(at[0])?, self.window(at[1])?] == *windows)
    }
}

/// Reads with plain loads, without any check.
#[derive(Clone, Copy, Debug)]
pub struct Direct(());

impl Direct {
    /// Creates a reader without checks.
    ///
    /// # Safety
    /// Every address read through it must be valid. For Python frames that means: the layout in use
    /// has passed the self-test, and the frames belong to the calling thread, so that they stay
    /// alive meanwhile.
    pub unsafe fn new() -> Self {
        Self(())
    }
}

impl Memory for Direct {
    #[inline]
    fn read(&self, at: usize, out: &mut [u8]) -> Option<()> {
        // SAFETY: the caller of `new` promised that addresses are valid; the buffers cannot
        // overlap, one is ours.
        unsafe { std::ptr::copy_nonoverlapping(at as *const u8, out.as_mut_ptr(), out.len()) };
        Some(())
    }

    /// Written with intrinsics, because this runs for every frame of every event and the compiler
    /// generates twice as many instructions for the default method.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[allow(clippy::cast_ptr_alignment, reason = "these loads need no alignment")]
    fn are_windows_unchanged(&self, at: [usize; 2], windows: &[Window; 2]) -> Option<bool> {
        use std::arch::x86_64::{
            __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_load_si128, _mm_loadu_si128, _mm_movemask_epi8,
        };
        let [first, second] = at.map(|at| at as *const __m128i);
        let [held_first, held_second] =
            windows.each_ref().map(|window| std::ptr::from_ref(window).cast::<__m128i>());
        // SAFETY: as in `read`. The instructions are part of every x86-64. The loads from `at` need
        // no alignment, and windows are aligned.
        let equal = unsafe {
            _mm_movemask_epi8(_mm_and_si128(
                _mm_cmpeq_epi8(_mm_loadu_si128(first), _mm_load_si128(held_first)),
                _mm_cmpeq_epi8(_mm_loadu_si128(second), _mm_load_si128(held_second)),
            ))
        };
        Some(equal == 0xffff)
    }
}

/// Reads through the kernel, which returns an error where a load would fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guarded;

impl Memory for Guarded {
    fn read(&self, at: usize, out: &mut [u8]) -> Option<()> {
        crate::platform::read_memory(at, out)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn guarded_reads_agree_with_loads_and_survive_bad_addresses() {
        let value = 0x1122_3344_5566_7788_usize;
        assert_eq!(Guarded.word(&raw const value as usize), Some(value));
        assert_eq!(Guarded.word(8), None);
        assert_eq!(Guarded.word(usize::MAX - 4), None);
    }
}
