//! Memory of other processes (`cuIpc*`) and other APIs (external memory, graphics).

use crate::entry::{current, exports, logged, with_state};
use crate::ffi::{In, Out};
use crate::log::Record;
use crate::rc::{Answer, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::share;
use crate::state::device::Home;
use crate::state::foreign::{Opened, Subject, TOKEN, Token};

use super::arrays::Array3dDescriptor;

/// The 64 bytes that an IPC handle is passed by value in.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct IpcHandle([u8; TOKEN]);

fn open(api: &'static str, out: Out<u64>, handle: IpcHandle) -> Answer {
    logged(api, Record::default(), |state, record| {
        out.check()?;
        let current = current(state)?;
        let token = Token::from_bytes(&handle.0, Subject::Block)?;
        record.size = token.size;
        // A process cannot open what it has itself.
        if token.pid == std::process::id() {
            return Err(INVALID_CONTEXT);
        }
        // Opened twice it has one address, and must be closed twice.
        if let Some((&addr, opened)) =
            state.foreign.opened.iter_mut().find(|(_, opened)| opened.token == token)
        {
            opened.times += 1;
            record.addr = addr;
            record.note("again", 1);
            return out.put(addr);
        }
        let (device, pages) = state.device_and_pages(current.device)?;
        record.addr = device.alloc(pages, token.size, Home::Ipc, current.context)?;
        state.foreign.opened.insert(record.addr, Opened { token, times: 1 });
        out.put(record.addr)
    })
}

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`: type, then a union whose first word is a descriptor, then the size.
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

/// Maps a part of imported memory: addresses without memory of this device.
fn map_external(
    api: &'static str,
    out: Out<u64>,
    handle: u64,
    (offset, size): (u64, u64),
    home: Home,
) -> Answer {
    let mut asked = Record::bytes(size);
    asked.note_hex("external", handle);
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

fn no_graphics(api: &'static str, stream: u64) -> Answer {
    logged(api, Record::default().on(stream), |_, _| Err(NOT_SUPPORTED))
}

exports! {
    memory 4010 cuIpcGetMemHandle(out: Out<[u8; TOKEN]>, addr: u64) {
        logged(API, Record::about(addr), |state, record| {
            out.check()?;
            let device = state.device_of(addr).ok_or(INVALID_VALUE)?;
            record.device = device as i32;
            let block = state.devices[device as usize].blocks.get(&addr).filter(|block| block.home == Home::Direct);
            let size = block.ok_or(INVALID_VALUE)?.size;
            let pid = std::process::id();
            out.put(Token { subject: Subject::Block, pid, device, name: addr, size }.to_bytes())
        })
    }
    memory 4010 cuIpcOpenMemHandle(out: Out<u64>, handle: IpcHandle, _flags: u32) { open(API, out, handle) }
    memory 11000 cuIpcOpenMemHandle_v2(out: Out<u64>, handle: IpcHandle, _flags: u32) { open(API, out, handle) }
    memory 4010 cuIpcCloseMemHandle(addr: u64) {
        logged(API, Record::about(addr), |state, record| {
            let opened = state.foreign.opened.get_mut(&addr).ok_or(INVALID_VALUE)?;
            record.size = opened.token.size;
            opened.times -= 1;
            if opened.times > 0 {
                record.note("again", 1);
                return Ok(());
            }
            state.foreign.opened.remove(&addr);
            let device = state.device_of(addr).ok_or(INVALID_VALUE)?;
            let (device, pages) = state.device_and_pages(device)?;
            device.free_kind(pages, addr, Home::Ipc).map(|_| ())
        })
    }

    memory 10000 cuImportExternalMemory(out: Out<u64>, descriptor: In<ExternalDescriptor>) {
        let size = descriptor.get().map_or(0, |descriptor| descriptor.size);
        logged(API, Record::bytes(size), |state, record| {
            out.check()?;
            let descriptor = descriptor.get()?;
            if descriptor.kind != 1 || descriptor.size == 0 {
                return Err(INVALID_VALUE);
            }
            // From here on the descriptor is the driver's.
            share::close(descriptor.fd);
            let handle = state.handle();
            record.note_hex("external", handle);
            state.foreign.external.insert(handle, descriptor.size);
            out.put(handle)
        })
    }
    memory 10000 cuExternalMemoryGetMappedBuffer(out: Out<u64>, handle: u64, descriptor: In<BufferDescriptor>) {
        let part = descriptor.get().map_or((0, 0), |descriptor| (descriptor.offset, descriptor.size));
        map_external(API, out, handle, part, Home::Imported)
    }
    memory 10000 cuExternalMemoryGetMappedMipmappedArray(
        out: Out<u64>, handle: u64, descriptor: In<MipmappedDescriptor>,
    ) {
        // No size is refused.
        let part = descriptor.get().map_or((0, 0), |it| (it.offset, it.array.bytes(it.levels).unwrap_or(0)));
        map_external(API, out, handle, part, Home::Mipmapped)
    }
    memory 10000 cuDestroyExternalMemory(handle: u64) {
        let mut asked = Record::default();
        asked.note_hex("external", handle);
        logged(API, asked, |state, record| {
            record.size = state.foreign.external.remove(&handle).ok_or(INVALID_HANDLE)?;
            Ok(())
        })
    }

    // There is no screen.
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
