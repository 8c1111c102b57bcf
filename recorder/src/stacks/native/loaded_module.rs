//! Which module an address lies in, and where its unwind tables are.
//!
//! Constraint: asked from inside the hook, where the loader's lock must not be taken; but tables must never be read of a
//! module that is gone. Consequence: the loader's own lock-free look-up (`_dl_find_object`, glibc 2.35 on) is asked for each
//! address that is met for the first time. Who asks has the address on its stack, so the module is in use and stays. An older
//! glibc has only `dl_iterate_phdr`, which takes the lock; it too is asked once an address, where the C++ runtime asks it
//! for every frame of every exception.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What `_dl_find_object` fills in (`struct dl_find_object` of glibc, 64 bit).
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

/// The function; 0 where there is none.
static FIND_OBJECT: AtomicUsize = AtomicUsize::new(0);
/// Finds out what the loader offers. To be called before the first capture, outside of any hook that is in a hurry.
pub fn prepare() {
    // SAFETY: a NUL-terminated name; looking up a symbol has no other effect.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    FIND_OBJECT.store(function as usize, Ordering::Relaxed);
}

/// A loaded module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedModule {
    /// Where `.eh_frame_hdr` is.
    pub header_at: usize,
    start: usize,
    end: usize,
}

impl LoadedModule {
    /// The module that an address of code lies in, if it has unwind tables.
    pub(crate) fn of(address: usize) -> Option<Self> {
        match FIND_OBJECT.load(Ordering::Relaxed) {
            0 => Self::by_iteration(address),
            function => {
                // SAFETY: what `prepare` found under this name, which has had this type since it exists.
                let find = unsafe { std::mem::transmute::<usize, FindObject>(function) };
                Self::by_question(find, address)
            }
        }
    }

    fn by_question(find: FindObject, address: usize) -> Option<Self> {
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
    fn by_iteration(address: usize) -> Option<Self> {
        let mut asked = (address, None);
        // SAFETY: the callback has the expected type, gets our pair back, and does not call the loader.
        unsafe { libc::dl_iterate_phdr(Some(meet), (&raw mut asked).cast()) };
        asked.1
    }

    /// What is loaded from an address on, to the end of the module.
    ///
    /// The lifetime is that of the module, which is in use for as long as a frame of it is on the stack.
    pub(crate) fn bytes_from<'a>(&self, at: usize) -> Option<&'a [u8]> {
        // SAFETY: inside a module that is in use. Only what its tables lead to is read, which is loaded and never written to.
        (self.start..self.end)
            .contains(&at)
            .then(|| unsafe { std::slice::from_raw_parts(at as *const u8, self.end - at) })
    }
}

unsafe extern "C" fn meet(info: *mut libc::dl_phdr_info, _: usize, data: *mut libc::c_void) -> i32 {
    // SAFETY: the loader passes a valid info, and `data` is the pair given to dl_iterate_phdr.
    let (info, (address, found)) = unsafe { (&*info, &mut *data.cast::<(usize, Option<LoadedModule>)>()) };
    // SAFETY: dlpi_phdr points to dlpi_phnum headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let range = |header: &libc::Elf64_Phdr| {
        let start = (info.dlpi_addr + header.p_vaddr) as usize;
        start..start + header.p_memsz as usize
    };
    let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(range);
    if !loaded().any(|range| range.contains(address)) {
        return 0;
    }
    let start = loaded().map(|range| range.start).min().unwrap_or_default();
    let end = loaded().map(|range| range.end).max().unwrap_or_default();
    let tables = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME);
    *found = tables.map(|header| LoadedModule { header_at: range(header).start, start, end });
    1
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn both_ways_find_the_same() {
        prepare();
        let addresses = [both_ways_find_the_same as *const () as usize, libc::malloc as *const () as usize];
        for address in addresses {
            let (question, iteration) =
                (LoadedModule::of(address).unwrap(), LoadedModule::by_iteration(address).unwrap());
            assert_eq!(question.header_at, iteration.header_at);
            assert!(question.start <= iteration.start && question.end >= iteration.end);
            let bytes = question.bytes_from(question.header_at).unwrap();
            assert_eq!(bytes[0], 1, "the version of .eh_frame_hdr");
        }
    }

    #[test]
    fn what_is_no_module_is_not_found() {
        prepare();
        let on_the_heap = Box::new([0u8; 64]);
        assert!(LoadedModule::of(on_the_heap.as_ptr() as usize).is_none());
        assert!(LoadedModule::by_iteration(on_the_heap.as_ptr() as usize).is_none());
    }
}
