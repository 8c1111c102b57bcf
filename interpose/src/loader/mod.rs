//! The dynamic loader: symbol look-ups, and the hooks on `dlsym`, `dlclose` and other modules' GOTs.

mod dlclose_hook;
pub(crate) mod got_patch;
pub(crate) mod symbols;
