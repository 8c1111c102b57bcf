//! Runtime functions for streams, events and capture.

use simgpu_common::{ApiResult, Out};

use super::{context, runtime};
use crate::driver::ok;

fn create(out: u64, flags: u32, priority: i32) -> ApiResult {
    ok((context()?.stream_create)(out, flags, priority))
}

/// Returns status, id, graph, dependencies, edges and their number, by the driver's newest query.
fn capture_info(stream: u64, outs: [u64; 6]) -> ApiResult {
    let [status, id, graph, dependencies, edges, count] = outs;
    ok((context()?.capture_info)(stream, status, id, graph, dependencies, edges, count))
}

runtime! {
    cudaStreamCreate(out: u64) { create(out, 0, 0) }
    cudaStreamCreateWithFlags(out: u64, flags: u32) { create(out, flags, 0) }
    cudaStreamCreateWithPriority(out: u64, flags: u32, priority: i32) { create(out, flags, priority) }
    cudaStreamDestroy(stream: u64) { ok((context()?.stream_destroy)(stream)) }
    cudaStreamSynchronize(stream: u64) { ok((context()?.stream_synchronize)(stream)) }
    cudaStreamQuery(stream: u64) { ok((context()?.stream_query)(stream)) }
    cudaStreamWaitEvent(stream: u64, event: u64, flags: u32) { ok((context()?.stream_wait)(stream, event, flags)) }
    cudaStreamGetPriority(stream: u64, out: u64) { ok((context()?.stream_priority)(stream, out)) }
    cudaStreamGetFlags(stream: u64, out: u64) { ok((context()?.stream_flags)(stream, out)) }
    cudaStreamGetId(stream: u64, out: u64) { ok((context()?.stream_id)(stream, out)) }
    cudaStreamGetDevice(_stream: u64, out: Out<u32>) { out.put(super::device()?) }
    cudaStreamAddCallback(stream: u64, callback: u64, data: u64, flags: u32) {
        ok((context()?.stream_callback)(stream, callback, data, flags))
    }
    cudaLaunchHostFunc(stream: u64, function: u64, data: u64) { ok((context()?.host_function)(stream, function, data)) }
    cudaStreamAttachMemAsync(_stream: u64, _addr: u64, _size: u64, _flags: u32) { Ok(()) }

    cudaStreamBeginCapture(stream: u64, mode: u32) { ok((context()?.begin_capture)(stream, mode)) }
    cudaStreamBeginCaptureToGraph(stream: u64, graph: u64, nodes: u64, edges: u64, count: u64, mode: u32) {
        ok((context()?.begin_capture_to)(stream, graph, nodes, edges, count, mode))
    }
    cudaStreamEndCapture(stream: u64, out: u64) { ok((context()?.end_capture)(stream, out)) }
    cudaStreamIsCapturing(stream: u64, out: u64) { ok((context()?.is_capturing)(stream, out)) }
    // CUDA 12 has the short form under the plain name and numbers the longer ones; CUDA 13 has the
    // longest form only.
    cudaStreamGetCaptureInfo__cuda12(stream: u64, status: u64, id: u64) {
        capture_info(stream, [status, id, 0, 0, 0, 0])
    }
    cudaStreamGetCaptureInfo_v2(stream: u64, status: u64, id: u64, graph: u64, dependencies: u64, count: u64) {
        capture_info(stream, [status, id, graph, dependencies, 0, count])
    }
    cudaStreamGetCaptureInfo_v3(stream: u64, status: u64, id: u64, graph: u64, dependencies: u64, edges: u64, count: u64) {
        capture_info(stream, [status, id, graph, dependencies, edges, count])
    }
    cudaStreamGetCaptureInfo(stream: u64, status: u64, id: u64, graph: u64, dependencies: u64, edges: u64, count: u64) {
        capture_info(stream, [status, id, graph, dependencies, edges, count])
    }
    cudaStreamUpdateCaptureDependencies__cuda12(stream: u64, nodes: u64, count: u64, flags: u32) {
        ok((context()?.update_dependencies)(stream, nodes, 0, count, flags))
    }
    cudaStreamUpdateCaptureDependencies_v2(stream: u64, nodes: u64, edges: u64, count: u64, flags: u32) {
        ok((context()?.update_dependencies)(stream, nodes, edges, count, flags))
    }
    cudaStreamUpdateCaptureDependencies(stream: u64, nodes: u64, edges: u64, count: u64, flags: u32) {
        ok((context()?.update_dependencies)(stream, nodes, edges, count, flags))
    }
    cudaThreadExchangeStreamCaptureMode(mode: u64) { ok((context()?.capture_mode)(mode)) }

    cudaEventCreate(out: u64) { ok((context()?.event_create)(out, 0)) }
    cudaEventCreateWithFlags(out: u64, flags: u32) { ok((context()?.event_create)(out, flags)) }
    cudaEventDestroy(event: u64) { ok((context()?.event_destroy)(event)) }
    cudaEventRecord(event: u64, stream: u64) { ok((context()?.event_record)(event, stream, 0)) }
    cudaEventRecordWithFlags(event: u64, stream: u64, flags: u32) { ok((context()?.event_record)(event, stream, flags)) }
    cudaEventQuery(event: u64) { ok((context()?.event_query)(event)) }
    cudaEventSynchronize(event: u64) { ok((context()?.event_synchronize)(event)) }
    cudaEventElapsedTime(out: u64, start: u64, end: u64) { ok((context()?.event_elapsed)(out, start, end)) }
    cudaEventElapsedTime_v2(out: u64, start: u64, end: u64) { ok((context()?.event_elapsed)(out, start, end)) }
}
