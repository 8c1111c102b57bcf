//! A profile of torch.profiler on the timeline of the runs.
//!
//! The file is read twice. Its slices become begins and ends, which readers sort by time, and those
//! of equal time by their order in the file. So all ends are written before all begins: a slice
//! that ends when another one begins is then closed. A slice of length 0 is not split.

mod annotations;
mod gzip;
mod places;
mod reader;
mod survey;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use gpumemtrace_replay::report::TraceInfo;

use crate::export::protobuf::Message;

use super::numbering::Numbering;
use super::packets::{FLAG_NEEDS_STATE, FLAG_STATE_CLEARED, PacketWriter, new_packet, packet, packet_at};
use super::run_tracks::RunTracks;
use super::slices::{SliceEdge, SliceSpan, for_each_edge};
use super::track_events::{EventType, event, event_packet, new_event};
use super::tracks::{StableIds, TrackSpec, track_packet};
use annotations::add_argument;
use reader::{ProfileEvent, read_profile};
use survey::{ProfileSurvey, SliceCounter, survey_profile};

/// Most names that are interned, and the longest of them in bytes.
const MAX_NAMES: usize = 1 << 16;
const MAX_NAME_BYTES: usize = 256;

/// A profile that was read once.
pub(super) struct MergedProfile {
    path: PathBuf,
    ids: StableIds,
    survey: ProfileSurvey,
    /// Index of the run that it is of.
    pub(super) run: Option<usize>,
    /// Its process id in the profile.
    pid: u64,
    /// Its time in that run, in nanoseconds since the start of recording. `None` if it lies outside
    /// the window.
    pub(super) run_span_ns: Option<(u64, u64)>,
}

impl MergedProfile {
    /// Reads a profile and finds its run: that of the same rank, else of the same process.
    pub(super) fn read(
        path: &Path,
        (tracks, infos): (&[RunTracks], &[TraceInfo]),
        number: u32,
    ) -> anyhow::Result<Self> {
        let ids = StableIds::new(&format!("profile {number}"));
        let survey = survey_profile(path, ids)?;
        let known = infos.iter().enumerate().filter_map(|(run, info)| Some((run, info, info.pid?)));
        let runs: Vec<_> = known.filter(|(_, _, pid)| survey.places.has_process(*pid)).collect();
        let rank = survey.head.rank;
        let of_rank = runs.iter().find(|(_, info, _)| rank.is_some() && info.rank == rank);
        let of_process = of_rank.or(runs.first());
        let run = of_process.map(|(run, ..)| *run);
        let run_span_ns = run.zip(survey.span_ns).and_then(|(run, (first_ns, last_ns))| {
            let RunTracks { clock, window_ns: (begin_ns, end_ns), .. } = tracks[run];
            let time_ns = |time_ns| clock.since_start_ns(survey.unix_ns(time_ns));
            let (first_ns, last_ns) = (time_ns(first_ns), time_ns(last_ns));
            (first_ns <= end_ns && last_ns > begin_ns).then_some((first_ns, last_ns))
        });
        let ids = run.map_or(ids, |run| tracks[run].ids.below(&format!("profile {number}")));
        let pid = of_process.map_or(0, |(_, _, pid)| *pid);
        Ok(Self { path: path.to_owned(), ids, survey, run, pid, run_span_ns })
    }

    /// Reads the profile again and writes its events. Returns what is left out, one sentence each.
    pub(super) fn write(
        mut self,
        packets: &mut PacketWriter<'_>,
        runs: &[RunTracks],
    ) -> anyhow::Result<Vec<String>> {
        let slices = std::mem::take(&mut self.survey.slices);
        let sequence = self.ids.sequence("profile");
        let run = self.run.map(|run| (&runs[run], self.pid));
        let tracks = self.survey.places.describe(packets, (self.ids, sequence), run)?;
        let mut writer = ProfileWriter {
            packets,
            survey: &self.survey,
            ids: self.ids,
            sequence,
            tracks,
            lanes: HashMap::new(),
            counters: HashSet::new(),
            names: Numbering::default(),
            categories: Numbering::default(),
        };
        writer.write_ends(slices)?;
        writer.write_state_cleared()?;
        let (mut slices, mut places) = (SliceCounter::default(), places::Places::default());
        read_profile(&self.path, &mut |event: ProfileEvent| {
            // Places have the numbers of the first reading: both see the same events.
            writer.write_event(&event, &mut slices, &mut places)
        })?;
        Ok(self.notes())
    }

    fn notes(&self) -> Vec<String> {
        let path = self.path.display();
        let omitted = self.survey.omitted.iter();
        let mut notes: Vec<String> =
            omitted.map(|(what, count)| format!("{path}: {count} {what} are left out")).collect();
        if self.run.is_none() {
            notes.push(format!("{path} belongs to none of the recorded processes"));
        } else if self.run_span_ns.is_none() && self.survey.span_ns.is_some() {
            notes.push(format!("{path} has no events in the exported part; its clock may differ"));
        }
        notes
    }
}

/// Writes the events of one profile.
struct ProfileWriter<'a, 'b> {
    packets: &'a mut PacketWriter<'b>,
    survey: &'a ProfileSurvey,
    ids: StableIds,
    sequence: u32,
    /// The track of each place.
    tracks: Vec<u64>,
    /// The tracks of slices that overlap others.
    lanes: HashMap<usize, u64>,
    /// Counters that are described.
    counters: HashSet<u64>,
    names: Numbering<String>,
    categories: Numbering<String>,
}

impl ProfileWriter<'_, '_> {
    fn unix_ns(&self, time_ns: i64) -> u64 {
        self.survey.unix_ns(time_ns)
    }

    /// Writes the ends of all slices that have a length, and chooses the tracks of those that
    /// overlap.
    fn write_ends(&mut self, slices: BTreeMap<usize, Vec<SliceSpan>>) -> io::Result<()> {
        for (place, spans) in slices {
            let mut lanes = vec![self.tracks[place]];
            for_each_edge(spans, &mut |time_ns, edge| {
                let (SliceEdge::Begin(_, lane) | SliceEdge::End(_, lane)) = edge;
                if lane == lanes.len() {
                    lanes.push(self.describe_lane(lanes[0], lane)?);
                }
                match edge {
                    SliceEdge::Begin(index, 1..) => _ = self.lanes.insert(index, lanes[lane]),
                    SliceEdge::End(begin_ns, _) if begin_ns < time_ns => {
                        self.write_end(time_ns, lanes[lane])?;
                    }
                    SliceEdge::Begin(..) | SliceEdge::End(..) => {}
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn describe_lane(&mut self, parent: u64, lane: usize) -> io::Result<u64> {
        let uuid = self.ids.track(&format!("lane {parent} {lane}"));
        let name = format!("overlapping {lane}");
        let rank = lane as u64;
        let spec = TrackSpec { uuid, name: &name, description: "", rank, is_counter: false };
        self.packets.write(&track_packet(self.sequence, Some(parent), spec))?;
        Ok(uuid)
    }

    fn write_end(&mut self, time_ns: i64, track: u64) -> io::Result<()> {
        let end = new_event(EventType::SliceEnd, track);
        let packet = event_packet(self.sequence, self.unix_ns(time_ns), &end);
        self.packets.write(&packet)
    }

    fn write_state_cleared(&mut self) -> io::Result<()> {
        let mut packet = new_packet(self.sequence);
        packet.uint(packet::SEQUENCE_FLAGS, FLAG_STATE_CLEARED);
        self.packets.write(&packet)
    }

    fn write_event(
        &mut self,
        event: &ProfileEvent,
        slices: &mut SliceCounter,
        places: &mut places::Places,
    ) -> io::Result<()> {
        let Some(time_ns) = event.time_ns().filter(|_| event.ph != "M") else { return Ok(()) };
        match (event.ph.as_str(), event.duration_ns()) {
            ("X", Some(duration_ns)) => {
                let place = places.place(event);
                let number = slices.count(place, time_ns);
                let track = self.lanes.get(&number).copied().unwrap_or(self.tracks[place]);
                let mut begin = new_event(EventType::SliceBegin, track);
                for flow in self.survey.flows.get(&number).into_iter().flatten() {
                    let field = if flow.is_target { event::TERMINATING_FLOW_IDS } else { event::FLOW_IDS };
                    begin.fixed64(field, flow.id);
                }
                self.write_named(event, time_ns, &mut begin)?;
                if duration_ns == 0 {
                    self.write_end(time_ns, track)?;
                }
                Ok(())
            }
            ("s" | "t" | "f", _) => {
                places.place(event);
                Ok(())
            }
            ("i" | "I" | "R", _) => {
                let place = places.place(event);
                let mut instant = new_event(EventType::Instant, self.tracks[place]);
                self.write_named(event, time_ns, &mut instant)
            }
            ("C", _) => {
                let place = places.place(event);
                self.write_counter(event, time_ns, self.tracks[place])
            }
            _ => Ok(()),
        }
    }

    /// Writes an event with the name, the category and the arguments of `source`.
    fn write_named(&mut self, source: &ProfileEvent, time_ns: i64, event: &mut Message) -> io::Result<()> {
        let mut data = Message::new();
        let name = source.name.as_str().unwrap_or_default();
        let fields = InternFields { by_number: event::NAME_IID, by_name: event::NAME, interned: EVENT_NAMES };
        intern(&mut self.names, name, fields, (event, &mut data));
        if let Some(category) = source.cat.as_str() {
            let fields = InternFields {
                by_number: event::CATEGORY_IIDS,
                by_name: event::CATEGORIES,
                interned: EVENT_CATEGORIES,
            };
            intern(&mut self.categories, category, fields, (event, &mut data));
        }
        for (name, value) in source.args.iter().flatten() {
            add_argument(event, name, value);
        }
        let mut packet = packet_at(self.sequence, self.unix_ns(time_ns));
        packet.uint(packet::SEQUENCE_FLAGS, FLAG_NEEDS_STATE).message(packet::TRACK_EVENT, event);
        if !data.as_bytes().is_empty() {
            packet.message(packet::INTERNED_DATA, &data);
        }
        self.packets.write(&packet)
    }

    /// Writes the values of a counter event, each on a track of its own.
    fn write_counter(&mut self, source: &ProfileEvent, time_ns: i64, parent: u64) -> io::Result<()> {
        for (key, value) in source.args.iter().flatten() {
            let Some(value) = value.as_f64() else { continue };
            let name = format!("{} {key}", source.name.as_str().unwrap_or_default());
            let name = name.trim_end();
            let uuid = self.ids.track(&format!("counter {parent} {name}"));
            if self.counters.insert(uuid) {
                self.packets.write(&counter_descriptor(self.sequence, uuid, parent, name))?;
            }
            let mut counter = new_event(EventType::Counter, uuid);
            counter.double(event::DOUBLE_COUNTER_VALUE, value);
            let packet = event_packet(self.sequence, self.unix_ns(time_ns), &counter);
            self.packets.write(&packet)?;
        }
        Ok(())
    }
}

/// The numbers of fields of `InternedData`.
const EVENT_CATEGORIES: u32 = 1;
const EVENT_NAMES: u32 = 2;

/// The numbers of the fields for one kind of name.
#[derive(Clone, Copy)]
struct InternFields {
    /// The field of an event for the number of the name.
    by_number: u32,
    /// The field of an event for the name itself.
    by_name: u32,
    /// The field of `InternedData` for new names.
    interned: u32,
}

/// Adds a name to an event: by its number if it is short, else as it is. A new number is added to
/// `data`.
fn intern(
    numbers: &mut Numbering<String>,
    name: &str,
    fields: InternFields,
    (event, data): (&mut Message, &mut Message),
) {
    if name.len() > MAX_NAME_BYTES || numbers.len() >= MAX_NAMES {
        event.str(fields.by_name, name);
        return;
    }
    let (number, is_new) = numbers.number(name.to_owned());
    event.uint(fields.by_number, number);
    if is_new {
        let mut entry = Message::new();
        entry.uint(1, number).str(2, name);
        data.message(fields.interned, &entry);
    }
}

/// Describes a counter without a unit.
fn counter_descriptor(sequence: u32, uuid: u64, parent: u64, name: &str) -> Message {
    let mut track = Message::new();
    track.uint(1, uuid).uint(5, parent).str(2, name).message(8, &Message::new());
    let mut packet = new_packet(sequence);
    packet.message(packet::TRACK_DESCRIPTOR, &track);
    packet
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    const PROFILE: &str = r#"{"baseTimeNanoseconds": 1790857026000000000, "distributedInfo": {"rank": 1},
        "traceEvents": [
        {"ph": "M", "name": "process_name", "ts": 1.5, "pid": 7, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 8, "ts": 10.001, "dur": 5,
         "args": {"External id": 3, "Dims": [[1, 2], []], "none": null, "deep": {"a": -1.5}}},
        {"ph": "s", "id": 1, "pid": 7, "tid": 8, "ts": 10.001, "cat": "ac2g", "name": "ac2g"},
        {"ph": "X", "name": "overlaps", "pid": 7, "tid": 8, "ts": 12, "dur": 50},
        {"ph": "X", "name": "kernel", "pid": 0, "tid": 7, "ts": "20", "dur": 0},
        {"ph": "f", "id": 1, "pid": 0, "tid": 7, "ts": "20", "cat": "ac2g", "name": "ac2g", "bp": "e"},
        {"ph": "C", "name": "memory", "pid": 7, "tid": 8, "ts": 30, "args": {"bytes": 5, "text": "x"}},
        {"ph": "i", "name": "marker", "pid": "Traces", "tid": "Trace", "ts": 31, "s": "g"},
        {"ph": "b", "name": "asynchronous", "id": 2, "pid": 7, "tid": 8, "ts": 32}]}"#;

    /// The packets of a profile, and the notes.
    fn merged(profile: &[u8]) -> anyhow::Result<(Vec<u8>, Vec<String>)> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(profile)?;
        let mut out = Vec::new();
        let notes =
            MergedProfile::read(file.path(), (&[], &[]), 0)?.write(&mut PacketWriter::new(&mut out), &[])?;
        Ok((out, notes))
    }

    fn contains(bytes: &[u8], text: &str) -> bool {
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    }

    #[test]
    fn every_kind_of_event_is_written_or_counted() {
        let (out, notes) = merged(PROFILE.as_bytes()).unwrap();
        for text in ["aten::mm", "overlapping 1", "kernel", "memory bytes", "marker", "GPU 0", "External id"]
        {
            assert!(contains(&out, text), "{text}");
        }
        assert!(!contains(&out, "asynchronous"));
        assert!(notes[0].ends_with("1 events of phase \"b\" are left out"), "{notes:?}");
        assert!(notes[1].ends_with("belongs to none of the recorded processes"), "{notes:?}");
    }

    #[test]
    fn list_of_events_is_a_profile() {
        let list = &PROFILE[PROFILE.find('[').unwrap()..PROFILE.len() - 1];
        assert!(contains(&merged(list.as_bytes()).unwrap().0, "aten::mm"));
    }

    proptest! {
        /// A damaged profile is an error or is read, and never ends the command otherwise.
        #[test]
        fn damaged_profiles_are_errors_or_read(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            length in any::<prop::sample::Index>(),
            is_cut: bool,
        ) {
            let mut profile = PROFILE.as_bytes().to_vec();
            for (at, byte) in changes {
                let at = at.index(profile.len());
                // Digits stay digits, so that most damage is valid JSON.
                profile[at] = if profile[at].is_ascii_digit() { b'0' + byte % 10 } else { byte };
            }
            if is_cut {
                profile.truncate(length.index(profile.len()));
            }
            if let Err(error) = merged(&profile) {
                prop_assert!(format!("{error}").contains("is not a trace of torch.profiler"), "{error}");
            }
        }
    }
}
