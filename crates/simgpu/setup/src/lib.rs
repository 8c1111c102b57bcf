//! Makes the simulated CUDA libraries that an installed PyTorch needs.
//!
//! Each wheel needs other libraries, functions and symbol versions. [`WheelNeeds`] scans the wheel
//! and makes each library from one template, without a compiler or linker.

mod elf;
mod export;
mod plan;
mod scan;
mod tables;
mod wheel;

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::elf::Template;
use crate::scan::Needs;
pub use crate::wheel::{UNKNOWN_CUDNN, Wheel};

/// The SONAME of the CUDA driver.
pub const DRIVER: &str = "libcuda.so.1";
const NVML: &str = "libnvidia-ml.so.1";
/// The files of [`Templates::read`].
pub const TEMPLATE_NAMES: [&str; 2] = ["libsimgpu_driver.so", "libsimgpu_toolkit.so"];

/// The libraries that all others are made from.
#[derive(Debug, Hash)]
pub struct Templates {
    driver: Vec<u8>,
    toolkit: Vec<u8>,
}

impl Templates {
    /// Reads [`TEMPLATE_NAMES`] in a folder.
    pub fn read(folder: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let [driver, toolkit] = TEMPLATE_NAMES;
        Ok(Self { driver: read(driver)?, toolkit: read(toolkit)? })
    }
}

/// A library for one wheel.
#[derive(Debug)]
pub struct SimulatedLibrary {
    /// Its name, as the wheel asks for it.
    pub soname: String,
    /// The contents of the file, an ELF library.
    pub bytes: Vec<u8>,
    /// Functions that it exports; 0 for the driver.
    pub functions: usize,
}

/// What a wheel needs of NVIDIA's libraries.
#[derive(Debug)]
pub struct WheelNeeds(Needs);

impl WheelNeeds {
    /// Scans the libraries of a wheel.
    pub fn of(wheel: &Wheel) -> Result<Self> {
        let mut needs = scan::scan(&wheel.site_packages.join("torch/lib"))?;
        // These are opened by name at run time, so no library lists them as needed.
        for soname in [DRIVER, NVML] {
            needs.libraries.entry(soname.to_owned()).or_default();
        }
        Ok(Self(needs))
    }

    /// The names of the libraries, as the dynamic loader asks for them.
    pub fn sonames(&self) -> impl Iterator<Item = &str> {
        self.0.libraries.keys().map(String::as_str)
    }

    /// Whether the wheel looks for its libraries in a folder of site-packages.
    pub fn searches(&self, folder: &str) -> bool {
        self.0.search_paths.iter().any(|path| path.trim_end_matches('/').ends_with(folder))
    }

    /// Driver functions that the wheel uses and the simulated driver lacks.
    pub fn missing_in_driver(&self, templates: &Templates) -> Vec<&str> {
        let known = elf::defined_names(&templates.driver).unwrap_or_default();
        let wanted = self.0.libraries.get(DRIVER).into_iter().flat_map(|functions| functions.keys());
        wanted.filter(|name| !known.contains(*name)).map(String::as_str).collect()
    }

    /// Makes the libraries, in the order of [`sonames`](Self::sonames). Takes a tenth of a second.
    pub fn make_libraries(&self, wheel: &Wheel, templates: &Templates) -> Result<Vec<SimulatedLibrary>> {
        let template = Template::parse(&templates.toolkit).context("libsimgpu_toolkit.so")?;
        let libraries = self.0.libraries.iter().map(|(soname, wanted)| {
            let soname = soname.clone();
            if soname == DRIVER {
                return Ok(SimulatedLibrary { soname, bytes: templates.driver.clone(), functions: 0 });
            }
            let exports = plan::exports(&template, &soname, wanted, wheel.cuda_major())?;
            let bytes = template
                .instantiate(&soname, &exports, wheel.versions)
                .with_context(|| format!("cannot make {soname}"))?;
            Ok(SimulatedLibrary { soname, bytes, functions: exports.len() })
        });
        libraries.collect()
    }
}
