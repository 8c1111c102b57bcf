//! Linear memory: `cuMemAlloc` and variants, pinned host memory, and address queries.

use crate::entry::{capture_mode, current, exports, logged, tid, with_context, with_state};
use crate::ffi::{In, Out};
use crate::log::LogRecord;
use crate::result_code::{ApiResult, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::state::DriverState;
use crate::state::device::BlockOrigin;
use crate::state::location::{MemoryKind, is_off_device, log_ordinal};

/// Row alignment of pitched memory, in bytes.
const PITCH: u64 = 512;

fn allocate(api: &'static str, out: Out<u64>, size: u64, home: BlockOrigin) -> ApiResult {
    logged(api, LogRecord::for_size(size), |state, record| {
        out.check()?;
        let current = current(state)?;
        state.graphs.unsafe_call(tid(), capture_mode())?;
        let (device, pages) = state.device_and_pages(current.device)?;
        record.addr = device.alloc(pages, size, home, current.context)?;
        out.put(record.addr)
    })
}

fn allocate_pitch(
    api: &'static str,
    out: Out<u64>,
    pitch: Out<u64>,
    width: u64,
    height: u64,
    element: u32,
) -> ApiResult {
    let asked = width.checked_next_multiple_of(PITCH).and_then(|row| Some((row, row.checked_mul(height)?)));
    logged(api, LogRecord::for_size(asked.map_or(u64::MAX, |asked| asked.1)), |state, record| {
        out.check()?;
        pitch.check()?;
        if ![4, 8, 16].contains(&element) {
            return Err(INVALID_VALUE);
        }
        let (row, size) = asked.ok_or(OUT_OF_MEMORY)?;
        let current = current(state)?;
        state.graphs.unsafe_call(tid(), capture_mode())?;
        let (device, pages) = state.device_and_pages(current.device)?;
        record.addr = device.alloc(pages, size, BlockOrigin::Direct, current.context)?;
        pitch.put(row)?;
        out.put(record.addr)
    })
}

fn free(api: &'static str, addr: u64) -> ApiResult {
    logged(api, LogRecord::for_address(addr), |state, record| {
        current(state)?;
        if addr == 0 {
            return Ok(());
        }
        // Look the block up first, so that the log line of a refused free has its size.
        if let Some((window, block)) = state.window_of(addr).zip(state.block(addr).copied()) {
            record.device = log_ordinal(window);
            record.size = block.size;
            if is_off_device(window) {
                record.push_memory(block.memory);
            }
        }
        state.graphs.unsafe_call(tid(), capture_mode())?;
        state.free(addr).map(|_| ())
    })
}

fn host_allocate(api: &'static str, out: Out<u64>, size: u64, flags: u32) -> ApiResult {
    let mut asked = LogRecord::for_size(size);
    asked.push_field("flags", u64::from(flags));
    logged(api, asked, |state, record| {
        out.check()?;
        let current = current(state)?;
        state.graphs.unsafe_call(tid(), capture_mode())?;
        record.addr = state.host_alloc(size, flags, current.context)?;
        out.put(record.addr)
    })
}

fn host_register(api: &'static str, addr: u64, size: u64, flags: u32) -> ApiResult {
    let mut asked = LogRecord { addr, ..LogRecord::for_size(size) };
    asked.push_field("flags", u64::from(flags));
    logged(api, asked, |state, _| {
        let current = current(state)?;
        state.host_register(addr, size, flags, current.context)
    })
}

/// Moves a range of managed memory; a range of other memory fails. Pages have no place here.
fn prefetch(api: &'static str, addr: u64, size: u64, device: i32, stream: u64) -> ApiResult {
    let asked = LogRecord { addr, ..LogRecord::for_size(size) }.with_stream(stream);
    logged(api, asked, |state, record| {
        current(state)?;
        record.device = device;
        let is_managed = place(state, addr).is_some_and(|place| place.managed);
        if is_managed { Ok(()) } else { Err(INVALID_VALUE) }
    })
}

/// The device of a `CUmemLocation`; -1 if it is none.
fn device_of_location(location: u64) -> i32 {
    if location as u32 == 1 { (location >> 32) as i32 } else { -1 }
}

/// Moves or discards ranges of managed memory.
fn move_batch(api: &'static str, addrs: In<u64>, sizes: In<u64>, count: u64, stream: u64) -> ApiResult {
    logged(api, LogRecord::default().with_stream(stream), |state, record| {
        current(state)?;
        let addrs = addrs.list(count as usize)?;
        record.size = sizes.list(count as usize)?.iter().sum();
        record.addr = *addrs.first().ok_or(INVALID_VALUE)?;
        let all_managed = addrs.iter().all(|&addr| place(state, addr).is_some_and(|place| place.managed));
        if all_managed { Ok(()) } else { Err(INVALID_VALUE) }
    })
}

/// The live allocation that contains an address.
pub(crate) struct AddressInfo {
    pub(crate) start: u64,
    pub(crate) size: u64,
    /// `CU_MEMORYTYPE`: 1 host, 2 device.
    pub(crate) memory_type: u32,
    pub(crate) device: i32,
    pub(crate) context: u64,
    pub(crate) managed: bool,
    pub(crate) pool: u64,
    pub(crate) virtual_memory: bool,
    /// Unique per process, as `CU_POINTER_ATTRIBUTE_BUFFER_ID`.
    pub(crate) id: u64,
}

/// Finds the live allocation that contains an address.
pub(crate) fn place(state: &DriverState, addr: u64) -> Option<AddressInfo> {
    if let Some(ordinal) = state.device_of(addr) {
        let (start, block) = state.devices[ordinal as usize].block_at(addr)?;
        let pool = if let BlockOrigin::Pool(pool) = block.home { pool } else { 0 };
        return Some(AddressInfo {
            start,
            size: block.size,
            memory_type: 2,
            device: ordinal as i32,
            context: block.context,
            managed: block.home == BlockOrigin::Managed,
            pool,
            virtual_memory: false,
            id: block.id,
        });
    }
    if let Some((start, block)) = state.host_block_at(addr) {
        let device = state.contexts.get(&block.context).map_or(0, |context| context.device as i32);
        return Some(AddressInfo {
            start,
            size: block.size,
            memory_type: 1,
            device,
            context: block.context,
            managed: false,
            pool: 0,
            virtual_memory: false,
            id: start,
        });
    }
    if let Some((start, block)) = state.off_device_block_at(addr) {
        return Some(AddressInfo {
            start,
            size: block.size,
            memory_type: 1,
            device: -1,
            context: block.context,
            managed: block.memory == MemoryKind::Managed,
            pool: if let BlockOrigin::Pool(pool) = block.home { pool } else { 0 },
            virtual_memory: false,
            id: block.id,
        });
    }
    let vmm = state.vmm.as_ref()?;
    let (start, mapping) = vmm.mapping_at(addr)?;
    let device = vmm.handles.get(&mapping.handle)?.device;
    Some(AddressInfo {
        start,
        size: mapping.size,
        memory_type: if device.is_some() { 2 } else { 1 },
        device: device.map_or(-1, |device| device as i32),
        context: 0,
        managed: false,
        pool: 0,
        virtual_memory: true,
        id: start,
    })
}

fn pointer_attribute(state: &DriverState, out: Out<u8>, attribute: u32, addr: u64) -> ApiResult {
    let place = place(state, addr).ok_or(INVALID_VALUE)?;
    match attribute {
        1 if place.virtual_memory => Err(INVALID_VALUE),
        1 => out.cast::<u64>().put(place.context),
        2 => out.cast::<u32>().put(place.memory_type),
        3 => out.cast::<u64>().put(addr),
        4 if place.memory_type == 1 || place.managed => out.cast::<u64>().put(addr),
        6 | 10 | 15 => out.cast::<u32>().put(0),
        8 => out.cast::<u32>().put(u32::from(place.managed)),
        9 => out.cast::<i32>().put(place.device),
        7 => out.cast::<u64>().put(place.id),
        11 | 19 | 20 => out.cast::<u64>().put(place.start),
        12 | 18 => out.cast::<u64>().put(place.size),
        13 => out.cast::<u32>().put(1),
        14 => out.cast::<u64>().put(0),
        16 => out.cast::<u32>().put(3),
        17 => out.cast::<u64>().put(place.pool),
        _ => Err(INVALID_VALUE),
    }
}

exports! {
    memory 3020 cuMemAlloc_v2(dptr: Out<u64>, size: u64) { allocate(API, dptr, size, BlockOrigin::Direct) }
    memory 3020 cuMemAllocPitch_v2(dptr: Out<u64>, pitch: Out<u64>, width: u64, height: u64, element: u32) {
        allocate_pitch(API, dptr, pitch, width, height, element)
    }
    memory 6000 cuMemAllocManaged(dptr: Out<u64>, size: u64, flags: u32) {
        // Any size is accepted, also for memory without attachment.
        let size = if [1, 2].contains(&(flags & 3)) { size } else { 0 };
        allocate(API, dptr, size, BlockOrigin::Managed)
    }
    memory 3020 cuMemFree_v2(dptr: u64) { free(API, dptr) }
    // CUDA 2's 32-bit function: no current program calls it, so a call reveals a wrong lookup.
    memory 2000 cuMemAlloc(_dptr: Out<u32>, size: u32) {
        logged(API, LogRecord::for_size(u64::from(size)), |_, _| Err(NOT_SUPPORTED))
    }
    memory 2000 cuMemFree(dptr: u32) {
        logged(API, LogRecord::for_address(u64::from(dptr)), |_, _| Err(NOT_SUPPORTED))
    }

    memory 2020 cuMemHostAlloc(out: Out<u64>, size: u64, flags: u32) { host_allocate(API, out, size, flags) }
    memory 3020 cuMemAllocHost_v2(out: Out<u64>, size: u64) { host_allocate(API, out, size, 0) }
    memory 2000 cuMemFreeHost(addr: u64) {
        logged(API, LogRecord::for_address(addr), |state, record| {
            current(state)?;
            if addr == 0 {
                return Ok(());
            }
            record.size = state.host.get(&addr).map_or(0, |block| block.size);
            state.graphs.unsafe_call(tid(), capture_mode())?;
            state.host_free(addr).map(|_| ())
        })
    }
    memory 4000 cuMemHostRegister(addr: u64, size: u64, flags: u32) { host_register(API, addr, size, flags) }
    memory 6050 cuMemHostRegister_v2(addr: u64, size: u64, flags: u32) { host_register(API, addr, size, flags) }
    memory 4000 cuMemHostUnregister(addr: u64) {
        logged(API, LogRecord::for_address(addr), |state, record| {
            current(state)?;
            record.size = state.host_unregister(addr)?.size;
            Ok(())
        })
    }
    plain 3020 cuMemHostGetDevicePointer_v2(out: Out<u64>, addr: u64, _flags: u32) {
        with_context(|state, _| {
            state.host_block_at(addr).ok_or(INVALID_VALUE)?;
            out.put(addr)
        })
    }
    plain 2030 cuMemHostGetFlags(out: Out<u32>, addr: u64) {
        with_context(|state, _| out.put(state.host_block_at(addr).ok_or(INVALID_VALUE)?.1.flags))
    }

    plain 3020 cuMemGetInfo_v2(free: Out<u64>, total: Out<u64>) {
        with_context(|state, current| {
            let device = state.device(current.device)?;
            free.put(device.capacity - device.used)?;
            total.put(device.capacity)
        })
    }
    plain 3020 cuMemGetAddressRange_v2(base: Out<u64>, size: Out<u64>, addr: u64) {
        with_context(|state, _| {
            let place = place(state, addr).ok_or(NOT_FOUND)?;
            base.put_if_wanted(place.start);
            size.put_if_wanted(place.size);
            Ok(())
        })
    }
    plain 4000 cuPointerGetAttribute(out: Out<u8>, attribute: u32, addr: u64) {
        with_state(|state| pointer_attribute(state, out, attribute, addr))
    }
    plain 7000 cuPointerGetAttributes(count: u32, attributes: In<u32>, outs: In<Out<u8>>, addr: u64) {
        with_state(|state| {
            for index in 0..count as usize {
                let (attribute, out) = (attributes.at(index)?, outs.at(index)?);
                // Unknown memory is no error here: its attributes are zero.
                if pointer_attribute(state, out, attribute, addr).is_err() {
                    match attribute {
                        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20 => out.cast::<u64>().put(0)?,
                        9 => out.cast::<i32>().put(-2)?,
                        2 | 6 | 8 | 10 | 13 | 15 | 16 => out.cast::<u32>().put(0)?,
                        _ => return Err(INVALID_VALUE),
                    }
                }
            }
            Ok(())
        })
    }
    plain 6000 cuPointerSetAttribute(_value: In<u8>, _attribute: u32, addr: u64) {
        with_state(|state| place(state, addr).map(|_| ()).ok_or(INVALID_VALUE))
    }
    plain 8000 cuMemAdvise(_addr: u64, _size: u64, _advice: u32, _device: i32) { with_context(|_, _| Ok(())) }
    plain 12020 cuMemAdvise_v2(_addr: u64, _size: u64, _advice: u32, _location: u64) { with_context(|_, _| Ok(())) }
    memory 8000 cuMemPrefetchAsync(addr: u64, size: u64, device: i32, stream: u64) {
        prefetch(API, addr, size, device, stream)
    }
    memory 8000 cuMemPrefetchAsync_ptsz(addr: u64, size: u64, device: i32, stream: u64) {
        prefetch(API, addr, size, device, stream)
    }
    memory 12020 cuMemPrefetchAsync_v2(addr: u64, size: u64, location: u64, _flags: u32, stream: u64) {
        prefetch(API, addr, size, device_of_location(location), stream)
    }
    memory 12020 cuMemPrefetchAsync_v2_ptsz(addr: u64, size: u64, location: u64, _flags: u32, stream: u64) {
        prefetch(API, addr, size, device_of_location(location), stream)
    }
    memory 13000 cuMemPrefetchBatchAsync(
        addrs: In<u64>, sizes: In<u64>, count: u64, _places: In<u64>, _indices: In<u64>, _places_count: u64, _flags: u64, stream: u64,
    ) {
        move_batch(API, addrs, sizes, count, stream)
    }
    memory 13000 cuMemPrefetchBatchAsync_ptsz(
        addrs: In<u64>, sizes: In<u64>, count: u64, _places: In<u64>, _indices: In<u64>, _places_count: u64, _flags: u64, stream: u64,
    ) {
        move_batch(API, addrs, sizes, count, stream)
    }
    memory 13000 cuMemDiscardAndPrefetchBatchAsync(
        addrs: In<u64>, sizes: In<u64>, count: u64, _places: In<u64>, _indices: In<u64>, _places_count: u64, _flags: u64, stream: u64,
    ) {
        move_batch(API, addrs, sizes, count, stream)
    }
    memory 13000 cuMemDiscardAndPrefetchBatchAsync_ptsz(
        addrs: In<u64>, sizes: In<u64>, count: u64, _places: In<u64>, _indices: In<u64>, _places_count: u64, _flags: u64, stream: u64,
    ) {
        move_batch(API, addrs, sizes, count, stream)
    }
    memory 13000 cuMemDiscardBatchAsync(addrs: In<u64>, sizes: In<u64>, count: u64, _flags: u64, stream: u64) {
        move_batch(API, addrs, sizes, count, stream)
    }
    memory 13000 cuMemDiscardBatchAsync_ptsz(addrs: In<u64>, sizes: In<u64>, count: u64, _flags: u64, stream: u64) {
        move_batch(API, addrs, sizes, count, stream)
    }

    // A future function with another argument order: a tracer must not treat it as `cuMemAlloc_v2`.
    memory 99000 cuMemAlloc_v3(_flags: u64, size: u64, dptr: Out<u64>) { allocate(API, dptr, size, BlockOrigin::Direct) }
}
