//! Modules, libraries, functions and launches. No code is read or run.

use crate::api::streams::with_stream;
use crate::entry::{config, current, exports, logged, ready, with_context, with_state};
use crate::ffi::{In, Out, Text};
use crate::log::LogRecord;
use crate::result_code::{ApiResult, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED};
use crate::state::GLOBAL_SIZE;
use crate::state::graph::kind;

fn fresh(out: Out<u64>) -> ApiResult {
    with_context(|state, _| out.put(state.handle()))
}

/// `cuLibrary*` needs no current context.
fn fresh_anywhere(out: Out<u64>) -> ApiResult {
    with_state(|state| out.put(state.handle()))
}

/// Logs the load of code: a real device uses memory for it that no call reports.
fn load(api: &'static str, out: Out<u64>, needs_context: bool) -> ApiResult {
    logged(api, LogRecord::default(), |state, record| {
        out.check()?;
        if needs_context {
            current(state)?;
        }
        let handle = state.handle();
        record.push_hex_field("module", handle);
        out.put(handle)
    })
}

fn unload(api: &'static str, module: u64, needs_context: bool) -> ApiResult {
    let mut asked = LogRecord::default();
    asked.push_hex_field("module", module);
    logged(api, asked, |state, _| if needs_context { current(state).map(|_| ()) } else { Ok(()) })
}

fn global(out: Out<u64>, size: Out<u64>, module: u64, name: Text) -> ApiResult {
    with_context(|state, current| {
        let addr = state.global(current.device, module, name.get()?.to_bytes())?;
        out.put_if_wanted(addr);
        size.put_if_wanted(GLOBAL_SIZE);
        Ok(())
    })
}

fn launch(function: u64, stream: u64, per_thread: bool) -> ApiResult {
    if function == 0 {
        return Err(INVALID_HANDLE);
    }
    with_stream(stream, per_thread, |state, key| state.captured_work(key, kind::KERNEL).map(|_| ()))
}

fn function_attribute(out: Out<i32>, attribute: u32, function: u64) -> ApiResult {
    ready()?;
    if function == 0 {
        return Err(INVALID_HANDLE);
    }
    let capability = (10 * config().compute.0 + config().compute.1) as i32;
    out.put(match attribute {
        0 => 1024,
        4 => 32,
        5 | 6 => capability,
        8 => 48 << 10,
        1..=3 | 7 | 9..=16 => 0,
        _ => return Err(INVALID_VALUE),
    })
}

/// Returns how many blocks of a size fit on a multiprocessor with 2048 threads.
fn occupancy(out: Out<i32>, block: i32) -> ApiResult {
    ready()?;
    if block <= 0 {
        return Err(INVALID_VALUE);
    }
    out.put((2048 / block).clamp(1, 32))
}

/// `CUlaunchConfig`: grid and block (6 words), shared memory, stream, attributes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaunchConfig {
    dimensions: [u32; 6],
    shared: u32,
    stream: u64,
    attributes: u64,
    count: u32,
}

exports! {
    memory 2000 cuModuleLoad(out: Out<u64>, _path: Text) { load(API, out, true) }
    memory 2000 cuModuleLoadData(out: Out<u64>, _image: u64) { load(API, out, true) }
    memory 2010 cuModuleLoadDataEx(out: Out<u64>, _image: u64, _count: u32, _options: u64, _values: u64) { load(API, out, true) }
    memory 2000 cuModuleLoadFatBinary(out: Out<u64>, _image: u64) { load(API, out, true) }
    memory 2000 cuModuleUnload(module: u64) { unload(API, module, true) }
    plain 2000 cuModuleGetFunction(out: Out<u64>, _module: u64, name: Text) {
        name.get()?;
        fresh(out)
    }
    plain 3020 cuModuleGetGlobal_v2(out: Out<u64>, size: Out<u64>, module: u64, name: Text) { global(out, size, module, name) }
    plain 11070 cuModuleGetLoadingMode(out: Out<u32>) { out.put(2) }
    plain 6050 cuLinkCreate_v2(_count: u32, _options: u64, _values: u64, out: Out<u64>) { fresh(out) }
    plain 6050 cuLinkAddData_v2(
        _state: u64, _kind: u32, _data: u64, _size: u64, _name: u64, _count: u32, _options: u64, _values: u64,
    ) {
        Ok(())
    }
    plain 6050 cuLinkAddFile_v2(_state: u64, _kind: u32, _path: Text, _count: u32, _options: u64, _values: u64) { Ok(()) }
    plain 5050 cuLinkComplete(_state: u64, cubin: Out<*const u8>, size: Out<u64>) {
        // The image is never read, only its address is used.
        static EMPTY: [u8; 64] = [0; 64];
        cubin.put(EMPTY.as_ptr())?;
        size.put_if_wanted(EMPTY.len() as u64);
        Ok(())
    }
    plain 5050 cuLinkDestroy(_state: u64) { Ok(()) }

    memory 12000 cuLibraryLoadData(
        out: Out<u64>, _image: u64, _options: u64, _values: u64, _count: u32, _lib_options: u64, _lib_values: u64, _lib_count: u32,
    ) {
        load(API, out, false)
    }
    memory 12000 cuLibraryLoadFromFile(
        out: Out<u64>, _path: Text, _options: u64, _values: u64, _count: u32, _lib_options: u64, _lib_values: u64, _lib_count: u32,
    ) {
        load(API, out, false)
    }
    memory 12000 cuLibraryUnload(library: u64) { unload(API, library, false) }
    plain 12000 cuLibraryGetKernel(out: Out<u64>, _library: u64, name: Text) {
        name.get()?;
        fresh_anywhere(out)
    }
    plain 12000 cuLibraryGetModule(out: Out<u64>, library: u64) { out.put(library) }
    plain 12000 cuLibraryGetGlobal(out: Out<u64>, size: Out<u64>, library: u64, name: Text) { global(out, size, library, name) }
    plain 12000 cuLibraryGetManaged(_out: Out<u64>, _size: Out<u64>, _library: u64, _name: Text) { Err(NOT_FOUND) }
    plain 12000 cuLibraryGetUnifiedFunction(_out: Out<u64>, _library: u64, _name: Text) { Err(NOT_FOUND) }
    plain 12040 cuLibraryGetKernelCount(out: Out<u32>, _library: u64) { out.put(0) }
    plain 12000 cuKernelGetFunction(out: Out<u64>, kernel: u64) { out.put(kernel) }
    plain 12000 cuKernelGetAttribute(out: Out<i32>, attribute: u32, kernel: u64, _device: u32) {
        function_attribute(out, attribute, kernel)
    }
    plain 12000 cuKernelSetAttribute(_attribute: u32, _value: i32, _kernel: u64, _device: u32) { ready() }
    plain 12000 cuKernelSetCacheConfig(_kernel: u64, _config: u32, _device: u32) { ready() }

    plain 2020 cuFuncGetAttribute(out: Out<i32>, attribute: u32, function: u64) { function_attribute(out, attribute, function) }
    plain 9000 cuFuncSetAttribute(_function: u64, _attribute: u32, _value: i32) { ready() }
    plain 3000 cuFuncSetCacheConfig(_function: u64, _config: u32) { ready() }
    plain 4020 cuFuncSetSharedMemConfig(_function: u64, _config: u32) { ready() }
    plain 11000 cuFuncGetModule(out: Out<u64>, function: u64) { out.put(function) }
    plain 12040 cuFuncLoad(_function: u64) { ready() }
    plain 12040 cuFuncIsLoaded(out: Out<u32>, _function: u64) { out.put(1) }
    plain 4000 cuLaunchKernel(
        function: u64, _gx: u32, _gy: u32, _gz: u32, _bx: u32, _by: u32, _bz: u32, _shared: u32, stream: u64, _params: u64, _extra: u64,
    ) {
        launch(function, stream, false)
    }
    plain 7000 cuLaunchKernel_ptsz(
        function: u64, _gx: u32, _gy: u32, _gz: u32, _bx: u32, _by: u32, _bz: u32, _shared: u32, stream: u64, _params: u64, _extra: u64,
    ) {
        launch(function, stream, true)
    }
    plain 11060 cuLaunchKernelEx(config: In<LaunchConfig>, function: u64, _params: u64, _extra: u64) {
        launch(function, config.get()?.stream, false)
    }
    plain 11060 cuLaunchKernelEx_ptsz(config: In<LaunchConfig>, function: u64, _params: u64, _extra: u64) {
        launch(function, config.get()?.stream, true)
    }
    plain 9000 cuLaunchCooperativeKernel(
        function: u64, _gx: u32, _gy: u32, _gz: u32, _bx: u32, _by: u32, _bz: u32, _shared: u32, stream: u64, _params: u64,
    ) {
        launch(function, stream, false)
    }
    plain 6050 cuOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<i32>, _function: u64, block: i32, _shared: u64) {
        occupancy(out, block)
    }
    plain 7000 cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: Out<i32>, _function: u64, block: i32, _shared: u64, _flags: u32,
    ) {
        occupancy(out, block)
    }
    plain 6050 cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>, block: Out<i32>, _function: u64, _shared_of: u64, _shared: u64, limit: i32,
    ) {
        block.put(if limit > 0 { limit.min(1024) } else { 1024 })?;
        grid.put(264)
    }
    plain 11080 cuOccupancyMaxActiveClusters(out: Out<i32>, _function: u64, _config: u64) { out.put(66) }
    plain 11080 cuOccupancyMaxPotentialClusterSize(out: Out<i32>, _function: u64, _config: u64) { out.put(8) }
    plain 11000 cuOccupancyAvailableDynamicSMemPerBlock(out: Out<u64>, _function: u64, _blocks: i32, _size: i32) { out.put(48 << 10) }
    plain 12000 cuTensorMapEncodeTiled(
        out: Out<[u64; 16]>, _kind: u32, _rank: u32, _addr: u64, _dims: u64, _strides: u64, _boxes: u64, _element: u64,
        _interleave: u32, _swizzle: u32, _promotion: u32, _fill: u32,
    ) {
        out.put([0; 16])
    }
    plain 4000 cuProfilerStart() { Ok(()) }
    plain 4000 cuProfilerStop() { Ok(()) }
    plain 3000 cuGetExportTable(_table: Out<u64>, _id: u64) {
        // Undocumented tables serve the vendor's own libraries, which are out of scope.
        crate::foreign_runtime::name_caller();
        Err(NOT_SUPPORTED)
    }
}
