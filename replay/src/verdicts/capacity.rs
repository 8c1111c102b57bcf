//! Whether a device was short of room, and who took it.
//!
//! Definitions, in docs/analyses.md with where the thresholds come from. *Beside* is what the device held that was not PyTorch's:
//! other libraries, and what no call shows. All of it is of the moment at which tensors were most, or reserved bytes were.

use serde_json::json;

use super::VerdictDraft;
use crate::report::Severity;
use crate::report::display::format_bytes;

/// Shares of a device that tensors and what is beside them may take: from here on one more batch may not fit.
const PRESSURE: [f64; 2] = [0.92, 0.97];
/// Shares of reserved bytes that no tensor could use.
const FRAGMENTED: f64 = 0.3;
/// What is less than this share of the device is no matter.
const MATTERS: f64 = 0.05;
/// PyTorch's cache is large if it has so many times what tensors use, and this share of the device.
const OVERHANG: (u64, f64) = (2, 0.3);

/// What is known of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct CapacityFacts {
    pub(super) ordinal: u8,
    pub(super) capacity: u64,
    /// Most bytes of tensors, and what was beside PyTorch then.
    pub(super) live: u64,
    pub(super) non_torch: u64,
    /// Most bytes reserved, and what was beside then.
    pub(super) reserved: u64,
    pub(super) non_torch_at_reserved_peak: u64,
    /// Free then, and of use to nobody who asked.
    pub(super) unusable: u64,
    /// Free then, in whole segments.
    pub(super) cache: u64,
    /// An allocation failed for which there would have been room in these pieces.
    pub(super) has_failed_for_it: bool,
    /// Owners beside PyTorch at the peak of the driver's bytes, most first; those whom no call shows are `None`.
    pub(super) owners: Vec<(Option<String>, u64)>,
}

impl CapacityFacts {
    fn share(&self, bytes: u64) -> f64 {
        bytes as f64 / self.capacity as f64
    }

    fn percent(&self, bytes: u64) -> String {
        format!("{:.0} %", 100.0 * self.share(bytes))
    }

    /// All there is to say. Nothing where the size of the device is not known.
    pub(super) fn findings(&self) -> Vec<VerdictDraft> {
        if self.capacity == 0 {
            return Vec::new();
        }
        [self.pressure(), self.fragmentation(), self.overhang(), self.hidden()]
            .into_iter()
            .flatten()
            .collect()
    }

    fn pressure(&self) -> Option<VerdictDraft> {
        let needed = self.live.saturating_add(self.non_torch);
        let held = self.reserved.saturating_add(self.non_torch_at_reserved_peak);
        let (kind, severity, summary) = if self.share(needed) >= PRESSURE[0] {
            let severity =
                if self.share(needed) >= PRESSURE[1] { Severity::Critical } else { Severity::Warning };
            let non_torch = if self.non_torch > 0 {
                format!(", and {} beside them", format_bytes(self.non_torch))
            } else {
                String::new()
            };
            let summary = if self.live == 0 {
                format!(
                    "device {} was nearly full: {} were held, {} of it",
                    self.ordinal,
                    format_bytes(needed),
                    self.percent(needed)
                )
            } else {
                format!(
                    "device {} was nearly full: tensors needed {}{non_torch}, {} of it",
                    self.ordinal,
                    format_bytes(self.live),
                    self.percent(needed)
                )
            };
            ("high_pressure", severity, summary)
        } else if self.share(held) >= PRESSURE[0] {
            let summary = format!(
                "device {} looked full ({}), but tensors needed no more than {}: the rest is PyTorch's cache, which it gives back before it fails",
                self.ordinal,
                self.percent(held),
                self.percent(needed)
            );
            ("cache_pressure", Severity::Info, summary)
        } else {
            return None;
        };
        let evidence = json!({
            "device": self.ordinal, "total_bytes": self.capacity, "live_bytes": self.live,
            "beside_bytes": self.non_torch, "reserved_bytes": self.reserved,
            "share": self.share(needed.max(if kind == "cache_pressure" { held } else { 0 })),
        });
        Some(VerdictDraft { kind, severity, summary, evidence })
    }

    fn is_fragmented(&self) -> bool {
        self.unusable as f64 >= FRAGMENTED * self.reserved as f64 && self.share(self.unusable) >= MATTERS
    }

    fn fragmentation(&self) -> Option<VerdictDraft> {
        if !self.is_fragmented() && !self.has_failed_for_it {
            return None;
        }
        let severity = if self.has_failed_for_it { Severity::Critical } else { Severity::Warning };
        let failed = if self.has_failed_for_it { ", and an allocation failed for it" } else { "" };
        let summary = format!(
            "memory of device {} was fragmented: of {} reserved, {} were free in pieces between tensors{failed} (--fragmentation says whose)",
            self.ordinal,
            format_bytes(self.reserved),
            format_bytes(self.unusable)
        );
        let evidence = json!({
            "device": self.ordinal, "reserved_bytes": self.reserved, "unusable_bytes": self.unusable,
            "share": self.unusable as f64 / self.reserved.max(1) as f64, "oom": self.has_failed_for_it,
        });
        Some(VerdictDraft { kind: "fragmentation_like", severity, summary, evidence })
    }

    fn overhang(&self) -> Option<VerdictDraft> {
        let is_large = self.live > 0
            && self.reserved >= self.live.saturating_mul(OVERHANG.0)
            && self.share(self.reserved) >= OVERHANG.1
            && !self.is_fragmented();
        let summary = format!(
            "PyTorch reserved {} of device {}, and tensors never used more than {}; {} were in whole segments, which empty_cache() gives back",
            format_bytes(self.reserved),
            self.ordinal,
            format_bytes(self.live),
            format_bytes(self.cache)
        );
        let evidence = json!({
            "device": self.ordinal, "reserved_bytes": self.reserved, "live_bytes": self.live, "cache_bytes": self.cache,
        });
        is_large.then_some(VerdictDraft {
            kind: "reserved_overhang",
            severity: Severity::Info,
            summary,
            evidence,
        })
    }

    fn hidden(&self) -> Option<VerdictDraft> {
        let bytes = self.owners.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        if self.live == 0 || self.share(bytes) < MATTERS {
            return None;
        }
        let named = self.owners.iter().take(3).map(|(owner, bytes)| match owner {
            Some(owner) => format!("{} {owner}", format_bytes(*bytes)),
            None => format!("{} that no recorded call shows", format_bytes(*bytes)),
        });
        let summary = format!(
            "{} of device {} ({}) were held outside PyTorch when most was held: {}",
            format_bytes(bytes),
            self.ordinal,
            self.percent(bytes),
            named.collect::<Vec<_>>().join(", ")
        );
        let owners: Vec<_> =
            self.owners.iter().map(|(owner, bytes)| json!({ "owner": owner, "bytes": bytes })).collect();
        let evidence = json!({ "device": self.ordinal, "bytes": bytes, "owners": owners });
        Some(VerdictDraft { kind: "hidden_memory", severity: Severity::Info, summary, evidence })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn room() -> CapacityFacts {
        CapacityFacts { capacity: 100 * GIB, live: 40 * GIB, reserved: 50 * GIB, ..CapacityFacts::default() }
    }

    fn kinds(room: &CapacityFacts) -> Vec<(&'static str, Severity)> {
        room.findings().iter().map(|finding| (finding.kind, finding.severity)).collect()
    }

    #[test]
    fn a_device_with_room_has_nothing_to_say() {
        assert_eq!(kinds(&room()), []);
        assert_eq!(
            kinds(&CapacityFacts { capacity: 0, live: u64::MAX, ..room() }),
            [],
            "nobody knows its size"
        );
    }

    #[test]
    fn tensors_press_and_the_cache_does_not() {
        assert_eq!(
            kinds(&CapacityFacts { live: 92 * GIB, reserved: 93 * GIB, ..room() }),
            [("high_pressure", Severity::Warning)]
        );
        let non_torch = CapacityFacts { live: 90 * GIB, non_torch: 7 * GIB, reserved: 91 * GIB, ..room() };
        assert_eq!(kinds(&non_torch), [("high_pressure", Severity::Critical)]);
        assert!(non_torch.findings()[0].summary.contains("7.00 GiB beside them, 97 % of it"));
        let cached = CapacityFacts { live: 60 * GIB, reserved: 95 * GIB, ..room() };
        assert_eq!(kinds(&cached), [("cache_pressure", Severity::Info)]);
    }

    #[test]
    fn pieces_that_nobody_can_use_matter_from_a_share_of_the_device_on_or_when_something_failed() {
        let pieces = CapacityFacts { unusable: 16 * GIB, ..room() };
        assert_eq!(kinds(&pieces), [("fragmentation_like", Severity::Warning)]);
        assert_eq!(kinds(&CapacityFacts { unusable: 14 * GIB, ..room() }), [], "less than a third");
        let small = CapacityFacts { live: GIB, reserved: 3 * GIB, unusable: 2 * GIB, ..room() };
        assert_eq!(kinds(&small), [], "two of a hundred");
        assert_eq!(
            kinds(&CapacityFacts { has_failed_for_it: true, ..small }),
            [("fragmentation_like", Severity::Critical)]
        );
    }

    #[test]
    fn a_large_cache_and_what_is_beside_pytorch_are_told() {
        let large = CapacityFacts { live: 20 * GIB, cache: 25 * GIB, ..room() };
        assert_eq!(kinds(&large), [("reserved_overhang", Severity::Info)]);
        let owners = vec![(Some("libnccl.so.2".to_owned()), 4 * GIB), (None, GIB)];
        let non_torch = CapacityFacts { owners, ..room() };
        assert_eq!(kinds(&non_torch), [("hidden_memory", Severity::Info)]);
        assert!(
            non_torch.findings()[0]
                .summary
                .ends_with("4.00 GiB libnccl.so.2, 1.00 GiB that no recorded call shows")
        );
    }
}
