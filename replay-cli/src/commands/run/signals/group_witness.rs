//! A process that has the signals that our process group gets.
//!
//! It is a copy of this process in which all signals are blocked. They stay pending there until we
//! ask for them. It ends with us: then its socket is closed. It has no command line, so that a
//! search for ours (`pkill -f`) does not find it.

use std::ffi::{c_char, c_int};
use std::io::{self, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

/// How long a signal of the group may take to reach the witness, too.
const ARRIVAL_NS: libc::c_long = 5_000_000;
/// How long we wait for its answer. It may be stopped.
const ANSWER: Duration = Duration::from_secs(10);

/// The witness. It ends when this is dropped.
pub(super) struct GroupWitness {
    pid: libc::pid_t,
    socket: UnixStream,
}

impl Drop for GroupWitness {
    fn drop(&mut self) {
        // SAFETY: our own child, which is not waited for elsewhere.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

impl GroupWitness {
    pub(super) fn start() -> io::Result<Self> {
        let (socket, its_socket) = UnixStream::pair()?;
        socket.set_read_timeout(Some(ANSWER))?;
        let everything = all_signals();
        let mut before = everything;
        // SAFETY: two sets of ours.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const everything, &raw mut before) };
        // SAFETY: the copy has this thread only. It calls nothing that takes a lock, and does not
        // return.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            watch(&its_socket);
        }
        let error = io::Error::last_os_error();
        // SAFETY: the set of before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
        if pid < 0 { Err(error) } else { Ok(Self { pid, socket }) }
    }

    /// True if the group got the signal since we last asked.
    pub(super) fn has_seen(&mut self, signal: c_int) -> io::Result<bool> {
        let mut answer = [0];
        let question = [signal as u8];
        let result = self.socket.write_all(&question).and_then(|()| self.socket.read_exact(&mut answer));
        if result.is_err() {
            // A late answer would be taken for that of the next question.
            _ = self.socket.shutdown(Shutdown::Both);
        }
        result.map(|()| answer[0] != 0)
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

fn only(signal: u8) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: empties the set first.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), c_int::from(signal));
        set.assume_init()
    }
}

/// What the witness does. All signals are blocked in it.
fn watch(mut socket: &UnixStream) -> ! {
    // SAFETY: system calls with constants.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"signal-witness".as_ptr());
        libc::chdir(c"/".as_ptr());
    }
    clear_arguments();
    close_others(socket.as_raw_fd());
    let mut question = [0];
    while socket.read_exact(&mut question).is_ok() {
        let answer = u8::from(take_pending(question[0]));
        if socket.write_all(&[answer]).is_err() {
            break;
        }
    }
    // SAFETY: ends this process.
    unsafe { libc::_exit(0) }
}

/// Takes the pending signals of a number. False if there were none.
fn take_pending(signal: u8) -> bool {
    let set = only(signal);
    let mut patience = libc::timespec { tv_sec: 0, tv_nsec: ARRIVAL_NS };
    let mut found = false;
    loop {
        // SAFETY: a set of signals that are blocked, and a time of ours.
        if unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const patience) } > 0 {
            found = true;
            // Those from SIGRTMIN on queue up.
            patience.tv_nsec = 0;
        } else if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return found;
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
