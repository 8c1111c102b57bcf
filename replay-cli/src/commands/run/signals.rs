//! The signals of the command: it gets those that it would get without `run`.
//!
//! A signal may be sent to us alone: by a supervisor, a scheduler or `kill`. So we catch each
//! signal that would end us, and pass it on. The command already has a signal that was sent to our
//! whole process group, by a key in the terminal, a shell or a notebook. A second one would
//! interrupt the cleanup that the first one began. So a witness, a process of our group, notes what
//! the group gets. Without it, SIGINT and SIGQUIT are not passed on.
//!
//! Signals that were ignored when we started stay ignored. `nohup` and systemd (`IgnoreSIGPIPE=`)
//! set up the command so, and a signal that we catch would have its default action there.
#![allow(unsafe_code, reason = "dispositions of signals, and a process without a program of its own")]

use std::ffi::{c_char, c_int};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::iterator::Signals;

#[cfg(target_os = "linux")]
mod group_witness;
use group_witness::{GroupWitness, WitnessProcess};

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
/// and SIGPIPE: this process ignores it.
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

/// Leaves SIGPIPE to the command as it was when this process started, and the signal that a process
/// gets when its parent dies. That one may be SIGKILL, which cannot be passed on otherwise.
pub(super) fn keep_inherited(command: &mut Command) {
    let (ignores_pipe, death_signal) = (WAS_PIPE_IGNORED.load(Ordering::Relaxed), death_signal());
    if !ignores_pipe && death_signal == 0 {
        return;
    }
    // SAFETY: both calls are async-signal-safe, and the closure allocates nothing.
    unsafe {
        command.pre_exec(move || {
            if ignores_pipe {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
            #[cfg(target_os = "linux")]
            libc::prctl(libc::PR_SET_PDEATHSIG, death_signal);
            Ok(())
        });
    }
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
    witness: Option<(GroupWitness, WitnessProcess)>,
}

impl CaughtSignals {
    /// Catches signals from now on. To be called on the main thread.
    pub(super) fn catch() -> io::Result<Self> {
        let witness = GroupWitness::start().ok();
        let signals = Signals::new(ending_signals().filter(|signal| !is_ignored(*signal)))?;
        Ok(Self { signals, witness })
    }

    /// Passes them on to the command: those that came already, and those to come. Keep what it
    /// returns until the command has ended.
    pub(super) fn pass_on_to(mut self, pid: u32) -> Option<WitnessProcess> {
        let pid = i32::try_from(pid).ok()?;
        let (mut witness, process) = self.witness.unzip();
        std::thread::spawn(move || {
            for signal in &mut self.signals {
                let has_group = match &mut witness {
                    Some(witness) => witness.has_seen(signal),
                    None => matches!(signal, libc::SIGINT | libc::SIGQUIT),
                };
                // SAFETY: no pointers.
                let is_in_group = unsafe { libc::getpgid(pid) == libc::getpgrp() };
                if !(has_group && is_in_group) {
                    // SAFETY: no pointers.
                    unsafe { libc::kill(pid, signal) };
                }
            }
        });
        process
    }
}

/// On other systems a witness would go on after this process was killed.
#[cfg(not(target_os = "linux"))]
mod group_witness {
    use std::ffi::{c_char, c_int};
    use std::io;
    use std::sync::atomic::AtomicPtr;

    pub(super) static ARGUMENTS: AtomicPtr<*mut c_char> = AtomicPtr::new(std::ptr::null_mut());
    pub(super) struct GroupWitness;
    pub(in crate::commands::run) struct WitnessProcess;

    impl GroupWitness {
        pub(super) fn start() -> io::Result<(Self, WitnessProcess)> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn has_seen(&mut self, _: c_int) -> bool {
            false
        }
    }
}
