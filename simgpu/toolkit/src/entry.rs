//! What happens around the body of every hand-written function.
//!
//! A panic must not cross into C, and a copy of the template exports a function only if `simgpu-setup` says so -> functions are declared
//! through [`toolkit!`], which wraps the body and gives it the name `simgpu_fn_<name>`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use simgpu_common::Answer;

/// Runs a body; `broken` is what a panic turns into.
pub(crate) fn guard(broken: u32, body: impl FnOnce() -> Answer) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(answer) => answer.err().unwrap_or(0),
        Err(_) => broken,
    }
}

/// Declares functions of a library that returns status codes; the literal is the code for "something went wrong inside".
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
