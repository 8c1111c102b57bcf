//! The totals beside a model that copies all live blocks at each new peak.

use std::collections::BTreeMap;

use gpumemtrace_format::ThreadId;
use proptest::prelude::*;

use super::*;

fn block(addr: u64, size_bytes: u64, site: u32) -> WalkedBlock {
    WalkedBlock {
        layer: BlockLayer::Torch,
        device: 0,
        addr,
        size_bytes,
        requested_bytes: None,
        stream: None,
        pool: None,
        stack: site,
        site,
        // The model numbers its changes.
        time_ns: addr,
        step: 0,
        seq: addr,
        thread: ThreadId(1),
    }
}

/// One change: an allocation of a site and a size, or the end of one of the live blocks.
#[derive(Clone, Debug)]
enum Change {
    Allocate { site: u32, size_bytes: u64 },
    Free(usize),
    Lose(usize),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let site = prop_oneof![0..4u32, Just(u32::MAX)];
    let change = prop_oneof![
        3 => (site, 0..100u64).prop_map(|(site, size_bytes)| Change::Allocate { site, size_bytes }),
        2 => (0..64usize).prop_map(Change::Free),
        1 => (0..64usize).prop_map(Change::Lose),
    ];
    proptest::collection::vec(change, 0..200)
}

/// By site: allocated, freed, live, at the peak.
type ModelSites = BTreeMap<Option<u32>, [LiveAmount; 4]>;

fn sums(live: &[WalkedBlock]) -> BTreeMap<Option<u32>, LiveAmount> {
    let mut sums: BTreeMap<Option<u32>, LiveAmount> = BTreeMap::new();
    for block in live {
        sums.entry((block.site != u32::MAX).then_some(block.site)).or_default().add(block);
    }
    sums
}

proptest! {
    #[test]
    fn site_and_step_totals_equal_a_model(changes in changes(), window in 0..100usize, step in 1..30usize) {
        let (mut totals, mut live) = (StepAndSiteTotals::default(), Vec::<WalkedBlock>::new());
        let (mut model, mut peak): (ModelSites, (u64, BTreeMap<_, _>)) = Default::default();
        let (mut expected, mut found) = (StepTotals::default(), StepTotals::default());
        let total = |live: &[WalkedBlock]| live.iter().map(|block| block.size_bytes).sum::<u64>();
        let end = |live: &[WalkedBlock]| LiveAmount { blocks: live.len() as u64, bytes: total(live) };
        for (index, change) in changes.iter().enumerate() {
            if index == window {
                totals.begin_window();
                peak = (total(&live), sums(&live));
                expected = StepTotals { peak_bytes: total(&live), ..StepTotals::default() };
            }
            let inside = index >= window;
            let key = |block: &WalkedBlock| (block.site != u32::MAX).then_some(block.site);
            match change {
                Change::Allocate { site, size_bytes } => {
                    let block = block(index as u64, *size_bytes, *site);
                    live.push(block);
                    totals.on_change(&BlockChange::Allocated(block));
                    if inside {
                        model.entry(key(&block)).or_default()[0].add(&block);
                        expected.allocated.add(&block);
                    }
                }
                Change::Free(at) | Change::Lose(at) if live.is_empty() => { let _ = at; }
                Change::Free(at) => {
                    let block = live.remove(at % live.len());
                    totals.on_change(&BlockChange::Freed(block));
                    if inside {
                        model.entry(key(&block)).or_default()[1].add(&block);
                        expected.freed.add(&block);
                    }
                }
                Change::Lose(at) => {
                    let block = live.remove(at % live.len());
                    totals.on_change(&BlockChange::Lost(block));
                }
            }
            if inside {
                if total(&live) > expected.peak_bytes {
                    expected.peak_bytes = total(&live);
                    (expected.peak_ns, expected.peak_seq) = (Some(index as u64), Some(index as u64));
                }
                if total(&live) > peak.0 {
                    peak = (total(&live), sums(&live));
                }
                if index % step == 0 {
                    expected.end = end(&live);
                    found = totals.take_step().next().map(|(_, step)| step).unwrap_or_default();
                    prop_assert_eq!(found, expected);
                    expected = StepTotals { peak_bytes: total(&live), ..StepTotals::default() };
                }
            }
        }
        if changes.len() <= window {
            totals.begin_window();
            peak = (total(&live), sums(&live));
        }
        let _ = found;
        for (site, sum) in sums(&live) {
            model.entry(site).or_default()[2] = sum;
        }
        for (site, sum) in peak.1 {
            model.entry(site).or_default()[3] = sum;
        }
        model.retain(|_, sums| sums.iter().any(|sum| sum.blocks > 0));
        let layers = totals.into_layers();
        let sites = layers.into_iter().flat_map(|(_, layer)| layer.into_sites());
        let sites: ModelSites =
            sites.map(|(site, it)| (site, [it.allocated, it.freed, it.live, it.at_peak])).collect();
        prop_assert_eq!(sites, model);
    }
}
