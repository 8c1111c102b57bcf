//! Lets initializers of large weights write nothing, where the host has not enough memory for them.
//!
//! A program that makes its model on the CPU needs the memory of all weights, also where it never
//! looks at them. Pages that are not written take none. So kernels of the CPU that fill a large
//! tensor that nothing has written, or change it in place, can be left out: random numbers,
//! constants, and the steps of `trunc_normal_`. Copies of the weights to the simulated GPU read
//! nothing.
//!
//! Without `SIMGPU_SKIP_INIT`, that begins when little of the memory is left that the host had at
//! the start; one line says so.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::call_frame::{CallFrame, Hook, Plan, Prepare};
use super::tensor;
use super::tensor_iterator;
use crate::config::Initializers;
use crate::entry::config;

/// Stubs that fill a tensor, or change it in place.
pub(crate) const STUBS: &[&str] = &[
    "add_stub",
    "bernoulli_scalar_stub",
    "clamp_scalar_stub",
    "clamp_stub",
    "erfinv_stub",
    "exponential_stub",
    "fill_stub",
    "log_normal_stub",
    "mul_stub",
    "normal_stub",
    "sub_stub",
    "uniform_stub",
];
/// Smaller tensors are always written, in bytes.
const LARGE: u64 = 1 << 20;
/// The share of the host's free memory at the start that stays free, in percent.
const RESERVED: u64 = 40;

static AT_START: OnceLock<u64> = OnceLock::new();
static FILLED_BYTES: AtomicU64 = AtomicU64::new(0);
static IS_SKIPPING: AtomicBool = AtomicBool::new(false);

/// Decides about a kernel of the CPU.
pub(crate) fn prepare(takes_iterator: bool) -> Prepare {
    Box::new(move |frame| {
        let (addr, bytes, is_in_place) = if takes_iterator { of_iterator(frame)? } else { of_tensor(frame)? };
        (is_skipped(bytes, is_in_place) && is_untouched(addr, bytes))
            .then(|| Box::new(|_: &Hook, _: &CallFrame| 0_u64) as Plan)
    })
}

/// The address and the bytes that a kernel writes to a large tensor of floating-point numbers, and
/// whether it reads them first. `None` for kernels that read another large tensor.
fn of_iterator(frame: &CallFrame) -> Option<(u64, u64, bool)> {
    // SAFETY: the first argument of these stubs is an iterator.
    let iteration = unsafe { tensor_iterator::read(frame.integers[0])? };
    let (results, inputs) = iteration.split();
    let result = results.first().filter(|result| !result.is_on_gpu && result.view.kind.is_floating())?;
    let (addr, bytes) = result.view.span().filter(|(_, bytes)| *bytes >= LARGE)?;
    let mut others = inputs.iter().filter(|input| input.view.addr != result.view.addr);
    let is_alone = others.all(|other| other.view.without_repetition().elements() == Some(1));
    is_alone.then_some((addr, bytes, inputs.iter().any(|input| input.view.addr == result.view.addr)))
}

/// As above, of a stub that takes the tensor.
fn of_tensor(frame: &CallFrame) -> Option<(u64, u64, bool)> {
    // SAFETY: the first argument of these stubs is a tensor.
    let view = unsafe { tensor::view(frame.integers[0]) }.filter(|view| view.kind.is_floating())?;
    let (addr, bytes) = view.span()?;
    (bytes >= LARGE).then_some((addr, bytes, false))
}

/// True if no page of a few takes memory, so that nothing was written: data that a program has read
/// from a file is never left as it was.
fn is_untouched(addr: u64, bytes: u64) -> bool {
    const PAGE: u64 = 4096;
    let first = addr.next_multiple_of(PAGE);
    let pages = (addr + bytes).saturating_sub(first) / PAGE;
    [0, pages / 2, pages.saturating_sub(1)].into_iter().all(|at| {
        let mut is_resident = 1_u8;
        // SAFETY: a page of a tensor, and room for the answer about one page.
        let done = unsafe {
            libc::mincore((first + at * PAGE) as *mut libc::c_void, PAGE as usize, &raw mut is_resident)
        };
        done == 0 && is_resident & 1 == 0
    })
}

fn is_skipped(bytes: u64, is_in_place: bool) -> bool {
    if config().initializers == Initializers::Skip || IS_SKIPPING.load(Ordering::Relaxed) {
        return true;
    }
    let at_start = *AT_START.get_or_init(free_bytes);
    // What a kernel changes in place was filled before.
    if is_in_place || free_bytes() >= bytes.saturating_add(at_start / 100 * RESERVED) {
        FILLED_BYTES.fetch_add(if is_in_place { 0 } else { bytes }, Ordering::Relaxed);
        return false;
    }
    if !IS_SKIPPING.swap(true, Ordering::Relaxed) {
        let gib = |bytes: u64| bytes as f64 / (1 << 30) as f64;
        simgpu_common::say(&format!(
            "gpumemtrace: of {:.1} GiB of free memory of the host {:.1} GiB are left: initializers of large tensors \
             on the CPU write nothing from here on",
            gib(at_start),
            gib(free_bytes()),
        ));
    }
    true
}

/// Memory that this process may still take, in bytes.
fn free_bytes() -> u64 {
    if let Some(bytes) = config().host_memory {
        return bytes.saturating_sub(FILLED_BYTES.load(Ordering::Relaxed));
    }
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let of_host = || {
        let text = read("/proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
    };
    // The limit of a container, in version 2 and 1 of control groups.
    let of_container = |limit: &str, used: &str| {
        let number = |path: &str| read(path)?.trim().parse::<u64>().ok();
        Some(number(limit)?.saturating_sub(number(used)?))
    };
    let limits = [
        of_host(),
        of_container("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        of_container(
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ];
    limits.into_iter().flatten().min().unwrap_or(u64::MAX)
}
