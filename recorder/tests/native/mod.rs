//! Runs two unwinders side by side, and builds libraries in C and C++ to call through.
#![allow(clippy::print_stderr, reason = "a skipped check is printed")]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

use gpumemtrace_format::NodeId;
use gpumemtrace_recorder::internals::{MAX_DEPTH, NativeStack, prepare};

/// The captures of one thread.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CaptureTally {
    pub(crate) captures: u64,
    pub(crate) truncated: u64,
    /// Captures that used the complete unwinder.
    pub(crate) fallback: u64,
}

struct UnwinderPair {
    stack: Box<NativeStack>,
    nodes: HashMap<NodeId, (NodeId, usize)>,
    tally: CaptureTally,
}

thread_local! {
    static UNWINDERS: RefCell<UnwinderPair> = RefCell::new(UnwinderPair::new());
    static SEED: Cell<u64> = const { Cell::new(1) };
}

impl UnwinderPair {
    fn new() -> Self {
        prepare();
        // SAFETY: zero bytes are the documented empty state, and the layout is its own.
        let stack = unsafe {
            Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<NativeStack>()).cast())
        };
        Self { stack, nodes: HashMap::new(), tally: CaptureTally::default() }
    }

    /// Captures the calling thread's stack with our unwinder; also returns whether it was
    /// truncated.
    #[inline(never)]
    fn ours(&mut self) -> (Vec<usize>, bool) {
        let Self { stack, nodes, .. } = self;
        let mut next = nodes.len() as u32;
        let found = stack.capture(|parent, frame| {
            next += 1;
            nodes.insert(NodeId(next), (parent, frame.instr));
            Some(NodeId(next))
        });
        let mut frames = Vec::new();
        let mut at = found.node;
        while at != NodeId::NONE {
            let (parent, address) = nodes[&at];
            frames.push(address);
            at = parent;
        }
        (frames, found.is_truncated)
    }
}

#[inline(never)]
fn theirs() -> Vec<usize> {
    let mut frames = Vec::new();
    // SAFETY: no symbols are resolved through this crate at the same time.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            if !frame.ip().is_null() {
                frames.push(frame.ip() as usize);
            }
            true
        });
    }
    frames
}

/// Compares the stacks of both unwinders, from the caller of this function outwards. Panics at the
/// first difference and prints both.
#[inline(never)]
pub(crate) fn compare() {
    UNWINDERS.with(|unwinders| {
        let unwinders = &mut *unwinders.borrow_mut();
        let (ours, is_truncated) = unwinders.ours();
        let theirs = theirs();
        unwinders.tally.captures += 1;
        unwinders.tally.truncated += u64::from(is_truncated);
        unwinders.tally.fallback += u64::from(unwinders.stack.used_fallback());
        if let Some(why) = difference(&ours, &theirs, is_truncated) {
            let line = |frame: &usize| format!("  {frame:#x} {}", symbol_name(*frame));
            let show = |frames: &[usize]| frames.iter().map(line).collect::<Vec<_>>().join("\n");
            panic!("{why}\nours:\n{}\ntheirs:\n{}", show(&ours), show(&theirs));
        }
    });
}

/// Captures with our unwinder alone. Returns the number of frames, whether the stack was truncated,
/// and whether the complete unwinder was used.
#[inline(never)]
pub(crate) fn capture_ours() -> (usize, bool, bool) {
    UNWINDERS.with(|unwinders| {
        let unwinders = &mut *unwinders.borrow_mut();
        let (frames, is_truncated) = unwinders.ours();
        (frames.len(), is_truncated, unwinders.stack.used_fallback())
    })
}

/// Why two stacks differ outside of the functions that capture them, or `None`.
fn difference(ours: &[usize], theirs: &[usize], is_truncated: bool) -> Option<String> {
    // Both stacks begin inside the unwinders. From the first common frame on they must be the same.
    const MAX_OWN_FRAMES: usize = 12;
    let is_in_both = |frame: &&usize| theirs.iter().take(MAX_OWN_FRAMES).any(|other| other == *frame);
    let Some(first) = ours.iter().take(MAX_OWN_FRAMES).find(is_in_both) else {
        return Some("the stacks have no frame in common".to_owned());
    };
    let rest =
        |frames: &[usize]| frames.iter().skip_while(|frame| *frame != first).copied().collect::<Vec<_>>();
    let (our_rest, their_rest) = (rest(ours), rest(theirs));
    if is_truncated {
        let is_cut = ours.len() == MAX_DEPTH && their_rest.starts_with(&our_rest);
        return (!is_cut).then(|| "the truncated stacks differ".to_owned());
    }
    (our_rest != their_rest).then(|| "the stacks differ".to_owned())
}

fn symbol_name(address: usize) -> String {
    // SAFETY: zero is a valid value; the loader fills it in.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr accepts any address.
    if unsafe { libc::dladdr(address as *const c_void, &raw mut info) } == 0 {
        return "?".to_owned();
    }
    let text = |at: *const std::ffi::c_char| {
        // SAFETY: the loader's names are NUL-terminated.
        let name = (!at.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(at) });
        name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    };
    format!("{} {}", text(info.dli_fname), text(info.dli_sname))
}

/// The captures of the calling thread so far.
pub(crate) fn tally() -> CaptureTally {
    UNWINDERS.with(|unwinders| unwinders.borrow().tally)
}

/// Seeds the random numbers of the calling thread.
pub(crate) fn seed(seed: u64) {
    SEED.with(|own| own.set(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
}

/// A random number below `below`.
pub(crate) fn random(below: u64) -> u64 {
    SEED.with(|seed| {
        let mut x = seed.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        seed.set(x);
        (x >> 11) % below
    })
}

/// A function of the test libraries, which calls back.
pub(crate) type Caller = extern "C" fn(extern "C" fn(*mut c_void), *mut c_void, u32);

/// A loaded test library.
#[derive(Debug)]
pub(crate) struct TestLibrary(*mut c_void);

// SAFETY: a handle of the loader, which any thread may use.
unsafe impl Send for TestLibrary {}
// SAFETY: as above.
unsafe impl Sync for TestLibrary {}

impl TestLibrary {
    /// Compiles a file of this folder. Returns `None` if there is no compiler.
    pub(crate) fn build(source: &str, options: &[&str], output: &Path) -> Option<PathBuf> {
        let compiler = if source == "frames.c" { "cc" } else { "c++" };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/native").join(source);
        let mut command = Command::new(compiler);
        command.args(["-shared", "-fPIC", "-w"]).args(options).arg("-o").arg(output).arg(source);
        if let Ok(status) = command.status() {
            assert!(status.success(), "{command:?}");
            return Some(output.to_owned());
        }
        assert!(std::env::var_os("GPUMEMTRACE_REQUIRE_ALL").is_none(), "no {compiler} on this machine");
        eprintln!("skipped: frames of {options:?}: no {compiler} on this machine");
        None
    }

    pub(crate) fn open(path: &Path) -> Self {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a test library without constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        Self(handle)
    }

    pub(crate) fn caller(&self, name: &str) -> Option<Caller> {
        let name = CString::new(name).unwrap();
        // SAFETY: a NUL-terminated name.
        let function = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: all functions in `CALLERS` have this type.
        (!function.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Caller>(function) })
    }

    /// Unloads the library, and notes that as the `dlclose` hook does.
    pub(crate) fn close(self) {
        // SAFETY: our own handle; none of its functions is running.
        unsafe { libc::dlclose(self.0) };
        gpumemtrace_recorder::note_module_unload();
    }
}

/// The functions of `frames.c` and `frames.cc`.
pub(crate) const CALLERS: [&str; 7] = [
    "call_plain",
    "call_with_buffer",
    "call_with_variable_buffer",
    "call_aligned",
    "call_aligned_with_variable_buffer",
    "call_busily",
    "call_while_thrown",
];
