//! `simgpu-setup`: installs the simulated CUDA libraries that an installed PyTorch needs.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use simgpu_common::MAGIC;
use simgpu_setup::{DRIVER, Templates, Wheel, WheelNeeds};

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
fn target_folder(wheel: &Wheel, needs: &WheelNeeds) -> Result<PathBuf> {
    let all_in_one = format!("nvidia/cu{}/lib", wheel.cuda_major());
    for candidate in [all_in_one.as_str(), "nvidia/cuda_runtime/lib"] {
        if needs.searches(candidate) {
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
    let needs = WheelNeeds::of(&wheel)?;
    let folder = target_folder(&wheel, &needs)?;
    if options.remove {
        return remove(&folder, &needs);
    }
    let beside = || Some(std::env::current_exe().ok()?.parent()?.to_owned());
    let source = options.lib_dir.clone().or_else(beside).context("where are the libraries? use --lib-dir")?;
    let templates = Templates::read(&source).context("see --lib-dir")?;
    for name in needs.missing_in_driver(&templates) {
        eprintln!(
            "simgpu-setup: warning: this torch uses the driver function {name}, which is not simulated"
        );
    }

    let foreign =
        needs.sonames().map(|soname| folder.join(soname)).find(|path| path.exists() && !is_simulated(path));
    if let Some(path) = foreign.filter(|_| !options.force) {
        bail!(
            "{} is NVIDIA's own; use a virtual environment without the nvidia packages, or --force",
            path.display()
        );
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let libraries = needs.make_libraries(&wheel, &templates)?;
    for library in &libraries {
        write(&folder.join(&library.soname), &library.bytes)?;
    }
    // Triton and others link with -lcuda.
    let link = folder.join("libcuda.so");
    if !link.exists() {
        std::os::unix::fs::symlink(DRIVER, &link)
            .with_context(|| format!("cannot create {}", link.display()))?;
    }
    if !options.quiet {
        println!(
            "torch {} (CUDA {}.{}): {} simulated libraries with {} functions in {}",
            wheel.torch_version,
            wheel.versions.runtime / 1000,
            wheel.versions.runtime % 1000 / 10,
            libraries.len(),
            libraries.iter().map(|library| library.functions).sum::<usize>(),
            folder.display()
        );
    }
    Ok(())
}

fn remove(folder: &Path, needs: &WheelNeeds) -> Result<()> {
    for soname in needs.sonames() {
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
