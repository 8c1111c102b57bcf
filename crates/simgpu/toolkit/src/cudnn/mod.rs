//! cuDNN: versions, workspace sizes, recurrent networks, and a backend that always finds one plan.

mod descriptors;
mod missing_workspaces;
mod rnn;
mod rnn_layout;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use core::ffi::c_char;
use simgpu_common::{ApiResult, Out};

use crate::driver::{driver, launch, ok, with_context};
use crate::entry::toolkit;
use crate::versions::{bytes_switch, wheel_versions};

const BAD_PARAM: u32 = 2000;
const INTERNAL: u32 = 4000;
const EXECUTION_FAILED: u32 = 5000;
const NOT_INITIALIZED: u32 = 1001;

/// Attributes of backend descriptors that callers read.
const HEURISTIC_RESULTS: u32 = 202;
const CONFIG_WORKSPACE_SIZE: u32 = 303;
const CONFIG_SHARED_MEMORY: u32 = 304;
const PLAN_WORKSPACE_SIZE: u32 = 402;

/// Workspace of a plan for a graph of operations, which is how PyTorch calls cuDNN's attention.
/// Measured on an H200 with cuDNN 9.19, for both passes and all shapes that were tried.
const GRAPH_WORKSPACE_BYTES: u64 = 256;

/// Bytes of random numbers for each multiprocessor: 6,488,064 on an H200, which has 132.
const DROPOUT_BYTES: u64 = 49_152;

thread_local! {
    /// The plan that is made next is for a graph. Only then the caller asks first for the workspace
    /// of its configuration.
    static IS_GRAPH: Cell<bool> = const { Cell::new(false) };
}

static STREAMS: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

fn stream_of(handle: u64) -> ApiResult<u64> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner).get(&handle).copied().ok_or(NOT_INITIALIZED)
}

/// Multiprocessors of the current device.
fn multiprocessors() -> ApiResult<u32> {
    const MULTIPROCESSOR_COUNT: u32 = 16;
    let (driver, mut device, mut count) = (driver()?, 0, 0);
    ok((driver.ctx_device)(&raw mut device))?;
    ok((driver.device_attribute)(&raw mut count, MULTIPROCESSOR_COUNT, device))?;
    u32::try_from(count).map_err(|_| INTERNAL)
}

/// The workspace of a convolution.
fn workspace(out: Out<u64>) -> ApiResult {
    let bytes = bytes_switch("SIMGPU_CUDNN_WS");
    if bytes == 0 {
        missing_workspaces::note();
    }
    out.put(bytes)
}

toolkit! { 4000;
    cudnnCreate(out: Out<u64>) {
        with_context(0).map_err(|_| NOT_INITIALIZED)?;
        let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
        let id = streams.last_key_value().map_or(0x5300_0000_0000, |(&id, _)| id) + 0x40;
        streams.insert(id, 0);
        out.put(id)
    }
    cudnnDestroy(handle: u64) {
        STREAMS.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle).map(|_| ()).ok_or(NOT_INITIALIZED)
    }
    cudnnSetStream(handle: u64, stream: u64) {
        let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
        *streams.get_mut(&handle).ok_or(NOT_INITIALIZED)? = stream;
        Ok(())
    }
    cudnnGetStream(handle: u64, out: Out<u64>) { out.put(stream_of(handle)?) }
    cudnnBackendExecute(handle: u64, _plan: u64, _pack: u64) {
        launch(stream_of(handle)?).map_err(|_| EXECUTION_FAILED)
    }
    // Unlike other creators, it takes the kind first and the place for the object second.
    cudnnBackendCreateDescriptor(_kind: u32, out: Out<*const u64>) {
        static DESCRIPTOR: [u64; 64] = [0; 64];
        out.put(DESCRIPTOR.as_ptr())
    }
    cudnnGetProperty(which: u32, out: Out<u32>) {
        let version = wheel_versions().cudnn;
        let major = if version >= 90000 { 10000 } else { 1000 };
        out.put(match which {
            0 => version / major,
            1 => version % major / 100,
            _ => version % 100,
        })
    }
    cudnnBackendGetAttribute(_descriptor: u64, which: u32, _kind: u32, wanted: i64, count: Out<i64>, out: Out<u64>) {
        match which {
            HEURISTIC_RESULTS => {
                // The caller created the descriptors; only their number is returned.
                count.put_if_wanted(1);
                Ok(())
            }
            CONFIG_WORKSPACE_SIZE if wanted > 0 => {
                count.put_if_wanted(1);
                IS_GRAPH.set(true);
                out.put(GRAPH_WORKSPACE_BYTES)
            }
            PLAN_WORKSPACE_SIZE if wanted > 0 => {
                count.put_if_wanted(1);
                if IS_GRAPH.replace(false) { out.put(GRAPH_WORKSPACE_BYTES) } else { workspace(out) }
            }
            // A 32-bit number. Attention takes no plan that does not say how much it uses.
            CONFIG_SHARED_MEMORY if wanted > 0 => {
                count.put_if_wanted(1);
                out.cast::<u32>().put(0)
            }
            _ => {
                count.put_if_wanted(0);
                Ok(())
            }
        }
    }
    cudnnGetConvolutionForwardWorkspaceSize(_h: u64, _x: u64, _w: u64, _c: u64, _y: u64, _algo: u32, out: Out<u64>) { workspace(out) }
    cudnnGetConvolutionBackwardDataWorkspaceSize(_h: u64, _w: u64, _dy: u64, _c: u64, _dx: u64, _algo: u32, out: Out<u64>) {
        workspace(out)
    }
    cudnnGetConvolutionBackwardFilterWorkspaceSize(_h: u64, _x: u64, _dy: u64, _c: u64, _dw: u64, _algo: u32, out: Out<u64>) {
        workspace(out)
    }
    cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        _h: u64, _mode: u32, _ops: u32, _x: u64, _z: u64, _y: u64, _bn: u64, _activation: u64, out: Out<u64>,
    ) {
        out.put(0)
    }
    cudnnGetBatchNormalizationBackwardExWorkspaceSize(
        _h: u64, _mode: u32, _ops: u32, _x: u64, _y: u64, _dy: u64, _dz: u64, _dx: u64, _bn: u64, _activation: u64, out: Out<u64>,
    ) {
        out.put(0)
    }
    cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
        _h: u64, _mode: u32, _ops: u32, _activation: u64, _x: u64, out: Out<u64>,
    ) {
        out.put(0)
    }
    cudnnDropoutGetStatesSize(_handle: u64, out: Out<u64>) {
        out.put(u64::from(multiprocessors().map_err(|_| INTERNAL)?) * DROPOUT_BYTES)
    }
    cudnnGetCTCLossWorkspaceSize(
        _h: u64, _probs: u64, _grads: u64, _labels: u64, _label_len: u64, _input_len: u64, _algo: u32, _desc: u64, out: Out<u64>,
    ) {
        out.put(0)
    }
    cudnnGetCTCLossWorkspaceSize_v8(_h: u64, _algo: u32, _desc: u64, _probs: u64, _grads: u64, out: Out<u64>) { out.put(0) }
}

#[unsafe(export_name = "simgpu_fn_cudnnGetVersion")]
extern "C" fn version() -> u64 {
    u64::from(wheel_versions().cudnn)
}

#[unsafe(export_name = "simgpu_fn_cudnnGetCudartVersion")]
extern "C" fn runtime_version() -> u64 {
    u64::from(wheel_versions().runtime)
}

#[unsafe(export_name = "simgpu_fn_cudnnGetErrorString")]
extern "C" fn error_text(code: u32) -> *const c_char {
    match code {
        0 => c"CUDNN_STATUS_SUCCESS",
        NOT_INITIALIZED => c"CUDNN_STATUS_NOT_INITIALIZED",
        BAD_PARAM => c"CUDNN_STATUS_BAD_PARAM",
        INTERNAL => c"CUDNN_STATUS_INTERNAL_ERROR",
        _ => c"CUDNN_STATUS_NOT_SUPPORTED",
    }
    .as_ptr()
}

#[unsafe(export_name = "simgpu_fn_cudnnGetLastErrorString")]
extern "C" fn last_error_text(out: Out<u8>, room: u64) {
    if room > 0 {
        out.put_if_wanted(0);
    }
}
