//! Start and end of a recording.
//!
//! Nothing is created until the first event: a process that never uses a GPU gets no file and no
//! thread. The thread that makes the first event creates trace, ring file, [`Session`] and writer
//! thread, and writes the pending markers in front of its event. At the end, hooks are stopped
//! first; then the writer drains the rings and finishes the trace.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use gpumemtrace_format::Meta;
use gpumemtrace_format::ring::{END_EXIT, END_QUICK_EXIT};

use crate::allocator::with_reserve;
use crate::config::RecorderConfig;
use crate::diagnostics::{error_text, print_diagnostic};
use crate::hot::nesting::release_interrupted_hook;
use crate::hot::pending_markers::PENDING;
use crate::hot::record::PendingMarkerWriter;
use crate::hot::thread_state::{ThreadState, with_thread_state};
use crate::platform::cancellation::without_cancellation;
use crate::platform::free_memory::has_memory_left;
use crate::platform::guarded_file::GuardedFile;
use crate::platform::side_stack::SideStack;
use crate::platform::signals::without_write_signals;
use crate::ring::mapping::{self, RingMapping};
use crate::session::thread_block::ThreadBlocks;
use crate::session::{Session, current};
use crate::stacks::{native, python::Interpreter};
use crate::writer::block_file::BlockFile;
use crate::writer::paths::{self, Obstacle, PatternValues, ReservedOutput};
use crate::writer::rotation::Rotation;
use crate::writer::trace_file::RotatingTrace;
use crate::{metadata, platform, writer};

/// How long an exiting process waits for its trace. Records not written by then are in the ring
/// file.
const EXIT_PATIENCE_NS: u64 = 10_000_000_000;
const QUICK_EXIT_PATIENCE_NS: u64 = 500_000_000;

/// Starting a recording takes 40 KiB of stack here, and more with other versions of the C library.
static START_STACK: SideStack<{ 256 << 10 }> = SideStack::new();

/// Returns the session, and starts it if this is the first event. Pending markers are then recorded
/// before that event. The calling thread must be marked as inside a hook.
#[cold]
pub(crate) fn start_and_flush_pending(state: &ThreadState) -> Option<&'static Session> {
    // SAFETY: one thread starts the recording, with all signals blocked.
    let session = current::start_once(|| unsafe { START_STACK.run(|| with_reserve(start)) })?;
    PENDING.flush(std::process::id(), &mut PendingMarkerWriter::new(state, session));
    Some(session)
}

fn start() -> Option<&'static Session> {
    if !has_memory_left() {
        print_diagnostic(&[
            "cannot record: the program has no memory left (its limit on address space, or the container's). ",
            "The program goes on without a trace.",
        ]);
        return None;
    }
    let config = RecorderConfig::from_env();
    let values = PatternValues {
        pid: std::process::id(),
        rank: config.place.rank.map_or_else(String::new, |rank| rank.to_string()),
        host: metadata::host_name(),
        job: config.place.job.clone().unwrap_or_default(),
    };
    let path = output_path(&config, &values);
    match without_write_signals(|| start_at(&config, &values, &path)) {
        Ok(session) => Some(session),
        Err(error) => {
            print_diagnostic(&[
                "cannot record to ",
                &path.to_string_lossy(),
                ": ",
                &error_text(&error),
                ". The program goes on without a trace; ",
                advice(&error),
                ".",
            ]);
            None
        }
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EFBIG) => "raise the limit on file sizes (ulimit -f), or lower GPUMEMTRACE_MEMORY",
        Some(libc::ENOMEM) => "raise the limit on address space (ulimit -v), or lower GPUMEMTRACE_MEMORY",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit on open files (ulimit -n)",
        Some(libc::ENOSPC | libc::EDQUOT) => "set GPUMEMTRACE_OUTPUT to a file on a disk with more space",
        Some(libc::ENAMETOOLONG) => "set GPUMEMTRACE_OUTPUT to a shorter name",
        Some(libc::EAGAIN) => "raise the limit on processes (ulimit -u)",
        _ => "set GPUMEMTRACE_OUTPUT to a file in a writable folder",
    }
}

/// The wanted path of the trace: `GPUMEMTRACE_OUTPUT`, or the default name in that folder.
fn output_path(config: &RecorderConfig, values: &PatternValues) -> PathBuf {
    let default_name = values.expand(config.place.default_name().as_ref());
    let output = config.output.as_ref().map(|output| values.expand(output));
    let path = PathBuf::from(output.as_ref().unwrap_or(&default_name));
    let path = std::env::current_dir().map(|folder| folder.join(&path)).unwrap_or(path);
    let is_folder = output.is_some_and(|output| output.as_bytes().ends_with(b"/") || path.is_dir());
    if is_folder { path.join(default_name) } else { path }
}

fn start_at(config: &RecorderConfig, values: &PatternValues, path: &Path) -> io::Result<&'static Session> {
    // A file that outgrows the limit makes the kernel send the program SIGXFSZ, so check first.
    mapping::check_file_size_limit(config.memory_bytes)?;
    if paths::is_in_system_folder(path) {
        return Err(io::Error::other("it names a device or a stream, not a file"));
    }
    let output = paths::reserve(path, values.pid)?;
    let (name, obstacle) = (output.path.clone(), output.obstacle.clone());
    let mut trace_id = [0u8; 16];
    // A short read leaves zeros, which only makes the id less random.
    platform::fill_random(&mut trace_id);
    let mut created = vec![name.clone(), paths::ring_path(&name)];
    let session = create_definitions(config, &name, trace_id)
        .inspect(|file| created.extend(file.iter().map(|(path, _)| path.clone())))
        .and_then(|definitions| start_in(output, definitions, config, values, trace_id));
    if session.is_err() {
        // Nothing was recorded, so leave no files behind.
        for path in created {
            let _ = std::fs::remove_file(path);
        }
    } else if let Some(Obstacle { path, what }) = obstacle {
        let (path, name) = (path.to_string_lossy(), name.to_string_lossy());
        print_diagnostic(&[&path, " ", &what, "; recording to ", &name, "."]);
    }
    session
}

/// Creates the file of definitions of a trace in parts.
fn create_definitions(
    config: &RecorderConfig,
    trace: &Path,
    trace_id: [u8; 16],
) -> io::Result<Option<(PathBuf, File)>> {
    if config.rotation.is_none() {
        return Ok(None);
    }
    let path = paths::stacks_path(trace, trace_id);
    let file = paths::create_locked(&path).map_err(|error| {
        io::Error::other(format!("{} cannot be created: {}", path.display(), error_text(&error)))
    })?;
    Ok(Some((path, file)))
}

fn start_in(
    output: ReservedOutput,
    definitions: Option<(PathBuf, File)>,
    config: &RecorderConfig,
    values: &PatternValues,
    trace_id: [u8; 16],
) -> io::Result<&'static Session> {
    let (python, note) = match config.stacks.python.then(Interpreter::find) {
        None => (None, None),
        Some(Ok(interpreter)) => (interpreter, None),
        Some(Err(why)) => {
            print_diagnostic(&["Python call sites are not recorded: ", &why, ". Allocations are."]);
            (None, Some(format!("Python call sites were not recorded: {why}")))
        }
    };
    let meta = metadata::header(config, values.pid, &values.host, trace_id, note);
    let ring = GuardedFile::adopt(output.ring, &paths::ring_path(&output.path))?;
    let blocks = ThreadBlocks::map()?;
    let rings = RingMapping::create(ring, trace_id, values.pid, config.memory_bytes)
        .inspect_err(|_| blocks.unmap())?;
    // The ring file comes first: a process killed in between leaves an empty trace, never one
    // without a ring.
    let notes = meta.list("notes").to_vec();
    let trace =
        begin_trace(output.trace, definitions, &output.path, config, trace_id, meta).inspect_err(|_| {
            rings.unmap();
            blocks.unmap();
        })?;
    let session: &'static Session =
        Box::leak(Box::new(Session::new(config, (output.path, values.pid), python, rings, blocks)));
    if session.rings.is_memory() {
        let _ = std::fs::remove_file(paths::ring_path(&session.path));
    }
    native::prepare();
    platform::hook_frames::prepare();
    if let Err(error) = writer::spawn(session, trace, notes) {
        // The program may be near its memory limit, so release the memory.
        session.rings.unmap();
        blocks.unmap();
        return Err(error);
    }
    Ok(session)
}

/// Writes the metadata before anything is recorded, so that even the shortest trace describes
/// itself.
fn begin_trace(
    file: File,
    definitions: Option<(PathBuf, File)>,
    path: &Path,
    config: &RecorderConfig,
    trace_id: [u8; 16],
    meta: Meta,
) -> io::Result<RotatingTrace> {
    let (rotation, meta) = match config.rotation.zip(definitions) {
        Some((policy, (name, definitions))) => {
            let definitions = BlockFile::begin(definitions, &name, &meta)?;
            let (rotation, first) = Rotation::begin(policy, definitions, path, trace_id, meta);
            (Some(rotation), first)
        }
        None => (None, meta),
    };
    Ok(RotatingTrace::new(BlockFile::begin(file, path, &meta)?, rotation))
}

/// Finishes the trace when the process exits. Exit handlers of other libraries may follow; their
/// events are counted as late.
pub fn end_at_exit() {
    end_with_process(END_EXIT, 0, EXIT_PATIENCE_NS, false);
}

/// As [`end_at_exit`], after all other exit handlers. Until the process has ended, threads that
/// still run wait at their next event.
pub fn end_after_exit_handlers() {
    end_with_process(END_EXIT, 0, EXIT_PATIENCE_NS, true);
}

/// Notes that the process calls `_exit` with `status`, and finishes the trace if that takes less
/// than half a second. Whatever is not written by then is in the ring file.
pub fn end_at_quick_exit(status: i32) {
    end_with_process(END_QUICK_EXIT, status, QUICK_EXIT_PATIENCE_NS, true);
}

/// Finishes the trace on the program's request; the process records nothing afterwards. Returns
/// false if no recording was running.
pub fn end_by_program() -> bool {
    let Some(session) = current::running() else {
        current::disable();
        return false;
    };
    session.set_ended_by_program();
    end(END_EXIT, 0, EXIT_PATIENCE_NS);
    true
}

/// Ends the recording on a thread that does not return to any hook, even if a signal handler of
/// the program that interrupted one ends the process.
fn end_with_process(kind: u32, status: i32, patience_ns: u64, is_last: bool) {
    if let Some(session) = current::running().filter(|session| session.is_own_process()) {
        session.set_ending_with_process(is_last);
        with_thread_state(|state| release_interrupted_hook(state, session));
    }
    end(kind, status, patience_ns);
}

fn end(kind: u32, status: i32, patience_ns: u64) {
    let Some(session) = current::running().filter(|session| session.is_own_process()) else { return };
    without_cancellation(|| {
        session.request_close(kind, status);
        session.wait_until_closed(patience_ns);
    });
}
