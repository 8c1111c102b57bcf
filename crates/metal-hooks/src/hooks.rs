//! The hooks' own part around a swizzled method.
//!
//! The program's call is made exactly once. Our part is outside of it, and its panics are caught.
//! The steady state takes no lock and no memory (`tests/steady_state.rs`).
//!
//! An object produces one creation event, from the innermost hook that sees it. Several hooks see
//! it if both a class and its superclass are swizzled, if another library swizzles in between, or
//! if one method calls another. The event names the outermost method called on the
//! same receiver, since that is the program's call. Other objects that are created or end during a
//! call produce their own events.
//!
//! The end of an object is recorded before its method is called, and everything else after. If
//! freed memory is reused, the end therefore comes first.

use std::cell::Cell;
use std::thread::LocalKey;

use crate::devices::{MetalHooks, active_hooks, device_number};
use crate::events::{IMPORT_NO_COPY, IMPORT_SURFACE, Loss, MetalEvent, MetalEventKind};
use crate::methods::{MethodEffect, Receiver, SwizzledMethod};
use crate::object_info::{ObjectInfo, UNKNOWN_DEVICE};
use crate::runtime::{ObjcId, ObjcImp};
use crate::swizzled_classes::{Property, SwizzledClass, ensure_swizzled};
use crate::synthetic_addr;
use crate::trampolines::Trampoline;

thread_local! {
    /// The receiver of the current call on this thread, and the index of its outermost method.
    static ACTIVE_CALL: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    /// The object that is receiving `setPurgeableState:` on this thread.
    static MARKING: Cell<usize> = const { Cell::new(0) };
}

/// Restores a thread-local value when dropped, also when an Objective-C exception unwinds.
struct RestoreOnDrop<T: Copy + 'static>(&'static LocalKey<Cell<T>>, T);

impl<T: Copy + 'static> Drop for RestoreOnDrop<T> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// The hook for every method except `dealloc`: it creates an object or sets its purgeable state.
pub(crate) fn on_method(
    trampoline: &Trampoline,
    this: ObjcId,
    arguments: [usize; 2],
    call: impl FnOnce(ObjcImp) -> usize,
) -> usize {
    let Some(hooks) = active_hooks() else { abort_before_start(call) };
    let method = trampoline.method();
    let original = trampoline.original(hooks.runtime);
    if method.effect == MethodEffect::SetPurgeable {
        let outer = MARKING.replace(this as usize);
        let restore = RestoreOnDrop(&MARKING, outer);
        let previous = call(original);
        drop(restore);
        if outer != this as usize {
            hooks.catch_panic(|| {
                record_purgeable(*hooks, method, this, [arguments[0] as u64, previous as u64]);
            });
        }
        return previous;
    }
    let outer = ACTIVE_CALL.get();
    let outermost = if outer.0 == this as usize { outer.1 } else { method.index };
    ACTIVE_CALL.set((this as usize, outermost));
    let restore = RestoreOnDrop(&ACTIVE_CALL, outer);
    let object = call(original);
    drop(restore);
    hooks.catch_panic(|| {
        if object == 0 {
            // The outermost call on the same receiver records the failure.
            if outer.0 != this as usize {
                record_failure(*hooks, method, this);
            }
        } else {
            // SAFETY: the method has just returned the new object, which no other code has yet.
            unsafe { record_creation(*hooks, (method, outermost), this, object as ObjcId) };
        }
    });
    object
}

/// A trampoline is installed only after `start`, so this is unreachable.
fn abort_before_start(_: impl FnOnce(ObjcImp) -> usize) -> ! {
    std::process::abort()
}

/// The hook for `dealloc`.
pub(crate) fn on_dealloc(trampoline: &Trampoline, this: ObjcId, call: impl FnOnce(ObjcImp)) {
    let Some(hooks) = active_hooks() else { std::process::abort() };
    hooks.catch_panic(|| record_end(*hooks, trampoline.method(), this));
    call(trampoline.original(hooks.runtime));
}

/// Records a new object, unless an inner hook has done so.
///
/// # Safety
/// The receiver `this` and the new `object` are alive.
unsafe fn record_creation(
    hooks: MetalHooks,
    (method, outermost): (&SwizzledMethod, usize),
    this: ObjcId,
    object: ObjcId,
) {
    if ObjectInfo::find(object).is_some() {
        return;
    }
    let is_heap = method.effect == MethodEffect::CreateHeap;
    let receiver = if is_heap { Receiver::Heap } else { Receiver::Resource };
    // SAFETY: the caller's promise.
    let class = unsafe { ensure_swizzled(hooks.runtime, object, receiver, hooks.sink) };
    let Some(class) = class else { return };
    // SAFETY: as above; the object is of this class.
    let read = |property| unsafe { class.read(object, property) }.filter(|bytes| *bytes > 0);
    let requested = read(if is_heap { Property::Size } else { Property::Length });
    // For an import, the bytes that Metal allocates for itself do not count.
    let (bytes, is_estimated) = match method.effect {
        MethodEffect::CreateHeap | MethodEffect::ImportNoCopy => {
            (requested.or_else(|| read(Property::AllocatedSize)), false)
        }
        _ => match read(Property::AllocatedSize) {
            Some(bytes) => (Some(bytes), false),
            None => (requested, true),
        },
    };
    let bytes = bytes.unwrap_or(0);
    // SAFETY: the caller's promise.
    let (heap, device) = unsafe { heap_and_device(hooks, method.receiver, this) };
    let own_range = || (synthetic_addr::allocate_range(bytes), false);
    let (kind, (addr, is_in_heap_range), numbers) = match method.effect {
        MethodEffect::CreateHeap => (MetalEventKind::HeapCreated, own_range(), [0; 2]),
        MethodEffect::ImportNoCopy => (MetalEventKind::Imported, own_range(), [IMPORT_NO_COPY, 0]),
        MethodEffect::ImportSurface => (MetalEventKind::Imported, own_range(), [IMPORT_SURFACE, 0]),
        _ if method.receiver == Receiver::Heap => {
            // SAFETY: as above. Unlike a size, an offset of zero is valid.
            let offset = unsafe { class.read(object, Property::HeapOffset) };
            (MetalEventKind::BlockCreated, synthetic_addr::place_in_heap(heap, offset, bytes), [0; 2])
        }
        _ => (MetalEventKind::DirectCreated, own_range(), [0; 2]),
    };
    let info = ObjectInfo { addr, bytes, kind, device, is_in_heap_range };
    if !info.remember(object) {
        hooks.sink.lost(Loss::ObjectNotTracked);
    }
    let totals = info.add_to_totals();
    hooks.sink.record(&MetalEvent { is_estimated, numbers, totals, ..info.event(kind, outermost) });
}

/// Records a call that returned no object.
fn record_failure(hooks: MetalHooks, method: &SwizzledMethod, this: ObjcId) {
    // SAFETY: the receiver of a call that has just returned is alive.
    let (_, device) = unsafe { heap_and_device(hooks, method.receiver, this) };
    let kind = match method.effect {
        MethodEffect::CreateHeap => MetalEventKind::HeapCreated,
        MethodEffect::ImportNoCopy | MethodEffect::ImportSurface => MetalEventKind::Imported,
        _ if method.receiver == Receiver::Heap => MetalEventKind::BlockCreated,
        _ => MetalEventKind::DirectCreated,
    };
    let info = ObjectInfo { addr: 0, bytes: 0, kind, device, is_in_heap_range: false };
    hooks.sink.record(&MetalEvent { has_failed: true, ..info.event(kind, method.index) });
}

/// Records a new purgeable state; `states` is the new and the previous one.
fn record_purgeable(hooks: MetalHooks, method: &SwizzledMethod, this: ObjcId, states: [u64; 2]) {
    // `MTLPurgeableStateKeepCurrent` only queries the state.
    const KEEP_CURRENT: u64 = 1;
    if states[0] == KEEP_CURRENT {
        return;
    }
    let kind = MetalEventKind::PurgeableSet;
    let unknown = ObjectInfo { addr: 0, bytes: 0, kind, device: UNKNOWN_DEVICE, is_in_heap_range: false };
    let info = ObjectInfo::find(this).unwrap_or(unknown);
    hooks.sink.record(&MetalEvent { numbers: states, ..info.event(kind, method.index) });
}

/// Records the end of an object, if its creation was recorded.
fn record_end(hooks: MetalHooks, method: &SwizzledMethod, this: ObjcId) {
    let Some(info) = ObjectInfo::forget(this) else { return };
    let kind = match info.kind {
        MetalEventKind::HeapCreated => MetalEventKind::HeapDestroyed,
        MetalEventKind::BlockCreated => MetalEventKind::BlockDestroyed,
        MetalEventKind::Imported => MetalEventKind::ImportDestroyed,
        _ => MetalEventKind::DirectDestroyed,
    };
    let totals = info.subtract_from_totals();
    hooks.sink.record(&MetalEvent { totals, ..info.event(kind, method.index) });
    if info.is_in_heap_range {
        synthetic_addr::release_in_heap(info.addr);
    }
}

/// Of a receiver: its address and size, if it is a recorded heap, and its device number.
///
/// # Safety
/// The receiver is alive.
unsafe fn heap_and_device(hooks: MetalHooks, receiver: Receiver, this: ObjcId) -> (Option<(u64, u64)>, u64) {
    if receiver == Receiver::Device {
        return (None, device_number(this));
    }
    if let Some(heap) = ObjectInfo::find(this) {
        return (Some((heap.addr, heap.bytes)), heap.device);
    }
    // The heap is older than the recording.
    // SAFETY: the caller's promise; the trampoline was installed in the receiver's class as a heap.
    let class: Option<&SwizzledClass> =
        unsafe { ensure_swizzled(hooks.runtime, this, Receiver::Heap, hooks.sink) };
    // SAFETY: as above.
    let device = class.and_then(|class| unsafe { class.read(this, Property::Device) });
    let device = device.filter(|device| *device != 0);
    (None, device.map_or(UNKNOWN_DEVICE, |device| device_number(device as ObjcId)))
}
