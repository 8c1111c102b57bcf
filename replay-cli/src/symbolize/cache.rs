//! The cache of native function names on disk.
//!
//! There is one file per build ID. Several commands may write at once, so a file is written under a
//! temporary name and renamed. A file is ignored and written anew if it is damaged, too long, or
//! made from other versions of the library's files. It has the format of a trace (META and NAMES
//! blocks), and so the same checksums. If the cache exceeds its limit, the oldest files are
//! removed.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use gpumemtrace_format::block::{BlockKind, MAX_PAYLOAD_BYTES, encode_block, file_header};
use gpumemtrace_format::definitions::encode_names;
use gpumemtrace_format::reader::{Item, TraceReader};
use gpumemtrace_format::{AddressNames, Meta, ModuleNames, NamedFrame};

use crate::user_cache::user_cache;

/// Longer files are ignored.
const MAX_FILE_BYTES: u64 = 32 << 20;
/// The limit for all files together.
const MAX_ALL_BYTES: u64 = 256 << 20;
/// The default compression level of zstd.
const LEVEL: i32 = 3;

/// The folder of the cache and its limit.
pub(crate) struct SymbolCache {
    folder: PathBuf,
    most_bytes: u64,
}

impl SymbolCache {
    /// The cache of this user, if there is one.
    pub(crate) fn for_user() -> Option<Self> {
        Some(Self { folder: user_cache("symbols")?, most_bytes: MAX_ALL_BYTES })
    }

    fn path(&self, build_id: &[u8]) -> PathBuf {
        let name = build_id.iter().take(64).fold(String::new(), |mut name, byte| {
            let _ = write!(name, "{byte:02x}");
            name
        });
        self.folder.join(name)
    }

    /// The cached names of a build. `sources` identifies its present files; without any file, names
    /// from earlier files are returned.
    pub(crate) fn read(
        &self,
        build_id: &[u8],
        sources: Option<&str>,
    ) -> Option<HashMap<u64, Vec<NamedFrame>>> {
        let file = File::open(self.path(build_id)).ok()?;
        if file.metadata().ok()?.len() > MAX_FILE_BYTES {
            return None;
        }
        read_cached_names(file.take(MAX_FILE_BYTES), build_id, sources)
    }

    /// Writes the names of a build. Does nothing if they do not fit into one block.
    pub(crate) fn write(
        &self,
        build_id: &[u8],
        sources: &str,
        names: &HashMap<u64, Vec<NamedFrame>>,
    ) -> std::io::Result<()> {
        let mut meta = Meta::default();
        meta.set_text("made_from", sources);
        let mut addresses: Vec<AddressNames> = names
            .iter()
            .map(|(address, frames)| AddressNames { address: *address, frames: frames.clone() })
            .collect();
        addresses.sort_by_key(|names| names.address);
        let payload = encode_names(&[ModuleNames { build_id: build_id.to_vec(), addresses }]);
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(&file_header())?;
        file.write_all(&encode_block(BlockKind::META, &meta.encode(), LEVEL))?;
        file.write_all(&encode_block(BlockKind::NAMES, &payload, LEVEL))?;
        file.persist(self.path(build_id)).map_err(|error| error.error)?;
        Ok(())
    }

    /// Removes the oldest files until the cache is below its limit.
    pub(crate) fn trim(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .flatten()
            .filter_map(|entry| {
                let facts = entry.metadata().ok().filter(fs::Metadata::is_file)?;
                Some((facts.modified().ok()?, facts.len(), entry.path()))
            })
            .collect();
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, len, _)| len).sum();
        for (_, len, path) in &files {
            if bytes <= self.most_bytes {
                break;
            }
            bytes -= remove(path, *len);
        }
    }
}

/// The names in a cache file; `None` if it is damaged or was made from other sources.
pub fn read_cached_names(
    file: impl Read,
    build_id: &[u8],
    sources: Option<&str>,
) -> Option<HashMap<u64, Vec<NamedFrame>>> {
    let mut names = HashMap::new();
    let mut made_from = None;
    for item in TraceReader::new(file).ok()? {
        match item {
            Item::Meta(meta) => made_from = meta.text("made_from").map(str::to_owned),
            Item::Names(modules) => {
                for module in modules.into_iter().filter(|module| module.build_id == build_id) {
                    names.extend(module.addresses.into_iter().map(|one| (one.address, one.frames)));
                }
            }
            _ => return None,
        }
    }
    let made_from = made_from?;
    sources.is_none_or(|sources| sources == made_from).then_some(names)
}

/// Removes a file and returns the bytes freed, 0 on failure.
fn remove(path: &Path, len: u64) -> u64 {
    if fs::remove_file(path).is_ok() { len } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(most_bytes: u64) -> (tempfile::TempDir, SymbolCache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = SymbolCache { folder: folder.path().join("a/b"), most_bytes };
        (folder, cache)
    }

    fn names() -> HashMap<u64, Vec<NamedFrame>> {
        let frame = NamedFrame { function: "grow".into(), file: "pool.c".into(), line: 7 };
        HashMap::from([(0x10, vec![frame.clone(), frame]), (0x20, Vec::new())])
    }

    #[test]
    fn names_are_cached_while_files_stay_the_same() {
        let (_folder, cache) = cache(1 << 20);
        assert_eq!(cache.read(&[1; 20], Some("lib 1")), None);
        cache.write(&[1; 20], "lib 1", &names()).unwrap();
        assert_eq!(cache.read(&[1; 20], Some("lib 1")), Some(names()));
        assert_eq!(cache.read(&[1; 20], None), Some(names()), "the library was removed");
        assert_eq!(cache.read(&[1; 20], Some("lib 2")), None, "a debug file may have been installed");
        assert_eq!(cache.read(&[2; 20], Some("lib 1")), None);
    }

    #[test]
    fn damaged_cache_file_is_ignored_and_rewritten() {
        let (_folder, cache) = cache(1 << 20);
        cache.write(&[1; 20], "lib", &names()).unwrap();
        let path = cache.path(&[1; 20]);
        let sound = fs::read(&path).unwrap();
        for at in 0..sound.len() {
            let mut bytes = sound.clone();
            bytes[at] ^= 0x10;
            fs::write(&path, &bytes).unwrap();
            assert_eq!(cache.read(&[1; 20], Some("lib")), None, "byte {at}");
            fs::write(&path, &sound[..at]).unwrap();
            assert_eq!(cache.read(&[1; 20], Some("lib")).unwrap_or_default().len(), 0, "cut at {at}");
        }
        cache.write(&[1; 20], "lib", &names()).unwrap();
        assert_eq!(cache.read(&[1; 20], Some("lib")), Some(names()));
    }

    #[test]
    fn concurrent_writers_leave_one_complete_file() {
        let (_folder, cache) = cache(1 << 20);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        cache.write(&[1; 20], "lib", &names()).unwrap();
                    }
                });
                scope.spawn(|| {
                    for _ in 0..200 {
                        assert!(cache.read(&[1; 20], Some("lib")).is_none_or(|read| read == names()));
                    }
                });
            }
        });
        assert_eq!(cache.read(&[1; 20], Some("lib")), Some(names()));
        assert_eq!(fs::read_dir(&cache.folder).unwrap().count(), 1);
    }

    #[test]
    fn trim_removes_oldest_files_above_limit() {
        let (_folder, cache) = cache(1000);
        for id in 0..50u8 {
            cache.write(&[id; 20], "lib", &names()).unwrap();
        }
        cache.trim();
        let all = fs::read_dir(&cache.folder).unwrap().flatten();
        let bytes: u64 = all.map(|entry| entry.metadata().unwrap().len()).sum();
        assert!(bytes <= 1000 && bytes > 0, "{bytes}");
        assert_eq!(cache.read(&[49; 20], Some("lib")), Some(names()));
    }
}
