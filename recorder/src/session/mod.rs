//! One recording, from its start to its end.
//!
//! Constraint: the file and threads we make must not appear in processes that never touch a GPU, and threads may be inside a
//! hook at any moment, also when the recording ends. Consequence: everything is made at the first event ([`crate::session::current`]
//! decides who makes it); a session is never freed; at its end hooks are stopped first, then the rings are emptied.

pub(crate) mod current;
mod writer_oom;

pub(crate) use writer_oom::written;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crossbeam_utils::CachePadded;

use crate::config::{Config, FullRingPolicy, NativeStacks};
use crate::diagnostics::{error_text, print_diagnostic};
use crate::hot::thread_state::ThreadBlock;
use crate::platform::guarded_file::GuardedFile;
use crate::platform::signals::without_write_signals;
use crate::platform::{self, clock};
use crate::ring::geometry::{FIRST_SMALL_RING, RINGS};
use crate::ring::mapping::{self, MappedRing, RingMapping};
use crate::ring::protocol::ownership::RingOwnership;
use crate::ring::protocol::shutdown::{HookGuard, Shutdown};
use crate::stacks::python::Interpreter;
use crate::writer::block_file::{BlockFile, RotatingTrace};
use crate::writer::paths::{self, PatternValues, ReservedOutput};
use crate::writer::rotation::Rotation;
use crate::{metadata, writer};
use gpumemtrace_format::Meta;
use gpumemtrace_format::ring::{END_EXIT, END_QUICK_EXIT, END_STOPPED};

/// One recording.
#[derive(Debug)]
pub(crate) struct Session {
    /// Tells sessions of one process apart (a child that starts its own after a fork).
    pub(crate) generation: u32,
    /// The mapped ring file.
    pub(crate) shared: RingMapping,
    /// What to do when a ring is full.
    pub(crate) on_full: FullRingPolicy,
    /// Which native stacks are recorded.
    pub(crate) native: NativeStacks,
    /// Most frames of a stack.
    pub(crate) depth: usize,
    /// Whether times may come from the processor's counter.
    pub(crate) uses_counter: bool,
    /// The interpreter, if Python stacks are recorded.
    pub(crate) python: Option<Interpreter>,
    /// Next id of a code object.
    pub(crate) next_code: CachePadded<AtomicU32>,
    /// Next id of a Python node.
    pub(crate) next_py_node: CachePadded<AtomicU32>,
    /// Next id of a native node.
    pub(crate) next_native_node: CachePadded<AtomicU32>,
    /// Where the trace is.
    pub(crate) path: PathBuf,
    pid: u32,
    owners: RingOwnership<RINGS>,
    ending: Shutdown<RINGS>,
    is_crowded: AtomicBool,
    blocks: *mut ThreadBlock,
    wake: CachePadded<AtomicU32>,
    close_asked: AtomicBool,
    closed: AtomicU32,
    stopped: AtomicBool,
    writer: AtomicU32,
    said: AtomicBool,
    is_ended_by_program: AtomicBool,
}

// SAFETY: the one raw pointer is a never-freed table whose entries are handed to one thread each, by `owners`.
unsafe impl Send for Session {}
// SAFETY: as above; everything else is atomic or constant.
unsafe impl Sync for Session {}

pub(crate) fn start() -> Option<&'static Session> {
    let config = Config::from_env();
    let names = PatternValues {
        pid: std::process::id(),
        rank: std::env::var("RANK").unwrap_or_default(),
        host: metadata::host_name(),
    };
    let path = PathBuf::from(names.expand(&config.output));
    let path = std::env::current_dir().map(|folder| folder.join(&path)).unwrap_or(path);
    match without_write_signals(|| start_at(&config, &names, &path)) {
        Ok(session) => Some(session),
        Err(error) => {
            print_diagnostic(&[
                "cannot record to ",
                &path.to_string_lossy(),
                ": ",
                &error_text(&error),
                ". The program goes on without a trace; set GPUMEMTRACE_OUTPUT to a file in a writable folder.",
            ]);
            None
        }
    }
}

fn start_at(config: &Config, names: &PatternValues, path: &Path) -> std::io::Result<&'static Session> {
    // What is created below may not exceed the limit: the kernel would answer with a signal to the program.
    mapping::check_file_size_limit(config.memory_bytes)?;
    let output = paths::create(path, names.pid)?;
    let name = output.path.clone();
    if output.wanted_is_foreign {
        print_diagnostic(&[
            &path.to_string_lossy(),
            " is there and is not a trace; recording to ",
            &name.to_string_lossy(),
            ".",
        ]);
    }
    let mut trace_id = [0u8; 16];
    // A short answer leaves zeros, which only weakens the id.
    platform::random(&mut trace_id);
    let session = start_in(output, config, names, trace_id);
    if session.is_err() {
        // Nothing was recorded: leave nothing behind.
        for path in [paths::ring_path(&name), paths::stacks_path(&name, trace_id), name] {
            let _ = std::fs::remove_file(path);
        }
    }
    session
}

fn start_in(
    output: ReservedOutput,
    config: &Config,
    names: &PatternValues,
    trace_id: [u8; 16],
) -> std::io::Result<&'static Session> {
    let (python, note) = match config.stacks.python.then(Interpreter::find) {
        None => (None, None),
        Some(Ok(interpreter)) => (interpreter, None),
        Some(Err(why)) => {
            print_diagnostic(&["Python call sites are not recorded: ", &why, ". Allocations are."]);
            (None, Some(format!("Python call sites were not recorded: {why}")))
        }
    };
    let meta = metadata::header(config, names, trace_id, note);
    let ring = GuardedFile::adopt(output.ring, &paths::ring_path(&output.path))?;
    let blocks = map_blocks()?;
    let shared = RingMapping::create(ring, trace_id, names.pid, config.memory_bytes)
        .inspect_err(|_| unmap_blocks(blocks))?;
    // A trace that has a beginning has a ring: who is killed in between leaves an empty one.
    let notes = meta.list("notes").to_vec();
    let trace = begin_trace(output.trace, &output.path, config, trace_id, meta).inspect_err(|_| {
        shared.unmap();
        unmap_blocks(blocks);
    })?;
    let session: &'static Session = Box::leak(Box::new(Session {
        generation: current::next_generation(),
        shared,
        on_full: config.on_full,
        native: config.stacks.native,
        depth: config.depth,
        uses_counter: config.uses_counter,
        python,
        next_code: CachePadded::new(AtomicU32::new(1)),
        next_py_node: CachePadded::new(AtomicU32::new(1)),
        next_native_node: CachePadded::new(AtomicU32::new(1)),
        path: output.path,
        pid: names.pid,
        owners: RingOwnership::new(),
        ending: Shutdown::new(),
        is_crowded: AtomicBool::new(false),
        blocks,
        wake: CachePadded::new(AtomicU32::new(0)),
        close_asked: AtomicBool::new(false),
        closed: AtomicU32::new(0),
        stopped: AtomicBool::new(false),
        writer: AtomicU32::new(0),
        said: AtomicBool::new(false),
        is_ended_by_program: AtomicBool::new(false),
    }));
    if session.shared.is_memory() {
        let _ = std::fs::remove_file(paths::ring_path(&session.path));
    }
    crate::stacks::native::prepare();
    if let Err(error) = writer::spawn(session, trace, notes) {
        // A program near its limit needs what we do not use.
        session.shared.unmap();
        unmap_blocks(blocks);
        return Err(error);
    }
    Ok(session)
}

/// Metadata is written before anything is recorded, so that the shortest trace still says what it is.
fn begin_trace(
    file: File,
    path: &Path,
    config: &Config,
    trace_id: [u8; 16],
    meta: Meta,
) -> std::io::Result<RotatingTrace> {
    let (parts, meta) = match config.parts {
        Some(wanted) => {
            let (parts, first) = Rotation::begin(wanted, path, trace_id, &meta)?;
            (Some(parts), first)
        }
        None => (None, meta),
    };
    Ok(RotatingTrace::new(BlockFile::begin(file, path, &meta)?, parts))
}

fn map_blocks() -> std::io::Result<*mut ThreadBlock> {
    // SAFETY: a new private mapping; pages appear when first touched, all zero.
    let blocks = unsafe {
        libc::mmap(
            ptr::null_mut(),
            RINGS * size_of::<ThreadBlock>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if blocks == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(blocks.cast()) }
}

fn unmap_blocks(blocks: *mut ThreadBlock) {
    // SAFETY: exactly the mapping of `map_blocks`, which no thread has been given a part of.
    unsafe { libc::munmap(blocks.cast(), RINGS * size_of::<ThreadBlock>()) };
}

impl Session {
    /// A ring, its number and a block for the calling thread. If all are taken, some may be of threads that have ended, and
    /// the writer finds out; who `may_wait` waits for it, unless somebody has waited in vain since a ring was given back.
    pub(crate) fn claim_ring(&self, may_wait: bool) -> Option<(usize, MappedRing, *mut ThreadBlock)> {
        let begin = clock::now_ns();
        loop {
            if let Some(claimed) = self.take_ring() {
                return Some(claimed);
            }
            self.wake_writer(WakeReason::ThreadWaits);
            if !may_wait || self.is_crowded.load(Ordering::Relaxed) {
                return None;
            }
            if clock::now_ns() - begin > RING_PATIENCE_NS {
                self.is_crowded.store(true, Ordering::Relaxed);
                return None;
            }
            // SAFETY: a plain sleep.
            unsafe { libc::usleep(1_000) };
        }
    }

    fn take_ring(&self) -> Option<(usize, MappedRing, *mut ThreadBlock)> {
        let thread = platform::this_thread();
        let claim = |first| {
            self.owners.claim(thread, first, |index| {
                // Before the ring is looked at by anybody: its pages may not be there yet, and cannot be had on a full disk.
                let is_there = self.shared.allocate_ring(index).is_ok();
                if is_there {
                    self.shared.ring(index).thread().store(thread, Ordering::Release);
                }
                is_there
            })
        };
        // Where there is no room for a large ring, there may be some for a small one.
        let index = claim(0).or_else(|| claim(FIRST_SMALL_RING))?;
        // SAFETY: `index` is below RINGS, the length of the table.
        Some((index, self.shared.ring(index), unsafe { self.blocks.add(index) }))
    }

    /// Rings in use, with their owners.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (usize, u32)> {
        self.owners.in_use()
    }

    /// Gives the ring of a thread that ended, and that was emptied, to whoever comes next.
    pub(crate) fn release_ring(&self, index: usize) {
        self.owners.release(index);
        self.is_crowded.store(false, Ordering::Relaxed);
    }

    /// Marks the owner of a ring as busy with it; `None` once recording is over. Waits while the rings are moved.
    #[inline]
    pub(crate) fn go_inside(&'static self, index: usize) -> Option<HookGuard<'static>> {
        self.ending.go_inside(index, || {
            // SAFETY: a plain sleep.
            unsafe { libc::usleep(50) };
        })
    }

    /// From now on no hook begins to record; true if none is in the middle of it either.
    pub(crate) fn detach(&self) -> bool {
        current::forget();
        self.ending.detach()
    }

    /// From now until [`Self::resume`] hooks wait before they record; true if none is in the middle of it.
    pub(crate) fn pause(&self) -> bool {
        self.ending.pause()
    }

    /// Ends a pause.
    pub(crate) fn resume(&self) {
        self.ending.resume();
    }

    /// The process this session belongs to.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks the writer for something. One system call a round at most.
    #[inline]
    pub(crate) fn wake_writer(&self, why: WakeReason) {
        if self.wake.fetch_max(why as u32, Ordering::AcqRel) == NOT_WOKEN {
            platform::wake(&self.wake);
        }
    }

    /// The rings were just emptied: what was asked for meanwhile is done. Who still waits asks again.
    pub(crate) fn forget_wakes(&self) {
        self.wake.swap(NOT_WOKEN, Ordering::AcqRel);
    }

    /// The writer's sleep; says why it was woken, if it was.
    pub(crate) fn wait_for_work(&self, timeout_ns: u64) -> Option<WakeReason> {
        if self.wake.load(Ordering::Acquire) == NOT_WOKEN && !self.is_close_asked() {
            platform::wait(&self.wake, NOT_WOKEN, timeout_ns);
        }
        match self.wake.swap(NOT_WOKEN, Ordering::AcqRel) {
            NOT_WOKEN => None,
            RING_IS_LOW => Some(WakeReason::RingIsLow),
            _ => Some(WakeReason::ThreadWaits),
        }
    }

    /// True when the program is about to end.
    pub(crate) fn is_close_asked(&self) -> bool {
        self.close_asked.load(Ordering::Acquire)
    }

    /// Nothing is recorded any more; the trace is finished.
    pub(crate) fn mark_closed(&self) {
        self.ending.announce();
        current::forget();
        self.closed.store(1, Ordering::Release);
        platform::wake(&self.closed);
    }

    /// True when recording has stopped early.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Stops recording for good, says why once, and lets the program go on.
    pub(crate) fn stop_with(&self, why: &[&str]) {
        if self.stop() {
            let mut line = vec!["recording stopped: "];
            line.extend_from_slice(why);
            line.push(". The program goes on; what was recorded until now is in ");
            let path = self.path.to_string_lossy();
            line.push(&path);
            print_diagnostic(&line);
        }
    }

    /// Stops recording for good; true for the first who does.
    pub(crate) fn stop(&self) -> bool {
        let is_first = !self.stopped.swap(true, Ordering::AcqRel);
        if is_first {
            self.shared.set_end(END_STOPPED, 0, clock::now_ns());
            self.ending.announce();
            current::forget();
        }
        is_first
    }

    /// True if the program goes on after the end of its recording.
    pub(crate) fn is_ended_by_program(&self) -> bool {
        self.is_ended_by_program.load(Ordering::Acquire)
    }

    /// True once.
    pub(crate) fn say_once(&self) -> bool {
        !self.said.swap(true, Ordering::AcqRel)
    }
}

/// Why the writer is woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum WakeReason {
    /// A ring has got fuller than it should, when that was looked at.
    RingIsLow = RING_IS_LOW,
    /// A thread, or the end of the program, waits for the rings to be emptied.
    ThreadWaits = 2,
}

const NOT_WOKEN: u32 = 0;
const RING_IS_LOW: u32 = 1;

/// How long a new thread waits for the ring of one that has ended. A busy machine may keep the writer from it for a while.
const RING_PATIENCE_NS: u64 = 500_000_000;
/// How long an ending process waits for its trace to be finished. What is not written by then is in the ring file.
const EXIT_PATIENCE_NS: u64 = 10_000_000_000;
const QUICK_EXIT_PATIENCE_NS: u64 = 500_000_000;

/// `exit` has run everything else: finish the trace.
pub fn end_at_exit() {
    end(END_EXIT, 0, EXIT_PATIENCE_NS);
}

/// `_exit` was called: note it, and finish the trace if that goes quickly. Everything is in the ring file anyway.
pub fn end_at_quick_exit(status: i32) {
    end(END_QUICK_EXIT, status, QUICK_EXIT_PATIENCE_NS);
}

/// The program has had enough: the trace is finished, and says so. True if there was one.
pub fn end_by_program() -> bool {
    let Some(session) = current::running() else {
        current::forget_for_good();
        return false;
    };
    session.is_ended_by_program.store(true, Ordering::Release);
    end(END_EXIT, 0, EXIT_PATIENCE_NS);
    true
}

fn end(kind: u32, status: i32, patience_ns: u64) {
    let Some(session) = current::running() else { return };
    // A child of vfork shares our memory but is not us.
    // SAFETY: no arguments, no effect.
    if unsafe { libc::getpid() } as u32 != session.pid {
        return;
    }
    session.shared.set_end(kind, status, clock::now_ns());
    session.close_asked.store(true, Ordering::Release);
    session.wake_writer(WakeReason::ThreadWaits);
    let begin = clock::now_ns();
    while session.closed.load(Ordering::Acquire) == 0 {
        let waited = clock::now_ns() - begin;
        if waited > patience_ns {
            return;
        }
        platform::wait(&session.closed, 0, patience_ns - waited);
    }
}
