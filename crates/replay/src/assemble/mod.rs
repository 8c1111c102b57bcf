//! Assembles the report from the analyses of the traces.

pub(crate) mod filter;
mod fragmentation;
mod history_builder;
pub(crate) mod mps_samples;
mod oom;
mod oom_growth;
mod oom_remedies;
mod ranks;
pub(crate) mod run_history;
mod sections;
pub(crate) mod symbolize;

use std::collections::BTreeMap;

use gpumemtrace_format::{EventKind, Meta, MetaValue};

use crate::callsite::code_origin::OptimizerCall;
use crate::device::DeviceState;
use crate::leak::opaque_pools::find_opaque_pools;
use crate::pass::Analysis;
use crate::report::{
    Device, DeviceEnd, DeviceLevels, DevicePeak, DeviceStepEnd, OptimizerMethod, OwnerBytes, Phase,
    PhaseOnDevice, Report, Residual, Section, SinceMoment, SleepMode, Steps, StreamPart, TorchReleases,
    TraceInfo, TraceOrigin, Worded,
};
use crate::timeline::phases::PhaseUsage;
use crate::timeline::steps::{StepRule, StepToken};
use crate::{leak, verdicts};
use sections::{SECTIONS, SectionInputs};

/// The report on some traces, with these sections; with all if `sections` is empty.
///
/// The sentences in it are empty; the command writes them.
pub fn report(analyses: &[Analysis], sections: &[Section]) -> Report {
    let has = |section| sections.is_empty() || sections.contains(&section);
    let each = || analyses.iter().enumerate();
    let (mut leaks, mut assessments, mut benign_growth) = (Vec::new(), Vec::new(), Vec::new());
    for (index, analysis) in each() {
        let found = leak::find_leaks(index, analysis);
        assessments.push(leak::assessment::assess(index, analysis, found.growth));
        leaks.extend(found.leaks);
        benign_growth.extend(found.benign);
    }
    let ooms: Vec<_> = each().flat_map(|(index, analysis)| oom::ooms(index, analysis)).collect();
    for assessment in &mut assessments {
        leak::assessment::add_growth_towards_ooms(assessment, &ooms, &leaks);
    }
    let ranks = ranks::ranks(analyses, &leaks);
    let verdicts = sections.is_empty().then(|| {
        let of_trace = |(index, analysis): (usize, _)| {
            verdicts::verdicts(index, analysis, &leaks, &assessments[index].growth, &ooms)
        };
        let mut verdicts: Vec<_> = each().flat_map(of_trace).collect();
        verdicts.extend(ranks.as_ref().and_then(ranks::imbalance_verdict));
        verdicts
    });
    let has_snapshots =
        |analysis: &Analysis| !analysis.snapshots.is_empty() || !analysis.unreached_snapshots.is_empty();
    let snapshots = analyses
        .iter()
        .any(has_snapshots)
        .then(|| each().flat_map(|(index, analysis)| fragmentation::snapshots(index, analysis)).collect());
    let mut report = Report {
        traces: analyses.iter().map(trace_info).collect(),
        devices: each().flat_map(|(index, analysis)| devices(index, analysis)).collect(),
        steps: analyses.first().map(steps),
        phases: each().flat_map(|(index, analysis)| phases(index, analysis)).collect(),
        snapshots,
        ranks,
        verdicts,
        ..Report::empty()
    };
    let mut inputs = SectionInputs { analyses, leaks, assessments, benign_growth, ooms };
    for row in SECTIONS.iter().filter(|row| has(row.section)) {
        (row.build)(&mut report, &mut inputs);
    }
    for (index, analysis) in each() {
        for (key, row) in analysis.analyses.extra_rows(index, analysis.start_ns) {
            if has(Section::Extra(key)) {
                report.extra.entry(key).or_default().push(row);
            }
        }
    }
    report
}

fn phases(trace: usize, analysis: &Analysis) -> impl Iterator<Item = Phase> {
    let has_torch =
        |ordinal: u8| analysis.devices.iter().any(|(device, state)| *device == ordinal && state.has_torch());
    let on = move |(device, on): &(u8, PhaseUsage)| PhaseOnDevice {
        device: *device,
        peak_live_bytes: has_torch(*device).then_some(on.peak_bytes),
        net_bytes: has_torch(*device).then_some(on.left_bytes),
    };
    analysis.phases.iter().map(move |phase| Phase {
        trace,
        name: (!phase.name.is_empty()).then(|| phase.name.clone()),
        count: phase.turns,
        time_ns: phase.time_ns,
        devices: phase.devices.iter().map(on).collect(),
    })
}

/// The releases that may have written a snapshot.
fn torch_releases(meta: &Meta) -> Option<TorchReleases> {
    let release = |name: &str| Some(format!("2.{}", meta.number(name)?));
    let (oldest, newest) = (release("snapshot.oldest_minor")?, release("snapshot.newest_minor")?);
    Some(TorchReleases { oldest, newest })
}

/// The labels of a trace. Those of a damaged trace that are no pairs are left out.
fn labels_of(meta: &Meta) -> BTreeMap<String, String> {
    let labels = meta.list("labels").iter().filter_map(|label| label.split_once('='));
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Number of events by the name of their kind, also those that do not occur.
fn events_by_name(analysis: &Analysis) -> BTreeMap<String, u64> {
    let mut events: BTreeMap<String, u64> = BTreeMap::new();
    for (kind, name) in EventKind::NAMED {
        let name = if *kind == EventKind::MARK { "marks" } else { name };
        events.insert(name.to_owned(), 0);
    }
    for (kind, count) in &analysis.counts {
        let name = match kind.name() {
            Some(_) if *kind == EventKind::MARK => "marks".to_owned(),
            Some(name) => name.to_owned(),
            None => format!("kind_{}", kind.0),
        };
        events.insert(name, *count);
    }
    events
}

fn trace_info(analysis: &Analysis) -> TraceInfo {
    let meta = &analysis.meta;
    let text = |name: &str| meta.text(name).map(str::to_owned);
    let list = |name: &str| match meta.get(name) {
        Some(MetaValue::List(list)) => Some(list.clone()),
        Some(MetaValue::Text(text)) => Some(vec![text.clone()]),
        _ => None,
    };
    TraceInfo {
        path: analysis.path.clone(),
        pid: meta.number("pid"),
        host: text("host"),
        origin: TraceOrigin::of(meta),
        rank: meta.number("rank"),
        world_size: meta.number("world_size"),
        command: list("command"),
        started_unix_ns: meta.number("started_unix_ns"),
        duration_ns: (analysis.end_ns > 0).then(|| analysis.end_ns.saturating_sub(analysis.start_ns)),
        mode: list("mode"),
        pluggable: analysis.pluggable(),
        torch: text("torch"),
        torch_tracker: analysis.tracker,
        python: text("python"),
        cuda_driver: version(meta.get("cuda_driver")),
        cuda_runtime: version(meta.get("cuda_runtime")),
        allocator_conf: analysis.meta.allocator_conf().map(str::to_owned),
        torch_releases: torch_releases(meta),
        git_commit: text("git_commit"),
        labels: labels_of(meta),
        searches_holders: meta.number("holders") == Some(1),
        since: analysis.since.as_ref().and_then(|since| since.reached).map(|reached| SinceMoment {
            time_ns: reached.time_ns.saturating_sub(analysis.start_ns),
            step: analysis.reported_step(reached.step),
        }),
        stream: analysis.stream.as_ref().map(|facts| StreamPart {
            stream: facts.stream.0,
            unknown_blocks: facts.unknown_blocks,
            unknown_bytes: facts.unknown_bytes,
            is_reserved_known: analysis.knows_reserved(),
        }),
        end: analysis.ending,
        end_detail: analysis.ending_detail.clone(),
        end_is_known: analysis.knows_end,
        events: events_by_name(analysis),
        losses: analysis.losses.clone(),
        symbols: None,
        complete: analysis.incomplete.is_empty(),
        incomplete: analysis.incomplete.iter().cloned().map(Worded::from).collect(),
        notes: analysis.notes.iter().cloned().map(Worded::from).collect(),
    }
}

/// The version as text; CUDA encodes 13.2 as 13020.
fn version(value: Option<&MetaValue>) -> Option<String> {
    match value? {
        MetaValue::Number(number) => Some(format!("{}.{}", number / 1000, number % 1000 / 10)),
        MetaValue::Text(text) => Some(text.clone()),
        MetaValue::List(_) => None,
    }
}

fn steps(analysis: &Analysis) -> Steps {
    let source = analysis.step_source();
    let line = match analysis.step_rule {
        StepRule::Optimizer { line, .. } => {
            analysis.symbols.optimizer_lines().get(usize::from(line).wrapping_sub(1))
        }
        _ => None,
    };
    let site = match analysis.step_rule {
        StepRule::Period { token: StepToken::Call(place), .. } => analysis.symbols.site_of_path(place),
        _ => line.map(|line| line.site),
    };
    Steps {
        source,
        count: source.map(|_| u64::from(analysis.steps)),
        site: site.map(|site| analysis.symbols.site(site, None)),
        optimizer_call: line.map(|line| match line.call {
            OptimizerCall::Step => OptimizerMethod::Step,
            OptimizerCall::ZeroGrad => OptimizerMethod::ZeroGrad,
        }),
        range: analysis.step_range.clone(),
    }
}

fn devices(trace: usize, analysis: &Analysis) -> Vec<Device> {
    let opaque_pools = find_opaque_pools(analysis);
    let device = |(ordinal, state): (u8, &DeviceState)| {
        let torch = state.has_torch();
        let reserves = torch && analysis.knows_reserved();
        let driver = !state.driver.is_empty();
        let peak = state.main().peak();
        Device {
            trace,
            device: u32::from(ordinal),
            name: analysis.meta.text(&format!("device.{ordinal}.name")).map(str::to_owned),
            total_bytes: analysis.total_bytes(ordinal),
            peak: DevicePeak {
                live_bytes: torch.then(|| state.torch.peak().live),
                reserved_bytes: reserves.then_some(state.reserved_peak.reserved),
                device_bytes: driver.then_some(state.driver_peak.bytes()),
                time_ns: Some(peak.time_ns.saturating_sub(analysis.start_ns)),
                step: analysis.reported_step(peak.step),
            },
            end: DeviceEnd {
                live_bytes: torch.then(|| state.torch.end_total().bytes),
                reserved_bytes: reserves.then_some(state.end_levels().reserved),
                device_bytes: driver.then_some(state.end_levels().device),
                time_ns: analysis.end.time.time_ns.saturating_sub(analysis.start_ns),
                step: analysis.reported_step(analysis.end.time.step),
                moment: analysis.end.moment,
            },
            last_step: state.last_step.and_then(|levels| {
                Some(DeviceStepEnd {
                    step: analysis.reported_step(levels.step)?,
                    time_ns: levels.time_ns.saturating_sub(analysis.start_ns),
                    live_bytes: torch.then_some(levels.live),
                    reserved_bytes: reserves.then_some(levels.reserved),
                    device_bytes: driver.then_some(levels.device),
                })
            }),
            exit: DeviceLevels {
                live_bytes: torch.then(|| state.torch.total().bytes),
                reserved_bytes: reserves.then_some(state.reserved),
                device_bytes: driver.then(|| state.driver.total().bytes),
            },
            sleep: sleep_mode(state),
            ledger: ledger(analysis, state),
            residual_bytes: residual(analysis, state).map(|residual| residual.bytes),
            residual: residual(analysis, state),
            contradictory_samples: state.attribution.contradictory_samples,
            opaque_pools: opaque_pools
                .iter()
                .filter(|pool| pool.device == u32::from(ordinal))
                .cloned()
                .collect(),
        }
    };
    analysis.visible_devices().map(device).collect()
}

fn sleep_mode(state: &DeviceState) -> Option<SleepMode> {
    let facts = state.sleep.facts()?;
    let end_asleep = state.end_levels().asleep_live;
    Some(SleepMode {
        most_asleep_bytes: facts.most_asleep_live,
        most_asleep_reserved_bytes: facts.most_asleep_reserved,
        peak_backed_bytes: facts.live_peak.live,
        peak_backed_reserved_bytes: facts.reserved_peak.reserved,
        end_backed_bytes: state.torch.end_total().bytes.saturating_sub(end_asleep),
    })
}

fn ledger(analysis: &Analysis, state: &DeviceState) -> Vec<OwnerBytes> {
    let entries = state.attribution.entries(&analysis.owners);
    entries.into_iter().map(|(owner, bytes)| OwnerBytes { owner, bytes }).collect()
}

fn residual(analysis: &Analysis, state: &DeviceState) -> Option<Residual> {
    let sample = state.attribution.nearest()?;
    let bytes = sample.residual()?;
    let (least_bytes, most_bytes) = state.attribution.extremes.unwrap_or((bytes, bytes));
    Some(Residual {
        bytes,
        source: sample.source,
        time_ns: sample.time_ns.saturating_sub(analysis.start_ns),
        in_use_bytes: sample.in_use,
        pool_free_bytes: sample.pooled,
        samples: state.attribution.samples,
        least_bytes,
        most_bytes,
    })
}
