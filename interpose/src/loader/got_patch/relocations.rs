//! The slots of a module through which it calls other modules, out of its tables.
//!
//! Constraint: the tables are the loader's own, but what they hold is another program's. Consequence: this is a plain function over
//! slices, which believes no index, and writes nothing.

use std::ffi::CStr;

/// `Elf64_Rela`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Relocation {
    pub(super) offset: u64,
    pub(super) info: u64,
    pub(super) addend: i64,
}

/// `Elf64_Sym`, of which only the name matters here.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Symbol {
    pub(super) name: u32,
    pub(super) rest: [u32; 5],
}

/// `R_X86_64_GLOB_DAT`: an address that the module's code reads, or calls through.
const GLOB_DAT: u32 = 6;
/// `R_X86_64_JUMP_SLOT`: an address that its procedure linkage table jumps to.
const JUMP_SLOT: u32 = 7;

/// Where in the module (relative to where it was loaded) the address of which function is kept.
pub(super) fn slots<'a>(
    relocations: &'a [Relocation],
    symbol: impl Fn(u32) -> Option<Symbol> + 'a,
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

    fn symbol(name: u32) -> Symbol {
        Symbol { name, rest: [0; 5] }
    }

    fn found(relocations: &[Relocation]) -> Vec<(u64, String)> {
        let symbols = [symbol(0), symbol(1), symbol(7), symbol(21), symbol(1000)];
        slots(relocations, |index| symbols.get(index as usize).copied(), STRINGS)
            .map(|(offset, name)| (offset, name.to_str().unwrap().to_owned()))
            .collect()
    }

    fn relocation(offset: u64, symbol: u64, kind: u64, addend: i64) -> Relocation {
        Relocation { offset, info: symbol << 32 | kind, addend }
    }

    #[test]
    fn a_slot_has_the_name_of_its_symbol() {
        let of = |offset, name: &str| (offset, name.to_owned());
        let relocations = [relocation(0x10, 1, 7, 0), relocation(0x18, 2, 6, 0)];
        assert_eq!(found(&relocations), [of(0x10, "dlsym"), of(0x18, "cuMemAlloc_v2")]);
    }

    #[test]
    fn what_is_no_slot_or_has_no_name_is_left_out() {
        assert_eq!(found(&[relocation(0, 1, 8, 0), relocation(0, 1, 1, 0)]), [], "other kinds");
        assert_eq!(found(&[relocation(0, 1, 7, 8)]), [], "an address beside the function's");
        assert_eq!(found(&[relocation(0, 77, 7, 0)]), [], "no such symbol");
        assert_eq!(found(&[relocation(0, 4, 7, 0)]), [], "no such name");
        assert_eq!(found(&[relocation(0, 3, 7, 0)]), [], "a name without an end");
    }

    #[test]
    fn they_lie_as_in_the_header() {
        assert_eq!((size_of::<Relocation>(), size_of::<Symbol>()), (24, 24));
    }
}
