//! What is kept of one trace.

use std::collections::BTreeMap;

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Device, Ending, LeakKind, Site, TimelinePoint};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;

/// Most leaks, out-of-memory errors and call sites that are kept of a trace. The others are
/// counted.
const MAX_ROWS: usize = 20;
/// Equal parts of a recording. A heat map of ranks has a column for each.
const TIME_PARTS: usize = 48;

/// The process of a trace. No two processes of a machine have the same id and start.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Process {
    /// The name of the host.
    pub host: Option<String>,
    /// The process id; `null` if the trace lacks it.
    pub pid: Option<u64>,
    /// The start of the recording, in nanoseconds since the Unix epoch.
    pub started_unix_ns: Option<u64>,
}

/// A call site: its identity across traces, and its text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct CallSite {
    /// Identifies the call site; the same in every trace.
    pub id: String,
    /// The call site as text, such as `train.py:14 in step()`.
    pub text: String,
    /// Identifies the text of the line within its function, so that a line is found again after
    /// edits above it; `null` if the text is unknown.
    pub source_id: Option<String>,
}

/// The peaks of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceSummary {
    /// Ordinal of the GPU.
    pub device: u32,
    /// The name of the GPU.
    pub name: Option<String>,
    /// The memory of the GPU.
    pub total_bytes: Option<u64>,
    /// The maximum of PyTorch's `memory_allocated()`.
    pub peak_live_bytes: Option<u64>,
    /// The maximum of PyTorch's `memory_reserved()`.
    pub peak_reserved_bytes: Option<u64>,
    /// PyTorch's `memory_allocated()` when the program finished.
    pub end_live_bytes: Option<u64>,
    /// The most allocated bytes in each of 48 equal parts of the recording; `null` if unknown.
    pub live_bytes_over_time: Vec<Option<u64>>,
    /// The call sites with the most bytes at the peak, at most 20.
    pub peak_sites: Vec<SitePeak>,
    /// The number of call sites beyond those in the list.
    pub more_peak_sites: u64,
}

/// The memory of a call site at the peak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SitePeak {
    /// The call site of the blocks.
    pub site: CallSite,
    /// Its live bytes at the peak of `memory_allocated()`.
    pub bytes: u64,
}

/// The most severe finding of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorstFinding {
    /// How severe it is: `info`, `warning` or `critical`.
    pub severity: String,
    /// The finding in one sentence.
    pub summary: String,
}

/// A leak: its line, its bytes, and its growth per step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LeakSummary {
    /// Ordinal of the GPU.
    pub device: u32,
    /// The memory that grows: `tensors`, `device`, `pinned_host` or `reserved`.
    pub kind: String,
    /// The line that it is reported under.
    pub site: CallSite,
    /// The bytes that survive at the end of the last complete step.
    pub bytes: u64,
    /// The growth per step; `null` without steps.
    pub bytes_per_step: Option<f64>,
    /// The first step of the growth; `null` without steps.
    pub first_step: Option<u64>,
}

impl LeakSummary {
    /// True for blocks of PyTorch's allocator.
    #[must_use]
    pub fn is_of_tensors(&self) -> bool {
        self.kind == LeakKind::Tensors.name()
    }
}

/// An out-of-memory error: when, where, and the bytes that were requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OomSummary {
    /// Ordinal of the GPU.
    pub device: u32,
    /// The number of steps begun; `null` without steps.
    pub step: Option<u64>,
    /// Nanoseconds from the start of the recording.
    pub time_ns: u64,
    /// The size of the request that failed.
    pub requested_bytes: u64,
    /// The call site of the request.
    pub site: CallSite,
}

/// What is kept of one trace. Sizes are bytes; unknown values are `null`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TraceSummary {
    /// The process, by host, id and start.
    #[serde(flatten)]
    pub process: Process,
    /// The path of the trace when it was read.
    pub path: String,
    /// The rank of the process in a distributed job.
    pub rank: Option<u64>,
    /// The number of ranks of the job.
    pub world_size: Option<u64>,
    /// The command line; `null` if the trace lacks it.
    pub command: Option<Vec<String>>,
    /// The version of PyTorch.
    pub torch: Option<String>,
    /// The value of `PYTORCH_ALLOC_CONF`.
    pub allocator_conf: Option<String>,
    /// The git commit of the program.
    pub git_commit: Option<String>,
    /// The labels of the run.
    pub labels: BTreeMap<String, String>,
    /// The number of events.
    pub events: u64,
    /// Time from the start of the recording to its end.
    pub duration_ns: Option<u64>,
    /// How the process ended: `exit`, `killed`, `crashed` or `running`; `null` if it is unknown.
    pub end: Option<String>,
    /// The exit code; `null` unless the process exited by itself and the trace has the code.
    pub exit_code: Option<u8>,
    /// Details of the end, such as `exit 1` or `signal 9`; `null` if the trace lacks them.
    pub end_detail: Option<String>,
    /// What is missing from the trace, as sentences; empty if nothing is.
    pub missing: Vec<String>,
    /// The number of steps begun; `null` without steps.
    pub steps: Option<u64>,
    /// What begins a step; `null` without steps.
    pub step_source: Option<String>,
    /// Whether leaks could be judged: `assessed`, `partly` or `not_assessed`.
    pub leak_assessment: String,
    /// The most severe finding; `null` without findings.
    pub worst_finding: Option<WorstFinding>,
    /// Each GPU that the process used.
    pub devices: Vec<DeviceSummary>,
    /// The largest leaks, at most 20.
    pub leaks: Vec<LeakSummary>,
    /// The number of leaks beyond those in the list.
    pub more_leaks: u64,
    /// The first out-of-memory errors, at most 20.
    pub ooms: Vec<OomSummary>,
    /// The number of errors beyond those in the list.
    pub more_ooms: u64,
}

/// How much of a process a trace has. Of two traces of one process, the greater one is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Completeness {
    /// The number of events.
    pub events: u64,
    duration_ns: Option<u64>,
    /// A process that has ended may have no more events and no longer duration than while it ran.
    has_ended: bool,
}

impl TraceSummary {
    /// How much of the process the trace has.
    #[must_use]
    pub fn completeness(&self) -> Completeness {
        let has_ended = self.end.as_deref() != Some(Ending::Running.name());
        Completeness { events: self.events, duration_ns: self.duration_ns, has_ended }
    }

    /// True if nothing is missing, and the process ended without an error, as far as is known.
    pub(crate) fn is_whole(&self) -> bool {
        self.missing.is_empty() && matches!(self.outcome(), Outcome::Exited | Outcome::OutOfMemoryCaught)
    }

    /// Summarizes a report of exactly one trace, with all sections and with filled sentences.
    /// `call_site` is the identity and the text of a call site.
    #[must_use]
    pub fn of_report(report: &Report, call_site: &dyn Fn(&Site) -> CallSite) -> Option<Self> {
        let [info] = report.traces.as_slice() else { return None };
        let site = call_site;
        let steps = report.steps.as_ref();
        let leaks = report.leaks.iter().flatten().map(|leak| LeakSummary {
            device: leak.device,
            kind: leak.kind.name().to_owned(),
            site: site(&leak.site),
            bytes: leak.bytes,
            bytes_per_step: leak.bytes_per_step.map(|rate| rate.0),
            first_step: leak.first_step,
        });
        let ooms = report.oom.iter().flatten().map(|oom| OomSummary {
            device: oom.device,
            step: oom.step,
            time_ns: oom.time_ns,
            requested_bytes: oom.requested_bytes,
            site: site(&oom.site),
        });
        let (leaks, more_leaks) = first_rows(leaks);
        let (ooms, more_ooms) = first_rows(ooms);
        let assessment = report.leak_assessment.iter().flatten().next();
        let worst = report.verdicts.iter().flatten().next();
        Some(Self {
            process: Process {
                host: info.host.clone(),
                pid: info.pid,
                started_unix_ns: info.started_unix_ns,
            },
            path: info.path.clone(),
            rank: info.rank,
            world_size: info.world_size,
            command: info.command.clone(),
            torch: info.torch.clone(),
            allocator_conf: info.allocator_conf.clone(),
            git_commit: info.git_commit.clone(),
            labels: info.labels.clone(),
            events: info.events.values().sum(),
            duration_ns: info.duration_ns,
            end: info.end_is_known.then(|| info.end.name().to_owned()),
            exit_code: info.exit_code(),
            end_detail: info.end_detail.clone(),
            missing: info.incomplete.iter().map(|one| one.message.clone()).collect(),
            steps: steps.and_then(|steps| steps.count),
            step_source: steps.and_then(|steps| steps.source).map(|source| source.name().to_owned()),
            leak_assessment: assessment.map_or("not_assessed", |one| one.status.name()).to_owned(),
            worst_finding: worst.map(|verdict| WorstFinding {
                severity: verdict.severity.name().to_owned(),
                summary: verdict.summary.clone(),
            }),
            devices: report.devices.iter().map(|device| summarize_device(report, device, site)).collect(),
            leaks,
            more_leaks,
            ooms,
            more_ooms,
        })
    }
}

/// The first rows, and the number of the others.
fn first_rows<Row>(mut rows: impl Iterator<Item = Row>) -> (Vec<Row>, u64) {
    (rows.by_ref().take(MAX_ROWS).collect(), rows.count() as u64)
}

fn summarize_device(report: &Report, device: &Device, site: &dyn Fn(&Site) -> CallSite) -> DeviceSummary {
    let timeline = report.timelines.iter().flatten().find(|timeline| timeline.device == device.device);
    let points = timeline.map_or(&[][..], |timeline| &timeline.points);
    let peak = report.peak.iter().flatten().find(|peak| peak.device == device.device);
    let shares = peak.map_or(&[][..], |peak| &peak.sites);
    let sites = shares.iter().map(|share| SitePeak { site: site(&share.site), bytes: share.bytes });
    let (peak_sites, more_peak_sites) = first_rows(sites);
    DeviceSummary {
        device: device.device,
        name: device.name.clone(),
        total_bytes: device.total_bytes,
        peak_live_bytes: device.peak.live_bytes,
        peak_reserved_bytes: device.peak.reserved_bytes,
        end_live_bytes: device.end.live_bytes,
        live_bytes_over_time: most_over_time(points, report.traces[0].duration_ns),
        peak_sites,
        more_peak_sites,
    }
}

/// The most live bytes in each part of a recording. A part without points has the level of the
/// last one before it.
fn most_over_time(points: &[TimelinePoint], duration_ns: Option<u64>) -> Vec<Option<u64>> {
    let mut parts = vec![None; TIME_PARTS];
    let Some(duration_ns) = duration_ns.filter(|duration_ns| *duration_ns > 0) else { return parts };
    let mut level = None;
    let mut points = points.iter().peekable();
    for (part, most) in parts.iter_mut().enumerate() {
        let end_ns = u128::from(duration_ns) * (part as u128 + 1) / TIME_PARTS as u128;
        let is_last = part + 1 == TIME_PARTS;
        let mut in_part = None;
        while let Some(point) = points.next_if(|point| is_last || u128::from(point.time_ns) < end_ns) {
            in_part = in_part.max(point.live_bytes);
            level = point.live_bytes;
        }
        *most = in_part.or(level);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_the_recording_has_its_highest_level() {
        let point = |time_ns, live_bytes| TimelinePoint {
            time_ns,
            step: None,
            live_bytes: Some(live_bytes),
            reserved_bytes: None,
            device_bytes: None,
        };
        // Two nanoseconds a part.
        let points = [point(2, 5), point(3, 9), point(3, 4), point(8, 7), point(96, 8)];
        let most = most_over_time(&points, Some(96));
        assert_eq!(most[..6], [None, Some(9), Some(4), Some(4), Some(7), Some(7)]);
        assert_eq!((most.len(), most[47]), (48, Some(8)));
        assert_eq!(most_over_time(&points, None), [None; 48]);
        assert_eq!(most_over_time(&[], Some(5)), [None; 48]);
    }
}
