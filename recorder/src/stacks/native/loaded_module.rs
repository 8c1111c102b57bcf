//! Finds the module that contains a code address, and its unwind tables.
//!
//! Hooks ask for this, and the loader's lock must not be taken there. But the tables of an unloaded
//! module must never be read. So each new address is looked up with the loader's own lock-free
//! function (`_dl_find_object`, glibc 2.35 and later). The caller has the address on its stack, so
//! the module is in use and stays loaded. With older versions of glibc the loader's list is
//! searched, which has a lock of its own; once for each address, where the C++ runtime does so for
//! every frame of every exception.

use crate::platform::cancellation::uninterrupted;
use crate::platform::elf_module::{ElfModule, find_module};
use crate::platform::find_symbol;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `struct dl_find_object` of glibc (64 bit), which `_dl_find_object` fills in.
#[repr(C)]
struct DlFindObjectResult {
    flags: u64,
    map_start: usize,
    map_end: usize,
    link_map: usize,
    eh_frame_header: usize,
    reserved: [u64; 7],
}

type FindObject = unsafe extern "C" fn(usize, *mut DlFindObjectResult) -> i32;

/// The address of `_dl_find_object`; 0 if the C library does not have it.
static FIND_OBJECT: AtomicUsize = AtomicUsize::new(0);

/// Looks up the loader's function. To be called once before the first capture.
pub fn prepare() {
    FIND_OBJECT.store(find_symbol(c"_dl_find_object").unwrap_or(0), Ordering::Relaxed);
}

/// A loaded module with unwind tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedModule {
    /// Address of its `.eh_frame_hdr`.
    pub header_at: usize,
    start: usize,
    end: usize,
}

impl LoadedModule {
    /// The module that contains a code address, if it has unwind tables.
    pub(crate) fn containing(address: usize) -> Option<Self> {
        match FIND_OBJECT.load(Ordering::Relaxed) {
            0 => Self::find_by_iteration(address),
            function => {
                // SAFETY: the symbol that `prepare` found, which has had this type since it exists.
                let find = unsafe { std::mem::transmute::<usize, FindObject>(function) };
                Self::find_lock_free(find, address)
            }
        }
    }

    fn find_lock_free(find: FindObject, address: usize) -> Option<Self> {
        let mut found = DlFindObjectResult {
            flags: 0,
            map_start: 0,
            map_end: 0,
            link_map: 0,
            eh_frame_header: 0,
            reserved: [0; 7],
        };
        // SAFETY: the structure is the one that the function fills in.
        let is_found = unsafe { find(address, &raw mut found) } == 0;
        (is_found && found.eh_frame_header != 0).then_some(Self {
            header_at: found.eh_frame_header,
            start: found.map_start,
            end: found.map_end,
        })
    }

    #[cold]
    fn find_by_iteration(address: usize) -> Option<Self> {
        let tables = |module: &ElfModule<'_>| {
            let (start, end) = module.loaded_range()?;
            let header = module.headers_of_type(libc::PT_GNU_EH_FRAME).next()?;
            Some(Self { header_at: module.range(header).0, start, end })
        };
        // Under the lock of the loader's list.
        uninterrupted(|| find_module(|module| module.contains(address, 1).then(|| tables(module)))).flatten()
    }

    /// The bytes from an address to the end of the module.
    ///
    /// The lifetime is that of the module, which stays loaded while one of its frames is on the
    /// stack.
    pub(crate) fn bytes_from<'a>(&self, at: usize) -> Option<&'a [u8]> {
        if !(self.start..self.end).contains(&at) {
            return None;
        }
        // SAFETY: inside a module in use. Only tables are read, which are mapped and never written
        // to.
        Some(unsafe { std::slice::from_raw_parts(at as *const u8, self.end - at) })
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn both_ways_find_the_same_module() {
        prepare();
        let addresses =
            [both_ways_find_the_same_module as *const () as usize, libc::malloc as *const () as usize];
        for address in addresses {
            let (lock_free, iteration) = (
                LoadedModule::containing(address).unwrap(),
                LoadedModule::find_by_iteration(address).unwrap(),
            );
            assert_eq!(lock_free.header_at, iteration.header_at);
            assert!(lock_free.start <= iteration.start && lock_free.end >= iteration.end);
            let bytes = lock_free.bytes_from(lock_free.header_at).unwrap();
            assert_eq!(bytes[0], 1, "the version of .eh_frame_hdr");
        }
    }

    #[test]
    fn heap_address_is_in_no_module() {
        prepare();
        let on_the_heap = Box::new([0u8; 64]);
        assert!(LoadedModule::containing(on_the_heap.as_ptr() as usize).is_none());
        assert!(LoadedModule::find_by_iteration(on_the_heap.as_ptr() as usize).is_none());
    }
}
