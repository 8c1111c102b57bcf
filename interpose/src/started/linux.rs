//! A start within a program of CUDA.
//!
//! Constraint: addresses that callers have taken by then cannot be got between. Consequence: before the driver is loaded, everything is as if we had been preloaded, from then on ([`crate::slots`]). After that the addresses of the
//! driver's functions are with their callers, and no call of the driver is recorded rather than some; PyTorch's blocks are, and
//! what it holds already is told to us by who starts the recording, out of PyTorch's own snapshot.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use gpumemtrace_format::event::pool_number;
use gpumemtrace_format::{ApiId, Detail, EventKind};
use gpumemtrace_recorder::{Draft, record_event};

use super::{Answer, is_started, is_stopped};
use crate::guard::quietly;
use crate::slots::{self, Scope};

static IS_WITHOUT_DRIVER: AtomicBool = AtomicBool::new(false);

/// True where no call of the driver is recorded, because that was there before us.
pub(crate) fn is_without_driver() -> bool {
    IS_WITHOUT_DRIVER.load(Ordering::Acquire)
}

/// Stands in the slots. `mark` is called when it is known what is missing, and before anything can be recorded.
pub(super) fn begin(mark: impl FnOnce()) -> Answer {
    let is_late = crate::cuda::is_loaded();
    IS_WITHOUT_DRIVER.store(is_late, Ordering::Release);
    mark();
    #[cfg(feature = "metal-double")]
    crate::metal::meet_all_devices();
    slots::redirect(if is_late { Scope::WithoutDriver } else { Scope::All });
    if is_late { Answer::WithoutDriver } else { Answer::Everything }
}

/// `void gpumemtrace_look_again(void)`: libraries may have been loaded since.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn gpumemtrace_look_again() {
    quietly(|| {
        if is_started() && !is_stopped() {
            slots::look_again();
        }
        Some(())
    });
}

/// `int gpumemtrace_attach(void)`: PyTorch's allocator is there, and no thread is inside it on this one: its tracker may be attached. 1 if
/// it is.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn gpumemtrace_attach() -> c_int {
    c_int::from(quietly(|| is_started().then(crate::torch::attach_now)) == Some(true))
}

/// A block that was handed to a tensor.
const BLOCK: u32 = 0;
/// A segment.
const SEGMENT: u32 = 1;
/// What is mapped, in one piece, of an expandable segment.
const MAPPED: u32 = 2;

/// What PyTorch held before anything was recorded.
#[repr(C)]
struct Held {
    device: u32,
    /// [`BLOCK`], [`SEGMENT`] or [`MAPPED`].
    what: u32,
    addr: u64,
    size: u64,
    /// 0: not told.
    requested: u64,
    stream: u64,
    /// Both halves of PyTorch's id; `u64::MAX` where it is not told.
    pool: [u64; 2],
    /// Bytes of blocks and of segments, with this one.
    allocated: u64,
    reserved: u64,
}

/// `void gpumemtrace_held(const struct held *held)`: an entry of PyTorch's snapshot, as the line that tells it.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gpumemtrace_held(held: *const Held) {
    quietly(|| {
        // SAFETY: null, or what is documented.
        let held = unsafe { held.as_ref() }?;
        if is_started() {
            record_event(&draft(held)?);
        }
        Some(())
    });
}

fn draft(held: &Held) -> Option<Draft> {
    let pool = pool_number(held.pool[0], held.pool[1]);
    let kind = match held.what {
        BLOCK => EventKind::BLOCK_ALLOC,
        SEGMENT => EventKind::SEGMENT_ALLOC,
        MAPPED => EventKind::SEGMENT_MAP,
        _ => return None,
    };
    let draft = Draft {
        device: u8::try_from(held.device).ok()?,
        addr: held.addr,
        size: held.size,
        ..Draft::new(kind, ApiId::default())
    };
    if kind != EventKind::BLOCK_ALLOC {
        return Some(Draft { aux: [held.stream, pool], ..draft });
    }
    let detail = Detail { requested_bytes: held.requested, stream: held.stream, pool };
    let detail = (held.requested > 0 && held.requested <= held.size).then_some(detail);
    Some(Draft { aux: [held.allocated, held.reserved], detail, ..draft })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumemtrace_format::event::NO_POOL;

    const HELD: Held = Held {
        device: 1,
        what: BLOCK,
        addr: 0x200,
        size: 512,
        requested: 500,
        stream: 7,
        pool: [0, 3],
        allocated: 512,
        reserved: 2 << 20,
    };

    #[test]
    fn what_was_held_is_an_allocation() {
        let block = draft(&HELD).unwrap();
        assert_eq!(
            (block.kind, block.device, block.addr, block.size),
            (EventKind::BLOCK_ALLOC, 1, 0x200, 512)
        );
        assert_eq!(block.aux, [512, 2 << 20]);
        assert_eq!(block.detail, Some(Detail { requested_bytes: 500, stream: 7, pool: 3 }));
        let segment = draft(&Held { what: SEGMENT, ..HELD }).unwrap();
        assert_eq!((segment.kind, segment.aux, segment.detail), (EventKind::SEGMENT_ALLOC, [7, 3], None));
        assert_eq!(draft(&Held { requested: 0, ..HELD }).unwrap().detail, None, "not told");
        assert_eq!(draft(&Held { requested: 513, ..HELD }).unwrap().detail, None, "more than there is");
        assert_eq!(draft(&Held { pool: [u64::MAX; 2], ..HELD }).unwrap().detail.unwrap().pool, NO_POOL);
        assert_eq!(draft(&Held { what: MAPPED, ..HELD }).unwrap().kind, EventKind::SEGMENT_MAP);
        assert!(draft(&Held { device: 300, ..HELD }).is_none() && draft(&Held { what: 3, ..HELD }).is_none());
    }

    #[test]
    fn it_lies_as_the_package_has_it() {
        assert_eq!((size_of::<Held>(), std::mem::offset_of!(Held, pool)), (72, 40));
    }
}
