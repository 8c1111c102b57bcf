//! The crate `caching-allocator` as a model: PyTorch's default settings.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use gpumemtrace_allocator_oracle::{
    AllocationNumber, FirstFitDevice, ModelledAllocator, OracleEvent, OracleRequest, STATISTICS,
    SegmentChange, StreamHeader, StreamNumber,
};
use gpumemtrace_caching_allocator::{
    AllocatorTraceEntry, CacheBackend, CachingAllocator, DriverError, EventId, OUT_OF_MEMORY, TraceAction,
};

/// The device and the log of [`CacheModel`].
struct LoggingBackend {
    device: FirstFitDevice,
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
        }
    }
}

/// The caching allocator with default settings, on a device of its own.
pub(crate) struct CacheModel {
    cache: CachingAllocator<LoggingBackend>,
    /// Addresses by number of the allocation; `None` after the free, or if it failed.
    blocks: Vec<Option<u64>>,
    outside: Vec<Option<u64>>,
}

impl CacheModel {
    /// A cache on an empty device.
    pub(crate) fn new(header: &StreamHeader) -> Result<Self> {
        if !header.settings.is_empty() {
            bail!("the model has no allocator settings yet: {:?}", header.settings);
        }
        let backend = LoggingBackend {
            device: FirstFitDevice::new(header.card_bytes),
            request: 0,
            events: Vec::new(),
            next_event: 0,
            outstanding: BTreeMap::new(),
        };
        Ok(Self { cache: CachingAllocator::new(backend), blocks: Vec::new(), outside: Vec::new() })
    }

    fn block(&self, number: AllocationNumber) -> Option<u64> {
        self.blocks.get(number.0 as usize).copied().flatten()
    }

    fn allocate(&mut self, bytes: u64, stream: StreamNumber) {
        let block = self.cache.alloc(bytes, stream.0.into()).ok();
        if block.is_none() {
            let free_bytes = self.cache.backend.device.free_bytes();
            let bytes = bytes.next_multiple_of(512);
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
                let limit = fraction * self.cache.backend.device.card_bytes() as f64;
                self.cache.set_limit(limit as u64);
            }
            OracleRequest::BeginPool(pool, stream) => {
                let accepts = move |asked| stream.is_none_or(|stream| u64::from(stream.0) == asked);
                self.cache.begin_pool((0, pool.0.into()), Box::new(accepts));
            }
            OracleRequest::EndPool(pool) => self.cache.end_pool((0, pool.0.into())),
            OracleRequest::ReleasePool(pool) => self.cache.release_pool((0, pool.0.into())),
            OracleRequest::BeginCapture(_) | OracleRequest::EndCapture(_) => {}
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
            OracleRequest::EmptyCache(Some(_))
            | OracleRequest::SetSettings(_)
            | OracleRequest::AddPoolUser(_)
            | OracleRequest::ForbidSplits(_)
            | OracleRequest::UseOnOutOfMemory(_) => {
                bail!("the model does not know request {number}: {request}")
            }
        }
        events.append(&mut self.cache.backend.events);
        Ok(())
    }
}
