//! The memory of each device as counters.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;

use gpumemtrace_replay::RunHistory;
use gpumemtrace_replay::report::{CauseKind, GapPoint, WalkedEvent};

use crate::export::ExportRun;
use crate::export::series::{KnownSeries, LevelTracker, Levels};

use super::counter_bins::{CounterBins, CounterPoint, POINTS_PER_BIN};
use super::packets::PacketWriter;
use super::run_tracks::RunTracks;
use super::track_events::counter_packet;

/// Most points of all counters of a file. Perfetto's interface has about 2 GB of memory.
const MAX_POINTS: usize = 1_000_000;
/// Most bins of one counter.
const MAX_BINS: usize = 1 << 16;
/// Places of the counters below their process, after those of the timeline.
const FIRST_RANK: u64 = 10;
const RANKS_PER_DEVICE: u64 = 10;

/// Bins per counter and part of a file with this many devices in all its runs, and this many
/// parts.
pub(super) fn bins_per_counter(devices: usize, parts: usize) -> usize {
    // Three counters by event, and one for each cause of the gap, which has few points.
    (MAX_POINTS / (3 * POINTS_PER_BIN * devices.max(1) * parts.max(1))).min(MAX_BINS)
}

/// How to read the counters of a run.
#[derive(Clone, Debug)]
pub(super) struct CounterPlan {
    pub(super) max_bins: usize,
    /// Where bins begin anew, ascending, in nanoseconds since the start of recording.
    pub(super) cuts_ns: Vec<u64>,
}

/// What the counters of a window show.
#[derive(Debug, Default)]
pub(super) struct CounterSummary {
    /// Greatest width of bins that left out changes; `None` if the counters have all.
    pub(super) summed_width_ns: Option<u64>,
    /// The sequence number of the event that reached the peak, by device.
    pub(super) peaks: BTreeMap<u8, u64>,
}

/// The counters of one device.
#[derive(Debug)]
struct DeviceCounters {
    known: KnownSeries,
    /// Live, reserved and driver bytes.
    series: [CounterBins; 3],
    /// The levels before the window.
    before: Option<Levels>,
    /// Most live bytes of the window, and the event that reached them.
    peak: Option<(u64, u64)>,
    /// Number of cuts that are over.
    cuts: usize,
}

impl DeviceCounters {
    fn observe_event(&mut self, walked: &WalkedEvent<'_>, levels: Levels, cuts_ns: &[u64]) {
        while cuts_ns.get(self.cuts).is_some_and(|cut_ns| *cut_ns <= walked.time_ns) {
            self.series.iter_mut().for_each(CounterBins::cut);
            self.cuts += 1;
        }
        let live = if self.known.live { levels.live_bytes } else { levels.device_bytes };
        if self.peak.is_none_or(|(most, _)| live > most) {
            self.peak = Some((live, walked.event.seq));
        }
        self.observe(walked.time_ns, levels);
    }

    fn observe(&mut self, time_ns: u64, levels: Levels) {
        let values = [levels.live_bytes, levels.reserved_bytes, levels.device_bytes];
        for (series, bytes) in self.series.iter_mut().zip(values) {
            series.observe(time_ns, bytes);
        }
    }
}

/// Reads the events of a window and writes its counters.
pub(super) fn write_counters(
    packets: &mut PacketWriter<'_>,
    tracks: &RunTracks,
    run: &mut ExportRun,
    plan: &CounterPlan,
) -> anyhow::Result<CounterSummary> {
    let devices = read_counters(run, tracks.window_ns, plan)?;
    let mut summary = CounterSummary::default();
    for (ordinal, counters) in &devices {
        let known = [counters.known.live, counters.known.reserved, counters.known.device];
        let texts = [
            ("allocated", "Bytes in live blocks of PyTorch's allocator."),
            ("reserved", "Bytes reserved by PyTorch's allocator."),
            ("device memory", "Bytes that the driver handed to the process."),
        ];
        let rank = FIRST_RANK + u64::from(*ordinal) * RANKS_PER_DEVICE;
        for (((series, is_known), (name, description)), rank) in
            counters.series.iter().zip(known).zip(texts).zip(rank..)
        {
            if is_known {
                let name = format!("GPU {ordinal} {name}");
                let track = tracks.describe(packets, (&name, description), rank, true)?;
                write_points(packets, tracks, track, series.points())?;
                summary.summed_width_ns = summary.summed_width_ns.max(series.summed_width_ns());
            }
        }
        summary.peaks.extend(counters.peak.map(|(_, seq)| (*ordinal, seq)));
        write_gap(packets, tracks, &run.history, (*ordinal, rank + 3))?;
    }
    Ok(summary)
}

fn read_counters(
    run: &mut ExportRun,
    (begin_ns, end_ns): (u64, u64),
    plan: &CounterPlan,
) -> anyhow::Result<BTreeMap<u8, DeviceCounters>> {
    let counters = |history: &RunHistory, ordinal: u8| DeviceCounters {
        known: KnownSeries::of_device(history, ordinal),
        series: std::array::from_fn(|_| CounterBins::new(plan.max_bins)),
        before: Some(Levels::default()),
        peak: None,
        cuts: 0,
    };
    let ordinals = run.history.devices.iter().map(|device| device.ordinal);
    let mut devices: BTreeMap<u8, DeviceCounters> =
        ordinals.map(|ordinal| (ordinal, counters(&run.history, ordinal))).collect();
    let mut levels = LevelTracker::default();
    run.walk(&mut |walked| {
        levels.on_event(walked, |ordinal, levels| {
            let Some(device) = devices.get_mut(&ordinal) else { return };
            if walked.is_inside {
                if let Some(before) = device.before.take() {
                    device.observe(begin_ns, before);
                }
                device.observe_event(walked, levels, &plan.cuts_ns);
            } else {
                device.before = Some(levels);
            }
        });
        ControlFlow::Continue(())
    })?;
    for device in devices.values_mut() {
        if let Some(before) = device.before.take() {
            device.observe(begin_ns, before);
        }
    }
    // The last value holds to the end of the window.
    for series in devices.values_mut().flat_map(|device| &mut device.series) {
        series.repeat_last(end_ns);
    }
    Ok(devices)
}

/// Unused reserved bytes by cause, at the moments at which the analysis looked.
fn write_gap(
    packets: &mut PacketWriter<'_>,
    tracks: &RunTracks,
    history: &RunHistory,
    (ordinal, rank): (u8, u64),
) -> io::Result<()> {
    let device = history.devices.iter().find(|device| device.ordinal == ordinal);
    let (begin_ns, end_ns) = tracks.window_ns;
    let points: Vec<&GapPoint> = device
        .into_iter()
        .flat_map(|device| &device.gap)
        .filter(|point| (begin_ns..=end_ns).contains(&point.time_ns))
        .collect();
    let Some(first) = points.first() else { return Ok(()) };
    let group = format!("GPU {ordinal} unused reserved");
    let group = tracks.describe(packets, (&group, "Reserved and not requested, by cause."), rank, false)?;
    for (number, (cause, _)) in first.causes.iter().enumerate() {
        let values = || points.iter().map(|point| point.causes.get(number).map_or(0, |(_, bytes)| *bytes));
        if values().all(|bytes| bytes == 0) {
            continue;
        }
        let (name, description) = cause_text(*cause);
        let name = format!("GPU {ordinal} unused: {name}");
        let track = tracks.describe_below(packets, group, (&name, description), (number as u64, true))?;
        let times = points.iter().map(|point| point.time_ns);
        let course = times.zip(values()).map(|(time_ns, bytes)| CounterPoint { time_ns, bytes });
        write_points(packets, tracks, track, course)?;
    }
    Ok(())
}

fn write_points(
    packets: &mut PacketWriter<'_>,
    tracks: &RunTracks,
    track: u64,
    points: impl Iterator<Item = CounterPoint>,
) -> io::Result<()> {
    for point in points {
        let unix_ns = tracks.clock.unix_ns(point.time_ns);
        packets.write(&counter_packet(tracks.sequence, unix_ns, track, point.bytes))?;
    }
    Ok(())
}

fn cause_text(cause: CauseKind) -> (&'static str, &'static str) {
    match cause {
        CauseKind::Rounding => ("rounding", "Blocks are larger than requested."),
        CauseKind::PendingFree => ("pending free", "Freed blocks wait for another stream."),
        CauseKind::StrandedStream => ("other stream", "Free memory is cached for another stream."),
        CauseKind::StrandedPool => ("other pool", "Free memory is in another pool."),
        CauseKind::Pinned => ("pinned", "Free memory is in segments that live blocks pin."),
        CauseKind::Cache => ("cache", "Segments are fully free."),
        CauseKind::Unexplained => ("unexplained", "The trace does not contain the segments."),
    }
}
