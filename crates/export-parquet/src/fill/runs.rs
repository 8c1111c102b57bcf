//! The table of runs: one row for a trace.

use gpumemtrace_cli::export::ExportRun;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{AssessmentStatus, Device, DevicePeak, Residual};

use super::text;
use crate::file::cell::Text;
use crate::folder::PartitionFolder;
use crate::tables::runs::RunRow;
use crate::tables::{number, saturated};

/// Writes the table `runs` of one trace. `events` is their number in the window.
pub(crate) fn write_run(
    run: &ExportRun,
    (report, trace): (&Report, usize),
    events: u64,
    folder: &mut PartitionFolder<'_>,
) -> anyhow::Result<()> {
    let mut table = folder.begin::<RunRow>()?;
    let info = &report.traces[trace];
    let devices: Vec<_> = report.devices.iter().filter(|device| device.trace == trace).collect();
    let losses: Vec<&str> = info.incomplete.iter().map(|loss| loss.message.as_str()).collect();
    let command = info.command.as_ref().map(serde_json::to_string).transpose()?;
    let step_source = run.analysis.step_source();
    let most = |bytes_of: fn(&DevicePeak) -> Option<u64>| {
        devices.iter().filter_map(|device| bytes_of(&device.peak)).max().and_then(number)
    };
    let used = most_used(&devices);
    let worst = report.verdicts.iter().flatten().find(|verdict| verdict.trace == trace);
    table.push(RunRow {
        trace: Text::from(info.path.as_str()),
        trace_id: run.analysis.meta.text("trace_id").map(Text::from),
        host: text(info.host.as_ref()),
        pid: info.pid.and_then(number),
        reported_rank: info.rank.and_then(number),
        world_size: info.world_size.and_then(number),
        command_json: command.map(Text::from),
        started_unix_ns: info.started_unix_ns.and_then(number),
        duration_ns: info.duration_ns.and_then(number),
        since_ns: saturated(run.window.span_ns.0),
        until_ns: saturated(run.window.span_ns.1),
        is_whole: run.window.is_whole(),
        events: saturated(events),
        step_source: step_source.map(|source| Text::from_static(source.name())),
        steps: step_source.map(|_| i64::from(run.analysis.steps)),
        torch: text(info.torch.as_ref()),
        python: text(info.python.as_ref()),
        cuda_driver: text(info.cuda_driver.as_ref()),
        cuda_runtime: text(info.cuda_runtime.as_ref()),
        allocator_conf: text(info.allocator_conf.as_ref()),
        ending: info.end_is_known.then(|| Text::from_static(info.end.name())),
        exit_code: info.exit_code().map(i64::from),
        is_complete: info.complete,
        incomplete_json: Text::from(serde_json::to_string(&losses)?),
        git_commit: text(info.git_commit.as_ref()),
        labels_json: (!info.labels.is_empty())
            .then(|| serde_json::to_string(&info.labels))
            .transpose()?
            .map(Text::from),
        card: devices.first().and_then(|device| text(device.name.as_ref())),
        card_bytes: devices.first().and_then(|device| device.total_bytes).and_then(number),
        peak_live_bytes: most(|peak| peak.live_bytes),
        peak_reserved_bytes: most(|peak| peak.reserved_bytes),
        peak_device_bytes: most(|peak| peak.device_bytes),
        peak_used_bytes: used.and_then(|(bytes, _)| number(bytes)),
        peak_unaccounted_bytes: used.and_then(|(_, residual)| number(residual.bytes)),
        unaccounted_source: used.map(|(_, residual)| Text::from_static(residual.source.name())),
        leaks: count_leaks(report, trace),
        ooms: saturated(run.analysis.oom_count),
        worst_severity: worst.map(|verdict| Text::from_static(verdict.severity.name())),
        worst_finding: worst.map(|verdict| Text::from(verdict.summary.as_str())),
        devices_json: Text::from(serde_json::to_string(&devices)?),
        gpumemtrace: Text::from_static(env!("CARGO_PKG_VERSION")),
    });
    table.finish()?;
    Ok(())
}

/// The most bytes that were in use on a device, with the part that no call shows. `None` if that
/// part is unknown for a device with memory of the driver: this device may have had more.
fn most_used<'a>(devices: &[&'a Device]) -> Option<(u64, &'a Residual)> {
    let with_memory = devices.iter().filter_map(|device| Some((device, device.peak.device_bytes?)));
    let used = with_memory.map(|(device, bytes)| {
        let residual = device.residual.as_ref()?;
        Some((bytes.saturating_add(residual.bytes), residual))
    });
    used.collect::<Option<Vec<_>>>()?.into_iter().max_by_key(|(bytes, _)| *bytes)
}

/// `None` if no part of the trace was judged.
fn count_leaks(report: &Report, trace: usize) -> Option<i64> {
    let mut assessments = report.leak_assessment.iter().flatten();
    let status = assessments.find(|assessment| assessment.trace == trace)?.status;
    let leaks = report.leaks.iter().flatten().filter(|leak| leak.trace == trace);
    (status != AssessmentStatus::NotAssessed).then_some(saturated(leaks.count() as u64))
}
