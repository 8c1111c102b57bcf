//! In which step the device will be full.
//!
//! *Room* is what the device has beyond what it took at its fullest: its size, minus the residual (contexts, code: what no
//! call shows), minus the peak of driver memory. PyTorch's cache at its own peak (reserved minus live) may serve the leak,
//! or may be in pieces that are too small: the least room counts none of it, the most all of it, the expected half. All that
//! leaks on the device goes on together, each at its rate; bounds of the rates are those of the Theil-Sen slope.
//!
//! What is reserved may grow faster than what lives in it: segments have sizes of their own, and pieces between blocks that
//! stay fit nobody. *Overhead* is the Theil-Sen slope of reserved bytes over that of live bytes, in the last two thirds of the
//! run, if both grew by more than a few segments there (of 2 MiB where blocks are up to 1 MiB, else of 20 MiB). Where it is
//! more than 1, the expected rate is so many times the leak's, the cache is not counted, and the earliest step is no later.
//! Where blocks will come to lie is not foreseen: both bounds are 15 % further out than that.

use crate::leak::statistics::corrected;
use crate::pass::Analysis;
use crate::report::OomForecast;
use crate::state::device::DeviceState;

/// Growth by fewer segments says nothing of how blocks fill them.
const FEW_SEGMENTS: u64 = 4;
/// Largest block of PyTorch's small pool, and the segments of both pools.
const SMALL_BYTES: u64 = 1 << 20;
const SEGMENT_BYTES: [u64; 2] = [2 << 20, 20 << 20];
/// By how much the bounds lie further out: where blocks come to lie is not foreseen.
const MARGIN: f64 = 0.15;
/// Most reserved bytes counted for a live one.
const MAX_OVERHEAD: f64 = 3.0;

/// Bytes that are left: least, most; and how many are reserved for one that is leaked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Headroom {
    least: f64,
    most: f64,
    overhead: f64,
    /// What live and reserved bytes grew by while the overhead was measured.
    grown: u64,
}

impl Headroom {
    /// Of a device whose size is known.
    pub(crate) fn of(analysis: &Analysis, ordinal: u8, device: &DeviceState) -> Option<Self> {
        // What other streams hold is not known then, and they share the device.
        if analysis.stream.is_some() {
            return None;
        }
        let size = analysis.capacity(ordinal)?;
        let residual = device.attribution.nearest().and_then(|sample| sample.residual()).unwrap_or(0);
        let reserved = device.reserved_peak.reserved;
        let used = reserved.max(device.peak_device).saturating_add(residual);
        let cache = reserved.saturating_sub(device.torch.peak().live);
        let least = size.saturating_sub(used) as f64;
        let most = least + cache as f64;
        let (overhead, grown) = overhead(device);
        Some(Self { least, most, overhead, grown })
    }

    /// The room for a leak of blocks of this size.
    pub(crate) fn for_blocks(self, bytes: u64) -> Self {
        let segment = SEGMENT_BYTES[usize::from(bytes > SMALL_BYTES)];
        let is_told = self.grown >= FEW_SEGMENTS * segment;
        Self { overhead: if is_told { self.overhead } else { 1.0 }, ..self }
    }

    /// Steps until it is full at so many bytes per step: expected, and the bounds; no later bound if it may not grow at all.
    pub(crate) fn steps(self, [rate, least_rate, most_rate]: [f64; 3]) -> Option<(u64, u64, Option<u64>)> {
        let Self { least, most, overhead, .. } = self;
        let latest = (least_rate > 0.0).then(|| (most * (1.0 + MARGIN) / least_rate) as u64);
        let expected = if overhead > 1.0 { least / overhead } else { least.midpoint(most) };
        let earliest = (least * (1.0 - MARGIN) / overhead / most_rate.max(rate)) as u64;
        (rate > 0.0).then(|| ((expected / rate) as u64, earliest, latest))
    }

    /// The same as numbers of steps, after this one has ended.
    pub(crate) fn step(self, rates: [f64; 3], last: u64) -> Option<OomForecast> {
        let (expected, earliest, latest) = self.steps(rates)?;
        let at = |steps: u64| last.saturating_add(1).saturating_add(steps);
        Some(OomForecast { expected: at(expected), earliest: at(earliest), latest: latest.map(at) })
    }
}

/// Reserved bytes for each live one, at least 1, and what both grew by at least.
fn overhead(device: &DeviceState) -> (f64, u64) {
    let steps = device.torch.steps_ended();
    let (stride, before, live) = device.torch.series().values_from(device.torch.first_step, steps);
    let tail = live.len() / 3;
    let live: Vec<u64> = live.iter().skip(tail).map(|held| held.bytes).collect();
    let unused = device.unused.unused();
    let at = |index: usize| unused.at((before + tail + index) as u32 * stride).bytes;
    let reserved: Vec<u64> =
        live.iter().zip(0..).map(|(live, index)| live.saturating_add(at(index))).collect();
    let grown = |values: &[u64]| match (values.first(), values.last()) {
        (Some(first), Some(last)) => last.saturating_sub(*first),
        _ => 0,
    };
    let slope = |values: &[u64]| corrected(values).1.per_value;
    let grown = grown(&live).min(grown(&reserved));
    let least = FEW_SEGMENTS * SEGMENT_BYTES[0];
    let overhead = if grown < least { 1.0 } else { slope(&reserved) / slope(&live) };
    (if overhead.is_finite() { overhead.clamp(1.0, MAX_OVERHEAD) } else { 1.0 }, grown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_lie_around_what_is_expected() {
        let room = Headroom { least: 1000.0, most: 2000.0, overhead: 1.0, grown: 40 << 20 };
        assert_eq!(room.steps([100.0, 100.0, 100.0]), Some((15, 8, Some(23))));
        assert_eq!(room.steps([100.0, 50.0, 200.0]), Some((15, 4, Some(46))));
        assert_eq!(room.steps([100.0, -1.0, 200.0]), Some((15, 4, None)));
        assert_eq!(room.steps([0.0; 3]), None);
        let wasteful = Headroom { overhead: 2.0, ..room };
        assert_eq!(wasteful.for_blocks(2 << 20).steps([100.0; 3]), room.steps([100.0; 3]));
        assert_eq!(wasteful.for_blocks(512).steps([100.0, 100.0, 100.0]), Some((5, 4, Some(23))));
        let step = room.step([100.0; 3], 9).unwrap();
        assert_eq!((step.expected, step.earliest, step.latest), (25, 18, Some(33)));
    }
}
