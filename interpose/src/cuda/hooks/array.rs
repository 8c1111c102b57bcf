//! Arrays and mipmapped arrays: memory behind an opaque handle.
//!
//! The driver reports the size of an array only if its memory is mapped later. For all other
//! arrays the size is computed from the descriptor and flagged as estimated: a device stores
//! texels in tiles and may need more.

use std::ffi::{c_uint, c_void};

use gpumemtrace_format::{ApiId, Event, EventKind, FLAG_ESTIMATED, FLAG_UNBACKED};
use gpumemtrace_recorder::Draft;

use super::driver_hooks;
use crate::cuda::hooked_call::{read_field, read_out};
use crate::cuda::queries::{array_bytes, current_context};

/// `CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING`: later calls map the memory.
const MAPPED_LATER: u32 = 0x40 | 0x80;

/// The fields of an array descriptor that determine its size.
#[derive(Clone, Copy, Debug)]
struct ArrayShape {
    sides: [u64; 3],
    format: u32,
    channels: u32,
    flags: u32,
}

impl ArrayShape {
    /// Reads a CUDA_ARRAY_DESCRIPTOR: width, height at 0, 8; format, channels at 16, 20.
    fn read_2d(descriptor: *const c_void) -> Self {
        Self {
            sides: [read_field(descriptor, 0), read_field(descriptor, 8), 0],
            format: read_field(descriptor, 16),
            channels: read_field(descriptor, 20),
            flags: 0,
        }
    }

    /// Reads a CUDA_ARRAY3D_DESCRIPTOR: width, height, depth at 0, 8, 16; format, channels, flags
    /// at 24, 28, 32.
    fn read_3d(descriptor: *const c_void) -> Self {
        Self {
            sides: [read_field(descriptor, 0), read_field(descriptor, 8), read_field(descriptor, 16)],
            format: read_field(descriptor, 24),
            channels: read_field(descriptor, 28),
            flags: read_field(descriptor, 32),
        }
    }

    /// Bytes of `levels` mipmap levels. Each level halves every side of the previous one, except
    /// the number of layers.
    fn bytes(&self, levels: u32) -> u64 {
        const LAYERED: u32 = 1;
        let mut bytes = 0_u64;
        let mut sides = self.sides;
        for _ in 0..levels.clamp(1, 64) {
            let texels = sides.iter().fold(1_u64, |texels, side| texels.saturating_mul((*side).max(1)));
            bytes = bytes.saturating_add(texels.saturating_mul(channel_bits(self.format)) / 8);
            let halved = if self.flags & LAYERED == 0 { 3 } else { 2 };
            for side in &mut sides[..halved] {
                *side /= 2;
            }
        }
        let counts_channels = matches!(self.format, 0x01..=0x20);
        if counts_channels { bytes.saturating_mul(u64::from(self.channels)) } else { bytes }
    }
}

/// Bits of one channel, or of one texel for formats that imply their channels; 0 if unknown.
fn channel_bits(format: u32) -> u64 {
    match format {
        0x01 | 0x08 | 0xc0 | 0xc6 | 0x93..=0x96 | 0x99..=0x9e => 8,
        0x02 | 0x09 | 0x10 | 0xc1 | 0xc3 | 0xc7 | 0xc9 => 16,
        0x03 | 0x0a | 0x20 | 0xc2 | 0xc4 | 0xc8 | 0xca | 0x50 => 32,
        0xc5 | 0xcb => 64,
        0x91 | 0x92 | 0x97 | 0x98 => 4,
        0xb0 => 12,
        _ => 0,
    }
}

fn fill_size(draft: &mut Draft, shape: ArrayShape, levels: c_uint) {
    draft.size = shape.bytes(levels);
    draft.aux = [current_context(), u64::from(levels)];
    draft.flags = FLAG_ESTIMATED;
    if shape.flags & MAPPED_LATER != 0 {
        draft.flags |= FLAG_UNBACKED;
    }
}

fn fill_handle(event: &mut Event, handle: *const u64, mipmapped: bool) {
    event.addr = read_out(handle);
    if let Some(bytes) = array_bytes(event.addr, event.device, mipmapped) {
        event.size = bytes;
        event.flags &= !FLAG_ESTIMATED;
    }
}

driver_hooks! { family 4;
    cuArrayCreate_v2 since 3_020 = "cuArrayCreate"
    (handle: *mut u64, descriptor: *const c_void) => ARRAY_ALLOC {
        before |draft| { fill_size(draft, ArrayShape::read_2d(descriptor), 0) }
        after |event| { fill_handle(event, handle, false) }
    }

    cuArray3DCreate_v2 since 3_020 = "cuArray3DCreate"
    (handle: *mut u64, descriptor: *const c_void) => ARRAY_ALLOC {
        before |draft| { fill_size(draft, ArrayShape::read_3d(descriptor), 0) }
        after |event| { fill_handle(event, handle, false) }
    }

    cuArrayDestroy since 2_000 = "cuArrayDestroy"
    (handle: u64) => ARRAY_FREE {
        before |draft| { draft.addr = handle }
    }

    cuMipmappedArrayCreate since 5_000 = "cuMipmappedArrayCreate"
    (handle: *mut u64, descriptor: *const c_void, levels: c_uint) => ARRAY_ALLOC {
        before |draft| { fill_size(draft, ArrayShape::read_3d(descriptor), levels) }
        after |event| { fill_handle(event, handle, true) }
    }

    cuMipmappedArrayDestroy since 5_000 = "cuMipmappedArrayDestroy"
    (handle: u64) => ARRAY_FREE {
        before |draft| { draft.addr = handle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_bytes_follow_from_descriptor() {
        let float4 = |sides, flags| ArrayShape { sides, format: 0x20, channels: 4, flags };
        assert_eq!(float4([64, 0, 0], 0).bytes(0), 1024);
        assert_eq!(float4([64, 32, 2], 0).bytes(1), 65536);
        assert_eq!(float4([4, 4, 0], 0).bytes(3), (16 + 4 + 1) * 16);
        assert_eq!(float4([4, 4, 2], 1).bytes(2), (32 + 8) * 16, "layers are not halved");
        let compressed = ArrayShape { sides: [8, 8, 0], format: 0x91, channels: 4, flags: 0 };
        assert_eq!(compressed.bytes(1), 32, "the format implies the channels");
        assert_eq!(float4([u64::MAX, u64::MAX, 1], 0).bytes(1), u64::MAX / 8 * 4, "no overflow");
    }
}
