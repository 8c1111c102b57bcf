//! Requests to an allocator, and their text format.

use std::fmt;
use std::io::{self, BufRead, Write};

use anyhow::{Context, Result, bail};

use crate::text::{LineFields, TextError};

/// First line of a request stream.
const MAGIC: &str = "allocator-requests 1";

/// Index of an allocation among all allocations of a stream, failed ones included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AllocationNumber(pub u32);

/// Number of a CUDA stream; 0 is the default stream, and handles ascend with the numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamNumber(pub u32);

/// Number of a private pool, from 1; PyTorch knows it as `(0, number)`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PoolNumber(pub u32);

/// The environment of a request stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamHeader {
    /// Memory of the device, a multiple of 2 MiB.
    pub card_bytes: u64,
    /// Number of streams, the default stream included.
    pub streams: u32,
    /// Value of `PYTORCH_CUDA_ALLOC_CONF`; empty for the defaults.
    pub settings: String,
}

/// One call of the allocator, or of what lies beneath it.
#[derive(Clone, PartialEq, Debug)]
pub enum OracleRequest {
    /// Allocates a block for a stream.
    Allocate {
        /// Requested size, at least 1.
        bytes: u64,
        /// The stream to allocate for.
        stream: StreamNumber,
    },
    /// Frees a block; no effect if the allocation failed.
    Free(AllocationNumber),
    /// Marks a block as used by a stream; no effect if the allocation failed.
    RecordStream(AllocationNumber, StreamNumber),
    /// The device completes all work that was submitted to a stream.
    CompleteStream(StreamNumber),
    /// Empties the cache of all pools, or of one.
    EmptyCache(Option<PoolNumber>),
    /// Limits the reserved bytes to a fraction of the card.
    SetFraction(f64),
    /// Reads allocator settings again.
    SetSettings(String),
    /// Adds a user to a pool, and creates it if needed (`createOrIncrefPool`).
    AddPoolUser(PoolNumber),
    /// Blocks of this pool are not split (`setNoSplit`).
    ForbidSplits(PoolNumber),
    /// Failing allocations may take blocks of this pool (`setUseOnOOM`).
    UseOnOutOfMemory(PoolNumber),
    /// Sends allocations of one stream, or of all, to a pool (`beginAllocateToPool`).
    BeginPool(PoolNumber, Option<StreamNumber>),
    /// Ends the last `BeginPool` of this pool.
    EndPool(PoolNumber),
    /// Removes a user from a pool (`releasePool`).
    ReleasePool(PoolNumber),
    /// Begins a graph capture on a stream, which becomes the current stream.
    BeginCapture(StreamNumber),
    /// Ends the capture and destroys the graph; the default stream becomes current.
    EndCapture(StreamNumber),
    /// Allocates device memory without the allocator; does nothing if there is too little.
    AllocateOutside(u64),
    /// Frees the memory of an `AllocateOutside`, by its number.
    FreeOutside(u32),
    /// Logs the statistics of the device.
    LogStatistics,
}

impl fmt::Display for OracleRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocate { bytes, stream } => write!(formatter, "a {bytes} {}", stream.0),
            Self::Free(allocation) => write!(formatter, "f {}", allocation.0),
            Self::RecordStream(allocation, stream) => write!(formatter, "r {} {}", allocation.0, stream.0),
            Self::CompleteStream(stream) => write!(formatter, "d {}", stream.0),
            Self::EmptyCache(None) => formatter.write_str("e"),
            Self::EmptyCache(Some(pool)) => write!(formatter, "e {}", pool.0),
            Self::SetFraction(fraction) => write!(formatter, "l {fraction}"),
            Self::SetSettings(settings) => write!(formatter, "s {settings}"),
            Self::AddPoolUser(pool) => write!(formatter, "p {}", pool.0),
            Self::ForbidSplits(pool) => write!(formatter, "n {}", pool.0),
            Self::UseOnOutOfMemory(pool) => write!(formatter, "u {}", pool.0),
            Self::BeginPool(pool, None) => write!(formatter, "b {}", pool.0),
            Self::BeginPool(pool, Some(stream)) => write!(formatter, "b {} {}", pool.0, stream.0),
            Self::EndPool(pool) => write!(formatter, "x {}", pool.0),
            Self::ReleasePool(pool) => write!(formatter, "v {}", pool.0),
            Self::BeginCapture(stream) => write!(formatter, "g {}", stream.0),
            Self::EndCapture(stream) => write!(formatter, "h {}", stream.0),
            Self::AllocateOutside(bytes) => write!(formatter, "m {bytes}"),
            Self::FreeOutside(number) => write!(formatter, "w {number}"),
            Self::LogStatistics => formatter.write_str("k"),
        }
    }
}

impl OracleRequest {
    /// Reads one line, without its end.
    pub fn parse(line: &str) -> Result<Self, TextError> {
        let (kind, mut fields) = LineFields::new(line);
        let request = match kind {
            "a" => Self::Allocate { bytes: fields.parse()?, stream: StreamNumber(fields.parse()?) },
            "f" => Self::Free(AllocationNumber(fields.parse()?)),
            "r" => Self::RecordStream(AllocationNumber(fields.parse()?), StreamNumber(fields.parse()?)),
            "d" => Self::CompleteStream(StreamNumber(fields.parse()?)),
            "e" => Self::EmptyCache(optional_number(&mut fields)?.map(PoolNumber)),
            "l" => Self::SetFraction(fields.parse()?),
            "s" => Self::SetSettings(fields.rest().to_owned()),
            "p" => Self::AddPoolUser(PoolNumber(fields.parse()?)),
            "n" => Self::ForbidSplits(PoolNumber(fields.parse()?)),
            "u" => Self::UseOnOutOfMemory(PoolNumber(fields.parse()?)),
            "b" => {
                Self::BeginPool(PoolNumber(fields.parse()?), optional_number(&mut fields)?.map(StreamNumber))
            }
            "x" => Self::EndPool(PoolNumber(fields.parse()?)),
            "v" => Self::ReleasePool(PoolNumber(fields.parse()?)),
            "g" => Self::BeginCapture(StreamNumber(fields.parse()?)),
            "h" => Self::EndCapture(StreamNumber(fields.parse()?)),
            "m" => Self::AllocateOutside(fields.parse()?),
            "w" => Self::FreeOutside(fields.parse()?),
            "k" => Self::LogStatistics,
            _ => return Err(fields.error()),
        };
        fields.finish(request)
    }
}

fn optional_number(fields: &mut LineFields<'_>) -> Result<Option<u32>, TextError> {
    fields.optional().map(|field| field.parse().map_err(|_| fields.error())).transpose()
}

/// Writes the lines before the first request.
pub fn write_header(out: &mut dyn Write, header: &StreamHeader) -> io::Result<()> {
    let StreamHeader { card_bytes, streams, settings } = header;
    write!(out, "{MAGIC}\ncard_bytes {card_bytes}\nstreams {streams}\n")?;
    if !settings.is_empty() {
        writeln!(out, "settings {settings}")?;
    }
    writeln!(out, "requests")
}

/// Reads a request stream.
#[derive(Debug)]
pub struct RequestReader<R> {
    input: R,
    line: String,
    /// What precedes the requests.
    pub header: StreamHeader,
}

impl<R: BufRead> RequestReader<R> {
    /// Reads the header, up to the first request.
    pub fn new(mut input: R) -> Result<Self> {
        let mut line = String::new();
        input.read_line(&mut line)?;
        if line.trim_end() != MAGIC {
            bail!("not a request stream: the first line is not {MAGIC:?}");
        }
        let mut header = StreamHeader { card_bytes: 80 << 30, streams: 1, settings: String::new() };
        loop {
            line.clear();
            if input.read_line(&mut line)? == 0 {
                bail!("the request stream ends within its header");
            }
            let text = line.trim_end_matches('\n');
            match text.split_once(' ').unwrap_or((text, "")) {
                ("requests", "") => break,
                ("card_bytes", value) => header.card_bytes = value.parse().context("card_bytes")?,
                ("streams", value) => header.streams = value.parse().context("streams")?,
                ("settings", value) => value.clone_into(&mut header.settings),
                _ => bail!(TextError { line: text.to_owned() }),
            }
        }
        Ok(Self { input, line, header })
    }
}

impl<R: BufRead> Iterator for RequestReader<R> {
    type Item = Result<OracleRequest>;

    fn next(&mut self) -> Option<Self::Item> {
        self.line.clear();
        match self.input.read_line(&mut self.line) {
            Ok(0) => None,
            Ok(_) => Some(OracleRequest::parse(self.line.trim_end_matches('\n')).map_err(Into::into)),
            Err(error) => Some(Err(error.into())),
        }
    }
}
