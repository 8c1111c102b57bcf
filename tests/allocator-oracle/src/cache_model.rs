//! The crate `caching-allocator` as a model of one release of PyTorch.

use std::collections::BTreeMap;

use anyhow::Result;
use gpumemtrace_allocator_oracle::{
    AllocationNumber, FirstFitDevice, ModelledAllocator, OracleEvent, OracleRequest, PoolNumber, STATISTICS,
    SegmentChange, StreamHeader, StreamNumber,
};
use gpumemtrace_caching_allocator::{
    AllocatorTraceEntry, CacheBackend, CachingAllocator, DriverError, EventId, OUT_OF_MEMORY, PoolId, Rules,
    Settings, TorchVersion, TraceAction,
};

/// First reserved address in logs, and bytes of addresses that simgpu reserves from.
const RESERVED_BASE: u64 = 5 << 40;
const RESERVED_BYTES: u64 = 16 << 40;

fn id_of_pool(pool: PoolNumber) -> PoolId {
    (0, pool.0.into())
}

/// The device and the log of [`CacheModel`].
struct LoggingBackend {
    device: FirstFitDevice,
    /// Reserved addresses, from [`RESERVED_BASE`] on.
    reservations: FirstFitDevice,
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

    fn complete_stream(&mut self, stream: u64) {
        self.outstanding.retain(|_, on| *on != stream);
    }
}

impl CacheBackend for LoggingBackend {
    fn alloc(&mut self, bytes: u64, _during_capture: bool) -> Result<u64, DriverError> {
        self.device.allocate(bytes).ok_or(OUT_OF_MEMORY)
    }

    fn free(&mut self, addr: u64) {
        self.device.free(addr);
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
        if self.device.charge(bytes) { Ok(()) } else { Err(OUT_OF_MEMORY) }
    }

    fn unmap(&mut self, _addr: u64, bytes: u64, _page_bytes: u64, stream: u64) {
        self.complete_stream(stream);
        self.device.refund(bytes);
    }
}

/// The caching allocator of a release, on a device of its own.
pub(crate) struct CacheModel {
    version: TorchVersion,
    cache: CachingAllocator<LoggingBackend>,
    /// Addresses by number of the allocation; `None` after the free, or if it failed.
    blocks: Vec<Option<u64>>,
    outside: Vec<Option<u64>>,
}

impl CacheModel {
    /// An allocator on an empty device.
    pub(crate) fn new(header: &StreamHeader, torch_version: &str) -> Result<Self> {
        let version = TorchVersion::parse(torch_version)?;
        let settings = Settings::parse(&header.settings, version)?;
        let backend = LoggingBackend {
            device: FirstFitDevice::new(header.card_bytes),
            reservations: FirstFitDevice::new(RESERVED_BYTES),
            request: 0,
            events: Vec::new(),
            next_event: 0,
            outstanding: BTreeMap::new(),
        };
        Ok(Self {
            version,
            cache: CachingAllocator::new(backend, settings, Rules::of_version(version)),
            blocks: Vec::new(),
            outside: Vec::new(),
        })
    }

    fn block(&self, number: AllocationNumber) -> Option<u64> {
        self.blocks.get(number.0 as usize).copied().flatten()
    }

    fn allocate(&mut self, bytes: u64, stream: StreamNumber) {
        let block = self.cache.alloc(bytes, stream.0.into()).ok();
        if block.is_none() {
            let free_bytes = self.cache.backend.device.free_bytes();
            self.cache.backend.events.push(OracleEvent::OutOfMemory { free_bytes });
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
            OracleRequest::SetFraction(fraction) => self.cache.set_memory_fraction(fraction),
            OracleRequest::SetSettings(ref settings) => {
                let settings = self.cache.settings().parse_again(settings, self.version)?;
                self.cache.set_settings(settings);
            }
            OracleRequest::AddPoolUser(pool) => self.cache.add_pool_user(id_of_pool(pool), false),
            OracleRequest::ForbidSplits(pool) => self.cache.forbid_splits(id_of_pool(pool)),
            OracleRequest::UseOnOutOfMemory(pool) => self.cache.set_fallback_pool(id_of_pool(pool), true),
            OracleRequest::BeginPool(pool, None) => {
                self.cache.begin_mem_pool(id_of_pool(pool), Box::new(|_| true));
            }
            OracleRequest::BeginPool(pool, Some(stream)) => {
                let stream = u64::from(stream.0);
                self.cache.begin_mem_pool(id_of_pool(pool), Box::new(move |asked| asked == stream));
            }
            OracleRequest::EndPool(pool) => self.cache.end_pool(id_of_pool(pool)),
            OracleRequest::ReleasePool(pool) => self.cache.release_pool(id_of_pool(pool)),
            OracleRequest::BeginCapture(_) => self.cache.mark_capture(true),
            OracleRequest::EndCapture(_) => self.cache.mark_capture(false),
            OracleRequest::AllocateOutside(bytes) => {
                let addr = self.cache.backend.device.allocate(bytes);
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
