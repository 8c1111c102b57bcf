//! Verdicts on how full a device was, and of what.
//!
//! docs/analyses/index.md defines the verdicts and gives the sources of the thresholds. *Non-torch*
//! memory belongs to other owners than PyTorch: other libraries, and memory outside recorded calls.
//! It is taken at the peak of allocated memory and at the peak of reserved memory.

use super::VerdictDraft;
use crate::report::{HiddenOwner, PressureEvidence, Severity, VerdictEvidence};

/// From these shares of a device on, allocated and non-torch memory leave no room for another
/// batch.
const PRESSURE: [f64; 2] = [0.92, 0.97];
/// Least share of reserved bytes that is unusable.
const FRAGMENTED: f64 = 0.3;
/// Shares of a device below this are not reported.
const MATTERS: f64 = 0.05;
/// PyTorch's cache is large at this multiple of the allocated memory, and this share of the device.
const OVERHANG: (u64, f64) = (2, 0.3);

/// The levels of one device.
#[derive(Clone, Debug, Default)]
pub(super) struct CapacityFacts {
    pub(super) ordinal: u8,
    /// The memory of the device; 0 if it is unknown.
    pub(super) capacity: u64,
    /// Peak of the allocated bytes.
    pub(super) live: u64,
    /// Non-torch bytes at that peak.
    pub(super) non_torch: u64,
    /// Peak of the reserved bytes.
    pub(super) reserved: u64,
    /// Non-torch bytes at that peak.
    pub(super) non_torch_at_reserved_peak: u64,
    /// Bytes that were pinned, stranded or pending at the peak of reserved bytes.
    pub(super) unusable: u64,
    /// Bytes in fully free segments at the peak of reserved bytes.
    pub(super) cache: u64,
    /// The unusable and the reserved bytes at a failed request that the former would have served.
    pub(super) at_failed_request: Option<[u64; 2]>,
    /// Non-torch owners at the peak of the driver's bytes, most first; `None` for memory outside
    /// recorded calls.
    pub(super) owners: Vec<(Option<String>, u64)>,
}

impl CapacityFacts {
    fn share(&self, bytes: u64) -> f64 {
        bytes as f64 / self.capacity as f64
    }

    /// All verdicts on the device; none if its size is unknown.
    pub(super) fn verdicts(&self) -> Vec<VerdictDraft> {
        if self.capacity == 0 {
            return Vec::new();
        }
        let all = [self.pressure(), self.fragmentation(), self.overhang(), self.hidden_memory()];
        all.into_iter().flatten().collect()
    }

    fn pressure(&self) -> Option<VerdictDraft> {
        let needed = self.live.saturating_add(self.non_torch);
        let held = self.reserved.saturating_add(self.non_torch_at_reserved_peak);
        let evidence = |share| PressureEvidence {
            device: u32::from(self.ordinal),
            total_bytes: self.capacity,
            live_bytes: self.live,
            non_torch_bytes: self.non_torch,
            reserved_bytes: self.reserved,
            share,
        };
        if self.share(needed) >= PRESSURE[0] {
            let is_critical = self.share(needed) >= PRESSURE[1];
            let severity = if is_critical { Severity::Critical } else { Severity::Warning };
            Some((severity, VerdictEvidence::HighPressure(evidence(self.share(needed)))))
        } else if self.share(held) >= PRESSURE[0] {
            Some((Severity::Info, VerdictEvidence::CachePressure(evidence(self.share(needed.max(held))))))
        } else {
            None
        }
    }

    fn is_fragmented(&self) -> bool {
        let [unusable, reserved] = self.at_failed_request.unwrap_or([self.unusable, self.reserved]);
        unusable as f64 >= FRAGMENTED * reserved as f64 && self.share(unusable) >= MATTERS
    }

    fn fragmentation(&self) -> Option<VerdictDraft> {
        let has_failed = self.at_failed_request.is_some();
        if !self.is_fragmented() && !has_failed {
            return None;
        }
        let severity = if has_failed { Severity::Critical } else { Severity::Warning };
        let [unusable, reserved] = self.at_failed_request.unwrap_or([self.unusable, self.reserved]);
        let evidence = VerdictEvidence::FragmentationLike {
            device: u32::from(self.ordinal),
            reserved_bytes: reserved,
            unusable_bytes: unusable,
            share: unusable as f64 / reserved.max(1) as f64,
            oom: has_failed,
        };
        Some((severity, evidence))
    }

    fn overhang(&self) -> Option<VerdictDraft> {
        let is_large = self.live > 0
            && self.reserved >= self.live.saturating_mul(OVERHANG.0)
            && self.share(self.reserved) >= OVERHANG.1
            && !self.is_fragmented();
        let evidence = VerdictEvidence::ReservedOverhang {
            device: u32::from(self.ordinal),
            reserved_bytes: self.reserved,
            live_bytes: self.live,
            cache_bytes: self.cache,
        };
        is_large.then_some((Severity::Info, evidence))
    }

    fn hidden_memory(&self) -> Option<VerdictDraft> {
        let bytes = self.owners.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        if self.live == 0 || self.share(bytes) < MATTERS {
            return None;
        }
        let owner =
            |(owner, bytes): &(Option<String>, u64)| HiddenOwner { owner: owner.clone(), bytes: *bytes };
        let evidence = VerdictEvidence::HiddenMemory {
            device: u32::from(self.ordinal),
            bytes,
            total_bytes: self.capacity,
            owners: self.owners.iter().map(owner).collect(),
        };
        Some((Severity::Info, evidence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use VerdictEvidence as V;

    const GIB: u64 = 1 << 30;

    fn half_full() -> CapacityFacts {
        CapacityFacts { capacity: 100 * GIB, live: 40 * GIB, reserved: 50 * GIB, ..CapacityFacts::default() }
    }

    fn only_verdict(facts: &CapacityFacts) -> VerdictDraft {
        let mut all = facts.verdicts();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    #[test]
    fn half_full_device_has_no_verdict() {
        assert!(half_full().verdicts().is_empty());
        let unknown_size = CapacityFacts { capacity: 0, live: u64::MAX, ..half_full() };
        assert!(unknown_size.verdicts().is_empty());
    }

    #[test]
    fn allocated_memory_is_pressure_and_cache_is_not() {
        let full = CapacityFacts { live: 92 * GIB, reserved: 93 * GIB, ..half_full() };
        assert!(matches!(only_verdict(&full), (Severity::Warning, V::HighPressure(_))));
        let non_torch =
            CapacityFacts { live: 90 * GIB, non_torch: 7 * GIB, reserved: 91 * GIB, ..half_full() };
        let (severity, evidence) = only_verdict(&non_torch);
        let V::HighPressure(pressure) = evidence else { panic!("{evidence:?}") };
        assert_eq!((severity, pressure.non_torch_bytes, pressure.share), (Severity::Critical, 7 * GIB, 0.97));
        let cached = CapacityFacts { live: 60 * GIB, reserved: 95 * GIB, ..half_full() };
        assert!(matches!(only_verdict(&cached), (Severity::Info, V::CachePressure(_))));
    }

    #[test]
    fn fragmentation_verdict_needs_share_of_device_or_failed_request() {
        let pieces = CapacityFacts { unusable: 16 * GIB, ..half_full() };
        assert!(matches!(only_verdict(&pieces), (Severity::Warning, V::FragmentationLike { .. })));
        let less_than_a_third = CapacityFacts { unusable: 14 * GIB, ..half_full() };
        assert!(less_than_a_third.verdicts().is_empty());
        let small = CapacityFacts { live: GIB, reserved: 3 * GIB, unusable: 2 * GIB, ..half_full() };
        assert!(small.verdicts().is_empty());
        let failed = CapacityFacts { at_failed_request: Some([GIB, 2 * GIB]), ..small };
        assert!(matches!(
            only_verdict(&failed),
            (Severity::Critical, V::FragmentationLike { oom: true, .. })
        ));
    }

    #[test]
    fn large_cache_and_non_torch_owners_are_reported() {
        let large = CapacityFacts { live: 20 * GIB, cache: 25 * GIB, ..half_full() };
        assert!(matches!(only_verdict(&large), (Severity::Info, V::ReservedOverhang { .. })));
        let owners = vec![(Some("libnccl.so.2".to_owned()), 4 * GIB), (None, GIB)];
        let (_, evidence) = only_verdict(&CapacityFacts { owners, ..half_full() });
        let V::HiddenMemory { bytes, owners, .. } = evidence else { panic!("{evidence:?}") };
        assert_eq!((bytes, owners.len(), owners[1].owner.as_deref()), (5 * GIB, 2, None));
    }
}
