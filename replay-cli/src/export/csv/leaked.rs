//! The leaked memory of each call site.

use std::collections::HashMap;

use gpumemtrace_format::NO_DEVICE;
use gpumemtrace_replay::report::{AssessmentStatus, BlockLayer, LeakKind};

use super::site_totals::LayerKey;
use crate::export::ExportJob;
use crate::export::window::Amount;
use crate::render::wording::assessment::find_assessment;

/// The leaked memory of a run by layer and call site.
pub(super) struct LeakedSites {
    by_site: HashMap<(LayerKey, String), Amount>,
    is_known: bool,
}

impl LeakedSites {
    /// What the leaks of a run hold, as of the end of its last complete step.
    pub(super) fn of_run(job: &mut ExportJob, trace: usize) -> Self {
        let assessment = find_assessment(&job.report, trace);
        let is_known = assessment.is_some_and(|found| found.status != AssessmentStatus::NotAssessed);
        let mut by_site = HashMap::<_, Amount>::new();
        for leak in job.report.leaks.iter().flatten().filter(|leak| leak.trace == trace) {
            let layer = match leak.kind {
                LeakKind::Tensors => (BlockLayer::Torch, u8::try_from(leak.device).unwrap_or(NO_DEVICE)),
                LeakKind::Device => (BlockLayer::Driver, u8::try_from(leak.device).unwrap_or(NO_DEVICE)),
                LeakKind::PinnedHost => (BlockLayer::Host, NO_DEVICE),
                // Unused segments: no blocks of a call site.
                LeakKind::Reserved => continue,
            };
            let stacks: Vec<u32> = leak.by_stack.iter().map(|(stack, ..)| *stack).collect();
            let sites = job.runs[trace].sites_of_stacks(&stacks, &mut job.resolver);
            for (site, (_, bytes, blocks)) in sites.into_iter().zip(&leak.by_stack) {
                let leaked = Amount { bytes: *bytes, blocks: *blocks };
                by_site.entry((layer, site.id)).or_default().add(leaked);
            }
        }
        Self { by_site, is_known }
    }

    /// The leaked memory of a site; `None` if leaks were not assessed.
    pub(super) fn at(&self, layer: LayerKey, site: &str) -> Option<Amount> {
        let leaked = || self.by_site.get(&(layer, site.to_owned())).copied().unwrap_or_default();
        self.is_known.then(leaked)
    }
}
