//! Kernels: registered by compiler-generated code, launched, never run.

use std::cell::RefCell;

use simgpu_common::{ApiResult, In, Out};

use super::{INVALID_VALUE, context, device, fat_binary, runtime};
use crate::driver::{driver, ok};

/// The layout of `dim3`, passed by value.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Dim3 {
    x: u32,
    y: u32,
    z: u32,
}

/// The launch configuration that `<<<grid, block, shared, stream>>>` pushes.
#[derive(Clone, Copy)]
struct Configuration {
    grid: Dim3,
    block: Dim3,
    shared: u64,
    stream: u64,
}

thread_local! {
    static PUSHED: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

fn launch(function: u64, grid: Dim3, block: Dim3, params: u64, shared: u64, stream: u64) -> ApiResult {
    let driver = context()?;
    ok((driver.launch)(
        function,
        grid.x,
        grid.y,
        grid.z,
        block.x,
        block.y,
        block.z,
        shared as u32,
        stream,
        params,
        0,
    ))
}

/// The start of `cudaLaunchConfig_t`; same layout as in the driver.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct LaunchConfig {
    grid: Dim3,
    block: Dim3,
    shared: u64,
    stream: u64,
    attributes: u64,
    count: u32,
}

/// `CU_FUNC_ATTRIBUTE_BINARY_VERSION`. The driver answers with the GPU's own capability.
const BINARY_VERSION: u32 = 6;

/// `cudaFuncAttributes`: 144 bytes in CUDA 12 and 13.
fn function_attributes(out: Out<u8>, function: u64) -> ApiResult {
    out.check()?;
    let driver = context()?;
    let attribute = |which: u32| {
        let mut value = 0;
        ok((driver.function_attribute)(&raw mut value, which, function)).map(|()| value)
    };
    let mut bytes = [0_u8; 144];
    // sharedSizeBytes, constSizeBytes and localSizeBytes (offsets 0, 8, 16) stay zero.
    for (at, which) in [(24, 0), (28, 4), (32, 5), (36, BINARY_VERSION), (44, 8)] {
        bytes[at..at + 4].copy_from_slice(&attribute(which)?.to_le_bytes());
    }
    let capability = u32::try_from(attribute(BINARY_VERSION)?).map_err(|_| INVALID_VALUE)?;
    if let Some(code) = fat_binary::code_of(function, capability) {
        bytes[32..36].copy_from_slice(&code.ptx.to_le_bytes());
        bytes[36..40].copy_from_slice(&code.binary.to_le_bytes());
    }
    out.put_all(bytes);
    Ok(())
}

fn occupancy(out: u64, function: u64, block: i32, shared: u64, flags: u32) -> ApiResult {
    ok((context()?.occupancy)(out, function, block, shared, flags))
}

runtime! {
    __cudaPushCallConfiguration(grid: Dim3, block: Dim3, shared: u64, stream: u64) {
        PUSHED.with_borrow_mut(|pushed| pushed.push(Configuration { grid, block, shared, stream }));
        Ok(())
    }
    __cudaPopCallConfiguration(grid: Out<Dim3>, block: Out<Dim3>, shared: Out<u64>, stream: Out<u64>) {
        let popped = PUSHED.with_borrow_mut(Vec::pop).ok_or(INVALID_VALUE)?;
        grid.put(popped.grid)?;
        block.put(popped.block)?;
        shared.put(popped.shared)?;
        stream.put(popped.stream)
    }
    cudaLaunchKernel(function: u64, grid: Dim3, block: Dim3, params: u64, shared: u64, stream: u64) {
        launch(function, grid, block, params, shared, stream)
    }
    __cudaLaunchKernel(kernel: u64, grid: Dim3, block: Dim3, params: u64, shared: u64, stream: u64) {
        launch(kernel, grid, block, params, shared, stream)
    }
    cudaLaunchCooperativeKernel(function: u64, grid: Dim3, block: Dim3, params: u64, shared: u64, stream: u64) {
        launch(function, grid, block, params, shared, stream)
    }
    cudaLaunchKernelExC(config: In<LaunchConfig>, function: u64, params: u64) {
        let config = config.get()?;
        launch(function, config.grid, config.block, params, config.shared, config.stream)
    }
    __cudaGetKernel(out: Out<u64>, function: u64) { out.put(function) }
    __cudaInitModule(_handle: u64) { Ok(()) }
    cudaGetKernel(out: Out<u64>, function: u64) { out.put(function) }
    cudaGetFuncBySymbol(out: Out<u64>, function: u64) { out.put(function) }
    cudaFuncGetAttributes(out: Out<u8>, function: u64) { function_attributes(out, function) }
    cudaFuncSetAttribute(_function: u64, _which: u32, _value: i32) { Ok(()) }
    cudaFuncSetCacheConfig(_function: u64, _config: u32) { Ok(()) }
    cudaFuncSetSharedMemConfig(_function: u64, _config: u32) { Ok(()) }
    cudaKernelSetAttributeForDevice(_kernel: u64, _which: u32, _value: i32, _device: i32) { Ok(()) }
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(out: u64, function: u64, block: i32, shared: u64) {
        occupancy(out, function, block, shared, 0)
    }
    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out: u64, function: u64, block: i32, shared: u64, flags: u32) {
        occupancy(out, function, block, shared, flags)
    }
    cudaOccupancyMaxActiveClusters(out: Out<i32>, _function: u64, _config: u64) { out.put(66) }
    cudaOccupancyMaxPotentialClusterSize(out: Out<i32>, _function: u64, _config: u64) { out.put(8) }
    cudaOccupancyAvailableDynamicSMemPerBlock(out: Out<u64>, _function: u64, _blocks: i32, _size: i32) { out.put(48 << 10) }

    cudaLibraryLoadData(out: u64, image: u64, o: u64, v: u64, n: u32, lo: u64, lv: u64, ln: u32) {
        ok((context()?.library_load)(out, image, o, v, n, lo, lv, ln))
    }
    cudaLibraryLoadFromFile(out: u64, path: u64, o: u64, v: u64, n: u32, lo: u64, lv: u64, ln: u32) {
        ok((context()?.library_load_file)(out, path, o, v, n, lo, lv, ln))
    }
    cudaLibraryUnload(library: u64) { ok((context()?.library_unload)(library)) }
    cudaLibraryGetKernel(out: u64, library: u64, name: u64) { ok((context()?.library_kernel)(out, library, name)) }
    cudaLibraryGetGlobal(addr: u64, size: u64, library: u64, name: u64) {
        ok((context()?.library_global)(addr, size, library, name))
    }
    cudaLibraryGetManaged(_addr: u64, _size: u64, _library: u64, _name: u64) { Err(500) }
    cudaLibraryGetUnifiedFunction(_out: u64, _library: u64, _name: u64) { Err(500) }
    cudaLibraryGetKernelCount(out: Out<u32>, _library: u64) { out.put(0) }
    cudaCreateTextureObject(_out: u64, _resource: u64, _texture: u64, _view: u64) {
        device()?;
        Err(super::NOT_SUPPORTED)
    }
    cudaGetExportTable(_table: u64, _id: u64) {
        // Undocumented tables serve the vendor's own libraries, which are out of scope.
        driver()?;
        Err(super::NOT_SUPPORTED)
    }
}

#[unsafe(export_name = "simgpu_fn___cudaRegisterFatBinary")]
extern "C" fn register_fat_binary(wrapper: u64) -> u64 {
    // The handle of an image is its wrapper.
    wrapper
}

#[unsafe(export_name = "simgpu_fn___cudaRegisterFatBinaryEnd")]
extern "C" fn register_fat_binary_end(_handle: u64) {}

#[unsafe(export_name = "simgpu_fn___cudaUnregisterFatBinary")]
extern "C" fn unregister_fat_binary(_handle: u64) {}

#[unsafe(export_name = "simgpu_fn___cudaRegisterFunction")]
extern "C" fn register_function(wrapper: u64, function: u64, _device: u64, _name: u64, _limit: i32) {
    fat_binary::register_kernel(wrapper, function);
}

#[unsafe(export_name = "simgpu_fn___cudaRegisterVar")]
extern "C" fn register_variable(
    _handle: u64,
    _host: u64,
    _device: u64,
    _name: u64,
    _external: i32,
    _size: u64,
) {
}
