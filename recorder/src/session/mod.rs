//! The state of one recording, shared by the hooks and the writer thread.
//!
//! [`Session`] is data: the mapped rings, which thread owns which ring, ids still to be given out,
//! and the flags through which hooks and writer talk. [`crate::lifecycle`] creates it at the first
//! event and ends it; [`current`] decides which session, if any, is running. A session is never
//! freed, because a thread may be inside a hook at any moment, also while the recording ends.

pub(crate) mod current;
mod end;
pub(crate) mod late_events;
mod ring_file;
pub(crate) mod thread_block;
pub(crate) mod unloaded;
mod writer_oom;

pub(crate) use ring_file::HOOK_PATIENCE_NS;
pub(crate) use writer_oom::writer_session;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crossbeam_utils::CachePadded;

use crate::config::{FullRingPolicy, NativeStacks, RecorderConfig};
use crate::platform;
use crate::platform::cancellation::without_cancellation;
use crate::platform::patience::{Patience, Progress};
use crate::ring::geometry::{FIRST_SMALL_RING, RINGS};
use crate::ring::mapping::{MappedRing, RingMapping};
use crate::ring::protocol::ownership::RingOwnership;
use crate::ring::protocol::shutdown::{HookGuard, Shutdown};
use crate::stacks::python::Interpreter;
use late_events::LateEvents;
use thread_block::{ThreadBlock, ThreadBlocks};
use unloaded::UnloadedModules;

/// One recording. Never freed.
#[derive(Debug)]
pub(crate) struct Session {
    /// Differs between the sessions of one process: a child may start its own after a fork.
    pub(crate) generation: u32,
    pub(crate) rings: RingMapping,
    pub(crate) on_full: FullRingPolicy,
    pub(crate) native: NativeStacks,
    /// Largest number of frames in a stack.
    pub(crate) depth: usize,
    /// Whether event times may come from the processor's counter.
    pub(crate) uses_counter: bool,
    /// The interpreter; `None` if Python stacks are not recorded.
    pub(crate) python: Option<Interpreter>,
    pub(crate) next_code: CachePadded<AtomicU32>,
    pub(crate) next_py_node: CachePadded<AtomicU32>,
    pub(crate) next_native_node: CachePadded<AtomicU32>,
    /// Path of the trace file.
    pub(crate) path: PathBuf,
    /// The path as diagnostics show it.
    path_text: String,
    /// The process that records. A child made by `vfork` shares this memory but has another pid.
    pub(crate) pid: u32,
    ownership: RingOwnership<RINGS>,
    shutdown: Shutdown<RINGS>,
    /// A thread waited in vain for a ring since the last one was released.
    is_crowded: AtomicBool,
    blocks: ThreadBlocks,
    /// Futex word of the writer: [`NOT_WOKEN`] or a [`WakeReason`].
    wake: CachePadded<AtomicU32>,
    /// Changes whenever the writer has taken some records from a ring, or has saved some.
    steps: CachePadded<AtomicU32>,
    /// How often the writer has drained all rings.
    rounds: AtomicU32,
    is_close_requested: AtomicBool,
    /// Futex word: 1 once the trace is finished.
    closed: AtomicU32,
    is_stopped: AtomicBool,
    /// Id of the writer thread; 0 before it has started.
    writer: AtomicU32,
    /// Id of the thread that asks the driver and NVML; [`NO_THREAD`] if there is none.
    library_thread: AtomicU32,
    has_warned_of_missing_ring: AtomicBool,
    is_ended_by_program: AtomicBool,
    has_interrupted_hook: AtomicBool,
    late: LateEvents,
    pub(crate) unloaded: UnloadedModules,
}

// SAFETY: the one raw pointer is a never-freed table. `ownership` gives each of its entries to one
// thread.
unsafe impl Send for Session {}
// SAFETY: as above; everything else is atomic or constant.
unsafe impl Sync for Session {}

impl Session {
    pub(crate) fn new(
        config: &RecorderConfig,
        (path, pid): (PathBuf, u32),
        python: Option<Interpreter>,
        rings: RingMapping,
        blocks: ThreadBlocks,
    ) -> Self {
        Self {
            generation: current::next_generation(),
            rings,
            on_full: config.on_full,
            native: config.stacks.native,
            depth: config.depth,
            uses_counter: config.uses_counter,
            python,
            next_code: CachePadded::new(AtomicU32::new(1)),
            next_py_node: CachePadded::new(AtomicU32::new(1)),
            next_native_node: CachePadded::new(AtomicU32::new(1)),
            path_text: path.to_string_lossy().into_owned(),
            path,
            pid,
            ownership: RingOwnership::new(),
            shutdown: Shutdown::new(),
            is_crowded: AtomicBool::new(false),
            blocks,
            wake: CachePadded::new(AtomicU32::new(NOT_WOKEN)),
            steps: CachePadded::new(AtomicU32::new(0)),
            rounds: AtomicU32::new(0),
            is_close_requested: AtomicBool::new(false),
            closed: AtomicU32::new(0),
            is_stopped: AtomicBool::new(false),
            writer: AtomicU32::new(0),
            library_thread: AtomicU32::new(NO_THREAD),
            has_warned_of_missing_ring: AtomicBool::new(false),
            is_ended_by_program: AtomicBool::new(false),
            has_interrupted_hook: AtomicBool::new(false),
            late: LateEvents::default(),
            unloaded: UnloadedModules::default(),
        }
    }

    /// Claims a ring for the calling thread: its number, the ring and the thread's block.
    ///
    /// If all rings are taken, some may belong to threads that have ended; only the writer can find
    /// out. With `may_wait` the caller then waits for it, unless another thread has already waited
    /// in vain since a ring was last released.
    pub(crate) fn claim_ring(&self, may_wait: bool) -> Option<(usize, MappedRing, *mut ThreadBlock)> {
        let mut patience = Patience::new(RING_PATIENCE_NS);
        loop {
            if let Some(claimed) = self.try_claim_ring() {
                return Some(claimed);
            }
            self.wake_writer(WakeReason::ThreadWaits);
            if !may_wait || self.is_crowded.load(Ordering::Relaxed) {
                return None;
            }
            if patience.is_exhausted() {
                self.is_crowded.store(true, Ordering::Relaxed);
                return None;
            }
            // SAFETY: a plain sleep.
            unsafe { libc::usleep(1_000) };
        }
    }

    fn try_claim_ring(&self) -> Option<(usize, MappedRing, *mut ThreadBlock)> {
        let thread = platform::this_thread();
        let claim = |first| {
            self.ownership.claim(thread, first, |index| {
                // Allocate before any thread touches the ring: on a full disk its pages do not
                // exist.
                let is_allocated = self.rings.allocate_ring(index).is_ok();
                if is_allocated {
                    self.rings.ring(index).thread().store(thread, Ordering::Release);
                }
                is_allocated
            })
        };
        // A disk without space for a large ring may still have space for a small one.
        let index = claim(0).or_else(|| claim(FIRST_SMALL_RING))?;
        Some((index, self.rings.ring(index), self.blocks.block(index)))
    }

    /// The rings in use, each with the id of the thread that owns it.
    pub(crate) fn rings_in_use(&self) -> impl Iterator<Item = (usize, u32)> {
        self.ownership.in_use()
    }

    /// Frees the ring of a thread that has ended. The ring must be empty.
    pub(crate) fn release_ring(&self, index: usize) {
        self.ownership.release(index);
        self.is_crowded.store(false, Ordering::Relaxed);
    }

    /// Marks the owner of ring `index` as inside a hook. Waits while the recording is paused;
    /// returns `None` once it has ended.
    #[inline]
    pub(crate) fn enter_hook(&'static self, index: usize) -> Option<HookGuard<'static>> {
        self.shutdown.enter_hook(index, || self.wait_in_pause())
    }

    #[cold]
    #[inline(never)]
    fn wait_in_pause(&self) {
        // SAFETY: a plain sleep.
        without_cancellation(|| unsafe { libc::usleep(50) });
        // Otherwise the pause would never end.
        if self.has_lost_writer() {
            self.stop_without_writer();
        }
    }

    /// As [`Self::enter_hook`], for a new event. If the recording has ended, the event is late.
    #[inline]
    pub(crate) fn enter_to_record(&'static self, index: usize) -> Option<HookGuard<'static>> {
        let guard = self.enter_hook(index);
        if guard.is_none() {
            late_events::note_late_event();
        }
        guard
    }

    /// False in a child made by `vfork`, which shares our memory but is another process.
    pub(crate) fn is_own_process(&self) -> bool {
        // SAFETY: no arguments, no effect.
        unsafe { libc::getpid() as u32 == self.pid }
    }

    /// Gives up the mark of a hook in ring `index` that will not go on. Its sequence number may be
    /// missing, so the ring file stays: it shows that the process ended there.
    pub(crate) fn release_hook(&'static self, index: usize) {
        self.has_interrupted_hook.store(true, Ordering::Relaxed);
        drop(self.enter_hook(index));
    }

    /// True if the process ends inside a hook.
    pub(crate) fn has_interrupted_hook(&self) -> bool {
        self.has_interrupted_hook.load(Ordering::Relaxed)
    }

    /// Wakes the writer thread. Makes at most one system call between two drains of the rings.
    #[inline]
    pub(crate) fn wake_writer(&self, reason: WakeReason) {
        if self.wake.fetch_max(reason as u32, Ordering::AcqRel) == NOT_WOKEN {
            platform::wake(&self.wake);
        }
    }

    /// Discards wake-ups that arrived while the rings were being drained. A thread that still waits
    /// wakes the writer again.
    pub(crate) fn discard_wakes(&self) {
        self.wake.swap(NOT_WOKEN, Ordering::AcqRel);
    }

    /// What the writer does, for the thread that waits in a ring with this tail.
    pub(crate) fn progress(&self, tail: u64) -> Progress {
        let [steps, rounds] = [&*self.steps, &self.rounds].map(|count| count.load(Ordering::Relaxed));
        Progress { steps, rounds, own: tail }
    }

    /// Notes that records were taken or saved. Called by the writer only.
    pub(crate) fn note_step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that all rings were drained. Called by the writer only.
    pub(crate) fn note_round(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    /// Puts the writer thread to sleep; returns why it was woken, or `None` after the timeout.
    pub(crate) fn wait_for_wake(&self, timeout_ns: u64) -> Option<WakeReason> {
        if self.wake.load(Ordering::Acquire) == NOT_WOKEN && !self.is_close_requested() {
            platform::wait(&self.wake, NOT_WOKEN, timeout_ns);
        }
        match self.wake.swap(NOT_WOKEN, Ordering::AcqRel) {
            NOT_WOKEN => None,
            RING_IS_LOW => Some(WakeReason::RingIsLow),
            _ => Some(WakeReason::ThreadWaits),
        }
    }

    /// Notes whether there is a thread that asks the driver and NVML.
    pub(crate) fn note_library_thread(&self, exists: bool) {
        self.library_thread.store(if exists { 0 } else { NO_THREAD }, Ordering::Release);
    }

    /// Makes the calling thread the one that asks the driver and NVML.
    pub(crate) fn set_library_thread(&self) {
        self.library_thread.store(platform::this_thread(), Ordering::Release);
    }

    /// Id of the thread that asks the driver and NVML, if there is one.
    pub(crate) fn library_thread(&self) -> Option<u32> {
        Some(self.library_thread.load(Ordering::Acquire)).filter(|thread| *thread != NO_THREAD)
    }

    /// Returns true once: for the first thread that finds no ring.
    pub(crate) fn is_first_without_ring(&self) -> bool {
        !self.has_warned_of_missing_ring.swap(true, Ordering::AcqRel)
    }
}

/// Why the writer thread is woken. A larger value replaces a smaller one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum WakeReason {
    /// A ring is fuller than it should get.
    RingIsLow = RING_IS_LOW,
    /// A thread, or the end of the program, waits until the rings are empty.
    ThreadWaits = 2,
}

/// The value of [`Session::library_thread`] without such a thread. 0 is a thread whose id is not
/// known yet.
const NO_THREAD: u32 = u32::MAX;

const NOT_WOKEN: u32 = 0;
const RING_IS_LOW: u32 = 1;

/// How long a new thread waits for the ring of an ended thread. A busy machine may delay the
/// writer.
const RING_PATIENCE_NS: u64 = 500_000_000;
