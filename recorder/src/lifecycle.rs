//! Start and end of a recording.
//!
//! Nothing is created until the first event: a process that never uses a GPU gets no file and no
//! thread. The thread that makes the first event creates trace, ring file, [`Session`] and writer
//! thread, and writes the pending markers in front of its event. At the end, hooks are stopped
//! first; then the writer drains the rings and finishes the trace.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use gpumemtrace_format::Meta;
use gpumemtrace_format::ring::{END_EXIT, END_QUICK_EXIT};

use crate::config::RecorderConfig;
use crate::diagnostics::{error_text, print_diagnostic};
use crate::hot::pending_markers::PENDING;
use crate::hot::record::PendingMarkerWriter;
use crate::hot::thread_state::ThreadState;
use crate::platform::guarded_file::GuardedFile;
use crate::platform::signals::without_write_signals;
use crate::ring::mapping::{self, RingMapping};
use crate::session::thread_block::ThreadBlocks;
use crate::session::{Session, current};
use crate::stacks::{native, python::Interpreter};
use crate::writer::block_file::BlockFile;
use crate::writer::paths::{self, PatternValues, ReservedOutput};
use crate::writer::rotation::Rotation;
use crate::writer::trace_file::RotatingTrace;
use crate::{metadata, platform, writer};

/// How long an exiting process waits for its trace. Records not written by then are in the ring
/// file.
const EXIT_PATIENCE_NS: u64 = 10_000_000_000;
const QUICK_EXIT_PATIENCE_NS: u64 = 500_000_000;

/// Returns the session, and starts it if this is the first event. Pending markers are then recorded
/// before that event. The calling thread must be marked as inside a hook.
#[cold]
pub(crate) fn start_and_flush_pending(state: &ThreadState) -> Option<&'static Session> {
    let session = current::start_once(start)?;
    PENDING.flush(std::process::id(), &mut PendingMarkerWriter::new(state, session));
    Some(session)
}

fn start() -> Option<&'static Session> {
    let config = RecorderConfig::from_env();
    let values = PatternValues {
        pid: std::process::id(),
        rank: std::env::var("RANK").unwrap_or_default(),
        host: metadata::host_name(),
    };
    let path = PathBuf::from(values.expand(&config.output));
    let path = std::env::current_dir().map(|folder| folder.join(&path)).unwrap_or(path);
    match without_write_signals(|| start_at(&config, &values, &path)) {
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

fn start_at(config: &RecorderConfig, values: &PatternValues, path: &Path) -> io::Result<&'static Session> {
    // A file that outgrows the limit makes the kernel send the program SIGXFSZ, so check first.
    mapping::check_file_size_limit(config.memory_bytes)?;
    let output = paths::reserve(path, values.pid)?;
    let name = output.path.clone();
    if output.is_wanted_name_foreign {
        print_diagnostic(&[
            &path.to_string_lossy(),
            " exists and is not a trace; recording to ",
            &name.to_string_lossy(),
            ".",
        ]);
    }
    let mut trace_id = [0u8; 16];
    // A short read leaves zeros, which only makes the id less random.
    platform::fill_random(&mut trace_id);
    let session = start_in(output, config, values, trace_id);
    if session.is_err() {
        // Nothing was recorded, so leave no files behind.
        for path in [paths::ring_path(&name), paths::stacks_path(&name, trace_id), name] {
            let _ = std::fs::remove_file(path);
        }
    }
    session
}

fn start_in(
    output: ReservedOutput,
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
    let trace = begin_trace(output.trace, &output.path, config, trace_id, meta).inspect_err(|_| {
        rings.unmap();
        blocks.unmap();
    })?;
    let session: &'static Session =
        Box::leak(Box::new(Session::new(config, (output.path, values.pid), python, rings, blocks)));
    if session.rings.is_memory() {
        let _ = std::fs::remove_file(paths::ring_path(&session.path));
    }
    native::prepare();
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
    path: &Path,
    config: &RecorderConfig,
    trace_id: [u8; 16],
    meta: Meta,
) -> io::Result<RotatingTrace> {
    let (rotation, meta) = match config.rotation {
        Some(policy) => {
            let (rotation, first) = Rotation::begin(policy, path, trace_id, &meta)?;
            (Some(rotation), first)
        }
        None => (None, meta),
    };
    Ok(RotatingTrace::new(BlockFile::begin(file, path, &meta)?, rotation))
}

/// Finishes the trace. To be called when all other exit handlers of the program have run.
pub fn end_at_exit() {
    end(END_EXIT, 0, EXIT_PATIENCE_NS);
}

/// Notes that the process calls `_exit` with `status`, and finishes the trace if that takes less
/// than half a second. Whatever is not written by then is in the ring file.
pub fn end_at_quick_exit(status: i32) {
    end(END_QUICK_EXIT, status, QUICK_EXIT_PATIENCE_NS);
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

fn end(kind: u32, status: i32, patience_ns: u64) {
    let Some(session) = current::running() else { return };
    // A child of vfork shares our memory but is another process.
    // SAFETY: no arguments, no effect.
    if unsafe { libc::getpid() } as u32 != session.pid {
        return;
    }
    session.request_close(kind, status);
    session.wait_until_closed(patience_ns);
}
