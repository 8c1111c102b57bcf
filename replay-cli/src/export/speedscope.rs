//! Profiles for speedscope (<https://www.speedscope.app>): one per value and device.
//!
//! All profiles are sums by stack, not courses in time: their horizontal axis is bytes or blocks.
//! Format: <https://www.speedscope.app/file-format-schema.json>.

use std::collections::BTreeMap;
use std::io::Write;

use serde::Serialize;

use super::distinct::Distinct;
use super::stacks::{EMPTY_NOTE, NamedStacks, StackWeight, ViewerFrame, collect_stacks};
use super::window::Amount;
use super::{ExportFormat, ExportJob, Exporter};
use gpumemtrace_format::source_path::file_name;

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

#[derive(clap::Args)]
pub(crate) struct SpeedscopeExporter {
    /// The flame graph to show first
    #[arg(long, value_enum, default_value_t)]
    weight: StackWeight,
}

impl ExportFormat for SpeedscopeExporter {
    const NAME: &'static str = "speedscope";
    const HELP: &'static str = "Flame graphs for speedscope: live at the peak, at the end, allocated, leaked";
    const EXAMPLE: &'static str = "speedscope run.trace --around oom";
    const SUFFIX: &'static str = ".speedscope.json";
}

impl Exporter for SpeedscopeExporter {
    fn shows_leaks(&self) -> bool {
        true
    }

    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut frames = Distinct::default();
        let mut by_weight: Vec<Vec<SampledProfile>> = vec![Vec::new(); 4];
        for index in 0..job.runs.len() {
            let run = &mut job.runs[index];
            for device in collect_stacks(run, index, &job.report, false)?.devices {
                let stacks = NamedStacks::new(run, device.stacks(), &mut job.resolver);
                for (profiles, weight) in by_weight.iter_mut().zip(self.weight.and_others()) {
                    let amounts = number_stacks(&mut frames, &stacks, &device.by_stack(weight));
                    profiles.extend(profiles_of_weight(&device.name, weight, &amounts));
                }
            }
        }
        let mut profiles: Vec<SampledProfile> = by_weight.into_iter().flatten().collect();
        if profiles.is_empty() {
            job.notes.push(EMPTY_NOTE.to_owned());
            profiles.push(SampledProfile::new("no memory".to_owned(), "bytes", Vec::new()));
        }
        let name =
            job.report.traces.iter().map(|trace| file_name(&trace.path)).collect::<Vec<_>>().join(", ");
        let file = SpeedscopeFile {
            schema: SCHEMA,
            exporter: concat!("gpumemtrace ", env!("CARGO_PKG_VERSION")),
            name,
            active_profile_index: 0,
            shared: SharedFrames {
                frames: frames.into_values().into_iter().map(SpeedscopeFrame::of).collect(),
            },
            profiles,
        };
        serde_json::to_writer(&mut *out, &file)?;
        out.write_all(b"\n")?;
        Ok(())
    }
}

/// The profiles of bytes and of blocks; none without blocks.
fn profiles_of_weight(
    device: &str,
    weighted_by: StackWeight,
    amounts: &[(Vec<usize>, Amount)],
) -> Vec<SampledProfile> {
    if amounts.is_empty() {
        return Vec::new();
    }
    let profile = |unit, suffix, weight: fn(&Amount) -> u64| {
        let weighted = amounts.iter().map(|(stack, amount)| (stack.clone(), weight(amount))).collect();
        SampledProfile::new(format!("{device}: {}{suffix}", weighted_by.title()), unit, weighted)
    };
    vec![profile("bytes", "", |amount| amount.bytes), profile("none", " (blocks)", |amount| amount.blocks)]
}

/// The stacks as numbers of frames, outermost first. Ordered by frames, so that equal callers are
/// neighbours.
fn number_stacks(
    frames: &mut Distinct<ViewerFrame>,
    stacks: &NamedStacks,
    amounts: &BTreeMap<u32, Amount>,
) -> Vec<(Vec<usize>, Amount)> {
    let mut ordered: Vec<(&[ViewerFrame], Amount)> =
        amounts.iter().map(|(stack, amount)| (stacks.frames(*stack), *amount)).collect();
    // Equal stacks keep the order of their numbers only in a stable sort, so the amount decides.
    ordered.sort_unstable_by_key(|(stack, amount)| (*stack, amount.bytes, amount.blocks));
    let mut number_all =
        |stack: &[ViewerFrame]| stack.iter().map(|frame| frames.number(frame.clone())).collect();
    ordered.into_iter().map(|(stack, amount)| (number_all(stack), amount)).collect()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpeedscopeFile {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: String,
    active_profile_index: usize,
    shared: SharedFrames,
    profiles: Vec<SampledProfile>,
}

#[derive(Serialize)]
struct SharedFrames {
    frames: Vec<SpeedscopeFrame>,
}

#[derive(Debug, Serialize)]
struct SpeedscopeFrame {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

impl SpeedscopeFrame {
    fn of(frame: ViewerFrame) -> Self {
        let line = frame.line.filter(|_| frame.file.is_some());
        Self { name: frame.function, file: frame.file.or(frame.module), line }
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SampledProfile {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

impl SampledProfile {
    fn new(name: String, unit: &'static str, weighted: Vec<(Vec<usize>, u64)>) -> Self {
        let end_value = weighted.iter().fold(0, |sum: u64, (_, weight)| sum.saturating_add(*weight));
        let (samples, weights) = weighted.into_iter().unzip();
        Self { kind: "sampled", name, unit, start_value: 0, end_value, samples, weights }
    }
}
