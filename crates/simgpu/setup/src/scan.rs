//! The libraries that an installed PyTorch links to, and the functions it uses from each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use object::read::ReadCache;
use object::read::elf::{Dyn as _, FileHeader as _, Sym as _};
use object::{LittleEndian as Le, elf};

/// Function -> the version node it requires, if any.
pub(crate) type Functions = BTreeMap<String, Option<String>>;

/// The needs of all libraries in a folder.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// Needed functions by library.
    pub(crate) libraries: BTreeMap<String, Functions>,
    /// Search paths as written in the libraries (`$ORIGIN/...`).
    pub(crate) search_paths: BTreeSet<String>,
}

/// Prefixes of unversioned functions, with their library; the first match counts.
const PREFIXES: &[(&str, &str)] = &[
    ("cuFile", "libcufile"),
    ("cusparseLt", "libcusparseLt"),
    ("cublasLt", "libcublasLt"),
    ("cublas", "libcublas"),
    ("cudnn", "libcudnn"),
    ("cufft", "libcufft"),
    ("curand", "libcurand"),
    ("cusolver", "libcusolver"),
    ("cusparse", "libcusparse"),
    ("cupti", "libcupti"),
    ("nvrtc", "libnvrtc"),
    ("nvJitLink", "libnvJitLink"),
    ("nvtx", "libnvToolsExt"),
    ("nvshmem", "libnvshmem_host"),
    ("nccl", "libnccl"),
    ("nvml", "libnvidia-ml"),
    ("__cuda", "libcudart"),
    ("cuda", "libcudart"),
];

/// Returns whether a library is one of NVIDIA's that we simulate.
fn is_wanted(soname: &str) -> bool {
    ["libcu", "libnv", "libnccl"].iter().any(|prefix| soname.starts_with(prefix))
}

/// Returns the library among `known` that exports an unversioned function.
fn home<'a>(function: &str, known: impl Iterator<Item = &'a String>) -> Option<String> {
    let stem =
        PREFIXES.iter().find(|(prefix, _)| function.starts_with(prefix)).map(|(_, stem)| *stem).or_else(
            || {
                // Driver functions have `cu` and a capital; LAPACK has names like `cunmqr_`.
                let third = function.strip_prefix("cu")?.chars().next()?;
                third.is_ascii_uppercase().then_some("libcuda")
            },
        )?;
    let mut known =
        known.filter(|soname| soname.strip_prefix(stem).is_some_and(|rest| rest.starts_with(".so")));
    known.next().cloned()
}

/// Scans all shared libraries of a folder.
pub(crate) fn scan(folder: &Path) -> Result<Needs> {
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let is_library =
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.contains(".so"));
        if is_library && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    let mut needs = Needs::default();
    let mut loose = BTreeSet::new();
    for file in &files {
        scan_file(file, &mut needs, &mut loose).with_context(|| format!("cannot scan {}", file.display()))?;
    }
    ensure!(!needs.libraries.is_empty(), "{} holds no CUDA build of PyTorch", folder.display());
    for function in loose {
        if let Some(soname) = home(&function, needs.libraries.keys()) {
            needs.libraries.entry(soname).or_default().entry(function).or_default();
        }
    }
    // Libraries inside the wheel must not be shadowed.
    for file in &files {
        if let Some(name) = file.file_name().and_then(|name| name.to_str()) {
            needs.libraries.remove(name);
        }
    }
    Ok(needs)
}

fn scan_file(path: &Path, needs: &mut Needs, loose: &mut BTreeSet<String>) -> Result<()> {
    let data = &ReadCache::new(File::open(path)?);
    let header = elf::FileHeader64::<Le>::parse(data)?;
    let sections = header.sections(Le, data)?;
    if let Some((list, link)) = sections.dynamic(Le, data)? {
        let strings = sections.strings(Le, data, link)?;
        for entry in list {
            let text = || {
                let text = strings
                    .get(entry.d_val(Le) as u32)
                    .ok()
                    .context("a name in the dynamic section is cut off")?;
                Ok::<_, anyhow::Error>(String::from_utf8_lossy(text).into_owned())
            };
            match entry.tag32(Le) {
                Some(elf::DT_NEEDED) => {
                    let soname = text()?;
                    if is_wanted(&soname) {
                        needs.libraries.entry(soname).or_default();
                    }
                }
                Some(elf::DT_RPATH | elf::DT_RUNPATH) => {
                    needs.search_paths.extend(text()?.split(':').map(str::to_owned));
                }
                _ => {}
            }
        }
    }
    let symbols = sections.symbols(Le, data, elf::SHT_DYNSYM)?;
    let versions = sections.versions(Le, data)?;
    for (index, symbol) in symbols.enumerate() {
        if symbol.st_shndx(Le) != elf::SHN_UNDEF {
            continue;
        }
        let name = String::from_utf8_lossy(symbols.symbol_name(Le, symbol)?).into_owned();
        let version = match &versions {
            Some(versions) => versions.version(versions.version_index(Le, index))?,
            None => None,
        };
        match version.and_then(|version| Some((version.name(), version.file()?))) {
            Some((node, file)) => {
                let soname = String::from_utf8_lossy(file).into_owned();
                if is_wanted(&soname) {
                    let node = String::from_utf8_lossy(node).into_owned();
                    needs.libraries.entry(soname).or_default().insert(name, Some(node));
                }
            }
            None => {
                loose.insert(name);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unversioned_functions_resolve_to_their_library() {
        let known: Vec<String> =
            ["libcuda.so.1", "libcudart.so.12", "libcufile.so.0", "libcusparseLt.so.0", "libnccl.so.2"]
                .map(String::from)
                .into();
        let at = |name: &str| home(name, known.iter());
        assert_eq!(at("cuMemCreate").as_deref(), Some("libcuda.so.1"));
        assert_eq!(at("cuFileRead").as_deref(), Some("libcufile.so.0"));
        assert_eq!(at("cusparseLtInit").as_deref(), Some("libcusparseLt.so.0"));
        assert_eq!(at("cudaMalloc").as_deref(), Some("libcudart.so.12"));
        assert_eq!(at("cunmqr_"), None, "LAPACK");
        assert_eq!(at("cublasCreate_v2"), None, "no such library is needed");
    }
}
