//! Arrays and mipmapped arrays: device memory behind an opaque handle.
//!
//! An array whose memory is mapped into it later (sparse or deferred) takes addresses and no memory.

use crate::entry::{capture_mode, current, exports, logged, tid, with_context};
use crate::ffi::{In, Out};
use crate::log::Record;
use crate::rc::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::state::State;
use crate::state::device::Home;

/// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`.
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

/// Bytes of one channel, by the header's array format.
fn format_bytes(format: u32) -> Option<u64> {
    match format {
        1 | 8 => Some(1),
        2 | 9 | 0x10 => Some(2),
        3 | 0x0a | 0x20 => Some(4),
        _ => None,
    }
}

impl Array3dDescriptor {
    /// Bytes of so many levels.
    pub(crate) fn bytes(&self, levels: u32) -> Answer<u64> {
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
    descriptor: Answer<Array3dDescriptor>,
    levels: u32,
    home: Home,
) -> Answer {
    let size = descriptor.and_then(|descriptor| descriptor.bytes(levels));
    logged(api, Record::bytes(size.unwrap_or(0)), |state, record| {
        out.check()?;
        let current = current(state)?;
        state.graphs.unsafe_call(tid(), capture_mode())?;
        let backed = descriptor?.flags & (SPARSE | DEFERRED) == 0;
        let (device, pages) = state.device_and_pages(current.device)?;
        record.addr = device.alloc_charged(pages, size?, home, current.context, backed)?;
        if !backed {
            record.note("unbacked", 1);
        }
        out.put(record.addr)
    })
}

fn destroy(api: &'static str, handle: u64, kind: Home) -> Answer {
    logged(api, Record::about(handle), |state, record| {
        current(state)?;
        let ordinal = state.device_of(handle).ok_or(INVALID_HANDLE)?;
        record.device = ordinal as i32;
        state.graphs.unsafe_call(tid(), capture_mode())?;
        let (device, pages) = state.device_and_pages(ordinal)?;
        record.size = device.free_kind(pages, handle, kind)?.size;
        Ok(())
    })
}

/// Only told for arrays whose memory is still to be mapped.
fn requirements(state: &State, out: Out<[u64; 4]>, handle: u64, kind: Home) -> Answer {
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
        create(API, out, descriptor.get().map(Array3dDescriptor::from), 0, Home::Array)
    }
    memory 3020 cuArray3DCreate_v2(out: Out<u64>, descriptor: In<Array3dDescriptor>) {
        create(API, out, descriptor.get(), 0, Home::Array)
    }
    memory 2000 cuArrayDestroy(handle: u64) { destroy(API, handle, Home::Array) }
    memory 5000 cuMipmappedArrayCreate(out: Out<u64>, descriptor: In<Array3dDescriptor>, levels: u32) {
        create(API, out, descriptor.get(), levels, Home::Mipmapped)
    }
    memory 5000 cuMipmappedArrayDestroy(handle: u64) { destroy(API, handle, Home::Mipmapped) }
    plain 11060 cuArrayGetMemoryRequirements(out: Out<[u64; 4]>, handle: u64, _device: u32) {
        with_context(|state, _| requirements(state, out, handle, Home::Array))
    }
    plain 11060 cuMipmappedArrayGetMemoryRequirements(out: Out<[u64; 4]>, handle: u64, _device: u32) {
        with_context(|state, _| requirements(state, out, handle, Home::Mipmapped))
    }
    // Which tile of which array gets which memory is not simulated.
    memory 11010 cuMemMapArrayAsync(_changes: In<u8>, _count: u32, stream: u64) {
        logged(API, Record::default().on(stream), |_, _| Err(NOT_SUPPORTED))
    }
    memory 11010 cuMemMapArrayAsync_ptsz(_changes: In<u8>, _count: u32, stream: u64) {
        logged(API, Record::default().on(stream), |_, _| Err(NOT_SUPPORTED))
    }
}
