//! How our tracker gets to PyTorch's allocator.
//!
//! Constraint: `attachAllocatorTraceTracker` is not exported, must be called after the allocator knows its devices and before
//! it has taken its first segment, and takes the lock of every device. Consequence: it is called from inside the first
//! driver call for device memory: the allocator makes that call before it records anything, under its own lock, which is
//! recursive. One thread does it, once; no other ever waits for it. Where the program starts the recording itself, and the allocator
//! holds something by then, it is called from there: what was held, PyTorch's own snapshot tells ([`crate::started`]).
//!
//! Everything is checked before the call: the file's symbols against the library in memory (the exported pointer gives the
//! place it was loaded at, the table of virtual functions must hold the function we are about to call), the allocator's
//! type (others throw), the version's field table. Whatever does not fit is said once and leaves the base hook alone.

use std::ffi::c_void;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use gpumemtrace_format::{EventKind, TrackerState};

use super::layouts::{LAYOUTS, Layout};
use super::release::release_of;
use super::symbols::{self, Symbols};
use super::tracker::{self, Phase};
use crate::dynamic::{library_of, loaded_library, real_dlsym};
use crate::guard::quietly;

/// Driver allocations after which a process without PyTorch is no longer asked for it (each time takes the loader's lock).
const MAX_TRIES: u32 = 64;
/// No wheel has a libc10_cuda of a tenth of this size.
const MAX_LIBRARY_BYTES: u64 = 64 << 20;
/// The first two words of a table of virtual functions are not functions.
const VTABLE_HEAD_BYTES: u64 = 16;

static TRIES: AtomicU32 = AtomicU32::new(0);

/// The driver is about to be asked for `bytes` of device memory.
#[inline]
pub(crate) fn before_driver_alloc(kind: EventKind, bytes: u64) {
    if !tracker::phase().is_settled() && is_device_memory(kind) {
        before_first_entries(kind, bytes);
    }
}

fn is_device_memory(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::DEVICE_ALLOC | EventKind::ASYNC_ALLOC | EventKind::VA_RESERVE | EventKind::PHYS_CREATE
    )
}

/// PyTorch's allocator has handed out a block, so it is there. True if nobody has found it yet.
#[inline]
pub(super) fn allocator_is_alive() -> bool {
    let is_news = tracker::phase() == Phase::Waiting;
    if is_news {
        TRIES.store(0, Ordering::Relaxed);
    }
    is_news
}

/// Its report is recorded. Where no call of the driver comes to us, this is where the tracker is attached: still under the
/// allocator's lock, after all entries of this block.
#[cold]
pub(super) fn after_report() {
    if crate::started::is_without_driver() && TRIES.fetch_add(1, Ordering::Relaxed) < MAX_TRIES {
        attach_now();
    }
}

#[cold]
fn before_first_entries(kind: EventKind, bytes: u64) {
    if kind != EventKind::VA_RESERVE {
        tracker::note_driver_bytes(bytes);
    }
    if TRIES.load(Ordering::Relaxed) < MAX_TRIES {
        TRIES.fetch_add(1, Ordering::Relaxed);
        attach_now();
    }
}

/// Attaches the tracker, if nobody has tried and the allocator is there. True if it is attached now. Not from inside an entry.
#[cold]
pub(crate) fn attach_now() -> bool {
    if !tracker::begin_trying() {
        return matches!(tracker::phase(), Phase::Checking | Phase::On);
    }
    let errno = gpumemtrace_recorder::errno();
    match quietly(|| Some(find())).unwrap_or(Finding::NotYet) {
        Finding::NotYet => tracker::wait_again(),
        Finding::NoBaseHook => tracker::never(),
        Finding::No(state, line) => {
            tracker::switch_off(state, line.as_deref());
        }
        Finding::Yes { layout, attach, this } => {
            tracker::expect_entries(layout);
            let mut function = StdFunction::of_tracker();
            // SAFETY: `find` has checked that this is the function of that object's class. A C++ class that is not trivial is
            // passed by address; ours has the layout of libstdc++'s std::function, which PyTorch moves or copies from.
            unsafe { attach(this, &raw mut function) };
            tracker::attached();
        }
    }
    gpumemtrace_recorder::set_errno(errno);
    matches!(tracker::phase(), Phase::Checking | Phase::On)
}

type Attach = unsafe extern "C-unwind" fn(*mut c_void, *mut StdFunction);

enum Finding {
    NotYet,
    /// Neither preloaded nor started by the program (PyTorch loaded us as its allocator), so PyTorch's reports of blocks do not come to us: there is nothing
    /// that entries could be joined to.
    NoBaseHook,
    No(TrackerState, Option<String>),
    Yes {
        layout: &'static Layout,
        attach: Attach,
        this: *mut c_void,
    },
}

fn find() -> Finding {
    let library = loaded_library(c"libc10_cuda.so");
    if library.is_null() {
        return Finding::NotYet;
    }
    let name = std::ffi::CString::new(symbols::ALLOCATOR).unwrap_or_default();
    let pointer = real_dlsym(library, &name).cast::<AtomicPtr<c_void>>();
    // SAFETY: only undoes the count that `loaded_library` added; PyTorch never unloads it.
    unsafe { libc::dlclose(library) };
    // SAFETY: the exported `std::atomic<CUDAAllocator*>`, which is one pointer.
    let Some(this) = (unsafe { pointer.as_ref() }).map(|pointer| pointer.load(Ordering::Acquire)) else {
        return unreadable("libc10_cuda.so has no allocator");
    };
    if this.is_null() {
        return Finding::NotYet;
    }
    if !gpumemtrace_recorder::is_preloaded() && !crate::started::is_started() {
        return Finding::NoBaseHook;
    }
    if !gpumemtrace_recorder::is_tracker_enabled() {
        return Finding::No(TrackerState::NotWanted, None);
    }
    let Some(library) = library_of(pointer.cast()) else { return unreadable("libc10_cuda.so has no file") };
    let symbols = match read(library.file()) {
        Ok(symbols) => symbols,
        Err(why) => return unreadable(&why),
    };
    let bias = (pointer as u64).wrapping_sub(symbols.allocator);
    // SAFETY: an object with virtual functions begins with the address of their table.
    let vtable = unsafe { *this.cast::<u64>() };
    if vtable != bias.wrapping_add(symbols.vtable.0 + VTABLE_HEAD_BYTES) {
        return Finding::No(TrackerState::OtherAllocator, None);
    }
    if std::env::var_os("PYTORCH_NO_CUDA_MEMORY_CACHING").is_some() {
        return Finding::No(TrackerState::CacheOff, None);
    }
    let version = gpumemtrace_recorder::read_torch_version(library.file()).map(|(version, _)| version);
    let called = version.as_deref().unwrap_or("of unknown version");
    let Some(attach) = symbols.attach.map(|attach| bias.wrapping_add(attach)) else {
        return base_only(TrackerState::NoTracker, &format!("PyTorch {called} has no allocator tracker"));
    };
    let Some(layout) = version.as_deref().and_then(layout_of) else {
        let why = format!("PyTorch {called} is none of the versions that this gpumemtrace knows");
        return base_only(TrackerState::UnknownVersion, &why);
    };
    // SAFETY: the table in memory, whose length the file tells and whose address was just compared.
    let functions = unsafe {
        std::slice::from_raw_parts(
            vtable as *const u64,
            ((symbols.vtable.1 - VTABLE_HEAD_BYTES) / 8) as usize,
        )
    };
    let initialized = bias.wrapping_add(symbols.initialized);
    if !functions.contains(&attach) || !functions.contains(&initialized) {
        return unreadable("libc10_cuda.so in memory is another one than its file");
    }
    // SAFETY: a virtual function of the object's own table that takes nothing and returns `!device_allocator.empty()`.
    let is_initialized =
        unsafe { std::mem::transmute::<u64, unsafe extern "C" fn(*mut c_void) -> bool>(initialized)(this) };
    if !is_initialized {
        return Finding::NotYet;
    }
    // SAFETY: a function of the object's own table, with the name that this type belongs to.
    let attach = unsafe { std::mem::transmute::<u64, Attach>(attach) };
    Finding::Yes { layout, attach, this }
}

fn read(path: &Path) -> Result<Symbols, String> {
    let shown = path.display();
    let len = std::fs::metadata(path).map_err(|error| format!("{shown} cannot be read: {error}"))?.len();
    if len > MAX_LIBRARY_BYTES {
        return Err(format!("{shown} is larger than any libc10_cuda.so"));
    }
    // Read, not mapped: a file that shrinks meanwhile must not raise a signal in the program.
    let bytes = std::fs::read(path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    let symbols = symbols::find(&bytes).ok_or_else(|| format!("{shown} has not the symbols of a wheel"))?;
    let is_sound =
        symbols.vtable.1 >= VTABLE_HEAD_BYTES && symbols.vtable.1 % 8 == 0 && symbols.vtable.1 < 1 << 16;
    is_sound.then_some(symbols).ok_or_else(|| format!("{shown} has not the symbols of a wheel"))
}

fn unreadable(why: &str) -> Finding {
    base_only(TrackerState::Unreadable, why)
}

fn base_only(state: TrackerState, why: &str) -> Finding {
    let hint = if state == TrackerState::UnknownVersion { " A newer gpumemtrace may know it." } else { "" };
    Finding::No(state, Some(format!("{why}{}{hint}", tracker::WITHOUT)))
}

/// The field table of a version.
fn layout_of(version: &str) -> Option<&'static Layout> {
    let release = release_of(version)?;
    LAYOUTS.iter().find(|layout| layout.release == release)
}

/// libstdc++'s `std::function`: a place for what is called, what copies and destroys it, and what calls it.
#[repr(C)]
struct StdFunction {
    functor: [usize; 2],
    manager: unsafe extern "C" fn(*mut [usize; 2], *const [usize; 2], u32) -> bool,
    invoker: unsafe extern "C" fn(*const [usize; 2], *const u64),
}

impl StdFunction {
    fn of_tracker() -> Self {
        Self { functor: [0; 2], manager: manage, invoker: tracker::on_entry }
    }
}

/// There is nothing to copy nor to destroy.
unsafe extern "C" fn manage(to: *mut [usize; 2], _from: *const [usize; 2], _operation: u32) -> bool {
    // SAFETY: every operation but "destroy" gives a place for two words, and so does that one in libstdc++.
    if let Some(to) = unsafe { to.as_mut() } {
        *to = [0; 2];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_released_versions_have_a_field_table() {
        let release = |version| layout_of(version).map(|layout| layout.release);
        assert_eq!(release("2.15.0+cu132"), Some("2.15"));
        assert_eq!(release("2.4.1"), Some("2.4"));
        for unknown in ["2.1.2", "9.0.0", "2.15", "2.15.0a0+git1", "2.15.0.dev1", "", "2.15.0.1", "x.y.z"] {
            assert_eq!(release(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_std_function_has_libstdcxx_s_layout() {
        assert_eq!(size_of::<StdFunction>(), 32);
        assert_eq!(std::mem::offset_of!(StdFunction, manager), 16);
        assert_eq!(std::mem::offset_of!(StdFunction, invoker), 24);
    }

    #[test]
    fn without_pytorch_nothing_is_found() {
        assert!(matches!(find(), Finding::NotYet));
    }
}
