//! The exported functions, by topic. Each module lists its own in `EXPORTS`.

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
pub(crate) mod rest;
pub(crate) mod streams;
pub(crate) mod virtual_memory;

use crate::names::Export;

/// Every exported function.
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
        rest::EXPORTS,
        streams::EXPORTS,
        virtual_memory::EXPORTS,
    ];
    modules.into_iter().flatten()
}
