//! The thread that asks the driver and NVML for facts and samples.
//!
//! A call into another library may take the loader's lock, which the program holds while the
//! constructors of a library run, or a lock of the library's own. Hooks may wait for the writer
//! thread, so the writer must never wait there. It leaves such calls to this thread, which may be
//! stuck for as long as the program likes: then facts and samples are missing, and nothing else.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gpumemtrace_format::Meta;

use crate::metadata;
use crate::platform::patience::Patience;
use crate::platform::{self, fork_gate, own_thread, signals};
use crate::session::{Session, WakeReason};

/// How long the start of the writer thread waits for the driver's facts. A ring holds the calls of
/// a longer time.
const START_PATIENCE_NS: u64 = 20_000_000;
/// How long the end of the process waits for this thread.
const END_PATIENCE_NS: u64 = 100_000_000;

// Values of `Mailbox::request`.
const NOTHING: u32 = 0;
const SAMPLE: u32 = 1;
const END: u32 = 2;

/// The writer's side of the thread.
#[derive(Debug)]
pub(super) struct LibraryThread {
    session: &'static Session,
    mailbox: Arc<Mailbox>,
}

#[derive(Debug, Default)]
struct Mailbox {
    /// Futex word: what the thread does next.
    request: AtomicU32,
    /// Futex word: 1 once `facts` holds the answer.
    has_facts: AtomicU32,
    facts: Mutex<Option<Meta>>,
}

impl LibraryThread {
    /// Starts the thread, which collects the driver's facts first. Without it, they are missing.
    pub(super) fn start(session: &'static Session) -> Self {
        let mailbox = Arc::new(Mailbox::default());
        let shared = Arc::clone(&mailbox);
        let spawn = || -> io::Result<()> {
            own_thread::spawn(c"gpumemtrace-lib", 256 << 10, Box::new(move || shared.serve(session)))
        };
        session.note_library_thread(true);
        if signals::with_all_blocked(spawn).is_err() {
            session.note_library_thread(false);
        }
        Self { session, mailbox }
    }

    /// The driver's facts, once, after they have arrived.
    pub(super) fn take_facts(&self) -> Option<Meta> {
        if self.mailbox.has_facts.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.mailbox.facts.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// As [`take_facts`](Self::take_facts), but waits a little for them.
    pub(super) fn wait_for_facts(&self) -> Option<Meta> {
        let mut patience = Patience::new(START_PATIENCE_NS);
        while self.mailbox.has_facts.load(Ordering::Acquire) == 0
            && self.session.library_thread().is_some()
            && !patience.is_exhausted()
        {
            platform::wait(&self.mailbox.has_facts, 0, patience.nap_ns());
        }
        self.take_facts()
    }

    /// Requests a sample of the memory in use.
    pub(super) fn request_sample(&self) {
        self.mailbox.request(SAMPLE);
    }

    /// Lets the thread end, and waits a little if it is inside another library: that may be
    /// dismantled at the end of the process.
    pub(super) fn end(&self) {
        self.mailbox.request(END);
        wait_while(|| fork_gate::LIBRARY_THREAD.is_inside());
    }

    /// Waits a little for the end of the thread. False if it is stuck.
    pub(super) fn has_ended(&self) -> bool {
        self.end();
        wait_while(|| self.session.library_thread().is_some());
        self.session.library_thread().is_none()
    }
}

fn wait_while(is_true: impl Fn() -> bool) {
    let mut patience = Patience::new(END_PATIENCE_NS);
    while is_true() && !patience.is_exhausted() {
        // SAFETY: a plain sleep.
        unsafe { libc::usleep(200) };
    }
}

impl Mailbox {
    fn request(&self, request: u32) {
        self.request.fetch_max(request, Ordering::AcqRel);
        platform::wake(&self.request);
    }

    fn serve(&self, session: &'static Session) {
        const HOUR_NS: u64 = 3_600_000_000_000;
        let _running = Running(session);
        session.set_library_thread();
        platform::lower_priority();
        let gate = &fork_gate::LIBRARY_THREAD;
        let facts = gate.outside_forks(metadata::driver_facts);
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = Some(facts);
        self.has_facts.store(1, Ordering::Release);
        platform::wake(&self.has_facts);
        session.wake_writer(WakeReason::RingIsLow);
        // Most programs need the thread no longer: NVML names no process of a container.
        let mut may_sample = gate.outside_forks(metadata::prepare_samples);
        while may_sample {
            match self.request.load(Ordering::Acquire) {
                NOTHING => platform::wait(&self.request, NOTHING, HOUR_NS),
                END => break,
                request => {
                    // An end that is requested meanwhile stays.
                    let _ =
                        self.request.compare_exchange(request, NOTHING, Ordering::AcqRel, Ordering::Relaxed);
                    may_sample = gate.outside_forks(metadata::record_samples);
                }
            }
        }
    }
}

/// Notes the end of the thread when dropped, also after a panic.
struct Running(&'static Session);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.note_library_thread(false);
    }
}
