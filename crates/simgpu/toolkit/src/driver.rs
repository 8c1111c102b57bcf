//! Access to the driver.
//!
//! A tracer must see the calls of a real toolkit. The first call opens `libcuda.so.1` and takes
//! `cuGetProcAddress_v2` by `dlsym`. It probes that with an empty name and looks every function up
//! by name and CUDA version. Later calls use these pointers only.

use core::ffi::{CStr, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use simgpu_common::ApiResult;

use crate::versions::trace;

/// cudaErrorInsufficientDriver: no driver, or one that lacks a function.
const INSUFFICIENT_DRIVER: u32 = 35;

type GetProcAddress = extern "C" fn(*const i8, *mut *const c_void, i32, u64, *mut u32) -> u32;

/// Declares the table of driver functions: field, name and version to look up, flags, arguments.
macro_rules! driver_table {
    ($($field:ident = $symbol:literal @ $version:literal / $flags:literal ($($ty:ty),*);)+) => {
        /// Pointers to the driver's functions, looked up once.
        pub(crate) struct Driver {
            $(pub(crate) $field: extern "C" fn($($ty),*) -> u32,)+
        }

        impl Driver {
            fn load(get: GetProcAddress) -> Option<Self> {
                Some(Self {
                    // SAFETY: the driver's function of this name and version has these arguments.
                    $($field: unsafe { std::mem::transmute::<*const c_void, extern "C" fn($($ty),*) -> u32>(look_up(get, $symbol, $version, $flags)?) },)+
                })
            }
        }
    };
}

fn look_up(get: GetProcAddress, symbol: &CStr, version: i32, flags: u64) -> Option<*const c_void> {
    let mut address = std::ptr::null();
    let mut status = 0;
    let rc = get(symbol.as_ptr(), &raw mut address, version, flags, &raw mut status);
    if rc != 0 || address.is_null() {
        trace(&format!(
            "the driver has no {} {version} (code {rc}, status {status})",
            symbol.to_string_lossy()
        ));
        return None;
    }
    Some(address)
}

/// An IPC handle: 64 bytes, passed by value.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct IpcHandle([u64; 8]);

/// An address, a handle or an opaque pointer argument.
type Ptr = u64;

driver_table! {
    init = c"cuInit" @ 2000 / 0 (u32);
    driver_version = c"cuDriverGetVersion" @ 2020 / 0 (Ptr);
    // Both are looked up, as in the real runtime; the newer one serves `cudaGetDriverEntryPoint`.
    _get_proc_address = c"cuGetProcAddress" @ 11030 / 0 (*const i8, *mut Ptr, i32, u64);
    get_proc_address_2 = c"cuGetProcAddress" @ 12000 / 0 (*const i8, *mut Ptr, i32, u64, *mut u32);
    device_count = c"cuDeviceGetCount" @ 2000 / 0 (*mut u32);
    device_name = c"cuDeviceGetName" @ 2000 / 0 (*mut u8, i32, u32);
    device_uuid = c"cuDeviceGetUuid" @ 11040 / 0 (*mut [u8; 16], u32);
    device_total = c"cuDeviceTotalMem" @ 3020 / 0 (*mut u64, u32);
    device_attribute = c"cuDeviceGetAttribute" @ 2000 / 0 (*mut i32, u32, u32);
    device_bus_id = c"cuDeviceGetPCIBusId" @ 4010 / 0 (Ptr, i32, u32);
    device_by_bus_id = c"cuDeviceGetByPCIBusId" @ 4010 / 0 (Ptr, Ptr);
    can_access_peer = c"cuDeviceCanAccessPeer" @ 4000 / 0 (Ptr, u32, u32);
    enable_peer = c"cuCtxEnablePeerAccess" @ 4000 / 0 (Ptr, u32);
    disable_peer = c"cuCtxDisablePeerAccess" @ 4000 / 0 (Ptr);
    primary_retain = c"cuDevicePrimaryCtxRetain" @ 7000 / 0 (*mut Ptr, u32);
    primary_reset = c"cuDevicePrimaryCtxReset" @ 11000 / 0 (u32);
    primary_state = c"cuDevicePrimaryCtxGetState" @ 7000 / 0 (u32, *mut u32, *mut i32);
    primary_flags = c"cuDevicePrimaryCtxSetFlags" @ 11000 / 0 (u32, u32);
    ctx_current = c"cuCtxGetCurrent" @ 4000 / 0 (*mut Ptr);
    ctx_set_current = c"cuCtxSetCurrent" @ 4000 / 0 (Ptr);
    ctx_device = c"cuCtxGetDevice" @ 2000 / 0 (*mut u32);
    ctx_synchronize = c"cuCtxSynchronize" @ 2000 / 0 ();
    ctx_priorities = c"cuCtxGetStreamPriorityRange" @ 5050 / 0 (Ptr, Ptr);
    ctx_get_limit = c"cuCtxGetLimit" @ 3010 / 0 (Ptr, u32);
    ctx_set_limit = c"cuCtxSetLimit" @ 3010 / 0 (u32, u64);
    mem_info = c"cuMemGetInfo" @ 3020 / 0 (*mut u64, *mut u64);
    mem_alloc = c"cuMemAlloc" @ 3020 / 0 (Ptr, u64);
    mem_alloc_pitch = c"cuMemAllocPitch" @ 3020 / 0 (Ptr, Ptr, u64, u64, u32);
    mem_alloc_managed = c"cuMemAllocManaged" @ 6000 / 0 (Ptr, u64, u32);
    mem_free = c"cuMemFree" @ 3020 / 0 (Ptr);
    mem_host_alloc = c"cuMemHostAlloc" @ 2020 / 0 (Ptr, u64, u32);
    mem_free_host = c"cuMemFreeHost" @ 2000 / 0 (Ptr);
    mem_host_register = c"cuMemHostRegister" @ 6050 / 0 (Ptr, u64, u32);
    mem_host_unregister = c"cuMemHostUnregister" @ 4000 / 0 (Ptr);
    mem_host_pointer = c"cuMemHostGetDevicePointer" @ 3020 / 0 (Ptr, Ptr, u32);
    mem_host_flags = c"cuMemHostGetFlags" @ 3000 / 0 (Ptr, Ptr);
    mem_advise = c"cuMemAdvise" @ 8000 / 0 (Ptr, u64, u32, i32);
    mem_prefetch = c"cuMemPrefetchAsync" @ 8000 / 0 (Ptr, u64, i32, Ptr);
    alloc_async = c"cuMemAllocAsync" @ 11020 / 0 (Ptr, u64, Ptr);
    alloc_async_ptsz = c"cuMemAllocAsync" @ 11020 / 2 (Ptr, u64, Ptr);
    alloc_from_pool = c"cuMemAllocFromPoolAsync" @ 11020 / 0 (Ptr, u64, Ptr, Ptr);
    alloc_from_pool_ptsz = c"cuMemAllocFromPoolAsync" @ 11020 / 2 (Ptr, u64, Ptr, Ptr);
    free_async = c"cuMemFreeAsync" @ 11020 / 0 (Ptr, Ptr);
    free_async_ptsz = c"cuMemFreeAsync" @ 11020 / 2 (Ptr, Ptr);
    pool_create = c"cuMemPoolCreate" @ 11020 / 0 (Ptr, Ptr);
    pool_destroy = c"cuMemPoolDestroy" @ 11020 / 0 (Ptr);
    pool_trim = c"cuMemPoolTrimTo" @ 11020 / 0 (Ptr, u64);
    pool_get = c"cuMemPoolGetAttribute" @ 11020 / 0 (Ptr, u32, Ptr);
    pool_set = c"cuMemPoolSetAttribute" @ 11020 / 0 (Ptr, u32, Ptr);
    pool_access = c"cuMemPoolSetAccess" @ 11020 / 0 (Ptr, Ptr, u64);
    default_pool = c"cuDeviceGetDefaultMemPool" @ 11020 / 0 (Ptr, u32);
    device_pool = c"cuDeviceGetMemPool" @ 11020 / 0 (Ptr, u32);
    set_device_pool = c"cuDeviceSetMemPool" @ 11020 / 0 (u32, Ptr);
    array_create_3d = c"cuArray3DCreate" @ 3020 / 0 (Ptr, Ptr);
    array_destroy = c"cuArrayDestroy" @ 2000 / 0 (Ptr);
    mipmap_create = c"cuMipmappedArrayCreate" @ 5000 / 0 (Ptr, Ptr, u32);
    mipmap_destroy = c"cuMipmappedArrayDestroy" @ 5000 / 0 (Ptr);
    pointer_attributes = c"cuPointerGetAttributes" @ 7000 / 0 (u32, *const u32, *const Ptr, Ptr);
    copy = c"cuMemcpy" @ 4000 / 0 (Ptr, Ptr, u64);
    copy_async = c"cuMemcpyAsync" @ 4000 / 0 (Ptr, Ptr, u64, Ptr);
    copy_peer = c"cuMemcpyPeerAsync" @ 4000 / 0 (Ptr, Ptr, Ptr, Ptr, u64, Ptr);
    copy_2d = c"cuMemcpy2DUnaligned" @ 3020 / 0 (Ptr);
    copy_2d_async = c"cuMemcpy2DAsync" @ 3020 / 0 (Ptr, Ptr);
    set_8 = c"cuMemsetD8" @ 3020 / 0 (Ptr, u8, u64);
    set_8_async = c"cuMemsetD8Async" @ 3020 / 0 (Ptr, u8, u64, Ptr);
    set_2d_async = c"cuMemsetD2D8Async" @ 3020 / 0 (Ptr, u64, u8, u64, u64, Ptr);
    stream_create = c"cuStreamCreateWithPriority" @ 5050 / 0 (Ptr, u32, i32);
    stream_destroy = c"cuStreamDestroy" @ 4000 / 0 (Ptr);
    stream_synchronize = c"cuStreamSynchronize" @ 2000 / 0 (Ptr);
    stream_query = c"cuStreamQuery" @ 2000 / 0 (Ptr);
    stream_wait = c"cuStreamWaitEvent" @ 3020 / 0 (Ptr, Ptr, u32);
    stream_priority = c"cuStreamGetPriority" @ 5050 / 0 (Ptr, Ptr);
    stream_flags = c"cuStreamGetFlags" @ 5050 / 0 (Ptr, Ptr);
    stream_id = c"cuStreamGetId" @ 12000 / 0 (Ptr, Ptr);
    stream_callback = c"cuStreamAddCallback" @ 5000 / 0 (Ptr, Ptr, Ptr, u32);
    host_function = c"cuLaunchHostFunc" @ 10000 / 0 (Ptr, Ptr, Ptr);
    begin_capture = c"cuStreamBeginCapture" @ 10010 / 0 (Ptr, u32);
    begin_capture_to = c"cuStreamBeginCaptureToGraph" @ 12030 / 0 (Ptr, Ptr, Ptr, Ptr, u64, u32);
    end_capture = c"cuStreamEndCapture" @ 10000 / 0 (Ptr, Ptr);
    is_capturing = c"cuStreamIsCapturing" @ 10000 / 0 (Ptr, Ptr);
    capture_info = c"cuStreamGetCaptureInfo" @ 12030 / 0 (Ptr, Ptr, Ptr, Ptr, Ptr, Ptr, Ptr);
    update_dependencies = c"cuStreamUpdateCaptureDependencies" @ 12030 / 0 (Ptr, Ptr, Ptr, u64, u32);
    capture_mode = c"cuThreadExchangeStreamCaptureMode" @ 10010 / 0 (Ptr);
    event_create = c"cuEventCreate" @ 2000 / 0 (Ptr, u32);
    event_destroy = c"cuEventDestroy" @ 4000 / 0 (Ptr);
    event_record = c"cuEventRecordWithFlags" @ 11010 / 0 (Ptr, Ptr, u32);
    event_query = c"cuEventQuery" @ 2000 / 0 (Ptr);
    event_synchronize = c"cuEventSynchronize" @ 2000 / 0 (Ptr);
    event_elapsed = c"cuEventElapsedTime" @ 2000 / 0 (Ptr, Ptr, Ptr);
    ipc_get = c"cuIpcGetMemHandle" @ 4010 / 0 (Ptr, Ptr);
    ipc_open = c"cuIpcOpenMemHandle" @ 11000 / 0 (Ptr, IpcHandle, u32);
    ipc_close = c"cuIpcCloseMemHandle" @ 4010 / 0 (Ptr);
    graph_create = c"cuGraphCreate" @ 10000 / 0 (Ptr, u32);
    graph_destroy = c"cuGraphDestroy" @ 10000 / 0 (Ptr);
    graph_instantiate = c"cuGraphInstantiateWithFlags" @ 11040 / 0 (Ptr, Ptr, u64);
    graph_exec_destroy = c"cuGraphExecDestroy" @ 10000 / 0 (Ptr);
    graph_launch = c"cuGraphLaunch" @ 10000 / 0 (Ptr, Ptr);
    graph_nodes = c"cuGraphGetNodes" @ 10000 / 0 (Ptr, Ptr, Ptr);
    graph_roots = c"cuGraphGetRootNodes" @ 10000 / 0 (Ptr, Ptr, Ptr);
    graph_node_type = c"cuGraphNodeGetType" @ 10000 / 0 (Ptr, Ptr);
    graph_dependencies = c"cuGraphNodeGetDependencies" @ 12030 / 0 (Ptr, Ptr, Ptr, Ptr);
    graph_add_empty = c"cuGraphAddEmptyNode" @ 10000 / 0 (Ptr, Ptr, Ptr, u64);
    graph_add_alloc = c"cuGraphAddMemAllocNode" @ 11040 / 0 (Ptr, Ptr, Ptr, u64, Ptr);
    graph_add_free = c"cuGraphAddMemFreeNode" @ 11040 / 0 (Ptr, Ptr, Ptr, u64, Ptr);
    graph_add_node = c"cuGraphAddNode" @ 12030 / 0 (Ptr, Ptr, Ptr, Ptr, u64, Ptr);
    graph_conditional = c"cuGraphConditionalHandleCreate" @ 12030 / 0 (Ptr, Ptr, Ptr, u32, u32);
    graph_trim = c"cuDeviceGraphMemTrim" @ 11040 / 0 (u32);
    graph_mem_get = c"cuDeviceGetGraphMemAttribute" @ 11040 / 0 (u32, u32, Ptr);
    graph_mem_set = c"cuDeviceSetGraphMemAttribute" @ 11040 / 0 (u32, u32, Ptr);
    module_global = c"cuModuleGetGlobal" @ 3020 / 0 (*mut Ptr, *mut u64, Ptr, Ptr);
    library_load = c"cuLibraryLoadData" @ 12000 / 0 (Ptr, Ptr, Ptr, Ptr, u32, Ptr, Ptr, u32);
    library_load_file = c"cuLibraryLoadFromFile" @ 12000 / 0 (Ptr, Ptr, Ptr, Ptr, u32, Ptr, Ptr, u32);
    library_unload = c"cuLibraryUnload" @ 12000 / 0 (Ptr);
    library_kernel = c"cuLibraryGetKernel" @ 12000 / 0 (Ptr, Ptr, Ptr);
    library_global = c"cuLibraryGetGlobal" @ 12000 / 0 (Ptr, Ptr, Ptr, Ptr);
    function_attribute = c"cuFuncGetAttribute" @ 2020 / 0 (*mut i32, u32, Ptr);
    launch = c"cuLaunchKernel" @ 4000 / 0 (Ptr, u32, u32, u32, u32, u32, u32, u32, Ptr, Ptr, Ptr);
    occupancy = c"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" @ 7000 / 0 (Ptr, Ptr, i32, u64, u32);
}

/// Returns the driver, initialised at the first call; a failure is returned again by later calls.
pub(crate) fn driver() -> ApiResult<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let found = DRIVER.get_or_init(|| {
        // SAFETY: the name is terminated; the handle is kept.
        let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: as above.
        let address = unsafe { libc::dlsym(handle, c"cuGetProcAddress_v2".as_ptr()) };
        if address.is_null() {
            return None;
        }
        // SAFETY: the driver's function of this name has this type.
        let get = unsafe { std::mem::transmute::<*mut c_void, GetProcAddress>(address) };
        if get(c"".as_ptr(), std::ptr::null_mut(), 0, 0, std::ptr::null_mut()) != 0 {
            return None;
        }
        Driver::load(get)
    });
    found.as_ref().ok_or(INSUFFICIENT_DRIVER)
}

/// Converts a driver code to a result.
pub(crate) fn ok(rc: u32) -> ApiResult {
    if rc == 0 { Ok(()) } else { Err(rc) }
}

/// Returns the driver with a context current: the thread's, or device `preferred`'s primary one.
pub(crate) fn with_context(preferred: u32) -> ApiResult<&'static Driver> {
    let driver = driver()?;
    let mut context = 0;
    // Fails before initialisation and in a forked child; `init` distinguishes the two.
    if (driver.ctx_current)(&raw mut context) != 0 {
        ok((driver.init)(0))?;
    }
    if context == 0 {
        make_primary_current(driver, preferred)?;
    }
    Ok(driver)
}

/// Limit of devices with a cached primary context.
const MAX_DEVICES: usize = 16;
/// Primary contexts that this library retained, once each for all threads.
static PRIMARY: [AtomicU64; MAX_DEVICES] = [const { AtomicU64::new(0) }; MAX_DEVICES];

/// Makes a device's primary context current on the thread.
pub(crate) fn make_primary_current(driver: &Driver, device: u32) -> ApiResult {
    let slot = PRIMARY.get(device as usize).ok_or(101_u32)?;
    let mut context = slot.load(Ordering::Acquire);
    if context == 0 {
        ok((driver.primary_retain)(&raw mut context, device))?;
        slot.store(context, Ordering::Release);
    }
    ok((driver.ctx_set_current)(context))
}

/// Drops the cached primary context after a reset.
pub(crate) fn forget_primary(device: u32) {
    if let Some(slot) = PRIMARY.get(device as usize) {
        slot.store(0, Ordering::Release);
    }
}

/// Allocates device memory for a library itself, if its setting is not 0.
pub(crate) fn own_memory(bytes: u64) -> ApiResult<u64> {
    if bytes == 0 {
        return Ok(0);
    }
    let mut addr = 0_u64;
    ok((with_context(0)?.mem_alloc)(&raw mut addr as u64, bytes))?;
    Ok(addr)
}

/// Frees memory of [`own_memory`].
pub(crate) fn free_own_memory(addr: u64) {
    if addr != 0
        && let Ok(driver) = driver()
    {
        // The handle is being destroyed, so an error has no receiver.
        let _ = (driver.mem_free)(addr);
    }
}

/// Launches a kernel of a library on a stream; its identity does not matter.
pub(crate) fn launch(stream: u64) -> ApiResult {
    const KERNEL: u64 = 1;
    ok((with_context(0)?.launch)(KERNEL, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))
}
