//! The signals of the command: it gets each one that ends a program, once.
//!
//! A signal may be sent to us alone: by a supervisor, a scheduler or `kill`. So we catch each
//! signal that would end us, and pass it on. We leave alone SIGABRT and those of faults, those that
//! stop and continue a process, and SIGWINCH and SIGURG. Equal signals that come at almost the same
//! time may become one, as in any process.
//!
//! The command already has a signal that was sent to our whole process group, by a key in the
//! terminal, a shell or a notebook. A second one would interrupt the cleanup that the first one
//! began. So a witness, a process of our group, has what the group gets. Without it, SIGINT and
//! SIGQUIT are not passed on.
//!
//! Signals that were ignored when we started are ignored in the command until it handles them, as
//! `nohup`, systemd (`IgnoreSIGPIPE=`) and shells set it up. We catch them, too, because it may
//! handle them.
#![allow(unsafe_code, reason = "dispositions of signals, and a process without a program of its own")]

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::retry_on_intr;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use signal_hook::iterator::Signals;

#[cfg(target_os = "linux")]
mod group_witness;
use group_witness::GroupWitness;

/// Whether SIGPIPE was ignored when this process started. The standard library ignores it before
/// `main`, so a constructor looks first.
static WAS_PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

#[used]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
#[cfg_attr(not(target_os = "macos"), unsafe(link_section = ".init_array"))]
static CONSTRUCTOR: extern "C" fn(c_int, *mut *mut c_char) = {
    extern "C" fn note_start(_: c_int, arguments: *mut *mut c_char) {
        WAS_PIPE_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
        // Other C libraries pass no arguments.
        if cfg!(target_env = "gnu") {
            group_witness::ARGUMENTS.store(arguments, Ordering::Relaxed);
        }
    }
    note_start
};

fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero structure is a valid buffer, and nothing is changed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// The signals that end a process without a handler. Those of faults in its own code are missing,
/// as is SIGABRT, and SIGPIPE: this process ignores it.
fn ending_signals() -> impl Iterator<Item = i32> {
    #[cfg(target_os = "linux")]
    let more = [libc::SIGPOLL, libc::SIGPWR, libc::SIGSTKFLT].into_iter();
    #[cfg(target_os = "linux")]
    let more = more.chain(libc::SIGRTMIN()..=libc::SIGRTMAX());
    #[cfg(not(target_os = "linux"))]
    let more = std::iter::empty();
    [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGALRM,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGXCPU,
    ]
    .into_iter()
    .chain(more)
}

/// The signal that this process gets when its parent dies; 0 for none.
#[cfg(target_os = "linux")]
fn death_signal() -> c_int {
    let mut signal = 0;
    // SAFETY: writes a number of ours.
    unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut signal) };
    signal
}

/// Other systems have no such signal.
#[cfg(not(target_os = "linux"))]
fn death_signal() -> c_int {
    0
}

/// The signals that were sent to this process.
pub(super) struct CaughtSignals {
    signals: Signals,
    /// Those that were ignored when this process started, without SIGPIPE.
    ignored: Vec<c_int>,
}

impl CaughtSignals {
    /// Catches signals from now on.
    pub(super) fn catch() -> io::Result<Self> {
        let ignored = ending_signals().filter(|signal| is_ignored(*signal)).collect();
        Ok(Self { signals: Signals::new(ending_signals())?, ignored })
    }

    /// Leaves to the command which signals are ignored, and the signal that a process gets when its
    /// parent dies. That one may be SIGKILL, which cannot be passed on otherwise.
    pub(super) fn keep_inherited(&self, command: &mut Command) {
        let mut ignored = self.ignored.clone();
        ignored.extend(WAS_PIPE_IGNORED.load(Ordering::Relaxed).then_some(libc::SIGPIPE));
        let death_signal = death_signal();
        if ignored.is_empty() && death_signal == 0 {
            return;
        }
        // SAFETY: both calls are async-signal-safe, and the closure allocates nothing.
        unsafe {
            command.pre_exec(move || {
                for signal in &ignored {
                    libc::signal(*signal, libc::SIG_IGN);
                }
                #[cfg(target_os = "linux")]
                libc::prctl(libc::PR_SET_PDEATHSIG, death_signal);
                Ok(())
            });
        }
    }

    /// Waits until the command has ended. Until then, it gets the signals, also those that came
    /// already. Later ones act on this process as when it started.
    pub(super) fn pass_on_to(self, command: &mut Child) -> io::Result<ExitStatus> {
        let Self { signals, ignored } = self;
        // Not earlier: when the group got earlier signals, the command was not there yet, or had
        // not started its program. And the command stays the first child, for those who look.
        let witness = GroupWitness::start().ok();
        let handle = signals.handle();
        let pid = Pid::from_child(command);
        let thread = std::thread::spawn(move || pass_on(signals, witness, pid.as_raw_nonzero().get()));
        // The thread uses the process ID: another process may have it after the real wait.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let ended = retry_on_intr(|| waitid(WaitId::Pid(pid), options));
        for signal in ending_signals() {
            let action = if ignored.contains(&signal) { libc::SIG_IGN } else { libc::SIG_DFL };
            // SAFETY: an action without a function.
            unsafe { libc::signal(signal, action) };
        }
        handle.close();
        _ = thread.join();
        ended?;
        command.wait()
    }
}

/// Passes signals on until they are closed.
fn pass_on(mut signals: Signals, mut witness: Option<GroupWitness>, pid: libc::pid_t) {
    let handle = signals.handle();
    let mut has_group = |signal| {
        let seen = witness.as_mut().and_then(|witness| witness.has_seen(signal).ok());
        seen.unwrap_or(matches!(signal, libc::SIGINT | libc::SIGQUIT))
    };
    let mut waiting = BTreeSet::new();
    while !handle.is_closed() {
        let Some(signal) = waiting.pop_first() else {
            waiting.extend(signals.wait());
            continue;
        };
        let is_of_group = has_group(signal);
        if is_of_group {
            // Equal ones that came before the answer are one in the witness.
            waiting.extend(signals.pending());
            if waiting.remove(&signal) {
                has_group(signal);
            }
        }
        // SAFETY: no pointers. The command has not been waited for, so the number is its own.
        unsafe {
            if !(is_of_group && libc::getpgid(pid) == libc::getpgrp()) {
                libc::kill(pid, signal);
            }
        }
    }
}

/// Other systems have no `sigtimedwait`.
#[cfg(not(target_os = "linux"))]
mod group_witness {
    use std::ffi::{c_char, c_int};
    use std::io;
    use std::sync::atomic::AtomicPtr;

    pub(super) static ARGUMENTS: AtomicPtr<*mut c_char> = AtomicPtr::new(std::ptr::null_mut());
    pub(super) struct GroupWitness;

    impl GroupWitness {
        pub(super) fn start() -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn has_seen(&mut self, _: c_int) -> io::Result<bool> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }
}
