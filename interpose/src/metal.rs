//! Metal's memory in the trace.
//!
//! Constraint: reports of memory, of leaks and of fragmentation are about segments and blocks, whoever made them. Consequence: what Metal
//! does is told in the kinds of event that mean the same: a heap is device memory and a segment, what lies in it is a block, a buffer or a
//! texture of its own is device memory, what is made of memory from elsewhere is an import. Only marks have a kind of their own.
//!
//! A block's running totals are what two counters said that other threads may be at: near, but not in the order of the
//! events. So the metadata says `metal`, and a reader that knows it counts for itself.

mod sampled;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gpumemtrace_format::event::NO_POOL;
use gpumemtrace_format::{ApiId, Counter, EventKind, FLAG_ESTIMATED, Meta, NO_DEVICE};
use gpumemtrace_metal::runtime::{self, Object, Runtime};
use gpumemtrace_metal::{Happening, Hooks, Lost, SEEN, Sink, What};
use gpumemtrace_recorder::{Draft, begin_call, increment_counter, record_event};

use crate::guard::quietly;

#[cfg(target_os = "linux")]
use crate::cuda::NAMES as OTHERS;
#[cfg(target_os = "linux")]
use crate::dynamic::real_dlsym as look_up;

/// No function is the first by `ApiId`.
#[cfg(target_os = "macos")]
const OTHERS: &[&str] = &[""];

#[cfg(target_os = "macos")]
fn look_up(handle: *mut std::ffi::c_void, name: &std::ffi::CStr) -> *mut std::ffi::c_void {
    // SAFETY: a NUL-terminated name; looking up a symbol has no other effect.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

const FIRST: usize = OTHERS.len();
/// An `ApiId` is a byte.
const _: () = assert!(FIRST + SEEN <= 256);

/// All functions and methods by `ApiId`.
pub(crate) static NAMES: [&str; FIRST + SEEN] = {
    let mut names = [""; FIRST + SEEN];
    let mut at = 0;
    while at < names.len() {
        names[at] = if at < FIRST { OTHERS[at] } else { gpumemtrace_metal::NAMES[at - FIRST] };
        at += 1;
    }
    names
};

static IS_MET: AtomicBool = AtomicBool::new(false);

/// True once the program has a device of Metal's.
pub(crate) fn is_met() -> bool {
    IS_MET.load(Ordering::Acquire)
}

/// The program has made a heap.
static HAS_HEAPS: AtomicBool = AtomicBool::new(false);

static MISSED: AtomicU64 = AtomicU64::new(0);

/// Methods that are not watched and objects whose end will not be told, beside the driver's functions.
pub(crate) fn uncovered(calls: u64) -> u64 {
    calls.saturating_add(MISSED.load(Ordering::Relaxed))
}

struct Recorded;

impl Sink for Recorded {
    fn record(&self, happening: &Happening) {
        quietly(|| {
            record(happening);
            Some(())
        });
    }

    fn lost(&self, lost: Lost) {
        match lost {
            Lost::Panic => increment_counter(Counter::InternalErrors),
            // Classes are met before anything is recorded.
            Lost::Method | Lost::Object => {
                MISSED.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn record(happening: &Happening) {
    let draft = |kind| Draft {
        device: happening.device.unwrap_or(NO_DEVICE),
        addr: happening.addr,
        size: happening.bytes,
        flags: if happening.is_estimated { FLAG_ESTIMATED } else { 0 },
        ..Draft::new(kind, ApiId((FIRST + happening.method) as u8))
    };
    // Blocks and segments are no calls of a driver, and name none.
    let inside = |kind, aux| Draft { aux, api: ApiId::default(), ..draft(kind) };
    if happening.has_failed {
        let kind =
            if happening.what == What::Import { EventKind::EXTERNAL_IMPORT } else { EventKind::DEVICE_ALLOC };
        if let Some(call) = begin_call(&draft(kind)) {
            call.complete(FAILED, |_| {});
        }
        return;
    }
    match happening.what {
        What::Heap => {
            HAS_HEAPS.store(true, Ordering::Release);
            record_event(&draft(EventKind::DEVICE_ALLOC));
            record_event(&inside(EventKind::SEGMENT_ALLOC, [0, NO_POOL]));
        }
        What::HeapEnds => {
            record_event(&inside(EventKind::SEGMENT_FREE, [0, NO_POOL]));
            record_event(&Draft { size: 0, ..draft(EventKind::DEVICE_FREE) });
        }
        What::Block => record_event(&inside(EventKind::BLOCK_ALLOC, happening.held)),
        What::BlockEnds => record_event(&inside(EventKind::BLOCK_FREE, happening.held)),
        What::Direct => record_event(&draft(EventKind::DEVICE_ALLOC)),
        What::DirectEnds => record_event(&Draft { size: 0, ..draft(EventKind::DEVICE_FREE) }),
        What::Import | What::ImportEnds => {
            let aux = [happening.addr, happening.numbers[0]];
            let is_end = happening.what == What::ImportEnds;
            let kind = if is_end { EventKind::EXTERNAL_DESTROY } else { EventKind::EXTERNAL_IMPORT };
            let aux = if is_end { [aux[0], 0] } else { aux };
            let size = if is_end { 0 } else { happening.bytes };
            record_event(&Draft { addr: 0, size, aux, ..draft(kind) });
        }
        What::Purgeable => record_event(&Draft { aux: happening.numbers, ..draft(EventKind::PURGEABLE) }),
    }
}

/// Metal gives no reason: this is "it gave nothing".
const FAILED: u16 = 2;

/// The hooks, once a runtime is there.
fn hooks() -> Option<Hooks> {
    static HOOKS: OnceLock<Option<Hooks>> = OnceLock::new();
    let make = || {
        let runtime: &'static dyn Runtime =
            Box::leak(runtime::find(&|name| look_up(libc::RTLD_DEFAULT, name))?);
        Some(gpumemtrace_metal::start(runtime, &Recorded))
    };
    let hooks = *HOOKS.get_or_init(make);
    IS_MET.store(hooks.is_some(), Ordering::Release);
    hooks
}

/// Name and size of each device that the program has. A size is what the system recommends to use at most: more is allowed.
pub(crate) fn facts(meta: &mut Meta) {
    let Some(hooks) = is_met().then(hooks).flatten() else { return };
    for device in hooks.known_devices() {
        if let Some(bytes) = device.recommended_bytes {
            meta.set_number(&format!("device.{}.total_bytes", device.number), bytes);
        }
        if let Some(name) = device.name {
            meta.set_text(&format!("device.{}.name", device.number), name);
        }
    }
}

/// Looks at all devices that there are, for a recording that begins when the program may have some; false if there are none.
pub(crate) fn meet_all_devices() -> bool {
    let devices = all_devices();
    if devices.is_null() {
        return false;
    }
    let Some(hooks) = hooks() else { return false };
    // SAFETY: an array that is ours, and that we keep: it is made once, and whoever else has its devices must find them there.
    unsafe { hooks.devices(devices) };
    true
}

#[cfg(target_os = "macos")]
fn all_devices() -> Object {
    gpumemtrace_metal::interposed::all_devices()
}

#[cfg(target_os = "macos")]
pub(crate) fn register() {
    gpumemtrace_metal::interposed::register(hooks);
}

#[cfg(target_os = "linux")]
pub(crate) use double::all_devices;

/// What `__DATA,__interpose` is on macOS, the loader's order is here.
#[cfg(target_os = "linux")]
#[allow(non_snake_case, reason = "Metal's names")]
mod double {
    use std::ffi::{CStr, c_void};

    use super::{Object, hooks, look_up, quietly};

    type Entry = unsafe extern "C-unwind" fn() -> Object;

    fn call(entry: *mut c_void) -> Object {
        if entry.is_null() {
            return std::ptr::null_mut();
        }
        // SAFETY: a function of one of the two names, which takes nothing and returns an object.
        unsafe { std::mem::transmute::<*mut c_void, Entry>(entry)() }
    }

    fn next(name: &CStr) -> Object {
        call(look_up(libc::RTLD_NEXT, name))
    }

    /// Of the double, wherever we stand in the loader's order.
    pub(crate) fn all_devices() -> Object {
        let name = c"MTLCopyAllDevices";
        // What everybody sees; asked from here, our own would come first.
        // SAFETY: a handle of what is loaded.
        let program = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_LAZY) };
        let first = look_up(program, name);
        let is_ours = first == MTLCopyAllDevices as *mut c_void;
        if is_ours { next(name) } else { call(first) }
    }

    /// As Metal's.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    unsafe extern "C-unwind" fn MTLCreateSystemDefaultDevice() -> Object {
        let device = next(c"MTLCreateSystemDefaultDevice");
        quietly(|| {
            // SAFETY: a device, or null.
            unsafe { hooks()?.device(device) };
            Some(())
        });
        device
    }

    /// As above.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    unsafe extern "C-unwind" fn MTLCopyAllDevices() -> Object {
        let devices = next(c"MTLCopyAllDevices");
        quietly(|| {
            // SAFETY: an array of devices, or null.
            unsafe { hooks()?.devices(devices) };
            Some(())
        });
        devices
    }
}
