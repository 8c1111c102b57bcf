//! The start of a recording: by one thread, once.
//!
//! Constraint: any thread may make the first event, and the recording may fail on its own thread before the one that started
//! it has even told the others. Consequence: a state machine of one word; a recording that has ended by then is not shown.

use super::super::atomics::{AtomicPtr, AtomicU32, Ordering};

/// What runs, if anything. Zero bytes are its beginning: nothing was started.
#[derive(Debug)]
pub(crate) struct StartState<T> {
    running: AtomicPtr<T>,
    state: AtomicU32,
}

/// Nothing was started.
pub(crate) const IDLE: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
/// Nothing will be started any more.
pub(crate) const OFF: u32 = 3;

impl<T: 'static> StartState<T> {
    /// As zero bytes.
    pub(crate) fn idle() -> Self {
        Self { running: AtomicPtr::new(std::ptr::null_mut()), state: AtomicU32::new(IDLE) }
    }

    /// What runs.
    #[inline]
    pub(crate) fn running(&self) -> Option<&'static T> {
        // SAFETY: what is started is never freed.
        unsafe { self.running.load(Ordering::Acquire).as_ref() }
    }

    /// True while it may still be started, or just is.
    pub(crate) fn is_to_come(&self) -> bool {
        matches!(self.state.load(Ordering::Relaxed), IDLE | STARTING)
    }

    /// Starts it, if nobody has; waits for another thread that is just doing it, as long as `wait` says so.
    pub(crate) fn start(
        &self,
        make: impl FnOnce() -> Option<&'static T>,
        mut wait: impl FnMut() -> bool,
    ) -> Option<&'static T> {
        match self.state.compare_exchange(IDLE, STARTING, Ordering::Relaxed, Ordering::Acquire) {
            Ok(_) => self.show(make()),
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

    fn show(&self, made: Option<&'static T>) -> Option<&'static T> {
        if let Some(made) = made {
            self.running.store(std::ptr::from_ref(made).cast_mut(), Ordering::Release);
        }
        let next = if made.is_some() { RUNNING } else { OFF };
        if self.state.compare_exchange(STARTING, next, Ordering::Release, Ordering::Relaxed).is_err() {
            // It has ended already.
            self.running.store(std::ptr::null_mut(), Ordering::Relaxed);
            return None;
        }
        made
    }

    /// From now on nothing runs; it may be started again only if it is [`IDLE`].
    pub(crate) fn end(&self, state: u32) {
        // Exchanged, so that it comes after all that was shown before it.
        self.state.swap(state, Ordering::Acquire);
        self.running.store(std::ptr::null_mut(), Ordering::Relaxed);
    }
}
