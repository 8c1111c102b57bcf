//! Makes a library from the template: other names and versions, the same code.
//!
//! Moving code would need a linker to fix relocations, so nothing in the template moves. New
//! dynamic tables are appended to the file. The PT_NOTE header (its build id is invalid now)
//! becomes the load command for them, and PT_DYNAMIC points to the new dynamic section.
//!
//! ```text
//! file:   | unchanged template .......... | tables ................ | section headers |
//! memory: | PT_LOADs, addresses unchanged | .dynsym .dynstr        |
//!                                         | .gnu.hash .gnu.version |
//!                                         | .gnu.version_d .dynamic |
//! ```
//!
//! Undefined symbols keep their indices, because relocations use them; the wanted exports replace
//! the template's definitions. The new string table begins with the old one, so `.gnu.version_r`
//! stays.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context as _, Result, bail, ensure};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _, SectionHeader as _, Sym as _};
use object::{LittleEndian as Le, elf};
use simgpu_common::{BLOCK_SYMBOL, WheelVersions};

use crate::export::{Export, Target};
use crate::tables::{GnuHash, StringTable, VersionNodes};

type Header = elf::FileHeader64<Le>;

/// Size of one stub, in bytes.
const STUB_SIZE: u64 = 16;
const PAGE: u64 = 4096;

#[derive(Debug, Clone, Copy)]
struct Symbol {
    value: u64,
    size: u64,
    info: u8,
    section: u16,
}

/// A parsed template, borrowed from its bytes.
pub(crate) struct Template<'data> {
    bytes: &'data [u8],
    symbols: HashMap<String, Symbol>,
    undefined: Vec<u8>,
    undefined_versions: Vec<u16>,
    strings: &'data [u8],
    dynamic: Vec<(u64, u64)>,
    last_version: u16,
}

impl<'data> Template<'data> {
    /// Parses and checks a template.
    pub(crate) fn parse(bytes: &'data [u8]) -> Result<Self> {
        let header = Header::parse(bytes).context("the template is no ELF file")?;
        let sections = header.sections(Le, bytes)?;
        let table = sections.symbols(Le, bytes, elf::SHT_DYNSYM)?;
        let versions = sections.versions(Le, bytes)?.context("the template has no symbol versions")?;

        let mut symbols = HashMap::new();
        let mut undefined = Vec::new();
        let mut undefined_versions = Vec::new();
        let mut last_version = 1;
        for (index, symbol) in table.enumerate() {
            if symbol.st_shndx.get(Le) == elf::SHN_UNDEF {
                ensure!(symbols.is_empty(), "an undefined symbol follows a defined one in the template");
                undefined.extend(object::pod::bytes_of(symbol));
                let version = versions.version_index(Le, index).0;
                last_version = last_version.max(version & 0x7fff);
                undefined_versions.push(version);
            } else {
                let name = String::from_utf8(table.symbol_name(Le, symbol)?.to_vec())?;
                let found = Symbol {
                    value: symbol.st_value(Le),
                    size: symbol.st_size(Le),
                    info: symbol.st_info(),
                    section: symbol.st_shndx(Le),
                };
                symbols.insert(name, found);
            }
        }
        let first_defined = undefined_versions.len() as u32;
        for section in sections.iter() {
            if let Some((list, _)) = section.rela(Le, bytes)? {
                let names_own = list.iter().any(|rela| rela.r_sym(Le, false) >= first_defined);
                ensure!(!names_own, "a relocation of the template names one of its own symbols");
            }
        }
        let (list, link) = sections.dynamic(Le, bytes)?.context("the template has no dynamic section")?;
        let strings = sections.section(link)?.data(Le, bytes)?;
        let dynamic = list.iter().map(|entry| (entry.d_tag(Le), entry.d_val(Le))).collect();
        Ok(Self { bytes, symbols, undefined, undefined_versions, strings, dynamic, last_version })
    }

    /// Iterates over the template's exported names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.symbols.keys().map(String::as_str)
    }

    /// Returns the number of stubs.
    pub(crate) fn stubs(&self) -> Result<usize> {
        Ok((self.row()?.size / STUB_SIZE) as usize)
    }

    fn row(&self) -> Result<Symbol> {
        self.symbols.get("simgpu_stub_row").copied().context("the template has no row of stubs")
    }

    fn find(&self, target: &Target) -> Result<Symbol> {
        match target {
            Target::Symbol(name) => {
                self.symbols.get(name).copied().with_context(|| format!("the template has no {name}"))
            }
            Target::Stub(index) => {
                let row = self.row()?;
                let value = row.value + *index as u64 * STUB_SIZE;
                ensure!(value + STUB_SIZE <= row.value + row.size, "the template has too few stubs");
                Ok(Symbol { value, size: STUB_SIZE, ..row })
            }
        }
    }

    /// Builds the library `soname` with these exports and versions.
    pub(crate) fn instantiate(
        &self,
        soname: &str,
        exports: &[Export],
        wheel: WheelVersions,
    ) -> Result<Vec<u8>> {
        let mut strings = StringTable(self.strings.to_vec());
        let nodes = VersionNodes::collect(exports, self.last_version);
        let hash = GnuHash::new(exports, self.undefined_versions.len() as u32);

        let (symbols, versions) = self.export_tables(exports, &hash.order, &nodes, &mut strings)?;
        let definitions = nodes.definitions(soname, &mut strings);
        let soname_at = strings.add(soname);
        let runpath_at = strings.add("$ORIGIN");

        let mut output = self.bytes.to_vec();
        self.write_versions(&mut output, wheel)?;
        let tables = TableSegment::after(&mut output)?;
        let placed = [
            (".dynsym", tables.place(&mut output, &symbols)),
            (".dynstr", tables.place(&mut output, &strings.0)),
            (".gnu.hash", tables.place(&mut output, &hash.bytes)),
            (".gnu.version", tables.place(&mut output, &versions)),
        ];
        let definitions_at = (!nodes.is_empty()).then(|| tables.place(&mut output, &definitions));
        let [symbols_at, strings_at, hash_at, versions_at] = placed.each_ref().map(|(_, at)| at.address);
        let mut dynamic = self.dynamic_entries(|tag| match tag {
            elf::DT_SYMTAB => Some(symbols_at),
            elf::DT_STRTAB => Some(strings_at),
            elf::DT_STRSZ => Some(strings.0.len() as u64),
            elf::DT_GNU_HASH => Some(hash_at),
            elf::DT_VERSYM => Some(versions_at),
            elf::DT_SONAME => Some(u64::from(soname_at)),
            _ => None,
        });
        dynamic.push((u64::from(elf::DT_RUNPATH), u64::from(runpath_at)));
        if let Some(placed) = &definitions_at {
            dynamic.push((u64::from(elf::DT_VERDEF), placed.address));
            dynamic.push((u64::from(elf::DT_VERDEFNUM), nodes.len() as u64 + 1));
        }
        dynamic.push((0, 0));
        let dynamic: Vec<u8> = dynamic
            .iter()
            .flat_map(|(tag, value)| [tag.to_le_bytes(), value.to_le_bytes()].concat())
            .collect();
        let dynamic_at = tables.place(&mut output, &dynamic);
        tables.finish(&mut output, &dynamic_at)?;

        let mut moved: BTreeMap<&str, TablePosition> = placed.into();
        moved.insert(".dynamic", dynamic_at);
        write_sections(&mut output, &moved, definitions_at, nodes.len() as u32 + 1)?;
        Ok(output)
    }

    /// The tables of symbols and of their versions: the template's undefined ones, then the exports
    /// in this order.
    fn export_tables(
        &self,
        exports: &[Export],
        order: &[usize],
        nodes: &VersionNodes,
        strings: &mut StringTable,
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        let mut symbols = self.undefined.clone();
        let mut versions = self.undefined_versions.clone();
        for &at in order {
            let export = &exports[at];
            let target = self.find(&export.target)?;
            symbols.extend(strings.add(&export.name).to_le_bytes());
            symbols.extend([target.info, 0]);
            symbols.extend(target.section.to_le_bytes());
            symbols.extend(target.value.to_le_bytes());
            symbols.extend(target.size.to_le_bytes());
            versions.push(export.version.as_deref().map_or(1, |node| nodes.index(node)));
        }
        let versions = versions.iter().flat_map(|version| version.to_le_bytes()).collect();
        Ok((symbols, versions))
    }

    /// The template's entries of the dynamic section, with the values that `moved` returns. Without
    /// those that every library has of its own.
    fn dynamic_entries(&self, moved: impl Fn(u32) -> Option<u64>) -> Vec<(u64, u64)> {
        let kept = self.dynamic.iter().filter(|(tag, _)| {
            !matches!(*tag as u32, elf::DT_NULL | elf::DT_HASH | elf::DT_RPATH | elf::DT_RUNPATH)
        });
        kept.map(|&(tag, value)| (tag, moved(tag as u32).unwrap_or(value))).collect()
    }

    fn write_versions(&self, output: &mut [u8], versions: WheelVersions) -> Result<()> {
        let block = self.symbols.get(BLOCK_SYMBOL).context("the template has no version block")?;
        let header = Header::parse(self.bytes)?;
        let home = header.program_headers(Le, self.bytes)?.iter().find(|segment| {
            let start = segment.p_vaddr(Le);
            segment.p_type(Le) == elf::PT_LOAD && (start..start + segment.p_filesz(Le)).contains(&block.value)
        });
        let home = home.context("the version block is not in the file")?;
        let at = (block.value - home.p_vaddr(Le) + home.p_offset(Le)) as usize;
        output
            .get_mut(at..at + 64)
            .context("the version block is cut off")?
            .copy_from_slice(&versions.to_bytes());
        Ok(())
    }
}

/// The position of an appended table.
#[derive(Debug, Clone, Copy)]
struct TablePosition {
    offset: u64,
    address: u64,
    size: u64,
}

struct TableSegment {
    offset: u64,
    address: u64,
}

impl TableSegment {
    /// Starts the segment after the template, at an address above all of its memory.
    fn after(output: &mut Vec<u8>) -> Result<Self> {
        let header = Header::parse(output.as_slice())?;
        let loads = header
            .program_headers(Le, output.as_slice())?
            .iter()
            .filter(|segment| segment.p_type(Le) == elf::PT_LOAD);
        let end = loads
            .map(|segment| segment.p_vaddr(Le) + segment.p_memsz(Le))
            .max()
            .context("nothing is loaded")?;
        let offset = (output.len() as u64).next_multiple_of(PAGE);
        output.resize(offset as usize, 0);
        Ok(Self { offset, address: end.next_multiple_of(PAGE) })
    }

    fn place(&self, output: &mut Vec<u8>, table: &[u8]) -> TablePosition {
        output.resize(output.len().next_multiple_of(8), 0);
        let offset = output.len() as u64;
        output.extend(table);
        TablePosition { offset, address: self.address + (offset - self.offset), size: table.len() as u64 }
    }

    /// Turns PT_NOTE into the segment's load command and updates PT_DYNAMIC.
    fn finish(&self, output: &mut [u8], dynamic: &TablePosition) -> Result<()> {
        let header = Header::parse(&*output)?;
        let (start, count) = (header.e_phoff.get(Le) as usize, header.e_phnum.get(Le) as usize);
        let size = output.len() as u64 - self.offset;
        let (mut loaded, mut pointed) = (false, false);
        for at in (0..count).map(|index| start + index * 56) {
            let kind = u32::from_le_bytes(output[at..at + 4].try_into()?);
            // Writable: the dynamic linker may relocate the dynamic section in place.
            let rights = elf::PF_R | elf::PF_W;
            if kind == elf::PT_NOTE && !loaded {
                write_segment(
                    &mut output[at..at + 56],
                    elf::PT_LOAD,
                    rights,
                    self.offset,
                    self.address,
                    size,
                    PAGE,
                );
                loaded = true;
            } else if kind == elf::PT_DYNAMIC {
                write_segment(
                    &mut output[at..at + 56],
                    elf::PT_DYNAMIC,
                    rights,
                    dynamic.offset,
                    dynamic.address,
                    dynamic.size,
                    8,
                );
                pointed = true;
            }
        }
        if !(loaded && pointed) {
            bail!("the template has no PT_NOTE or no PT_DYNAMIC");
        }
        Ok(())
    }
}

fn write_segment(entry: &mut [u8], kind: u32, rights: u32, offset: u64, address: u64, size: u64, align: u64) {
    entry[0..4].copy_from_slice(&kind.to_le_bytes());
    entry[4..8].copy_from_slice(&rights.to_le_bytes());
    for (slot, value) in entry[8..56].chunks_exact_mut(8).zip([offset, address, address, size, size, align]) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
}

/// Writes section headers: not needed to run, but tools that read symbols use them.
fn write_sections(
    output: &mut Vec<u8>,
    moved: &BTreeMap<&str, TablePosition>,
    definitions: Option<TablePosition>,
    nodes: u32,
) -> Result<()> {
    let (mut table, mut names, names_entry, dynstr) = {
        let data = output.as_slice();
        let header = Header::parse(data)?;
        let sections = header.sections(Le, data)?;
        let mut table = Vec::new();
        let names = sections
            .section(object::SectionIndex(header.e_shstrndx.get(Le) as usize))?
            .data(Le, data)?
            .to_vec();
        let (mut names_entry, mut dynstr) = (0, 0);
        for (index, section) in sections.enumerate() {
            let name = sections.section_name(Le, section)?;
            let mut entry = object::pod::bytes_of(section).to_vec();
            if let Some(placed) = std::str::from_utf8(name).ok().and_then(|name| moved.get(name)) {
                entry[16..24].copy_from_slice(&placed.address.to_le_bytes());
                entry[24..32].copy_from_slice(&placed.offset.to_le_bytes());
                entry[32..40].copy_from_slice(&placed.size.to_le_bytes());
            }
            if name == b".dynstr" {
                dynstr = index.0 as u32;
            }
            if index.0 == header.e_shstrndx.get(Le) as usize {
                names_entry = table.len();
            }
            table.extend(entry);
        }
        (table, names, names_entry, dynstr)
    };
    if let Some(placed) = definitions {
        let name = names.len() as u32;
        names.extend(b".gnu.version_d\0");
        let mut entry = Vec::new();
        entry.extend(name.to_le_bytes());
        entry.extend(elf::SHT_GNU_VERDEF.to_le_bytes());
        for word in [u64::from(elf::SHF_ALLOC), placed.address, placed.offset, placed.size] {
            entry.extend(word.to_le_bytes());
        }
        entry.extend(dynstr.to_le_bytes());
        entry.extend(nodes.to_le_bytes());
        entry.extend(8_u64.to_le_bytes());
        entry.extend(0_u64.to_le_bytes());
        table.extend(entry);
    }
    let names_at = output.len() as u64;
    output.extend(&names);
    table[names_entry + 24..names_entry + 32].copy_from_slice(&names_at.to_le_bytes());
    table[names_entry + 32..names_entry + 40].copy_from_slice(&(names.len() as u64).to_le_bytes());
    output.resize(output.len().next_multiple_of(8), 0);
    let table_at = output.len() as u64;
    output.extend(&table);
    output[40..48].copy_from_slice(&table_at.to_le_bytes());
    output[60..62].copy_from_slice(&((table.len() / 64) as u16).to_le_bytes());
    Ok(())
}

/// Returns the names that a library defines.
pub(crate) fn defined_names(bytes: &[u8]) -> Result<BTreeSet<String>> {
    let header = Header::parse(bytes)?;
    let table = header.sections(Le, bytes)?.symbols(Le, bytes, elf::SHT_DYNSYM)?;
    let defined = table.iter().filter(|symbol| symbol.st_shndx(Le) != elf::SHN_UNDEF);
    Ok(defined
        .filter_map(|symbol| Some(String::from_utf8_lossy(table.symbol_name(Le, symbol).ok()?).into_owned()))
        .collect())
}
