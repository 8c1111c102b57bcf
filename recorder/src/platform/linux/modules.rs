//! The list of modules loaded in this process.
//!
//! It is copied while the loader's list is locked. An allocator may wait for that lock inside one
//! of its own, as some heap profilers do, so nothing is allocated meanwhile.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use gpumemtrace_format::ModuleDef;

use super::elf_module::{ElfModule, find_module};

/// A module in a [`ModuleList`]; its path and build id are the next bytes of the texts.
#[derive(Clone, Copy)]
struct ListedModule {
    load_bias: usize,
    range: (usize, usize),
    path_bytes: usize,
    build_id_bytes: usize,
}

/// Room for the modules and their texts, allocated in advance.
struct ModuleList {
    modules: Vec<ListedModule>,
    texts: Vec<u8>,
    is_full: bool,
}

impl ModuleList {
    fn with_capacity(modules: usize) -> Self {
        const PATH_BYTES: usize = 256;
        let texts = Vec::with_capacity(modules * PATH_BYTES);
        Self { modules: Vec::with_capacity(modules), texts, is_full: false }
    }

    fn add(&mut self, module: &ElfModule<'_>) {
        let Some(range) = module.loaded_range() else { return };
        let (path, build_id) = (module.path.to_bytes(), build_id(module));
        let has_room = self.modules.len() < self.modules.capacity()
            && self.texts.capacity() - self.texts.len() >= path.len() + build_id.len();
        if !has_room {
            self.is_full = true;
            return;
        }
        self.texts.extend_from_slice(path);
        self.texts.extend_from_slice(build_id);
        self.modules.push(ListedModule {
            load_bias: module.load_bias,
            range,
            path_bytes: path.len(),
            build_id_bytes: build_id.len(),
        });
    }

    fn into_definitions(self) -> Vec<ModuleDef> {
        let mut texts = &self.texts[..];
        let mut take = |bytes| {
            let (taken, rest) = texts.split_at(bytes);
            texts = rest;
            taken
        };
        let definition = |(index, module): (usize, &ListedModule)| {
            let path = OsStr::from_bytes(take(module.path_bytes)).to_string_lossy().into_owned();
            let is_program = index == 0 && path.is_empty();
            ModuleDef {
                load_bias: module.load_bias as u64,
                start: module.range.0 as u64,
                end: module.range.1 as u64,
                path: if is_program { program_path() } else { path },
                build_id: take(module.build_id_bytes).to_vec(),
            }
        };
        self.modules.iter().enumerate().map(definition).collect()
    }
}

/// Lists all loaded modules that have code.
pub(crate) fn loaded_modules() -> Vec<ModuleDef> {
    let mut capacity = 512;
    loop {
        let mut list = ModuleList::with_capacity(capacity);
        find_module(|module| {
            list.add(module);
            None::<()>
        });
        if !list.is_full {
            return list.into_definitions();
        }
        capacity *= 2;
    }
}

/// The program's own file, which the loader's list does not name.
fn program_path() -> String {
    std::fs::read_link("/proc/self/exe").map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
}

/// True if this library was preloaded: it then lies before the C library in the loader's list. A
/// library that PyTorch loads as an allocator comes much later.
pub fn is_preloaded() -> bool {
    let here = is_preloaded as *const () as usize;
    let libc = libc::gnu_get_libc_version as *const () as usize;
    let first = find_module(|module| {
        let is_ours = module.contains(here, 1);
        (is_ours || module.contains(libc, 1)).then_some(is_ours)
    });
    first == Some(true)
}

/// The number of modules that the loader has added and removed so far. Equal values mean an
/// unchanged list.
pub fn loaded_module_counts() -> (u64, u64) {
    find_module(|module| Some(module.list_changes)).unwrap_or_default()
}

/// The GNU build id of a module: a note of type 3 with the name "GNU". Empty if there is none.
fn build_id<'a>(module: &ElfModule<'a>) -> &'a [u8] {
    let notes = module.headers_of_type(libc::PT_NOTE).filter_map(|header| {
        let (begin, end) = module.range(header);
        module.slice::<u8>(begin, end - begin)
    });
    notes.into_iter().find_map(find_build_id).unwrap_or_default()
}

fn find_build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const GNU_BUILD_ID: u32 = 3;
    loop {
        let (head, rest) = notes.split_at_checked(12)?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (name_len, value_len) = (word(0) as usize, word(4) as usize);
        let (name, rest) = rest.split_at_checked(name_len.next_multiple_of(4))?;
        let (value, rest) = rest.split_at_checked(value_len.next_multiple_of(4))?;
        if word(8) == GNU_BUILD_ID && name.get(..name_len) == Some(b"GNU\0") {
            return value.get(..value_len);
        }
        notes = rest;
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn own_program_and_libc_are_listed_with_their_addresses() {
        let modules = loaded_modules();
        let here = own_program_and_libc_are_listed_with_their_addresses as *const () as u64;
        assert!(modules.iter().any(|module| (module.start..module.end).contains(&here)));
        let libc = modules.iter().find(|module| module.path.contains("libc.so")).unwrap();
        assert_eq!(libc.build_id.len(), 20);
        assert_eq!(loaded_module_counts(), loaded_module_counts());
        assert!(modules[0].path.contains("tests") || modules[0].path.contains("gpumemtrace"), "the program");
    }

    #[test]
    fn list_without_room_is_made_anew() {
        let mut list = ModuleList::with_capacity(1);
        find_module(|module| {
            list.add(module);
            None::<()>
        });
        assert!(list.is_full && list.modules.len() <= 1);
    }

    #[test]
    fn damaged_notes_are_read_without_panic() {
        assert_eq!(find_build_id(&[]), None);
        assert_eq!(find_build_id(&[0xff; 40]), None);
        let note = [4, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, b'G', b'N', b'U', 0, 1, 2, 3, 0];
        assert_eq!(find_build_id(&note), Some(&[1, 2, 3][..]));
    }
}
