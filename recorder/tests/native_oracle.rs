//! Our unwinder against the C++ runtime's, frame for frame, over stacks of many shapes.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use gpumemtrace_format::NodeId;
use gpumemtrace_recorder::native::{self, NativeStack};
use gpumemtrace_recorder::stack_cache::MAX_DEPTH;

/// One thread's unwinder, with what it has defined.
struct Witness {
    stack: Box<NativeStack>,
    nodes: HashMap<NodeId, (NodeId, usize)>,
    captures: u64,
    truncated: u64,
    slow: u64,
}

thread_local! {
    static WITNESS: RefCell<Witness> = RefCell::new(Witness::new());
    static SEED: Cell<u64> = const { Cell::new(0x1234_5678_9abc_def1) };
}

impl Witness {
    fn new() -> Self {
        native::prepare();
        // SAFETY: zero bytes are the documented empty state, and the layout is its own.
        let stack = unsafe {
            Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<NativeStack>()).cast())
        };
        Self { stack, nodes: HashMap::new(), captures: 0, truncated: 0, slow: 0 }
    }
}

fn random(below: u64) -> u64 {
    SEED.with(|seed| {
        let mut x = seed.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        seed.set(x);
        (x >> 11) % below
    })
}

#[inline(never)]
fn ours(witness: &mut Witness) -> (Vec<usize>, bool) {
    let Witness { stack, nodes, .. } = witness;
    let mut next = nodes.len() as u32;
    let found = stack.find(|parent, frame| {
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

/// Compares both stacks, from the caller of this on.
#[inline(never)]
fn compare() {
    WITNESS.with(|witness| {
        let witness = &mut *witness.borrow_mut();
        let (ours, is_truncated) = ours(witness);
        let theirs = theirs();
        witness.captures += 1;
        witness.truncated += u64::from(is_truncated);
        witness.slow += u64::from(witness.stack.was_slow());
        if let Some(why) = difference(&ours, &theirs, is_truncated) {
            let show = |frames: &[usize]| {
                frames
                    .iter()
                    .map(|frame| format!("  {frame:#x} {}", name(*frame)))
                    .collect::<Vec<_>>()
                    .join("\n")
            };
            panic!("{why}\nours:\n{}\ntheirs:\n{}", show(&ours), show(&theirs));
        }
    });
}

/// Why two stacks differ beyond the functions that look, or `None`.
fn difference(ours: &[usize], theirs: &[usize], is_truncated: bool) -> Option<String> {
    // Both begin in functions of this file and of the unwinders; a call of `compare` is in both, at the same place.
    const MOST_OWN: usize = 12;
    for (skip_ours, frame) in ours.iter().enumerate().take(MOST_OWN) {
        let Some(skip_theirs) = theirs.iter().take(MOST_OWN).position(|other| other == frame) else {
            continue;
        };
        let (ours, theirs) = (&ours[skip_ours..], &theirs[skip_theirs..]);
        if is_truncated {
            return (ours.len() + skip_ours != MAX_DEPTH || !theirs.starts_with(ours))
                .then(|| "the truncated stacks differ".to_owned());
        }
        return (ours != theirs).then(|| "the stacks differ".to_owned());
    }
    Some("the stacks have no frame in common".to_owned())
}

fn name(address: usize) -> String {
    // SAFETY: zero is a valid value; the loader fills it in.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address as *const c_void, &raw mut info) == 0 {
            return "?".to_owned();
        }
        let text = |at: *const std::ffi::c_char| {
            if at.is_null() {
                String::new()
            } else {
                std::ffi::CStr::from_ptr(at).to_string_lossy().into_owned()
            }
        };
        format!("{} {}", text(info.dli_fname), text(info.dli_sname))
    }
}

/// Calls more of the same at random, and compares at some of the places.
fn wander(budget: u64) {
    if budget == 0 || random(8) == 0 {
        compare();
    }
    if budget == 0 {
        return;
    }
    const SHAPES: [fn(u64); 8] =
        [plain, with_a_large_frame, aligned, through_qsort, in_a_panic, in_a_closure, on_a_signal, recursive];
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
    let room = [budget; 700];
    std::hint::black_box(&room);
    wander(budget);
    std::hint::black_box(&room);
}

#[repr(align(128))]
struct Aligned([u64; 16]);

#[inline(never)]
fn aligned(budget: u64) {
    let room = Aligned([budget; 16]);
    std::hint::black_box(&room.0);
    wander(budget);
    std::hint::black_box(&room.0);
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
    // SAFETY: as many elements of that size as said.
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
        std::hint::black_box(plain(budget / 2));
        // An exception in flight, without the message of a panic.
        resume_unwind(Box::new(budget));
    }));
    assert!(result.is_err());
    wander(budget / 2);
}

#[inline(never)]
fn in_a_closure(budget: u64) {
    let numbers: Vec<u64> = (0..2).map(|i| budget / (2 + i)).collect();
    numbers.iter().for_each(|left| std::hint::black_box(Box::new(move || wander(*left)) as Box<dyn Fn()>)());
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
    // SAFETY: a signal that `handle_signals` has given a handler.
    unsafe { libc::raise(libc::SIGUSR1) };
}

fn handle_signals(flags: c_int) {
    // SAFETY: a handler of the right type, for a signal that nobody else uses.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_usr1 as *const () as usize;
        action.sa_flags = flags | libc::SA_NODEFER;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
}

fn wander_until(captures: u64, seed: u64) -> u64 {
    SEED.with(|own| own.set(seed | 1));
    loop {
        wander(3 + random(12));
        let (done, truncated, slow) = WITNESS.with(|witness| {
            let witness = witness.borrow();
            (witness.captures, witness.truncated, witness.slow)
        });
        if done >= captures {
            eprintln!("{done} {truncated} {slow}");
            return truncated;
        }
    }
}

#[test]
fn stacks_of_many_shapes_are_those_of_the_complete_unwinder() {
    handle_signals(0);
    let threads: Vec<_> = (1..=2u64)
        .map(|seed| {
            let thread = std::thread::Builder::new().stack_size(64 << 20);
            thread.spawn(move || wander_until(60_000, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))).unwrap()
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}
