//! What each call site allocated in a window, and its live memory at the peak and at the end.

use std::cmp::Reverse;
use std::ops::ControlFlow;

use gpumemtrace_replay::report::{BlockLayer, WalkedBlock};

use crate::export::ExportRun;
use crate::export::series::change_parts;
use crate::export::window::{WindowRow, WindowTotals};

/// A layer of a device.
pub(super) type LayerKey = (BlockLayer, u8);

/// The layers of all devices. A run has few.
#[derive(Default)]
struct LayerTable {
    all: Vec<(LayerKey, WindowTotals<u32>)>,
    is_inside: bool,
    has_step: bool,
}

impl LayerTable {
    fn end_step(&mut self) {
        self.has_step |= self.is_inside;
        self.all.iter_mut().for_each(|(_, totals)| totals.end_step());
    }

    fn begin_window(&mut self) {
        self.is_inside = true;
        self.all.iter_mut().for_each(|(_, totals)| totals.begin_window());
    }

    fn totals_of_block(&mut self, block: &WalkedBlock) -> &mut WindowTotals<u32> {
        let key = (block.layer, block.device);
        let index = self.all.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
            let mut totals = WindowTotals::default();
            if self.is_inside {
                totals.begin_window();
            }
            if self.has_step {
                totals.end_step();
            }
            self.all.push((key, totals));
            self.all.len() - 1
        });
        &mut self.all[index].1
    }
}

/// Walks the window of a run; returns the sites of each layer of each device, by the
/// numbers of the sites.
pub(super) fn read_site_totals(run: &mut ExportRun) -> anyhow::Result<Vec<(LayerKey, Vec<WindowRow<u32>>)>> {
    let mut layers = LayerTable::default();
    let mut step = 0;
    run.walk(&mut |walked| {
        if walked.step != step {
            step = walked.step;
            layers.end_step();
        }
        if walked.is_inside && !layers.is_inside {
            layers.begin_window();
        }
        for change in walked.changes {
            let (block, is_alloc) = change_parts(change);
            let totals = layers.totals_of_block(block);
            if is_alloc { totals.allocate(block.site, block) } else { totals.free(block.site, block) }
        }
        ControlFlow::Continue(())
    })?;
    layers.all.sort_unstable_by_key(|(key, _)| *key);
    Ok(layers.all.into_iter().map(|(key, totals)| (key, sorted_sites(totals))).collect())
}

/// The sites, those with the most bytes at the peak first.
fn sorted_sites(totals: WindowTotals<u32>) -> Vec<WindowRow<u32>> {
    let mut sites = totals.into_rows();
    // Stacks are numbered equally in every walk.
    sites.sort_unstable_by_key(|site| {
        (Reverse((site.peak.bytes, site.end.bytes, site.allocated.bytes)), site.first_stack)
    });
    sites
}
