//! Gives recorded requests to the model, and compares each address with the recorded one.
//!
//! usage: recorded_layout VERSION [SETTINGS] < EVENTS
//!
//! The requests come from a snapshot of PyTorch, also of one on a real GPU; see
//! `tests/suite/allocator/test_recorded_layouts.py`. Segments get the addresses that the driver
//! gave, so that every other address is the model's own choice. Each line is an event:
//!
//! | event | meaning |
//! |---|---|
//! | `a ADDR BYTES STREAM` | a request, and the block that it got |
//! | `f ADDR` | the program freed a block |
//! | `c ADDR` | its last use by another stream has ended |
//! | `+ ADDR BYTES` | the next segment; the request that needs it follows |
//! | `- ADDR BYTES` | a segment was returned, in the request that follows |
//! | `e` | a request to return all unused segments ends here |
//! | `p ADDR BYTES` | a segment from before the recording, which is one free block |
//! | `l ADDR BYTES STREAM` | a block that was taken before the recording; the next in its segment |
//! | `u ADDR` | it is free again |
//!
//! Prints the first difference, or the segments (`s ADDR BYTES`) and taken blocks (`b ADDR BYTES`)
//! at the end.

#![allow(clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, BufRead};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use gpumemtrace_caching_allocator::{
    AllocatorTraceEntry, CacheBackend, CachingAllocator, DriverError, EventId, FreeTicket, OUT_OF_MEMORY,
    Rules, Settings, TorchVersion, TraceAction,
};

/// A request of this size gets a segment of 20 MiB, where one of 20 MiB gets its own.
const SHARED_SEGMENT_REQUEST_BYTES: u64 = 2 << 20;
const SHARED_SEGMENT_BYTES: u64 = 20 << 20;
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;

/// The driver as it was recorded.
#[derive(Default)]
struct RecordedDriver {
    /// Segments that the next request must ask for.
    expected: VecDeque<(u64, u64)>,
    segments: BTreeMap<u64, u64>,
    /// Segments that the model returned in this request.
    returned: BTreeMap<u64, u64>,
    /// Bytes of each block when it was last taken, by address.
    blocks: BTreeMap<u64, u64>,
    difference: Option<String>,
}

impl CacheBackend for RecordedDriver {
    fn alloc(&mut self, bytes: u64, _during_capture: bool) -> Result<u64, DriverError> {
        match self.expected.pop_front() {
            Some((addr, recorded)) if recorded == bytes => {
                self.segments.insert(addr, bytes);
                Ok(addr)
            }
            other => {
                let recorded = other.map_or("none".to_owned(), |(_, bytes)| bytes.to_string());
                self.difference =
                    Some(format!("the model needs a segment of {bytes} bytes, the run {recorded}"));
                Err(OUT_OF_MEMORY)
            }
        }
    }

    fn free(&mut self, addr: u64) {
        let bytes = self.segments.remove(&addr).unwrap_or(0);
        self.returned.insert(addr, bytes);
    }

    fn record_event(&mut self, _stream: u64) -> Result<EventId, DriverError> {
        Ok(EventId(0))
    }

    fn is_event_done(&mut self, _event: EventId) -> bool {
        true
    }

    fn wait_for_event(&mut self, _event: EventId) -> bool {
        true
    }

    fn recycle_event(&mut self, _event: EventId) {}

    fn trace(&mut self, entry: AllocatorTraceEntry) {
        if entry.action == TraceAction::Alloc {
            self.blocks.insert(entry.addr, entry.bytes);
        }
    }
}

/// The model, and what the run did.
struct Layout {
    model: CachingAllocator<RecordedDriver>,
    /// Addresses of blocks that are taken or wait for a stream.
    live: BTreeSet<u64>,
    /// Frees that another stream's use delays, by address.
    pending: BTreeMap<u64, FreeTicket>,
    /// Segments that the run returned in this request.
    returned: BTreeMap<u64, u64>,
}

impl Layout {
    fn new(version: TorchVersion, settings: &str) -> Result<Self> {
        let settings = Settings::parse(settings, version)?;
        let model = CachingAllocator::new(RecordedDriver::default(), settings, Rules::of_version(version));
        Ok(Self { model, live: BTreeSet::new(), pending: BTreeMap::new(), returned: BTreeMap::new() })
    }

    fn on_event(&mut self, kind: &str, numbers: &[u64]) -> Result<()> {
        match (kind, numbers) {
            ("a" | "l", &[addr, bytes, stream]) => self.alloc(addr, bytes, stream),
            ("f", &[addr]) => {
                let ticket = self.model.begin_free(addr);
                self.pending
                    .insert(addr, ticket.with_context(|| format!("a free of no block at {addr:#x}"))?);
                Ok(())
            }
            ("c", &[addr]) => {
                let is_pending =
                    self.pending.remove(&addr).is_some_and(|ticket| self.model.finish_free(ticket));
                ensure!(is_pending, "a completed free of no block at {addr:#x}");
                self.live.remove(&addr);
                Ok(())
            }
            ("+", &[addr, bytes]) => {
                self.model.backend.expected.push_back((addr, bytes));
                Ok(())
            }
            ("-", &[addr, bytes]) => {
                self.returned.insert(addr, bytes);
                Ok(())
            }
            ("e", []) => {
                self.model.release_cached();
                self.compare_returned()
            }
            ("p", &[addr, bytes]) => self.add_free_segment(addr, bytes),
            ("u", &[addr]) => {
                self.live.remove(&addr);
                ensure!(self.model.free(addr), "no block at {addr:#x}");
                Ok(())
            }
            _ => bail!("not an event"),
        }
    }

    fn alloc(&mut self, addr: u64, bytes: u64, stream: u64) -> Result<()> {
        let result = self.model.alloc(bytes, stream);
        if let Some(difference) = self.model.backend.difference.take() {
            bail!("{difference}");
        }
        let own = result.ok().context("the model gets no memory")?;
        ensure!(own == addr, "{bytes} bytes at {own:#x}, in the run at {addr:#x}");
        ensure!(self.model.backend.expected.is_empty(), "the model needs no segment, the run one");
        self.live.insert(addr);
        self.compare_returned()
    }

    fn compare_returned(&mut self) -> Result<()> {
        let own = std::mem::take(&mut self.model.backend.returned);
        let recorded = std::mem::take(&mut self.returned);
        ensure!(own == recorded, "the model returns {} segments, the run {}", own.len(), recorded.len());
        Ok(())
    }

    /// Makes a segment of these bytes and frees the block in it.
    fn add_free_segment(&mut self, addr: u64, bytes: u64) -> Result<()> {
        let request = match bytes {
            SMALL_SEGMENT_BYTES => 1,
            SHARED_SEGMENT_BYTES => SHARED_SEGMENT_REQUEST_BYTES,
            _ => bytes,
        };
        self.model.backend.expected.push_back((addr, bytes));
        self.alloc(addr, request, 0)?;
        self.live.remove(&addr);
        ensure!(self.model.free(addr), "no block at {addr:#x}");
        Ok(())
    }
}

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let version =
        TorchVersion::parse(&arguments.next().context("usage: recorded_layout VERSION [SETTINGS]")?)?;
    let mut layout = Layout::new(version, &arguments.next().unwrap_or_default())?;
    for (number, line) in io::stdin().lock().lines().enumerate() {
        let line = line?;
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>()?;
        if let Err(difference) = layout.on_event(kind, &numbers) {
            println!("line {} ({line}): {difference}", number + 1);
            return Ok(ExitCode::FAILURE);
        }
    }
    let driver = &layout.model.backend;
    for (addr, bytes) in &driver.segments {
        println!("s {addr} {bytes}");
    }
    for addr in &layout.live {
        println!("b {addr} {}", driver.blocks[addr]);
    }
    Ok(ExitCode::SUCCESS)
}
