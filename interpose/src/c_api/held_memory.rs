//! Memory that PyTorch held before a late recording started.
//!
//! The Python package reads it from PyTorch's own snapshot and passes each entry to
//! [`gpumemtrace_held`], on the line that calls `start()`. An entry becomes an allocation event, so
//! that later frees match and totals begin at the right value.

use gpumemtrace_format::event::pack_pool_id;
use gpumemtrace_format::{ApiId, Detail, EventKind};
use gpumemtrace_recorder::{Draft, record_event};

use crate::attachment;
use crate::panic_guard::catch_panic;

/// A block in use by a tensor.
const BLOCK: u32 = 0;
/// A segment of the caching allocator.
const SEGMENT: u32 = 1;
/// A contiguous mapped range of an expandable segment.
const MAPPED_RANGE: u32 = 2;

/// One entry. The Python package declares the same layout (`_start.py`).
#[repr(C)]
struct HeldMemory {
    device: u32,
    /// [`BLOCK`], [`SEGMENT`] or [`MAPPED_RANGE`].
    kind: u32,
    addr: u64,
    size: u64,
    /// Bytes that the tensor asked for; 0 if unknown.
    requested: u64,
    stream: u64,
    /// Both halves of PyTorch's pool id; `u64::MAX` if unknown.
    pool: [u64; 2],
    /// Running totals in bytes, including this entry.
    allocated: u64,
    reserved: u64,
}

/// `void gpumemtrace_held(const struct held *held)`: records one entry of PyTorch's snapshot.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gpumemtrace_held(held: *const HeldMemory) {
    catch_panic(|| {
        // SAFETY: null, or a pointer to the documented struct.
        let held = unsafe { held.as_ref() }?;
        if attachment::is_started_by_program() {
            record_event(&held_draft(held)?);
        }
        Some(())
    });
}

/// The event for an entry; `None` for an unknown kind or a device that no event can name.
fn held_draft(held: &HeldMemory) -> Option<Draft> {
    let pool = pack_pool_id(held.pool[0], held.pool[1]);
    let kind = match held.kind {
        BLOCK => EventKind::BLOCK_ALLOC,
        SEGMENT => EventKind::SEGMENT_ALLOC,
        MAPPED_RANGE => EventKind::SEGMENT_MAP,
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

    const HELD: HeldMemory = HeldMemory {
        device: 1,
        kind: BLOCK,
        addr: 0x200,
        size: 512,
        requested: 500,
        stream: 7,
        pool: [0, 3],
        allocated: 512,
        reserved: 2 << 20,
    };

    #[test]
    fn held_memory_becomes_allocation_events() {
        let block = held_draft(&HELD).unwrap();
        assert_eq!(
            (block.kind, block.device, block.addr, block.size),
            (EventKind::BLOCK_ALLOC, 1, 0x200, 512)
        );
        assert_eq!(block.aux, [512, 2 << 20]);
        assert_eq!(block.detail, Some(Detail { requested_bytes: 500, stream: 7, pool: 3 }));
        let segment = held_draft(&HeldMemory { kind: SEGMENT, ..HELD }).unwrap();
        assert_eq!((segment.kind, segment.aux, segment.detail), (EventKind::SEGMENT_ALLOC, [7, 3], None));
        assert_eq!(
            held_draft(&HeldMemory { requested: 0, ..HELD }).unwrap().detail,
            None,
            "requested size unknown"
        );
        assert_eq!(
            held_draft(&HeldMemory { requested: 513, ..HELD }).unwrap().detail,
            None,
            "larger than the block"
        );
        assert_eq!(
            held_draft(&HeldMemory { pool: [u64::MAX; 2], ..HELD }).unwrap().detail.unwrap().pool,
            NO_POOL
        );
        assert_eq!(
            held_draft(&HeldMemory { kind: MAPPED_RANGE, ..HELD }).unwrap().kind,
            EventKind::SEGMENT_MAP
        );
        assert!(
            held_draft(&HeldMemory { device: 300, ..HELD }).is_none()
                && held_draft(&HeldMemory { kind: 3, ..HELD }).is_none()
        );
    }

    #[test]
    fn held_memory_layout_matches_the_python_package() {
        assert_eq!((size_of::<HeldMemory>(), std::mem::offset_of!(HeldMemory, pool)), (72, 40));
    }
}
