//! Streams and events: work is done at once, except that an event may take its time (`SIMGPU_EVENT_DELAY_US`).
//!
//! Allocators defer the reuse of blocks until events complete; with work that completes at once that code never runs -> a recorded
//! event can be told to stay pending, and waiting for its stream waits for it.

use std::time::{Duration, Instant};

use crate::entry::{
    Current, capture_mode, current, current_handle, exchange_capture_mode, exports, ready, tid, with_context,
    with_state,
};
use crate::ffi::{In, Out};
use crate::rc::{
    Answer, CAPTURED_EVENT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED,
    STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNMATCHED, STREAM_CAPTURE_UNSUPPORTED,
    STREAM_CAPTURE_WRONG_THREAD,
};
use crate::state::graph::{Capture, CaptureMode, Graph, kind};
use crate::state::{Event, State, Stream, StreamKey};

const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;
const EVENT_DISABLE_TIMING: u32 = 2;

/// The stream that a handle names in a context; special streams come to life when they are first named.
pub(crate) fn key_of(
    state: &mut State,
    current: Current,
    handle: u64,
    per_thread: bool,
) -> Answer<StreamKey> {
    let handle = match handle {
        0 if per_thread => PER_THREAD,
        0 => LEGACY,
        handle => handle,
    };
    let key = if handle <= PER_THREAD { (current.context, handle) } else { (0, handle) };
    if handle <= PER_THREAD {
        state.streams.entry(key).or_insert_with(|| Stream { context: current.context, ..Stream::default() });
    }
    if state.streams.contains_key(&key) { Ok(key) } else { Err(INVALID_HANDLE) }
}

/// Runs `body` on the stream that a handle names.
pub(crate) fn with_stream<T>(
    handle: u64,
    per_thread: bool,
    body: impl FnOnce(&mut State, StreamKey) -> Answer<T>,
) -> Answer<T> {
    with_context(|state, current| {
        let key = key_of(state, current, handle, per_thread)?;
        body(state, key)
    })
}

fn create(out: Out<u64>, flags: u32, priority: i32) -> Answer {
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    with_context(|state, current| {
        out.check()?;
        let handle = state.handle();
        let priority = priority.clamp(-5, 0);
        state
            .streams
            .insert((0, handle), Stream { context: current.context, flags, priority, ..Stream::default() });
        out.put(handle)
    })
}

/// Waits until `done`, without the lock.
fn wait_until(done: Option<Instant>) {
    if let Some(left) = done.and_then(|done| done.checked_duration_since(Instant::now())) {
        std::thread::sleep(left);
    }
}

/// After waiting, pools give back what is above their release threshold.
fn settle() -> Answer {
    with_state(|state| {
        for ordinal in 0..state.devices.len() as u32 {
            let (device, pages) = state.device_and_pages(ordinal)?;
            device.shed_pools(pages, |pool| pool.threshold);
        }
        Ok(())
    })
}

/// Waits for everything in the current context (`cuCtxSynchronize`).
pub(crate) fn synchronise_context() -> Answer {
    let done = with_context(|state, current| {
        state.graphs.unsafe_call(tid(), capture_mode())?;
        Ok(state
            .streams
            .values()
            .filter(|stream| stream.context == current.context)
            .filter_map(|stream| stream.busy_until)
            .max())
    })?;
    wait_until(done);
    settle()
}

fn synchronise(handle: u64, per_thread: bool) -> Answer {
    let done = with_stream(handle, per_thread, |state, key| {
        state.graphs.unsafe_call(tid(), capture_mode())?;
        let stream = &state.streams[&key];
        if stream.capture.is_some() { Err(STREAM_CAPTURE_UNSUPPORTED) } else { Ok(stream.busy_until) }
    })?;
    wait_until(done);
    settle()
}

fn query(handle: u64, per_thread: bool) -> Answer {
    with_stream(handle, per_thread, |state, key| {
        state.graphs.unsafe_call(tid(), capture_mode())?;
        let stream = &state.streams[&key];
        if stream.capture.is_some() {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        if stream.busy_until.is_some_and(|done| done > Instant::now()) { Err(NOT_READY) } else { Ok(()) }
    })
}

fn record(event: u64, stream: u64, per_thread: bool) -> Answer {
    with_stream(stream, per_thread, |state, key| {
        let delay = Duration::from_micros(state.config.event_delay_us);
        let stream = state.streams.get_mut(&key).ok_or(INVALID_HANDLE)?;
        let event = state.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        if let Some(capture) = stream.capture {
            event.captured = Some((capture, stream.tail.clone()));
            return Ok(());
        }
        let now = Instant::now();
        *event = Event { flags: event.flags, recorded: Some(now), done: Some(now + delay), captured: None };
        if !delay.is_zero() {
            stream.busy_until = event.done.max(stream.busy_until);
        }
        Ok(())
    })
}

fn wait_event(stream: u64, event: u64, per_thread: bool) -> Answer {
    with_stream(stream, per_thread, |state, key| {
        let event = state.events.get(&event).ok_or(INVALID_HANDLE)?;
        let stream = state.streams.get_mut(&key).ok_or(INVALID_HANDLE)?;
        match &event.captured {
            // The stream joins the capture of the event.
            Some((capture, tail)) if state.graphs.captures.contains_key(capture) => {
                if stream.capture.is_some_and(|own| own != *capture) {
                    return Err(STREAM_CAPTURE_UNMATCHED);
                }
                stream.capture = Some(*capture);
                for node in tail {
                    if !stream.tail.contains(node) {
                        stream.tail.push(*node);
                    }
                }
            }
            _ => stream.busy_until = stream.busy_until.max(event.done.filter(|done| *done > Instant::now())),
        }
        Ok(())
    })
}

fn begin_capture(stream: u64, mode: u32, per_thread: bool, graph: Option<u64>) -> Answer {
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
        let id = state.handle();
        let capture = Capture { origin: key, thread: tid(), mode, graph, spoiled: false };
        state.graphs.captures.insert(id, capture);
        if let Some(stream) = state.streams.get_mut(&key) {
            stream.capture = Some(id);
            stream.tail.clear();
        }
        Ok(())
    })
}

fn end_capture(stream: u64, out: Out<u64>, per_thread: bool) -> Answer {
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
        let (graph, spoiled) = (capture.graph, capture.spoiled);
        state.graphs.captures.remove(&id);
        for stream in state.streams.values_mut().filter(|stream| stream.capture == Some(id)) {
            stream.capture = None;
            stream.tail.clear();
        }
        if spoiled {
            let lost = state.graphs.made.remove(&graph).map(|graph| graph.allocations());
            state.drop_allocations(lost.unwrap_or_default());
            out.put(0)?;
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        out.put(graph)
    })
}

/// 0 none, 1 active, 2 spoiled; with the capture's id and graph.
fn capture_status(state: &State, key: StreamKey) -> (u32, u64, u64) {
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
    fn answer(&self, stream: u64, per_thread: bool) -> Answer {
        with_stream(stream, per_thread, |state, key| {
            let (status, id, graph) = capture_status(state, key);
            self.status.put(status)?;
            self.id.put_if_wanted(id);
            if status == 1 {
                let tail = &state.streams[&key].tail;
                self.graph.put_if_wanted(graph);
                // The caller reads this array before its next call on the stream, as the interface says.
                self.dependencies.put_if_wanted(tail.as_ptr() as u64);
                self.edges.put_if_wanted(0);
                self.count.put_if_wanted(tail.len() as u64);
            }
            Ok(())
        })
    }
}

fn update_dependencies(stream: u64, nodes: In<u64>, count: u64, flags: u32, per_thread: bool) -> Answer {
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

fn host_function(stream: u64, function: HostFunction, data: u64, per_thread: bool) -> Answer {
    let captured = with_stream(stream, per_thread, |state, key| state.captured_work(key, kind::HOST, None))?;
    if !captured {
        function(data);
    }
    Ok(())
}

type HostFunction = extern "C" fn(u64);
type StreamCallback = extern "C" fn(u64, u32, u64);

fn add_callback(stream: u64, callback: StreamCallback, data: u64, per_thread: bool) -> Answer {
    with_stream(stream, per_thread, |state, key| {
        if state.streams[&key].capture.is_some() { Err(STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    })?;
    callback(stream, 0, data);
    Ok(())
}

fn event_state(handle: u64) -> Answer<Option<Instant>> {
    with_state(|state| {
        current(state)?;
        let event = state.events.get(&handle).ok_or(INVALID_HANDLE)?;
        if event.captured.is_some() {
            return Err(CAPTURED_EVENT);
        }
        let done = event.done;
        state.graphs.unsafe_call(tid(), capture_mode())?;
        Ok(done)
    })
}

fn elapsed(out: Out<f32>, start: u64, end: u64) -> Answer {
    with_state(|state| {
        let moment = |handle: u64| {
            let event = state.events.get(&handle).ok_or(INVALID_HANDLE)?;
            match (event.recorded, event.done) {
                _ if event.flags & EVENT_DISABLE_TIMING != 0 => Err(INVALID_HANDLE),
                (Some(_), Some(done)) if done > Instant::now() => Err(NOT_READY),
                (Some(recorded), _) => Ok(recorded),
                _ => Err(INVALID_HANDLE),
            }
        };
        let (start, end) = (moment(start)?, moment(end)?);
        let forward = end.checked_duration_since(start).map(|span| span.as_secs_f32());
        out.put(1000.0 * forward.unwrap_or_else(|| -(start - end).as_secs_f32()))
    })
}

exports! {
    plain 2000 cuStreamCreate(out: Out<u64>, flags: u32) { create(out, flags, 0) }
    plain 5050 cuStreamCreateWithPriority(out: Out<u64>, flags: u32, priority: i32) { create(out, flags, priority) }
    plain 4000 cuStreamDestroy_v2(stream: u64) {
        with_state(|state| {
            let known = state.streams.get(&(0, stream)).ok_or(INVALID_HANDLE)?;
            if known.capture.is_some() {
                return Err(STREAM_CAPTURE_UNSUPPORTED);
            }
            state.streams.remove(&(0, stream));
            Ok(())
        })
    }
    plain 2000 cuStreamSynchronize(stream: u64) { synchronise(stream, false) }
    plain 7000 cuStreamSynchronize_ptsz(stream: u64) { synchronise(stream, true) }
    plain 2000 cuStreamQuery(stream: u64) { query(stream, false) }
    plain 7000 cuStreamQuery_ptsz(stream: u64) { query(stream, true) }
    plain 3020 cuStreamWaitEvent(stream: u64, event: u64, _flags: u32) { wait_event(stream, event, false) }
    plain 7000 cuStreamWaitEvent_ptsz(stream: u64, event: u64, _flags: u32) { wait_event(stream, event, true) }
    plain 5050 cuStreamGetPriority(stream: u64, out: Out<i32>) {
        with_stream(stream, false, |state, key| out.put(state.streams[&key].priority))
    }
    plain 5050 cuStreamGetFlags(stream: u64, out: Out<u32>) {
        with_stream(stream, false, |state, key| out.put(state.streams[&key].flags))
    }
    plain 9020 cuStreamGetCtx(stream: u64, out: Out<u64>) {
        with_stream(stream, false, |state, key| out.put(state.streams[&key].context))
    }
    plain 12000 cuStreamGetId(stream: u64, out: Out<u64>) { with_stream(stream, false, |_, key| out.put(key.1)) }
    plain 12080 cuStreamGetDevice(stream: u64, out: Out<u32>) {
        with_context(|state, current| {
            key_of(state, current, stream, false)?;
            out.put(current.device)
        })
    }
    plain 10000 cuLaunchHostFunc(stream: u64, function: HostFunction, data: u64) { host_function(stream, function, data, false) }
    plain 10000 cuLaunchHostFunc_ptsz(stream: u64, function: HostFunction, data: u64) { host_function(stream, function, data, true) }
    plain 5000 cuStreamAddCallback(stream: u64, callback: StreamCallback, data: u64, _flags: u32) {
        add_callback(stream, callback, data, false)
    }
    plain 7000 cuStreamAddCallback_ptsz(stream: u64, callback: StreamCallback, data: u64, _flags: u32) {
        add_callback(stream, callback, data, true)
    }
    plain 6000 cuStreamAttachMemAsync(stream: u64, _addr: u64, _size: u64, _flags: u32) {
        with_stream(stream, false, |_, _| Ok(()))
    }

    plain 10010 cuStreamBeginCapture_v2(stream: u64, mode: u32) { begin_capture(stream, mode, false, None) }
    plain 10010 cuStreamBeginCapture_v2_ptsz(stream: u64, mode: u32) { begin_capture(stream, mode, true, None) }
    plain 12030 cuStreamBeginCaptureToGraph(
        stream: u64, graph: u64, _dependencies: In<u64>, _edges: In<u64>, _count: u64, mode: u32,
    ) {
        begin_capture(stream, mode, false, Some(graph))
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

    plain 2000 cuEventCreate(out: Out<u64>, flags: u32) {
        with_context(|state, _| {
            out.check()?;
            let handle = state.handle();
            state.events.insert(handle, Event { flags, ..Event::default() });
            out.put(handle)
        })
    }
    plain 4000 cuEventDestroy_v2(event: u64) {
        with_state(|state| state.events.remove(&event).map(|_| ()).ok_or(INVALID_HANDLE))
    }
    plain 2000 cuEventRecord(event: u64, stream: u64) { record(event, stream, false) }
    plain 7000 cuEventRecord_ptsz(event: u64, stream: u64) { record(event, stream, true) }
    plain 11010 cuEventRecordWithFlags(event: u64, stream: u64, _flags: u32) { record(event, stream, false) }
    plain 11010 cuEventRecordWithFlags_ptsz(event: u64, stream: u64, _flags: u32) { record(event, stream, true) }
    plain 2000 cuEventQuery(event: u64) {
        if event_state(event)?.is_some_and(|done| done > Instant::now()) { Err(NOT_READY) } else { Ok(()) }
    }
    plain 2000 cuEventSynchronize(event: u64) {
        wait_until(event_state(event)?);
        settle()
    }
    plain 2000 cuEventElapsedTime(out: Out<f32>, start: u64, end: u64) { elapsed(out, start, end) }
    plain 12080 cuEventElapsedTime_v2(out: Out<f32>, start: u64, end: u64) { elapsed(out, start, end) }
    plain 4010 cuIpcGetEventHandle(_handle: Out<u8>, _event: u64) { Err(NOT_SUPPORTED) }
    plain 4010 cuIpcOpenEventHandle(_out: Out<u64>, _handle: crate::api::memory::IpcHandle) { Err(NOT_SUPPORTED) }
    plain 2000 cuCtxSynchronize() { synchronise_context() }
    plain 13000 cuCtxSynchronize_v2(context: u64) {
        if context == 0 || context == current_handle() { synchronise_context() } else { settle() }
    }
}
