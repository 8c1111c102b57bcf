//! Allocation, pools, copies, and pointer queries.

use simgpu_common::{ApiResult, In, Out};

use super::{INVALID_VALUE, context, device, initialised, runtime};
use crate::driver::{Driver, IpcHandle, driver, ok};
use crate::versions::wheel_versions;

/// Allocates through the driver; as in the real runtime, 0 bytes succeed with a null address.
fn malloc(out: Out<u64>, size: u64, how: impl FnOnce(&Driver, u64) -> u32) -> ApiResult {
    out.check()?;
    let driver = context()?;
    if size == 0 {
        return out.put(0);
    }
    let mut addr = 0_u64;
    ok(how(driver, &raw mut addr as u64))?;
    out.put(addr)
}

fn free(addr: u64, how: impl FnOnce(&Driver) -> u32) -> ApiResult {
    let driver = context()?;
    if addr == 0 { Ok(()) } else { ok(how(driver)) }
}

/// `cudaPointerAttributes`: 24 bytes, 88 since CUDA 13.
fn pointer_attributes(out: Out<u64>, addr: u64) -> ApiResult {
    out.check()?;
    let driver = context()?;
    let (mut kind, mut managed, mut ordinal) = (0_u32, 0_u32, 0_i32);
    let (mut device_pointer, mut host_pointer) = (0_u64, 0_u64);
    let which = [2_u32, 8, 9, 3, 4];
    let places = [
        &raw mut kind as u64,
        &raw mut managed as u64,
        &raw mut ordinal as u64,
        &raw mut device_pointer as u64,
        &raw mut host_pointer as u64,
    ];
    ok((driver.pointer_attributes)(5, which.as_ptr(), places.as_ptr(), addr))?;
    // cudaMemoryType: 0 unregistered, 1 host, 2 device, 3 managed.
    let kind = if managed != 0 { 3 } else { kind };
    if kind == 0 {
        (ordinal, device_pointer, host_pointer) = (-2, 0, addr);
    }
    let first = u64::from(kind) | (u64::from(ordinal as u32) << 32);
    let reserved = if wheel_versions().runtime >= 13000 { 8 } else { 0 };
    out.put_all([first, device_pointer, host_pointer].into_iter().chain((0..reserved).map(|_| 0)));
    Ok(())
}

/// `CUDA_MEMCPY2D` for linear memory.
#[repr(C)]
#[derive(Default)]
struct Copy2d {
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

/// CU_MEMORYTYPE_UNIFIED: the driver resolves the address.
const UNIFIED: u32 = 4;

fn rows(dst: u64, dst_pitch: u64, src: u64, src_pitch: u64, width: u64, height: u64) -> Copy2d {
    Copy2d {
        src_type: UNIFIED,
        src_device: src,
        src_pitch,
        dst_type: UNIFIED,
        dst_device: dst,
        dst_pitch,
        width,
        height,
        ..Copy2d::default()
    }
}

/// `cudaMemPoolProps`; same layout as in the driver.
type PoolProps = u64;

/// Channel descriptor: bits of x, y, z, w, and the kind (0 signed, 1 unsigned, 2 float).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ChannelDesc {
    bits: [i32; 4],
    kind: u32,
}

impl ChannelDesc {
    /// Returns the driver's array format and number of channels.
    fn format(self) -> ApiResult<(u32, u32)> {
        let channels = self.bits.iter().filter(|&&bits| bits > 0).count() as u32;
        let format = match (self.kind, self.bits[0]) {
            (0, 8) => 8,
            (0, 16) => 9,
            (0, 32) => 0x0a,
            (1, 8) => 1,
            (1, 16) => 2,
            (1, 32) => 3,
            (2, 16) => 0x10,
            (2, 32) => 0x20,
            _ => return Err(INVALID_VALUE),
        };
        Ok((format, channels))
    }
}

/// The layout of `CUDA_ARRAY3D_DESCRIPTOR`, for the driver.
#[repr(C)]
struct Array3d {
    size: [u64; 3],
    format: u32,
    channels: u32,
    flags: u32,
    reserved: u32,
}

fn array_3d(desc: In<ChannelDesc>, size: [u64; 3], flags: u32) -> ApiResult<Array3d> {
    let (format, channels) = desc.get()?.format()?;
    Ok(Array3d { size, format, channels, flags, reserved: 0 })
}

/// `cudaExtent`, passed by value in memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Extent {
    width: u64,
    height: u64,
    depth: u64,
}

/// The layout of `cudaPitchedPtr`, passed by value.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct PitchedPtr {
    ptr: u64,
    pitch: u64,
    xsize: u64,
    ysize: u64,
}

runtime! {
    cudaMalloc(out: Out<u64>, size: u64) { malloc(out, size, |driver, at| (driver.mem_alloc)(at, size)) }
    cudaFree(addr: u64) { free(addr, |driver| (driver.mem_free)(addr)) }
    cudaMallocManaged(out: Out<u64>, size: u64, flags: u32) {
        malloc(out, size, |driver, at| (driver.mem_alloc_managed)(at, size, flags))
    }
    cudaMallocPitch(out: Out<u64>, pitch: u64, width: u64, height: u64) {
        malloc(out, width.saturating_mul(height), |driver, at| (driver.mem_alloc_pitch)(at, pitch, width, height, 4))
    }
    cudaMalloc3D(out: Out<PitchedPtr>, extent: Extent) {
        out.check()?;
        let (mut ptr, mut pitch) = (0_u64, 0_u64);
        let rows = extent.height.saturating_mul(extent.depth);
        let driver = context()?;
        ok((driver.mem_alloc_pitch)(&raw mut ptr as u64, &raw mut pitch as u64, extent.width, rows, 4))?;
        out.put(PitchedPtr { ptr, pitch, xsize: extent.width, ysize: extent.height })
    }
    cudaHostAlloc(out: Out<u64>, size: u64, flags: u32) {
        malloc(out, size, |driver, at| (driver.mem_host_alloc)(at, size, flags))
    }
    cudaMallocHost(out: Out<u64>, size: u64) { malloc(out, size, |driver, at| (driver.mem_host_alloc)(at, size, 0)) }
    cudaFreeHost(addr: u64) { free(addr, |driver| (driver.mem_free_host)(addr)) }
    cudaHostRegister(addr: u64, size: u64, flags: u32) { ok((context()?.mem_host_register)(addr, size, flags)) }
    cudaHostUnregister(addr: u64) { ok((context()?.mem_host_unregister)(addr)) }
    cudaHostGetDevicePointer(out: u64, addr: u64, flags: u32) { ok((context()?.mem_host_pointer)(out, addr, flags)) }
    cudaHostGetFlags(out: u64, addr: u64) { ok((context()?.mem_host_flags)(out, addr)) }
    cudaMemGetInfo(free: Out<u64>, total: Out<u64>) {
        let (mut left, mut all) = (0, 0);
        ok((context()?.mem_info)(&raw mut left, &raw mut all))?;
        free.put(left)?;
        total.put(all)
    }
    cudaPointerGetAttributes(out: Out<u64>, addr: u64) { pointer_attributes(out, addr) }
    cudaMemAdvise__cuda12(addr: u64, size: u64, advice: u32, device: i32) {
        ok((context()?.mem_advise)(addr, size, advice, device))
    }
    cudaMemAdvise(addr: u64, size: u64, advice: u32, _location: u64) { ok((context()?.mem_advise)(addr, size, advice, 0)) }
    cudaMemPrefetchAsync__cuda12(addr: u64, size: u64, device: i32, stream: u64) {
        ok((context()?.mem_prefetch)(addr, size, device, stream))
    }
    cudaMemPrefetchAsync(addr: u64, size: u64, _location: u64, _flags: u32, stream: u64) {
        ok((context()?.mem_prefetch)(addr, size, 0, stream))
    }

    cudaMallocAsync(out: Out<u64>, size: u64, stream: u64) {
        malloc(out, size, |driver, at| (driver.alloc_async)(at, size, stream))
    }
    cudaMallocAsync_ptsz(out: Out<u64>, size: u64, stream: u64) {
        malloc(out, size, |driver, at| (driver.alloc_async_ptsz)(at, size, stream))
    }
    cudaMallocFromPoolAsync(out: Out<u64>, size: u64, pool: u64, stream: u64) {
        malloc(out, size, |driver, at| (driver.alloc_from_pool)(at, size, pool, stream))
    }
    cudaMallocFromPoolAsync_ptsz(out: Out<u64>, size: u64, pool: u64, stream: u64) {
        malloc(out, size, |driver, at| (driver.alloc_from_pool_ptsz)(at, size, pool, stream))
    }
    cudaFreeAsync(addr: u64, stream: u64) { free(addr, |driver| (driver.free_async)(addr, stream)) }
    cudaFreeAsync_ptsz(addr: u64, stream: u64) { free(addr, |driver| (driver.free_async_ptsz)(addr, stream)) }
    cudaMemPoolCreate(out: u64, props: PoolProps) { ok((context()?.pool_create)(out, props)) }
    cudaMemPoolDestroy(pool: u64) { ok((context()?.pool_destroy)(pool)) }
    cudaMemPoolTrimTo(pool: u64, keep: u64) { ok((context()?.pool_trim)(pool, keep)) }
    cudaMemPoolGetAttribute(pool: u64, which: u32, out: u64) { ok((context()?.pool_get)(pool, which, out)) }
    cudaMemPoolSetAttribute(pool: u64, which: u32, value: u64) { ok((context()?.pool_set)(pool, which, value)) }
    cudaMemPoolSetAccess(pool: u64, access: u64, count: u64) { ok((context()?.pool_access)(pool, access, count)) }
    cudaDeviceGetDefaultMemPool(out: u64, device: u32) { ok((initialised()?.default_pool)(out, device)) }
    cudaDeviceGetMemPool(out: u64, device: u32) { ok((initialised()?.device_pool)(out, device)) }
    cudaDeviceSetMemPool(device: u32, pool: u64) { ok((initialised()?.set_device_pool)(device, pool)) }
    cudaDeviceGraphMemTrim(device: u32) { ok((initialised()?.graph_trim)(device)) }
    cudaDeviceGetGraphMemAttribute(device: u32, which: u32, out: u64) { ok((initialised()?.graph_mem_get)(device, which, out)) }
    cudaDeviceSetGraphMemAttribute(device: u32, which: u32, value: u64) { ok((initialised()?.graph_mem_set)(device, which, value)) }

    cudaMallocArray(out: u64, desc: In<ChannelDesc>, width: u64, height: u64, flags: u32) {
        let made = array_3d(desc, [width, height, 0], flags)?;
        ok((context()?.array_create_3d)(out, &raw const made as u64))
    }
    cudaMalloc3DArray(out: u64, desc: In<ChannelDesc>, extent: Extent, flags: u32) {
        let made = array_3d(desc, [extent.width, extent.height, extent.depth], flags)?;
        ok((context()?.array_create_3d)(out, &raw const made as u64))
    }
    cudaFreeArray(array: u64) { free(array, |driver| (driver.array_destroy)(array)) }
    cudaMallocMipmappedArray(out: u64, desc: In<ChannelDesc>, extent: Extent, levels: u32, flags: u32) {
        let made = array_3d(desc, [extent.width, extent.height, extent.depth], flags)?;
        ok((context()?.mipmap_create)(out, &raw const made as u64, levels))
    }
    cudaFreeMipmappedArray(array: u64) { free(array, |driver| (driver.mipmap_destroy)(array)) }

    cudaMemcpy(dst: u64, src: u64, size: u64, _kind: u32) { ok((context()?.copy)(dst, src, size)) }
    cudaMemcpyAsync(dst: u64, src: u64, size: u64, _kind: u32, stream: u64) {
        ok((context()?.copy_async)(dst, src, size, stream))
    }
    cudaMemcpyPeer(dst: u64, to: u64, src: u64, from: u64, size: u64) {
        ok((context()?.copy_peer)(dst, to, src, from, size, 0))
    }
    cudaMemcpyPeerAsync(dst: u64, to: u64, src: u64, from: u64, size: u64, stream: u64) {
        ok((context()?.copy_peer)(dst, to, src, from, size, stream))
    }
    cudaMemcpy2D(dst: u64, dst_pitch: u64, src: u64, src_pitch: u64, width: u64, height: u64, _kind: u32) {
        let made = rows(dst, dst_pitch, src, src_pitch, width, height);
        ok((context()?.copy_2d)(&raw const made as u64))
    }
    cudaMemcpy2DAsync(
        dst: u64, dst_pitch: u64, src: u64, src_pitch: u64, width: u64, height: u64, _kind: u32, stream: u64,
    ) {
        let made = rows(dst, dst_pitch, src, src_pitch, width, height);
        ok((context()?.copy_2d_async)(&raw const made as u64, stream))
    }
    cudaMemset(dst: u64, value: i32, size: u64) { ok((context()?.set_8)(dst, value as u8, size)) }
    cudaMemsetAsync(dst: u64, value: i32, size: u64, stream: u64) {
        ok((context()?.set_8_async)(dst, value as u8, size, stream))
    }
    cudaMemset2DAsync(dst: u64, pitch: u64, value: i32, width: u64, height: u64, stream: u64) {
        ok((context()?.set_2d_async)(dst, pitch, value as u8, width, height, stream))
    }

    cudaIpcGetMemHandle(out: u64, addr: u64) { ok((context()?.ipc_get)(out, addr)) }
    cudaIpcOpenMemHandle(out: u64, handle: IpcHandle, flags: u32) { ok((context()?.ipc_open)(out, handle, flags)) }
    cudaIpcCloseMemHandle(addr: u64) { ok((context()?.ipc_close)(addr)) }
    cudaIpcGetEventHandle(_out: u64, _event: u64) { Err(super::NOT_SUPPORTED) }
    cudaIpcOpenEventHandle(_out: u64, _handle: IpcHandle) { Err(super::NOT_SUPPORTED) }
}

/// Returns the address of a device variable; all registered images share one module.
pub(super) fn symbol_address(symbol: u64) -> ApiResult<u64> {
    device()?;
    let driver = context()?;
    let name = format!("symbol {symbol:#x}\0");
    let (mut addr, mut size) = (0, 0);
    ok((driver.module_global)(&raw mut addr, &raw mut size, 1, name.as_ptr() as u64))?;
    Ok(addr)
}

runtime! {
    cudaGetSymbolAddress(out: Out<u64>, symbol: u64) { out.put(symbol_address(symbol)?) }
    cudaMemcpyToSymbol(symbol: u64, src: u64, size: u64, offset: u64, _kind: u32) {
        let to = symbol_address(symbol)? + offset;
        ok((driver()?.copy)(to, src, size))
    }
    cudaMemcpyFromSymbol(dst: u64, symbol: u64, size: u64, offset: u64, _kind: u32) {
        let from = symbol_address(symbol)? + offset;
        ok((driver()?.copy)(dst, from, size))
    }
    cudaMemcpyToSymbolAsync(symbol: u64, src: u64, size: u64, offset: u64, _kind: u32, stream: u64) {
        let to = symbol_address(symbol)? + offset;
        ok((driver()?.copy_async)(to, src, size, stream))
    }
}
