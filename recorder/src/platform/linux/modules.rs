//! The list of modules loaded in this process.
//!
//! The loader's list can only be walked under the loader's lock. So only the writer thread walks
//! it, and only when the loader's counters have changed.

use std::ffi::CStr;

use gpumemtrace_format::ModuleDef;

/// Lists all loaded modules that have code. Takes the loader's lock.
pub(crate) fn loaded_modules() -> Vec<ModuleDef> {
    let mut modules: Vec<ModuleDef> = Vec::new();
    // SAFETY: the callback matches the expected signature, gets our vector back, and does not call
    // the loader.
    unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut modules).cast()) };
    modules
}

/// True if this library was preloaded: it then lies before the C library in the loader's list. A
/// library that PyTorch loads as an allocator comes much later.
pub fn is_preloaded() -> bool {
    let modules = loaded_modules();
    let here = is_preloaded as *const () as u64;
    let name = |module: &ModuleDef| module.path.rsplit('/').next().unwrap_or_default().to_owned();
    let ours = modules.iter().position(|module| (module.start..module.end).contains(&here));
    let libc = modules.iter().position(|module| name(module).starts_with("libc.so"));
    matches!((ours, libc), (Some(ours), Some(libc)) if ours < libc)
}

/// The number of modules that the loader has added and removed so far. Equal values mean an
/// unchanged list.
pub fn loaded_module_counts() -> (u64, u64) {
    let mut counts = (0, 0);
    // SAFETY: as in `loaded_modules`.
    unsafe { libc::dl_iterate_phdr(Some(count), (&raw mut counts).cast()) };
    counts
}

unsafe extern "C" fn count(info: *mut libc::dl_phdr_info, _: usize, data: *mut libc::c_void) -> i32 {
    // SAFETY: the loader passes a valid info, and `data` is the pair given to dl_iterate_phdr.
    unsafe { *data.cast::<(u64, u64)>() = ((*info).dlpi_adds, (*info).dlpi_subs) };
    1
}

unsafe extern "C" fn collect(info: *mut libc::dl_phdr_info, _: usize, data: *mut libc::c_void) -> i32 {
    // SAFETY: the loader passes a valid info; its headers and name stay valid while the loader's
    // lock is held.
    let (info, modules) = unsafe { (&*info, &mut *data.cast::<Vec<ModuleDef>>()) };
    // SAFETY: dlpi_phdr points to dlpi_phnum headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let Some((start, end)) = loaded.fold(None, |range: Option<(u64, u64)>, header| {
        let (start, end) = (header.p_vaddr, header.p_vaddr + header.p_memsz);
        Some(range.map_or((start, end), |(a, b)| (a.min(start), b.max(end))))
    }) else {
        return 0;
    };
    let name = if info.dlpi_name.is_null() {
        String::new()
    } else {
        // SAFETY: the loader's names are NUL-terminated.
        unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy().into_owned()
    };
    let path = match (name.is_empty(), modules.is_empty()) {
        // The first module is the program itself, which has no name here.
        (true, true) => std::fs::read_link("/proc/self/exe")
            .map(|path| path.to_string_lossy().into_owned())
            .unwrap_or_default(),
        _ => name,
    };
    modules.push(ModuleDef {
        load_bias: info.dlpi_addr,
        start: info.dlpi_addr + start,
        end: info.dlpi_addr + end,
        path,
        build_id: build_id(info.dlpi_addr, headers),
    });
    0
}

/// The GNU build id of a module: a note of type 3 with the name "GNU". Empty if there is none.
fn build_id(load_bias: u64, headers: &[libc::Elf64_Phdr]) -> Vec<u8> {
    for header in headers.iter().filter(|header| header.p_type == libc::PT_NOTE) {
        // SAFETY: a note segment is loaded with its module, which the loader's lock keeps.
        let notes = unsafe {
            std::slice::from_raw_parts((load_bias + header.p_vaddr) as *const u8, header.p_memsz as usize)
        };
        if let Some(id) = find_build_id(notes) {
            return id;
        }
    }
    Vec::new()
}

fn find_build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
    const GNU_BUILD_ID: u32 = 3;
    loop {
        let (head, rest) = notes.split_at_checked(12)?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (name_len, value_len) = (word(0) as usize, word(4) as usize);
        let (name, rest) = rest.split_at_checked(name_len.next_multiple_of(4))?;
        let (value, rest) = rest.split_at_checked(value_len.next_multiple_of(4))?;
        if word(8) == GNU_BUILD_ID && name.get(..name_len) == Some(b"GNU\0") {
            return Some(value[..value_len].to_vec());
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
    }

    #[test]
    fn damaged_notes_are_read_without_panic() {
        assert_eq!(find_build_id(&[]), None);
        assert_eq!(find_build_id(&[0xff; 40]), None);
        let note = [4, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, b'G', b'N', b'U', 0, 1, 2, 3, 0];
        assert_eq!(find_build_id(&note), Some(vec![1, 2, 3]));
    }
}
