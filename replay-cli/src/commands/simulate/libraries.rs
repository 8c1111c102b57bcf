//! The simulated libraries for one PyTorch: made on first use, and kept in the user's cache.
//!
//! They are preloaded, so every file is checked: it must be one of those that were made, and no
//! other user may be able to change it. A cache that fails this is not used.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use simgpu_setup::{TEMPLATE_NAMES, Templates, UNKNOWN_CUDNN, Wheel, WheelNeeds};
use tempfile::TempDir;

use super::preload_list;
use super::torch::InstalledTorch;
use crate::exit::UsageError;
use crate::launch::library::find_library;
use crate::terminal::stderr::print_message;
use crate::user_cache::{UntrustedPath, find_user_cache, trusted_path};

/// The names of the libraries in a folder, one a line.
const NAMES_FILE: &str = "libraries.txt";
/// A link to the driver, which a linker looks for. Triton up to 3.2 links its launchers with
/// `-lcuda`, later releases with `-l:libcuda.so.1`.
const DRIVER_LINK: &str = "libcuda.so";
/// A file that is there if the version of cuDNN is not known.
const CUDNN_UNKNOWN: &str = "cudnn-version-unknown";

/// Libraries on disk, as long as this exists.
pub(super) struct PreparedLibraries {
    files: Vec<PathBuf>,
    /// Their folder if there is no cache.
    _folder: Option<TempDir>,
}

impl PreparedLibraries {
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(PathBuf::as_path)
    }
}

/// Finds the libraries in the cache, or makes them.
pub(super) fn prepare_libraries(torch: &InstalledTorch) -> anyhow::Result<PreparedLibraries> {
    let libraries = find_or_make(torch)?;
    let folder = libraries.files().next().and_then(Path::parent);
    if folder.is_some_and(|folder| folder.join(CUDNN_UNKNOWN).exists()) {
        let [major, minor, patch] = UNKNOWN_CUDNN;
        print_message(format_args!(
            "gpumemtrace: the cuDNN that this PyTorch was compiled against is unknown; it sees {major}.{minor}.{patch}"
        ));
    }
    Ok(libraries)
}

fn find_or_make(torch: &InstalledTorch) -> anyhow::Result<PreparedLibraries> {
    let templates = Templates::read(&find_templates()?)?;
    let name = name_of(&torch.wheel, &templates)?;
    let cached = match find_user_cache("simulated") {
        None => None,
        Some(Err(untrusted)) => Some(Err(untrusted)),
        Some(Ok(cache)) => {
            let folder = cache.join(&name);
            if !folder.is_dir() {
                fill_cache(&cache, &folder, |made| make_libraries(torch, &templates, made))?;
            }
            Some(list_libraries(&folder)?)
        }
    };
    match cached {
        Some(Ok(files)) => return Ok(PreparedLibraries { files, _folder: None }),
        Some(Err(untrusted)) => print_message(format_args!(
            "gpumemtrace: not using the cache of simulated libraries: {untrusted}; the run makes its own"
        )),
        None => {}
    }
    let folder = tempfile::tempdir().context("simulate: cannot prepare a temporary folder")?;
    make_libraries(torch, &templates, folder.path())?;
    let files = list_libraries(folder.path())?
        .map_err(|untrusted| anyhow::anyhow!("simulate: cannot use the temporary folder: {untrusted}"))?;
    Ok(PreparedLibraries { files, _folder: Some(folder) })
}

/// The folder with the templates: what `GPUMEMTRACE_SIMGPU` names, or beside our library.
fn find_templates() -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("GPUMEMTRACE_SIMGPU") {
        return Ok(PathBuf::from(folder));
    }
    let library = find_library()?;
    let beside = library.parent().unwrap_or(Path::new("."));
    let has_templates = |folder: &PathBuf| TEMPLATE_NAMES.iter().all(|name| folder.join(name).is_file());
    [beside.join("simgpu"), beside.to_owned()].into_iter().find(has_templates).ok_or_else(|| {
        UsageError(format!(
            "simulate: {} is not in {}; set GPUMEMTRACE_SIMGPU to its folder",
            TEMPLATE_NAMES[0],
            beside.display()
        ))
        .into()
    })
}

/// A name that differs for each PyTorch and each version of the templates.
fn name_of(wheel: &Wheel, templates: &Templates) -> anyhow::Result<String> {
    let mut hasher = DefaultHasher::new();
    (env!("CARGO_PKG_VERSION"), NAMES_FILE, DRIVER_LINK, templates, wheel.is_cudnn_known).hash(&mut hasher);
    let folder = wheel.site_packages.join("torch/lib");
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    files.sort();
    for file in files {
        let facts = fs::metadata(&file)?;
        (file, facts.len(), facts.mtime(), facts.mtime_nsec()).hash(&mut hasher);
    }
    Ok(format!("torch-{}-{:016x}", wheel.torch_version, hasher.finish()))
}

fn make_libraries(torch: &InstalledTorch, templates: &Templates, folder: &Path) -> anyhow::Result<()> {
    let mut wheel = torch.wheel.clone();
    if !wheel.is_cudnn_known {
        match ask_for_cudnn(torch, templates)? {
            Some(version) => wheel.set_cudnn(version),
            None => write_private(&folder.join(CUDNN_UNKNOWN), b"")?,
        }
    }
    write_libraries(&wheel, templates, folder)
}

/// The version of cuDNN that PyTorch was compiled against, which refuses a cuDNN of another major
/// version or an older minor one. PyTorch is asked with libraries of any version.
fn ask_for_cudnn(torch: &InstalledTorch, templates: &Templates) -> anyhow::Result<Option<[u32; 3]>> {
    let trial = tempfile::tempdir().context("simulate: cannot prepare a temporary folder")?;
    write_libraries(&torch.wheel, templates, trial.path())?;
    let Ok(files) = list_libraries(trial.path())? else { return Ok(None) };
    let preloaded = preload_list(files.iter().map(PathBuf::as_path));
    Ok(preloaded.ok().and_then(|preloaded| torch.compiled_cudnn(&preloaded)))
}

fn write_libraries(wheel: &Wheel, templates: &Templates, folder: &Path) -> anyhow::Result<()> {
    let mut names = String::new();
    for library in WheelNeeds::of(wheel)?.make_libraries(wheel, templates)? {
        write_private(&folder.join(&library.soname), &library.bytes)?;
        names.push_str(&library.soname);
        names.push('\n');
    }
    symlink(simgpu_setup::DRIVER, folder.join(DRIVER_LINK))?;
    Ok(write_private(&folder.join(NAMES_FILE), names.as_bytes())?)
}

/// Writes a file that only this user can change, whatever the umask.
fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)
}

/// Fills a folder aside and renames it, so that others see all of it or nothing.
fn fill_cache(
    cache: &Path,
    folder: &Path,
    fill: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let cannot = || format!("cannot write to {}; set XDG_CACHE_HOME to another folder", cache.display());
    fs::DirBuilder::new().recursive(true).mode(0o700).create(cache).with_context(cannot)?;
    let aside = tempfile::Builder::new().prefix(".new-").tempdir_in(cache).with_context(cannot)?;
    fill(aside.path()).with_context(cannot)?;
    // Another command may have been faster; then its folder serves as well.
    match fs::rename(aside.path(), folder) {
        Ok(()) => drop(aside.keep()),
        Err(_) if folder.is_dir() => {}
        Err(error) => return Err(error).with_context(cannot),
    }
    Ok(())
}

/// The libraries that were made in a folder, the driver first: others look it up. Files of other
/// names are left alone.
fn list_libraries(folder: &Path) -> anyhow::Result<Result<Vec<PathBuf>, UntrustedPath>> {
    let names = folder.join(NAMES_FILE);
    if let Err(untrusted) = trusted_path(&names) {
        return Ok(Err(untrusted));
    }
    let names = fs::read_to_string(&names).with_context(|| format!("cannot read {}", names.display()))?;
    let files: Result<Vec<PathBuf>, UntrustedPath> =
        names.lines().map(|name| trusted_path(&folder.join(name))).collect();
    Ok(files.map(|mut files| {
        files.sort_by_key(|file| (!file.ends_with(simgpu_setup::DRIVER), file.clone()));
        files
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_commands_fill_one_folder() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("torch");
        let fill = |text: &'static str| move |made: &Path| Ok(fs::write(made.join("libcuda.so.1"), text)?);
        // The second one finishes while the first is still busy.
        fill_cache(cache.path(), &folder, |made| {
            fill_cache(cache.path(), &folder, fill("second"))?;
            fill("first")(made)
        })
        .unwrap();
        assert_eq!(fs::read_to_string(folder.join("libcuda.so.1")).unwrap(), "second");
        let left: Vec<_> =
            fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["torch"]);
    }

    #[test]
    fn only_libraries_that_were_made_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().canonicalize().unwrap().join(name);
        for name in ["libnvml.so", "libcuda.so.1", "libevil.so"] {
            write_private(&file(name), b"").unwrap();
        }
        write_private(&file(NAMES_FILE), b"libnvml.so\nlibcuda.so.1\n").unwrap();
        let listed = list_libraries(folder.path()).unwrap().unwrap();
        assert_eq!(listed, [file("libcuda.so.1"), file("libnvml.so")]);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        fs::set_permissions(file("libnvml.so"), mode).unwrap();
        assert!(list_libraries(folder.path()).unwrap().is_err());
    }

    #[test]
    fn changed_torch_or_template_has_another_name() {
        let packages = tempfile::tempdir().unwrap();
        let library = packages.path().join("torch/lib/libtorch_cuda.so");
        fs::create_dir_all(library.parent().unwrap()).unwrap();
        fs::write(&library, "1").unwrap();
        fs::write(packages.path().join("torch/version.py"), "__version__ = '2.9.1'\ncuda: str = '12.8'\n")
            .unwrap();
        let templates = |text: &str| {
            for name in TEMPLATE_NAMES {
                fs::write(packages.path().join(name), text).unwrap();
            }
            Templates::read(packages.path()).unwrap()
        };
        let wheel = Wheel::find(packages.path()).unwrap();
        let (old, new) = (templates("old"), templates("new"));
        let first = name_of(&wheel, &old).unwrap();
        assert!(first.starts_with("torch-2.9.1-"), "{first}");
        assert_eq!(name_of(&wheel, &old).unwrap(), first);
        assert_ne!(name_of(&wheel, &new).unwrap(), first);
        // An installation of the same size.
        let later = fs::metadata(&library).unwrap().modified().unwrap() + std::time::Duration::from_secs(1);
        File::options().write(true).open(&library).unwrap().set_modified(later).unwrap();
        assert_ne!(name_of(&wheel, &old).unwrap(), first);
    }

    #[test]
    fn failed_folder_is_not_kept() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("torch");
        assert!(fill_cache(cache.path(), &folder, |_| anyhow::bail!("no")).is_err());
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
    }
}
