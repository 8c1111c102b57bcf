//! The dynamic loader: look-ups past our hooks, and calls of other modules redirected to them.
//!
//! Nothing here knows a driver function: `cuda`, which lies above, has the `dlsym` hook. Nothing
//! that a hook calls takes the loader's lock, except where the program has asked for it.
//!
//! * [`symbols`] looks up symbols and libraries past our own hooks.
//! * [`dlclose_hook`] notifies the recorder that code addresses may be reused.
//! * [`got_patch`] redirects calls of modules that were loaded before us.

pub(crate) mod dlclose_hook;
pub(crate) mod got_patch;
pub(crate) mod symbols;
