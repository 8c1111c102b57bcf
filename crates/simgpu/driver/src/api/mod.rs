//! The exported functions by topic; each module lists its own in `EXPORTS`.

pub(crate) mod arrays;
pub(crate) mod captures;
pub(crate) mod contexts;
pub(crate) mod copies;
pub(crate) mod graphs;
pub(crate) mod interop;
pub(crate) mod memory;
pub(crate) mod modules;
pub(crate) mod multicast;
pub(crate) mod pools;
pub(crate) mod proc_address;
pub(crate) mod streams;
pub(crate) mod unsupported;
pub(crate) mod virtual_memory;

use crate::names::Export;

/// Iterates over all exported functions.
pub(crate) fn exports() -> impl Iterator<Item = &'static Export> {
    let modules: [&'static [Export]; 14] = [
        arrays::EXPORTS,
        captures::EXPORTS,
        contexts::EXPORTS,
        copies::EXPORTS,
        graphs::EXPORTS,
        interop::EXPORTS,
        memory::EXPORTS,
        modules::EXPORTS,
        multicast::EXPORTS,
        pools::EXPORTS,
        proc_address::EXPORTS,
        unsupported::EXPORTS,
        streams::EXPORTS,
        virtual_memory::EXPORTS,
    ];
    modules.into_iter().flatten()
}
