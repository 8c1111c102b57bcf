//! Arguments of C functions.
//!
//! Raw pointers from C are null or, by contract, valid for the call. Each kind of pointer has its
//! own type that only the C caller can create. Function bodies stay safe Rust.

use core::ffi::{CStr, c_char};

/// The result of a simulated function's body: a value, or its library's error code.
pub type ApiResult<T = ()> = Result<T, u32>;

/// `CUDA_ERROR_INVALID_VALUE` and its runtime equivalent, for null pointers.
const INVALID_VALUE: u32 = 1;

/// A place for a result.
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
    /// Fails if the pointer is null; called before any state changes.
    pub fn check(self) -> ApiResult {
        if self.0.is_null() { Err(INVALID_VALUE) } else { Ok(()) }
    }

    /// Stores the result; fails if the pointer is null.
    pub fn put(self, value: T) -> ApiResult {
        self.check()?;
        self.put_if_wanted(value);
        Ok(())
    }

    /// Stores the result unless the pointer is null.
    pub fn put_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller passes room for a `T`, which a packed struct may leave unaligned.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Stores several results in a row.
    pub fn put_all(self, values: impl IntoIterator<Item = T>) {
        if self.0.is_null() {
            return;
        }
        for (at, value) in values.into_iter().enumerate() {
            // SAFETY: the caller passes room for the count it gave; users of this function stop
            // there.
            unsafe { self.0.add(at).write_unaligned(value) }
        }
    }

    /// Returns the place of the `index`-th result.
    #[must_use]
    pub fn nth(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// Reads the value of an in-out argument.
    pub fn current(self) -> ApiResult<T>
    where
        T: Copy,
    {
        self.check()?;
        // SAFETY: the caller initialises an in-out argument.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Returns the same place with another type: attributes differ in size.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// A struct or array to read.
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
    /// Returns the same place with another type: attributes differ in size.
    pub fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }

    /// Reads the value; fails if the pointer is null.
    pub fn get(self) -> ApiResult<T> {
        self.at(0)
    }

    /// Reads the `index`-th value; fails if the pointer is null.
    pub fn at(self, index: usize) -> ApiResult<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes as many values as it says; users of this function stay within.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// Reads the first `count` values; a null pointer is valid for none.
    pub fn list(self, count: usize) -> ApiResult<Vec<T>> {
        (0..count).map(|index| self.at(index)).collect()
    }
}

/// A C string argument.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// Returns the string; fails if the pointer is null.
    pub fn get<'a>(self) -> ApiResult<&'a CStr> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes a terminated string that outlives the call; no result outlives
        // it.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }
}
