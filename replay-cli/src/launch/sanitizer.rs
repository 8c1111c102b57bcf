//! Sanitizer runtimes, which must be loaded before the recorder.
//!
//! AddressSanitizer ends the program unless its runtime is the first library after the program
//! ([asan_linux.cpp](https://github.com/llvm/llvm-project/blob/llvmorg-20.1.0/compiler-rt/lib/asan/asan_linux.cpp#L120)).
//! GCC links programs with the shared runtime. A preloaded library would come before it, so the
//! runtime is preloaded too, in front of ours. Clang links the runtime into the program, where it
//! comes first anyway.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::read::elf::{Dyn as _, FileHeader as _};
use object::{Endianness, elf};

use super::preload::DEFAULT_SEARCH_PATH;

/// Names of the runtimes' files, without the version behind.
///
/// That of ThreadSanitizer may come second, and must: it takes suppressions from the recorder
/// (`interpose/src/sanitizers.rs`).
const RUNTIMES: [&str; 7] = [
    "libasan.so",
    "libhwasan.so",
    "liblsan.so",
    "libclang_rt.asan.so",
    "libclang_rt.asan-",
    "libclang_rt.hwasan",
    "libclang_rt.lsan",
];

/// True if a library with this path or name must be loaded before the recorder.
fn is_runtime(library: &[u8]) -> bool {
    let name = library.rsplit(|byte| *byte == b'/').next().unwrap_or(library);
    RUNTIMES.iter().any(|runtime| name.starts_with(runtime.as_bytes()))
}

/// The runtime that a list of libraries to preload begins with.
pub(crate) fn runtime_before_recorder(list: &OsStr) -> Option<&OsStr> {
    let first = list.as_bytes().split(|byte| b" :".contains(byte)).find(|name| !name.is_empty())?;
    is_runtime(first).then(|| OsStr::from_bytes(first))
}

/// The list of libraries to preload: sanitizer runtimes, the recorder, then the others that were
/// listed already. `needed` is a runtime that the program is linked with.
pub(super) fn order_preloads(recorder: &OsStr, listed: &OsStr, needed: Option<&OsStr>) -> OsString {
    let listed: Vec<&[u8]> =
        listed.as_bytes().split(|byte| b" :".contains(byte)).filter(|name| !name.is_empty()).collect();
    // Others may only follow a runtime that comes first.
    let listed_first = listed.iter().take_while(|name| is_runtime(name)).count();
    let (runtimes, others) = listed.split_at(listed_first);
    let needed = needed.filter(|_| runtimes.is_empty());
    let all = needed.into_iter().map(OsStr::as_bytes).chain(runtimes.iter().copied());
    let all = all.chain([recorder.as_bytes()]).chain(others.iter().copied());
    OsStr::from_bytes(&all.collect::<Vec<_>>().join(&b':')).to_owned()
}

/// The sanitizer runtime that a program is linked with, as its name in the program.
pub(super) fn runtime_of(program: &OsStr, here: &Path, search: Option<OsString>) -> Option<OsString> {
    let runtime = needed_libraries(&find_program(program, here, search)?)?;
    runtime.into_iter().find(|name| is_runtime(name.as_bytes()))
}

/// The file that the system starts for this name.
fn find_program(program: &OsStr, here: &Path, search: Option<OsString>) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(here.join(program));
    }
    let search = search.unwrap_or_else(|| DEFAULT_SEARCH_PATH.into());
    std::env::split_paths(&search).map(|folder| here.join(folder).join(program)).find(|file| file.is_file())
}

fn needed_libraries(file: &Path) -> Option<Vec<OsString>> {
    let cache = ReadCache::new(File::open(file).ok()?);
    let header = elf::FileHeader64::<Endianness>::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, &cache).ok()?;
    let (entries, strings) = sections.dynamic(endian, &cache).ok()??;
    let strings = sections.strings(endian, &cache, strings).ok()?;
    let needed = entries.iter().filter(|entry| entry.tag32(endian) == Some(elf::DT_NEEDED));
    let name = |entry: &elf::Dyn64<Endianness>| strings.get(entry.val32(endian)?).ok();
    needed.map(|entry| Some(OsStr::from_bytes(name(entry)?).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(listed: &str, needed: Option<&str>) -> String {
        order_preloads("ours".as_ref(), listed.as_ref(), needed.map(OsStr::new)).into_string().unwrap()
    }

    #[test]
    fn sanitizer_runtimes_come_first() {
        assert_eq!(order("", None), "ours");
        assert_eq!(order("/a.so /b.so", None), "ours:/a.so:/b.so");
        assert_eq!(order("", Some("libasan.so.8")), "libasan.so.8:ours");
        assert_eq!(order("/x/libasan.so.8:/b.so", Some("libasan.so.8")), "/x/libasan.so.8:ours:/b.so");
        assert_eq!(order("libclang_rt.asan-x86_64.so", None), "libclang_rt.asan-x86_64.so:ours");
        // The program does not start so anyway.
        assert_eq!(order("/b.so:libasan.so.8", None), "ours:/b.so:libasan.so.8");
        assert_eq!(order("/libasan.so.8/mine.so", None), "ours:/libasan.so.8/mine.so");
        assert_eq!(runtime_before_recorder("libasan.so.8:ours".as_ref()), Some("libasan.so.8".as_ref()));
        assert_eq!(runtime_before_recorder("ours:libasan.so.8".as_ref()), None);
    }

    #[test]
    fn needed_libraries_of_a_program_are_read() {
        let this = std::env::current_exe().unwrap();
        if cfg!(target_os = "linux") {
            assert!(
                needed_libraries(&this).unwrap().iter().any(|name| name.as_bytes().starts_with(b"libc.so"))
            );
        }
        assert_eq!(runtime_of(this.as_os_str(), Path::new("/"), None), None);
        assert_eq!(runtime_of("no such program".as_ref(), Path::new("/"), None), None);
    }
}
