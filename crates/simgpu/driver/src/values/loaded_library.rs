//! Symbols and global offset table of a library that is loaded into this process.
//!
//! All tables are read in memory, from the dynamic section, as the loader reads them:
//! <https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/gnu_hash.html>
//! and the x86-64 psABI.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};

/// An entry of the symbol table, `Elf64_Sym`; `value` is an address from the base on.
#[repr(C)]
#[derive(Clone, Copy)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// A relocation, `Elf64_Rela`; `offset` is an address from the base on.
#[repr(C)]
#[derive(Clone, Copy)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// Kinds of relocations of functions: `R_X86_64_GLOB_DAT` and `R_X86_64_JUMP_SLOT`.
const CALL_KINDS: [u32; 2] = [6, 7];

/// A library, with the addresses of its tables.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LoadedLibrary {
    base: u64,
    strings: u64,
    symbols: u64,
    gnu_hash: u64,
    /// The relocations of calls and of data: address and length in bytes.
    relocations: [(u64, u64); 2],
}

impl LoadedLibrary {
    /// Finds a library by its file name; `None` if it is not loaded.
    pub(crate) fn find(file_name: &str) -> Option<Self> {
        let mut search = Search { file_name, found: None };
        // SAFETY: the callback gets back the search, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
        search.found
    }

    /// The addresses of all defined symbols with a name that `is_wanted` accepts.
    pub(crate) fn symbols(&self, is_wanted: impl Fn(&str) -> bool) -> BTreeMap<&'static str, u64> {
        let all = (0..self.symbol_count()).map(|index| self.symbol(index));
        let defined = all.filter(|symbol| symbol.section != 0).map(|symbol| (self.name(symbol), symbol));
        let wanted = defined.filter(|(name, _)| is_wanted(name));
        wanted.map(|(name, symbol)| (name, self.base + symbol.value)).collect()
    }

    /// The size of a defined symbol in bytes.
    pub(crate) fn size_of(&self, name: &str) -> Option<u64> {
        let mut all = (0..self.symbol_count()).map(|index| self.symbol(index));
        all.find(|symbol| symbol.section != 0 && self.name(*symbol) == name).map(|symbol| symbol.size)
    }

    /// True if the library defines or uses a symbol.
    pub(crate) fn mentions(&self, name: &str) -> bool {
        (0..self.symbol_count()).any(|index| self.name(self.symbol(index)) == name)
    }

    /// The entries of the global offset table by the names of what they point to.
    pub(crate) fn offset_table(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<(&'static str, u64)> {
        let mut entries = Vec::new();
        for (addr, len) in self.relocations {
            for at in 0..len / size_of::<Relocation>() as u64 {
                // SAFETY: within the table that the dynamic section names.
                let entry = unsafe { *((addr as *const Relocation).add(at as usize)) };
                if CALL_KINDS.contains(&(entry.info as u32)) {
                    let name = self.name(self.symbol((entry.info >> 32) as u32));
                    if is_wanted(name) {
                        entries.push((name, self.base + entry.offset));
                    }
                }
            }
        }
        entries
    }

    fn symbol(&self, index: u32) -> Symbol {
        // SAFETY: indexes come from the library's own tables.
        unsafe { *((self.symbols as *const Symbol).add(index as usize)) }
    }

    fn name(&self, symbol: Symbol) -> &'static str {
        // SAFETY: names end with a zero byte; PyTorch's libraries are never unloaded.
        let name = unsafe { CStr::from_ptr((self.strings + u64::from(symbol.name)) as *const _) };
        name.to_str().unwrap_or_default()
    }

    /// The number of dynamic symbols: one more than the highest index in the hash table.
    fn symbol_count(&self) -> u32 {
        // SAFETY: the layout of DT_GNU_HASH: four numbers, the bloom filter in words of 64 bits,
        // the buckets, and one number for each hashed symbol, odd at the end of a chain.
        unsafe {
            let header = self.gnu_hash as *const u32;
            let (buckets, first, bloom_words) = (*header, *header.add(1), *header.add(2));
            let bucket = header.add(4 + 2 * bloom_words as usize);
            let chains = bucket.add(buckets as usize);
            let last = (0..buckets as usize).map(|at| *bucket.add(at)).max().unwrap_or(0);
            if last < first {
                return first;
            }
            let mut last = last;
            while *chains.add((last - first) as usize) & 1 == 0 {
                last += 1;
            }
            last + 1
        }
    }
}

struct Search<'a> {
    file_name: &'a str,
    found: Option<LoadedLibrary>,
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader's description of a library, and the pointer that `find` passed.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the loader's name ends with a zero byte.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy();
    if path.rsplit('/').next() != Some(search.file_name) {
        return 0;
    }
    // SAFETY: the loader's own table of program headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC);
    search.found = dynamic.map(|header| read_dynamic(info.dlpi_addr, info.dlpi_addr + header.p_vaddr));
    1
}

/// Reads the addresses of the tables. glibc has already added the base to those that it uses.
fn read_dynamic(base: u64, dynamic: u64) -> LoadedLibrary {
    let mut library = LoadedLibrary { base, ..LoadedLibrary::default() };
    let mut entry = dynamic as *const [u64; 2];
    let absolute = |value: u64| if value < base { base + value } else { value };
    loop {
        // SAFETY: the section ends with a zero entry.
        let [tag, value] = unsafe { *entry };
        match tag {
            0 => return library,
            2 => library.relocations[0].1 = value,
            23 => library.relocations[0].0 = absolute(value),
            7 => library.relocations[1].0 = absolute(value),
            8 => library.relocations[1].1 = value,
            5 => library.strings = absolute(value),
            6 => library.symbols = absolute(value),
            0x6fff_fef5 => library.gnu_hash = absolute(value),
            _ => {}
        }
        // SAFETY: as above.
        entry = unsafe { entry.add(1) };
    }
}

/// Replaces a pointer in memory that may be read-only. Returns the old one.
pub(crate) fn replace_pointer(place: u64, value: u64) -> Option<u64> {
    let page = place & !4095;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the page of a table of a loaded library; a data page stays writable.
    if unsafe { libc::mprotect(page as *mut c_void, 4096, rights) } != 0 {
        return None;
    }
    // SAFETY: an aligned pointer in that page.
    Some(unsafe { std::ptr::replace(place as *mut u64, value) })
}
