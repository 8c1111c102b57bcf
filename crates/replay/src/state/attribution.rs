//! Attribution of a device's memory to libraries at the peak, and the memory that no call shows.
//!
//! Definitions. The *peak* is the first moment of the highest device bytes. Its entries are the
//! bytes that each library held then, by [`crate::callsite::module_owner`], with the bytes that
//! PyTorch reserved split into blocks and cache. They sum exactly to the device bytes of the peak.
//! The *residual* of a sample is the memory in use according to the driver or NVML, minus the bytes
//! allocated by recorded calls, minus what the driver's pools keep free
//! ([`crate::state::async_pools`]). It consists of contexts, code and rounding. Samples of the
//! driver also include other processes. Bytes that pools keep free were allocated at the peak, so a
//! residual that included them would count them twice there.
//!
//! PyTorch requests a segment from the driver before it counts the segment as reserved. If
//! PyTorch's allocator caused the peak (or may have, without stacks), reserved and live bytes of
//! the peak are therefore taken from its next block event. A driver call costs one addition, plus
//! one copy of the per-library totals at a new peak.

use gpumemtrace_format::event::{SAMPLE_SOURCE_NVML, SAMPLE_SOURCE_PROGRAM};
use gpumemtrace_format::{Event, ThreadId};

use crate::callsite::module_owner::{ModuleOwners, OwnerId};
use crate::report::ResidualSource;

/// File name prefix of the library with PyTorch's allocator.
pub(crate) const TORCH_ALLOCATOR: &str = "libc10_cuda";

/// Reserved and live bytes of PyTorch's allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TorchLevels {
    /// Bytes of its segments.
    pub reserved: u64,
    /// Bytes of its live blocks.
    pub live: u64,
}

/// The last events that changed the bytes of a device. They show whether a sample of memory in use
/// belongs to one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByteChanges {
    /// The last event: its number and thread.
    last: Option<(u64, ThreadId)>,
    /// The last one of another thread than that.
    of_other_thread: Option<(u64, ThreadId)>,
}

impl ByteChanges {
    /// Notes an event that changed the bytes of the device.
    pub(crate) fn note(&mut self, event: &Event) {
        if self.last.is_some_and(|(_, thread)| thread != event.thread) {
            self.of_other_thread = self.last;
        }
        self.last = Some((event.seq, event.thread));
    }

    /// True if another thread changed the bytes between the query of a sample and its event.
    pub(crate) fn is_torn(&self, sample: &Event) -> bool {
        let began_at_seq = sample.addr;
        // The recorder takes a sample inside of the call before it, whose number is then later.
        let of_others = self.last.filter(|(_, thread)| *thread != sample.thread);
        let change = of_others.or(self.of_other_thread);
        began_at_seq > 0 && change.is_some_and(|(seq, _)| seq >= began_at_seq)
    }
}

/// One sample of memory in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MeminfoSample {
    pub time_ns: u64,
    pub source: ResidualSource,
    /// Bytes in use, as the source reported.
    pub in_use: u64,
    /// Bytes allocated by recorded calls at that time.
    pub allocated: u64,
    /// Free bytes that driver pools kept at that time, an estimate.
    pub pooled: u64,
}

impl MeminfoSample {
    /// The sample of an event, while recorded calls have `allocated` bytes and driver pools keep
    /// `pooled` bytes free.
    pub(crate) fn of_event(event: &Event, (allocated, pooled): (u64, u64), time_ns: u64) -> Self {
        let source = match event.aux[1] {
            SAMPLE_SOURCE_NVML => ResidualSource::Nvml,
            SAMPLE_SOURCE_PROGRAM => ResidualSource::Program,
            _ => ResidualSource::Recorder,
        };
        Self { time_ns, source, in_use: event.size, allocated, pooled }
    }

    /// Bytes that no recorded call shows. `None` if fewer bytes are in use than allocated: the two
    /// numbers are then not of the same moment.
    pub(crate) fn residual(&self) -> Option<u64> {
        self.in_use.checked_sub(self.allocated).map(|rest| rest.saturating_sub(self.pooled))
    }
}

#[derive(Clone, Debug, Default)]
struct AttributedPeak {
    time_ns: u64,
    bytes: u64,
    bytes_by_owner: Vec<u64>,
    torch: TorchLevels,
    /// `torch` is to be replaced by the levels of PyTorch's next block event.
    awaits_torch: bool,
}

/// Driver memory of one device by owner, its peak, and its residual.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceAttribution {
    bytes_by_owner: Vec<u64>,
    bytes: u64,
    torch: TorchLevels,
    peak: AttributedPeak,
    nearest: Option<MeminfoSample>,
    /// The events that changed `bytes`.
    pub changes: ByteChanges,
    /// Samples with a known residual, of all sources.
    pub samples: u64,
    /// Samples with fewer bytes in use than allocated, which give no residual.
    pub contradictory_samples: u64,
    /// Smallest and largest residual of the best source.
    pub extremes: Option<(u64, u64)>,
    /// Residuals of the best source.
    residuals: PickedValues,
}

/// At most [`MAX_PICKED`] evenly spaced values of a series.
#[derive(Clone, Debug, Default)]
struct PickedValues {
    values: Vec<u64>,
    /// Length of the whole series.
    count: u64,
    /// The distance of two picked values is two to the power of this.
    halvings: u32,
}

const MAX_PICKED: usize = 512;

impl PickedValues {
    fn push(&mut self, value: u64) {
        if self.count.trailing_zeros() >= self.halvings {
            self.values.push(value);
        }
        self.count += 1;
        if self.values.len() == MAX_PICKED {
            let mut number = 0;
            self.values.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.halvings += 1;
        }
    }
}

impl DeviceAttribution {
    /// Counts driver memory that `owner` allocated.
    pub(crate) fn add(&mut self, owner: OwnerId, bytes: u64, time_ns: u64, owners: &ModuleOwners) {
        let index = owner.0 as usize;
        if index >= self.bytes_by_owner.len() {
            self.bytes_by_owner.resize(index + 1, 0);
        }
        self.bytes_by_owner[index] = self.bytes_by_owner[index].saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        self.peak.awaits_torch = false;
        if self.bytes > self.peak.bytes {
            self.peak.bytes_by_owner.clone_from(&self.bytes_by_owner);
            self.peak.bytes = self.bytes;
            self.peak.time_ns = time_ns;
            self.peak.torch = self.torch;
            self.peak.awaits_torch =
                owner == OwnerId::default() || owners.name(owner).starts_with(TORCH_ALLOCATOR);
        }
    }

    /// Subtracts driver memory that `owner` freed.
    pub(crate) fn remove(&mut self, owner: OwnerId, bytes: u64) {
        if let Some(owned) = self.bytes_by_owner.get_mut(owner.0 as usize) {
            *owned = owned.saturating_sub(bytes);
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        self.peak.awaits_torch = false;
    }

    /// Sets PyTorch's levels after one of its block events.
    #[inline]
    pub(crate) fn set_torch_levels(&mut self, torch: TorchLevels) {
        self.torch = torch;
        if self.peak.awaits_torch {
            self.peak.torch = torch;
            self.peak.awaits_torch = false;
        }
    }

    /// Restarts the search for the peak, and drops all samples.
    #[cold]
    pub(crate) fn restart(&mut self, time_ns: u64) {
        let (bytes_by_owner, torch) = (self.bytes_by_owner.clone(), self.torch);
        let peak = AttributedPeak {
            time_ns,
            bytes: self.bytes,
            bytes_by_owner: bytes_by_owner.clone(),
            torch,
            awaits_torch: false,
        };
        *self = Self { bytes_by_owner, bytes: self.bytes, torch, peak, ..Self::default() };
    }

    /// Adds a sample of memory in use, while driver pools keep `pooled` bytes free. Ignores one if
    /// another thread changed the bytes between the query and its event: it belongs to no moment.
    pub(crate) fn add_sample(&mut self, event: &Event, pooled: u64, time_ns: u64) {
        if self.changes.is_torn(event) {
            return;
        }
        let sample = MeminfoSample::of_event(event, (self.bytes, pooled), time_ns);
        let source = sample.source;
        let Some(residual) = sample.residual() else {
            self.contradictory_samples += 1;
            return;
        };
        self.samples += 1;
        match self.nearest.map(|nearest| nearest.source.cmp(&source)) {
            // There are samples of a better source.
            Some(std::cmp::Ordering::Less) => return,
            Some(std::cmp::Ordering::Equal) => {
                let (min, max) = self.extremes.unwrap_or((residual, residual));
                self.extremes = Some((min.min(residual), max.max(residual)));
            }
            _ => {
                self.extremes = Some((residual, residual));
                self.residuals = PickedValues::default();
            }
        }
        self.residuals.push(residual);
        // Keep the first sample after the peak, or else the last one before it.
        let is_final = self
            .nearest
            .is_some_and(|nearest| nearest.source == source && nearest.time_ns >= self.peak.time_ns);
        if !is_final {
            self.nearest = Some(sample);
        }
    }

    /// Residuals of the best source in order of time, evenly picked from all samples.
    pub(crate) fn residuals(&self) -> &[u64] {
        &self.residuals.values
    }

    /// The sample of the best source nearest to the peak.
    pub(crate) fn nearest(&self) -> Option<MeminfoSample> {
        self.nearest
    }

    /// Owners with their bytes at the peak, most first. The bytes sum to those of the peak.
    pub(crate) fn entries(&self, owners: &ModuleOwners) -> Vec<(String, u64)> {
        let mut entries: Vec<(String, u64)> = self
            .peak
            .bytes_by_owner
            .iter()
            .zip(0..)
            .map(|(bytes, id)| (owners.name(OwnerId(id)).to_owned(), *bytes))
            .collect();
        // PyTorch's reserved bytes belong to its library, or to the unknown owner without stacks.
        let TorchLevels { reserved, live } = self.peak.torch;
        let mut left = reserved;
        for owner in [TORCH_ALLOCATOR, crate::callsite::module_owner::UNKNOWN] {
            for (_, bytes) in entries.iter_mut().filter(|(name, _)| name.starts_with(owner)) {
                let part = left.min(*bytes);
                *bytes -= part;
                left -= part;
            }
        }
        let torch = reserved - left;
        let blocks = live.min(torch);
        entries.push(("torch blocks".to_owned(), blocks));
        entries.push(("torch cache".to_owned(), torch - blocks));
        entries.retain(|(_, bytes)| *bytes > 0);
        entries.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::definitions::Definitions;
    use gpumemtrace_format::reader::Item;
    use gpumemtrace_format::{ModuleDef, NativeNode, NodeId};

    /// Owners of three stacks: 1 is PyTorch through a runtime, 2 a library, 3 unknown.
    fn owners() -> (ModuleOwners, [OwnerId; 3]) {
        let mut definitions = Definitions::default();
        let module = |start: u64, path: &str| ModuleDef {
            load_bias: start,
            start,
            end: start + 0x1000,
            path: path.into(),
            build_id: Vec::new(),
        };
        for (id, parent, return_address) in [(1, 4, 0x1010), (4, 0, 0x2010), (2, 0, 0x3010), (3, 0, 0x9010)] {
            let node = NativeNode { id: NodeId(id), parent: NodeId(parent), return_address };
            definitions.native.insert(node.id, node);
        }
        definitions.add_item(Item::Modules(vec![
            module(0x1000, "/lib/libcudart.so.13"),
            module(0x2000, "/lib/libc10_cuda.so"),
            module(0x3000, "/lib/libnccl.so.2"),
        ]));
        let mut owners = ModuleOwners::default();
        let ids = [1, 2, 3].map(|id| owners.owner_of_stack(NodeId(id), &definitions));
        (owners, ids)
    }

    fn sample_event(size: u64, source: u64) -> Event {
        let words = [
            0,
            0,
            0,
            size,
            100,
            source,
            0,
            u64::from(gpumemtrace_format::EventKind::MEMORY_SAMPLE.0) | 1 << 48,
        ];
        Event::from_words(&words, ThreadId(1)).unwrap()
    }

    #[test]
    fn owner_is_innermost_library_that_does_not_forward() {
        let (owners, ids) = owners();
        assert_eq!(ids.map(|id| owners.name(id).to_owned()), ["libc10_cuda.so", "libnccl.so.2", "unknown"]);
    }

    #[test]
    fn entries_sum_to_the_peak_and_split_reserved_bytes() {
        let (owners, [torch, nccl, unknown]) = owners();
        let mut device = DeviceAttribution::default();
        device.add(nccl, 8, 1, &owners);
        device.add(unknown, 2, 2, &owners);
        device.add(torch, 20, 3, &owners);
        device.set_torch_levels(TorchLevels { reserved: 20, live: 15 });
        device.set_torch_levels(TorchLevels { reserved: 20, live: 3 });
        device.remove(nccl, 8);
        let entries = device.entries(&owners);
        let named: Vec<(&str, u64)> = entries.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
        assert_eq!(named, [("torch blocks", 15), ("libnccl.so.2", 8), ("torch cache", 5), ("unknown", 2)]);
        assert_eq!((device.peak.bytes, device.peak.time_ns), (30, 3));
    }

    #[test]
    fn values_of_a_long_series_are_picked_evenly() {
        let mut picked = PickedValues::default();
        (0..5000).for_each(|value| picked.push(value));
        let every = 1 << picked.halvings;
        assert_eq!(picked.values, (0..5000).step_by(every).collect::<Vec<u64>>());
        assert!((MAX_PICKED / 2..MAX_PICKED).contains(&picked.values.len()));
    }

    #[test]
    fn sample_is_ignored_if_the_bytes_changed_while_it_was_taken() {
        let (owners, [torch, ..]) = owners();
        let mut device = DeviceAttribution::default();
        device.add(torch, 20, 1, &owners);
        let (ours, theirs) = (ThreadId(1), ThreadId(2));
        let change = |seq, thread| Event { seq, thread, ..sample_event(0, 1) };
        let sample = |began_at_seq| Event { addr: began_at_seq, thread: ours, ..sample_event(25, 1) };
        device.changes.note(&change(7, theirs));
        device.changes.note(&change(9, ours));
        device.changes.note(&change(10, ours));
        for began_at_seq in [1, 7] {
            device.add_sample(&sample(began_at_seq), 0, 2);
            assert_eq!((device.samples, device.nearest()), (0, None), "another thread changed them");
        }
        for began_at_seq in [0, 8, 10] {
            device.add_sample(&sample(began_at_seq), 0, 2);
        }
        assert_eq!((device.samples, device.nearest().unwrap().residual()), (3, Some(5)));
    }

    #[test]
    fn memory_that_pools_keep_free_is_not_residual() {
        let (owners, [torch, ..]) = owners();
        let mut device = DeviceAttribution::default();
        device.add(torch, 20, 1, &owners);
        device.remove(torch, 20);
        device.add_sample(&sample_event(25, 1), 20, 2);
        assert_eq!(device.nearest().unwrap().residual(), Some(5));
        device.add_sample(&sample_event(10, 1), 20, 3);
        assert_eq!(device.extremes, Some((0, 5)), "a pool that gave memory back leaves no residual below 0");
    }

    #[test]
    fn residual_is_from_the_best_source_nearest_to_the_peak() {
        let (owners, [torch, ..]) = owners();
        let mut device = DeviceAttribution::default();
        device.add_sample(&sample_event(5, SAMPLE_SOURCE_PROGRAM), 0, 1);
        device.add(torch, 20, 2, &owners);
        device.add_sample(&sample_event(70, 1), 0, 3);
        assert_eq!(device.nearest().unwrap().residual(), Some(50));
        assert_eq!(device.extremes, Some((50, 50)), "the program's own query is a worse source");
        device.add_sample(&sample_event(27, SAMPLE_SOURCE_NVML), 0, 4);
        device.add_sample(&sample_event(90, 1), 0, 5);
        device.add_sample(&sample_event(10, SAMPLE_SOURCE_NVML), 0, 6);
        let nearest = device.nearest().unwrap();
        assert_eq!((nearest.source, nearest.residual()), (ResidualSource::Nvml, Some(7)));
        assert_eq!(
            (device.extremes, device.samples, device.contradictory_samples),
            (Some((7, 7)), 4, 1),
            "less memory in use than allocated gives no residual"
        );
    }
}
