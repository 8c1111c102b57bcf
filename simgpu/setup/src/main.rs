//! `simgpu-setup`: installs the simulated CUDA libraries that an installed PyTorch needs.
//!
//! Each wheel needs other libraries, functions and symbol versions. The program scans the wheel and
//! makes each library from one template, without a compiler or linker.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod elf;
mod export;
mod plan;
mod scan;
mod tables;
mod wheel;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use simgpu_common::MAGIC;

use crate::elf::Template;
use crate::scan::Needs;
use crate::wheel::Wheel;

const DRIVER: &str = "libcuda.so.1";
const NVML: &str = "libnvidia-ml.so.1";

/// Installs the simulated CUDA libraries into a PyTorch CUDA build.
///
/// The libraries go to the wheel's search path (site-packages/nvidia/...); nothing else changes.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// A virtual environment or a site-packages folder.
    path: PathBuf,
    /// Folder of libsimgpu_driver.so and libsimgpu_toolkit.so [default: beside this program]
    #[arg(long)]
    lib_dir: Option<PathBuf>,
    /// Replace NVIDIA's own libraries if they are installed.
    #[arg(long)]
    force: bool,
    /// Remove the simulated libraries.
    #[arg(long)]
    remove: bool,
    /// Print errors only, no summary.
    #[arg(long, short)]
    quiet: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("simgpu-setup: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the folder of the wheel's search path where its CUDA runtime would lie.
fn target_folder(wheel: &Wheel, needs: &Needs) -> Result<PathBuf> {
    let all_in_one = format!("nvidia/cu{}/lib", wheel.cuda_major());
    for candidate in [all_in_one.as_str(), "nvidia/cuda_runtime/lib"] {
        if needs.search_paths.iter().any(|path| path.trim_end_matches('/').ends_with(candidate)) {
            return Ok(wheel.site_packages.join(candidate));
        }
    }
    bail!("torch {} does not look for its CUDA libraries in site-packages/nvidia", wheel.torch_version)
}

/// Returns whether a file is a simulated library.
fn is_simulated(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|bytes| {
        bytes.windows(MAGIC.len()).any(|window| window == MAGIC)
            || bytes.windows(12).any(|window| window == b"simgpu_shape")
    })
}

/// Replaces a file atomically, so that a running program sees the old or the new one.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = path.with_extension(format!("simgpu-{}", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(&temporary)?;
        file.write_all(bytes)?;
        std::fs::rename(&temporary, path)
    };
    write()
        .inspect_err(|_| drop(std::fs::remove_file(&temporary)))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn run(options: &Options) -> Result<()> {
    let wheel = Wheel::find(&options.path)?;
    let mut needs = scan::scan(&wheel.site_packages.join("torch/lib"))?;
    let folder = target_folder(&wheel, &needs)?;
    // These are opened by name at run time, so no library lists them as needed.
    for soname in [DRIVER, NVML] {
        needs.libraries.entry(soname.to_owned()).or_default();
    }
    if options.remove {
        return remove(&folder, &needs);
    }
    let beside = || Some(std::env::current_exe().ok()?.parent()?.to_owned());
    let source = options.lib_dir.clone().or_else(beside).context("where are the libraries? use --lib-dir")?;
    let read = |name: &str| {
        let path = source.join(name);
        std::fs::read(&path).with_context(|| format!("cannot read {} (see --lib-dir)", path.display()))
    };
    let (driver, template) = (read("libsimgpu_driver.so")?, read("libsimgpu_toolkit.so")?);
    let template = Template::parse(&template).context("libsimgpu_toolkit.so")?;

    let foreign = needs
        .libraries
        .keys()
        .map(|soname| folder.join(soname))
        .find(|path| path.exists() && !is_simulated(path));
    if let Some(path) = foreign.filter(|_| !options.force) {
        bail!(
            "{} is NVIDIA's own; use a virtual environment without the nvidia packages, or --force",
            path.display()
        );
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut functions = 0;
    for (soname, wanted) in &needs.libraries {
        if soname == DRIVER {
            check_driver(&driver, wanted);
            write(&folder.join(soname), &driver)?;
            continue;
        }
        let exports = plan::exports(&template, soname, wanted, wheel.cuda_major())?;
        functions += exports.len();
        let library = template
            .instantiate(soname, &exports, wheel.versions)
            .with_context(|| format!("cannot make {soname}"))?;
        write(&folder.join(soname), &library)?;
    }
    // Triton and others link with -lcuda.
    let link = folder.join("libcuda.so");
    if !link.exists() {
        std::os::unix::fs::symlink(DRIVER, &link)
            .with_context(|| format!("cannot create {}", link.display()))?;
    }
    if !options.quiet {
        println!(
            "torch {} (CUDA {}.{}): {} simulated libraries with {functions} functions in {}",
            wheel.torch_version,
            wheel.versions.runtime / 1000,
            wheel.versions.runtime % 1000 / 10,
            needs.libraries.len(),
            folder.display()
        );
    }
    Ok(())
}

/// Warns about driver functions that the wheel uses and the simulated driver lacks.
fn check_driver(driver: &[u8], wanted: &scan::Functions) {
    let known = elf::defined_names(driver).unwrap_or_default();
    for name in wanted.keys().filter(|name| !known.contains(*name)) {
        eprintln!(
            "simgpu-setup: warning: this torch uses the driver function {name}, which is not simulated"
        );
    }
}

fn remove(folder: &Path, needs: &Needs) -> Result<()> {
    for soname in needs.libraries.keys() {
        let path = folder.join(soname);
        if is_simulated(&path) {
            std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    let link = folder.join("libcuda.so");
    if std::fs::read_link(&link).is_ok_and(|to| to == Path::new(DRIVER)) {
        std::fs::remove_file(&link).with_context(|| format!("cannot remove {}", link.display()))?;
    }
    Ok(())
}
