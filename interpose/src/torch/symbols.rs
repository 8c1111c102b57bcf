//! Local symbols of libc10_cuda, from the file it was loaded from.
//!
//! Constraint: the functions we need are not exported, but the wheels keep their symbol table. The file may have been replaced
//! since it was loaded, or be anything. Consequence: a pure function over its bytes, and whoever uses the result checks it
//! against the library in memory (`attach`).

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};

/// The exported pointer to the allocator in use.
pub(super) const ALLOCATOR: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
const NATIVE: &str = "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator";
const NATIVE_VTABLE: &str = "_ZTVN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE";

/// Addresses as the file has them: without the place it was loaded at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Symbols {
    /// [`ALLOCATOR`].
    pub(super) allocator: u64,
    /// Table of the native allocator's virtual functions, and its length in bytes.
    pub(super) vtable: (u64, u64),
    /// `bool NativeCachingAllocator::initialized()`
    pub(super) initialized: u64,
    /// `void NativeCachingAllocator::attachAllocatorTraceTracker(std::function<void(const TraceEntry&)>)`; where
    /// `TraceEntry` lives differs, so the rest of the name does. Since torch 2.2.
    pub(super) attach: Option<u64>,
}

/// Finds them. `None`: not a library of a wheel.
pub(super) fn find(library: &[u8]) -> Option<Symbols> {
    let file = ElfFile64::<Endianness>::parse(library).ok()?;
    let mut found = Symbols::default();
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
    fn any_bytes_are_refused_without_panic() {
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
