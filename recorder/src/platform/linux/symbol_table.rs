//! Look-ups in the dynamic symbol table of an ELF module.
//!
//! The tables belong to another program's file. So these are pure functions over slices that check
//! every index, and an endless chain ends. The crate `object` reads such tables only by a file's
//! section headers, which are not loaded. Sources: the [ELF specification] for the table and
//! `DT_HASH`, [GNU hash tables] as binutils writes them, and [symbol versions] as the loader reads
//! them.
//!
//! [ELF specification]: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.symtab.html
//! [GNU hash tables]: https://sourceware.org/legacy-ml/binutils/2006-10/msg00377.html
//! [symbol versions]: https://www.akkadia.org/drepper/symbol-versioning

use std::ffi::CStr;

/// An `Elf64_Sym` as in `<elf.h>`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ElfSymbol {
    /// Offset of the name in the string table.
    pub name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    bytes: u64,
}

/// Lists the symbols by hash.
#[derive(Clone, Copy, Debug)]
pub(super) enum HashTable<'a> {
    /// `DT_GNU_HASH`, in words of 32 bits.
    Gnu(&'a [u32]),
    /// `DT_HASH`, in words of 32 bits.
    SysV(&'a [u32]),
}

/// The dynamic symbols of a module. The slices may be longer than the tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct SymbolTable<'a> {
    pub(super) hash: HashTable<'a>,
    pub(super) symbols: &'a [ElfSymbol],
    pub(super) strings: &'a [u8],
    /// `DT_VERSYM`: the version of each symbol. Empty if symbols have none.
    pub(super) versions: &'a [u16],
}

const SECTION_UNDEFINED: u16 = 0;
/// `STT_NOTYPE`, `STT_OBJECT`, `STT_FUNC` and `STT_COMMON`. A thread-local symbol has no address,
/// and an indirect function (`STT_GNU_IFUNC`) is a function that returns one.
const TYPES: [u8; 4] = [0, 1, 2, 5];
/// `STB_GLOBAL`, `STB_WEAK` and `STB_GNU_UNIQUE`.
const BINDINGS: [u8; 3] = [1, 2, 10];
/// Set for a version that only callers linked to it may reach.
const HIDDEN_VERSION: u16 = 0x8000;

impl SymbolTable<'_> {
    /// The value of the definition of `name` that an unversioned look-up finds.
    pub(super) fn value_of(&self, name: &CStr) -> Option<u64> {
        let has_name = |index: &usize| self.name(*index) == Some(name);
        match self.hash {
            HashTable::Gnu(table) => {
                gnu_chain(table, gnu_hash(name)).filter(has_name).find_map(|index| self.definition(index))
            }
            HashTable::SysV(table) => {
                sysv_chain(table, sysv_hash(name)).filter(has_name).find_map(|index| self.definition(index))
            }
        }
    }

    /// The name of a definition with exactly this value.
    pub(super) fn name_of(&self, value: u64) -> Option<&CStr> {
        let index = (0..self.len()).find(|index| self.definition(*index) == Some(value))?;
        self.name(index)
    }

    /// True if the module refers to a definition of `name` in another one.
    pub(super) fn imports(&self, name: &CStr) -> bool {
        let is_undefined = |symbol: &ElfSymbol| symbol.section == SECTION_UNDEFINED;
        (0..self.len())
            .any(|index| self.symbols.get(index).is_some_and(is_undefined) && self.name(index) == Some(name))
    }

    fn name(&self, index: usize) -> Option<&CStr> {
        let at = self.symbols.get(index)?.name as usize;
        CStr::from_bytes_until_nul(self.strings.get(at..)?).ok()
    }

    /// The value of a symbol that is defined in this module and may be reached from others.
    fn definition(&self, index: usize) -> Option<u64> {
        let symbol = self.symbols.get(index)?;
        let is_defined = symbol.section != SECTION_UNDEFINED && symbol.value != 0;
        let is_visible = BINDINGS.contains(&(symbol.info >> 4)) && TYPES.contains(&(symbol.info & 0xf));
        let is_hidden = self.versions.get(index).is_some_and(|version| version & HIDDEN_VERSION != 0);
        (is_defined && is_visible && !is_hidden).then_some(symbol.value)
    }

    fn len(&self) -> usize {
        let len = match self.hash {
            HashTable::Gnu(table) => gnu_len(table),
            HashTable::SysV(table) => table.get(1).map_or(0, |chains| *chains as usize),
        };
        len.min(self.symbols.len())
    }
}

/// Parts of a `DT_GNU_HASH` table: the first symbol it lists, the buckets, and the chains.
fn gnu_parts(table: &[u32]) -> Option<(usize, &[u32], &[u32])> {
    let &[buckets, first, bloom_words, _] = table.first_chunk()?;
    // A word of the bloom filter has 64 bits. The filter only saves time, so it is not read.
    let rest = table.get(4_usize.checked_add(2 * bloom_words as usize)?..)?;
    let (buckets, chains) = rest.split_at_checked(buckets as usize)?;
    Some((first as usize, buckets, chains))
}

/// Indexes of the symbols with this hash.
fn gnu_chain(table: &[u32], hash: u32) -> impl Iterator<Item = usize> {
    let chain = gnu_parts(table).and_then(|(first, buckets, chains)| {
        let begin = *buckets.get((hash as usize).checked_rem(buckets.len())?)? as usize;
        Some((begin, chains.get(begin.checked_sub(first)?..)?))
    });
    let (begin, hashes) = chain.unwrap_or((0, &[]));
    // The lowest bit marks the last symbol of the chain.
    let len = hashes.iter().position(|word| word & 1 != 0).map_or(hashes.len(), |last| last + 1);
    let same = hashes[..len].iter().enumerate().filter(move |(_, word)| **word | 1 == hash | 1);
    same.map(move |(at, _)| begin + at)
}

/// The number of symbols: the table only shows where the last chain ends.
fn gnu_len(table: &[u32]) -> usize {
    let Some((first, buckets, chains)) = gnu_parts(table) else { return 0 };
    let last_chain = buckets.iter().copied().max().unwrap_or(0) as usize;
    let Some(chain) = last_chain.checked_sub(first).and_then(|at| chains.get(at..)) else { return first };
    last_chain + chain.iter().position(|word| word & 1 != 0).map_or(0, |last| last + 1)
}

fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

/// Indexes of the symbols in the bucket of this hash.
fn sysv_chain(table: &[u32], hash: u32) -> impl Iterator<Item = usize> {
    let parts = table.split_at_checked(2).and_then(|(head, rest)| {
        let (buckets, chains) = rest.split_at_checked(head[0] as usize)?;
        Some((buckets, chains.get(..head[1] as usize)?))
    });
    let (buckets, chains) = parts.unwrap_or((&[], &[]));
    let begin = (hash as usize).checked_rem(buckets.len()).map_or(0, |bucket| buckets[bucket]);
    let next = move |index: &u32| chains.get(*index as usize).copied().filter(|next| *next != 0);
    let chain = std::iter::successors(Some(begin).filter(|index| *index != 0), next);
    // A damaged chain may lead back to itself.
    chain.take(chains.len()).map(|index| index as usize)
}

fn sysv_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(0, |hash: u32, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(*byte));
        let high = hash & 0xf000_0000;
        (hash ^ high >> 24) & !high
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRINGS: &[u8] = b"\0cuInit\0cuMemAlloc_v2\0dlsym\0endless";
    const GLOBAL_FUNCTION: u8 = 1 << 4 | 2;

    fn symbol(name: u32, value: u64) -> ElfSymbol {
        ElfSymbol { name, info: GLOBAL_FUNCTION, other: 0, section: 7, value, bytes: 4 }
    }

    /// Two imports, then `cuInit`, `cuMemAlloc_v2` and `dlsym`, in one bucket.
    fn symbols() -> Vec<ElfSymbol> {
        let mut import = symbol(22, 0);
        import.section = SECTION_UNDEFINED;
        vec![symbol(0, 0), import, symbol(1, 0x10), symbol(8, 0x20), symbol(22, 0x30)]
    }

    fn gnu_table() -> Vec<u32> {
        let hashes = [c"cuInit", c"cuMemAlloc_v2", c"dlsym"].map(|name| gnu_hash(name) & !1);
        vec![1, 2, 1, 6, 0, 0, 2, hashes[0], hashes[1], hashes[2] | 1]
    }

    fn sysv_table() -> Vec<u32> {
        // One bucket, five chains.
        vec![1, 5, 4, 0, 0, 0, 2, 3]
    }

    fn check(hash: HashTable<'_>, symbols: &[ElfSymbol], versions: &[u16]) -> [Option<u64>; 4] {
        let table = SymbolTable { hash, symbols, strings: STRINGS, versions };
        [c"cuInit", c"cuMemAlloc_v2", c"dlsym", c"cuFree"].map(|name| table.value_of(name))
    }

    #[test]
    fn hashes_are_those_of_the_specifications() {
        // The values that binutils and the ELF specification give for this name.
        assert_eq!(gnu_hash(c"printf"), 0x156b_2bb8);
        assert_eq!(sysv_hash(c"printf"), 0x0779_05a6);
        assert_eq!(size_of::<ElfSymbol>(), 24);
    }

    #[test]
    fn both_tables_find_definitions_and_no_imports() {
        let found = [Some(0x10), Some(0x20), Some(0x30), None];
        assert_eq!(check(HashTable::Gnu(&gnu_table()), &symbols(), &[]), found);
        assert_eq!(check(HashTable::SysV(&sysv_table()), &symbols(), &[]), found);
        for hash in [HashTable::Gnu(&gnu_table()), HashTable::SysV(&sysv_table())] {
            let table = SymbolTable { hash, symbols: &symbols(), strings: STRINGS, versions: &[] };
            assert_eq!(table.len(), 5);
            assert_eq!(table.name_of(0x20), Some(c"cuMemAlloc_v2"));
            assert_eq!(table.name_of(0x21), None);
        }
    }

    #[test]
    fn hidden_versions_indirect_functions_and_thread_locals_are_not_found() {
        let table = gnu_table();
        let versions = [0, 0, HIDDEN_VERSION | 2, 2, 3];
        assert_eq!(check(HashTable::Gnu(&table), &symbols(), &versions)[..2], [None, Some(0x20)]);
        for kind in [6, 10] {
            let mut other = symbols();
            other[2].info = 1 << 4 | kind;
            assert_eq!(check(HashTable::Gnu(&table), &other, &[])[0], None);
        }
    }

    #[test]
    fn damaged_tables_end_without_panic() {
        for (table, is_gnu) in [(gnu_table(), true), (sysv_table(), false)] {
            for at in 0..table.len() {
                for word in [0, 1, 3, 0x7fff_ffff, u32::MAX] {
                    let mut damaged = table.clone();
                    damaged[at] = word;
                    for len in 0..=table.len() {
                        let words = &damaged[..len];
                        let hash = if is_gnu { HashTable::Gnu(words) } else { HashTable::SysV(words) };
                        let found = check(hash, &symbols(), &[1]);
                        assert_eq!(found[3], None);
                        let symbols = symbols();
                        let table = SymbolTable { hash, symbols: &symbols, strings: STRINGS, versions: &[] };
                        assert!(table.len() <= 5 && table.name_of(7).is_none());
                    }
                }
            }
        }
        // A chain that leads back to itself, and a name without a NUL.
        assert_eq!(check(HashTable::SysV(&[1, 5, 4, 0, 0, 0, 2, 4]), &symbols(), &[])[0], None);
        let mut unnamed = symbols();
        unnamed[2].name = 28;
        assert_eq!(check(HashTable::Gnu(&gnu_table()), &unnamed, &[])[0], None);
    }
}
