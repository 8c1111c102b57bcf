//! Streams and events, with delayed completion on request.
//!
//! Work completes at once, except for events with `SIMGPU_EVENT_DELAY_US` or
//! `SIMGPU_MANUAL_EVENTS`. Allocators defer the reuse of blocks until events complete; the delay
//! lets tests reach that code, and manual events let them decide when.

use std::time::{Duration, Instant};

use crate::entry::{
    CurrentContext, capture_mode, current, current_handle, exports, tid, with_context, with_state,
};
use crate::ffi::Out;
use crate::result_code::{
    ApiResult, CAPTURED_EVENT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED,
    STREAM_CAPTURE_UNMATCHED, STREAM_CAPTURE_UNSUPPORTED,
};
use crate::state::graph::kind;
use crate::state::{DriverState, Event, Stream, StreamKey};

pub(crate) const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;
const EVENT_DISABLE_TIMING: u32 = 2;
/// Delay of an event that completes only on request: 100 years.
const NEVER: Duration = Duration::from_hours(100 * 365 * 24);

/// Resolves a stream handle in a context; special streams are created at first use.
pub(crate) fn key_of(
    state: &mut DriverState,
    current: CurrentContext,
    handle: u64,
    per_thread: bool,
) -> ApiResult<StreamKey> {
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

/// Runs `body` on the stream of a handle.
pub(crate) fn with_stream<T>(
    handle: u64,
    per_thread: bool,
    body: impl FnOnce(&mut DriverState, StreamKey) -> ApiResult<T>,
) -> ApiResult<T> {
    with_context(|state, current| {
        let key = key_of(state, current, handle, per_thread)?;
        body(state, key)
    })
}

fn create(out: Out<u64>, flags: u32, priority: i32) -> ApiResult {
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

/// Sleeps until `done`, without the lock.
fn wait_until(done: Option<Instant>) {
    if let Some(left) = done.and_then(|done| done.checked_duration_since(Instant::now())) {
        std::thread::sleep(left);
    }
}

/// Completes all work of a stream, with manual events; dependencies on other streams are ignored.
fn complete_stream(state: &mut DriverState, key: StreamKey) {
    if !state.config.manual_events {
        return;
    }
    let now = Instant::now();
    for event in state.events.values_mut().filter(|event| event.stream == Some(key)) {
        event.done = event.done.min(Some(now));
    }
    if let Some(stream) = state.streams.get_mut(&key) {
        stream.busy_until = None;
    }
}

/// Releases pool memory above the thresholds, after a wait.
fn settle() -> ApiResult {
    with_state(|state| {
        state.settle_pools();
        Ok(())
    })
}

/// Waits for all work of the current context (`cuCtxSynchronize`).
pub(crate) fn synchronise_context() -> ApiResult {
    let done = with_context(|state, current| {
        state.graphs.unsafe_call(tid(), capture_mode())?;
        let keys: Vec<StreamKey> = state.streams.keys().copied().collect();
        for key in keys {
            if state.streams[&key].context == current.context {
                complete_stream(state, key);
            }
        }
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

fn synchronise(handle: u64, per_thread: bool) -> ApiResult {
    let done = with_stream(handle, per_thread, |state, key| {
        state.graphs.unsafe_call(tid(), capture_mode())?;
        if state.streams[&key].capture.is_some() {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        complete_stream(state, key);
        Ok(state.streams[&key].busy_until)
    })?;
    wait_until(done);
    settle()
}

fn query(handle: u64, per_thread: bool) -> ApiResult {
    with_stream(handle, per_thread, |state, key| {
        state.graphs.unsafe_call(tid(), capture_mode())?;
        let stream = &state.streams[&key];
        if stream.capture.is_some() {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        if stream.busy_until.is_some_and(|done| done > Instant::now()) { Err(NOT_READY) } else { Ok(()) }
    })
}

fn record(event: u64, stream: u64, per_thread: bool) -> ApiResult {
    with_stream(stream, per_thread, |state, key| {
        let delay = if state.config.manual_events {
            NEVER
        } else {
            Duration::from_micros(state.config.event_delay_us)
        };
        let stream = state.streams.get_mut(&key).ok_or(INVALID_HANDLE)?;
        let event = state.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        if let Some(capture) = stream.capture {
            event.captured = Some((capture, stream.tail.clone()));
            return Ok(());
        }
        let now = Instant::now();
        *event = Event {
            flags: event.flags,
            stream: Some(key),
            recorded: Some(now),
            done: Some(now + delay),
            captured: None,
        };
        if !delay.is_zero() {
            stream.busy_until = event.done.max(stream.busy_until);
        }
        Ok(())
    })
}

fn wait_event(stream: u64, event: u64, per_thread: bool) -> ApiResult {
    with_stream(stream, per_thread, |state, key| {
        let event = state.events.get(&event).ok_or(INVALID_HANDLE)?;
        let stream = state.streams.get_mut(&key).ok_or(INVALID_HANDLE)?;
        match &event.captured {
            // The stream joins the event's capture.
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

fn host_function(stream: u64, function: HostFunction, data: u64, per_thread: bool) -> ApiResult {
    let captured = with_stream(stream, per_thread, |state, key| state.captured_work(key, kind::HOST))?;
    if !captured {
        function(data);
    }
    Ok(())
}

type HostFunction = extern "C" fn(u64);
type StreamCallback = extern "C" fn(u64, u32, u64);

fn add_callback(stream: u64, callback: StreamCallback, data: u64, per_thread: bool) -> ApiResult {
    with_stream(stream, per_thread, |state, key| {
        if state.streams[&key].capture.is_some() { Err(STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    })?;
    callback(stream, 0, data);
    Ok(())
}

fn event_state(handle: u64) -> ApiResult<Option<Instant>> {
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

fn elapsed(out: Out<f32>, start: u64, end: u64) -> ApiResult {
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
        event_state(event)?;
        with_state(|state| {
            // A wait for a manual event completes all work of its stream.
            if let Some(key) = state.events.get(&event).and_then(|event| event.stream) {
                complete_stream(state, key);
            }
            Ok(())
        })?;
        wait_until(event_state(event)?);
        settle()
    }
    plain 2000 cuEventElapsedTime(out: Out<f32>, start: u64, end: u64) { elapsed(out, start, end) }
    plain 12080 cuEventElapsedTime_v2(out: Out<f32>, start: u64, end: u64) { elapsed(out, start, end) }
    plain 2000 simgpuCompleteStream(stream: u64) {
        with_stream(stream, false, |state, key| {
            complete_stream(state, key);
            Ok(())
        })
    }
    plain 4010 cuIpcGetEventHandle(_handle: Out<u8>, _event: u64) { Err(NOT_SUPPORTED) }
    plain 4010 cuIpcOpenEventHandle(_out: Out<u64>, _handle: crate::api::interop::IpcHandle) { Err(NOT_SUPPORTED) }
    plain 2000 cuCtxSynchronize() { synchronise_context() }
    plain 13000 cuCtxSynchronize_v2(context: u64) {
        if context == 0 || context == current_handle() { synchronise_context() } else { settle() }
    }
}
