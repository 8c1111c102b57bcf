//! Multicast objects: writes to one address reach several devices.
//!
//! Their handles are mapped and released like physical memory, but hold no memory.

use crate::entry::{exports, logged, ready};
use crate::ffi::{In, Out};
use crate::log::LogRecord;
use crate::result_code::{ApiResult, INVALID_DEVICE, INVALID_VALUE};
use crate::state::DriverState;
use crate::state::foreign::Multicast;
use crate::state::vmm::GRANULARITY;

/// The layout of `CUmulticastObjectProp`, passed to `cuMulticastCreate`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct MulticastProp {
    devices: u32,
    size: u64,
    handle_types: u64,
    flags: u64,
}

fn about(handle: u64, addr: u64, size: u64) -> LogRecord {
    let mut asked = LogRecord { addr, ..LogRecord::for_size(size) };
    asked.push_hex_field("handle", handle);
    asked
}

/// Binds memory; all devices must have joined before.
fn bind(
    api: &'static str,
    (handle, at): (u64, u64),
    (addr, size): (u64, u64),
    exists: impl FnOnce(&mut DriverState) -> ApiResult<bool>,
) -> ApiResult {
    logged(api, about(handle, addr, size), |state, _| {
        let object = state.foreign.multicast.get(&handle).ok_or(INVALID_VALUE)?;
        let complete = object.devices.len() == object.wanted as usize;
        let room = state.vmm()?.handles.get(&handle).map_or(0, |physical| physical.size);
        let fits = at.checked_add(size).is_some_and(|end| end <= room) && size > 0;
        if complete && fits && exists(state)? { Ok(()) } else { Err(INVALID_VALUE) }
    })
}

fn bind_memory(api: &'static str, object: (u64, u64), memory: u64, size: u64) -> ApiResult {
    bind(api, object, (0, size), |state| Ok(state.vmm()?.held_memory(memory).is_ok()))
}

fn bind_address(api: &'static str, object: (u64, u64), addr: u64, size: u64) -> ApiResult {
    bind(api, object, (addr, size), |state| Ok(state.vmm()?.mapping_at(addr).is_some()))
}

exports! {
    memory 12010 cuMulticastCreate(out: Out<u64>, prop: In<MulticastProp>) {
        logged(API, LogRecord::for_size(prop.get().map_or(0, |prop| prop.size)), |state, record| {
            out.check()?;
            let prop = prop.get()?;
            if prop.devices == 0 || prop.size == 0 || !prop.size.is_multiple_of(GRANULARITY) {
                return Err(INVALID_VALUE);
            }
            let handle = state.handle();
            record.device = -1;
            record.push_hex_field("handle", handle);
            state.vmm()?.create(handle, prop.size, None, [0; 32])?;
            state.foreign.multicast.insert(handle, Multicast { wanted: prop.devices, devices: Vec::new() });
            out.put(handle)
        })
    }
    memory 12010 cuMulticastAddDevice(handle: u64, device: u32) {
        logged(API, about(handle, 0, 0), |state, record| {
            record.device = device as i32;
            state.device(device)?;
            let object = state.foreign.multicast.get_mut(&handle).ok_or(INVALID_VALUE)?;
            if object.devices.contains(&device) || object.devices.len() == object.wanted as usize {
                return Err(INVALID_DEVICE);
            }
            object.devices.push(device);
            Ok(())
        })
    }
    memory 12010 cuMulticastBindMem(handle: u64, at: u64, memory: u64, _offset: u64, size: u64, _flags: u64) {
        bind_memory(API, (handle, at), memory, size)
    }
    memory 13010 cuMulticastBindMem_v2(
        handle: u64, _device: u32, at: u64, memory: u64, _offset: u64, size: u64, _flags: u64,
    ) {
        bind_memory(API, (handle, at), memory, size)
    }
    memory 12010 cuMulticastBindAddr(handle: u64, at: u64, addr: u64, size: u64, _flags: u64) {
        bind_address(API, (handle, at), addr, size)
    }
    memory 13010 cuMulticastBindAddr_v2(handle: u64, _device: u32, at: u64, addr: u64, size: u64, _flags: u64) {
        bind_address(API, (handle, at), addr, size)
    }
    memory 12010 cuMulticastUnbind(handle: u64, device: u32, _at: u64, size: u64) {
        logged(API, about(handle, 0, size), |state, record| {
            record.device = device as i32;
            let object = state.foreign.multicast.get(&handle).ok_or(INVALID_VALUE)?;
            if object.devices.contains(&device) { Ok(()) } else { Err(INVALID_DEVICE) }
        })
    }
    plain 12010 cuMulticastGetGranularity(out: Out<u64>, prop: In<MulticastProp>, _option: u32) {
        ready()?;
        prop.get()?;
        out.put(GRANULARITY)
    }
}
