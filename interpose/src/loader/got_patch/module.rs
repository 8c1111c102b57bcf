//! The GOT slots of a loaded module: which modules keep theirs, the tables that list them, and
//! writes to them.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpumemtrace_recorder::elf::{ElfModule, ElfSymbol};

use super::relocations::ElfRela;

/// File name prefixes of modules that keep their GOT: the loader, the C library, and the driver.
/// The driver's own look-ups are part of calls that are recorded.
const UNPATCHED_MODULES: [&str; 6] =
    ["ld-linux", "libc.so", "libdl.so", "libpthread.so", "linux-vdso", "libcuda.so"];

/// A module with slots that may be changed. Valid while the loader's list is locked.
pub(super) struct PatchableModule<'a>(pub(super) &'a ElfModule<'a>);

/// The tables that list a module's slots. The symbols' number is not stated, so there may be more.
pub(super) struct SlotTables<'a> {
    pub(super) jump_slots: &'a [ElfRela],
    pub(super) relocations: &'a [ElfRela],
    pub(super) strings: &'a [u8],
    pub(super) symbols: &'a [ElfSymbol],
}

impl<'a> PatchableModule<'a> {
    /// True if the module keeps its GOT ([`UNPATCHED_MODULES`]).
    pub(super) fn is_exempt(&self) -> bool {
        UNPATCHED_MODULES.iter().any(|name| self.0.file_name().starts_with(name.as_bytes()))
    }

    /// Finds the tables. `None` if one is missing or points outside the module.
    pub(super) fn slot_tables(&self) -> Option<SlotTables<'a>> {
        let section = self.0.dynamic_section()?;
        let table = |at: Option<usize>, size| {
            self.0.slice(at.unwrap_or(0), section.value(size).map_or(0, |bytes| bytes as usize))
        };
        let is_rela = section.value(DT_PLTREL).is_none_or(|kind| kind == DT_RELA);
        Some(SlotTables {
            jump_slots: if is_rela { table(section.address(DT_JMPREL), DT_PLTRELSZ)? } else { &[] },
            relocations: table(section.address(DT_RELA), DT_RELASZ)?,
            strings: section.strings()?,
            symbols: section.symbols()?,
        })
    }

    /// Points the slot at `offset` to `function`. A slot that cannot be written stays unchanged.
    ///
    /// The slot is one aligned word, so a thread that calls through it meanwhile reaches either
    /// function. A slot in a read-only page (RELRO) is made writable for the store.
    pub(super) fn set_slot(&self, offset: u64, function: usize) {
        let at = self.0.load_bias.wrapping_add(offset as usize);
        let is_writable = self.0.headers_of_type(libc::PT_LOAD).any(|header| {
            let (begin, end) = self.0.range(header);
            header.p_flags & libc::PF_W != 0 && at >= begin && at + size_of::<usize>() <= end
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
        let is_read_only = self.0.headers_of_type(libc::PT_GNU_RELRO).any(|header| {
            // The loader protects whole pages only.
            let (begin, end) = self.0.range(header);
            (begin & !(page_bytes - 1)..end & !(page_bytes - 1)).contains(&at)
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
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_PLTREL: u64 = 20;
const DT_JMPREL: u64 = 23;

fn page_bytes() -> usize {
    // SAFETY: `sysconf` touches no memory of ours.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
