//! Steps and phases as slices; marks, errors and peaks as instants.

use std::io;

use gpumemtrace_replay::{Report, RunHistory};

use crate::render::wording::sites::format_site;
use crate::terminal::units::format_bytes;

use super::packets::PacketWriter;
use super::run_tracks::RunTracks;
use super::slices::{SliceEdge, SliceSpan, for_each_edge};
use super::track_events::{EventType, add_number, add_text, event, event_packet, new_event};

/// Places of the tracks below their process.
const STEPS_RANK: u64 = 0;
const PHASES_RANK: u64 = 1;
const MARKS_RANK: u64 = 2;
const ERRORS_RANK: u64 = 3;
const PEAKS_RANK: u64 = 4;

/// A slice of a run: name, begin and end.
type NamedSpan = (String, u64, u64);

/// Writes what happened in the run, as far as it is in the window.
pub(super) fn write_timeline(
    packets: &mut PacketWriter<'_>,
    tracks: &RunTracks,
    history: &RunHistory,
    (report, trace): (&Report, usize),
) -> io::Result<()> {
    let steps = step_spans(history, tracks.window_ns);
    write_slices(packets, tracks, ("Steps", STEPS_RANK), &steps)?;
    let phases = history.phase_turns.iter().filter_map(|turn| clip(turn, tracks.window_ns));
    write_slices(packets, tracks, ("Phases", PHASES_RANK), &phases.collect::<Vec<_>>())?;
    let marks = history.marks.iter().map(|(name, time_ns, _)| (*time_ns, named_instant(name)));
    write_instants(packets, tracks, ("Marks", MARKS_RANK), marks.collect())?;
    let ooms = report.oom.iter().flatten().filter(|oom| oom.trace == trace);
    let ooms = ooms.map(|oom| {
        let size = format_bytes(oom.requested_bytes);
        let mut instant = named_instant(&format!("Out of memory on GPU {}: {size}", oom.device));
        add_number(&mut instant, "requested_bytes", oom.requested_bytes);
        add_number(&mut instant, "live_bytes", oom.live_bytes);
        add_number(&mut instant, "reserved_bytes", oom.reserved_bytes);
        add_text(&mut instant, "site", &format_site(&oom.site));
        add_text(&mut instant, "why", &oom.why);
        (oom.time_ns, instant)
    });
    write_instants(packets, tracks, ("Out-of-memory errors", ERRORS_RANK), ooms.collect())?;
    let devices = report.devices.iter().filter(|device| device.trace == trace);
    let peaks = devices.filter_map(|device| {
        let live_bytes = device.peak.live_bytes?;
        let size = format_bytes(live_bytes);
        let mut instant = named_instant(&format!("Peak of GPU {}: {size}", device.device));
        add_number(&mut instant, "live_bytes", live_bytes);
        Some((device.peak.time_ns?, instant))
    });
    write_instants(packets, tracks, ("Peaks", PEAKS_RANK), peaks.collect())
}

/// The steps of the run, or groups of them where not each has a known start.
fn step_spans(history: &RunHistory, window_ns: (u64, u64)) -> Vec<NamedSpan> {
    let starts = &history.step_starts_ns;
    let Some(first_ns) = starts.first() else { return Vec::new() };
    let distance = history.step_distance.max(1);
    let ends = starts.iter().skip(1).copied().chain([history.duration_ns]);
    let numbered = starts.iter().zip(ends).zip(0u64..).map(|((begin_ns, end_ns), index)| {
        let number = 1 + index * distance;
        let last = (number + distance - 1).min(u64::from(history.steps));
        let name = if last > number { format!("steps {number} to {last}") } else { format!("step {number}") };
        (name, *begin_ns, end_ns)
    });
    let spans = [("step 0".to_owned(), 0, *first_ns)].into_iter().chain(numbered);
    spans.filter_map(|span| clip(&span, window_ns)).collect()
}

/// The part of a slice in the window.
fn clip(span: &NamedSpan, window_ns: (u64, u64)) -> Option<NamedSpan> {
    let (name, begin_ns, end_ns) = span;
    let begin_ns = (*begin_ns).max(window_ns.0);
    let end_ns = (*end_ns).min(window_ns.1);
    (begin_ns < end_ns).then(|| (name.clone(), begin_ns, end_ns))
}

fn named_instant(name: &str) -> NamedInstant {
    let mut instant = NamedInstant::new();
    instant.str(event::NAME, name);
    instant
}

/// An event that has its name and lacks its track.
type NamedInstant = crate::export::protobuf::Message;

fn write_slices(
    packets: &mut PacketWriter<'_>,
    tracks: &RunTracks,
    (name, rank): (&str, u64),
    spans: &[NamedSpan],
) -> io::Result<()> {
    let mut lanes: Vec<u64> = Vec::new();
    let indexed = spans.iter().enumerate();
    let indexed = indexed.map(|(index, (_, begin_ns, end_ns))| SliceSpan {
        begin_ns: *begin_ns as i64,
        end_ns: *end_ns as i64,
        index,
    });
    for_each_edge(indexed.collect(), &mut |time_ns, edge| {
        let (SliceEdge::Begin(_, lane) | SliceEdge::End(_, lane)) = edge;
        if lane == lanes.len() {
            let numbered = format!("{name} {}", lane + 1);
            let name = if lane == 0 { name } else { &numbered };
            lanes.push(tracks.describe(packets, (name, ""), rank, false)?);
        }
        let event = match edge {
            SliceEdge::Begin(index, _) => {
                let mut event = new_event(EventType::SliceBegin, lanes[lane]);
                event.str(event::NAME, &spans[index].0);
                event
            }
            SliceEdge::End(..) => new_event(EventType::SliceEnd, lanes[lane]),
        };
        packets.write(&event_packet(tracks.sequence, tracks.clock.unix_ns(time_ns as u64), &event))
    })
}

fn write_instants(
    packets: &mut PacketWriter<'_>,
    tracks: &RunTracks,
    (name, rank): (&str, u64),
    instants: Vec<(u64, NamedInstant)>,
) -> io::Result<()> {
    let (begin_ns, end_ns) = tracks.window_ns;
    let mut instants: Vec<_> = instants
        .into_iter()
        .zip(0..)
        .filter(|((time_ns, _), _)| (begin_ns..=end_ns).contains(time_ns))
        .collect();
    if instants.is_empty() {
        return Ok(());
    }
    instants.sort_unstable_by_key(|((time_ns, _), index)| (*time_ns, *index));
    let track = tracks.describe(packets, (name, ""), rank, false)?;
    for ((time_ns, named), _) in instants {
        let mut event = new_event(EventType::Instant, track);
        event.append(&named);
        packets.write(&event_packet(tracks.sequence, tracks.clock.unix_ns(time_ns), &event))?;
    }
    Ok(())
}
