//! Atomics that try all orders (loom's), and that can be broken at one line of the protocol.
//!
//! Constraint: a model that cannot fail proves nothing. Consequence: each operation knows the line of the protocol it stands
//! in; a test may ask for that line to be broken: its ordering weakened, or its effect held back until after what the same
//! thread does next.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::Location;
use std::sync::Arc;

pub(crate) use loom::sync::atomic::Ordering;
use loom::thread::ThreadId;

/// A place in the protocol: file, line, column.
pub(crate) type SourceSite = (&'static str, u32, u32);

/// What is wrong with one line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Breakage {
    /// The ordering is relaxed; a fence is not there.
    Weaken,
    /// The store comes after what the thread does next.
    HoldBack,
}

// All threads of a model run on the thread of its test.
thread_local! {
    static BROKEN: RefCell<Option<(SourceSite, Breakage)>> = const { RefCell::new(None) };
    static SEEN: RefCell<BTreeSet<(SourceSite, Breakage)>> = const { RefCell::new(BTreeSet::new()) };
    static HELD_BACK: RefCell<Vec<(ThreadId, DelayedStore)>> = const { RefCell::new(Vec::new()) };
}

/// A store that is still to come.
type DelayedStore = Box<dyn FnOnce()>;

/// Breaks one line from now on, or none.
pub(crate) fn set_broken(broken: Option<(SourceSite, Breakage)>) {
    HELD_BACK.with_borrow_mut(Vec::clear);
    BROKEN.set(broken);
}

/// Everything that could be broken in the lines that have run.
pub(crate) fn seen() -> BTreeSet<(SourceSite, Breakage)> {
    SEEN.with_borrow(Clone::clone)
}

/// Forgets it.
pub(crate) fn forget_seen() {
    SEEN.with_borrow_mut(BTreeSet::clear);
}

/// Makes what the calling thread has held back happen. At the end of each thread.
pub(crate) fn catch_up() {
    let me = loom::thread::current().id();
    loop {
        let next = HELD_BACK.with_borrow_mut(|held| {
            held.iter().position(|(thread, _)| *thread == me).map(|at| held.remove(at).1)
        });
        match next {
            Some(later) => later(),
            None => return,
        }
    }
}

/// True if this way of breaking is asked for here.
#[track_caller]
fn is_broken(how: Breakage) -> bool {
    let here = Location::caller();
    let site = (here.file(), here.line(), here.column());
    SEEN.with_borrow_mut(|seen| seen.insert((site, how)));
    BROKEN.with_borrow(|broken| *broken == Some((site, how)))
}

#[track_caller]
fn weaken(order: Ordering) -> Ordering {
    if order != Ordering::Relaxed && is_broken(Breakage::Weaken) { Ordering::Relaxed } else { order }
}

macro_rules! atomic {
    ($name:ident, $inner:ty, $value:ty $(, $kind:ident)?) => {
        /// As its namesake.
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
                catch_up();
                value
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                let order = weaken(order);
                if is_broken(Breakage::HoldBack) {
                    catch_up();
                    let inner = Arc::clone(&self.0);
                    let later: DelayedStore = Box::new(move || inner.store(value, order));
                    let me = loom::thread::current().id();
                    HELD_BACK.with_borrow_mut(|held| held.push((me, later)));
                    return;
                }
                self.0.store(value, order);
                catch_up();
            }

            #[track_caller]
            #[allow(dead_code, reason = "not all of them are exchanged")]
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                let order = weaken(order);
                let value = self.0.swap(value, order);
                catch_up();
                value
            }

            #[track_caller]
            #[allow(dead_code, reason = "not all of them are exchanged")]
            pub(crate) fn compare_exchange(
                &self, from: $value, to: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                let (success, failure) = (weaken(success), weaken(failure));
                let result = self.0.compare_exchange(from, to, success, failure);
                catch_up();
                result
            }
        }
    };
}

atomic!(AtomicBool, loom::sync::atomic::AtomicBool, bool);
atomic!(AtomicU32, loom::sync::atomic::AtomicU32, u32);
atomic!(AtomicU64, loom::sync::atomic::AtomicU64, u64);
atomic!(AtomicPtr, loom::sync::atomic::AtomicPtr<T>, *mut T, T);

/// Stands for both sides of the asymmetric fence, of which loom knows none: a whole one on each.
#[track_caller]
pub(crate) fn light_fence() {
    if !is_broken(Breakage::Weaken) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
    catch_up();
}

/// As [`light_fence`].
#[track_caller]
pub(crate) fn heavy_fence() {
    light_fence();
}
