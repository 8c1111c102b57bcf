//! Memory of other processes (`cuIpc*`) and of other APIs (external memory, graphics).

use crate::entry::{current, exports, logged, with_state};
use crate::ffi::{In, Out};
use crate::log::LogRecord;
use crate::result_code::{ApiResult, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::shareable_fd;
use crate::state::device::BlockOrigin;
use crate::state::foreign::{OpenedBlock, TOKEN, Token, TokenKind};

use super::arrays::Array3dDescriptor;

/// An IPC handle: 64 bytes, passed by value.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct IpcHandle([u8; TOKEN]);

fn open(api: &'static str, out: Out<u64>, handle: IpcHandle) -> ApiResult {
    logged(api, LogRecord::default(), |state, record| {
        out.check()?;
        let current = current(state)?;
        let token = Token::from_bytes(&handle.0, TokenKind::DeviceBlock)?;
        record.size = token.size;
        // A process cannot open its own handle.
        if token.pid == std::process::id() {
            return Err(INVALID_CONTEXT);
        }
        // A second open returns the same address, and needs a second close.
        if let Some((&addr, opened)) =
            state.foreign.opened.iter_mut().find(|(_, opened)| opened.token == token)
        {
            opened.times += 1;
            record.addr = addr;
            record.push_field("again", 1);
            return out.put(addr);
        }
        let (device, pages) = state.device_and_pages(current.device)?;
        record.addr = device.alloc(pages, token.size, BlockOrigin::Ipc, current.context)?;
        state.foreign.opened.insert(record.addr, OpenedBlock { token, times: 1 });
        out.put(record.addr)
    })
}

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`: type, a union (its first word is a descriptor), size.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExternalDescriptor {
    kind: u32,
    pad: u32,
    fd: i32,
    rest: i32,
    name: u64,
    size: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct BufferDescriptor {
    offset: u64,
    size: u64,
    flags: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct MipmappedDescriptor {
    offset: u64,
    array: Array3dDescriptor,
    levels: u32,
}

/// Maps a part of imported memory: addresses that use no memory of this device.
fn map_external(
    api: &'static str,
    out: Out<u64>,
    handle: u64,
    (offset, size): (u64, u64),
    home: BlockOrigin,
) -> ApiResult {
    let mut asked = LogRecord::for_size(size);
    asked.push_hex_field("external", handle);
    logged(api, asked, |state, record| {
        out.check()?;
        let current = current(state)?;
        let whole = *state.foreign.external.get(&handle).ok_or(INVALID_HANDLE)?;
        if offset.checked_add(size).is_none_or(|end| end > whole) {
            return Err(INVALID_VALUE);
        }
        let (device, pages) = state.device_and_pages(current.device)?;
        record.addr = device.alloc_charged(pages, size, home, current.context, false)?;
        out.put(record.addr)
    })
}

fn no_graphics(api: &'static str, stream: u64) -> ApiResult {
    logged(api, LogRecord::default().with_stream(stream), |_, _| Err(NOT_SUPPORTED))
}

exports! {
    memory 4010 cuIpcGetMemHandle(out: Out<[u8; TOKEN]>, addr: u64) {
        logged(API, LogRecord::for_address(addr), |state, record| {
            out.check()?;
            let device = state.device_of(addr).ok_or(INVALID_VALUE)?;
            record.device = device as i32;
            let block = state.devices[device as usize].blocks.get(&addr).filter(|block| block.home == BlockOrigin::Direct);
            let size = block.ok_or(INVALID_VALUE)?.size;
            let pid = std::process::id();
            out.put(Token { subject: TokenKind::DeviceBlock, pid, device, name: addr, size }.to_bytes())
        })
    }
    memory 4010 cuIpcOpenMemHandle(out: Out<u64>, handle: IpcHandle, _flags: u32) { open(API, out, handle) }
    memory 11000 cuIpcOpenMemHandle_v2(out: Out<u64>, handle: IpcHandle, _flags: u32) { open(API, out, handle) }
    memory 4010 cuIpcCloseMemHandle(addr: u64) {
        logged(API, LogRecord::for_address(addr), |state, record| {
            let opened = state.foreign.opened.get_mut(&addr).ok_or(INVALID_VALUE)?;
            record.size = opened.token.size;
            opened.times -= 1;
            if opened.times > 0 {
                record.push_field("again", 1);
                return Ok(());
            }
            state.foreign.opened.remove(&addr);
            let device = state.device_of(addr).ok_or(INVALID_VALUE)?;
            let (device, pages) = state.device_and_pages(device)?;
            device.free_kind(pages, addr, BlockOrigin::Ipc).map(|_| ())
        })
    }

    memory 10000 cuImportExternalMemory(out: Out<u64>, descriptor: In<ExternalDescriptor>) {
        let size = descriptor.get().map_or(0, |descriptor| descriptor.size);
        logged(API, LogRecord::for_size(size), |state, record| {
            out.check()?;
            let descriptor = descriptor.get()?;
            if descriptor.kind != 1 || descriptor.size == 0 {
                return Err(INVALID_VALUE);
            }
            // The driver now owns the descriptor.
            shareable_fd::close(descriptor.fd);
            let handle = state.handle();
            record.push_hex_field("external", handle);
            state.foreign.external.insert(handle, descriptor.size);
            out.put(handle)
        })
    }
    memory 10000 cuExternalMemoryGetMappedBuffer(out: Out<u64>, handle: u64, descriptor: In<BufferDescriptor>) {
        let part = descriptor.get().map_or((0, 0), |descriptor| (descriptor.offset, descriptor.size));
        map_external(API, out, handle, part, BlockOrigin::Imported)
    }
    memory 10000 cuExternalMemoryGetMappedMipmappedArray(
        out: Out<u64>, handle: u64, descriptor: In<MipmappedDescriptor>,
    ) {
        // Any size is accepted.
        let part = descriptor.get().map_or((0, 0), |it| (it.offset, it.array.bytes(it.levels).unwrap_or(0)));
        map_external(API, out, handle, part, BlockOrigin::Mipmapped)
    }
    memory 10000 cuDestroyExternalMemory(handle: u64) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("external", handle);
        logged(API, asked, |state, record| {
            record.size = state.foreign.external.remove(&handle).ok_or(INVALID_HANDLE)?;
            Ok(())
        })
    }

    // There is no display.
    memory 3000 cuGraphicsMapResources(_count: u32, _resources: In<u64>, stream: u64) { no_graphics(API, stream) }
    memory 7000 cuGraphicsMapResources_ptsz(_count: u32, _resources: In<u64>, stream: u64) { no_graphics(API, stream) }
    memory 3000 cuGraphicsUnmapResources(_count: u32, _resources: In<u64>, stream: u64) { no_graphics(API, stream) }
    memory 7000 cuGraphicsUnmapResources_ptsz(_count: u32, _resources: In<u64>, stream: u64) { no_graphics(API, stream) }
    memory 3020 cuGraphicsResourceGetMappedPointer_v2(_out: Out<u64>, _size: Out<u64>, _resource: u64) { no_graphics(API, 0) }

    plain 12040 cuDeviceGetDevResource(device: u32, out: Out<u32>, kind: u32) {
        with_state(|state| {
            state.device(device)?;
            out.put(kind)
        })
    }
    plain 12040 cuDevResourceGenerateDesc(out: Out<u64>, _resources: In<u8>, _count: u32) {
        with_state(|state| out.put(state.handle()))
    }
}
