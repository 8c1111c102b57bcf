//! The modules of this process: their names, segments and dynamic symbols.
//!
//! `dlsym`, `dladdr` and `dlopen` take the loader's lock. A program holds that lock while the
//! constructors of a library run, as long as these like: every import of a Python extension does.
//! So a hook, or the writer thread that a hook may wait for, must not call them. `dl_iterate_phdr`
//! only takes the lock of the loader's list, which is held while an entry is added or removed. The
//! symbols are then read from the module's own tables.
//!
//! All offsets come from another program's file. Every range is checked against the module's loaded
//! segments before it is read.

use std::ffi::{CStr, c_int, c_void};

use super::symbol_table::{ElfSymbol, HashTable, SymbolTable};

/// A loaded module. Valid while the loader's list is locked.
#[derive(Clone, Copy, Debug)]
pub struct ElfModule<'a> {
    /// What the loader has added to the addresses of the file.
    pub load_bias: usize,
    /// The file it was loaded from; empty for the program itself. Lives as long as the module.
    pub path: &'a CStr,
    /// The number of modules that the loader has added and removed so far.
    pub list_changes: (u64, u64),
    headers: &'a [libc::Elf64_Phdr],
}

/// The dynamic section of a module: tag and value of each entry.
#[derive(Clone, Copy, Debug)]
pub struct DynamicSection<'a> {
    module: ElfModule<'a>,
    entries: &'a [[u64; 2]],
}

// Tags of `<elf.h>`.
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_SONAME: u64 = 14;
const DT_FINI_ARRAYSZ: u64 = 28;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;

/// Calls `look` with each module, in the loader's order, until it returns a value.
///
/// `look` must not call the loader, and must not allocate in a hook.
pub fn find_module<R>(look: impl FnMut(&ElfModule<'_>) -> Option<R>) -> Option<R> {
    struct Search<F, R> {
        look: F,
        found: Option<R>,
    }

    unsafe extern "C" fn visit<R, F: FnMut(&ElfModule<'_>) -> Option<R>>(
        info: *mut libc::dl_phdr_info,
        _: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's description of a module, and the search passed below.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<F, R>>()) };
        search.found = (search.look)(&ElfModule::new(info));
        c_int::from(search.found.is_some())
    }

    fn iterate<R, F: FnMut(&ElfModule<'_>) -> Option<R>>(mut search: Search<F, R>) -> Option<R> {
        // SAFETY: the callback gets back what is passed here, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(visit::<R, F>), (&raw mut search).cast()) };
        search.found
    }

    iterate(Search { look, found: None })
}

/// The address of the first definition of `name` in the loader's order.
pub fn find_symbol(name: &CStr) -> Option<usize> {
    find_module(|module| module.symbol(name))
}

impl<'a> ElfModule<'a> {
    /// The module that `dl_iterate_phdr` describes.
    pub fn new(info: &'a libc::dl_phdr_info) -> Self {
        // SAFETY: the loader's headers and NUL-terminated name live while its list is locked.
        let (headers, path) = unsafe {
            let path = if info.dlpi_name.is_null() { c"" } else { CStr::from_ptr(info.dlpi_name) };
            (std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)), path)
        };
        let list_changes = (info.dlpi_adds, info.dlpi_subs);
        Self { load_bias: info.dlpi_addr as usize, path, list_changes, headers }
    }

    /// Load bias and address of the program headers: no other loaded module has the same.
    pub fn identity(&self) -> (usize, usize) {
        (self.load_bias, self.headers.as_ptr() as usize)
    }

    /// Address of its first loaded segment.
    pub fn start(&self) -> usize {
        self.loaded_range().map_or(self.load_bias, |(start, _)| start)
    }

    /// Begin of the first loaded segment and end of the last one; `None` if nothing is loaded.
    pub fn loaded_range(&self) -> Option<(usize, usize)> {
        let ranges = self.headers_of_type(libc::PT_LOAD).map(|header| self.range(header));
        ranges.reduce(|all, range| (all.0.min(range.0), all.1.max(range.1)))
    }

    /// The file name of [`path`](Self::path), without folders.
    pub fn file_name(&self) -> &'a [u8] {
        self.path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// True if a library of this name is this module: by the name in the file or that of the file.
    pub fn is_named(&self, library: &CStr) -> bool {
        let soname = || self.dynamic_section().and_then(|section| section.soname());
        self.file_name() == library.to_bytes() || soname() == Some(library)
    }

    /// True if the module has destructors, apart from the one of the compiler's start files. Those
    /// of C++ objects are registered by a call of `__cxa_atexit`.
    pub fn has_destructors(&self) -> bool {
        let Some(section) = self.dynamic_section() else { return false };
        section.value(DT_FINI_ARRAYSZ).is_some_and(|bytes| bytes > size_of::<usize>() as u64)
            || section.symbol_table().is_some_and(|table| table.imports(c"__cxa_atexit"))
    }

    /// The program headers of a type.
    pub fn headers_of_type(&self, kind: u32) -> impl Iterator<Item = &'a libc::Elf64_Phdr> {
        self.headers.iter().filter(move |header| header.p_type == kind)
    }

    /// Begin and end of a header's range in memory.
    pub fn range(&self, header: &libc::Elf64_Phdr) -> (usize, usize) {
        let begin = self.load_bias.wrapping_add(header.p_vaddr as usize);
        (begin, begin.saturating_add(header.p_memsz as usize))
    }

    /// True if the range lies within one loaded segment.
    pub fn contains(&self, address: usize, bytes: usize) -> bool {
        self.segment_end(address).is_some_and(|end| address.saturating_add(bytes) <= end)
    }

    /// Address of the definition of `name` in this module.
    pub fn symbol(&self, name: &CStr) -> Option<usize> {
        let value = self.dynamic_section()?.symbol_table()?.value_of(name)?;
        let address = self.load_bias.wrapping_add(value as usize);
        self.contains(address, 1).then_some(address)
    }

    /// Name of the definition at exactly this address.
    pub fn name_of(&self, address: usize) -> Option<&'a CStr> {
        let table = self.dynamic_section()?.symbol_table()?;
        let name = table.name_of(address.wrapping_sub(self.load_bias) as u64)?;
        // The names are in the module, and the table was a view of it.
        text_at(table.strings, name.as_ptr() as usize - table.strings.as_ptr() as usize)
    }

    /// The dynamic section. `None` if it is missing or lies outside the module.
    pub fn dynamic_section(&self) -> Option<DynamicSection<'a>> {
        let header = self.headers_of_type(libc::PT_DYNAMIC).next()?;
        let entries = self.slice(self.range(header).0, header.p_memsz as usize)?;
        Some(DynamicSection { module: *self, entries })
    }

    /// A table of the module with this address and size. `None` if it lies outside the module.
    pub fn slice<T: Copy>(&self, at: usize, bytes: usize) -> Option<&'a [T]> {
        let is_valid = bytes == 0 || self.contains(at, bytes) && at.is_multiple_of(align_of::<T>());
        let (at, count) = if bytes == 0 { (align_of::<T>(), 0) } else { (at, bytes / size_of::<T>()) };
        // SAFETY: aligned, within the module, which stays loaded while the loader's list is locked;
        // the elements are plain numbers.
        is_valid.then(|| unsafe { std::slice::from_raw_parts(at as *const T, count) })
    }

    /// A table without a stated size: all from its begin to the end of the segment.
    fn slice_from<T: Copy>(&self, at: usize) -> Option<&'a [T]> {
        self.slice(at, self.segment_end(at)?.saturating_sub(at))
    }

    fn segment_end(&self, address: usize) -> Option<usize> {
        let ranges = self.headers_of_type(libc::PT_LOAD).map(|header| self.range(header));
        ranges.into_iter().find(|(begin, end)| (*begin..*end).contains(&address)).map(|(_, end)| end)
    }
}

/// The NUL-terminated text at an offset of a string table.
fn text_at(strings: &[u8], at: usize) -> Option<&CStr> {
    CStr::from_bytes_until_nul(strings.get(at..)?).ok()
}

impl<'a> DynamicSection<'a> {
    /// The value of a tag.
    pub fn value(&self, tag: u64) -> Option<u64> {
        let entry = self.entries.iter().take_while(|entry| entry[0] != 0).find(|entry| entry[0] == tag);
        entry.map(|entry| entry[1])
    }

    /// The address that a tag has as its value. The loader has relocated most of them in place.
    pub fn address(&self, tag: u64) -> Option<usize> {
        let value = self.value(tag)? as usize;
        let is_address = self.module.contains(value, 1);
        Some(if is_address { value } else { self.module.load_bias.wrapping_add(value) })
    }

    /// The string table. `None` if it lies outside the module.
    pub fn strings(&self) -> Option<&'a [u8]> {
        self.module.slice(self.address(DT_STRTAB)?, self.value(DT_STRSZ)? as usize)
    }

    /// The dynamic symbols, and whatever follows them in the segment: their number is not stated.
    pub fn symbols(&self) -> Option<&'a [ElfSymbol]> {
        self.module.slice_from(self.address(DT_SYMTAB)?)
    }

    /// The name that the module has for those linked to it.
    fn soname(&self) -> Option<&'a CStr> {
        text_at(self.strings()?, self.value(DT_SONAME)? as usize)
    }

    fn symbol_table(&self) -> Option<SymbolTable<'a>> {
        let table = |tag| self.module.slice_from(self.address(tag)?);
        let hash = table(DT_GNU_HASH).map(HashTable::Gnu).or_else(|| table(DT_HASH).map(HashTable::SysV))?;
        let versions = self.address(DT_VERSYM).and_then(|at| self.module.slice_from(at)).unwrap_or_default();
        Some(SymbolTable { hash, symbols: self.symbols()?, strings: self.strings()?, versions })
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// What the loader itself says about a symbol and an address.
    fn by_loader(name: &CStr) -> usize {
        // SAFETY: a NUL-terminated name.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
    }

    #[test]
    fn symbols_are_those_that_the_loader_finds() {
        for name in
            [c"getenv", c"malloc", c"dl_iterate_phdr", c"pthread_create", c"environ", c"_Unwind_Resume"]
        {
            let found = find_symbol(name);
            assert_eq!(found, Some(by_loader(name)).filter(|address| *address != 0), "{name:?}");
            assert!(found.is_some(), "{name:?}");
        }
        assert_eq!(find_symbol(c"gpumemtrace_no_such_symbol"), None);
    }

    #[test]
    fn library_is_found_by_its_names_and_knows_its_functions() {
        let getenv = by_loader(c"getenv");
        let seen = find_module(|module| {
            module.is_named(c"libc.so.6").then(|| {
                assert!(module.contains(getenv, 1) && module.start() < getenv);
                assert_eq!(module.symbol(c"getenv"), Some(getenv));
                assert_eq!(module.name_of(getenv + 1), None);
                module.name_of(getenv).map(CStr::to_owned)
            })
        });
        assert_eq!(seen.flatten().as_deref(), Some(c"getenv"));
        assert!(find_module(|module| module.is_named(c"libno_such_library.so").then_some(())).is_none());
    }

    #[test]
    fn table_outside_the_module_is_not_read() {
        let outside = Box::new(7u64);
        find_module(|module| {
            assert!(module.slice::<u64>((&raw const *outside) as usize, 8).is_none());
            assert!(module.slice::<u64>(module.start() + 1, 8).is_none(), "not aligned");
            assert!(module.slice::<u64>(usize::MAX - 7, 8).is_none());
            None::<()>
        });
    }
}
