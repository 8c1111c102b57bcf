//! Wrappers around every hand-written function.
//!
//! [`toolkit!`] declares a function as `simgpu_fn_<name>`, for `simgpu-setup` to export where a
//! wheel needs it. The wrapper catches panics, which must not cross into C.

use std::panic::{AssertUnwindSafe, catch_unwind};

use simgpu_common::ApiResult;

/// Runs a body; returns `broken` if it panics.
pub(crate) fn guard(broken: u32, body: impl FnOnce() -> ApiResult) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(answer) => answer.err().unwrap_or(0),
        Err(_) => broken,
    }
}

/// Declares functions that return status codes; the literal is the library's internal-error code.
macro_rules! toolkit {
    ($broken:literal; $($name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(export_name = concat!("simgpu_fn_", stringify!($name)))]
            extern "C" fn $name($($arg: $ty),*) -> u32 {
                $crate::entry::guard($broken, || $body)
            }
        )*
    };
}
pub(crate) use toolkit;
