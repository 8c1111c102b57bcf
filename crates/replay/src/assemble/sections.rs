//! The sections of the report, and the table of them.
//!
//! A row names a section and the function that fills its keys. The command's table of sections has
//! the flag, the help and the text of each. Analyses with a section of their own
//! ([`Section::Extra`]) need no row here.

use std::cmp::Reverse;

use crate::assemble::fragmentation as gaps;
use crate::device::DeviceState;
use crate::pass::Analysis;
use crate::peak;
use crate::report::{
    BenignGrowth, HolderScan, Leak, LeakAssessment, Mark, Oom, Report, Section, SettingEffects, Timeline,
    TimelineBand, TimelinePoint,
};
use crate::state::holder_scans::HolderScans;
use crate::timeline::bins::{BinValues, MemorySample};
use crate::timeline::marks::MarkLog;
use crate::util::ids::SiteId;

use super::mps_samples;

/// Most call sites with a band in a timeline.
const MAX_BANDS: usize = 12;

/// What the sections are built from. Each section takes its own lists.
pub(super) struct SectionInputs<'a> {
    pub(super) analyses: &'a [Analysis],
    pub(super) leaks: Vec<Leak>,
    pub(super) assessments: Vec<LeakAssessment>,
    pub(super) benign_growth: Vec<BenignGrowth>,
    pub(super) ooms: Vec<Oom>,
}

impl<'a> SectionInputs<'a> {
    fn each(&self) -> impl Iterator<Item = (usize, &'a Analysis)> + use<'a> {
        self.analyses.iter().enumerate()
    }
}

/// A section and the function that fills it.
pub(super) struct SectionBuilder {
    pub(super) section: Section,
    pub(super) build: fn(&mut Report, &mut SectionInputs<'_>),
}

/// The sections with keys of their own in [`Report`].
pub(super) static SECTIONS: &[SectionBuilder] = &[
    SectionBuilder { section: Section::Leaks, build: build_leaks },
    SectionBuilder { section: Section::Timeline, build: build_timeline },
    SectionBuilder { section: Section::Fragmentation, build: build_fragmentation },
    SectionBuilder { section: Section::Peak, build: build_peak },
    SectionBuilder { section: Section::Oom, build: build_oom },
];

fn build_leaks(report: &mut Report, inputs: &mut SectionInputs<'_>) {
    let of_trace = |(trace, analysis): (usize, &Analysis)| -> Vec<HolderScan> {
        let scans = analysis.analyses.find::<HolderScans>();
        scans.map_or_else(Vec::new, |scans| {
            scans.report(trace, analysis.start_ns, analysis.step_source().is_some())
        })
    };
    let scans: Vec<HolderScan> = inputs.each().flat_map(of_trace).collect();
    report.holders = (!scans.is_empty()).then_some(scans);
    report.leak_assessment = Some(std::mem::take(&mut inputs.assessments));
    report.leaks = Some(std::mem::take(&mut inputs.leaks));
    report.benign_growth = Some(std::mem::take(&mut inputs.benign_growth));
}

fn build_timeline(report: &mut Report, inputs: &mut SectionInputs<'_>) {
    let timelines: Vec<Timeline> =
        inputs.each().flat_map(|(index, analysis)| timelines(index, analysis)).collect();
    let peak = |timeline: &Timeline| {
        timeline.points.iter().filter_map(|point| point.live_bytes.max(point.device_bytes)).max()
    };
    let of_first_trace = timelines.iter().filter(|timeline| timeline.trace == 0);
    let busiest = of_first_trace.max_by_key(|timeline| (peak(timeline), Reverse(timeline.device))).cloned();
    let empty = Timeline { trace: 0, device: 0, points: Vec::new(), bands: Vec::new(), omitted: None };
    report.timeline = Some(busiest.unwrap_or(empty));
    report.timelines = Some(timelines);
    report.marks = inputs.each().flat_map(|(index, analysis)| marks(index, analysis)).collect();
    report.torch_memory =
        inputs.each().filter_map(|(index, analysis)| mps_samples::torch_memory(index, analysis)).collect();
}

fn build_fragmentation(report: &mut Report, inputs: &mut SectionInputs<'_>) {
    let each = || inputs.each();
    report.fragmentation =
        Some(each().flat_map(|(index, analysis)| gaps::fragmentation(index, analysis)).collect());
    report.fragmentation_over_time =
        Some(each().flat_map(|(index, analysis)| gaps::over_time(index, analysis)).collect());
    let effects = each().flat_map(|(trace, analysis)| {
        analysis.setting_effects.iter().map(move |effects| SettingEffects { trace, ..effects.clone() })
    });
    let effects: Vec<_> = effects.collect();
    report.setting_effects = (!effects.is_empty()).then_some(effects);
    let pools: Vec<_> = each().flat_map(|(index, analysis)| gaps::async_pools(index, analysis)).collect();
    report.async_pools = (!pools.is_empty()).then_some(pools);
}

fn build_peak(report: &mut Report, inputs: &mut SectionInputs<'_>) {
    report.peak =
        Some(inputs.each().flat_map(|(index, analysis)| peak::report_peaks(index, analysis)).collect());
}

fn build_oom(report: &mut Report, inputs: &mut SectionInputs<'_>) {
    // A whole device runs out of memory, not a stream.
    let is_whole = inputs.analyses.iter().all(|analysis| analysis.stream.is_none());
    report.oom = is_whole.then(|| std::mem::take(&mut inputs.ooms));
}

fn marks(trace: usize, analysis: &Analysis) -> impl Iterator<Item = Mark> {
    let log = analysis.analyses.find::<MarkLog>();
    log.into_iter().flat_map(|log| &log.first).map(move |mark| Mark {
        trace,
        name: (!mark.name.is_empty()).then(|| mark.name.clone()),
        time_ns: mark.time_ns.saturating_sub(analysis.start_ns),
        step: analysis.reported_step(mark.step),
    })
}

fn timelines(trace: usize, analysis: &Analysis) -> Vec<Timeline> {
    analysis.visible_devices().map(|(ordinal, state)| timeline(trace, analysis, ordinal, state)).collect()
}

fn timeline(trace: usize, analysis: &Analysis, ordinal: u8, state: &DeviceState) -> Timeline {
    let live_set = state.main();
    let torch = state.has_torch();
    let reserves = torch && analysis.knows_reserved();
    let driver = !state.driver.is_empty();
    let mut points = Vec::new();
    // The bin of each point, and which of its values: 0 the highest, 1 the lowest.
    let mut which: Vec<(usize, usize)> = Vec::new();
    for (index, bin) in live_set.bins().all().iter().enumerate() {
        let point = |sample: &MemorySample, reserved, device| TimelinePoint {
            time_ns: sample.time_ns.saturating_sub(analysis.start_ns),
            step: analysis.reported_step(sample.step),
            live_bytes: torch.then_some(sample.live),
            reserved_bytes: reserves.then_some(reserved),
            device_bytes: driver.then_some(device),
        };
        let high = (point(&bin.high, bin.max_reserved, bin.max_device), (index, 0));
        let low = (point(&bin.low, bin.min_reserved, bin.min_device), (index, 1));
        let is_flat = bin.high.live == bin.low.live
            && bin.max_reserved == bin.min_reserved
            && bin.max_device == bin.min_device;
        let pair = if is_flat {
            vec![high]
        } else if bin.low_clock <= bin.high_clock {
            // Events of the same time have an order, too.
            vec![low, high]
        } else {
            vec![high, low]
        };
        for (point, place) in pair {
            points.push(point);
            which.push(place);
        }
    }
    let mut sites: Vec<(u64, SiteId, &BinValues)> = live_set
        .sites()
        .map(|(id, site)| (id, site.bin_values()))
        .map(|(id, values)| (values.max(), id, values))
        .filter(|(most, ..)| *most > 0)
        .collect();
    sites.sort_by_key(|(most, id, _)| (Reverse(*most), *id));
    let bands = sites.iter().take(MAX_BANDS).map(|(_, id, values)| TimelineBand {
        site: analysis.symbols.site(*id, live_set.main_stack_at_peak(*id)),
        bytes: which.iter().map(|(bin, side)| values.get(*bin).map_or(0, |bytes| bytes[*side])).collect(),
    });
    Timeline { trace, device: u32::from(ordinal), bands: bands.collect(), points, omitted: None }
}
