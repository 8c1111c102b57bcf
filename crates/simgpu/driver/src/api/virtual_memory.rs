//! Virtual memory management: reservations, physical handles, mappings.

use crate::entry::{exports, logged, ready, with_state};
use crate::ffi::{In, Out};
use crate::log::LogRecord;
use crate::result_code::{ApiResult, INVALID_DEVICE, INVALID_VALUE};
use crate::shareable_fd;
use crate::state::DriverState;
use crate::state::foreign::{Token, TokenKind};
use crate::state::vmm::GRANULARITY;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, the only supported handle type.
pub(crate) const POSIX_FD: u32 = 1;

/// `CUmemAllocationProp`: type, handle types, location type and id; the rest is only returned.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllocationProp {
    kind: u32,
    handle_types: u32,
    location_type: u32,
    location_id: i32,
    rest: [u8; 16],
}

impl AllocationProp {
    fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[0..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.handle_types.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.location_type.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.location_id.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.rest);
        bytes
    }

    /// Returns the device to charge; host memory (location types 2 to 4) has none.
    fn device(self, devices: usize) -> ApiResult<Option<u32>> {
        match self.location_type {
            1 if (self.location_id as usize) < devices => Ok(Some(self.location_id as u32)),
            1 => Err(INVALID_DEVICE),
            2..=4 => Ok(None),
            _ => Err(INVALID_VALUE),
        }
    }
}

/// The layout of `CUmemAccessDesc`: location and access flags.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AccessDescriptor {
    location_type: u32,
    location_id: i32,
    flags: u32,
}

/// Returns the device of a mapped address, for the log.
fn device_at(state: &DriverState, addr: u64) -> Option<i32> {
    let vmm = state.vmm.as_ref()?;
    let (_, mapping) = vmm.mapping_at(addr)?;
    vmm.handles.get(&mapping.handle)?.device.map(|device| device as i32)
}

fn device_of_handle(state: &DriverState, handle: u64) -> Option<i32> {
    state.vmm.as_ref()?.handles.get(&handle)?.device.map(|device| device as i32)
}

exports! {
    memory 10020 cuMemAddressReserve(out: Out<u64>, size: u64, align: u64, hint: u64, flags: u64) {
        logged(API, LogRecord::for_size(size), |state, record| {
            out.check()?;
            if flags != 0 {
                return Err(INVALID_VALUE);
            }
            record.addr = state.vmm()?.reserve(size, align, hint)?;
            out.put(record.addr)
        })
    }
    memory 10020 cuMemAddressFree(addr: u64, size: u64) {
        logged(API, LogRecord { addr, ..LogRecord::for_size(size) }, |state, _| state.vmm()?.unreserve(addr, size))
    }
    memory 10020 cuMemCreate(out: Out<u64>, size: u64, prop: In<AllocationProp>, flags: u64) {
        logged(API, LogRecord::for_size(size), |state, record| {
            out.check()?;
            let prop = prop.get()?;
            let device = prop.device(state.devices.len())?;
            if prop.kind != 1 || flags != 0 || size == 0 || !size.is_multiple_of(GRANULARITY) {
                return Err(INVALID_VALUE);
            }
            record.device = device.map_or(-1, |device| device as i32);
            if let Some(device) = device {
                let (device, pages) = state.device_and_pages(device)?;
                device.charge(pages, size)?;
            }
            let handle = state.handle();
            record.push_hex_field("handle", handle);
            state.vmm()?.create(handle, size, device, prop.to_bytes())?;
            out.put(handle)
        })
    }
    memory 10020 cuMemRelease(handle: u64) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("handle", handle);
        logged(API, asked, |state, record| {
            if let Some(device) = device_of_handle(state, handle) {
                record.device = device;
            }
            record.size = state.vmm()?.handles.get(&handle).map_or(0, |physical| physical.size);
            let refund = state.vmm()?.release(handle)?;
            record.push_field("freed", refund.map_or(0, |refund| refund.bytes));
            state.refund(refund);
            Ok(())
        })
    }
    memory 10020 cuMemMap(addr: u64, size: u64, offset: u64, handle: u64, flags: u64) {
        let mut asked = LogRecord { addr, ..LogRecord::for_size(size) };
        asked.push_hex_field("handle", handle);
        asked.push_field("offset", offset);
        logged(API, asked, |state, record| {
            if let Some(device) = device_of_handle(state, handle) {
                record.device = device;
            }
            if flags != 0 {
                return Err(INVALID_VALUE);
            }
            state.vmm()?.map(addr, size, offset, handle)
        })
    }
    memory 10020 cuMemUnmap(addr: u64, size: u64) {
        logged(API, LogRecord { addr, ..LogRecord::for_size(size) }, |state, record| {
            if let Some(device) = device_at(state, addr) {
                record.device = device;
            }
            let refunds = state.vmm()?.unmap(addr, size)?;
            record.push_field("freed", refunds.iter().map(|refund| refund.bytes).sum());
            state.refund(refunds);
            state.pages.decommit(addr, size);
            Ok(())
        })
    }
    memory 10020 cuMemSetAccess(addr: u64, size: u64, access: In<AccessDescriptor>, count: u64) {
        logged(API, LogRecord { addr, ..LogRecord::for_size(size) }, |state, record| {
            if let Some(device) = device_at(state, addr) {
                record.device = device;
            }
            let list = access.list(count as usize)?;
            record.push_field("count", count);
            if list.iter().any(|entry| entry.location_type == 1 && entry.location_id as usize >= state.devices.len()) {
                return Err(INVALID_DEVICE);
            }
            state.vmm()?.set_access(addr, size)?;
            if list.iter().any(|entry| entry.flags != 0) && !state.pages.commit(addr, size) {
                return Err(crate::result_code::OUT_OF_MEMORY);
            }
            Ok(())
        })
    }
    memory 11000 cuMemRetainAllocationHandle(out: Out<u64>, addr: u64) {
        logged(API, LogRecord::for_address(addr), |state, record| {
            out.check()?;
            if let Some(device) = device_at(state, addr) {
                record.device = device;
            }
            let handle = state.vmm()?.retain(addr)?;
            record.push_hex_field("handle", handle);
            out.put(handle)
        })
    }
    plain 10020 cuMemGetAllocationGranularity(out: Out<u64>, prop: In<AllocationProp>, _option: u32) {
        ready()?;
        prop.get()?;
        out.put(GRANULARITY)
    }
    plain 10020 cuMemGetAllocationPropertiesFromHandle(out: Out<[u8; 32]>, handle: u64) {
        with_state(|state| out.put(state.vmm()?.handles.get(&handle).ok_or(INVALID_VALUE)?.prop))
    }
    plain 10020 cuMemGetAccess(out: Out<u64>, _location: In<u64>, addr: u64) {
        with_state(|state| {
            let mapping = state.vmm()?.mapping_at(addr).ok_or(INVALID_VALUE)?.1;
            out.put(if mapping.accessible { 3 } else { 0 })
        })
    }
    memory 10020 cuMemExportToShareableHandle(out: Out<i32>, handle: u64, kind: u32, _flags: u64) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("handle", handle);
        logged(API, asked, |state, record| {
            out.check()?;
            if let Some(device) = device_of_handle(state, handle) {
                record.device = device;
            }
            let physical = state.vmm()?.held_memory(handle)?;
            // The only supported kind, and only for memory created with it.
            if kind != POSIX_FD || physical.prop[4] & POSIX_FD as u8 == 0 {
                return Err(INVALID_VALUE);
            }
            let (pid, device) = (std::process::id(), physical.device.unwrap_or(0));
            out.put(shareable_fd::make(Token { subject: TokenKind::Physical, pid, device, name: handle, size: physical.size })?)
        })
    }
    memory 10020 cuMemImportFromShareableHandle(out: Out<u64>, os_handle: u64, kind: u32) {
        logged(API, LogRecord::default(), |state, record| {
            out.check()?;
            if kind != POSIX_FD {
                return Err(INVALID_VALUE);
            }
            let token = shareable_fd::read(os_handle as i32, TokenKind::Physical)?;
            record.size = token.size;
            let handle = if token.pid == std::process::id() {
                state.vmm()?.add_reference(token.name)?;
                token.name
            } else {
                let handle = state.handle();
                state.vmm()?.create(handle, token.size, None, [0; 32])?;
                handle
            };
            record.device = device_of_handle(state, handle).unwrap_or(-1);
            record.push_hex_field("handle", handle);
            out.put(handle)
        })
    }
}
