//! An installed wheel: its location, and the versions it was compiled against.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use simgpu_common::WheelVersions;

/// An installed PyTorch, and the versions that it was compiled against.
#[derive(Clone, Debug)]
pub struct Wheel {
    /// The folder with `torch/`.
    pub site_packages: PathBuf,
    /// Its version, such as `2.15.0+cu132`.
    pub torch_version: String,
    /// The versions of NVIDIA's libraries that it was compiled against.
    pub versions: WheelVersions,
    /// False if its requirements do not have the version of cuDNN, as in builds from source and of
    /// conda. The version is then that of [`UNKNOWN_CUDNN`].
    pub is_cudnn_known: bool,
}

/// The version of cuDNN of wheels without one in their requirements.
pub const UNKNOWN_CUDNN: [u32; 3] = [9, 10, 2];

/// Returns the site-packages folder of a virtual environment, or the path itself if it is one.
fn site_packages(path: &Path) -> Result<PathBuf> {
    if path.join("torch/lib").is_dir() {
        return Ok(path.to_owned());
    }
    let lib = path.join("lib");
    let entries = std::fs::read_dir(&lib)
        .with_context(|| format!("{} is neither a virtual environment nor site-packages", path.display()))?;
    for entry in entries {
        let candidate = entry?.path().join("site-packages");
        if candidate.join("torch/lib").is_dir() {
            return Ok(candidate);
        }
    }
    bail!("no torch is installed in {}", path.display())
}

/// Returns the quoted text after `key`.
fn quoted<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(key) && line.contains('='))?;
    let value = line.split_once('=')?.1.trim();
    let quote = value.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    value[1..].split(quote).next()
}

/// Splits `12.8` or `9.10.2.21` into numbers.
fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map_while(|part| part.parse().ok()).collect()
}

/// Returns the pinned version of the requirement that starts with `name`.
fn pinned(metadata: &str, name: &str) -> Option<Vec<u32>> {
    let line = metadata
        .lines()
        .find(|line| line.strip_prefix("Requires-Dist: ").is_some_and(|rest| rest.starts_with(name)))?;
    let version = line.split_once("==")?.1;
    Some(numbers(version.split(|c: char| !c.is_ascii_digit() && c != '.').next()?))
        .filter(|list| !list.is_empty())
}

/// Encodes as `10000 * major + 100 * minor + patch`.
fn hundreds(version: &[u32]) -> u32 {
    let part = |at: usize| version.get(at).copied().unwrap_or(0);
    part(0) * 10000 + part(1) * 100 + part(2)
}

/// The number that `cudnnGetVersion` returns for a version.
fn cudnn_number(version: &[u32]) -> u32 {
    if version.first().is_some_and(|&major| major >= 9) { hundreds(version) } else { thousands(version) }
}

/// Encodes as `1000 * major + 100 * minor + patch`.
fn thousands(version: &[u32]) -> u32 {
    let part = |at: usize| version.get(at).copied().unwrap_or(0);
    part(0) * 1000 + part(1) * 100 + part(2)
}

/// The begin of the requirement for cuDNN.
const CUDNN: &str = "nvidia-cudnn";

/// Reads versions from `torch/version.py` and the requirements; unpinned ones follow CUDA's.
fn read_versions(version_py: &str, metadata: &str) -> Result<WheelVersions> {
    let cuda = quoted(version_py, "cuda").context("this torch is not a CUDA build")?;
    let cuda = numbers(cuda);
    let (major, minor) = (cuda.first().copied().unwrap_or(12), cuda.get(1).copied().unwrap_or(0));
    let runtime = 1000 * major + 10 * minor;
    Ok(WheelVersions {
        runtime,
        cudnn: cudnn_number(&pinned(metadata, CUDNN).unwrap_or_else(|| UNKNOWN_CUDNN.to_vec())),
        cublas: pinned(metadata, "nvidia-cublas")
            .map_or(major * 10000 + minor * 100, |version| hundreds(&version)),
        nccl: pinned(metadata, "nvidia-nccl").map_or(22_000, |version| hundreds(&version)),
        cufft: pinned(metadata, "nvidia-cufft").map_or((major - 1) * 1000, |version| thousands(&version)),
        ..WheelVersions::default()
    })
}

impl Wheel {
    /// Finds the PyTorch of a virtual environment or a site-packages folder.
    pub fn find(path: &Path) -> Result<Self> {
        let site_packages = site_packages(path)?;
        let version_py = site_packages.join("torch/version.py");
        let version_py = std::fs::read_to_string(&version_py)
            .with_context(|| format!("cannot read {}", version_py.display()))?;
        let torch_version = quoted(&version_py, "__version__").unwrap_or("unknown").to_owned();
        let metadata = std::fs::read_dir(&site_packages)?.filter_map(Result::ok).find(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("torch-") && name.ends_with(".dist-info")
        });
        let metadata = match metadata {
            Some(folder) => std::fs::read_to_string(folder.path().join("METADATA")).unwrap_or_default(),
            None => String::new(),
        };
        let versions =
            read_versions(&version_py, &metadata).with_context(|| format!("torch {torch_version}"))?;
        let is_cudnn_known = pinned(&metadata, CUDNN).is_some();
        Ok(Self { site_packages, torch_version, versions, is_cudnn_known })
    }

    /// Sets the version of cuDNN that it was compiled against.
    pub fn set_cudnn(&mut self, version: [u32; 3]) {
        self.versions.cudnn = cudnn_number(&version);
        self.is_cudnn_known = true;
    }

    /// Returns the major version of CUDA.
    pub fn cuda_major(&self) -> u32 {
        self.versions.runtime / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_12_wheel_pins_each_library() {
        let metadata = "Name: torch\nRequires-Dist: nvidia-cudnn-cu12==9.10.2.21; platform_system == \"Linux\"\n\
                        Requires-Dist: nvidia-cublas-cu12==12.8.4.1; x\nRequires-Dist: nvidia-nccl-cu12==2.27.5; x\n";
        let versions =
            read_versions("__version__ = '2.9.1+cu128'\ncuda: Optional[str] = '12.8'\n", metadata).unwrap();
        assert_eq!(
            (versions.runtime, versions.cudnn, versions.cublas, versions.nccl),
            (12080, 91002, 120_804, 22705)
        );
    }

    #[test]
    fn cuda_13_wheel_and_old_cudnn() {
        let versions13 = read_versions(
            "cuda: Optional[str] = '13.2'\n",
            "Requires-Dist: nvidia-cudnn-cu13==9.26.0.51; x\n",
        )
        .unwrap();
        assert_eq!((versions13.runtime, versions13.cudnn), (13020, 92600));
        let versions12 =
            read_versions("cuda: Optional[str] = '12.1'\n", "Requires-Dist: nvidia-cudnn-cu12==8.9.2.26\n")
                .unwrap();
        assert_eq!(versions12.cudnn, 8902);
    }

    #[test]
    fn cudnn_of_a_wheel_without_requirements_is_unknown_until_it_is_set() {
        let folder = std::env::temp_dir().join(format!("simgpu-wheel-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("torch/lib")).unwrap();
        std::fs::write(folder.join("torch/version.py"), "__version__ = '2.9.1'\ncuda: str = '12.8'\n")
            .unwrap();
        let mut wheel = Wheel::find(&folder).unwrap();
        assert_eq!((wheel.is_cudnn_known, wheel.versions.cudnn), (false, 91002));
        wheel.set_cudnn([8, 9, 2]);
        assert_eq!((wheel.is_cudnn_known, wheel.versions.cudnn), (true, 8902));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn cpu_build_is_refused() {
        assert!(read_versions("cuda: Optional[str] = None\n", "").is_err());
    }
}
