//! A loaded ELF module: its dynamic section, and writes to its GOT slots.
//!
//! All offsets come from another program's file. Every range is checked against the module's
//! loaded segments before it is read.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::relocations::{ElfRela, ElfSym};

/// File name prefixes of modules that keep their GOT: the loader, the C library, and the driver.
/// The driver's own look-ups are part of calls that are recorded.
const UNPATCHED_MODULES: [&str; 6] =
    ["ld-linux", "libc.so", "libdl.so", "libpthread.so", "linux-vdso", "libcuda.so"];

/// A module, as `dl_iterate_phdr` describes it. Valid while the loader's lock is held.
pub(super) struct PatchableModule<'a> {
    pub(super) base: usize,
    name: &'a CStr,
    headers: &'a [libc::Elf64_Phdr],
}

/// The tables that a dynamic section points to.
pub(super) struct DynamicSection<'a> {
    pub(super) jump_slots: &'a [ElfRela],
    pub(super) relocations: &'a [ElfRela],
    pub(super) strings: &'a [u8],
    symbols: *const ElfSym,
    /// End of the segment that holds the symbols: the section does not state their number.
    symbols_end: usize,
}

impl DynamicSection<'_> {
    pub(super) fn symbol(&self, index: u32) -> Option<ElfSym> {
        let at = (self.symbols as usize).checked_add(index as usize * size_of::<ElfSym>())?;
        // SAFETY: within the module's segment; the loader used the same index for this relocation.
        (at + size_of::<ElfSym>() <= self.symbols_end)
            .then(|| unsafe { (at as *const ElfSym).read_unaligned() })
    }
}

impl<'a> PatchableModule<'a> {
    pub(super) fn new(info: &'a libc::dl_phdr_info) -> Self {
        // SAFETY: the loader's headers and NUL-terminated name, which live while its lock is held.
        let (headers, name) = unsafe {
            let name = if info.dlpi_name.is_null() { c"" } else { CStr::from_ptr(info.dlpi_name) };
            (std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)), name)
        };
        Self { base: info.dlpi_addr as usize, name, headers }
    }

    /// Load address and address of the program headers.
    pub(super) fn identity(&self) -> (usize, usize) {
        (self.base, self.headers.as_ptr() as usize)
    }

    /// True if the module keeps its GOT ([`UNPATCHED_MODULES`]).
    pub(super) fn is_exempt(&self) -> bool {
        let file = self.name.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        UNPATCHED_MODULES.iter().any(|name| file.starts_with(name.as_bytes()))
    }

    fn headers_of_type(&self, kind: u32) -> impl Iterator<Item = &'a libc::Elf64_Phdr> {
        self.headers.iter().filter(move |header| header.p_type == kind)
    }

    /// True if the range lies within one loaded segment of the module.
    fn contains(&self, address: usize, bytes: usize) -> bool {
        self.headers_of_type(libc::PT_LOAD).any(|header| {
            let begin = self.base.wrapping_add(header.p_vaddr as usize);
            address >= begin && address.saturating_add(bytes) <= begin.saturating_add(header.p_memsz as usize)
        })
    }

    fn slice<T>(&self, at: usize, bytes: usize) -> Option<&'a [T]> {
        let is_valid = bytes == 0 || self.contains(at, bytes) && at.is_multiple_of(align_of::<T>());
        let (at, count) = if bytes == 0 { (align_of::<T>(), 0) } else { (at, bytes / size_of::<T>()) };
        // SAFETY: aligned, within the module, which stays loaded while the loader's lock is held;
        // the elements are plain numbers.
        is_valid.then(|| unsafe { std::slice::from_raw_parts(at as *const T, count) })
    }

    /// Reads the dynamic section. `None` if it is missing or points outside the module.
    pub(super) fn dynamic_section(&self) -> Option<DynamicSection<'a>> {
        let header = self.headers_of_type(libc::PT_DYNAMIC).next()?;
        let at = self.base.wrapping_add(header.p_vaddr as usize);
        let entries: &[[u64; 2]] = self.slice(at, header.p_memsz as usize)?;
        let value = |tag: u64| entries.iter().take_while(|entry| entry[0] != 0).find(|entry| entry[0] == tag);
        // The loader has relocated most values in place: those are addresses already.
        let address = |tag| {
            let value = value(tag)?[1] as usize;
            Some(if self.contains(value, 1) { value } else { self.base.wrapping_add(value) })
        };
        let size = |tag| value(tag).map_or(0, |entry| entry[1] as usize);
        let symbols = address(DT_SYMTAB)?;
        let symbols_end = self.headers_of_type(libc::PT_LOAD).find_map(|header| {
            let begin = self.base.wrapping_add(header.p_vaddr as usize);
            let end = begin.saturating_add(header.p_memsz as usize);
            (begin..end).contains(&symbols).then_some(end)
        })?;
        let is_rela = value(DT_PLTREL).is_none_or(|entry| entry[1] == DT_RELA);
        Some(DynamicSection {
            jump_slots: if is_rela {
                self.slice(address(DT_JMPREL).unwrap_or(0), size(DT_PLTRELSZ))?
            } else {
                &[]
            },
            relocations: self.slice(address(DT_RELA).unwrap_or(0), size(DT_RELASZ))?,
            strings: self.slice(address(DT_STRTAB)?, size(DT_STRSZ))?,
            symbols: symbols as *const ElfSym,
            symbols_end,
        })
    }

    /// Points the slot at `offset` to `function`. A slot that cannot be written stays unchanged.
    ///
    /// The slot is one aligned word, so a thread that calls through it meanwhile reaches either
    /// function. A slot in a read-only page (RELRO) is made writable for the store.
    pub(super) fn set_slot(&self, offset: u64, function: usize) {
        let at = self.base.wrapping_add(offset as usize);
        let is_writable = self.headers_of_type(libc::PT_LOAD).any(|header| {
            let begin = self.base.wrapping_add(header.p_vaddr as usize);
            header.p_flags & libc::PF_W != 0
                && at >= begin
                && at + size_of::<usize>() <= begin + header.p_memsz as usize
        });
        if !is_writable || !at.is_multiple_of(align_of::<usize>()) {
            return;
        }
        // SAFETY: an aligned word of the module's data, which only the loader writes, also in one
        // store.
        let slot = unsafe { AtomicUsize::from_ptr(at as *mut usize) };
        if slot.load(Ordering::Relaxed) == function {
            return;
        }
        let page_bytes = page_bytes();
        let page = (at & !(page_bytes - 1)) as *mut c_void;
        let is_read_only = self.headers_of_type(libc::PT_GNU_RELRO).any(|header| {
            let begin = self.base.wrapping_add(header.p_vaddr as usize);
            // The loader protects whole pages only.
            let end = (begin + header.p_memsz as usize) & !(page_bytes - 1);
            (begin & !(page_bytes - 1)..end).contains(&at)
        });
        let protect = |protection| {
            // SAFETY: a page of the module's data, which only the loader has protected before.
            unsafe { libc::mprotect(page, page_bytes, protection) == 0 }
        };
        if !is_read_only {
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
    // SAFETY: `sysconf` touches no memory of ours.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
