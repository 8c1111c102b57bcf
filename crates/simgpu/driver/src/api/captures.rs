//! Stream capture: begin, end, and capture queries.
//!
//! PyTorch's allocator selects a block's pool by these queries. A stream that waits for a captured
//! event joins the capture (see `streams`), and each stream tracks the nodes for its next call.

use crate::api::streams::{LEGACY, with_stream};
use crate::entry::{exchange_capture_mode, exports, ready, tid};
use crate::ffi::{In, Out};
use crate::result_code::{
    ApiResult, INVALID_VALUE, STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNMATCHED,
    STREAM_CAPTURE_UNSUPPORTED, STREAM_CAPTURE_WRONG_THREAD,
};
use crate::state::graph::{Capture, CaptureMode, Graph};
use crate::state::{DriverState, StreamKey};

fn begin_capture(stream: u64, mode: u32, per_thread: bool, graph: Option<u64>) -> ApiResult {
    begin(stream, mode, per_thread, graph, false)
}

fn begin(stream: u64, mode: u32, per_thread: bool, graph: Option<u64>, is_repeated: bool) -> ApiResult {
    with_stream(stream, per_thread, |state, key| {
        let mode = CaptureMode::from_raw(mode).ok_or(INVALID_VALUE)?;
        if key.1 == LEGACY || state.streams[&key].capture.is_some() {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        let graph = match graph {
            Some(graph) if state.graphs.made.contains_key(&graph) => graph,
            Some(_) => return Err(INVALID_VALUE),
            None => {
                let graph = state.handle();
                state.graphs.made.insert(graph, Graph::default());
                graph
            }
        };
        let expected = is_repeated.then(|| state.graphs.made[&graph].nodes.keys().copied().collect());
        let id = state.handle();
        let capture = Capture { origin: key, thread: tid(), mode, graph, spoiled: false, expected };
        state.graphs.captures.insert(id, capture);
        if let Some(stream) = state.streams.get_mut(&key) {
            stream.capture = Some(id);
            stream.tail.clear();
        }
        Ok(())
    })
}

fn end_capture(stream: u64, out: Out<u64>, per_thread: bool) -> ApiResult {
    with_stream(stream, per_thread, |state, key| {
        out.check()?;
        let id = state.streams[&key].capture.ok_or(INVALID_VALUE)?;
        let capture = state.graphs.captures.get(&id).ok_or(INVALID_VALUE)?;
        if capture.origin != key {
            return Err(STREAM_CAPTURE_UNMATCHED);
        }
        if capture.thread != tid() && capture.mode != CaptureMode::Relaxed {
            return Err(STREAM_CAPTURE_WRONG_THREAD);
        }
        let is_cut = capture.expected.as_ref().is_some_and(|nodes| !nodes.is_empty());
        let (graph, spoiled) = (capture.graph, capture.spoiled || is_cut);
        let is_repeated = capture.expected.is_some();
        state.graphs.captures.remove(&id);
        for stream in state.streams.values_mut().filter(|stream| stream.capture == Some(id)) {
            stream.capture = None;
            stream.tail.clear();
        }
        if spoiled {
            // After a failed recapture the graph stays, for the program to destroy.
            if !is_repeated {
                let lost = state.graphs.made.remove(&graph).map(|graph| graph.allocations());
                state.drop_allocations(lost.unwrap_or_default());
            }
            out.put(0)?;
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        out.put(graph)
    })
}

/// Returns status (0 none, 1 active, 2 invalidated), id and graph of a stream's capture.
fn capture_status(state: &DriverState, key: StreamKey) -> (u32, u64, u64) {
    let Some(id) = state.streams.get(&key).and_then(|stream| stream.capture) else { return (0, 0, 0) };
    match state.graphs.captures.get(&id) {
        Some(capture) if capture.spoiled => (2, id, capture.graph),
        Some(capture) => (1, id, capture.graph),
        None => (0, 0, 0),
    }
}

struct CaptureInfo {
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<u64>,
    dependencies: Out<u64>,
    edges: Out<u64>,
    count: Out<u64>,
}

impl CaptureInfo {
    fn answer(&self, stream: u64, per_thread: bool) -> ApiResult {
        with_stream(stream, per_thread, |state, key| {
            let (status, id, graph) = capture_status(state, key);
            self.status.put(status)?;
            self.id.put_if_wanted(id);
            if status == 1 {
                let tail = &state.streams[&key].tail;
                self.graph.put_if_wanted(graph);
                // By contract the caller reads this array before its next call on the stream.
                self.dependencies.put_if_wanted(tail.as_ptr() as u64);
                self.edges.put_if_wanted(0);
                self.count.put_if_wanted(tail.len() as u64);
            }
            Ok(())
        })
    }
}

fn update_dependencies(stream: u64, nodes: In<u64>, count: u64, flags: u32, per_thread: bool) -> ApiResult {
    with_stream(stream, per_thread, |state, key| {
        let nodes = nodes.list(count as usize)?;
        let stream =
            state.streams.get_mut(&key).filter(|stream| stream.capture.is_some()).ok_or(INVALID_VALUE)?;
        if flags & 1 != 0 {
            stream.tail = nodes;
        } else {
            stream.tail.extend(nodes);
        }
        Ok(())
    })
}

exports! {
    plain 10010 cuStreamBeginCapture_v2(stream: u64, mode: u32) { begin_capture(stream, mode, false, None) }
    plain 10010 cuStreamBeginCapture_v2_ptsz(stream: u64, mode: u32) { begin_capture(stream, mode, true, None) }
    plain 12030 cuStreamBeginCaptureToGraph(
        stream: u64, graph: u64, _dependencies: In<u64>, _edges: In<u64>, _count: u64, mode: u32,
    ) {
        begin_capture(stream, mode, false, Some(graph))
    }
    plain 13030 cuStreamBeginRecaptureToGraph(stream: u64, mode: u32, graph: u64, _callback: u64, _data: u64) {
        begin(stream, mode, false, Some(graph), true)
    }
    plain 10000 cuStreamEndCapture(stream: u64, out: Out<u64>) { end_capture(stream, out, false) }
    plain 10000 cuStreamEndCapture_ptsz(stream: u64, out: Out<u64>) { end_capture(stream, out, true) }
    plain 10000 cuStreamIsCapturing(stream: u64, out: Out<u32>) {
        with_stream(stream, false, |state, key| out.put(capture_status(state, key).0))
    }
    plain 10000 cuStreamIsCapturing_ptsz(stream: u64, out: Out<u32>) {
        with_stream(stream, true, |state, key| out.put(capture_status(state, key).0))
    }
    plain 11030 cuStreamGetCaptureInfo_v2(
        stream: u64, status: Out<u32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<u64>, count: Out<u64>,
    ) {
        CaptureInfo { status, id, graph, dependencies, edges: count, count }.answer(stream, false)
    }
    plain 12030 cuStreamGetCaptureInfo_v3(
        stream: u64, status: Out<u32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<u64>, edges: Out<u64>, count: Out<u64>,
    ) {
        CaptureInfo { status, id, graph, dependencies, edges, count }.answer(stream, false)
    }
    plain 11030 cuStreamUpdateCaptureDependencies(stream: u64, nodes: In<u64>, count: u64, flags: u32) {
        update_dependencies(stream, nodes, count, flags, false)
    }
    plain 12030 cuStreamUpdateCaptureDependencies_v2(stream: u64, nodes: In<u64>, _edges: In<u64>, count: u64, flags: u32) {
        update_dependencies(stream, nodes, count, flags, false)
    }
    plain 10010 cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        ready()?;
        let wanted = CaptureMode::from_raw(mode.current()?).ok_or(INVALID_VALUE)?;
        mode.put(exchange_capture_mode(wanted) as u32)
    }
}
