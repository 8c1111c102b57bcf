//! Builds and runs the program that drives PyTorch's allocator.

use std::fs;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::event::EventReader;
use crate::request::{StreamHeader, write_header};

/// The allocator of one installed PyTorch.
#[derive(Clone, Debug)]
pub struct NativeAllocator {
    program: PathBuf,
    simulated_driver: PathBuf,
    /// The release, such as `2.15.0`.
    pub torch_version: String,
}

impl NativeAllocator {
    /// Compiles the program against the headers and libraries of a wheel, once per release.
    ///
    /// `packages` is a `site-packages` folder with `torch` and simulated libraries. Programs are
    /// kept in `programs`. `simulated_driver` is the `libcuda.so.1` to use: the folder's own may be
    /// older.
    pub fn build(packages: &Path, programs: &Path, simulated_driver: &Path) -> Result<Self> {
        let torch = packages
            .join("torch")
            .canonicalize()
            .with_context(|| format!("no PyTorch in {}", packages.display()))?;
        let torch_version = version_of(&torch)?;
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("native");
        let program = programs.join(format!("torch-{torch_version}"));
        ensure!(simulated_driver.exists(), "no {}: run cargo build --release", simulated_driver.display());
        let native = Self { program, simulated_driver: simulated_driver.to_owned(), torch_version };
        if !native.is_current(&sources)? {
            fs::create_dir_all(programs)?;
            native.compile(&torch, &sources)?;
        }
        Ok(native)
    }

    fn is_current(&self, sources: &Path) -> Result<bool> {
        let Ok(program) = self.program.metadata() else { return Ok(false) };
        for folder in [sources.to_owned(), sources.join("cuda")] {
            for file in fs::read_dir(folder)? {
                if file?.metadata()?.modified()? > program.modified()? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn compile(&self, torch: &Path, sources: &Path) -> Result<()> {
        // Wheels up to 2.6 use the old ABI of std::string.
        let libc10 = fs::read(torch.join("lib/libc10.so"))?;
        let old_abi = b"torchCheckFailEPKcS2_jRKSs";
        let abi = u32::from(!libc10.windows(old_abi.len()).any(|bytes| bytes == old_abi));
        let libraries = torch.join("lib");
        // Several processes may build at once; the last one wins.
        let unfinished = self.program.with_extension(format!("{}.new", std::process::id()));
        let output = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "g++".into()))
            .args(["-std=c++20", "-O2", "-fpermissive", "-w"])
            .arg(format!("-D_GLIBCXX_USE_CXX11_ABI={abi}"))
            .arg("-I")
            .arg(sources.join("cuda"))
            .arg("-I")
            .arg(torch.join("include"))
            .arg(sources.join("main.cpp"))
            .arg("-o")
            .arg(&unfinished)
            .arg("-L")
            .arg(&libraries)
            .args(["-lc10_cuda", "-lc10", "-ldl", "-Wl,--allow-shlib-undefined", "-Wl,--disable-new-dtags"])
            .arg(format!("-Wl,-rpath,{}", libraries.display()))
            .output()
            .context("cannot run the C++ compiler (Debian's g++, or set CXX)")?;
        if !output.status.success() {
            bail!(
                "cannot compile for torch {}:\n{}",
                self.torch_version,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        fs::rename(unfinished, &self.program)?;
        Ok(())
    }

    /// Starts the program for one request stream and writes the header.
    pub fn start(&self, header: &StreamHeader) -> Result<NativeRun> {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["SIMGPU_", "PYTORCH_", "LD_"].iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        command
            .env("LD_PRELOAD", &self.simulated_driver)
            .env("SIMGPU_MEM", header.card_bytes.to_string())
            .env("SIMGPU_MANUAL_EVENTS", "1")
            // Each failed allocation would be a warning on stderr.
            .env("TORCH_CPP_LOG_LEVEL", "ERROR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if !header.settings.is_empty() {
            command.env("PYTORCH_CUDA_ALLOC_CONF", &header.settings);
        }
        let mut child = command.spawn().with_context(|| format!("cannot run {}", self.program.display()))?;
        let (Some(requests), Some(log)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("no pipes to {}", self.program.display());
        };
        let mut requests = BufWriter::with_capacity(1 << 16, requests);
        write_header(&mut requests, header)?;
        Ok(NativeRun { child, requests: Some(requests), log: Some(BufReader::with_capacity(1 << 16, log)) })
    }
}

/// The program while it serves a request stream.
#[derive(Debug)]
pub struct NativeRun {
    child: Child,
    requests: Option<BufWriter<ChildStdin>>,
    log: Option<BufReader<ChildStdout>>,
}

impl NativeRun {
    /// Takes where requests are written, one per line. Dropping it ends the stream.
    pub fn take_requests(&mut self) -> Option<impl Write + Send + use<>> {
        self.requests.take()
    }

    /// Takes the log of the requests.
    pub fn take_log(&mut self) -> Option<EventReader<BufReader<ChildStdout>>> {
        self.log.take().map(EventReader::new)
    }

    /// Ends the program, whatever it does.
    pub fn stop(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits for the end of the program; an error if it failed.
    pub fn wait(mut self) -> Result<()> {
        drop(self.requests.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "PyTorch's allocator stopped: {status}");
        Ok(())
    }
}

fn version_of(torch: &Path) -> Result<String> {
    let file = torch.join("version.py");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let version = text.lines().find_map(|line| line.strip_prefix("__version__ = '"));
    let version = version.and_then(|rest| rest.split(['+', '\'']).next());
    version.map(str::to_owned).with_context(|| format!("no version in {}", file.display()))
}
