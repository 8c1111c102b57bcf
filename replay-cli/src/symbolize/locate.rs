//! Finds the files that belong to a module of a trace.
//!
//! The first candidate is the module's own path. The names and lines of a stripped library are in a
//! debug file. It lies below `/usr/lib/debug` by build ID. Or it has the name in `.gnu_debuglink`
//! and lies in the library's folder, in its `.debug` folder, or below `/usr/lib/debug`. Each file
//! must have the module's build ID. A debug file alone, without the library, is enough.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gpumemtrace_format::ModuleDef;
use gpumemtrace_replay::report::UnnamedReason;

use super::elf::{ElfError, ElfImage};

/// The folder in which Linux distributions install debug files.
const DEBUG_FOLDER: &str = "/usr/lib/debug";

/// The files of a module. At least one of them is set.
#[derive(Debug)]
pub(crate) struct ModuleFiles {
    /// The file that was loaded into the program.
    pub(crate) code: Option<ElfImage>,
    /// The debug file; searched only if `code` has no debug information itself.
    pub(crate) debug: Option<ElfImage>,
}

impl ModuleFiles {
    /// Path, length and modification time of each file. If it changes, cached names are stale.
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

/// Finds the files of a module, or says why it has none.
pub(crate) fn locate_module(module: &ModuleDef) -> Result<ModuleFiles, UnnamedReason> {
    let path = Path::new(&module.path);
    let code = match ElfImage::open(path) {
        _ if !path.is_absolute() => Err(UnnamedReason::FileMissing),
        Ok(image) if image.build_id == module.build_id => Ok(image),
        Ok(_) => Err(UnnamedReason::OtherBuild),
        Err(ElfError::Missing) => Err(UnnamedReason::FileMissing),
        Err(ElfError::Unreadable) => Err(UnnamedReason::Unreadable),
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
    // The debug file may lie beside the link or beside the library that it leads to.
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
    fn debug_file_path_follows_build_id() {
        let module = ModuleDef { build_id: vec![0xab, 0x01, 0xff], ..ModuleDef::default() };
        assert_eq!(debug_files(&module, None), [PathBuf::from("/usr/lib/debug/.build-id/ab/01ff.debug")]);
    }

    #[test]
    fn relative_module_path_is_not_opened() {
        let module =
            ModuleDef { path: "Cargo.toml".to_owned(), build_id: vec![1; 20], ..ModuleDef::default() };
        assert_eq!(locate_module(&module).err(), Some(UnnamedReason::FileMissing));
    }
}
