//! Stream-ordered allocation: pools, and allocation nodes during stream capture.

use crate::api::streams::key_of;
use crate::api::virtual_memory::POSIX_FD;
use crate::entry::{current, exports, logged, with_state};
use crate::ffi::{In, Out};
use crate::log::LogRecord;
use crate::result_code::{ApiResult, INVALID_DEVICE, INVALID_VALUE};
use crate::shareable_fd;
use crate::state::LocationPools;
use crate::state::device::BlockOrigin;
use crate::state::foreign::{TOKEN, Token, TokenKind};
use crate::state::graph::{MemoryStep, Node};
use crate::state::location::{Location, MemoryKind, log_ordinal};
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
        let window = pool.map_or(Ok(current.device), |pool| state.pool_window(pool))?;
        let location = pool.map_or(Ok(Location::of_device(window)), |pool| state.pool_location(pool))?;
        record.device = log_ordinal(window);
        record.push_memory(location.memory());
        if state.streams.get(&key).is_some_and(|stream| stream.capture.is_some()) {
            record.push_field("captured", 1);
            state.captured_node(key, |(state, old)| {
                let memory = state.window(window)?;
                record.addr = match old.map(|node| node.steps.as_slice()) {
                    Some([MemoryStep::Alloc { addr, .. }]) if memory.graph_span_size(*addr) == size => *addr,
                    Some(_) => return Err(INVALID_VALUE),
                    None => memory.reserve_graph_span(size, location.memory())?,
                };
                Ok(Node::memory(Vec::new(), MemoryStep::Alloc { window, addr: record.addr }))
            })?;
            return out.put(record.addr);
        }
        let (device, pages) = state.window_and_pages(window)?;
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
        let window = state.window_of(addr).ok_or(INVALID_VALUE)?;
        record.device = log_ordinal(window);
        let block = state.block(addr).copied();
        record.size = block.map_or(0, |block| block.size);
        record.push_memory(block.map_or(MemoryKind::Device, |block| block.memory));
        if state.streams.get(&key).is_some_and(|stream| stream.capture.is_some()) {
            // The address is a node of this capture or an earlier launch's; the launch finds out.
            record.push_field("captured", 1);
            let node = Node::memory(Vec::new(), MemoryStep::Free { addr });
            return state.captured_node(key, |_| Ok(node)).map(|_| ());
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

fn location_of(place: In<[u32; 2]>, allocation: u32) -> ApiResult<Location> {
    let [kind, id] = place.get()?;
    Location::new(allocation, kind, id as i32)
}

/// Returns the default or current pool of a location.
fn pool_of_location(
    api: &'static str,
    out: Out<u64>,
    place: In<[u32; 2]>,
    allocation: u32,
    select: impl FnOnce(LocationPools) -> u64,
) -> ApiResult {
    logged(api, LogRecord::default(), |state, record| {
        out.check()?;
        let location = location_of(place, allocation)?;
        record.device = log_ordinal(location.window());
        record.push_memory(location.memory());
        let pool = select(state.pools_of(location)?);
        record.push_hex_field("pool", pool);
        out.put(pool)
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
            let location = Location::new(props.kind, props.location_type, props.location_id)?;
            if location.named_device().is_some_and(|device| device >= state.config.devices) {
                return Err(INVALID_DEVICE);
            }
            // Managed memory cannot be shared; neither can host memory without a NUMA node.
            let shareable = props.handle_types & POSIX_FD != 0;
            if shareable && !location.is_shareable() {
                return Err(INVALID_VALUE);
            }
            record.device = log_ordinal(location.window());
            record.push_memory(location.memory());
            let handle = state.handle();
            let mut pool = Pool::new(location);
            pool.shareable = shareable;
            state.window(location.window())?.pools.insert(handle, pool);
            record.push_hex_field("pool", handle);
            out.put(handle)
        })
    }
    memory 11020 cuMemPoolDestroy(pool: u64) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("pool", pool);
        logged(API, asked, |state, record| {
            record.device = log_ordinal(state.pool_window(pool)?);
            state.destroy_pool(pool)
        })
    }
    memory 11020 cuMemPoolTrimTo(pool: u64, keep: u64) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("pool", pool);
        asked.push_field("keep", keep);
        logged(API, asked, |state, record| {
            let window = state.pool_window(pool)?;
            record.device = log_ordinal(window);
            let (device, pages) = state.window_and_pages(window)?;
            device.trim_pool(pages, pool, keep).map(|_| ())
        })
    }
    memory 11020 cuMemPoolGetAttribute(pool: u64, attribute: u32, out: Out<u8>) {
        logged(API, about_attribute(pool, attribute), |state, record| {
            let window = state.pool_window(pool)?;
            record.device = log_ordinal(window);
            if (1..=3).contains(&attribute) {
                record.size = 1;
                return out.cast::<u32>().put(1);
            }
            record.size = pool_value(&state.window(window)?.pools[&pool], attribute)?;
            out.cast::<u64>().put(record.size)
        })
    }
    memory 11020 cuMemPoolSetAttribute(pool: u64, attribute: u32, value: In<u64>) {
        logged(API, about_attribute(pool, attribute), |state, record| {
            let window = state.pool_window(pool)?;
            record.device = log_ordinal(window);
            record.size = if (1..=3).contains(&attribute) { value.cast::<u32>().get()?.into() } else { value.get()? };
            let Some(pool) = state.window(window)?.pools.get_mut(&pool) else { return Err(INVALID_VALUE) };
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
        with_state(|state| state.pool_window(pool).map(|_| ()))
    }
    plain 11020 cuMemPoolGetAccess(out: Out<u32>, pool: u64, _location: In<u8>) {
        with_state(|state| {
            state.pool_window(pool)?;
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
            let location = state.pool_location(pool)?;
            if location != Location::of_device(device) {
                return Err(INVALID_VALUE);
            }
            state.set_current_pool(location, pool)
        })
    }
    memory 13000 cuMemSetMemPool(place: In<[u32; 2]>, allocation: u32, pool: u64) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("pool", pool);
        logged(API, asked, |state, record| {
            let location = location_of(place, allocation)?;
            if state.pool_location(pool)? != location {
                return Err(INVALID_VALUE);
            }
            record.device = log_ordinal(location.window());
            record.push_memory(location.memory());
            state.set_current_pool(location, pool)
        })
    }
    memory 13000 cuMemGetDefaultMemPool(out: Out<u64>, place: In<[u32; 2]>, allocation: u32) {
        pool_of_location(API, out, place, allocation, |pools| pools.default)
    }
    memory 13000 cuMemGetMemPool(out: Out<u64>, place: In<[u32; 2]>, allocation: u32) {
        pool_of_location(API, out, place, allocation, |pools| pools.current)
    }
    memory 11020 cuMemPoolExportToShareableHandle(out: Out<i32>, pool: u64, kind: u32, _flags: u64) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("pool", pool);
        logged(API, asked, |state, record| {
            out.check()?;
            let window = state.pool_window(pool)?;
            record.device = log_ordinal(window);
            if kind != POSIX_FD || !state.window(window)?.pools[&pool].shareable {
                return Err(INVALID_VALUE);
            }
            let (pid, device) = (std::process::id(), window);
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
            record.device = log_ordinal(token.device);
            let handle = state.handle();
            let mut pool = Pool::new(Location::of_window(token.device));
            pool.imported = true;
            state.window(token.device)?.pools.insert(handle, pool);
            record.push_hex_field("pool", handle);
            out.put(handle)
        })
    }
    memory 11020 cuMemPoolExportPointer(out: Out<[u8; TOKEN]>, addr: u64) {
        logged(API, LogRecord::for_address(addr), |state, record| {
            out.check()?;
            let device = state.window_of(addr).ok_or(INVALID_VALUE)?;
            record.device = log_ordinal(device);
            let block = state.block(addr).copied().ok_or(INVALID_VALUE)?;
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
            let window = state.pool_window(pool)?;
            (record.device, record.size) = (log_ordinal(window), token.size);
            let (device, pages) = state.window_and_pages(window)?;
            if !device.pools[&pool].imported {
                return Err(INVALID_VALUE);
            }
            record.addr = device.alloc(pages, token.size, BlockOrigin::Imported, 0)?;
            out.put(record.addr)
        })
    }
}
