//! From the `pid` and `tid` of a profile to tracks.
//!
//! torch.profiler uses the number of a GPU as a process and that of a stream as a thread, and names
//! as both. Only what it labels as a CPU, or what a run recorded, becomes a process.

use std::collections::BTreeMap;
use std::io;

use serde_json::Value;

use crate::export::perfetto::packets::PacketWriter;
use crate::export::perfetto::run_tracks::RunTracks;
use crate::export::perfetto::tracks::{StableIds, TrackSpec, process_packet, thread_packet, track_packet};

use super::reader::ProfileEvent;

/// A `pid` or `tid`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PlaceId {
    Number(i64),
    Name(String),
}

impl PlaceId {
    fn new(value: &Value) -> Self {
        match value {
            Value::Number(number) => {
                number.as_i64().map_or_else(|| Self::Name(number.to_string()), Self::Number)
            }
            Value::String(text) => Self::Name(text.clone()),
            Value::Null => Self::Number(0),
            other => Self::Name(other.to_string()),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Name(name) => name.clone(),
        }
    }
}

/// Place of the groups of GPUs below their process, after the counters.
const GROUP_RANK: u64 = 1 << 20;

/// What metadata events say of a process.
#[derive(Debug, Default)]
struct ProcessNames {
    name: Option<String>,
    labels: Option<String>,
}

/// The threads, streams and other rows of a profile.
#[derive(Debug, Default)]
pub(super) struct Places {
    numbers: BTreeMap<(PlaceId, PlaceId), usize>,
    processes: BTreeMap<PlaceId, ProcessNames>,
    threads: BTreeMap<(PlaceId, PlaceId), String>,
}

impl Places {
    /// The number of the place of an event.
    pub(super) fn place(&mut self, event: &ProfileEvent) -> usize {
        let next = self.numbers.len();
        *self.numbers.entry((PlaceId::new(&event.pid), PlaceId::new(&event.tid))).or_insert(next)
    }

    /// Takes the names of processes and threads.
    pub(super) fn on_metadata(&mut self, event: &ProfileEvent) {
        let Some(args) = &event.args else { return };
        let (pid, tid) = (PlaceId::new(&event.pid), PlaceId::new(&event.tid));
        let text = |key: &str| args.get(key).and_then(Value::as_str).map(str::to_owned);
        match event.name.as_str() {
            Some("process_name") => self.processes.entry(pid).or_default().name = text("name"),
            Some("process_labels") => self.processes.entry(pid).or_default().labels = text("labels"),
            Some("thread_name") => {
                self.threads.extend(text("name").map(|name| ((pid, tid), name)));
            }
            _ => {}
        }
    }

    /// True if events name this process.
    pub(super) fn has_process(&self, pid: u64) -> bool {
        let pid = PlaceId::Number(pid as i64);
        self.numbers.keys().any(|(place, _)| *place == pid)
    }

    /// Describes the tracks of all places with events; returns their numbers in the order of the
    /// places. `run` is the recorded run with its process id in the profile.
    pub(super) fn describe(
        &self,
        packets: &mut PacketWriter<'_>,
        (ids, sequence): (StableIds, u32),
        run: Option<(&RunTracks, u64)>,
    ) -> io::Result<Vec<u64>> {
        let mut processes: BTreeMap<&PlaceId, ProfileProcess> = BTreeMap::new();
        let mut tracks = vec![0; self.numbers.len()];
        for ((place, number), rank) in self.numbers.iter().zip(0u64..) {
            let (pid, tid) = place;
            let process = match processes.entry(pid) {
                std::collections::btree_map::Entry::Occupied(known) => *known.get(),
                std::collections::btree_map::Entry::Vacant(new) => {
                    *new.insert(self.describe_process(packets, (ids, sequence), pid, run)?)
                }
            };
            let uuid = ids.track(&format!("place {} {}", pid.text(), tid.text()));
            let name = self.threads.get(place).cloned();
            let packet = match (process.pid, tid) {
                (Some(pid), PlaceId::Number(tid)) if (1..=i64::from(i32::MAX)).contains(tid) => {
                    thread_packet(sequence, uuid, (pid, *tid as u64), name.as_deref())
                }
                _ => {
                    let name = name.unwrap_or_else(|| tid.text());
                    let spec = TrackSpec { uuid, name: &name, description: "", rank, is_counter: false };
                    track_packet(sequence, Some(process.track), spec)
                }
            };
            packets.write(&packet)?;
            tracks[*number] = uuid;
        }
        Ok(tracks)
    }

    fn describe_process(
        &self,
        packets: &mut PacketWriter<'_>,
        (ids, sequence): (StableIds, u32),
        pid: &PlaceId,
        run: Option<(&RunTracks, u64)>,
    ) -> io::Result<ProfileProcess> {
        let known = self.processes.get(pid);
        let labels = known.and_then(|names| names.labels.as_deref());
        let name = known.and_then(|names| names.name.as_deref());
        if let PlaceId::Number(number @ 1..) = pid {
            let number = *number as u64;
            if let Some((run, _)) = run.filter(|(_, run_pid)| *run_pid == number) {
                // The run has described it.
                return Ok(ProfileProcess { track: run.process(), pid: Some(run.pid) });
            }
            if labels.is_none_or(|labels| labels == "CPU") && i32::try_from(number).is_ok() {
                let track = ids.track(&format!("process {number}"));
                packets.write(&process_packet(sequence, track, number, name.unwrap_or("")))?;
                return Ok(ProfileProcess { track, pid: Some(number) });
            }
        }
        let track = ids.track(&format!("group {}", pid.text()));
        let text = pid.text();
        let name = labels.filter(|labels| !labels.is_empty()).or(name).unwrap_or(&text);
        let spec = TrackSpec { uuid: track, name, description: "", rank: GROUP_RANK, is_counter: false };
        packets.write(&track_packet(sequence, run.map(|(run, _)| run.process()), spec))?;
        Ok(ProfileProcess { track, pid: None })
    }
}

/// A process of a profile, or what it shows in the place of one.
#[derive(Clone, Copy, Debug)]
struct ProfileProcess {
    track: u64,
    /// Its process id in the file; `None` for a group of tracks.
    pid: Option<u64>,
}
