//! NCCL without a network: communicators that may own memory, and local collectives.
//!
//! Other ranks are other processes with invisible memory. Each collective returns the result for
//! ranks that all have this rank's data, except that sums stay unchanged. So a rank receives what
//! it sends to itself, or else what it sends to another.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use core::ffi::c_char;
use simgpu_common::{ApiResult, Out};

use crate::driver::{driver, free_own_memory, ok, own_memory, with_context};
use crate::entry::toolkit;
use crate::versions::{bytes_switch, wheel_versions};

const UNHANDLED_CUDA: u32 = 1;
const INVALID_ARGUMENT: u32 = 4;

#[derive(Debug, Clone, Copy)]
struct Communicator {
    ranks: i32,
    rank: i32,
    memory: u64,
}

static COMMUNICATORS: Mutex<BTreeMap<u64, Communicator>> = Mutex::new(BTreeMap::new());

fn create(out: Out<u64>, ranks: i32, rank: i32) -> ApiResult {
    out.check().map_err(|_| INVALID_ARGUMENT)?;
    if ranks < 1 || !(0..ranks).contains(&rank) {
        return Err(INVALID_ARGUMENT);
    }
    let memory = own_memory(bytes_switch("SIMGPU_NCCL_BYTES")).map_err(|_| UNHANDLED_CUDA)?;
    let mut all = COMMUNICATORS.lock().unwrap_or_else(PoisonError::into_inner);
    let id = all.last_key_value().map_or(0x5400_0000_0000, |(&id, _)| id) + 0x40;
    all.insert(id, Communicator { ranks, rank, memory });
    out.put(id)
}

fn destroy(id: u64) -> ApiResult {
    let gone = COMMUNICATORS.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    free_own_memory(gone.ok_or(INVALID_ARGUMENT)?.memory);
    Ok(())
}

fn find(id: u64) -> ApiResult<Communicator> {
    COMMUNICATORS.lock().unwrap_or_else(PoisonError::into_inner).get(&id).copied().ok_or(INVALID_ARGUMENT)
}

/// `ncclUniqueId`, passed by value in memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct UniqueId([u64; 16]);

/// Bytes of one element, by the header's data type.
fn element(kind: u32) -> u64 {
    match kind {
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        6 | 9 => 2,
        _ => 1,
    }
}

/// Runs a collective that outputs the rank's own data.
fn collective(from: u64, to: u64, count: u64, kind: u32, stream: u64) -> ApiResult {
    copy(from, to, count * element(kind), stream)
}

/// Runs a reduction, often in place.
fn reduce(from: u64, to: u64, count: u64, kind: u32, communicator: u64, stream: u64) -> ApiResult {
    collective(from, to, count, kind, stream)?;
    if find(communicator)?.ranks > 1 && to != 0 {
        mark_placeholders(to, count * element(kind));
    }
    Ok(())
}

fn copy(from: u64, to: u64, bytes: u64, stream: u64) -> ApiResult {
    // Only a reduction's root passes an output, and only a broadcast's root an input.
    if from == to || from == 0 || to == 0 || bytes == 0 {
        return Ok(());
    }
    let driver = with_context(0).map_err(|_| UNHANDLED_CUDA)?;
    ok((driver.copy_async)(to, from, bytes, stream)).map_err(|_| UNHANDLED_CUDA)?;
    mark_placeholders(to, bytes);
    Ok(())
}

/// What another rank sends is not known.
fn mark_placeholders(addr: u64, bytes: u64) {
    static FUNCTION: OnceLock<usize> = OnceLock::new();
    // SAFETY: a look-up by name in the libraries of the process.
    let function =
        *FUNCTION.get_or_init(
            || unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"simgpuAsPlaceholders".as_ptr()) } as usize,
        );
    if function != 0 {
        // SAFETY: the simulated driver's function of this name has these arguments.
        let function = unsafe { std::mem::transmute::<usize, extern "C" fn(u64, u64) -> u32>(function) };
        function(addr, bytes);
    }
}

/// A message between two ranks, in a group of calls.
#[derive(Debug, Clone, Copy)]
struct Message {
    communicator: u64,
    peer: i32,
    addr: u64,
    bytes: u64,
    stream: u64,
}

/// The open groups of a thread, and the messages since the first began.
#[derive(Debug, Default)]
struct Group {
    depth: u32,
    sent: Vec<Message>,
    received: Vec<Message>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Ends a group of calls. A receiver gets what the rank sends to itself, or else what it sends to
/// another rank in as many bytes.
fn end_group() -> ApiResult {
    let (sent, received) = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.saturating_sub(1);
        if group.depth > 0 {
            return Default::default();
        }
        (std::mem::take(&mut group.sent), std::mem::take(&mut group.received))
    });
    for to in received {
        let own = find(to.communicator)?.rank;
        let candidates = || sent.iter().filter(|from| from.communicator == to.communicator);
        // Where nothing is sent, it keeps what it has.
        mark_placeholders(to.addr, to.bytes);
        let from = candidates().find(|from| from.peer == own);
        if let Some(from) = from.or_else(|| candidates().find(|from| from.bytes == to.bytes)) {
            copy(from.addr, to.addr, from.bytes.min(to.bytes), to.stream)?;
        }
    }
    Ok(())
}

/// Adds a message to the group. A message outside of a group is a group of its own.
fn add_message(message: Message, is_sent: bool) -> ApiResult {
    let is_open = GROUP.with_borrow_mut(|group| {
        if is_sent {
            group.sent.push(message);
        } else {
            group.received.push(message);
        }
        group.depth > 0
    });
    if is_open { Ok(()) } else { end_group() }
}

toolkit! { 3;
    ncclGetVersion(out: Out<u32>) { out.put(wheel_versions().nccl) }
    ncclGetUniqueId(out: Out<[u64; 16]>) { out.put([0x51; 16]) }
    ncclCommInitRank(out: Out<u64>, ranks: i32, _id: UniqueId, rank: i32) { create(out, ranks, rank) }
    ncclCommInitRankConfig(out: Out<u64>, ranks: i32, _id: UniqueId, rank: i32, _config: u64) { create(out, ranks, rank) }
    ncclCommInitRankScalable(out: Out<u64>, ranks: i32, rank: i32, _ids: i32, _id: u64, _config: u64) { create(out, ranks, rank) }
    ncclCommInitAll(out: Out<u64>, count: i32, _devices: u64) { (0..count).try_for_each(|rank| create(out.nth(rank as usize), count, rank)) }
    ncclCommSplit(parent: u64, color: i32, _key: i32, out: Out<u64>, _config: u64) {
        // The colors of other processes are unknown, so all ranks are assumed to share this one.
        let parent = find(parent)?;
        if color < 0 { out.put(0) } else { create(out, parent.ranks, parent.rank) }
    }
    ncclCommDestroy(comm: u64) { destroy(comm) }
    ncclCommAbort(comm: u64) { destroy(comm) }
    ncclCommFinalize(comm: u64) { find(comm).map(|_| ()) }
    ncclCommCount(comm: u64, out: Out<i32>) { out.put(find(comm)?.ranks) }
    ncclCommUserRank(comm: u64, out: Out<i32>) { out.put(find(comm)?.rank) }
    ncclCommCuDevice(_comm: u64, out: Out<i32>) { out.put(0) }
    ncclCommGetAsyncError(_comm: u64, out: Out<u32>) { out.put(0) }
    ncclAllReduce(from: u64, to: u64, count: u64, kind: u32, _op: u32, communicator: u64, stream: u64) {
        reduce(from, to, count, kind, communicator, stream)
    }
    ncclReduce(from: u64, to: u64, count: u64, kind: u32, _op: u32, _root: i32, communicator: u64, stream: u64) {
        reduce(from, to, count, kind, communicator, stream)
    }
    ncclBroadcast(from: u64, to: u64, count: u64, kind: u32, root: i32, communicator: u64, stream: u64) {
        // PyTorch gathers a list of tensors by a group of broadcasts, one from each rank.
        let is_root = find(communicator)?.rank == root;
        if is_root { collective(from, to, count, kind, stream)?; }
        let addr = if is_root { from } else { to };
        add_message(Message { communicator, peer: root, addr, bytes: count * element(kind), stream }, is_root)
    }
    ncclAllGather(from: u64, to: u64, count: u64, kind: u32, comm: u64, stream: u64) {
        let part = count * element(kind);
        (0..find(comm)?.ranks as u64).try_for_each(|rank| collective(from, to + rank * part, count, kind, stream))
    }
    ncclReduceScatter(from: u64, to: u64, count: u64, kind: u32, _op: u32, comm: u64, stream: u64) {
        let part = count * element(kind);
        collective(from + find(comm)?.rank as u64 * part, to, count, kind, stream)
    }
    ncclAlltoAll(from: u64, to: u64, count: u64, kind: u32, comm: u64, stream: u64) {
        let (comm, part) = (find(comm)?, count * element(kind));
        let own = from + comm.rank as u64 * part;
        (0..comm.ranks as u64).try_for_each(|rank| collective(own, to + rank * part, count, kind, stream))
    }
    ncclGroupStart() {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(())
    }
    ncclGroupEnd() { end_group() }
    ncclSend(addr: u64, count: u64, kind: u32, peer: i32, communicator: u64, stream: u64) {
        add_message(Message { communicator, peer, addr, bytes: count * element(kind), stream }, true)
    }
    ncclRecv(addr: u64, count: u64, kind: u32, peer: i32, communicator: u64, stream: u64) {
        add_message(Message { communicator, peer, addr, bytes: count * element(kind), stream }, false)
    }
    ncclRedOpCreatePreMulSum(out: Out<u32>, _scalar: u64, _kind: u32, _residence: u32, _comm: u64) { out.put(5) }
    ncclMemAlloc(out: Out<u64>, size: u64) {
        let driver = with_context(0).map_err(|_| UNHANDLED_CUDA)?;
        let mut addr = 0_u64;
        ok((driver.mem_alloc)(&raw mut addr as u64, size)).map_err(|_| UNHANDLED_CUDA)?;
        out.put(addr)
    }
    ncclMemFree(addr: u64) { ok((driver()?.mem_free)(addr)).map_err(|_| UNHANDLED_CUDA) }
}

#[unsafe(export_name = "simgpu_fn_ncclGetErrorString")]
extern "C" fn error_text(code: u32) -> *const c_char {
    match code {
        0 => c"no error",
        UNHANDLED_CUDA => c"unhandled cuda error",
        INVALID_ARGUMENT => c"invalid argument",
        _ => c"internal error",
    }
    .as_ptr()
}

#[unsafe(export_name = "simgpu_fn_ncclGetLastError")]
extern "C" fn last_error(_comm: u64) -> *const c_char {
    c"".as_ptr()
}
