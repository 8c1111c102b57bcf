//! Looks up functions in symbol tables, where there is no debug information.
//!
//! A table may have a million symbols, of which a report needs a few. So only addresses are sorted;
//! a name is read when it is looked up. A symbol covers the bytes that its size states. Only
//! symbols without a size, as in assembly, reach to the next symbol.

use std::ops::Range;

use object::elf::{SHT_DYNSYM, SHT_SYMTAB};

use super::elf::ElfImage;

/// The size of an `Elf64_Sym`.
const ENTRY_BYTES: usize = 24;
/// The most symbols that may start between an address and the start of its function.
const MAX_NESTED: usize = 64;
const NOTYPE: u8 = 0;
const FUNCTION: u8 = 2;
const INDIRECT_FUNCTION: u8 = 10;

/// Symbols of functions, sorted by address.
pub(super) struct SymbolTable {
    symbols: Vec<FunctionSymbol>,
    /// The string table of each symbol table.
    texts: Vec<Vec<u8>>,
    /// Addresses of executable sections.
    code: Vec<Range<u64>>,
}

#[derive(Clone, Copy)]
struct FunctionSymbol {
    address: u64,
    len: u64,
    /// Of several symbols with the same address, the lowest rank is the best name.
    rank: u8,
    texts: u8,
    name: u32,
}

impl SymbolTable {
    /// Reads `.symtab` and `.dynsym` of files of the same build.
    pub(super) fn read<'a>(images: impl IntoIterator<Item = &'a ElfImage>) -> Self {
        let mut table = Self { symbols: Vec::new(), texts: Vec::new(), code: Vec::new() };
        for image in images {
            table.code.extend(image.code.iter().cloned());
            for (kind, texts) in [(SHT_SYMTAB, ".strtab"), (SHT_DYNSYM, ".dynstr")] {
                if let Some((entries, texts)) = image.symbol_table(kind, texts) {
                    table.add(&entries, texts);
                }
            }
        }
        table.symbols.sort_by_key(|symbol| (symbol.address, symbol.rank, symbol.texts, symbol.name));
        table
    }

    fn add(&mut self, entries: &[u8], texts: Vec<u8>) {
        let number = self.texts.len() as u8;
        for entry in entries.chunks_exact(ENTRY_BYTES) {
            let half = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
            let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
            let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
            let (kind, binding, section) = (entry[4] & 0xf, entry[4] >> 4, half(6));
            let is_code = matches!(kind, NOTYPE | FUNCTION | INDIRECT_FUNCTION);
            // Section 0 means undefined; from 0xff00 on the numbers are reserved (SHN_LORESERVE).
            if !is_code || section == 0 || section >= 0xff00 || long(8) == 0 {
                continue;
            }
            // Prefer functions over labels, and global names over local ones.
            let rank = u8::from(kind == NOTYPE) * 2 + u8::from(binding == 0);
            self.symbols.push(FunctionSymbol {
                address: long(8),
                len: long(16),
                rank,
                texts: number,
                name: word(0),
            });
        }
        self.texts.push(texts);
    }

    /// The name of the function that contains an address.
    pub(super) fn name_at(&self, address: u64) -> Option<String> {
        let code = self.code.iter().find(|code| code.contains(&address))?;
        let after = self.symbols.partition_point(|symbol| symbol.address <= address);
        let before = &self.symbols[..after];
        let holds = |symbol: &&FunctionSymbol| address - symbol.address < symbol.len;
        let sized = before.iter().rev().take(MAX_NESTED).find(holds);
        if let Some(sized) = sized {
            // Take the best name of those that start at the same address.
            let begin = before.partition_point(|symbol| symbol.address < sized.address);
            return self.text(before[begin..].iter().find(holds)?);
        }
        let label = before.last().filter(|symbol| symbol.len == 0 && code.contains(&symbol.address))?;
        // A label inside a function does not reach beyond the function's end.
        let is_over =
            |symbol: &FunctionSymbol| symbol.len == 0 || label.address - symbol.address >= symbol.len;
        before.iter().rev().take(MAX_NESTED).all(is_over).then(|| self.text(label))?
    }

    fn text(&self, symbol: &FunctionSymbol) -> Option<String> {
        let text = self.texts.get(usize::from(symbol.texts))?.get(symbol.name as usize..)?;
        let text = text.split(|byte| *byte == 0).next()?;
        (!text.is_empty()).then(|| String::from_utf8_lossy(text).into_owned())
    }

    /// The address of the first function with a matching name.
    #[cfg(test)]
    pub(super) fn address_of(&self, is_it: impl Fn(&str) -> bool) -> Option<u64> {
        let named =
            |symbol: &&FunctionSymbol| symbol.len > 1 && self.text(symbol).is_some_and(|name| is_it(&name));
        self.symbols.iter().find(named).map(|symbol| symbol.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(symbols: &[(u64, u64, u8, &str)]) -> SymbolTable {
        let (mut entries, mut texts) = (Vec::new(), vec![0]);
        for (address, len, info, name) in symbols {
            entries.extend((texts.len() as u32).to_le_bytes());
            entries.extend([*info, 0, 1, 0]);
            entries.extend(address.to_le_bytes());
            entries.extend(len.to_le_bytes());
            texts.extend(name.as_bytes());
            texts.push(0);
        }
        let mut table = SymbolTable { symbols: Vec::new(), texts: Vec::new(), code: Vec::from_iter(CODE) };
        table.add(&entries, texts);
        table.symbols.sort_by_key(|symbol| (symbol.address, symbol.rank, symbol.texts, symbol.name));
        table
    }

    const CODE: [Range<u64>; 2] = [0x1000..0x4000, 0x8000..0x9000];
    const GLOBAL: u8 = 0x12;
    const LOCAL: u8 = 0x02;
    const LABEL: u8 = 0x00;

    #[test]
    fn symbol_covers_its_size_and_label_reaches_next_symbol() {
        let table = table(&[
            (0x1000, 0x100, GLOBAL, "outer"),
            (0x1010, 0x10, LOCAL, "inner"),
            (0x1050, 0, LABEL, "label"),
            (0x2000, 0x10, LOCAL, "__alias"),
            (0x2000, 0x10, GLOBAL, "name"),
            (0x3000, 0, LABEL, "assembly"),
        ]);
        for (address, name) in [
            (0xfff, None),
            (0x1000, Some("outer")),
            (0x101f, Some("inner")),
            (0x1020, Some("outer")),
            (0x1060, Some("outer")),
            (0x1100, None),
            (0x2005, Some("name")),
            (0x2010, None),
            (0x3333, Some("assembly")),
            (0x4000, None),
        ] {
            assert_eq!(table.name_at(address).as_deref(), name, "{address:#x}");
        }
    }

    proptest::proptest! {
        #[test]
        fn random_table_does_not_panic(entries: Vec<u8>, texts: Vec<u8>, address: u64) {
            let mut table = SymbolTable { symbols: Vec::new(), texts: Vec::new(), code: Vec::from_iter(CODE) };
            table.add(&entries, texts);
            table.symbols.sort_by_key(|symbol| symbol.address);
            let _ = table.name_at(address);
        }
    }
}
