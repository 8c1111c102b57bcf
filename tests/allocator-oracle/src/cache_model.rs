//! The crate `caching-allocator` as a model.

use std::collections::BTreeMap;

use anyhow::Result;
use gpumemtrace_allocator_oracle::{
    AllocationNumber, FirstFitDevice, ModelledAllocator, OracleEvent, OracleRequest, STATISTICS,
    SegmentChange, StreamHeader, StreamNumber,
};
use gpumemtrace_caching_allocator::{
    AllocatorTraceEntry, CacheBackend, CachingAllocator, DriverError, EventId, OUT_OF_MEMORY, Rules,
    Settings, TorchVersion, TraceAction,
};

/// Where reservations begin in a log.
const RESERVED_BASE: u64 = 5 << 40;
/// Addresses for reservations; more than any stream of requests needs.
const RESERVED_BYTES: u64 = 100 << 40;

/// The device and the log of [`CacheModel`].
struct LoggingBackend {
    device: FirstFitDevice,
    reservations: FirstFitDevice,
    mapped_bytes: u64,
    /// Index of the current request.
    request: u64,
    events: Vec<OracleEvent>,
    next_event: u64,
    /// Recorded events that have not completed, with their streams.
    outstanding: BTreeMap<u64, u64>,
}

impl LoggingBackend {
    fn log_segment(&mut self, change: SegmentChange, entry: &AllocatorTraceEntry) {
        self.events.push(OracleEvent::Segment {
            change,
            request: self.request,
            addr: entry.addr,
            bytes: entry.bytes,
            stream: StreamNumber(entry.stream as u32),
        });
    }

    fn free_bytes(&self) -> u64 {
        self.device.free_bytes() - self.mapped_bytes
    }

    fn allocate(&mut self, bytes: u64) -> Option<u64> {
        (bytes <= self.free_bytes()).then(|| self.device.allocate(bytes)).flatten()
    }

    fn complete_stream(&mut self, stream: u64) {
        self.outstanding.retain(|_, on| *on != stream);
    }
}

impl CacheBackend for LoggingBackend {
    fn alloc(&mut self, bytes: u64, _during_capture: bool) -> Result<u64, DriverError> {
        self.allocate(bytes).ok_or(OUT_OF_MEMORY)
    }

    fn free(&mut self, addr: u64) {
        self.device.free(addr);
    }

    fn device_bytes(&mut self) -> u64 {
        self.device.card_bytes()
    }

    fn reserve_addresses(&mut self, bytes: u64) -> Result<u64, DriverError> {
        self.reservations.allocate(bytes).map(|addr| RESERVED_BASE + addr).ok_or(OUT_OF_MEMORY)
    }

    fn release_addresses(&mut self, addr: u64, _bytes: u64) {
        self.reservations.free(addr - RESERVED_BASE);
    }

    fn map(&mut self, _addr: u64, bytes: u64, _page_bytes: u64) -> Result<(), DriverError> {
        if bytes > self.free_bytes() {
            return Err(OUT_OF_MEMORY);
        }
        self.mapped_bytes += bytes;
        Ok(())
    }

    fn unmap(&mut self, _addr: u64, bytes: u64, _page_bytes: u64, stream: u64) {
        self.complete_stream(stream);
        self.mapped_bytes -= bytes;
    }

    fn record_event(&mut self, stream: u64) -> Result<EventId, DriverError> {
        self.next_event += 1;
        self.outstanding.insert(self.next_event, stream);
        Ok(EventId(self.next_event))
    }

    fn is_event_done(&mut self, event: EventId) -> bool {
        !self.outstanding.contains_key(&event.0)
    }

    fn wait_for_event(&mut self, event: EventId) -> bool {
        if let Some(&stream) = self.outstanding.get(&event.0) {
            self.complete_stream(stream);
        }
        true
    }

    fn recycle_event(&mut self, _: EventId) {}

    fn trace(&mut self, entry: AllocatorTraceEntry) {
        match entry.action {
            TraceAction::Alloc => self.events.push(OracleEvent::Allocated(entry.addr)),
            TraceAction::FreeRequested { .. } => {}
            TraceAction::FreeCompleted => {
                self.events.push(OracleEvent::FreeCompleted { request: self.request, addr: entry.addr });
            }
            TraceAction::SegmentAlloc => self.log_segment(SegmentChange::Allocated, &entry),
            TraceAction::SegmentFree => self.log_segment(SegmentChange::Freed, &entry),
            TraceAction::SegmentMap => self.log_segment(SegmentChange::Mapped, &entry),
            TraceAction::SegmentUnmap => self.log_segment(SegmentChange::Unmapped, &entry),
        }
    }
}

/// The caching allocator with the rules of one release, on a device of its own.
pub(crate) struct CacheModel {
    cache: CachingAllocator<LoggingBackend>,
    version: TorchVersion,
    /// Addresses by number of the allocation; `None` after the free, or if it failed.
    blocks: Vec<Option<u64>>,
    outside: Vec<Option<u64>>,
}

impl CacheModel {
    /// A cache on an empty device.
    pub(crate) fn new(header: &StreamHeader, torch_version: &str) -> Result<Self> {
        let version = TorchVersion::parse(torch_version)?;
        let settings = Settings::parse(&header.settings, version)?;
        let backend = LoggingBackend {
            device: FirstFitDevice::new(header.card_bytes),
            reservations: FirstFitDevice::new(RESERVED_BYTES),
            mapped_bytes: 0,
            request: 0,
            events: Vec::new(),
            next_event: 0,
            outstanding: BTreeMap::new(),
        };
        let cache = CachingAllocator::new(backend, settings, Rules::of_version(version));
        Ok(Self { cache, version, blocks: Vec::new(), outside: Vec::new() })
    }

    fn block(&self, number: AllocationNumber) -> Option<u64> {
        self.blocks.get(number.0 as usize).copied().flatten()
    }

    fn allocate(&mut self, bytes: u64, stream: StreamNumber) {
        let rejections = self.cache.stats.num_oom_rejections;
        let block = self.cache.alloc(bytes, stream.0.into()).ok();
        if self.cache.stats.num_oom_rejections > rejections {
            // PyTorch writes no entry for these.
            self.cache.backend.events.push(OracleEvent::OutOfMemory { bytes: 0, free_bytes: 0 });
        } else if block.is_none() {
            let free_bytes = self.cache.backend.free_bytes();
            let bytes = self.cache.block_bytes(bytes).unwrap_or(bytes);
            self.cache.backend.events.push(OracleEvent::OutOfMemory { bytes, free_bytes });
        }
        self.blocks.push(block);
    }

    fn statistics(&self) -> OracleEvent {
        let mut values = [0; STATISTICS.len()];
        self.cache.stats.for_each(|name, value| {
            let name = name.replace(".all.", ".");
            if let Some(at) = STATISTICS.iter().position(|known| *known == name) {
                values[at] = value;
            }
        });
        OracleEvent::Statistics(values)
    }
}

impl ModelledAllocator for CacheModel {
    fn serve(&mut self, number: u64, request: &OracleRequest, events: &mut Vec<OracleEvent>) -> Result<()> {
        self.cache.backend.request = number;
        match *request {
            OracleRequest::Allocate { bytes, stream } => self.allocate(bytes, stream),
            OracleRequest::Free(allocation) => {
                if let Some(addr) = self.blocks.get_mut(allocation.0 as usize).and_then(Option::take) {
                    self.cache.free(addr);
                }
            }
            OracleRequest::RecordStream(allocation, stream) => {
                if let Some(addr) = self.block(allocation) {
                    self.cache.record_stream(addr, stream.0.into());
                }
            }
            OracleRequest::CompleteStream(stream) => self.cache.backend.complete_stream(stream.0.into()),
            OracleRequest::EmptyCache(None) => self.cache.release_cached(),
            OracleRequest::SetFraction(fraction) => {
                self.cache.set_memory_fraction(fraction);
            }
            OracleRequest::BeginPool(pool, stream) => {
                let accepts = move |asked| stream.is_none_or(|stream| u64::from(stream.0) == asked);
                self.cache.begin_mem_pool((0, pool.0.into()), Box::new(accepts));
            }
            OracleRequest::EndPool(pool) => self.cache.end_pool((0, pool.0.into())),
            OracleRequest::ReleasePool(pool) => self.cache.release_pool((0, pool.0.into())),
            OracleRequest::BeginCapture(_) => self.cache.mark_capture(true),
            OracleRequest::EndCapture(_) => self.cache.mark_capture(false),
            OracleRequest::SetSettings(ref text) => {
                let settings = self.cache.settings().parse_again(text, self.version)?;
                self.cache.set_settings(settings);
            }
            OracleRequest::AddPoolUser(pool) => self.cache.add_pool_user((0, pool.0.into()), false),
            OracleRequest::ForbidSplits(pool) => self.cache.forbid_splits((0, pool.0.into())),
            OracleRequest::UseOnOutOfMemory(pool) => {
                self.cache.set_fallback_pool((0, pool.0.into()), true);
            }
            OracleRequest::AllocateOutside(bytes) => {
                let addr = self.cache.backend.allocate(bytes);
                self.outside.push(addr);
            }
            OracleRequest::FreeOutside(number) => {
                if let Some(addr) = self.outside.get_mut(number as usize).and_then(Option::take) {
                    self.cache.backend.device.free(addr);
                }
            }
            OracleRequest::LogStatistics => events.push(self.statistics()),
            OracleRequest::EmptyCache(Some(pool)) => self.cache.release_cached_of_pool((0, pool.0.into())),
        }
        events.append(&mut self.cache.backend.events);
        Ok(())
    }
}
