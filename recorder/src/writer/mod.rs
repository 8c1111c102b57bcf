//! The writer thread: drains the rings into the trace.
//!
//! Records in a ring survive a kill, and small blocks compress badly. So the writer sleeps until a
//! ring is low on space, or a few seconds have passed, and then drains all rings in batches. It
//! writes each batch with one system call and only then advances the tails. It never waits for a
//! thread of the program: a call in flight ends what it takes from that ring. All signals are
//! blocked in this thread, so the program's signal handlers never run here.

pub(crate) mod block_file;
mod drain;
mod file_watch;
mod library_thread;
pub(crate) mod paths;
pub(crate) mod rotation;
pub(crate) mod trace_file;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use gpumemtrace_format::block::{BlockKind, MAX_PAYLOAD_BYTES};
use gpumemtrace_format::ring::END_QUICK_EXIT;
use gpumemtrace_format::{Counter, Counters, End, EndReason, definitions};

use crate::config::NativeStacks;
use crate::diagnostics::error_text;
use crate::metadata;
use crate::platform::fork_gate;
use crate::platform::patience::Patience;
use crate::platform::{self, LastThreadEnd, clock, own_thread, signals};
use crate::ring::mapping::RingFileState;
use crate::ring::protocol::ring::RingWords;
use crate::session::late_events::FinishedEnd;
use crate::session::{HOOK_PATIENCE_NS, Session, WakeReason};
use drain::{DrainLimit, RecordBatch};
use file_watch::FileWatch;
use library_thread::LibraryThread;
use trace_file::RotatingTrace;

/// How long the writer sleeps unless it is woken.
const NAP_NS: u64 = 250_000_000;
/// How long records stay in rings that have space. They are safe there.
const MAX_REST_NS: u64 = 5_000_000_000;
/// Time between two calls of the sampling callback.
const SAMPLE_INTERVAL_NS: u64 = 1_000_000_000;
/// Definitions in one block.
const ROWS_PER_BLOCK: usize = 1 << 16;

/// Starts the writer thread. `notes` are the notes that the trace already contains.
pub(crate) fn spawn(session: &'static Session, trace: RotatingTrace, notes: Vec<String>) -> io::Result<()> {
    start(WriterThread {
        session,
        trace,
        modules: None,
        mode: None,
        clock: clock::ClockCalibrator::new(session.uses_counter),
        last_write_ns: clock::now_ns(),
        last_sample_ns: 0,
        batch: RecordBatch::default(),
        files: FileWatch::new(notes),
        library_thread: None,
        end_block: None,
    })
}

fn start(mut writer: WriterThread) -> io::Result<()> {
    let run = move || {
        let session = writer.session;
        // A panic must not leave threads waiting for space in their rings.
        match catch_unwind(AssertUnwindSafe(|| writer.run())) {
            Ok(WriterExit::Closed) => writer.leave_finished_trace(),
            Ok(WriterExit::ProgramExited(end)) => end_for_the_program(writer, end),
            Err(_) => {
                session.rings.count(Counter::InternalErrors);
                session.stop_with(&["an internal error of gpumemtrace; please report it"]);
                session.mark_closed();
            }
        }
    };
    signals::with_all_blocked(|| own_thread::spawn(c"gpumemtrace", 512 << 10, Box::new(run)))
}

/// The reason why [`WriterThread::run`] returned.
enum WriterExit {
    /// The trace is finished, or recording has stopped.
    Closed,
    /// All threads of the program have ended.
    ProgramExited(LastThreadEnd),
}

/// Ends the process as it would have ended with its last thread.
fn end_for_the_program(mut writer: WriterThread, end: LastThreadEnd) {
    match end {
        LastThreadEnd::Returned => exit_for_the_program(writer),
        LastThreadEnd::Exited(status) => {
            writer.close_after_quick_exit(status);
            platform::exit_process(status);
        }
        // As after any kill, the trace has no end, and the ring file has the last events.
        LastThreadEnd::Killed(signal) => signals::end_process_by(signal),
        // Kernels before 5.17 end the process with the status of its first thread. Elsewhere the
        // status of this thread counts, and an unknown end is not a success.
        LastThreadEnd::Unknown => {
            if writer.library_thread.as_ref().is_none_or(LibraryThread::has_ended) {
                platform::exit_thread(1);
            }
            platform::exit_process(1);
        }
    }
}

/// Ends the process with `exit`, as its last thread would have done. The exit handlers may still
/// use the GPU, so another thread takes over the writing.
#[allow(clippy::exit, reason = "the program's own end, which it would have had without this thread")]
fn exit_for_the_program(mut writer: WriterThread) {
    let session = writer.session;
    // The lease belongs to this thread, and its signal must not arrive here once signals are
    // unblocked.
    writer.release_lease();
    if start(writer).is_err() {
        session.mark_closed();
    }
    signals::unblock_all();
    std::process::exit(0);
}

fn damaged_ring_file() -> io::Error {
    io::Error::other("another program truncated the ring file")
}

struct WriterThread {
    session: &'static Session,
    trace: RotatingTrace,
    /// The loader's counts when the module list was last written.
    modules: Option<(u64, u64)>,
    /// The key of the interception metadata that was last written.
    mode: Option<u8>,
    clock: clock::ClockCalibrator,
    last_write_ns: u64,
    last_sample_ns: u64,
    batch: RecordBatch,
    files: FileWatch,
    library_thread: Option<LibraryThread>,
    /// Offset and bytes of the END block, once it is written.
    end_block: Option<(u64, Vec<u8>)>,
}

impl WriterThread {
    fn run(&mut self) -> WriterExit {
        platform::lower_priority();
        platform::prepare_barrier();
        self.session.set_writer();
        let session = self.session;
        let library_thread = self.library_thread.get_or_insert_with(|| LibraryThread::start(session));
        let meta = fork_gate::WRITER.outside_forks(|| metadata::late_metadata(metadata::python_version()));
        self.trace.add_meta(&meta);
        if let Some(facts) = library_thread.wait_for_facts() {
            self.trace.add_meta(&facts);
        }
        self.add_changed_metadata();
        let mut result = self.flush();
        file_watch::take_lease(self.session);
        // A short run must report a missing ring file too.
        if self.session.rings.is_memory() && result.is_ok() {
            result = self.check_files();
        }
        while result.is_ok() && !self.session.is_stopped() {
            let nap_ns = self.files.nap_ns(self.session);
            let reason = self.session.wait_for_wake(nap_ns.min(self.clock.nap_ns()));
            // The process may have been stopped during the sleep.
            if !self.session.recheck_ring_file() {
                result = Err(damaged_ring_file());
                break;
            }
            self.session.rings.save_counters();
            if self.session.is_close_requested() {
                result = self.close();
                break;
            }
            self.clock.calibrate();
            if clock::now_ns().saturating_sub(self.last_sample_ns) > SAMPLE_INTERVAL_NS {
                self.last_sample_ns = clock::now_ns();
                self.library_thread.iter().for_each(LibraryThread::request_sample);
            }
            if self.add_driver_facts() {
                result = self.flush();
            }
            if result.is_ok() && (reason == Some(WakeReason::ThreadWaits) || self.is_worth_writing()) {
                result = self.drain_rings(false);
            }
            if result.is_ok() && self.session.secure_rings() {
                self.release_rings_of_ended_threads();
            }
            let library_thread = self.session.library_thread();
            if reason.is_none()
                && let Some(end) = platform::last_thread_end(self.session.pid, library_thread)
                // Otherwise a thread of ours has just ended, and one of the program counted as it.
                && self.session.library_thread() == library_thread
            {
                return WriterExit::ProgramExited(end);
            }
            if result.is_ok() {
                result = self.check_files();
            }
        }
        if let Err(error) = result {
            self.trace.truncate_partial_write();
            if self.session.rings.check_file() == RingFileState::Damaged {
                let _ = self.end_without_rings();
            }
            self.session.rings.count(Counter::WriteErrors);
            let path = self.session.path.to_string_lossy();
            self.session.stop_with(&["cannot write ", &path, ": ", &error_text(&error)]);
        }
        self.release_files();
        self.library_thread.iter().for_each(LibraryThread::end);
        WriterExit::Closed
    }

    /// Hands the finished trace over to threads that go on while the process ends.
    fn leave_finished_trace(self) {
        if let Some((at, block)) = self.end_block
            && self.session.is_ending_with_process()
        {
            self.session.keep_end_block(FinishedEnd::new(self.trace.into_file(), at, block));
        }
        self.session.mark_closed();
    }

    fn is_worth_writing(&self) -> bool {
        let rings = &self.session.rings;
        let is_due = rings.is_memory() || clock::now_ns().saturating_sub(self.last_write_ns) > MAX_REST_NS;
        self.session
            .rings_in_use()
            .map(|(index, _)| rings.ring(index))
            .any(|ring| if is_due { ring.waiting() > 0 } else { ring.is_low() })
    }

    /// Drains all rings into the trace, batch by batch.
    fn drain_rings(&mut self, is_closing: bool) -> io::Result<()> {
        let mut batch = std::mem::take(&mut self.batch);
        let limit = DrainLimit::at_current_heads(self.session);
        let mut next = Some(0);
        while let Some(first) = next {
            let trace = &mut self.trace;
            let mut put = |events: &[_]| trace.push_events(events);
            next = batch.fill((self.session, &limit), first, is_closing, &mut put)?;
            self.write_batch(&batch)?;
        }
        self.batch = batch;
        self.last_write_ns = clock::now_ns();
        self.session.note_round();
        self.session.discard_wakes();
        Ok(())
    }

    fn write_batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        self.add_changed_metadata();
        self.add_unloaded_modules();
        self.add_modules();
        let trace = &mut self.trace;
        // A code object takes up to 70 KiB and is never split, so their number limits the size of a
        // block.
        for codes in batch.codes.chunks(MAX_PAYLOAD_BYTES / (128 << 10)) {
            trace.add(BlockKind::CODES, &definitions::encode_codes(codes), codes.len());
        }
        for nodes in batch.py_nodes.chunks(ROWS_PER_BLOCK) {
            trace.add(BlockKind::PY_NODES, &definitions::encode_py_nodes(nodes), nodes.len());
            trace.add(BlockKind::FRAME_LINKS, &definitions::encode_frame_links(nodes), nodes.len());
        }
        for nodes in batch.native_nodes.chunks(ROWS_PER_BLOCK) {
            trace.add(BlockKind::NATIVE_NODES, &definitions::encode_native_nodes(nodes), nodes.len());
        }
        trace.end_block();
        self.session.rings.add_count(Counter::InternalErrors, batch.malformed);
        self.flush()?;
        if batch.records > 0 {
            self.session.note_step();
        }
        if !self.session.secure_rings() {
            return Err(damaged_ring_file());
        }
        for (index, tail) in &batch.tails {
            self.session.rings.ring(*index).release_until(*tail);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.repair_trace()?;
        self.trace.flush()?;
        let rings = &self.session.rings;
        rings.set_trace_bytes(self.trace.len_bytes());
        if self.trace.is_rotation_due() {
            // The length of the trace's own file is undefined while parts are exchanged.
            rings.set_trace_bytes(0);
            self.trace.rotate()?;
            rings.set_trace_bytes(self.trace.len_bytes());
        }
        Ok(())
    }

    /// Adds metadata that has changed: how calls are intercepted, and which functions went past the
    /// hooks.
    fn add_changed_metadata(&mut self) {
        self.add_driver_facts();
        if let Some(meta) = fork_gate::WRITER.outside_forks(|| metadata::mode_if_changed(&mut self.mode)) {
            self.trace.add_meta(&meta);
        }
        let calls = metadata::uncovered_calls();
        let more = calls.saturating_sub(self.session.rings.counter(Counter::UncoveredCalls));
        if more > 0 {
            self.session.rings.add_count(Counter::UncoveredCalls, more);
            self.trace.add_meta(&metadata::uncovered_names());
        }
    }

    /// Adds what the driver says about itself, once, when that has arrived.
    fn add_driver_facts(&mut self) -> bool {
        let facts = self.library_thread.as_ref().and_then(LibraryThread::take_facts);
        facts.inspect(|facts| self.trace.add_meta(facts)).is_some()
    }

    /// Adds modules that were unloaded, at the addresses to which their nodes were moved.
    fn add_unloaded_modules(&mut self) {
        let modules = self.session.unloaded.take_new();
        if !modules.is_empty() {
            self.trace.add(BlockKind::MODULES, &definitions::encode_modules(&modules), modules.len());
            // The last block is the list of those that are loaded.
            self.modules = None;
        }
    }

    /// Adds the list of loaded modules if it has changed. Readers need it to resolve native
    /// addresses.
    fn add_modules(&mut self) {
        if self.session.native == NativeStacks::None {
            return;
        }
        let counts = fork_gate::WRITER.outside_forks(platform::loaded_module_counts);
        if self.modules == Some(counts) {
            return;
        }
        if self.modules.is_some_and(|(_, removed)| removed != counts.1) {
            platform::unload_counter::note_module_unload();
        }
        self.modules = Some(counts);
        let modules = fork_gate::WRITER.outside_forks(platform::loaded_modules);
        self.trace.add(BlockKind::MODULES, &definitions::encode_modules(&modules), modules.len());
    }

    /// Writes the remaining records and the last block, and removes the ring file.
    fn close(&mut self) -> io::Result<()> {
        let mut patience = Patience::new(HOOK_PATIENCE_NS);
        let mut is_idle = self.session.end_hooks();
        while !is_idle && !patience.is_exhausted() {
            // A hook may be waiting for space in its ring.
            self.drain_rings(false)?;
            // SAFETY: a plain sleep.
            unsafe { libc::usleep(200) };
            is_idle = self.session.end_hooks();
        }
        // A hook that began before the end may have been delayed. A reader refuses events that are
        // later than the end.
        let hooks_ended_ns = clock::now_ns();
        self.drain_rings(true)?;
        if self.session.is_ended_by_program() {
            self.add_note("the program ended the recording (gpumemtrace.stop()) and went on".to_owned());
        }
        let end = self.session.rings.stored_end();
        let (reason, time_ns) = end.unwrap_or((EndReason::Exit, clock::now_ns()));
        self.finish_trace(reason, time_ns.max(hooks_ended_ns), String::new())?;
        // Everything is in the trace now, unless a thread was stopped inside a hook: its event then
        // goes to the ring file. Leave the file if its name belongs to another process by now.
        if is_idle && !self.session.has_interrupted_hook() {
            self.remove_ring_file();
        }
        Ok(())
    }

    /// Finishes the trace of a program whose last thread has ended by the system call `exit`.
    fn close_after_quick_exit(&mut self, status: i32) {
        self.session.rings.set_end(END_QUICK_EXIT, status, clock::now_ns());
        // Without a finished trace, the ring file stays.
        let _ = self.close();
        self.release_files();
        self.session.mark_closed();
    }

    /// Writes the last block.
    fn finish_trace(&mut self, reason: EndReason, time_ns: u64, message: String) -> io::Result<()> {
        let rings = &self.session.rings;
        let mut counters = Counters::default();
        for (counter, _) in Counter::ALL {
            counters.set(*counter, rings.counter(*counter));
        }
        let events = rings.next_seq().load(Ordering::Relaxed);
        self.repair_trace()?;
        let block = End { reason, events, time_ns, message, counters }.encode_block();
        self.end_block = Some((self.trace.finish(&block)?, block));
        Ok(())
    }

    fn release_rings_of_ended_threads(&self) {
        for (index, thread) in self.session.rings_in_use() {
            let has_ended = platform::has_thread_ended(self.session.pid, thread);
            if has_ended && self.session.rings.ring(index).waiting() == 0 {
                self.session.release_ring(index);
            }
        }
    }
}
