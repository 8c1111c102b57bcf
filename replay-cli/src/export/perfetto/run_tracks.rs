//! The process of a run, and the tracks below it.

use std::io;

use super::clock::RunClock;
use super::packets::PacketWriter;
use super::tracks::{StableIds, TrackSpec, process_packet, track_packet};

/// The place of a run in the file.
#[derive(Clone, Debug)]
pub(super) struct RunTracks {
    pub(super) ids: StableIds,
    /// The sequence of its packets, except those of heap profiles.
    pub(super) sequence: u32,
    pub(super) pid: u64,
    pub(super) clock: RunClock,
    /// The exported part, in nanoseconds since the start of recording.
    pub(super) window_ns: (u64, u64),
}

impl RunTracks {
    /// The number of the track of the process.
    pub(super) fn process(&self) -> u64 {
        self.ids.track("process")
    }

    /// Describes the process of the run, by its name.
    pub(super) fn describe_process(&self, packets: &mut PacketWriter<'_>, name: &str) -> io::Result<()> {
        packets.write(&process_packet(self.sequence, self.process(), self.pid, name))
    }

    /// Describes a track of the process by its name and its description; returns its number.
    pub(super) fn describe(
        &self,
        packets: &mut PacketWriter<'_>,
        text: (&str, &str),
        rank: u64,
        is_counter: bool,
    ) -> io::Result<u64> {
        self.describe_below(packets, self.process(), text, (rank, is_counter))
    }

    /// [`Self::describe`] for a track below another one.
    pub(super) fn describe_below(
        &self,
        packets: &mut PacketWriter<'_>,
        parent: u64,
        (name, description): (&str, &str),
        (rank, is_counter): (u64, bool),
    ) -> io::Result<u64> {
        let uuid = self.ids.track(name);
        let spec = TrackSpec { uuid, name, description, rank, is_counter };
        packets.write(&track_packet(self.sequence, Some(parent), spec))?;
        Ok(uuid)
    }
}
