//! Starting a recording: once, by one thread.
//!
//! Any thread may make the first event. The recording may also fail on its own writer thread before
//! the thread that started it has published it. Both are settled by a state machine of one word: a
//! recording that has ended by then is never published.

use super::super::atomics::{AtomicPtr, AtomicU32, Ordering};

/// The recording of a process, if it has one. All zero bytes are the initial state: [`IDLE`].
#[derive(Debug)]
pub(crate) struct StartState<T> {
    running: AtomicPtr<T>,
    state: AtomicU32,
}

/// No recording was started.
pub(crate) const IDLE: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
/// No recording will be started any more.
pub(crate) const OFF: u32 = 3;

impl<T: 'static> StartState<T> {
    /// The initial state, the same as zero bytes.
    pub(crate) fn idle() -> Self {
        Self { running: AtomicPtr::new(std::ptr::null_mut()), state: AtomicU32::new(IDLE) }
    }

    /// The running recording; `None` before the start and after the end.
    #[inline]
    pub(crate) fn running(&self) -> Option<&'static T> {
        // SAFETY: a started recording is never freed.
        unsafe { self.running.load(Ordering::Acquire).as_ref() }
    }

    /// True while a recording may still start, or is starting.
    pub(crate) fn may_start(&self) -> bool {
        matches!(self.state.load(Ordering::Relaxed), IDLE | STARTING)
    }

    /// Starts the recording with `make`, unless another thread has. If another thread is just doing
    /// it, calls `wait` until that thread is done or `wait` returns false.
    pub(crate) fn start(
        &self,
        make: impl FnOnce() -> Option<&'static T>,
        mut wait: impl FnMut() -> bool,
    ) -> Option<&'static T> {
        match self.state.compare_exchange(IDLE, STARTING, Ordering::Relaxed, Ordering::Acquire) {
            Ok(_) => self.publish(make()),
            Err(STARTING) => {
                while self.state.load(Ordering::Acquire) == STARTING {
                    if !wait() {
                        return None;
                    }
                }
                self.running()
            }
            Err(_) => self.running(),
        }
    }

    fn publish(&self, made: Option<&'static T>) -> Option<&'static T> {
        if let Some(made) = made {
            self.running.store(std::ptr::from_ref(made).cast_mut(), Ordering::Release);
        }
        let next = if made.is_some() { RUNNING } else { OFF };
        if self.state.compare_exchange(STARTING, next, Ordering::Release, Ordering::Relaxed).is_err() {
            // The recording has ended already.
            self.running.store(std::ptr::null_mut(), Ordering::Relaxed);
            return None;
        }
        made
    }

    /// Ends the recording. It can start again only if `state` is [`IDLE`].
    pub(crate) fn end(&self, state: u32) {
        // A swap, so that it comes after everything that was published before it.
        self.state.swap(state, Ordering::Acquire);
        self.running.store(std::ptr::null_mut(), Ordering::Relaxed);
    }
}
