//! Attaches our tracker to PyTorch's allocator.
//!
//! `attachAllocatorTraceTracker` is not exported. It must run after the allocator knows its devices
//! and before its first segment, and it takes the lock of every device. It is therefore called from
//! inside the first driver call for device memory. The allocator makes that call before it records
//! anything, under its own lock, which is recursive. One thread does this once; no other thread
//! waits for it. If the program starts the recording itself and the allocator already holds memory,
//! `gpumemtrace_attach` calls it; PyTorch's snapshot then supplies the memory held before.
//!
//! Everything is checked before the call: the symbols of the file against the library in memory,
//! the allocator's type, and the version's field table. The exported pointer gives the load
//! address, and the vtable must hold the function to be called. Other allocator types would throw.
//! If a check fails, only the reports of `profiler_hook` are recorded. One line on stderr gives the
//! reason, unless the program itself chose so.

use std::ffi::c_void;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use gpumemtrace_format::{EventKind, TrackerState};
use gpumemtrace_recorder::uninterrupted;

use super::layouts::{TRACE_ENTRY_LAYOUTS, TraceEntryLayout};
use super::release::release_of;
use super::symbols::{self, AllocatorSymbols};
use super::trace_tracker::{self, TrackerPhase};
use crate::attachment;
use crate::loader::symbols::{is_loaded, library_at, symbol_in};
use crate::panic_guard::catch_panic;

/// Driver allocations after which the search for PyTorch ends: each attempt searches all modules.
const MAX_ATTEMPTS: u32 = 64;
/// The libc10_cuda of every wheel is less than a tenth of this.
const MAX_LIBRARY_BYTES: u64 = 64 << 20;
/// A vtable begins with two words that are not functions.
const VTABLE_HEADER_BYTES: u64 = 16;

static ATTEMPTS: AtomicU32 = AtomicU32::new(0);

/// A driver call for `bytes` is about to run. Attaches the tracker at the first one that allocates
/// device memory.
#[inline]
pub(crate) fn before_driver_alloc(kind: EventKind, bytes: u64) {
    if !trace_tracker::phase().is_settled() && is_device_memory(kind) {
        try_attach_before(kind, bytes);
    }
}

fn is_device_memory(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::DEVICE_ALLOC | EventKind::ASYNC_ALLOC | EventKind::VA_RESERVE | EventKind::PHYS_CREATE
    )
}

/// Notes a report of PyTorch's allocator, which therefore exists. True if no tracker has been
/// attached yet; the number of attempts begins anew then.
#[inline]
pub(super) fn note_allocator_seen() -> bool {
    let is_waiting = trace_tracker::phase() == TrackerPhase::Waiting;
    if is_waiting {
        ATTEMPTS.store(0, Ordering::Relaxed);
    }
    is_waiting
}

/// Attaches the tracker after a report, in a recording without driver calls. The thread still
/// holds the allocator's lock, and all entries of this block have passed.
#[cold]
pub(super) fn after_report() {
    if attachment::is_without_driver() && ATTEMPTS.fetch_add(1, Ordering::Relaxed) < MAX_ATTEMPTS {
        attach_now();
    }
}

#[cold]
fn try_attach_before(kind: EventKind, bytes: u64) {
    if kind != EventKind::VA_RESERVE {
        trace_tracker::note_driver_bytes(bytes);
    }
    if ATTEMPTS.load(Ordering::Relaxed) < MAX_ATTEMPTS {
        ATTEMPTS.fetch_add(1, Ordering::Relaxed);
        attach_now();
    }
}

/// Attaches the tracker if the allocator exists and no thread has tried yet. True if it is attached
/// afterwards. Must not be called from inside an entry.
#[cold]
pub(crate) fn attach_now() -> bool {
    if !trace_tracker::begin_search() {
        return is_attached();
    }
    let errno = gpumemtrace_recorder::errno();
    let probe = || Some(uninterrupted(probe_allocator));
    match catch_panic(probe).unwrap_or(AttachProbe::NotYet) {
        AttachProbe::NotYet => trace_tracker::search_again_later(),
        AttachProbe::NoProfilerHook => trace_tracker::give_up_silently(),
        AttachProbe::Refused(state, line) => {
            trace_tracker::switch_off(state, line.as_deref());
        }
        AttachProbe::Ready { layout, attach, this } => {
            trace_tracker::expect_entries(layout);
            let mut function = TrackerCallback::new();
            // SAFETY: `probe_allocator` has checked that this function belongs to the object's
            // class. C++ passes a non-trivial class by address; ours has the layout of libstdc++'s
            // std::function, which PyTorch moves or copies from.
            unsafe { attach(this, &raw mut function) };
            trace_tracker::set_attached();
        }
    }
    gpumemtrace_recorder::set_errno(errno);
    is_attached()
}

fn is_attached() -> bool {
    matches!(trace_tracker::phase(), TrackerPhase::Checking | TrackerPhase::On)
}

type AttachFn = unsafe extern "C-unwind" fn(*mut c_void, *mut TrackerCallback);

/// The result of looking for the allocator.
enum AttachProbe {
    NotYet,
    /// PyTorch loaded us as its allocator, without a preload or a started recording. Its reports do
    /// not reach `profiler_hook`, so entries would have nothing to merge into.
    NoProfilerHook,
    /// With the line to print, if any.
    Refused(TrackerState, Option<String>),
    Ready {
        layout: &'static TraceEntryLayout,
        attach: AttachFn,
        this: *mut c_void,
    },
}

/// Finds the allocator and checks that the tracker can be attached.
fn probe_allocator() -> AttachProbe {
    const LIBRARY: &std::ffi::CStr = c"libc10_cuda.so";
    if !is_loaded(LIBRARY) {
        return AttachProbe::NotYet;
    }
    let name = std::ffi::CString::new(symbols::ALLOCATOR).unwrap_or_default();
    let pointer = symbol_in(LIBRARY, &name).cast::<AtomicPtr<c_void>>();
    // SAFETY: the exported `std::atomic<CUDAAllocator*>`, which is one pointer.
    let Some(this) = (unsafe { pointer.as_ref() }).map(|pointer| pointer.load(Ordering::Acquire)) else {
        return unreadable("libc10_cuda.so has no allocator");
    };
    if this.is_null() {
        return AttachProbe::NotYet;
    }
    if !gpumemtrace_recorder::is_preloaded() && !attachment::is_started_by_program() {
        return AttachProbe::NoProfilerHook;
    }
    if !gpumemtrace_recorder::is_tracker_enabled() {
        return AttachProbe::Refused(TrackerState::NotWanted, None);
    }
    let Some(library) = library_at(pointer.cast()) else { return unreadable("libc10_cuda.so has no file") };
    let symbols = match read_symbols(library.file()) {
        Ok(symbols) => symbols,
        Err(why) => return unreadable(&why),
    };
    let bias = (pointer as u64).wrapping_sub(symbols.allocator);
    // SAFETY: an object with virtual functions begins with the address of its vtable.
    let vtable = unsafe { *this.cast::<u64>() };
    if vtable != bias.wrapping_add(symbols.vtable.0 + VTABLE_HEADER_BYTES) {
        return AttachProbe::Refused(TrackerState::OtherAllocator, None);
    }
    if std::env::var_os("PYTORCH_NO_CUDA_MEMORY_CACHING").is_some() {
        return AttachProbe::Refused(TrackerState::CacheOff, None);
    }
    let version = gpumemtrace_recorder::read_torch_version(library.file()).map(|(version, _)| version);
    let shown_version = version.as_deref().unwrap_or("of unknown version");
    let Some(attach) = symbols.attach.map(|attach| bias.wrapping_add(attach)) else {
        return reports_only(
            TrackerState::NoTracker,
            &format!("PyTorch {shown_version} has no allocator tracker"),
        );
    };
    let Some(layout) = version.as_deref().and_then(layout_of) else {
        let why = format!("PyTorch {shown_version} is not a version that this gpumemtrace supports");
        return reports_only(TrackerState::UnknownVersion, &why);
    };
    // SAFETY: the vtable in memory: its length is from the file, and its address was just compared.
    let functions = unsafe {
        std::slice::from_raw_parts(
            vtable as *const u64,
            ((symbols.vtable.1 - VTABLE_HEADER_BYTES) / 8) as usize,
        )
    };
    let initialized = bias.wrapping_add(symbols.initialized);
    if !functions.contains(&attach) || !functions.contains(&initialized) {
        return unreadable("libc10_cuda.so in memory differs from its file");
    }
    // SAFETY: a virtual function of the object's own vtable, without arguments. It returns
    // `!device_allocator.empty()`.
    let is_initialized =
        unsafe { std::mem::transmute::<u64, unsafe extern "C" fn(*mut c_void) -> bool>(initialized)(this) };
    if !is_initialized {
        return AttachProbe::NotYet;
    }
    // SAFETY: a function of the object's own vtable, and its name has this signature.
    let attach = unsafe { std::mem::transmute::<u64, AttachFn>(attach) };
    AttachProbe::Ready { layout, attach, this }
}

/// Reads the symbols of a library file; an error is the reason, as text.
fn read_symbols(path: &Path) -> Result<AllocatorSymbols, String> {
    let shown = path.display();
    let len = std::fs::metadata(path).map_err(|error| format!("{shown} cannot be read: {error}"))?.len();
    if len > MAX_LIBRARY_BYTES {
        return Err(format!("{shown} is too large for libc10_cuda.so"));
    }
    // Read, not mapped: a mapped file that shrinks raises SIGBUS in the program.
    let bytes = std::fs::read(path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    let symbols = symbols::find(&bytes)
        .ok_or_else(|| format!("{shown} lacks the symbols that PyTorch's wheels have"))?;
    let is_sound =
        symbols.vtable.1 >= VTABLE_HEADER_BYTES && symbols.vtable.1 % 8 == 0 && symbols.vtable.1 < 1 << 16;
    is_sound.then_some(symbols).ok_or_else(|| format!("{shown} lacks the symbols that PyTorch's wheels have"))
}

fn unreadable(why: &str) -> AttachProbe {
    reports_only(TrackerState::Unreadable, why)
}

fn reports_only(state: TrackerState, why: &str) -> AttachProbe {
    let hint =
        if state == TrackerState::UnknownVersion { " A newer gpumemtrace may support it." } else { "" };
    AttachProbe::Refused(state, Some(format!("{why}{}{hint}", trace_tracker::WITHOUT_TRACKER)))
}

/// The field table of a version; `None` if there is none.
fn layout_of(version: &str) -> Option<&'static TraceEntryLayout> {
    let release = release_of(version)?;
    TRACE_ENTRY_LAYOUTS.iter().find(|layout| layout.release == release)
}

/// Our tracker in the layout of libstdc++'s `std::function`: storage, manager (copies and
/// destroys), invoker.
#[repr(C)]
struct TrackerCallback {
    functor: [usize; 2],
    manager: unsafe extern "C" fn(*mut [usize; 2], *const [usize; 2], u32) -> bool,
    invoker: unsafe extern "C" fn(*const [usize; 2], *const u64),
}

impl TrackerCallback {
    fn new() -> Self {
        Self { functor: [0; 2], manager: manage, invoker: trace_tracker::on_entry }
    }
}

/// The manager: there is nothing to copy or destroy.
unsafe extern "C" fn manage(to: *mut [usize; 2], _from: *const [usize; 2], _operation: u32) -> bool {
    // SAFETY: every operation passes storage of two words; libstdc++ does so for "destroy" too.
    if let Some(to) = unsafe { to.as_mut() } {
        *to = [0; 2];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_supported_releases_have_a_field_table() {
        let release = |version| layout_of(version).map(|layout| layout.release);
        assert_eq!(release("2.15.0+cu132"), Some("2.15"));
        assert_eq!(release("2.4.1"), Some("2.4"));
        for unknown in ["2.1.2", "9.0.0", "2.15", "2.15.0a0+git1", "2.15.0.dev1", "", "2.15.0.1", "x.y.z"] {
            assert_eq!(release(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn tracker_callback_has_the_layout_of_libstdcxx_function() {
        assert_eq!(size_of::<TrackerCallback>(), 32);
        assert_eq!(std::mem::offset_of!(TrackerCallback, manager), 16);
        assert_eq!(std::mem::offset_of!(TrackerCallback, invoker), 24);
    }

    #[test]
    fn probe_without_pytorch_finds_nothing_yet() {
        assert!(matches!(probe_allocator(), AttachProbe::NotYet));
    }
}
