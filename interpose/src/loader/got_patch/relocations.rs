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

/// `Elf64_Sym`; only the name is used.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct ElfSym {
    pub(super) name: u32,
    pub(super) rest: [u32; 5],
}

/// `R_X86_64_GLOB_DAT`: an address that the module's code reads or calls through.
const GLOB_DAT: u32 = 6;
/// `R_X86_64_JUMP_SLOT`: an address that the procedure linkage table jumps to.
const JUMP_SLOT: u32 = 7;

/// The slots that hold a function's address: offset from the load address, and symbol name.
pub(super) fn got_slots<'a>(
    relocations: &'a [ElfRela],
    symbol: impl Fn(u32) -> Option<ElfSym> + 'a,
    strings: &'a [u8],
) -> impl Iterator<Item = (u64, &'a CStr)> {
    relocations.iter().filter_map(move |relocation| {
        if !matches!(relocation.info as u32, GLOB_DAT | JUMP_SLOT) || relocation.addend != 0 {
            return None;
        }
        let symbol = symbol((relocation.info >> 32) as u32)?;
        let name = CStr::from_bytes_until_nul(strings.get(symbol.name as usize..)?).ok()?;
        Some((relocation.offset, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRINGS: &[u8] = b"\0dlsym\0cuMemAlloc_v2\0endless";

    fn symbol(name: u32) -> ElfSym {
        ElfSym { name, rest: [0; 5] }
    }

    fn listed(relocations: &[ElfRela]) -> Vec<(u64, String)> {
        let symbols = [symbol(0), symbol(1), symbol(7), symbol(21), symbol(1000)];
        got_slots(relocations, |index| symbols.get(index as usize).copied(), STRINGS)
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
    fn layouts_match_elf_h() {
        assert_eq!((size_of::<ElfRela>(), size_of::<ElfSym>()), (24, 24));
    }
}
