//! Which of the three modes PyTorch uses this library in.
//!
//! A block must be freed in the mode in which it was allocated. So caching is enabled before the
//! first tensor, or not at all; the first allocation fixes the mode.

use std::sync::atomic::{AtomicU8, Ordering};

/// How PyTorch obtains memory from this library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AllocatorMode {
    /// Every tensor is one driver call.
    Uncached = 1,
    /// The caching allocator of this crate serves tensors.
    Caching = 2,
    /// PyTorch's own allocator serves tensors and gets its segments from here.
    Segments = 3,
}

const NOT_USED: u8 = 0;
/// Bit: memory has been requested, so the mode is fixed.
const USED: u8 = 0x80;
static STATE: AtomicU8 = AtomicU8::new(NOT_USED);

impl AllocatorMode {
    /// The name in the trace header.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uncached => "uncached",
            Self::Caching => "caching",
            Self::Segments => "segments",
        }
    }

    fn from_state(state: u8) -> Option<Self> {
        match state & !USED {
            1 => Some(Self::Uncached),
            2 => Some(Self::Caching),
            3 => Some(Self::Segments),
            _ => None,
        }
    }
}

/// The mode in use; `None` until PyTorch requests memory here.
pub fn current_mode() -> Option<AllocatorMode> {
    let state = STATE.load(Ordering::Relaxed);
    AllocatorMode::from_state(state).filter(|_| state & USED != 0)
}

/// Serves tensors from the cache from now on. False if another mode is already in use.
pub(crate) fn enable_cache() -> bool {
    let set =
        STATE.compare_exchange(NOT_USED, AllocatorMode::Caching as u8, Ordering::AcqRel, Ordering::Acquire);
    set.is_ok() || AllocatorMode::from_state(STATE.load(Ordering::Acquire)) == Some(AllocatorMode::Caching)
}

/// Whether tensors come from the cache. The first call fixes the mode.
#[inline]
pub(crate) fn is_caching() -> bool {
    const CACHING: u8 = AllocatorMode::Caching as u8 | USED;
    let state = STATE.load(Ordering::Acquire);
    state == CACHING || state != (AllocatorMode::Uncached as u8 | USED) && fix_mode() == CACHING
}

#[cold]
fn fix_mode() -> u8 {
    let used = |state| match state {
        NOT_USED => Some(AllocatorMode::Uncached as u8 | USED),
        state => Some(state | USED),
    };
    match STATE.fetch_update(Ordering::AcqRel, Ordering::Acquire, used) {
        Ok(before) | Err(before) => used(before).unwrap_or(before),
    }
}

/// Fixes the mode to [`AllocatorMode::Segments`], unless another one is already set.
pub(crate) fn note_segment_request() {
    let set = STATE.load(Ordering::Relaxed) == NOT_USED;
    if set {
        let _ = STATE.compare_exchange(
            NOT_USED,
            AllocatorMode::Segments as u8 | USED,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
    }
}
