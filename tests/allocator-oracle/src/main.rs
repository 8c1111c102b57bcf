//! `allocator-oracle`: drives PyTorch's allocator with generated or recorded requests, and compares
//! a model with it.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod cache_model;
mod matrix;

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use cache_model::CacheModel;
use clap::{Args, Parser, Subcommand, ValueEnum};

use gpumemtrace_allocator_oracle::{
    EventsInOrder, NativeAllocator, OracleRequest, RequestFeature, RequestGenerator, RequestReader,
    StreamHeader, compare, write_header,
};
use gpumemtrace_caching_allocator::TorchVersion;
use matrix::rows_of;

const CARD_BYTES: u64 = 4 << 30;
const STREAMS: u32 = 4;

/// Drives PyTorch's CUDA caching allocator on the simulated GPU, and compares a model with it.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: OracleCommand,
}

#[derive(Subcommand)]
enum OracleCommand {
    /// Write a request stream to standard output.
    Generate {
        #[command(flatten)]
        source: RequestSource,
    },
    /// Write the log of PyTorch's allocator to standard output.
    Log {
        #[command(flatten)]
        source: RequestSource,
        #[command(flatten)]
        wheel: WheelArguments,
    },
    /// Compare a model with PyTorch's allocator; exit with 1 at the first event that differs.
    Compare {
        /// Release that the model follows, instead of the wheel's.
        #[arg(long, value_name = "VERSION")]
        model: Option<String>,
        #[command(flatten)]
        source: RequestSource,
        #[command(flatten)]
        wheel: WheelArguments,
    },
    /// Compare under each row of the table of settings that the release has.
    CompareAll {
        #[command(flatten)]
        matrix: MatrixArguments,
        #[command(flatten)]
        wheel: WheelArguments,
    },
}

#[derive(Args)]
struct MatrixArguments {
    /// Number of requests per row.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    operations: usize,
    /// Number of requests of all rows together, instead of per row.
    #[arg(long, value_name = "N", conflicts_with = "operations")]
    total: Option<usize>,
    /// Seed of the generator.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct WheelArguments {
    /// Folder with torch and simulated libraries (the site-packages of a simgpu environment).
    #[arg(long, value_name = "DIR")]
    packages: PathBuf,
    /// Folder for compiled programs.
    #[arg(long, value_name = "DIR", default_value = "target/allocator-oracle")]
    programs: PathBuf,
    /// Simulated libcuda.so.1 to use.
    #[arg(long, value_name = "FILE", default_value = "target/release/libsimgpu_driver.so")]
    simulated_driver: PathBuf,
}

#[derive(Args)]
struct RequestSource {
    /// Read this request stream instead of generating one.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["operations", "seed", "card_bytes", "streams", "settings", "with"])]
    requests: Option<PathBuf>,
    /// Number of requests to make.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    operations: usize,
    /// Seed of the generator.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Memory of the device.
    #[arg(long, value_name = "BYTES", default_value_t = CARD_BYTES)]
    card_bytes: u64,
    /// Number of streams, the default stream included.
    #[arg(long, value_name = "N", default_value_t = STREAMS)]
    streams: u32,
    /// Allocator settings, as in PYTORCH_CUDA_ALLOC_CONF.
    #[arg(long, default_value = "")]
    settings: String,
    /// Kinds of requests besides allocations and frees.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "KIND,...",
        default_value = "record-stream,empty-cache,fraction,outside"
    )]
    with: Vec<RequestFeature>,
}

/// Requests, where they come from, and their header.
type RequestIterator = Box<dyn Iterator<Item = Result<OracleRequest>> + Send>;

impl RequestSource {
    fn open(&self) -> Result<(StreamHeader, RequestIterator)> {
        if let Some(path) = &self.requests {
            let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            let input: Box<dyn BufRead + Send> = Box::new(BufReader::new(file));
            let reader = RequestReader::new(input)?;
            return Ok((reader.header.clone(), Box::new(reader)));
        }
        if self.streams == 0 {
            bail!("--streams: there is always the default stream");
        }
        let header = StreamHeader {
            card_bytes: self.card_bytes,
            streams: self.streams,
            settings: self.settings.clone(),
        };
        let generator = RequestGenerator::new(self.seed, &header, &self.with);
        Ok((header, Box::new(generator.take(self.operations).map(Ok))))
    }
}

fn write_requests(requests: RequestIterator, mut out: impl Write) -> Result<()> {
    for request in requests {
        writeln!(out, "{}", request?)?;
    }
    Ok(out.flush()?)
}

fn build(wheel: &WheelArguments) -> Result<NativeAllocator> {
    let driver = wheel.simulated_driver.canonicalize();
    let driver = driver
        .with_context(|| format!("no {}: run cargo build --release", wheel.simulated_driver.display()))?;
    NativeAllocator::build(&wheel.packages, Path::new(&wheel.programs), &driver)
}

fn log(source: &RequestSource, wheel: &WheelArguments) -> Result<()> {
    let native = build(wheel)?;
    let (header, requests) = source.open()?;
    let mut run = native.start(&header)?;
    let input = run.take_requests().context("no pipe")?;
    let events = run.take_log().context("no pipe")?;
    let writer = thread::spawn(move || write_requests(requests, input));
    let mut out = BufWriter::new(io::stdout().lock());
    for event in EventsInOrder::new(events) {
        writeln!(out, "{}", event?)?;
    }
    out.flush()?;
    run.wait()?;
    writer.join().map_err(|_| anyhow::anyhow!("the generator panicked"))?
}

fn compare_with_model(
    source: &RequestSource,
    native: &NativeAllocator,
    model_version: &str,
) -> Result<ExitCode> {
    let (header, requests) = source.open()?;
    let (_, again) = source.open()?;
    let mut model = CacheModel::new(&header, model_version)?;
    let start = Instant::now();
    let mut run = native.start(&header)?;
    let input = run.take_requests().context("no pipe")?;
    let events = run.take_log().context("no pipe")?;
    let writer = thread::spawn(move || write_requests(requests, input));
    let result = compare(again, events, &mut model)?;
    match result {
        Ok(agreement) => {
            run.wait()?;
            writer.join().map_err(|_| anyhow::anyhow!("the generator panicked"))??;
            println!(
                "torch {}: {} requests, {} events equal ({} of segments, {} out of memory, {} deferred frees), {:.1} s",
                native.torch_version,
                agreement.requests,
                agreement.events,
                agreement.segment_events,
                agreement.out_of_memory,
                agreement.deferred_frees,
                start.elapsed().as_secs_f64()
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(disagreement) => {
            println!("torch {}: {disagreement}", native.torch_version);
            // If the log has ended, the program may have failed: then that is the error.
            if disagreement.native.is_none() {
                run.wait()?;
            } else {
                run.stop()?;
            }
            Ok(ExitCode::from(1))
        }
    }
}

fn compare_all(matrix: &MatrixArguments, native: &NativeAllocator) -> Result<ExitCode> {
    let minor = TorchVersion::parse(&native.torch_version)?.minor();
    let rows: Vec<_> = rows_of(minor).collect();
    let operations = matrix.total.map_or(matrix.operations, |total| total.div_ceil(rows.len()));
    for row in rows {
        let with = row.features(minor);
        let names: Vec<String> = with
            .iter()
            .filter_map(|feature| Some(feature.to_possible_value()?.get_name().to_owned()))
            .collect();
        println!("--settings {:?} --with {}", row.settings, names.join(","));
        let source = RequestSource {
            requests: None,
            operations,
            seed: matrix.seed,
            card_bytes: CARD_BYTES,
            streams: STREAMS,
            settings: row.settings.to_owned(),
            with,
        };
        if compare_with_model(&source, native, &native.torch_version)? != ExitCode::SUCCESS {
            return Ok(ExitCode::from(1));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        OracleCommand::Generate { source } => {
            let (header, requests) = source.open()?;
            let mut out = BufWriter::new(io::stdout().lock());
            write_header(&mut out, &header)?;
            write_requests(requests, out)?;
            Ok(ExitCode::SUCCESS)
        }
        OracleCommand::Log { source, wheel } => log(source, wheel).map(|()| ExitCode::SUCCESS),
        OracleCommand::Compare { model, source, wheel } => {
            let native = build(wheel)?;
            let version = model.as_ref().unwrap_or(&native.torch_version);
            compare_with_model(source, &native, version)
        }
        OracleCommand::CompareAll { matrix, wheel } => compare_all(matrix, &build(wheel)?),
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("allocator-oracle: {error:#}");
            ExitCode::from(2)
        }
    }
}
