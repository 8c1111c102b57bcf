//! The scale of a chart: from 0, or from higher up if growth would not be visible from 0.
//!
//! A leak of 2% of the memory in use raises a bar from 0 by less than a row. If the level rises,
//! and little compared with what lies below, the axis begins below the lowest bar. The legend says
//! so. A level that only varies is always drawn from 0: magnified noise would look like growth.

/// The values of the lowest and the highest line of a chart, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChartScale {
    pub(super) floor: u64,
    pub(super) top: u64,
}

impl ChartScale {
    /// The scale for bars and an outline above them, by column.
    pub(super) fn choose(bars: &[u64], outline: &[u64]) -> Self {
        let lowest = bars.iter().min().copied().unwrap_or(0);
        let highest = bars.iter().max().copied().unwrap_or(0);
        let most = outline.iter().max().copied().unwrap_or(0).max(highest);
        let whole = Self { floor: 0, top: most };
        let quarter = bars.len() / 4;
        if quarter == 0 {
            return whole;
        }
        let rise = median(&bars[bars.len() - quarter..]).saturating_sub(median(&bars[..quarter]));
        let span = highest - lowest;
        let is_steady = rise.saturating_mul(2) >= span;
        let is_small = rise.saturating_mul(4) < most;
        // Below this, the labels of the axis would not differ.
        let is_legible = rise.saturating_mul(500) >= most;
        if !(is_steady && is_small && is_legible) {
            return whole;
        }
        let floor = round_down(lowest.saturating_sub(span / 4), span / 4);
        if floor == 0 {
            return whole;
        }
        // An outline far above the bars would take the room again; it is cut off instead.
        let room = (highest - floor).saturating_mul(2);
        let top = if most - floor > room { highest.saturating_add(span / 4) } else { most };
        Self { floor, top }
    }

    /// The value in the middle of the scale.
    pub(super) fn middle(self) -> u64 {
        self.floor + (self.top - self.floor) / 2
    }
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

/// `bytes` rounded down to a multiple of the largest power of two up to `step`.
fn round_down(bytes: u64, step: u64) -> u64 {
    let unit = 1u64 << step.max(1).ilog2();
    bytes - bytes % unit
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn small_steady_growth_is_drawn_from_below_its_lowest_value() {
        let bars: Vec<u64> = (0..60).map(|column| (1000 + column) * MIB).collect();
        let scale = ChartScale::choose(&bars, &[1100 * MIB; 60]);
        assert!(scale.floor > 900 * MIB && scale.floor < 1000 * MIB, "{scale:?}");
        assert!(scale.top >= 1059 * MIB);
        // An outline far above is cut off.
        let scale = ChartScale::choose(&bars, &[9000 * MIB; 60]);
        assert!(scale.top < 1100 * MIB, "{scale:?}");
    }

    #[test]
    fn other_levels_are_drawn_from_zero() {
        let noise: Vec<u64> = (0..60).map(|column| (1000 + column * 37 % 60) * MIB).collect();
        let fall: Vec<u64> = (0..60).map(|column| (1000 - column) * MIB).collect();
        let large: Vec<u64> = (0..60).map(|column| column * 100 * MIB).collect();
        let minute: Vec<u64> = (0..60).map(|column| 1000 * MIB + column).collect();
        for bars in [noise, fall, large, minute, vec![MIB; 60], vec![0; 60], vec![1, 2]] {
            assert_eq!(ChartScale::choose(&bars, &[]).floor, 0, "{bars:?}");
        }
    }
}
