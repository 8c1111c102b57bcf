//! Initialisation, devices and contexts.

use core::ffi::c_char;

use crate::device_attributes::{FIRST_BUS, attribute};
use crate::entry::{
    config, current, current_handle, exports, initialise, logged, pop_current, push_current, ready,
    set_current, with_context, with_state,
};
use crate::ffi::{In, Out, Text};
use crate::log::LogRecord;
use crate::result_code::{
    self, ApiResult, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, PEER_ACCESS_ALREADY_ENABLED,
    PEER_ACCESS_NOT_ENABLED, SUCCESS,
};
use crate::state::{Context, DriverState};
use crate::values;

/// CUDA version of the driver; newer than any supported toolkit needs.
pub(crate) const DRIVER_VERSION: i32 = 13030;
/// `CU_GREEN_CTX_DEFAULT_STREAM`: the only flag, and required.
const GREEN_DEFAULT_STREAM: u32 = 1;
const API_VERSION: u32 = 3020;

fn check_device(device: u32) -> ApiResult {
    ready()?;
    if device < config().devices { Ok(()) } else { Err(INVALID_DEVICE) }
}

fn copy_text(out: Out<u8>, room: i32, text: &str) -> ApiResult {
    out.check()?;
    let room = usize::try_from(room).ok().filter(|&room| room > 0).ok_or(INVALID_VALUE)?;
    out.put_all(text.bytes().take(room - 1).chain([0]));
    Ok(())
}

/// Returns a UUID that is the same in every run and differs between devices.
fn uuid(device: u32) -> [u8; 16] {
    let mut uuid = *b"simulated GPU \0\0";
    uuid[15] = device as u8;
    uuid
}

fn create_context(api: &'static str, out: Out<u64>, flags: u32, device: u32) -> ApiResult {
    logged(api, LogRecord::default(), |state, record| {
        out.check()?;
        record.device = device as i32;
        state.device(device)?;
        state.charge_context(device)?;
        let handle = state.handle();
        state.contexts.insert(handle, Context { device, primary: false, retains: 1, active: true, flags });
        record.push_hex_field("context", handle);
        if !push_current(handle) {
            state.end_context(handle)?;
            return Err(INVALID_VALUE);
        }
        out.put(handle)
    })
}

fn end_context(state: &mut DriverState, record: &mut LogRecord, handle: u64) -> ApiResult {
    record.push_hex_field("context", handle);
    let blocks = state.end_context(handle)?;
    record.push_field("ended", 1);
    for addr in blocks {
        record.push_hex_field("freed", addr);
    }
    Ok(())
}

/// Retains the primary context; the first retain activates it.
fn retain_primary(state: &mut DriverState, record: &mut LogRecord, device: u32) -> ApiResult<u64> {
    record.device = device as i32;
    let (handle, context) = state.primary(device)?;
    let asleep = !context.active;
    record.push_hex_field("context", handle);
    if asleep {
        state.charge_context(device)?;
        record.push_field("woke", 1);
    }
    let (_, context) = state.primary(device)?;
    context.active = true;
    context.retains += 1;
    Ok(handle)
}

/// Releases the primary context; the last release destroys it.
fn release_primary(state: &mut DriverState, record: &mut LogRecord, device: u32) -> ApiResult {
    record.device = device as i32;
    let (handle, context) = state.primary(device)?;
    if context.retains == 0 {
        return Err(INVALID_CONTEXT);
    }
    context.retains -= 1;
    if context.retains == 0 { end_context(state, record, handle) } else { Ok(()) }
}

fn release(api: &'static str, device: u32) -> ApiResult {
    logged(api, LogRecord::default(), |state, record| release_primary(state, record, device))
}

fn reset(api: &'static str, device: u32) -> ApiResult {
    logged(api, LogRecord::default(), |state, record| {
        record.device = device as i32;
        let handle = state.primary(device)?.0;
        end_context(state, record, handle)
    })
}

fn destroy(api: &'static str, context: u64) -> ApiResult {
    logged(api, LogRecord::default(), |state, record| {
        let known = state.active_context(context).filter(|known| !known.primary).ok_or(INVALID_CONTEXT)?;
        record.device = known.device as i32;
        end_context(state, record, context)?;
        if current_handle() == context {
            pop_current();
        }
        Ok(())
    })
}

fn peer_access(context: u64, enable: bool) -> ApiResult {
    with_context(|state, current| {
        let to = state.active_context(context).ok_or(INVALID_CONTEXT)?.device;
        let pair = (current.device, to);
        let known = state.peers.contains(&pair);
        match (enable, known) {
            _ if pair.0 == pair.1 => return Err(INVALID_DEVICE),
            (true, true) => return Err(PEER_ACCESS_ALREADY_ENABLED),
            (false, false) => return Err(PEER_ACCESS_NOT_ENABLED),
            (true, false) => state.peers.push(pair),
            (false, true) => state.peers.retain(|known| *known != pair),
        }
        Ok(())
    })
}

exports! {
    plain 2000 cuInit(flags: u32) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        initialise()?;
        values::install();
        Ok(())
    }
    plain 2020 cuDriverGetVersion(out: Out<i32>) { out.put(DRIVER_VERSION) }
    plain 6000 cuGetErrorString(code: u32, out: Out<*const c_char>) {
        let text = result_code::text(code);
        out.put(text.map_or(std::ptr::null(), core::ffi::CStr::as_ptr))?;
        text.map(|_| ()).ok_or(INVALID_VALUE)
    }
    plain 6000 cuGetErrorName(code: u32, out: Out<*const c_char>) {
        let name = result_code::name(code);
        out.put(name.map_or(std::ptr::null(), core::ffi::CStr::as_ptr))?;
        name.map(|_| ()).ok_or(INVALID_VALUE)
    }

    plain 2000 cuDeviceGetCount(out: Out<i32>) {
        ready()?;
        out.put(config().devices as i32)
    }
    plain 2000 cuDeviceGet(out: Out<u32>, ordinal: u32) {
        check_device(ordinal)?;
        out.put(ordinal)
    }
    plain 2000 cuDeviceGetName(out: Out<u8>, room: i32, device: u32) {
        check_device(device)?;
        copy_text(out, room, &config().name)
    }
    plain 9020 cuDeviceGetUuid(out: Out<[u8; 16]>, device: u32) {
        check_device(device)?;
        out.put(uuid(device))
    }
    plain 11040 cuDeviceGetUuid_v2(out: Out<[u8; 16]>, device: u32) {
        check_device(device)?;
        out.put(uuid(device))
    }
    plain 3020 cuDeviceTotalMem_v2(out: Out<u64>, device: u32) {
        check_device(device)?;
        out.put(config().memory)
    }
    plain 2000 cuDeviceGetAttribute(out: Out<i32>, which: u32, device: u32) {
        check_device(device)?;
        out.put(attribute(config(), device, which)?)
    }
    plain 5000 cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: u32) {
        check_device(device)?;
        major.put(config().compute.0 as i32)?;
        minor.put(config().compute.1 as i32)
    }
    plain 4010 cuDeviceGetPCIBusId(out: Out<u8>, room: i32, device: u32) {
        check_device(device)?;
        copy_text(out, room, &format!("0000:{:02X}:00.0", FIRST_BUS + device))
    }
    plain 4010 cuDeviceGetByPCIBusId(out: Out<u32>, text: Text) {
        ready()?;
        let text = text.get()?.to_string_lossy().to_ascii_uppercase();
        let bus = text.rsplit(':').nth(1).and_then(|bus| u32::from_str_radix(bus, 16).ok()).ok_or(INVALID_VALUE)?;
        let device = bus.checked_sub(FIRST_BUS).filter(|&device| device < config().devices).ok_or(INVALID_DEVICE)?;
        out.put(device)
    }
    plain 4000 cuDeviceCanAccessPeer(out: Out<i32>, from: u32, to: u32) {
        check_device(from)?;
        check_device(to)?;
        out.put(i32::from(from != to))
    }
    plain 8000 cuDeviceGetP2PAttribute(out: Out<i32>, which: u32, from: u32, to: u32) {
        check_device(from)?;
        check_device(to)?;
        out.put(i32::from(from != to && (which == 2 || which == 3)))
    }
    plain 4000 cuCtxEnablePeerAccess(context: u64, _flags: u32) { peer_access(context, true) }
    plain 4000 cuCtxDisablePeerAccess(context: u64) { peer_access(context, false) }

    memory 7000 cuDevicePrimaryCtxRetain(out: Out<u64>, device: u32) {
        values::install();
        logged(API, LogRecord::default(), |state, record| {
            out.check()?;
            let handle = retain_primary(state, record, device)?;
            out.put(handle)
        })
    }
    memory 7000 cuDevicePrimaryCtxRelease(device: u32) { release(API, device) }
    memory 11000 cuDevicePrimaryCtxRelease_v2(device: u32) { release(API, device) }
    memory 7000 cuDevicePrimaryCtxReset(device: u32) { reset(API, device) }
    memory 11000 cuDevicePrimaryCtxReset_v2(device: u32) { reset(API, device) }
    plain 11000 cuDevicePrimaryCtxSetFlags_v2(device: u32, flags: u32) {
        with_state(|state| {
            state.primary(device)?.1.flags = flags;
            Ok(())
        })
    }
    plain 7000 cuDevicePrimaryCtxGetState(device: u32, flags: Out<u32>, active: Out<i32>) {
        with_state(|state| {
            let (_, context) = state.primary(device)?;
            flags.put_if_wanted(context.flags);
            active.put_if_wanted(i32::from(context.active));
            Ok(())
        })
    }
    memory 2000 cuCtxCreate(out: Out<u64>, flags: u32, device: u32) { create_context(API, out, flags, device) }
    memory 3020 cuCtxCreate_v2(out: Out<u64>, flags: u32, device: u32) { create_context(API, out, flags, device) }
    memory 11040 cuCtxCreate_v3(out: Out<u64>, _affinity: In<u8>, _count: i32, flags: u32, device: u32) {
        create_context(API, out, flags, device)
    }
    memory 12050 cuCtxCreate_v4(out: Out<u64>, _params: In<u8>, flags: u32, device: u32) {
        create_context(API, out, flags, device)
    }
    memory 2000 cuCtxDestroy(context: u64) { destroy(API, context) }
    memory 4000 cuCtxDestroy_v2(context: u64) { destroy(API, context) }
    // A green context is the primary context with fewer multiprocessors; it retains the primary.
    memory 12040 cuGreenCtxCreate(out: Out<u64>, resources: u64, device: u32, flags: u32) {
        logged(API, LogRecord::default(), |state, record| {
            out.check()?;
            if resources == 0 || flags != GREEN_DEFAULT_STREAM {
                return Err(INVALID_VALUE);
            }
            retain_primary(state, record, device)?;
            let green = state.handle();
            record.push_hex_field("green", green);
            state.greens.insert(green, device);
            out.put(green)
        })
    }
    memory 12040 cuGreenCtxDestroy(green: u64) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("green", green);
        logged(API, asked, |state, record| {
            let device = state.greens.remove(&green).ok_or(INVALID_VALUE)?;
            release_primary(state, record, device)
        })
    }
    plain 12050 cuCtxFromGreenCtx(out: Out<u64>, green: u64) {
        with_state(|state| {
            let device = *state.greens.get(&green).ok_or(INVALID_VALUE)?;
            out.put(state.primary(device)?.0)
        })
    }
    plain 4000 cuCtxGetCurrent(out: Out<u64>) {
        ready()?;
        out.put(current_handle())
    }
    plain 4000 cuCtxSetCurrent(context: u64) {
        with_state(|state| {
            if context != 0 && !state.contexts.contains_key(&context) {
                return Err(INVALID_CONTEXT);
            }
            set_current(context);
            Ok(())
        })
    }
    plain 4000 cuCtxPushCurrent_v2(context: u64) {
        with_state(|state| {
            state.active_context(context).ok_or(INVALID_CONTEXT)?;
            if push_current(context) { Ok(()) } else { Err(INVALID_VALUE) }
        })
    }
    plain 4000 cuCtxPopCurrent_v2(out: Out<u64>) {
        ready()?;
        let popped = pop_current().ok_or(INVALID_CONTEXT)?;
        out.put_if_wanted(popped);
        Ok(())
    }
    plain 2000 cuCtxGetDevice(out: Out<u32>) { with_context(|_, current| out.put(current.device)) }
    plain 13000 cuCtxGetDevice_v2(out: Out<u32>, context: u64) {
        with_state(|state| {
            let handle = if context == 0 { current_handle() } else { context };
            out.put(state.active_context(handle).ok_or(INVALID_CONTEXT)?.device)
        })
    }
    plain 7000 cuCtxGetFlags(out: Out<u32>) {
        with_context(|state, current| out.put(state.contexts[&current.context].flags))
    }
    plain 12000 cuCtxGetId(_context: u64, out: Out<u64>) { with_context(|_, current| out.put(current.context)) }
    plain 3020 cuCtxGetApiVersion(_context: u64, out: Out<u32>) { out.put(API_VERSION) }
    plain 5000 cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        with_context(|_, _| {
            least.put_if_wanted(0);
            greatest.put_if_wanted(-5);
            Ok(())
        })
    }
    memory 3010 cuCtxSetLimit(limit: u32, value: u64) {
        let mut asked = LogRecord::for_size(value);
        asked.push_field("limit", u64::from(limit));
        logged(API, asked, |state, _| current(state).map(|_| ()))
    }
    plain 3010 cuCtxGetLimit(out: Out<u64>, limit: u32) {
        with_context(|_, _| out.put(match limit {
            0 => 1024,
            1 => 1 << 20,
            2 => 8 << 20,
            _ => 0,
        }))
    }
    plain 3020 cuCtxGetCacheConfig(out: Out<u32>) { with_context(|_, _| out.put(0)) }
    plain 3020 cuCtxSetCacheConfig(_config: u32) { with_context(|_, _| Ok(())) }
    plain 4020 cuCtxGetSharedMemConfig(out: Out<u32>) { with_context(|_, _| out.put(0)) }
    plain 4020 cuCtxSetSharedMemConfig(_config: u32) { with_context(|_, _| Ok(())) }
    plain 11000 cuCtxResetPersistingL2Cache() { with_context(|_, _| Ok(())) }
}

/// Returns charged bytes and capacity of a device to the simulated NVML. It is no driver call, so a
/// tracer sees none, as on a real machine.
#[unsafe(no_mangle)]
extern "C" fn simgpu_device_usage(device: u32, used: Out<u64>, total: Out<u64>) -> result_code::Rc {
    if device >= config().devices {
        return INVALID_DEVICE;
    }
    let answer = with_state(|state| Ok(state.device(device)?.used)).unwrap_or(0);
    used.put_if_wanted(answer);
    total.put_if_wanted(config().memory);
    SUCCESS
}

/// Returns device count and compute capability (`10 * major + minor`) to the other libraries.
#[unsafe(no_mangle)]
extern "C" fn simgpu_shape(devices: Out<u32>, compute: Out<u32>) {
    devices.put_if_wanted(config().devices);
    compute.put_if_wanted(10 * config().compute.0 + config().compute.1);
}
