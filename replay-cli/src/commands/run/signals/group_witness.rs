//! A process that notes which signals our process group gets.
//!
//! It is a copy of this process that does nothing but wait, and it ends with us. It has no command
//! line, so that a search for ours (`pkill -f`) does not find it.

use std::ffi::{c_char, c_int};
use std::io::{self, PipeReader, PipeWriter, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

/// How long a signal of the group may take to reach the witness, too, and how long it may then take
/// to report it. Without `/proc`, only the report shows it.
const ARRIVAL: Duration = Duration::from_millis(5);
const REPORT: Duration = Duration::from_secs(1);
const REPORT_WITHOUT_PROC: Duration = Duration::from_millis(50);
/// A report that is older belongs to another signal: equal signals may merge.
const MAX_AGE_NS: u64 = 1_000_000_000;

/// Number of the signal, and when it came.
type Report = [u64; 2];
const REPORT_BYTES: usize = size_of::<Report>();

/// What the witness has seen.
pub(super) struct GroupWitness {
    pid: libc::pid_t,
    reports: PipeReader,
    /// Reports without a signal of ours so far.
    waiting: Vec<Report>,
}

/// The witness. It ends when this is dropped, or when this process ends.
pub(in crate::commands::run) struct WitnessProcess(libc::pid_t);

impl Drop for WitnessProcess {
    fn drop(&mut self) {
        // SAFETY: our own child, which is not waited for elsewhere.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

impl GroupWitness {
    /// Starts the witness, on a thread that lives as long as this process.
    pub(super) fn start() -> io::Result<(Self, WitnessProcess)> {
        let (reports, writer) = io::pipe()?;
        // SAFETY: a descriptor of ours.
        unsafe { libc::fcntl(reports.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let everything = all_signals();
        let mut before = everything;
        // SAFETY: two sets of ours.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const everything, &raw mut before) };
        // SAFETY: no arguments, no effect.
        let parent = unsafe { libc::getpid() };
        // SAFETY: the copy has this thread only. It calls nothing that takes a lock, and does not
        // return.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            watch(&writer, &everything, parent);
        }
        let error = io::Error::last_os_error();
        // SAFETY: the set of before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
        if pid < 0 {
            Err(error)
        } else {
            Ok((Self { pid, reports, waiting: Vec::new() }, WitnessProcess(pid)))
        }
    }

    /// True if the group got the signal that this process has just got.
    pub(super) fn has_seen(&mut self, signal: c_int) -> bool {
        let begin = Instant::now();
        loop {
            self.read_reports();
            let now_ns = now_ns();
            self.waiting.retain(|[_, at_ns]| now_ns.saturating_sub(*at_ns) < MAX_AGE_NS);
            if let Some(found) = self.waiting.iter().position(|[seen, _]| *seen == signal as u64) {
                self.waiting.remove(found);
                return true;
            }
            let is_pending = self.is_pending(signal);
            let patience = match is_pending {
                Some(true) => REPORT,
                Some(false) => ARRIVAL,
                None => REPORT_WITHOUT_PROC,
            };
            if begin.elapsed() > patience {
                return is_pending == Some(true);
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// True if the witness has the signal and has not reported it yet. `None` without `/proc`.
    fn is_pending(&self, signal: c_int) -> Option<bool> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"))?;
        let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
        Some(mask >> (signal - 1) & 1 == 1)
    }

    fn read_reports(&mut self) {
        let mut bytes = [0; REPORT_BYTES];
        while matches!(self.reports.read(&mut bytes), Ok(REPORT_BYTES)) {
            let (signal, at_ns) = bytes.split_at(8);
            let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
            self.waiting.push([number(signal), number(at_ns)]);
        }
    }
}

fn all_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: fills the set.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a buffer of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What the witness does. All signals are blocked in it.
fn watch(writer: &PipeWriter, everything: &libc::sigset_t, parent: libc::pid_t) -> ! {
    // SAFETY: system calls with constants, and with descriptors that only this process uses.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"signal-witness".as_ptr());
        libc::chdir(c"/".as_ptr());
        if libc::getppid() != parent {
            libc::_exit(0);
        }
    }
    clear_arguments();
    close_others(writer.as_raw_fd());
    loop {
        // SAFETY: a set of signals that are blocked.
        let signal = unsafe { libc::sigwaitinfo(everything, std::ptr::null_mut()) };
        if signal > 0 {
            let report: Report = [signal as u64, now_ns()];
            // SAFETY: a buffer of ours. A pipe takes as few bytes at once.
            unsafe { libc::write(writer.as_raw_fd(), report.as_ptr().cast(), REPORT_BYTES) };
        }
    }
}

/// Closes the command's input and output, which would stay open for their readers.
fn close_others(kept: RawFd) {
    // SAFETY: descriptors of a process that uses none of them.
    unsafe {
        for (first, last) in [(0, kept - 1), (kept + 1, c_int::MAX)] {
            if first <= last && libc::syscall(libc::SYS_close_range, first, last, 0) != 0 {
                // Before Linux 5.9. This process has opened few files so far.
                (first..=last.min(1023)).for_each(|other| {
                    libc::close(other);
                });
            }
        }
    }
}

/// The arguments of this process, as the kernel passed them. Null if they are not known.
pub(super) static ARGUMENTS: AtomicPtr<*mut c_char> = AtomicPtr::new(std::ptr::null_mut());

fn clear_arguments() {
    let mut next = ARGUMENTS.load(Ordering::Relaxed);
    // SAFETY: a list that ends with null, of texts on the stack of a process that reads them no
    // more.
    unsafe {
        while !next.is_null() && !(*next).is_null() {
            std::ptr::write_bytes(*next, 0, libc::strlen(*next));
            next = next.add(1);
        }
    }
}
