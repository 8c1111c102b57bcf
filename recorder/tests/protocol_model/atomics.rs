//! Loom's atomics, which can be broken at one line of the protocol.
//!
//! A model that cannot fail proves nothing. So each operation knows the source line that it is
//! called from, and a test may break that line: weaken its ordering, or delay its store until after
//! the thread's next operation.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::Location;
use std::sync::Arc;

pub(crate) use loom::sync::atomic::Ordering;
use loom::thread::ThreadId;

/// A place in the protocol's source: file, line, column.
pub(crate) type SourceSite = (&'static str, u32, u32);

/// How a line is broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Breakage {
    /// The ordering becomes relaxed; a fence is removed.
    Weaken,
    /// The store comes after the thread's next operation.
    DelayStore,
}

// All threads of a model run on the thread of its test.
thread_local! {
    static BROKEN: RefCell<Option<(SourceSite, Breakage)>> = const { RefCell::new(None) };
    static POSSIBLE: RefCell<BTreeSet<(SourceSite, Breakage)>> = const { RefCell::new(BTreeSet::new()) };
    static DELAYED: RefCell<Vec<(ThreadId, DelayedStore)>> = const { RefCell::new(Vec::new()) };
}

/// A store that is executed later.
type DelayedStore = Box<dyn FnOnce()>;

/// Breaks one line from now on, or none.
pub(crate) fn set_broken(broken: Option<(SourceSite, Breakage)>) {
    DELAYED.with_borrow_mut(Vec::clear);
    BROKEN.set(broken);
}

/// All breakages of the lines that have run.
pub(crate) fn possible_breakages() -> BTreeSet<(SourceSite, Breakage)> {
    POSSIBLE.with_borrow(Clone::clone)
}

/// Clears the set of [`possible_breakages`].
pub(crate) fn clear_possible_breakages() {
    POSSIBLE.with_borrow_mut(BTreeSet::clear);
}

/// Executes the delayed stores of the calling thread. Must be called at the end of each thread.
pub(crate) fn run_delayed_stores() {
    let me = loom::thread::current().id();
    loop {
        let next = DELAYED.with_borrow_mut(|delayed| {
            delayed.iter().position(|(thread, _)| *thread == me).map(|at| delayed.remove(at).1)
        });
        match next {
            Some(store) => store(),
            None => return,
        }
    }
}

/// True if the calling line is broken in this way.
#[track_caller]
fn is_broken(how: Breakage) -> bool {
    let here = Location::caller();
    let site = (here.file(), here.line(), here.column());
    POSSIBLE.with_borrow_mut(|possible| possible.insert((site, how)));
    BROKEN.with_borrow(|broken| *broken == Some((site, how)))
}

#[track_caller]
fn weaken(order: Ordering) -> Ordering {
    if order != Ordering::Relaxed && is_broken(Breakage::Weaken) { Ordering::Relaxed } else { order }
}

macro_rules! atomic {
    ($name:ident, $inner:ty, $value:ty $(, $kind:ident)?) => {
        /// Wraps the atomic of the same name.
        #[derive(Debug)]
        pub(crate) struct $name$(<$kind>)?(Arc<$inner>);

        impl$(<$kind: 'static>)? $name$(<$kind>)? {
            pub(crate) fn new(value: $value) -> Self {
                Self(Arc::new(<$inner>::new(value)))
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                let order = weaken(order);
                let value = self.0.load(order);
                run_delayed_stores();
                value
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                let order = weaken(order);
                if is_broken(Breakage::DelayStore) {
                    run_delayed_stores();
                    let inner = Arc::clone(&self.0);
                    let store: DelayedStore = Box::new(move || inner.store(value, order));
                    let me = loom::thread::current().id();
                    DELAYED.with_borrow_mut(|delayed| delayed.push((me, store)));
                    return;
                }
                self.0.store(value, order);
                run_delayed_stores();
            }

            #[track_caller]
            #[allow(dead_code, reason = "not all atomics are exchanged")]
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                let order = weaken(order);
                let value = self.0.swap(value, order);
                run_delayed_stores();
                value
            }

            #[track_caller]
            #[allow(dead_code, reason = "not all atomics are exchanged")]
            pub(crate) fn compare_exchange(
                &self, from: $value, to: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                let (success, failure) = (weaken(success), weaken(failure));
                let result = self.0.compare_exchange(from, to, success, failure);
                run_delayed_stores();
                result
            }
        }
    };
}

atomic!(AtomicBool, loom::sync::atomic::AtomicBool, bool);
atomic!(AtomicU32, loom::sync::atomic::AtomicU32, u32);
atomic!(AtomicU64, loom::sync::atomic::AtomicU64, u64);
atomic!(AtomicPtr, loom::sync::atomic::AtomicPtr<T>, *mut T, T);

/// Models both sides of the asymmetric fence as a full fence, because loom has no asymmetric one.
#[track_caller]
pub(crate) fn light_fence() {
    if !is_broken(Breakage::Weaken) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
    run_delayed_stores();
}

/// The other side; the same as [`light_fence`].
#[track_caller]
pub(crate) fn heavy_fence() {
    light_fence();
}
