//! Calls of modules that were loaded before us.
//!
//! Constraint: whoever is loaded by `dlopen` into a running program stands behind everybody in the loader's order: what is bound
//! stays bound, and what is loaded later finds libc first. Consequence: the slots through which each module calls a function of
//! which we have one are pointed to ours, which is what a preload would have had the loader do; modules that come later are
//! looked for again ([`look_again`]). An address that a program has already taken by `dlsym` is out of reach.
//!
//! A slot is one aligned word: a thread that calls through it meanwhile gets the one function or the other. Where the loader has
//! made its page read-only (RELRO), it is writable for the moment of the store.

mod tables;

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::dynamic::{forget_error, library_of, real_dlsym};
use tables::{Relocation, Symbol, slots};

/// Which functions of ours are called by others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// All that a preload would stand before.
    All,
    /// PyTorch's, and those of the process: no function of the driver, and no look-up of one.
    WithoutDriver,
}

const OF_PYTORCH: [&CStr; 4] = [
    c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
    c"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE",
    c"_ZN2at15sequence_number17get_and_incrementEv",
    c"_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBufferERKS2_INS0_10ReadyQueueEE",
];
const OF_THE_PROCESS: [&CStr; 3] = [c"dlclose", c"_exit", c"_Exit"];
const OF_THE_DRIVER: [&CStr; 3] = [c"dlsym", c"cuGetProcAddress", c"cuGetProcAddress_v2"];
/// Modules that are left alone: the loader, the C library, and the driver, whose look-ups are part of calls that are recorded.
const NOT_THESE: [&str; 6] = ["ld-linux", "libc.so", "libdl.so", "libpthread.so", "linux-vdso", "libcuda.so"];

/// What is pointed where, and which modules have been seen to.
struct Redirection {
    ours: HashMap<&'static CStr, usize>,
    done: HashSet<(usize, usize)>,
    /// The loader's counts of modules that came and went.
    seen: (u64, u64),
    own_base: usize,
}

static REDIRECTION: Mutex<Option<Redirection>> = Mutex::new(None);

/// Points the slots of all modules to our functions, from now on.
pub(crate) fn redirect(scope: Scope) {
    let Ok(mut redirection) = REDIRECTION.lock() else { return };
    if redirection.is_none() {
        *redirection = Redirection::new(scope);
    }
    if let Some(redirection) = redirection.as_mut() {
        redirection.visit_all();
    }
}

/// Sees to the modules that came since. Cheap where none did.
pub(crate) fn look_again() {
    // Who is just doing it does it for us.
    if let Ok(mut redirection) = REDIRECTION.try_lock()
        && let Some(redirection) = redirection.as_mut()
    {
        redirection.visit_all();
    }
}

impl Redirection {
    fn new(scope: Scope) -> Option<Self> {
        let own = library_of(Self::new as *const c_void)?;
        // SAFETY: the loader's own name of this library, which is loaded.
        let handle = unsafe { libc::dlopen(own.path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            forget_error();
            return None;
        }
        let rows = crate::cuda::names().filter_map(|name| CString::new(name).ok());
        let rows: Vec<&'static CStr> = match scope {
            Scope::All => {
                rows.map(|name| &*Box::leak(name.into_boxed_c_str())).chain(OF_THE_DRIVER).collect()
            }
            Scope::WithoutDriver => Vec::new(),
        };
        let names = rows.into_iter().chain(OF_PYTORCH).chain(OF_THE_PROCESS);
        let ours = names.filter_map(|name| {
            let address = real_dlsym(handle, name);
            if address.is_null() {
                forget_error();
            }
            let is_own = library_of(address).is_some_and(|library| library.base == own.base);
            is_own.then_some((name, address as usize))
        });
        let ours = ours.collect();
        // SAFETY: only undoes the count of above; this library is never unloaded.
        unsafe { libc::dlclose(handle) };
        Some(Self { ours, done: HashSet::new(), seen: (u64::MAX, 0), own_base: own.base as usize })
    }

    fn visit_all(&mut self) {
        let now = gpumemtrace_recorder::loaded_module_counts();
        if now == self.seen {
            return;
        }
        if now.1 != self.seen.1 {
            // Others may lie where some have been.
            self.done.clear();
        }
        self.seen = now;
        // SAFETY: the callback gets back what is passed here, and it lives as long as the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), std::ptr::from_mut(self).cast()) };
    }

    fn visit(&mut self, module: &Module) {
        if module.base == self.own_base || module.is_left_alone() || !self.done.insert(module.identity()) {
            return;
        }
        let Some(found) = module.dynamic() else { return };
        for relocations in [found.jump_slots, found.relocations] {
            let all = slots(relocations, |index| found.symbol(index), found.strings);
            for (offset, name) in all {
                if let Some(ours) = self.ours.get(name) {
                    module.point(offset, *ours);
                }
            }
        }
    }
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, redirection: *mut c_void) -> c_int {
    // SAFETY: the loader's description of a module, and what was passed above.
    let (info, redirection) = unsafe { (&*info, &mut *redirection.cast::<Redirection>()) };
    let module = Module::new(info);
    redirection.visit(&module);
    0
}

/// A loaded module.
struct Module<'a> {
    base: usize,
    name: &'a CStr,
    headers: &'a [libc::Elf64_Phdr],
}

/// What its dynamic section points to.
struct Dynamic<'a> {
    jump_slots: &'a [Relocation],
    relocations: &'a [Relocation],
    strings: &'a [u8],
    symbols: *const Symbol,
    end: usize,
}

impl Dynamic<'_> {
    fn symbol(&self, index: u32) -> Option<Symbol> {
        let at = (self.symbols as usize).checked_add(index as usize * size_of::<Symbol>())?;
        // SAFETY: inside the module, at an index that the loader has used for the same relocation.
        (at + size_of::<Symbol>() <= self.end).then(|| unsafe { (at as *const Symbol).read_unaligned() })
    }
}

impl<'a> Module<'a> {
    fn new(info: &'a libc::dl_phdr_info) -> Self {
        // SAFETY: as many headers as it says, and a NUL-terminated name, which live while the loader's lock is held.
        let (headers, name) = unsafe {
            let name = if info.dlpi_name.is_null() { c"" } else { CStr::from_ptr(info.dlpi_name) };
            (std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)), name)
        };
        Self { base: info.dlpi_addr as usize, name, headers }
    }

    fn identity(&self) -> (usize, usize) {
        (self.base, self.headers.as_ptr() as usize)
    }

    fn is_left_alone(&self) -> bool {
        let file = self.name.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        NOT_THESE.iter().any(|name| file.starts_with(name.as_bytes()))
    }

    fn of_kind(&self, kind: u32) -> impl Iterator<Item = &'a libc::Elf64_Phdr> {
        self.headers.iter().filter(move |header| header.p_type == kind)
    }

    /// True if this many bytes from an address on lie in what was loaded of the module.
    fn holds(&self, address: usize, bytes: usize) -> bool {
        self.of_kind(libc::PT_LOAD).any(|header| {
            let begin = self.base.wrapping_add(header.p_vaddr as usize);
            address >= begin && address.saturating_add(bytes) <= begin.saturating_add(header.p_memsz as usize)
        })
    }

    fn slice<T>(&self, at: usize, bytes: usize) -> Option<&'a [T]> {
        let is_there = bytes == 0 || self.holds(at, bytes) && at.is_multiple_of(align_of::<T>());
        let (at, count) = if bytes == 0 { (align_of::<T>(), 0) } else { (at, bytes / size_of::<T>()) };
        // SAFETY: it lies in the module, which is loaded while the loader's lock is held; plain numbers.
        is_there.then(|| unsafe { std::slice::from_raw_parts(at as *const T, count) })
    }

    fn dynamic(&self) -> Option<Dynamic<'a>> {
        let header = self.of_kind(libc::PT_DYNAMIC).next()?;
        let at = self.base.wrapping_add(header.p_vaddr as usize);
        let entries: &[[u64; 2]] = self.slice(at, header.p_memsz as usize)?;
        let value = |tag: u64| entries.iter().take_while(|entry| entry[0] != 0).find(|entry| entry[0] == tag);
        // The loader has made addresses of most of them, in place.
        let address = |tag| {
            let value = value(tag)?[1] as usize;
            Some(if self.holds(value, 1) { value } else { self.base.wrapping_add(value) })
        };
        let size = |tag| value(tag).map_or(0, |entry| entry[1] as usize);
        let symbols = address(DT_SYMTAB)?;
        let end = self.of_kind(libc::PT_LOAD).find_map(|header| {
            let begin = self.base.wrapping_add(header.p_vaddr as usize);
            let end = begin.saturating_add(header.p_memsz as usize);
            (begin..end).contains(&symbols).then_some(end)
        })?;
        let is_rela = value(DT_PLTREL).is_none_or(|entry| entry[1] == DT_RELA);
        Some(Dynamic {
            jump_slots: if is_rela {
                self.slice(address(DT_JMPREL).unwrap_or(0), size(DT_PLTRELSZ))?
            } else {
                &[]
            },
            relocations: self.slice(address(DT_RELA).unwrap_or(0), size(DT_RELASZ))?,
            strings: self.slice(address(DT_STRTAB)?, size(DT_STRSZ))?,
            symbols: symbols as *const Symbol,
            end,
        })
    }

    /// Points a slot to a function. What cannot be written stays as it is.
    fn point(&self, offset: u64, function: usize) {
        let at = self.base.wrapping_add(offset as usize);
        let is_writable = self.of_kind(libc::PT_LOAD).any(|header| {
            let begin = self.base.wrapping_add(header.p_vaddr as usize);
            header.p_flags & libc::PF_W != 0
                && at >= begin
                && at + size_of::<usize>() <= begin + header.p_memsz as usize
        });
        if !is_writable || !at.is_multiple_of(align_of::<usize>()) {
            return;
        }
        // SAFETY: an aligned word of the module's data, which the loader and nobody else writes, in one store as well.
        let slot = unsafe { AtomicUsize::from_ptr(at as *mut usize) };
        if slot.load(Ordering::Relaxed) == function {
            return;
        }
        let page_bytes = page_bytes();
        let page = (at & !(page_bytes - 1)) as *mut c_void;
        let is_sealed = self.of_kind(libc::PT_GNU_RELRO).any(|header| {
            let begin = self.base.wrapping_add(header.p_vaddr as usize);
            // The loader seals whole pages.
            let end = (begin + header.p_memsz as usize) & !(page_bytes - 1);
            (begin & !(page_bytes - 1)..end).contains(&at)
        });
        let protect = |protection| {
            // SAFETY: a page of the module's data.
            unsafe { libc::mprotect(page, page_bytes, protection) == 0 }
        };
        if !is_sealed {
            slot.store(function, Ordering::Release);
        } else if protect(libc::PROT_READ | libc::PROT_WRITE) {
            slot.store(function, Ordering::Release);
            protect(libc::PROT_READ);
        }
    }
}

const DT_PLTRELSZ: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_STRSZ: u64 = 10;
const DT_PLTREL: u64 = 20;
const DT_JMPREL: u64 = 23;

fn page_bytes() -> usize {
    // SAFETY: no memory is involved.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn instead() -> libc::pid_t {
        -77
    }

    fn redirection(name: &'static CStr) -> Redirection {
        let ours = HashMap::from([(name, instead as *const () as usize)]);
        Redirection { ours, done: HashSet::new(), seen: (u64::MAX, 0), own_base: 1 }
    }

    #[test]
    fn a_call_through_a_slot_goes_where_it_points() {
        // Nobody else in this process asks for it.
        // SAFETY: no arguments, no effect.
        let ask = || unsafe { libc::getppid() };
        let before = ask();
        redirection(c"getppid").visit_all();
        assert_eq!(ask(), -77, "the test's own slot, sealed or not");
        // SAFETY: a NUL-terminated name.
        let real = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getppid".as_ptr()) };
        let mut back = redirection(c"getppid");
        back.ours.insert(c"getppid", real as usize);
        back.visit_all();
        assert_eq!(ask(), before);
    }

    #[test]
    fn what_has_been_seen_to_is_not_looked_at_again() {
        let mut twice = redirection(c"gpumemtrace_no_such_function");
        twice.visit_all();
        let seen = twice.done.clone();
        assert!(!seen.is_empty());
        twice.seen = (u64::MAX, twice.seen.1);
        twice.visit_all();
        assert!(seen.is_subset(&twice.done));
    }
}
