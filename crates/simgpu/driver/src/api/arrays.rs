//! Arrays and mipmapped arrays: device memory behind an opaque handle.
//!
//! Sparse arrays and arrays with deferred mapping take addresses, but no memory.

use crate::entry::{capture_mode, current, exports, logged, tid, with_context};
use crate::ffi::{In, Out};
use crate::log::LogRecord;
use crate::result_code::{ApiResult, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::state::DriverState;
use crate::state::device::BlockOrigin;

const SPARSE: u32 = 0x40;
const DEFERRED: u32 = 0x80;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArrayDescriptor {
    width: u64,
    height: u64,
    format: u32,
    channels: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Array3dDescriptor {
    width: u64,
    height: u64,
    depth: u64,
    format: u32,
    channels: u32,
    flags: u32,
    reserved: u32,
}

impl From<ArrayDescriptor> for Array3dDescriptor {
    fn from(plane: ArrayDescriptor) -> Self {
        let ArrayDescriptor { width, height, format, channels } = plane;
        Self { width, height, depth: 0, format, channels, flags: 0, reserved: 0 }
    }
}

/// Returns the bytes per channel of an array format.
fn format_bytes(format: u32) -> Option<u64> {
    match format {
        1 | 8 => Some(1),
        2 | 9 | 0x10 => Some(2),
        3 | 0x0a | 0x20 => Some(4),
        _ => None,
    }
}

impl Array3dDescriptor {
    /// Returns the bytes of the first `levels` mipmap levels.
    pub(crate) fn bytes(&self, levels: u32) -> ApiResult<u64> {
        (0..levels.max(1)).try_fold(0_u64, |sum, level| {
            let side = |side: u64| (side >> level.min(63)).max(1);
            let element = format_bytes(self.format)
                .filter(|_| [1, 2, 4].contains(&self.channels))
                .ok_or(INVALID_VALUE)?;
            if self.width == 0 {
                return Err(INVALID_VALUE);
            }
            let texel = element * u64::from(self.channels);
            let sides = [side(self.width), side(self.height), side(self.depth)];
            let bytes = sides.iter().try_fold(texel, |bytes, side| bytes.checked_mul(*side));
            bytes.and_then(|bytes| sum.checked_add(bytes)).ok_or(OUT_OF_MEMORY)
        })
    }
}

fn create(
    api: &'static str,
    out: Out<u64>,
    descriptor: ApiResult<Array3dDescriptor>,
    levels: u32,
    home: BlockOrigin,
) -> ApiResult {
    let size = descriptor.and_then(|descriptor| descriptor.bytes(levels));
    logged(api, LogRecord::for_size(size.unwrap_or(0)), |state, record| {
        out.check()?;
        let current = current(state)?;
        state.graphs.unsafe_call(tid(), capture_mode())?;
        let backed = descriptor?.flags & (SPARSE | DEFERRED) == 0;
        let (device, pages) = state.device_and_pages(current.device)?;
        record.addr = device.alloc_charged(pages, size?, home, current.context, backed)?;
        if !backed {
            record.push_field("unbacked", 1);
        }
        out.put(record.addr)
    })
}

fn destroy(api: &'static str, handle: u64, kind: BlockOrigin) -> ApiResult {
    logged(api, LogRecord::for_address(handle), |state, record| {
        current(state)?;
        let ordinal = state.device_of(handle).ok_or(INVALID_HANDLE)?;
        record.device = ordinal as i32;
        state.graphs.unsafe_call(tid(), capture_mode())?;
        let (device, pages) = state.device_and_pages(ordinal)?;
        record.size = device.free_kind(pages, handle, kind)?.size;
        Ok(())
    })
}

/// Returns the memory requirements; only arrays without memory have some.
fn requirements(state: &DriverState, out: Out<[u64; 4]>, handle: u64, kind: BlockOrigin) -> ApiResult {
    let ordinal = state.device_of(handle).ok_or(INVALID_HANDLE)?;
    let block = state.devices[ordinal as usize].blocks.get(&handle).filter(|block| block.home == kind);
    let block = block.ok_or(INVALID_HANDLE)?;
    if block.charge != 0 {
        return Err(INVALID_VALUE);
    }
    out.put([block.size, 64 << 10, 0, 0])
}

exports! {
    memory 3020 cuArrayCreate_v2(out: Out<u64>, descriptor: In<ArrayDescriptor>) {
        create(API, out, descriptor.get().map(Array3dDescriptor::from), 0, BlockOrigin::Array)
    }
    memory 3020 cuArray3DCreate_v2(out: Out<u64>, descriptor: In<Array3dDescriptor>) {
        create(API, out, descriptor.get(), 0, BlockOrigin::Array)
    }
    memory 2000 cuArrayDestroy(handle: u64) { destroy(API, handle, BlockOrigin::Array) }
    memory 5000 cuMipmappedArrayCreate(out: Out<u64>, descriptor: In<Array3dDescriptor>, levels: u32) {
        create(API, out, descriptor.get(), levels, BlockOrigin::Mipmapped)
    }
    memory 5000 cuMipmappedArrayDestroy(handle: u64) { destroy(API, handle, BlockOrigin::Mipmapped) }
    plain 11060 cuArrayGetMemoryRequirements(out: Out<[u64; 4]>, handle: u64, _device: u32) {
        with_context(|state, _| requirements(state, out, handle, BlockOrigin::Array))
    }
    plain 11060 cuMipmappedArrayGetMemoryRequirements(out: Out<[u64; 4]>, handle: u64, _device: u32) {
        with_context(|state, _| requirements(state, out, handle, BlockOrigin::Mipmapped))
    }
    // Tile mappings are not simulated.
    memory 11010 cuMemMapArrayAsync(_changes: In<u8>, _count: u32, stream: u64) {
        logged(API, LogRecord::default().with_stream(stream), |_, _| Err(NOT_SUPPORTED))
    }
    memory 11010 cuMemMapArrayAsync_ptsz(_changes: In<u8>, _count: u32, stream: u64) {
        logged(API, LogRecord::default().with_stream(stream), |_, _| Err(NOT_SUPPORTED))
    }
}
