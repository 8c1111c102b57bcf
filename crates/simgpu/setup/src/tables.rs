//! The dynamic linker's lookup tables: strings, versions, hashes.
//!
//! Each follows its specification, and tests look names up as the dynamic linker does.

use object::elf;

use crate::export::Export;

/// A growing string table.
pub(crate) struct StringTable(pub(crate) Vec<u8>);

impl StringTable {
    pub(crate) fn add(&mut self, text: &str) -> u32 {
        let at = self.0.len() as u32;
        self.0.extend(text.bytes());
        self.0.push(0);
        at
    }
}

/// The System V ABI hash, used in version records.
fn sysv_hash(name: &str) -> u32 {
    name.bytes().fold(0_u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(byte));
        let top = hash & 0xf000_0000;
        (hash ^ (top >> 24)) & !top
    })
}

fn gnu_hash(name: &str) -> u32 {
    name.bytes().fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)))
}

/// Version nodes that the library defines, numbered after those that it needs.
pub(crate) struct VersionNodes {
    names: Vec<String>,
    first: u16,
}

impl VersionNodes {
    pub(crate) fn collect(exports: &[Export], last: u16) -> Self {
        let mut names: Vec<String> = exports.iter().filter_map(|export| export.version.clone()).collect();
        names.sort();
        names.dedup();
        Self { names, first: last + 1 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn index(&self, name: &str) -> u16 {
        self.names.iter().position(|known| known == name).map_or(1, |at| self.first + at as u16)
    }

    /// Builds `.gnu.version_d`: a base record with the SONAME, then one record of 28 bytes per
    /// node.
    pub(crate) fn definitions(&self, soname: &str, strings: &mut StringTable) -> Vec<u8> {
        let mut bytes = Vec::new();
        let all = std::iter::once((soname, 1_u16, elf::VER_FLG_BASE)).chain(
            self.names.iter().enumerate().map(|(at, name)| (name.as_str(), self.first + at as u16, 0)),
        );
        for (at, (name, index, flags)) in all.enumerate() {
            let last = at == self.names.len();
            for half in [1_u16, flags, index, 1] {
                bytes.extend(half.to_le_bytes());
            }
            for word in [sysv_hash(name), 20, if last { 0 } else { 28 }, strings.add(name), 0] {
                bytes.extend(word.to_le_bytes());
            }
        }
        bytes
    }
}

/// `.gnu.hash`, and the order of the exports that it requires.
pub(crate) struct GnuHash {
    pub(crate) bytes: Vec<u8>,
    pub(crate) order: Vec<usize>,
}

impl GnuHash {
    pub(crate) fn new(exports: &[Export], first: u32) -> Self {
        const SHIFT: u32 = 6;
        let buckets = (exports.len() as u32 / 2).max(1);
        let words = (exports.len() / 8).next_power_of_two().max(1);
        let hashes: Vec<u32> = exports.iter().map(|export| gnu_hash(&export.name)).collect();
        let mut order: Vec<usize> = (0..exports.len()).collect();
        order.sort_by_key(|&at| hashes[at] % buckets);

        let mut bloom = vec![0_u64; words];
        let mut starts = vec![0_u32; buckets as usize];
        let mut chains = Vec::new();
        for (position, &at) in order.iter().enumerate() {
            let hash = hashes[at];
            let word = &mut bloom[(hash / 64) as usize % words];
            *word |= 1 << (hash % 64) | 1 << ((hash >> SHIFT) % 64);
            let bucket = hash % buckets;
            let start = &mut starts[bucket as usize];
            if *start == 0 {
                *start = first + position as u32;
            }
            let last = order.get(position + 1).is_none_or(|&next| hashes[next] % buckets != bucket);
            chains.push(hash & !1 | u32::from(last));
        }
        let mut bytes: Vec<u8> =
            [buckets, first, words as u32, SHIFT].iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(bloom.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(starts.iter().chain(&chains).flat_map(|word| word.to_le_bytes()));
        Self { bytes, order }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Target;

    fn export(name: &str, version: Option<&str>) -> Export {
        Export { name: name.to_owned(), target: Target::Stub(0), version: version.map(str::to_owned) }
    }

    #[test]
    fn hashes_match_the_specifications() {
        assert_eq!(gnu_hash("printf"), 0x156b_2bb8);
        assert_eq!(sysv_hash("printf"), 0x0779_05a6);
        assert_eq!(sysv_hash("GLIBC_2.2.5"), 0x0969_1a75);
    }

    /// Looks a name up like the dynamic linker.
    fn look_up(hash: &GnuHash, exports: &[Export], name: &str) -> Option<usize> {
        let word = |at: usize| u32::from_le_bytes(hash.bytes[4 * at..4 * at + 4].try_into().unwrap());
        let (buckets, first, words, shift) = (word(0), word(1), word(2), word(3));
        let wanted = gnu_hash(name);
        let bloom_at = 16 + 8 * ((wanted / 64) % words) as usize;
        let bloom = u64::from_le_bytes(hash.bytes[bloom_at..bloom_at + 8].try_into().unwrap());
        if bloom >> (wanted % 64) & bloom >> ((wanted >> shift) % 64) & 1 == 0 {
            return None;
        }
        let starts = 4 + 2 * words as usize;
        let chains = starts + buckets as usize;
        let mut at = word(starts + (wanted % buckets) as usize);
        while at != 0 {
            let position = (at - first) as usize;
            let found = word(chains + position);
            if found | 1 == wanted | 1 && exports[hash.order[position]].name == name {
                return Some(hash.order[position]);
            }
            at = if found & 1 == 0 { at + 1 } else { 0 };
        }
        None
    }

    #[test]
    fn hash_table_finds_every_export() {
        for count in [1_usize, 2, 7, 300] {
            let exports: Vec<Export> = (0..count).map(|at| export(&format!("function{at}"), None)).collect();
            let hash = GnuHash::new(&exports, 55);
            for (at, export) in exports.iter().enumerate() {
                assert_eq!(look_up(&hash, &exports, &export.name), Some(at), "{count}");
            }
            assert_eq!(look_up(&hash, &exports, "missing"), None);
        }
    }

    #[test]
    fn defined_versions_are_numbered_after_needed_ones() {
        let exports = [export("a", Some("libx.so.2")), export("b", None), export("c", Some("libx.so.1"))];
        let nodes = VersionNodes::collect(&exports, 9);
        assert_eq!((nodes.index("libx.so.1"), nodes.index("libx.so.2"), nodes.len()), (10, 11, 2));
        let mut strings = StringTable(vec![0]);
        let bytes = nodes.definitions("libx.so.2", &mut strings);
        assert_eq!(bytes.len(), 3 * 28);
        assert_eq!(bytes[2 * 28 + 16..2 * 28 + 20], [0; 4], "the last record ends the list");
    }
}
