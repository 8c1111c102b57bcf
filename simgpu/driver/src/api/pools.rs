//! Stream-ordered allocation: pools, and allocation nodes during stream capture.

use crate::api::streams::key_of;
use crate::api::virtual_memory::POSIX_FD;
use crate::entry::{current, exports, logged, with_state};
use crate::ffi::{In, Out};
use crate::log::LogRecord;
use crate::result_code::{ApiResult, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED};
use crate::shareable_fd;
use crate::state::device::BlockOrigin;
use crate::state::foreign::{TOKEN, Token, TokenKind};
use crate::state::graph::{MemoryStep, kind};
use crate::state::pool::Pool;

/// The start of `CUmemPoolProps`: allocation type, handle types, location, security, size limit.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolProps {
    kind: u32,
    handle_types: u32,
    location_type: u32,
    location_id: i32,
    rest: [u64; 9],
}

fn allocate(
    api: &'static str,
    out: Out<u64>,
    size: u64,
    pool: Option<u64>,
    stream: u64,
    per_thread: bool,
) -> ApiResult {
    logged(api, LogRecord::for_size(size).with_stream(stream), |state, record| {
        out.check()?;
        let current = current(state)?;
        let key = key_of(state, current, stream, per_thread)?;
        let ordinal = pool.map_or(Ok(current.device), |pool| state.pool_device(pool))?;
        record.device = ordinal as i32;
        if state.streams.get(&key).is_some_and(|stream| stream.capture.is_some()) {
            let addr = state.device(ordinal)?.reserve_graph_span(size)?;
            state.captured_work(key, kind::MEM_ALLOC, Some(MemoryStep::Alloc { device: ordinal, addr }))?;
            record.push_field("captured", 1);
            record.addr = addr;
            return out.put(addr);
        }
        let (device, pages) = state.device_and_pages(ordinal)?;
        let pool = pool.unwrap_or(device.current_pool);
        record.push_hex_field("pool", pool);
        record.addr = device.alloc_from_pool(pages, size, pool, current.context)?;
        out.put(record.addr)
    })
}

fn free(api: &'static str, addr: u64, stream: u64, per_thread: bool) -> ApiResult {
    logged(api, LogRecord::for_address(addr).with_stream(stream), |state, record| {
        let current = current(state)?;
        let key = key_of(state, current, stream, per_thread)?;
        let ordinal = state.device_of(addr).ok_or(INVALID_VALUE)?;
        record.device = ordinal as i32;
        let block = state.devices[ordinal as usize].blocks.get(&addr).copied();
        record.size = block.map_or(0, |block| block.size);
        if state.streams.get(&key).is_some_and(|stream| stream.capture.is_some()) {
            // The address is a node of this capture or an earlier launch's; the launch finds out.
            record.push_field("captured", 1);
            return state.captured_work(key, kind::MEM_FREE, Some(MemoryStep::Free { addr })).map(|_| ());
        }
        // Stream-ordered frees accept `cuMemAlloc` memory, but not managed memory and arrays.
        match block.ok_or(INVALID_VALUE)?.home {
            BlockOrigin::Direct | BlockOrigin::Pool(_) | BlockOrigin::Graph | BlockOrigin::Imported => {
                state.free(addr).map(|_| ())
            }
            BlockOrigin::Managed | BlockOrigin::Array | BlockOrigin::Mipmapped | BlockOrigin::Ipc => {
                Err(INVALID_VALUE)
            }
        }
    })
}

/// Returns the value of one pool attribute.
fn pool_value(pool: &Pool, attribute: u32) -> ApiResult<u64> {
    match attribute {
        4 => Ok(pool.threshold),
        5 => Ok(pool.reserved),
        6 => Ok(pool.reserved_high),
        7 => Ok(pool.used),
        8 => Ok(pool.used_high),
        _ => Err(INVALID_VALUE),
    }
}

fn about_attribute(pool: u64, attribute: u32) -> LogRecord {
    let mut asked = LogRecord::default();
    asked.push_hex_field("pool", pool);
    asked.push_field("attribute", u64::from(attribute));
    asked
}

exports! {
    memory 11020 cuMemAllocAsync(dptr: Out<u64>, size: u64, stream: u64) { allocate(API, dptr, size, None, stream, false) }
    memory 11020 cuMemAllocAsync_ptsz(dptr: Out<u64>, size: u64, stream: u64) { allocate(API, dptr, size, None, stream, true) }
    memory 11020 cuMemAllocFromPoolAsync(dptr: Out<u64>, size: u64, pool: u64, stream: u64) {
        allocate(API, dptr, size, Some(pool), stream, false)
    }
    memory 11020 cuMemAllocFromPoolAsync_ptsz(dptr: Out<u64>, size: u64, pool: u64, stream: u64) {
        allocate(API, dptr, size, Some(pool), stream, true)
    }
    memory 11020 cuMemFreeAsync(dptr: u64, stream: u64) { free(API, dptr, stream, false) }
    memory 11020 cuMemFreeAsync_ptsz(dptr: u64, stream: u64) { free(API, dptr, stream, true) }

    memory 11020 cuMemPoolCreate(out: Out<u64>, props: In<PoolProps>) {
        logged(API, LogRecord::default(), |state, record| {
            out.check()?;
            let props = props.get()?;
            if props.kind != 1 || props.location_type != 1 {
                return Err(NOT_SUPPORTED);
            }
            let ordinal = u32::try_from(props.location_id).map_err(|_| INVALID_DEVICE)?;
            record.device = ordinal as i32;
            let handle = state.handle();
            let shareable = props.handle_types & POSIX_FD != 0;
            state.device(ordinal)?.pools.insert(handle, Pool::made(shareable));
            record.push_hex_field("pool", handle);
            out.put(handle)
        })
    }
    memory 11020 cuMemPoolDestroy(pool: u64) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("pool", pool);
        logged(API, asked, |state, record| {
            let ordinal = state.pool_device(pool)?;
            record.device = ordinal as i32;
            let (device, pages) = state.device_and_pages(ordinal)?;
            device.destroy_pool(pages, pool).map(|_| ())
        })
    }
    memory 11020 cuMemPoolTrimTo(pool: u64, keep: u64) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("pool", pool);
        asked.push_field("keep", keep);
        logged(API, asked, |state, record| {
            let ordinal = state.pool_device(pool)?;
            record.device = ordinal as i32;
            let (device, pages) = state.device_and_pages(ordinal)?;
            device.trim_pool(pages, pool, keep).map(|_| ())
        })
    }
    memory 11020 cuMemPoolGetAttribute(pool: u64, attribute: u32, out: Out<u8>) {
        logged(API, about_attribute(pool, attribute), |state, record| {
            let ordinal = state.pool_device(pool)?;
            record.device = ordinal as i32;
            if (1..=3).contains(&attribute) {
                record.size = 1;
                return out.cast::<u32>().put(1);
            }
            record.size = pool_value(&state.device(ordinal)?.pools[&pool], attribute)?;
            out.cast::<u64>().put(record.size)
        })
    }
    memory 11020 cuMemPoolSetAttribute(pool: u64, attribute: u32, value: In<u64>) {
        logged(API, about_attribute(pool, attribute), |state, record| {
            let ordinal = state.pool_device(pool)?;
            record.device = ordinal as i32;
            record.size = if (1..=3).contains(&attribute) { value.cast::<u32>().get()?.into() } else { value.get()? };
            let Some(pool) = state.device(ordinal)?.pools.get_mut(&pool) else { return Err(INVALID_VALUE) };
            match attribute {
                1..=3 => {}
                4 => pool.threshold = value.get()?,
                6 if value.get()? == 0 => pool.reserved_high = pool.reserved,
                8 if value.get()? == 0 => pool.used_high = pool.used,
                _ => return Err(INVALID_VALUE),
            }
            Ok(())
        })
    }
    plain 11020 cuMemPoolSetAccess(pool: u64, _access: In<u8>, _count: u64) {
        with_state(|state| state.pool_device(pool).map(|_| ()))
    }
    plain 11020 cuMemPoolGetAccess(out: Out<u32>, pool: u64, _location: In<u8>) {
        with_state(|state| {
            state.pool_device(pool)?;
            out.put(3)
        })
    }
    plain 11020 cuDeviceGetDefaultMemPool(out: Out<u64>, device: u32) {
        with_state(|state| out.put(state.device(device)?.default_pool))
    }
    plain 11020 cuDeviceGetMemPool(out: Out<u64>, device: u32) {
        with_state(|state| out.put(state.device(device)?.current_pool))
    }
    memory 11020 cuDeviceSetMemPool(device: u32, pool: u64) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("pool", pool);
        logged(API, asked, |state, record| {
            record.device = device as i32;
            if state.pool_device(pool)? != device {
                return Err(INVALID_VALUE);
            }
            state.device(device)?.current_pool = pool;
            Ok(())
        })
    }
    memory 13000 cuMemSetMemPool(place: In<[u32; 2]>, _kind: u32, pool: u64) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("pool", pool);
        logged(API, asked, |state, record| {
            let [kind, device] = place.get()?;
            if kind != 1 || state.pool_device(pool)? != device {
                return Err(INVALID_VALUE);
            }
            record.device = device as i32;
            state.device(device)?.current_pool = pool;
            Ok(())
        })
    }
    memory 11020 cuMemPoolExportToShareableHandle(out: Out<i32>, pool: u64, kind: u32, _flags: u64) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("pool", pool);
        logged(API, asked, |state, record| {
            out.check()?;
            let device = state.pool_device(pool)?;
            record.device = device as i32;
            if kind != POSIX_FD || !state.device(device)?.pools[&pool].shareable {
                return Err(INVALID_VALUE);
            }
            let pid = std::process::id();
            out.put(shareable_fd::make(Token { subject: TokenKind::Pool, pid, device, name: pool, size: 0 })?)
        })
    }
    memory 11020 cuMemPoolImportFromShareableHandle(out: Out<u64>, os_handle: u64, kind: u32, _flags: u64) {
        logged(API, LogRecord::default(), |state, record| {
            out.check()?;
            if kind != POSIX_FD {
                return Err(INVALID_VALUE);
            }
            let token = shareable_fd::read(os_handle as i32, TokenKind::Pool)?;
            record.device = token.device as i32;
            let handle = state.handle();
            state.device(token.device)?.pools.insert(handle, Pool::imported());
            record.push_hex_field("pool", handle);
            out.put(handle)
        })
    }
    memory 11020 cuMemPoolExportPointer(out: Out<[u8; TOKEN]>, addr: u64) {
        logged(API, LogRecord::for_address(addr), |state, record| {
            out.check()?;
            let device = state.device_of(addr).ok_or(INVALID_VALUE)?;
            record.device = device as i32;
            let block = state.devices[device as usize].blocks.get(&addr).copied().ok_or(INVALID_VALUE)?;
            let BlockOrigin::Pool(_) = block.home else { return Err(INVALID_VALUE) };
            let pid = std::process::id();
            out.put(Token { subject: TokenKind::DeviceBlock, pid, device, name: addr, size: block.size }.to_bytes())
        })
    }
    memory 11020 cuMemPoolImportPointer(out: Out<u64>, pool: u64, data: In<[u8; TOKEN]>) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("pool", pool);
        logged(API, asked, |state, record| {
            out.check()?;
            let token = Token::from_bytes(&data.get()?, TokenKind::DeviceBlock)?;
            let ordinal = state.pool_device(pool)?;
            (record.device, record.size) = (ordinal as i32, token.size);
            let (device, pages) = state.device_and_pages(ordinal)?;
            if !device.pools[&pool].imported {
                return Err(INVALID_VALUE);
            }
            record.addr = device.alloc(pages, token.size, BlockOrigin::Imported, 0)?;
            out.put(record.addr)
        })
    }
}
