//! Wrappers around every exported function.
//!
//! [`exports!`] declares each function, wraps its body and lists its name and address. The wrapper
//! catches panics, returns 3 in a forked child, and applies planned failures. It also logs memory
//! calls, including failed ones.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::config::Config;
use crate::log::{Log, LogRecord};
use crate::result_code::{ApiResult, INVALID_CONTEXT, NO_DEVICE, NOT_INITIALIZED, Rc, SUCCESS, UNKNOWN};
use crate::state::DriverState;
use crate::state::graph::CaptureMode;
use crate::state::pages::HostPages;

/// The data behind the driver's lock: the state, and the log, in call order.
pub(crate) struct Driver {
    pub(crate) state: DriverState,
    pub(crate) log: Option<Log>,
}

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);
/// Set once [`DRIVER`] is filled; readers that run earlier need no lock.
static READY: AtomicBool = AtomicBool::new(false);
/// Set in a child forked after `cuInit`; every call then returns 3, as in a real driver.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Deepest stack of contexts per thread.
const CONTEXT_DEPTH: usize = 32;

thread_local! {
    // No destructor: a thread's own destructors may still call the driver.
    static CONTEXTS: Cell<([u64; CONTEXT_DEPTH], usize)> = const { Cell::new(([0; CONTEXT_DEPTH], 0)) };
    static CAPTURE_MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
    static TID: Cell<i32> = const { Cell::new(0) };
}

/// Returns the settings, read from the environment at the first call.
pub(crate) fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| Config::read(|name| std::env::var(name).ok()))
}

/// Returns the kernel's id of the calling thread.
pub(crate) fn tid() -> i32 {
    let known = TID.get();
    if known != 0 {
        return known;
    }
    // SAFETY: takes no argument and cannot fail.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
    TID.set(tid);
    tid
}

fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is ours and the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

extern "C" fn after_fork_in_child() {
    TID.set(0);
    if READY.load(Ordering::Acquire) {
        FORKED.store(true, Ordering::Release);
    }
}

/// Initialises the driver once per process (`cuInit`).
pub(crate) fn initialise() -> ApiResult {
    if FORKED.load(Ordering::Acquire) {
        return Err(NOT_INITIALIZED);
    }
    let config = config();
    if config.devices == 0 {
        return Err(NO_DEVICE);
    }
    let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    if driver.is_none() {
        let state = DriverState::new(config, Box::new(HostPages::default()))?;
        let log = config.log.as_deref().and_then(Log::open);
        // SAFETY: the handler only stores to statics of this library, which is never unloaded while
        // the program runs.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
        *driver = Some(Driver { state, log });
        READY.store(true, Ordering::Release);
    }
    Ok(())
}

/// Returns `Err(3)` before `cuInit` and in a forked child.
pub(crate) fn ready() -> ApiResult {
    if READY.load(Ordering::Acquire) && !FORKED.load(Ordering::Acquire) {
        Ok(())
    } else {
        Err(NOT_INITIALIZED)
    }
}

struct DriverGuard(MutexGuard<'static, Option<Driver>>);

impl DriverGuard {
    fn new() -> ApiResult<Self> {
        ready()?;
        Ok(Self(DRIVER.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn driver(&mut self) -> ApiResult<&mut Driver> {
        self.0.as_mut().ok_or(NOT_INITIALIZED)
    }
}

/// Runs `body` on the state, under the lock.
pub(crate) fn with_state<T>(body: impl FnOnce(&mut DriverState) -> ApiResult<T>) -> ApiResult<T> {
    body(&mut DriverGuard::new()?.driver()?.state)
}

/// The caller's context and its device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CurrentContext {
    pub(crate) context: u64,
    pub(crate) device: u32,
}

/// Returns the calling thread's context, or `Err(201)` if there is none or it was destroyed.
pub(crate) fn current(state: &DriverState) -> ApiResult<CurrentContext> {
    let context = current_handle();
    let device = state.active_context(context).ok_or(INVALID_CONTEXT)?.device;
    Ok(CurrentContext { context, device })
}

/// Runs `body` on the state, with the current context.
pub(crate) fn with_context<T>(
    body: impl FnOnce(&mut DriverState, CurrentContext) -> ApiResult<T>,
) -> ApiResult<T> {
    with_state(|state| {
        let current = current(state)?;
        body(state, current)
    })
}

/// Runs a memory call under the lock: the planned failure or `body`, then its log line.
/// `asked` holds the arguments for the line of a failed call.
pub(crate) fn logged(
    api: &str,
    asked: LogRecord,
    body: impl FnOnce(&mut DriverState, &mut LogRecord) -> ApiResult,
) -> ApiResult {
    let mut locked = DriverGuard::new()?;
    let Driver { state, log } = locked.driver()?;
    let device = current(state).map_or(-1, |current| current.device as i32);
    let mut record = LogRecord { device, ..asked };
    let answer = match config().failures.has_any().then(|| config().failures.count_call(api)).flatten() {
        Some(rc) => {
            record.push_field("injected", 1);
            Err(rc)
        }
        None => body(state, &mut record),
    };
    if let Some(log) = log.as_mut() {
        let device = usize::try_from(record.device).ok().and_then(|at| state.devices.get(at));
        let used = device.map_or((0, 0), |device| (device.used, device.slack));
        record.push_held(state.off_device_bytes());
        log.write(tid(), api, &record, answer.err().unwrap_or(SUCCESS), monotonic_ns(), used);
    }
    answer
}

fn run(api: &str, body: impl FnOnce() -> ApiResult) -> Rc {
    let rc = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(answer) => answer.err().unwrap_or(SUCCESS),
        Err(_) => UNKNOWN,
    };
    if rc != SUCCESS && config().trace {
        trace(&format!("{api} -> {rc}"));
    }
    rc
}

/// Runs an exported function that is not logged.
pub(crate) fn plain(api: &'static str, body: impl FnOnce() -> ApiResult) -> Rc {
    run(api, || match config().failures.has_any().then(|| config().failures.count_call(api)).flatten() {
        Some(rc) => Err(rc),
        None => body(),
    })
}

/// Runs an exported function with a body that calls [`logged`].
pub(crate) fn memory(api: &'static str, body: impl FnOnce() -> ApiResult) -> Rc {
    run(api, body)
}

/// Prints one line if `SIMGPU_TRACE` is on.
pub(crate) fn trace(line: &str) {
    use std::io::Write as _;
    let _ = std::io::stderr().write_all(format!("simgpu: libcuda: {line}\n").as_bytes());
}

/// Returns the context on top of the thread's stack, or 0.
pub(crate) fn current_handle() -> u64 {
    let (stack, depth) = CONTEXTS.get();
    if depth == 0 { 0 } else { stack[depth - 1] }
}

/// Replaces the top of the thread's context stack.
pub(crate) fn set_current(handle: u64) {
    let (mut stack, mut depth) = CONTEXTS.get();
    depth = depth.max(1);
    stack[depth - 1] = handle;
    CONTEXTS.set((stack, depth));
}

/// Pushes a context; returns false if the stack is full.
pub(crate) fn push_current(handle: u64) -> bool {
    let (mut stack, depth) = CONTEXTS.get();
    if depth == CONTEXT_DEPTH {
        return false;
    }
    stack[depth] = handle;
    CONTEXTS.set((stack, depth + 1));
    true
}

/// Pops the top of the thread's context stack.
pub(crate) fn pop_current() -> Option<u64> {
    let (stack, depth) = CONTEXTS.get();
    let popped = (depth > 0).then(|| stack[depth - 1])?;
    CONTEXTS.set((stack, depth - 1));
    Some(popped)
}

/// The calling thread's capture mode.
pub(crate) fn capture_mode() -> CaptureMode {
    CAPTURE_MODE.get()
}

/// Sets the calling thread's capture mode and returns the old one.
pub(crate) fn exchange_capture_mode(mode: CaptureMode) -> CaptureMode {
    CAPTURE_MODE.replace(mode)
}

/// Declares exported functions: `plain` or `memory`, the driver version that added it, C arguments.
macro_rules! exports {
    ($($kind:ident $version:literal $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $ty),*) -> $crate::result_code::Rc {
                #[allow(dead_code)]
                const API: &str = stringify!($name);
                $crate::entry::$kind(stringify!($name), || $body)
            }
        )*
        /// The functions of this module.
        pub(crate) const EXPORTS: &[$crate::names::Export] = &[
            $($crate::names::Export { name: stringify!($name), version: $version, address: $name as *const () }),*
        ];
    };
}
pub(crate) use exports;
