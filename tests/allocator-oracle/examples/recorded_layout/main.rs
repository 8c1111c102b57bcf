//! Gives recorded requests to the model, and compares each address with the recorded one.
//!
//! usage: recorded_layout VERSION [SETTINGS] < EVENTS
//!
//! The requests come from a snapshot of PyTorch, also of one on a real GPU; see
//! `tests/suite/allocator/test_recorded_layouts.py`. Memory gets the addresses that the driver
//! gave, so that every other address is the model's own choice. Each line is an event:
//!
//! | event | meaning |
//! |---|---|
//! | `a ADDR BYTES STREAM [POOL]` | a request, and the block that it got; POOL is private |
//! | `o BYTES STREAM` | a request that got no memory |
//! | `f ADDR` | the program freed a block |
//! | `c ADDR` | its last use by another stream has ended |
//! | `+ ADDR BYTES` | a new segment, in the request that follows |
//! | `- ADDR BYTES` | a segment was returned, in the request that follows |
//! | `< ADDR BYTES` | a part of an expandable segment was mapped, in the request that follows |
//! | `> ADDR BYTES` | a part was unmapped, in the request that follows |
//! | `e` | a request to return all unused memory ends here |
//! | `p ADDR BYTES` | a segment from before the recording, which is one free block |
//! | `l ADDR BYTES STREAM` | a block that was taken before the recording; the next in its segment |
//! | `u ADDR` | it is free again |
//!
//! Prints the first difference, or the segments (`s ADDR BYTES`) and taken blocks (`b ADDR BYTES`)
//! at the end.

#![allow(clippy::print_stdout)]

mod driver;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use gpumemtrace_caching_allocator::{CachingAllocator, FreeTicket, PoolId, Rules, Settings, TorchVersion};

use driver::{DriverCall, RecordedDriver};

/// A request of this size gets a segment of 20 MiB, where one of 20 MiB gets its own.
const SHARED_SEGMENT_REQUEST_BYTES: u64 = 2 << 20;
const SHARED_SEGMENT_BYTES: u64 = 20 << 20;
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;

/// The model, and what the run did.
struct Layout {
    model: CachingAllocator<RecordedDriver>,
    /// Addresses of blocks that are taken or wait for a stream.
    live: BTreeSet<u64>,
    /// Frees that another stream's use delays, by address.
    pending: BTreeMap<u64, FreeTicket>,
}

impl Layout {
    fn new(version: TorchVersion, settings: &str) -> Result<Self> {
        let settings = Settings::parse(settings, version)?;
        let model = CachingAllocator::new(RecordedDriver::default(), settings, Rules::of_version(version));
        Ok(Self { model, live: BTreeSet::new(), pending: BTreeMap::new() })
    }

    fn on_event(&mut self, kind: &str, numbers: &[u64]) -> Result<()> {
        match (kind, numbers) {
            ("a" | "l", &[addr, bytes, stream]) => self.alloc(addr, bytes, stream),
            ("a", &[addr, bytes, stream, pool]) => self.alloc_from_pool(addr, bytes, stream, (0, pool)),
            ("o", &[bytes, stream]) => self.fail_to_alloc(bytes, stream),
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
            ("+" | "-" | "<" | ">", &[addr, bytes]) => {
                self.model.backend.calls.push_back(match kind {
                    "+" => DriverCall::Alloc(addr, bytes),
                    "-" => DriverCall::Free(addr, bytes),
                    "<" => DriverCall::Map(addr, bytes),
                    _ => DriverCall::Unmap(addr, bytes),
                });
                Ok(())
            }
            ("e", []) => {
                self.model.release_cached();
                self.check_driver_calls()
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
        self.check_driver_calls()?;
        let own = result.ok().context("the model gets no memory")?;
        ensure!(own == addr, "{bytes} bytes at {own:#x}, in the run at {addr:#x}");
        self.live.insert(addr);
        Ok(())
    }

    fn alloc_from_pool(&mut self, addr: u64, bytes: u64, stream: u64, pool: PoolId) -> Result<()> {
        self.model.begin_mem_pool(pool, Box::new(|_| true));
        self.alloc(addr, bytes, stream)?;
        self.model.end_pool(pool);
        Ok(())
    }

    fn fail_to_alloc(&mut self, bytes: u64, stream: u64) -> Result<()> {
        self.model.backend.request_fails = true;
        let result = self.model.alloc(bytes, stream);
        self.model.backend.request_fails = false;
        self.check_driver_calls()?;
        ensure!(result.is_err(), "the model serves {bytes} bytes, the run does not");
        Ok(())
    }

    /// Whether the model made the same driver calls as the run.
    fn check_driver_calls(&mut self) -> Result<()> {
        let driver = &mut self.model.backend;
        if let Some(difference) = driver.difference.take() {
            bail!("{difference}");
        }
        if let Some(call) = driver.calls.front() {
            bail!("the model does not make a driver call of the run: {call:x?}");
        }
        Ok(())
    }

    /// Makes a segment of these bytes and frees the block in it.
    fn add_free_segment(&mut self, addr: u64, bytes: u64) -> Result<()> {
        let request = match bytes {
            SMALL_SEGMENT_BYTES => 1,
            SHARED_SEGMENT_BYTES => SHARED_SEGMENT_REQUEST_BYTES,
            _ => bytes,
        };
        self.model.backend.calls.push_back(DriverCall::Alloc(addr, bytes));
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
