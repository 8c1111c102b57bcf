//! Copies and fills of device memory.
//!
//! Kernels do not run, so bytes copied to the device would be read back as their results. PyTorch
//! would take them for sizes and indices, and crash. By default, writes to device memory are
//! dropped and reads return zeros (`SIMGPU_COPY`). Addresses are always checked.

use std::cell::Cell;

use crate::api::streams::with_stream;
use crate::config::{CopyMode, SMALL_COPY};
use crate::entry::{capture_mode, exports, tid};
use crate::ffi::{In, Out};
use crate::result_code::{ApiResult, INVALID_VALUE};
use crate::state::device::BlockOrigin;
use crate::state::graph::kind;
use crate::state::{DriverState, StreamKey};
use crate::values;
use crate::values::known_bytes::{self, Knowledge};

/// The memory at one end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopySide {
    Host,
    Device,
}

/// Addresses outside the device windows are host memory. So is managed memory: the host writes it.
fn side(state: &DriverState, addr: u64, size: u64) -> ApiResult<CopySide> {
    match state.device_range(addr, size) {
        None => Ok(CopySide::Host),
        Some(false) => Err(INVALID_VALUE),
        Some(true) => {
            let managed = state
                .device_of(addr)
                .and_then(|at| state.devices[at as usize].block_at(addr))
                .is_some_and(|(_, block)| block.home == BlockOrigin::Managed);
            Ok(if managed { CopySide::Host } else { CopySide::Device })
        }
    }
}

thread_local! {
    /// Set by `simgpuMoveBytes`: all copies of this thread move bytes.
    static MOVES_BYTES: Cell<bool> = const { Cell::new(false) };
}

fn really(state: &DriverState, size: u64) -> bool {
    match state.config.copy {
        _ if MOVES_BYTES.get() => true,
        CopyMode::Zero => size <= state.config.values_bytes,
        CopyMode::Small => size <= SMALL_COPY,
        CopyMode::All => true,
    }
}

/// The action of a copy, decided under the lock and executed after it.
enum CopyPlan {
    Nothing,
    Zeros,
    Bytes { from: CopySide, to: CopySide },
}

fn plan(state: &DriverState, dst: u64, src: u64, size: u64) -> ApiResult<CopyPlan> {
    if size == 0 {
        return Ok(CopyPlan::Nothing);
    }
    if dst == 0 || src == 0 {
        return Err(INVALID_VALUE);
    }
    let real = really(state, size);
    let (to, from) = (side(state, dst, size)?, side(state, src, size)?);
    Ok(match (to, from) {
        (CopySide::Host, CopySide::Host) => CopyPlan::Bytes { from, to },
        _ if real => CopyPlan::Bytes { from, to },
        (CopySide::Host, CopySide::Device) => CopyPlan::Zeros,
        (CopySide::Device, _) => CopyPlan::Nothing,
    })
}

/// Follows what is known of the memory of a copy that moves bytes, before it does.
fn follow_knowledge(dst: u64, src: u64, size: u64, from: CopySide, to: CopySide) {
    match (from, to) {
        (CopySide::Host, CopySide::Host) => {}
        (CopySide::Host, CopySide::Device) => known_bytes::on_written(dst, size, Knowledge::Known),
        (CopySide::Device, CopySide::Device) => {
            known_bytes::on_written(dst, size, known_bytes::knowledge(src, size));
        }
        (CopySide::Device, CopySide::Host) => {
            values::unknown_reads::on_read(known_bytes::knowledge(src, size));
        }
    }
}

/// Copies on a stream; during capture this adds a node and moves nothing.
fn copy(dst: u64, src: u64, size: u64, stream: u64, per_thread: bool, waits: bool) -> ApiResult {
    let planned = with_stream(stream, per_thread, |state, key| {
        if waits {
            state.graphs.unsafe_call(tid(), capture_mode())?;
        }
        let planned = plan(state, dst, src, size)?;
        Ok(if state.captured_work(key, kind::MEMCPY)? { CopyPlan::Nothing } else { planned })
    })?;
    match planned {
        CopyPlan::Nothing => known_bytes::forget(dst, size),
        CopyPlan::Zeros => values::unknown_reads::on_read(Knowledge::Placeholder),
        CopyPlan::Bytes { from, to } => {
            let planted = if to == CopySide::Host { values::take_planted(size) } else { None };
            if let Some((number, knowledge)) = planted {
                values::unknown_reads::on_read(knowledge);
                // SAFETY: by the contract of a copy, the caller's host memory has `size` bytes.
                unsafe { std::ptr::copy(number.to_le_bytes().as_ptr(), dst as *mut u8, size as usize) };
                return Ok(());
            }
            if values::are_on() {
                follow_knowledge(dst, src, size, from, to);
            }
        }
    }
    match planned {
        CopyPlan::Nothing => {}
        // SAFETY: by the contract of a copy, the caller's host memory is valid for `size` bytes.
        CopyPlan::Zeros => unsafe { std::ptr::write_bytes(dst as *mut u8, 0, size as usize) },
        // SAFETY: as above; the device side is live and large enough. `copy` allows overlap.
        CopyPlan::Bytes { .. } => unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, size as usize) },
    }
    Ok(())
}

/// The memory that a fill writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Write {
    Nothing,
    Host,
    Device,
}

fn fill(dst: u64, pattern: &[u8], count: u64, stream: u64, per_thread: bool) -> ApiResult {
    let size = count.checked_mul(pattern.len() as u64).ok_or(INVALID_VALUE)?;
    let write = with_stream(stream, per_thread, |state: &mut DriverState, key: StreamKey| {
        if size == 0 {
            return Ok(Write::Nothing);
        }
        let host = dst == 0 || side(state, dst, size)? == CopySide::Host;
        if host && state.host_block_at(dst).is_none() && state.window_of(dst).is_none() {
            return Err(INVALID_VALUE);
        }
        Ok(match (state.captured_work(key, kind::MEMSET)?, host) {
            (false, true) => Write::Host,
            (false, false) if really(state, size) => Write::Device,
            _ => Write::Nothing,
        })
    })?;
    if values::are_on() && write != Write::Host && size > 0 {
        // Kernels add their results to zeros.
        let is_zero = pattern.iter().all(|byte| *byte == 0);
        if write == Write::Device {
            let knowledge = if is_zero { Knowledge::Placeholder } else { Knowledge::Known };
            known_bytes::on_written(dst, size, knowledge);
        } else {
            known_bytes::forget(dst, size);
        }
    }
    if write != Write::Nothing {
        for (at, byte) in (0..size).zip(pattern.iter().cycle()) {
            // SAFETY: the range lies in live, writable simulated memory.
            unsafe { ((dst + at) as *mut u8).write(*byte) };
        }
    }
    Ok(())
}

fn fill_rows(dst: u64, pitch: u64, pattern: &[u8], width: u64, height: u64, stream: u64) -> ApiResult {
    (0..height).try_for_each(|row| fill(dst + row * pitch, pattern, width, stream, false))
}

/// The layout of `CUDA_MEMCPY2D`, for arrays and linear memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy2d {
    src_x: u64,
    src_y: u64,
    src_type: u32,
    src_host: u64,
    src_device: u64,
    src_array: u64,
    src_pitch: u64,
    dst_x: u64,
    dst_y: u64,
    dst_type: u32,
    dst_host: u64,
    dst_device: u64,
    dst_array: u64,
    dst_pitch: u64,
    width: u64,
    height: u64,
}

const HOST: u32 = 1;
const ARRAY: u32 = 3;

fn copy_rows(params: In<Copy2d>, stream: u64, per_thread: bool, waits: bool) -> ApiResult {
    let p = params.get()?;
    if p.src_type == ARRAY || p.dst_type == ARRAY {
        // Array contents cannot be read back: check the address, move nothing.
        return with_stream(stream, per_thread, |state, key| {
            state.captured_work(key, kind::MEMCPY).map(|_| ())
        });
    }
    let src = if p.src_type == HOST { p.src_host } else { p.src_device };
    let dst = if p.dst_type == HOST { p.dst_host } else { p.dst_device };
    (0..p.height).try_for_each(|row| {
        let from = src + (p.src_y + row) * p.src_pitch + p.src_x;
        let to = dst + (p.dst_y + row) * p.dst_pitch + p.dst_x;
        copy(to, from, p.width, stream, per_thread, waits)
    })
}

exports! {
    plain 2000 simgpuMoveBytes(enabled: u32) {
        MOVES_BYTES.set(enabled != 0);
        Ok(())
    }
    plain 2000 simgpuHookInitializers() {
        values::install_initializers();
        Ok(())
    }
    plain 2000 simgpuAreKnown(addr: u64, size: u64, out: Out<u32>) {
        out.put(u32::from(known_bytes::knowledge(addr, size) == Knowledge::Known))
    }
    plain 2000 simgpuAsPlaceholders(addr: u64, size: u64) {
        if values::are_on() && size <= values::limit_bytes() {
            known_bytes::on_written(addr, size, Knowledge::Placeholder);
        } else {
            known_bytes::forget(addr, size);
        }
        Ok(())
    }
    plain 2000 simgpuOnUnknownRead(function: u64) {
        values::unknown_reads::set_callback(function as usize);
        Ok(())
    }
    plain 4000 cuMemcpy(dst: u64, src: u64, size: u64) { copy(dst, src, size, 0, false, true) }
    plain 7000 cuMemcpy_ptds(dst: u64, src: u64, size: u64) { copy(dst, src, size, 0, true, true) }
    plain 4000 cuMemcpyAsync(dst: u64, src: u64, size: u64, stream: u64) { copy(dst, src, size, stream, false, false) }
    plain 7000 cuMemcpyAsync_ptsz(dst: u64, src: u64, size: u64, stream: u64) { copy(dst, src, size, stream, true, false) }
    plain 3020 cuMemcpyHtoD_v2(dst: u64, src: u64, size: u64) { copy(dst, src, size, 0, false, true) }
    plain 7000 cuMemcpyHtoD_v2_ptds(dst: u64, src: u64, size: u64) { copy(dst, src, size, 0, true, true) }
    plain 3020 cuMemcpyDtoH_v2(dst: u64, src: u64, size: u64) { copy(dst, src, size, 0, false, true) }
    plain 7000 cuMemcpyDtoH_v2_ptds(dst: u64, src: u64, size: u64) { copy(dst, src, size, 0, true, true) }
    plain 3020 cuMemcpyDtoD_v2(dst: u64, src: u64, size: u64) { copy(dst, src, size, 0, false, true) }
    plain 7000 cuMemcpyDtoD_v2_ptds(dst: u64, src: u64, size: u64) { copy(dst, src, size, 0, true, true) }
    plain 3020 cuMemcpyHtoDAsync_v2(dst: u64, src: u64, size: u64, stream: u64) { copy(dst, src, size, stream, false, false) }
    plain 7000 cuMemcpyHtoDAsync_v2_ptsz(dst: u64, src: u64, size: u64, stream: u64) { copy(dst, src, size, stream, true, false) }
    plain 3020 cuMemcpyDtoHAsync_v2(dst: u64, src: u64, size: u64, stream: u64) { copy(dst, src, size, stream, false, false) }
    plain 7000 cuMemcpyDtoHAsync_v2_ptsz(dst: u64, src: u64, size: u64, stream: u64) { copy(dst, src, size, stream, true, false) }
    plain 3020 cuMemcpyDtoDAsync_v2(dst: u64, src: u64, size: u64, stream: u64) { copy(dst, src, size, stream, false, false) }
    plain 7000 cuMemcpyDtoDAsync_v2_ptsz(dst: u64, src: u64, size: u64, stream: u64) { copy(dst, src, size, stream, true, false) }
    plain 4000 cuMemcpyPeer(dst: u64, _to: u64, src: u64, _from: u64, size: u64) { copy(dst, src, size, 0, false, true) }
    plain 4000 cuMemcpyPeerAsync(dst: u64, _to: u64, src: u64, _from: u64, size: u64, stream: u64) {
        copy(dst, src, size, stream, false, false)
    }
    plain 3020 cuMemcpy2D_v2(params: In<Copy2d>) { copy_rows(params, 0, false, true) }
    plain 3020 cuMemcpy2DUnaligned_v2(params: In<Copy2d>) { copy_rows(params, 0, false, true) }
    plain 3020 cuMemcpy2DAsync_v2(params: In<Copy2d>, stream: u64) { copy_rows(params, stream, false, false) }
    plain 7000 cuMemcpy2DAsync_v2_ptsz(params: In<Copy2d>, stream: u64) { copy_rows(params, stream, true, false) }

    plain 3020 cuMemsetD8_v2(dst: u64, value: u8, count: u64) { fill(dst, &[value], count, 0, false) }
    plain 3020 cuMemsetD16_v2(dst: u64, value: u16, count: u64) { fill(dst, &value.to_le_bytes(), count, 0, false) }
    plain 3020 cuMemsetD32_v2(dst: u64, value: u32, count: u64) { fill(dst, &value.to_le_bytes(), count, 0, false) }
    plain 3020 cuMemsetD8Async(dst: u64, value: u8, count: u64, stream: u64) { fill(dst, &[value], count, stream, false) }
    plain 7000 cuMemsetD8Async_ptsz(dst: u64, value: u8, count: u64, stream: u64) { fill(dst, &[value], count, stream, true) }
    plain 3020 cuMemsetD16Async(dst: u64, value: u16, count: u64, stream: u64) {
        fill(dst, &value.to_le_bytes(), count, stream, false)
    }
    plain 3020 cuMemsetD32Async(dst: u64, value: u32, count: u64, stream: u64) {
        fill(dst, &value.to_le_bytes(), count, stream, false)
    }
    plain 7000 cuMemsetD32Async_ptsz(dst: u64, value: u32, count: u64, stream: u64) {
        fill(dst, &value.to_le_bytes(), count, stream, true)
    }
    plain 3020 cuMemsetD2D8_v2(dst: u64, pitch: u64, value: u8, width: u64, height: u64) {
        fill_rows(dst, pitch, &[value], width, height, 0)
    }
    plain 3020 cuMemsetD2D8Async(dst: u64, pitch: u64, value: u8, width: u64, height: u64, stream: u64) {
        fill_rows(dst, pitch, &[value], width, height, stream)
    }
    plain 3020 cuMemsetD2D32_v2(dst: u64, pitch: u64, value: u32, width: u64, height: u64) {
        fill_rows(dst, pitch, &value.to_le_bytes(), width, height, 0)
    }
    plain 3020 cuMemsetD2D32Async(dst: u64, pitch: u64, value: u32, width: u64, height: u64, stream: u64) {
        fill_rows(dst, pitch, &value.to_le_bytes(), width, height, stream)
    }
}
