//! Compares our unwinder with the C++ runtime's, frame by frame, on stacks of many shapes.

#![allow(clippy::items_after_statements, reason = "a callback stands beside its use")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::native::{CALLERS, Caller, CaptureTally, TestLibrary, capture_ours, compare, random, tally};

/// Calls functions of random shapes, and compares the stacks at some depths.
fn wander(budget: u64) {
    if budget == 0 || random(8) == 0 {
        compare();
    }
    if budget == 0 {
        return;
    }
    const SHAPES: [fn(u64); 9] = [
        plain,
        with_a_large_frame,
        aligned,
        through_qsort,
        in_a_panic,
        in_a_closure,
        on_a_signal,
        recursive,
        through_a_library,
    ];
    SHAPES[random(SHAPES.len() as u64) as usize](budget - 1);
    if random(3) == 0 {
        compare();
    }
}

#[inline(never)]
fn plain(budget: u64) {
    wander(budget);
    std::hint::black_box(budget);
}

#[inline(never)]
fn with_a_large_frame(budget: u64) {
    let buffer = [budget; 700];
    std::hint::black_box(&buffer);
    wander(budget);
    std::hint::black_box(&buffer);
}

#[repr(align(128))]
struct Aligned([u64; 16]);

#[inline(never)]
fn aligned(budget: u64) {
    let buffer = Aligned([budget; 16]);
    std::hint::black_box(&buffer.0);
    wander(budget);
    std::hint::black_box(&buffer.0);
}

#[inline(never)]
fn through_qsort(budget: u64) {
    thread_local! { static LEFT: Cell<u64> = const { Cell::new(0) }; }
    extern "C" fn order(a: *const c_void, b: *const c_void) -> c_int {
        if random(4) == 0 {
            wander(LEFT.with(Cell::get) / 2);
        }
        // SAFETY: qsort passes pointers to its elements.
        unsafe { (*a.cast::<u32>()).cmp(&*b.cast::<u32>()) as c_int }
    }
    let before = LEFT.with(|left| left.replace(budget));
    let mut numbers: Vec<u32> = (0..3 + random(6)).map(|_| random(100) as u32).collect();
    // SAFETY: the array has this many elements of this size.
    unsafe { libc::qsort(numbers.as_mut_ptr().cast(), numbers.len(), 4, Some(order)) };
    LEFT.with(|left| left.set(before));
}

struct ComparesWhenDropped(u64);

impl Drop for ComparesWhenDropped {
    fn drop(&mut self) {
        compare();
        if !std::thread::panicking() {
            wander(self.0 / 2);
        }
    }
}

#[inline(never)]
fn in_a_panic(budget: u64) {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _guard = ComparesWhenDropped(budget);
        let _other = ComparesWhenDropped(0);
        plain(budget / 2);
        // Raises an exception without printing the message of a panic.
        resume_unwind(Box::new(budget));
    }));
    assert!(result.is_err());
    wander(budget / 2);
}

#[inline(never)]
fn in_a_closure(budget: u64) {
    let numbers: Vec<u64> = (0..2).map(|i| budget / (2 + i)).collect();
    let called = numbers.iter().map(|left| {
        let closure: Box<dyn Fn()> = std::hint::black_box(Box::new(|| wander(*left)));
        closure();
    });
    assert_eq!(called.count(), 2);
}

#[inline(never)]
fn recursive(budget: u64) {
    fn deeper(levels: u64, budget: u64) -> u64 {
        if levels == 0 {
            wander(budget);
            return 0;
        }
        1 + std::hint::black_box(deeper(levels - 1, budget))
    }
    std::hint::black_box(deeper(random(if random(20) == 0 { 200 } else { 12 }), budget));
}

thread_local! { static FOR_SIGNAL: Cell<u64> = const { Cell::new(0) }; }

extern "C" fn on_usr1(_: c_int) {
    wander(FOR_SIGNAL.with(|left| left.replace(0)));
}

#[inline(never)]
fn on_a_signal(budget: u64) {
    FOR_SIGNAL.with(|left| left.set(budget));
    // SAFETY: `handle_signals` has installed a handler for this signal.
    unsafe { libc::raise(libc::SIGUSR1) };
}

fn handle_signals(flags: c_int) {
    // SAFETY: a handler of the right type, for a signal that no other code uses.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_usr1 as *const () as usize;
        action.sa_flags = flags | libc::SA_NODEFER;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
}

/// The functions of `frames.c` and `frames.cc`, compiled in several ways and loaded for the whole
/// test.
fn callers() -> &'static [Caller] {
    static CALLER_LIST: OnceLock<Vec<Caller>> = OnceLock::new();
    CALLER_LIST.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let ways: [(&str, &[&str]); 7] = [
            ("frames.c", &["-O0"]),
            ("frames.c", &["-O2", "-fomit-frame-pointer"]),
            ("frames.c", &["-O2", "-fno-omit-frame-pointer"]),
            ("frames.c", &["-O3", "-mstackrealign"]),
            ("frames.c", &["-O1", "-fomit-frame-pointer", "-mpreferred-stack-boundary=6"]),
            ("frames.cc", &["-O2"]),
            ("frames.cc", &["-O0"]),
        ];
        let built = ways.iter().enumerate().filter_map(|(number, (source, options))| {
            TestLibrary::build(source, options, &folder.path().join(format!("way{number}.so")))
        });
        let libraries: Vec<TestLibrary> = built.map(|path| TestLibrary::open(&path)).collect();
        libraries.iter().flat_map(|library| CALLERS.iter().filter_map(|name| library.caller(name))).collect()
    })
}

thread_local! { static FOR_LIBRARY: Cell<u64> = const { Cell::new(0) }; }

extern "C" fn call_back(_: *mut c_void) {
    wander(FOR_LIBRARY.with(|left| left.replace(0)));
}

#[inline(never)]
fn through_a_library(budget: u64) {
    let Some(caller) = callers().get(random(callers().len().max(1) as u64) as usize) else { return };
    FOR_LIBRARY.with(|left| left.set(budget));
    caller(call_back, std::ptr::null_mut(), random(300) as u32);
}

fn wander_until(captures: u64, seed: u64) -> CaptureTally {
    crate::native::seed(seed);
    while tally().captures < captures {
        wander(3 + random(12));
    }
    tally()
}

#[test]
fn stacks_of_many_shapes_agree_with_the_complete_unwinder() {
    handle_signals(0);
    let threads: Vec<_> = (1..=2u64)
        .map(|seed| {
            let thread = std::thread::Builder::new().stack_size(64 << 20);
            thread.spawn(move || wander_until(60_000, seed)).unwrap()
        })
        .collect();
    for thread in threads {
        let tally = thread.join().unwrap();
        assert!(tally.fallback * 100 < tally.captures, "rules must handle almost all frames: {tally:?}");
        assert!(tally.truncated * 100 < tally.captures, "{tally:?}");
    }
}

/// Loads two libraries in turn at the same addresses. Their return addresses are equal, their frame
/// sizes differ.
#[test]
fn library_loaded_at_the_same_address_gets_new_rules() {
    let folder = tempfile::tempdir().unwrap();
    let build = |buffer: &str| {
        let options = ["-O2", "-fomit-frame-pointer", buffer];
        TestLibrary::build("frames.c", &options, &folder.path().join(format!("{buffer}.so")))
    };
    let (Some(small), Some(large)) = (build("-DBUFFER_BYTES=1024"), build("-DBUFFER_BYTES=8192")) else {
        return;
    };
    extern "C" fn compare_in_callback(_: *mut c_void) {
        compare();
    }
    let mut places = std::collections::HashMap::new();
    for turn in 0..2000 {
        let path = if turn % 2 == 0 { &small } else { &large };
        let library = TestLibrary::open(path);
        let caller = library.caller("call_with_buffer").unwrap();
        *places.entry((caller as usize, turn % 2)).or_insert(0) += 1;
        for _ in 0..3 {
            caller(compare_in_callback, std::ptr::null_mut(), 1);
        }
        library.close();
    }
    let shared = places.keys().filter(|(place, way)| *way == 0 && places.contains_key(&(*place, 1))).count();
    assert!(shared > 0, "the loader reused no address: {places:?}");
    assert_eq!((tally().captures, tally().fallback), (6000, 0));
}

/// The bounds of an alternate signal stack are unknown to the unwinder.
///
/// Rules follow the signal frame only outwards, to a higher address. So if the kernel maps the
/// alternate stack above the thread's own stack, the handler's captures use the complete unwinder.
#[test]
fn signal_handler_on_an_alternate_stack() {
    extern "C" fn on_usr2(_: c_int) {
        compare();
    }
    let mut buffer = vec![0u8; 1 << 20];
    // SAFETY: the stack outlives its use; the handler has the right type, and no other code uses
    // the signal.
    unsafe {
        let stack = libc::stack_t { ss_sp: buffer.as_mut_ptr().cast(), ss_flags: 0, ss_size: buffer.len() };
        assert_eq!(libc::sigaltstack(&raw const stack, std::ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_usr2 as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut());
        for _ in 0..100 {
            compare();
            libc::raise(libc::SIGUSR2);
        }
        let off = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        libc::sigaltstack(&raw const off, std::ptr::null_mut());
    }
    let own_stack = 0u8;
    let is_above = buffer.as_ptr() as usize > &raw const own_stack as usize;
    assert_eq!((tally().captures, tally().fallback), (200, if is_above { 100 } else { 0 }));
}

/// Coroutine libraries create such stacks.
#[test]
fn fibre_stack() {
    extern "C" fn fibre() {
        compare();
        std::hint::black_box(());
    }
    let mut buffer = vec![0u8; 1 << 20];
    for _ in 0..100 {
        // SAFETY: contexts that are filled in before they are used; the fibre returns to `here`.
        unsafe {
            let (mut here, mut there) =
                (std::mem::zeroed::<libc::ucontext_t>(), std::mem::zeroed::<libc::ucontext_t>());
            assert_eq!(libc::getcontext(&raw mut there), 0);
            there.uc_stack.ss_sp = buffer.as_mut_ptr().cast();
            there.uc_stack.ss_size = buffer.len();
            there.uc_link = &raw mut here;
            libc::makecontext(&raw mut there, fibre, 0);
            assert_eq!(libc::swapcontext(&raw mut here, &raw const there), 0);
        }
        compare();
    }
    assert_eq!((tally().captures, tally().fallback), (200, 0));
}

/// Greenlets leave stacks with an outermost return address that is not code and may not be mapped.
/// The complete unwinder would read there and crash.
#[cfg(target_arch = "x86_64")]
#[test]
fn stack_with_an_unmapped_return_address_is_truncated() {
    const NOWHERE: usize = 0x1234_5678_9abc;
    static RETURN_TO: AtomicUsize = AtomicUsize::new(0);
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    #[inline(never)]
    extern "C" fn capture() {
        let (frames, is_truncated, used_fallback) = capture_ours();
        assert!(is_truncated && !used_fallback);
        FOUND.store(frames, Ordering::Relaxed);
    }
    extern "C" fn fibre() {
        let top = 0usize;
        // SAFETY: the words further out on this stack belong to the test. The return address of
        // this function is among them, and is restored. The compiler must not know that they are
        // beyond the variable.
        unsafe {
            let from = std::hint::black_box((&raw const top).cast_mut());
            let at = (0..64).map(|word| from.wrapping_add(word));
            let held: Vec<(*mut usize, usize)> = at.map(|at| (at, at.read_volatile())).collect();
            let returns = held.iter().filter(|(_, word)| *word == RETURN_TO.load(Ordering::Relaxed));
            let returns: Vec<(*mut usize, usize)> = returns.copied().collect();
            assert!(!returns.is_empty(), "the return address of the fibre");
            for (at, _) in &returns {
                at.write_volatile(NOWHERE);
            }
            capture();
            for (at, word) in &returns {
                at.write_volatile(*word);
            }
        }
    }
    let mut buffer = vec![0u8; 1 << 20];
    // SAFETY: as above.
    unsafe {
        let (mut here, mut there) =
            (std::mem::zeroed::<libc::ucontext_t>(), std::mem::zeroed::<libc::ucontext_t>());
        assert_eq!(libc::getcontext(&raw mut there), 0);
        there.uc_stack.ss_sp = buffer.as_mut_ptr().cast();
        there.uc_stack.ss_size = buffer.len();
        there.uc_link = &raw mut here;
        libc::makecontext(&raw mut there, fibre, 0);
        // The word at the fibre's first stack pointer is its return address.
        let sp = there.uc_mcontext.gregs[libc::REG_RSP as usize] as *const usize;
        RETURN_TO.store(sp.read(), Ordering::Relaxed);
        assert_eq!(libc::swapcontext(&raw mut here, &raw const there), 0);
    }
    assert!(FOUND.load(Ordering::Relaxed) > 0, "the inner frames must be found");
}
