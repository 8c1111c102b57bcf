//! The dynamic loader: how callers of other libraries reach our hooks.
//!
//! * [`symbols`] looks up symbols and libraries past our own hooks.
//! * [`dlsym_hook`] replaces `dlsym`, through which most callers find libcuda's functions.
//! * [`dlclose_hook`] notifies the recorder that code addresses may be reused.
//! * [`got_patch`] redirects calls of modules that were loaded before us.

mod dlclose_hook;
mod dlsym_hook;
pub(crate) mod got_patch;
pub(crate) mod symbols;
