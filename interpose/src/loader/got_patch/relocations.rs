//! The GOT slots of a module, listed by symbol name.
//!
//! The relocation tables belong to another program's file. [`got_slots`] is a pure function over
//! slices: it checks every index and writes nothing.

use std::ffi::CStr;

/// An `Elf64_Rela` as in `<elf.h>`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct ElfRela {
    pub(super) offset: u64,
    pub(super) info: u64,
    pub(super) addend: i64,
}

/// `R_X86_64_GLOB_DAT`: an address that the module's code reads or calls through.
const GLOB_DAT: u32 = 6;
/// `R_X86_64_JUMP_SLOT`: an address that the procedure linkage table jumps to.
const JUMP_SLOT: u32 = 7;

/// The slots that hold a function's address: offset from the load address, and symbol name.
/// `name_at` returns the offset of a symbol's name in the string table.
pub(super) fn got_slots<'a>(
    relocations: &'a [ElfRela],
    name_at: impl Fn(u32) -> Option<u32> + 'a,
    strings: &'a [u8],
) -> impl Iterator<Item = (u64, &'a CStr)> {
    relocations.iter().filter_map(move |relocation| {
        if !matches!(relocation.info as u32, GLOB_DAT | JUMP_SLOT) || relocation.addend != 0 {
            return None;
        }
        let name_at = name_at((relocation.info >> 32) as u32)? as usize;
        let name = CStr::from_bytes_until_nul(strings.get(name_at..)?).ok()?;
        Some((relocation.offset, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRINGS: &[u8] = b"\0dlsym\0cuMemAlloc_v2\0endless";

    fn listed(relocations: &[ElfRela]) -> Vec<(u64, String)> {
        let names = [0, 1, 7, 21, 1000];
        got_slots(relocations, |index| names.get(index as usize).copied(), STRINGS)
            .map(|(offset, name)| (offset, name.to_str().unwrap().to_owned()))
            .collect()
    }

    fn relocation(offset: u64, symbol: u64, kind: u64, addend: i64) -> ElfRela {
        ElfRela { offset, info: symbol << 32 | kind, addend }
    }

    #[test]
    fn slot_has_the_name_of_its_symbol() {
        let slot = |offset, name: &str| (offset, name.to_owned());
        let relocations = [relocation(0x10, 1, 7, 0), relocation(0x18, 2, 6, 0)];
        assert_eq!(listed(&relocations), [slot(0x10, "dlsym"), slot(0x18, "cuMemAlloc_v2")]);
    }

    #[test]
    fn other_relocations_and_bad_names_are_skipped() {
        assert_eq!(listed(&[relocation(0, 1, 8, 0), relocation(0, 1, 1, 0)]), [], "other relocation types");
        assert_eq!(listed(&[relocation(0, 1, 7, 8)]), [], "an address with an addend");
        assert_eq!(listed(&[relocation(0, 77, 7, 0)]), [], "no such symbol");
        assert_eq!(listed(&[relocation(0, 4, 7, 0)]), [], "no such name");
        assert_eq!(listed(&[relocation(0, 3, 7, 0)]), [], "a name without a NUL");
    }

    #[test]
    fn layout_matches_elf_h() {
        assert_eq!(size_of::<ElfRela>(), 24);
    }
}
