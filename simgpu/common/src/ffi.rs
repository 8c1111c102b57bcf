//! Arguments that come from C.
//!
//! A function of the C interface is handed raw pointers that are null or, by the caller's contract, good for the call -> each kind of pointer is a
//! type of its own that only the C caller can make, so the functions themselves are safe Rust and null is one error in one place.

use core::ffi::{CStr, c_char};

/// What a simulated function's body returns: a code of its library, or success.
pub type Answer<T = ()> = Result<T, u32>;

/// Code of the driver and the runtime for a pointer that may not be null.
const INVALID_VALUE: u32 = 1;

/// Where a result goes.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// An error when the caller left it null: asked before any state changes.
    pub fn check(self) -> Answer {
        if self.0.is_null() { Err(INVALID_VALUE) } else { Ok(()) }
    }

    /// Stores the result; null is an error.
    pub fn put(self, value: T) -> Answer {
        self.check()?;
        self.put_if_wanted(value);
        Ok(())
    }

    /// Stores the result if the caller wants it.
    pub fn put_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the C caller passes null or room for a `T`, perhaps unaligned inside a packed struct of its own.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Stores several results in a row.
    pub fn put_all(self, values: impl IntoIterator<Item = T>) {
        if self.0.is_null() {
            return;
        }
        for (at, value) in values.into_iter().enumerate() {
            // SAFETY: the C caller passes room for as many values as it said it had, and callers of this function stop there.
            unsafe { self.0.add(at).write_unaligned(value) }
        }
    }

    /// The place `index` results further on.
    #[must_use]
    pub fn nth(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// What the caller left there (for in-out arguments).
    pub fn current(self) -> Answer<T>
    where
        T: Copy,
    {
        self.check()?;
        // SAFETY: an in-out argument is initialised by the C caller.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The same place, seen as another type: attributes differ in size by their number.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// A struct or an array to read.
#[repr(transparent)]
#[derive(Debug)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    /// The same place, seen as another type: attributes differ in size by their number.
    pub fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }

    /// The value; null is an error.
    pub fn get(self) -> Answer<T> {
        self.at(0)
    }

    /// The `index`-th value; null is an error.
    pub fn at(self, index: usize) -> Answer<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the C caller passes as many values as it says; callers of this function stay within that.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// The first `count` values; null is fine for none.
    pub fn list(self, count: usize) -> Answer<Vec<T>> {
        (0..count).map(|index| self.at(index)).collect()
    }
}

/// A C string.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// The string; null is an error.
    pub fn get<'a>(self) -> Answer<&'a CStr> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the C caller passes a terminated string that lives through the call, and no result of this outlives a call.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }
}
