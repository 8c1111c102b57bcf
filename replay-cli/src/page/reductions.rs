//! Makes the history of a page smaller, and says what was merged or left out.

use std::collections::HashSet;

use gpumemtrace_replay::{AllocatorState, DeviceHistory, KeyframeReason, RunHistory};

use crate::terminal::format::format_count;

/// Columns of the table of blocks, and of the blocks and the segments of a state.
const BLOCK_COLUMNS: usize = 5;
const PLACE_COLUMNS: usize = 3;
const SEGMENT_COLUMNS: usize = 5;
/// Bins are not merged below these numbers.
const MIN_BLOCK_BINS: u16 = 16;
const MIN_COMPOSITION_BINS: usize = 64;

/// What was merged or left out to make the page smaller.
#[derive(Debug)]
pub(super) struct Reductions {
    dropped_states: usize,
    merged_blocks: bool,
    /// Number of bins of the timeline that were merged into each.
    merged_composition: usize,
}

impl Default for Reductions {
    fn default() -> Self {
        Self { dropped_states: 0, merged_blocks: false, merged_composition: 1 }
    }
}

/// A part of the page that can be made smaller.
#[derive(Clone, Copy)]
enum Part {
    /// States at even distances and at marks.
    States,
    Blocks,
    Composition,
    /// All states but the first one of each device. Only if nothing else is left.
    KeyStates,
}

impl Reductions {
    /// Makes the largest part of the histories smaller. False if that is not possible any more.
    pub(super) fn shrink(&mut self, histories: &mut [RunHistory]) -> bool {
        let devices = || histories.iter().flat_map(|history| &history.devices);
        let states = || devices().flat_map(|device| &device.states);
        let minor = || states().filter(|state| is_minor(state));
        let parts = [
            (Part::States, minor().map(count_places).sum(), minor().count() > 0),
            (
                Part::Blocks,
                devices().map(|device| device.blocks.rows.len() * BLOCK_COLUMNS).sum(),
                devices().any(|device| device.blocks.bins > MIN_BLOCK_BINS),
            ),
            (
                Part::Composition,
                devices().map(count_composition).sum(),
                devices().any(|device| device.bin_live.len() > MIN_COMPOSITION_BINS),
            ),
        ];
        let possible = parts.into_iter().filter(|(.., is_possible)| *is_possible);
        let largest = possible.max_by_key(|(_, values, _): &(Part, usize, bool)| *values);
        let has_key_states = devices().any(|device| device.states.len() > 1);
        let part = match largest {
            Some((part, ..)) => part,
            None if has_key_states => Part::KeyStates,
            None => return false,
        };
        for device in histories.iter_mut().flat_map(|history| &mut history.devices) {
            let before = device.states.len();
            match part {
                Part::States => drop_every_other(device),
                Part::KeyStates => device.states.truncate(device.states.len() / 2 + before % 2),
                Part::Blocks => device.blocks.merge_bins(),
                Part::Composition => merge_composition(device),
            }
            self.dropped_states += before - device.states.len();
        }
        match part {
            Part::Composition => self.merged_composition *= 2,
            Part::Blocks => self.merged_blocks = true,
            Part::States | Part::KeyStates => {}
        }
        true
    }

    /// What a reader of the page must know, one sentence each.
    pub(super) fn sentences(&self, histories: &[RunHistory]) -> Vec<String> {
        let mut sentences = Vec::new();
        let devices = || histories.iter().flat_map(|history| &history.devices);
        let merged = devices().map(|device| device.blocks.merged).max().unwrap_or(1);
        let why = if self.merged_blocks { "to keep the page small" } else { "because the run has so many" };
        if merged > 1 {
            sentences.push(format!("Every {merged} moments of the flame graph are merged, {why}."));
        }
        if self.merged_composition > 1 {
            let merged = self.merged_composition;
            sentences
                .push(format!("Every {merged} moments of the timeline are merged, to keep the page small."));
        }
        let count_states = |states| format_count(states, "state");
        if self.dropped_states > 0 {
            let states = count_states(self.dropped_states as u64);
            sentences.push(format!("{states} of the segment map are left out, to keep the page small."));
        }
        let omitted: u64 = devices().map(|device| device.omitted_states).sum();
        if omitted > 0 {
            let states = count_states(omitted);
            sentences.push(format!(
                "{states} of the segment map at errors and marks were not kept: the run has too many."
            ));
        }
        for history in histories {
            if history.step_distance > 1 {
                sentences.push("The run has many steps: the page shows times instead of steps.".to_owned());
            }
            if history.omitted_phase_turns > 0 {
                sentences
                    .push(format!("{} later turns of phases are left out.", history.omitted_phase_turns));
            }
        }
        // Ranks of one run have the same limits.
        let mut seen = HashSet::new();
        sentences.retain(|sentence| seen.insert(sentence.clone()));
        sentences
    }
}

fn is_minor(state: &AllocatorState) -> bool {
    match state.why {
        KeyframeReason::Interval | KeyframeReason::Mark => true,
        KeyframeReason::OutOfMemory
        | KeyframeReason::Peak
        | KeyframeReason::PeakReserved
        | KeyframeReason::LargestGap
        | KeyframeReason::End => false,
    }
}

fn count_places(state: &AllocatorState) -> usize {
    state.blocks().len() * PLACE_COLUMNS + state.segments.len() * SEGMENT_COLUMNS
}

/// Number of values of sites, categories and pools over time.
fn count_composition(device: &DeviceHistory) -> usize {
    device.bin_live.len() * (device.site_series.len() + device.categories.len() + device.pools.len())
}

/// Merges the bins of the timeline in pairs: the moment of more live bytes remains.
fn merge_composition(device: &mut DeviceHistory) {
    let pairs = device.bin_live.chunks(2);
    let picks: Vec<usize> =
        pairs.map(|pair| usize::from(pair.get(1).is_some_and(|second| *second > pair[0]))).collect();
    let merge = |values: &mut Vec<u64>| {
        *values = values.chunks(2).zip(&picks).map(|(pair, pick)| pair[*pick]).collect();
    };
    merge(&mut device.bin_times_ns);
    merge(&mut device.bin_live);
    let sites = device.site_series.iter_mut().map(|(_, values)| values);
    let categories = device.categories.iter_mut().map(|(_, values)| values);
    let pools = device.pools.iter_mut().map(|(_, values)| values);
    sites.chain(categories).chain(pools).for_each(merge);
    let end_ns = device.bins_edges_ns.pop();
    device.bins_edges_ns = device.bins_edges_ns.iter().copied().step_by(2).chain(end_ns).collect();
}

fn drop_every_other(device: &mut DeviceHistory) {
    let mut index = 0;
    device.states.retain(|state| {
        index += usize::from(is_minor(state));
        !is_minor(state) || index % 2 == 0
    });
}
