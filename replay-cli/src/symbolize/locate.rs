//! Which files may speak for a module of a trace.
//!
//! The module's own path first, if the file there has its build id. Names and lines of a stripped file are in a second one: by
//! build id below `/usr/lib/debug`, or by the name in `.gnu_debuglink` beside it, in `.debug` beside it, or below
//! `/usr/lib/debug`; that too must have the build id. A debug file alone, without the library, is enough.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gpumemtrace_format::ModuleDef;
use gpumemtrace_replay::naming::Unnamed;

use super::elf::{ElfError, ElfImage};

/// Where distributions put debug files.
const DEBUG_FOLDER: &str = "/usr/lib/debug";

/// The files of a module. At least one is there.
#[derive(Debug)]
pub(crate) struct ModuleFiles {
    /// What was loaded.
    pub(crate) code: Option<ElfImage>,
    /// What was split off it; looked for only where `code` has no debug information itself.
    pub(crate) debug: Option<ElfImage>,
}

impl ModuleFiles {
    /// Differs when a file is another one: then what they said before may have changed.
    pub(crate) fn identity(&self) -> String {
        let mut identity = String::new();
        for image in self.code.iter().chain(&self.debug) {
            if let Ok(facts) = std::fs::metadata(&image.path) {
                let (path, len, at, ns) =
                    (image.path.display(), facts.len(), facts.mtime(), facts.mtime_nsec());
                let _ = writeln!(identity, "{path} {len} {at}.{ns}");
            }
        }
        identity
    }
}

/// Finds them.
pub(crate) fn locate_module(module: &ModuleDef) -> Result<ModuleFiles, Unnamed> {
    let path = Path::new(&module.path);
    let code = match ElfImage::open(path) {
        _ if !path.is_absolute() => Err(Unnamed::FileMissing),
        Ok(image) if image.build_id == module.build_id => Ok(image),
        Ok(_) => Err(Unnamed::OtherBuild),
        Err(ElfError::Missing) => Err(Unnamed::FileMissing),
        Err(ElfError::Unreadable) => Err(Unnamed::Unreadable),
    };
    let debug = if code.as_ref().is_ok_and(ElfImage::has_debug_info) {
        None
    } else {
        debug_files(module, code.as_ref().ok())
            .iter()
            .filter_map(|path| ElfImage::open(path).ok())
            .find(|image| image.build_id == module.build_id)
    };
    match (code, debug) {
        (Err(why), None) => Err(why),
        (code, debug) => Ok(ModuleFiles { code: code.ok(), debug }),
    }
}

fn debug_files(module: &ModuleDef, code: Option<&ElfImage>) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let root = Path::new(DEBUG_FOLDER);
    if let [first, rest @ ..] = &module.build_id[..] {
        let name = rest.iter().fold(String::new(), |mut name, byte| {
            let _ = write!(name, "{byte:02x}");
            name
        });
        files.push(root.join(format!(".build-id/{first:02x}/{name}.debug")));
    }
    let Some((image, link)) = code.and_then(|image| Some((image, image.debug_link.as_ref()?))) else {
        return files;
    };
    // Links are followed: a debug file lies where the library itself lies.
    let path = std::fs::canonicalize(&image.path).unwrap_or_else(|_| image.path.clone());
    for folder in [image.path.parent(), path.parent()].into_iter().flatten() {
        files.push(folder.join(link));
        files.push(folder.join(".debug").join(link));
        files.push(root.join(folder.strip_prefix("/").unwrap_or(folder)).join(link));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_files_are_looked_for_by_build_id() {
        let module = ModuleDef { build_id: vec![0xab, 0x01, 0xff], ..ModuleDef::default() };
        assert_eq!(debug_files(&module, None), [PathBuf::from("/usr/lib/debug/.build-id/ab/01ff.debug")]);
    }

    #[test]
    fn a_relative_path_is_nobodys() {
        let module =
            ModuleDef { path: "Cargo.toml".to_owned(), build_id: vec![1; 20], ..ModuleDef::default() };
        assert_eq!(locate_module(&module).err(), Some(Unnamed::FileMissing));
    }
}
