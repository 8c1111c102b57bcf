//! Which of the three ways PyTorch uses us.
//!
//! Constraint: blocks of one way must not be given back in another. Consequence: caching is decided before the first tensor,
//! or not at all.

use std::sync::atomic::{AtomicU8, Ordering};

/// How memory was asked for here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    /// Each tensor is a call of the driver.
    Uncached = 1,
    /// Our own caching allocator.
    Caching = 2,
    /// Segments of PyTorch's own allocator.
    Segments = 3,
}

const NOT_USED: u8 = 0;
/// Bit: tensors have been asked for.
const USED: u8 = 0x80;
static STATE: AtomicU8 = AtomicU8::new(NOT_USED);

impl Mode {
    /// The name in the trace's header.
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

/// The way that is in use; `None` as long as nobody asked for memory here.
pub fn mode() -> Option<Mode> {
    let state = STATE.load(Ordering::Relaxed);
    Mode::from_state(state).filter(|_| state & USED != 0)
}

/// From now on, tensors come from the cache. False if they already come from elsewhere.
pub(crate) fn use_cache() -> bool {
    let set = STATE.compare_exchange(NOT_USED, Mode::Caching as u8, Ordering::AcqRel, Ordering::Acquire);
    set.is_ok() || Mode::from_state(STATE.load(Ordering::Acquire)) == Some(Mode::Caching)
}

/// A tensor is asked for: whether it comes from the cache.
#[inline]
pub(crate) fn is_caching() -> bool {
    const CACHING: u8 = Mode::Caching as u8 | USED;
    let state = STATE.load(Ordering::Acquire);
    state == CACHING || state != (Mode::Uncached as u8 | USED) && first_use() == CACHING
}

#[cold]
fn first_use() -> u8 {
    let used = |state| match state {
        NOT_USED => Some(Mode::Uncached as u8 | USED),
        state => Some(state | USED),
    };
    match STATE.fetch_update(Ordering::AcqRel, Ordering::Acquire, used) {
        Ok(before) | Err(before) => used(before).unwrap_or(before),
    }
}

/// A segment of PyTorch's own allocator is asked for.
pub(crate) fn use_segments() {
    let set = STATE.load(Ordering::Relaxed) == NOT_USED;
    if set {
        let _ = STATE.compare_exchange(
            NOT_USED,
            Mode::Segments as u8 | USED,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
    }
}
