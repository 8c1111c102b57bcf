//! The ledger of a device: what the driver handed out, by owner, when it was most; and what no call shows.
//!
//! Definitions. The *moment* is the first at which device bytes were highest. Its entries are the bytes that each library held
//! then, by [`crate::callsite::module_owner`]; what PyTorch's native allocator had reserved is told apart into blocks and cache. They sum to
//! the device bytes of that moment exactly. The *residual* of a sample is what the driver (or NVML) said was in use, minus
//! what its calls had handed out by then: contexts, code, rounding, what pools keep, and, where the driver was asked, other processes.
//!
//! Constraint: a segment is asked of the driver before PyTorch counts it as reserved. Consequence: when PyTorch's allocator
//! made the maximum (or may have, where stacks are missing), reserved and live bytes of the moment are those of its next block event.

use gpumemtrace_format::Event;
use gpumemtrace_format::event::{SAMPLE_SOURCE_NVML, SAMPLE_SOURCE_PROGRAM};

use crate::callsite::module_owner::{ModuleOwners, OwnerId};

/// The library of PyTorch's allocator.
pub(crate) const TORCH: &str = "libc10_cuda";

/// The two numbers of PyTorch's allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TorchLevels {
    /// Held by it.
    pub reserved: u64,
    /// Handed to tensors.
    pub live: u64,
}

/// Who said how much is in use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ResidualSource {
    /// NVML, of this process alone.
    Nvml,
    /// The driver, asked by the recorder: all processes.
    Recorder,
    /// The driver, asked by the program: all processes.
    Program,
}

impl ResidualSource {
    /// The report's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nvml => "nvml",
            Self::Recorder => "driver",
            Self::Program => "program",
        }
    }
}

/// One sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MeminfoSample {
    /// When.
    pub time_ns: u64,
    /// Who.
    pub witness: ResidualSource,
    /// What they said.
    pub in_use: u64,
    /// What calls had handed out.
    pub handed_out: u64,
}

impl MeminfoSample {
    /// What no call shows. `None` if less is in use than was handed out: then one of the two is not of this moment.
    pub(crate) fn residual(&self) -> Option<u64> {
        self.in_use.checked_sub(self.handed_out)
    }
}

#[derive(Clone, Debug, Default)]
struct AttributedPeak {
    time_ns: u64,
    bytes: u64,
    held: Vec<u64>,
    torch: TorchLevels,
    /// PyTorch's numbers are not those of this moment yet.
    is_unsettled: bool,
}

/// Of one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceAttribution {
    held: Vec<u64>,
    bytes: u64,
    torch: TorchLevels,
    peak: AttributedPeak,
    nearest: Option<MeminfoSample>,
    /// Samples whose residual is known.
    pub samples: u64,
    /// Smallest and largest residual, of the witness that is shown.
    pub extremes: Option<(u64, u64)>,
    /// Its residuals in their order: all, or evenly picked.
    residuals: PickedValues,
}

/// At most [`MOST_PICKED`] values of a series, evenly spaced.
#[derive(Clone, Debug, Default)]
struct PickedValues {
    values: Vec<u64>,
    seen: u64,
    /// Two to the power of this are passed over from one to the next.
    halvings: u32,
}

const MOST_PICKED: usize = 512;

impl PickedValues {
    fn push(&mut self, value: u64) {
        if self.seen.trailing_zeros() >= self.halvings {
            self.values.push(value);
        }
        self.seen += 1;
        if self.values.len() == MOST_PICKED {
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
    /// The driver handed something out.
    pub(crate) fn alloc(&mut self, owner: OwnerId, bytes: u64, time_ns: u64, owners: &ModuleOwners) {
        let at = owner.0 as usize;
        if at >= self.held.len() {
            self.held.resize(at + 1, 0);
        }
        self.held[at] = self.held[at].saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        self.peak.is_unsettled = false;
        if self.bytes > self.peak.bytes {
            self.peak.held.clone_from(&self.held);
            self.peak.bytes = self.bytes;
            self.peak.time_ns = time_ns;
            self.peak.torch = self.torch;
            self.peak.is_unsettled = owner == OwnerId::default() || owners.name(owner).starts_with(TORCH);
        }
    }

    /// It got something back.
    pub(crate) fn free(&mut self, owner: OwnerId, bytes: u64) {
        if let Some(held) = self.held.get_mut(owner.0 as usize) {
            *held = held.saturating_sub(bytes);
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        self.peak.is_unsettled = false;
    }

    /// PyTorch's numbers after one of its blocks came or went.
    #[inline]
    pub(crate) fn torch(&mut self, torch: TorchLevels) {
        self.torch = torch;
        if self.peak.is_unsettled {
            self.peak.torch = torch;
            self.peak.is_unsettled = false;
        }
    }

    /// The moment is looked for from here on, as are samples.
    #[cold]
    pub(crate) fn restart(&mut self, time_ns: u64) {
        let (held, torch) = (self.held.clone(), self.torch);
        let peak =
            AttributedPeak { time_ns, bytes: self.bytes, held: held.clone(), torch, is_unsettled: false };
        *self = Self { held, bytes: self.bytes, torch, peak, ..Self::default() };
    }

    /// Somebody said how much is in use.
    pub(crate) fn sample(&mut self, event: &Event, time_ns: u64) {
        let witness = match event.aux[1] {
            SAMPLE_SOURCE_NVML => ResidualSource::Nvml,
            SAMPLE_SOURCE_PROGRAM => ResidualSource::Program,
            _ => ResidualSource::Recorder,
        };
        let sample = MeminfoSample { time_ns, witness, in_use: event.size, handed_out: self.bytes };
        let Some(residual) = sample.residual() else { return };
        self.samples += 1;
        match self.nearest.map(|known| known.witness.cmp(&witness)) {
            // A better witness is known.
            Some(std::cmp::Ordering::Less) => return,
            Some(std::cmp::Ordering::Equal) => {
                let (least, most) = self.extremes.unwrap_or((residual, residual));
                self.extremes = Some((least.min(residual), most.max(residual)));
            }
            _ => {
                self.extremes = Some((residual, residual));
                self.residuals = PickedValues::default();
            }
        }
        self.residuals.push(residual);
        // The last one up to the peak, else the first one after it.
        let is_settled =
            self.nearest.is_some_and(|known| known.witness == witness && known.time_ns >= self.peak.time_ns);
        if !is_settled {
            self.nearest = Some(sample);
        }
    }

    /// What no call shows, over time, by the best witness: evenly picked from all samples.
    pub(crate) fn residuals(&self) -> &[u64] {
        &self.residuals.values
    }

    /// The sample of the best witness that is nearest to the moment.
    pub(crate) fn nearest(&self) -> Option<MeminfoSample> {
        self.nearest
    }

    /// Who held how much at the moment, most first. Sums to the bytes of the peak.
    pub(crate) fn entries(&self, owners: &ModuleOwners) -> Vec<(String, u64)> {
        let mut held: Vec<(String, u64)> = self
            .peak
            .held
            .iter()
            .zip(0..)
            .map(|(bytes, id)| (owners.name(OwnerId(id)).to_owned(), *bytes))
            .collect();
        // What PyTorch reserved was asked for by its library, or by somebody unknown where stacks are missing.
        let TorchLevels { reserved, live } = self.peak.torch;
        let mut left = reserved;
        for wanted in [TORCH, crate::callsite::module_owner::UNKNOWN] {
            for (_, bytes) in held.iter_mut().filter(|(name, _)| name.starts_with(wanted)) {
                let part = left.min(*bytes);
                *bytes -= part;
                left -= part;
            }
        }
        let found = reserved - left;
        let blocks = live.min(found);
        held.push(("torch blocks".to_owned(), blocks));
        held.push(("torch cache".to_owned(), found - blocks));
        held.retain(|(_, bytes)| *bytes > 0);
        held.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::definitions::Definitions;
    use gpumemtrace_format::reader::Item;
    use gpumemtrace_format::{ModuleDef, NativeNode, NodeId};

    /// Owners of three stacks: 1 PyTorch through a runtime, 2 a library with its own, 3 nobody known.
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

    fn said(size: u64, witness: u64) -> Event {
        let words = [
            0,
            0,
            0,
            size,
            100,
            witness,
            0,
            u64::from(gpumemtrace_format::EventKind::MEMORY_SAMPLE.0) | 1 << 48,
        ];
        Event::from_words(&words, gpumemtrace_format::ThreadId(1)).unwrap()
    }

    #[test]
    fn owners_are_the_innermost_library_that_is_no_plumbing() {
        let (owners, ids) = owners();
        assert_eq!(ids.map(|id| owners.name(id).to_owned()), ["libc10_cuda.so", "libnccl.so.2", "unknown"]);
    }

    #[test]
    fn the_entries_sum_to_the_peak_and_reserved_is_told_apart() {
        let (owners, [torch, nccl, nobody]) = owners();
        let mut ledger = DeviceAttribution::default();
        ledger.alloc(nccl, 8, 1, &owners);
        ledger.alloc(nobody, 2, 2, &owners);
        ledger.alloc(torch, 20, 3, &owners);
        ledger.torch(TorchLevels { reserved: 20, live: 15 });
        ledger.torch(TorchLevels { reserved: 20, live: 3 });
        ledger.free(nccl, 8);
        let entries = ledger.entries(&owners);
        let named: Vec<(&str, u64)> = entries.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
        assert_eq!(named, [("torch blocks", 15), ("libnccl.so.2", 8), ("torch cache", 5), ("unknown", 2)]);
        assert_eq!((ledger.peak.bytes, ledger.peak.time_ns), (30, 3));
    }

    #[test]
    fn of_a_long_series_values_are_picked_evenly() {
        let mut picked = PickedValues::default();
        (0..5000).for_each(|value| picked.push(value));
        let every = 1 << picked.halvings;
        assert_eq!(picked.values, (0..5000).step_by(every).collect::<Vec<u64>>());
        assert!((MOST_PICKED / 2..MOST_PICKED).contains(&picked.values.len()));
    }

    #[test]
    fn the_residual_is_that_of_the_best_witness_nearest_to_the_peak() {
        let (owners, [torch, ..]) = owners();
        let mut ledger = DeviceAttribution::default();
        ledger.sample(&said(5, SAMPLE_SOURCE_PROGRAM), 1);
        ledger.alloc(torch, 20, 2, &owners);
        ledger.sample(&said(70, 1), 3);
        assert_eq!(ledger.nearest().unwrap().residual(), Some(50));
        ledger.sample(&said(27, SAMPLE_SOURCE_NVML), 4);
        ledger.sample(&said(90, 1), 5);
        ledger.sample(&said(10, SAMPLE_SOURCE_NVML), 6);
        let nearest = ledger.nearest().unwrap();
        assert_eq!((nearest.witness, nearest.residual()), (ResidualSource::Nvml, Some(7)));
        assert_eq!(
            (ledger.extremes, ledger.samples),
            (Some((7, 7)), 4),
            "less in use than handed out is no residual"
        );
    }
}
