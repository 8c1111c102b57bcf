//! Local symbols of libc10_cuda, read from its file.
//!
//! The functions that the tracker needs are not exported, but the wheels keep their symbol table.
//! The file may have been replaced since it was loaded. [`find`] is therefore a pure function over
//! its bytes, and `attach` checks the result against the library in memory.

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};

/// The exported `std::atomic<CUDAAllocator*>`: the allocator in use.
pub(super) const ALLOCATOR: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
const NATIVE: &str = "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator";
const NATIVE_VTABLE: &str = "_ZTVN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE";

/// Addresses in the file, before relocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AllocatorSymbols {
    /// Address of the variable [`ALLOCATOR`].
    pub(super) allocator: u64,
    /// The native allocator's vtable and its length in bytes.
    pub(super) vtable: (u64, u64),
    /// Address of `bool NativeCachingAllocator::initialized()` in libc10_cuda.
    pub(super) initialized: u64,
    /// `NativeCachingAllocator::attachAllocatorTraceTracker(std::function<void(const
    /// TraceEntry&)>)`, since torch 2.2. The namespace of `TraceEntry` differs by release, so only
    /// the begin of the mangled name is compared.
    pub(super) attach: Option<u64>,
}

/// Finds the symbols in the bytes of a library. `None` if it is not a libc10_cuda with symbols.
pub(super) fn find(library: &[u8]) -> Option<AllocatorSymbols> {
    let file = ElfFile64::<Endianness>::parse(library).ok()?;
    let mut found = AllocatorSymbols::default();
    for symbol in file.symbols() {
        let Ok(name) = symbol.name() else { continue };
        if name == ALLOCATOR {
            found.allocator = symbol.address();
        } else if name == NATIVE_VTABLE {
            found.vtable = (symbol.address(), symbol.size());
        } else if let Some(member) = name.strip_prefix(NATIVE) {
            if member == "11initializedEv" {
                found.initialized = symbol.address();
            } else if member.starts_with("27attachAllocatorTraceTrackerESt8functionIF") {
                found.attach = Some(symbol.address());
            }
        }
    }
    (found.allocator != 0 && found.vtable.0 != 0 && found.initialized != 0).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_never_panics_on_foreign_or_damaged_files() {
        let mut library = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(find(&library), None, "this program is not libc10_cuda");
        assert_eq!(find(&[]), None);
        library.truncate(4096);
        for at in 0..1024 {
            let old = library[at];
            for value in [0, 0xff, old ^ 0x40] {
                library[at] = value;
                let _ = find(&library);
            }
            library[at] = old;
        }
    }
}
