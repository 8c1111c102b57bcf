//! What happens around the body of every exported function.
//!
//! A panic must not cross into C, a forked child must be told 3, planned failures must happen, and memory calls must reach the log even
//! when they fail -> every exported function is declared through [`exports!`], which wraps its body and lists its name and address.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::config::Config;
use crate::log::{Log, Record};
use crate::rc::{Answer, INVALID_CONTEXT, NO_DEVICE, NOT_INITIALIZED, Rc, SUCCESS, UNKNOWN};
use crate::state::State;
use crate::state::graph::CaptureMode;
use crate::state::pages::HostPages;

/// The driver's lock: the state and the log whose lines are ordered by it.
pub(crate) struct Driver {
    pub(crate) state: State,
    pub(crate) log: Option<Log>,
}

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);
/// Set once [`DRIVER`] is filled: questions before that are answered without the lock.
static READY: AtomicBool = AtomicBool::new(false);
/// This process was forked from one that used the driver, as a real one would find out.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Deepest stack of contexts per thread.
const CONTEXT_DEPTH: usize = 32;

thread_local! {
    // Without a destructor: driver calls may come from a thread's own destructors.
    static CONTEXTS: Cell<([u64; CONTEXT_DEPTH], usize)> = const { Cell::new(([0; CONTEXT_DEPTH], 0)) };
    static CAPTURE_MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
    static TID: Cell<i32> = const { Cell::new(0) };
}

/// The switches, read at the first call.
pub(crate) fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| Config::read(|name| std::env::var(name).ok()))
}

/// The calling thread's id in the kernel.
pub(crate) fn tid() -> i32 {
    let known = TID.get();
    if known != 0 {
        return known;
    }
    // SAFETY: takes nothing and cannot fail.
    let tid = unsafe { libc::gettid() };
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

/// Sets the driver up once per process (`cuInit`).
pub(crate) fn initialise() -> Answer {
    if FORKED.load(Ordering::Acquire) {
        return Err(NOT_INITIALIZED);
    }
    let config = config();
    if config.devices == 0 {
        return Err(NO_DEVICE);
    }
    let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    if driver.is_none() {
        let state = State::new(config, Box::new(HostPages::default()))?;
        let log = config.log.as_deref().and_then(Log::open);
        // SAFETY: the handler only stores to statics of this library, which is never unloaded while the program runs.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
        *driver = Some(Driver { state, log });
        READY.store(true, Ordering::Release);
    }
    Ok(())
}

/// Whether the driver can be used: 3 before `cuInit` and in a forked child.
pub(crate) fn ready() -> Answer {
    if READY.load(Ordering::Acquire) && !FORKED.load(Ordering::Acquire) {
        Ok(())
    } else {
        Err(NOT_INITIALIZED)
    }
}

struct Locked(MutexGuard<'static, Option<Driver>>);

impl Locked {
    fn new() -> Answer<Self> {
        ready()?;
        Ok(Self(DRIVER.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn driver(&mut self) -> Answer<&mut Driver> {
        self.0.as_mut().ok_or(NOT_INITIALIZED)
    }
}

/// Runs `body` on the state, under the lock.
pub(crate) fn with_state<T>(body: impl FnOnce(&mut State) -> Answer<T>) -> Answer<T> {
    body(&mut Locked::new()?.driver()?.state)
}

/// The caller's context and its device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Current {
    pub(crate) context: u64,
    pub(crate) device: u32,
}

/// The calling thread's current context; 201 when there is none or it has ended.
pub(crate) fn current(state: &State) -> Answer<Current> {
    let context = current_handle();
    let device = state.active_context(context).ok_or(INVALID_CONTEXT)?.device;
    Ok(Current { context, device })
}

/// Runs `body` on the state with the current context.
pub(crate) fn with_context<T>(body: impl FnOnce(&mut State, Current) -> Answer<T>) -> Answer<T> {
    with_state(|state| {
        let current = current(state)?;
        body(state, current)
    })
}

/// Runs a memory call: the planned failure or `body`, then its line in the log, all under the lock.
/// `asked` is what the caller asked for, so that the line of a call that fails says it too.
pub(crate) fn logged(
    api: &str,
    asked: Record,
    body: impl FnOnce(&mut State, &mut Record) -> Answer,
) -> Answer {
    let mut locked = Locked::new()?;
    let Driver { state, log } = locked.driver()?;
    let device = current(state).map_or(-1, |current| current.device as i32);
    let mut record = Record { device, ..asked };
    let answer = match config().failures.any().then(|| config().failures.hit(api)).flatten() {
        Some(rc) => {
            record.note("injected", 1);
            Err(rc)
        }
        None => body(state, &mut record),
    };
    if let Some(log) = log.as_mut() {
        let device = usize::try_from(record.device).ok().and_then(|at| state.devices.get(at));
        let used = device.map_or((0, 0), |device| (device.used, device.slack));
        log.write(tid(), api, &record, answer.err().unwrap_or(SUCCESS), monotonic_ns(), used);
    }
    answer
}

fn run(api: &str, body: impl FnOnce() -> Answer) -> Rc {
    let rc = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(answer) => answer.err().unwrap_or(SUCCESS),
        Err(_) => UNKNOWN,
    };
    if rc != SUCCESS && config().trace {
        trace(&format!("{api} -> {rc}"));
    }
    rc
}

/// An exported function that the log does not list.
pub(crate) fn plain(api: &'static str, body: impl FnOnce() -> Answer) -> Rc {
    run(api, || match config().failures.any().then(|| config().failures.hit(api)).flatten() {
        Some(rc) => Err(rc),
        None => body(),
    })
}

/// An exported function whose body calls [`logged`].
pub(crate) fn memory(api: &'static str, body: impl FnOnce() -> Answer) -> Rc {
    run(api, body)
}

/// One line for `SIMGPU_TRACE`.
pub(crate) fn trace(line: &str) {
    use std::io::Write as _;
    let _ = std::io::stderr().write_all(format!("simgpu: libcuda: {line}\n").as_bytes());
}

/// The context on top of the thread's stack; 0 for none.
pub(crate) fn current_handle() -> u64 {
    let (stack, depth) = CONTEXTS.get();
    if depth == 0 { 0 } else { stack[depth - 1] }
}

/// Replaces the top of the stack.
pub(crate) fn set_current(handle: u64) {
    let (mut stack, mut depth) = CONTEXTS.get();
    depth = depth.max(1);
    stack[depth - 1] = handle;
    CONTEXTS.set((stack, depth));
}

/// Pushes a context; false when the stack is full.
pub(crate) fn push_current(handle: u64) -> bool {
    let (mut stack, depth) = CONTEXTS.get();
    if depth == CONTEXT_DEPTH {
        return false;
    }
    stack[depth] = handle;
    CONTEXTS.set((stack, depth + 1));
    true
}

/// Pops the top of the stack.
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

/// Exchanges it.
pub(crate) fn exchange_capture_mode(mode: CaptureMode) -> CaptureMode {
    CAPTURE_MODE.replace(mode)
}

/// Declares exported functions: `plain` or `memory` (see above), the driver version that brought the function, its C arguments.
macro_rules! exports {
    ($($kind:ident $version:literal $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $ty),*) -> $crate::rc::Rc {
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
