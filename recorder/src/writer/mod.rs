//! The writer thread: empties the rings into the trace.
//!
//! Constraint: what is in a ring is already safe from a kill, and small blocks compress badly. Consequence: it sleeps until a ring
//! is as full as it should get (or some seconds have passed), then takes everything, in batches: each is written with one
//! system call, and only then the tails are moved. It never waits for a thread of the program: a record whose call has not returned simply
//! ends what can be taken from that ring. All signals are blocked in it, so the program's handlers never run here.

pub(crate) mod block_file;
mod drain;
mod file_watch;
pub(crate) mod paths;
pub(crate) mod rotation;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use gpumemtrace_format::block::{BlockKind, MAX_PAYLOAD_BYTES};
use gpumemtrace_format::{Counter, Counters, End, EndReason, defs, links};

use crate::config::NativeStacks;
use crate::metadata;
use crate::platform::signals::with_all_blocked;
use crate::platform::{self, clock, signals};
use crate::ring::protocol::ring::RingWords;
use crate::session::{Session, WakeReason};
use crate::writer::block_file::RotatingTrace;
use crate::writer::drain::{DrainLimit, RecordBatch};

/// How long the writer sleeps when nobody wakes it.
const NAP_NS: u64 = 250_000_000;
/// How long records are left in rings that have room for more: they are safe there.
const LONGEST_REST_NS: u64 = 5_000_000_000;
/// How long threads that are just recording an event may take to finish it when the process ends.
const LAST_WORDS_NS: u64 = 300_000_000;
/// Between two samples of what no call tells.
const SAMPLE_EVERY_NS: u64 = 1_000_000_000;
/// Definitions in one block.
const ROWS_PER_BLOCK: usize = 1 << 16;

/// Starts the thread. `notes` are in the trace already.
pub(crate) fn spawn(session: &'static Session, trace: RotatingTrace, notes: Vec<String>) -> io::Result<()> {
    start(Writer {
        session,
        trace,
        modules: None,
        mode: None,
        clock: clock::ClockCalibrator::new(session.uses_counter),
        last_write_ns: clock::now_ns(),
        last_sample_ns: 0,
        batch: RecordBatch::default(),
        files: file_watch::FileWatch::new(notes),
    })
}

fn start(mut writer: Writer) -> io::Result<()> {
    let run = move || {
        let session = writer.session;
        // A bug of ours must not leave the program waiting for room in its rings.
        match catch_unwind(AssertUnwindSafe(|| writer.run())) {
            Ok(WriterExit::Closed) => {}
            Ok(WriterExit::ProgramExiting) => end_in_place_of_the_last_thread(writer),
            Err(_) => {
                session.shared.count(Counter::InternalErrors);
                session.stop_with(&["an internal error of gpumemtrace; please report it"]);
                session.mark_closed();
            }
        }
    };
    with_all_blocked(|| {
        std::thread::Builder::new().name("gpumemtrace".to_owned()).stack_size(512 << 10).spawn(run)
    })?;
    Ok(())
}

/// Why [`Writer::run`] returned.
enum WriterExit {
    /// The recording is over.
    Closed,
    /// All threads of the program have ended.
    ProgramExiting,
}

/// The last thread of a process ends it with `exit`, whose handlers may still use the GPU, so another thread writes on.
#[allow(clippy::exit, reason = "the program's own end, which it would have had without this thread")]
fn end_in_place_of_the_last_thread(mut writer: Writer) {
    let session = writer.session;
    // The question that comes with it must not find a thread that listens.
    writer.give_lease();
    if start(writer).is_err() {
        session.mark_closed();
    }
    signals::unblock_all();
    std::process::exit(0);
}

struct Writer {
    session: &'static Session,
    trace: RotatingTrace,
    modules: Option<(u64, u64)>,
    mode: Option<u8>,
    clock: clock::ClockCalibrator,
    last_write_ns: u64,
    last_sample_ns: u64,
    batch: RecordBatch,
    files: file_watch::FileWatch,
}

impl Writer {
    fn run(&mut self) -> WriterExit {
        platform::step_behind();
        platform::prepare_barrier();
        self.session.set_writer();
        let second = metadata::late_metadata(metadata::python_version());
        self.trace.add_meta(&second);
        self.add_late_facts();
        let mut result = self.flush();
        self.files.begin(self.session);
        // A short run must say so too.
        if self.session.shared.is_memory() && result.is_ok() {
            result = self.look_after_files();
        }
        while result.is_ok() && !self.session.is_stopped() {
            let nap_ns = self.files.nap_ns(self.session);
            let woken = self.session.wait_for_work(nap_ns.min(self.clock.nap_ns()));
            if self.session.is_close_asked() {
                result = self.close();
                break;
            }
            self.clock.keep();
            if clock::now_ns() - self.last_sample_ns > SAMPLE_EVERY_NS {
                self.last_sample_ns = clock::now_ns();
                metadata::record_samples();
            }
            if woken == Some(WakeReason::ThreadWaits) || self.is_worth_writing() {
                result = self.write_round(false);
            }
            self.release_rings_of_ended_threads();
            if woken.is_none() && platform::is_last_thread(self.session.pid()) {
                return WriterExit::ProgramExiting;
            }
            if result.is_ok() {
                result = self.look_after_files();
            }
        }
        if let Err(error) = result {
            self.session.shared.count(Counter::WriteErrors);
            self.trace.cut_off();
            let path = self.session.path.to_string_lossy();
            self.session.stop_with(&["cannot write ", &path, ": ", &crate::diagnostics::error_text(&error)]);
        }
        self.let_go_at_the_end();
        self.session.mark_closed();
        WriterExit::Closed
    }

    fn is_worth_writing(&self) -> bool {
        let shared = &self.session.shared;
        let is_due = shared.is_memory() || clock::now_ns() - self.last_write_ns > LONGEST_REST_NS;
        self.session
            .owners()
            .map(|(index, _)| shared.ring(index))
            .any(|ring| if is_due { ring.waiting() > 0 } else { ring.is_low() })
    }

    /// Empties all rings into the trace, batch by batch.
    fn write_round(&mut self, closing: bool) -> io::Result<()> {
        let mut batch = std::mem::take(&mut self.batch);
        let round = DrainLimit::begin(self.session);
        let mut next = Some(0);
        while let Some(first) = next {
            let trace = &mut self.trace;
            next =
                batch.fill((self.session, &round), first, closing, &mut |events| trace.push_events(events));
            self.write_batch(&batch)?;
        }
        self.batch = batch;
        self.last_write_ns = clock::now_ns();
        self.session.forget_wakes();
        Ok(())
    }

    fn write_batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        self.add_late_facts();
        self.add_modules();
        let trace = &mut self.trace;
        // Code objects come whole, up to 70 KiB each, so a block of them is bounded by their number.
        for codes in batch.codes.chunks(MAX_PAYLOAD_BYTES / (128 << 10)) {
            trace.add(BlockKind::CODES, &defs::encode_codes(codes), codes.len());
        }
        for nodes in batch.py_nodes.chunks(ROWS_PER_BLOCK) {
            trace.add(BlockKind::PY_NODES, &defs::encode_py_nodes(nodes), nodes.len());
            trace.add(BlockKind::LINKS, &links::encode_links(nodes), nodes.len());
        }
        for nodes in batch.native_nodes.chunks(ROWS_PER_BLOCK) {
            trace.add(BlockKind::NATIVE_NODES, &defs::encode_native_nodes(nodes), nodes.len());
        }
        trace.end_block();
        self.session.shared.count_more(Counter::InternalErrors, batch.malformed);
        self.flush()?;
        for (index, tail) in &batch.tails {
            self.session.shared.ring(*index).empty(*tail);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.mend_trace()?;
        self.trace.flush()?;
        let shared = &self.session.shared;
        shared.set_trace_bytes(self.trace.len_bytes());
        if self.trace.is_another_part_due() {
            // Between two parts nobody knows how long the trace's own file is.
            shared.set_trace_bytes(0);
            self.trace.begin_another_part()?;
            shared.set_trace_bytes(self.trace.len_bytes());
        }
        Ok(())
    }

    /// What became known late: whose allocator asks, and which functions went past the hooks, when more did.
    fn add_late_facts(&mut self) {
        if let Some(meta) = metadata::mode_if_changed(&mut self.mode) {
            self.trace.add_meta(&meta);
        }
        let calls = metadata::uncovered_calls();
        let more = calls.saturating_sub(self.session.shared.counter(Counter::UncoveredCalls));
        if more > 0 {
            self.session.shared.count_more(Counter::UncoveredCalls, more);
            self.trace.add_meta(&metadata::uncovered_names());
        }
    }

    /// Addresses mean something only with the modules they lie in.
    fn add_modules(&mut self) {
        if self.session.native == NativeStacks::None {
            return;
        }
        let generation = platform::generation();
        if self.modules == Some(generation) {
            return;
        }
        if self.modules.is_some_and(|(_, gone)| gone != generation.1) {
            platform::unload_counter::note_module_unload();
        }
        self.modules = Some(generation);
        let modules = platform::loaded();
        self.trace.add(BlockKind::MODULES, &defs::encode_modules(&modules), modules.len());
    }

    /// What is still in the rings, the last block, and the end of the ring file.
    fn close(&mut self) -> io::Result<()> {
        let begin = clock::now_ns();
        let mut is_quiet = self.session.detach();
        while !is_quiet && clock::now_ns() - begin < LAST_WORDS_NS {
            // One of them may be waiting for room.
            self.write_round(false)?;
            // SAFETY: a plain sleep.
            unsafe { libc::usleep(200) };
            is_quiet = self.session.detach();
        }
        self.write_round(true)?;
        if self.session.is_ended_by_program() {
            self.note("the program ended the recording (gpumemtrace.stop()) and went on".to_owned());
        }
        let shared = &self.session.shared;
        let mut counters = Counters::default();
        for (counter, _) in Counter::ALL {
            counters.set(*counter, shared.counter(*counter));
        }
        let (reason, time_ns) = shared.end_as_set().unwrap_or((EndReason::Exit, clock::now_ns()));
        let events = shared.next_seq().load(Ordering::Relaxed);
        let end = End { reason, events, time_ns, message: String::new(), counters };
        self.mend_trace()?;
        self.trace.finish(&end)?;
        // Everything is in the trace now, unless a thread was stopped in the middle of an event: then its words come into the
        // ring file. If the name is somebody else's by now, leave it.
        let ring = paths::ring_path(&self.session.path);
        if is_quiet && self.session.shared.is_file_at(&ring) {
            let _ = std::fs::remove_file(ring);
        }
        Ok(())
    }

    fn release_rings_of_ended_threads(&self) {
        for (index, thread) in self.session.owners() {
            let is_gone = platform::is_gone(self.session.pid(), thread);
            if is_gone && self.session.shared.ring(index).waiting() == 0 {
                self.session.release_ring(index);
            }
        }
    }
}
