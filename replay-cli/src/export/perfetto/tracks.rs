//! Tracks: the processes, and the rows of the timeline below them.
//!
//! Numbers of tracks and sequences are hashes of the run and of a name. So they are the same in
//! each export of a trace, and differ between runs.

use crate::export::protobuf::Message;

use super::packets::{new_packet, packet};

/// The numbers of fields of `TrackDescriptor`.
mod descriptor {
    pub(super) const UUID: u32 = 1;
    pub(super) const NAME: u32 = 2;
    pub(super) const PROCESS: u32 = 3;
    pub(super) const THREAD: u32 = 4;
    pub(super) const PARENT_UUID: u32 = 5;
    pub(super) const COUNTER: u32 = 8;
    pub(super) const CHILD_ORDERING: u32 = 11;
    pub(super) const SIBLING_ORDER_RANK: u32 = 12;
    pub(super) const DESCRIPTION: u32 = 14;
}

/// The unit `UNIT_SIZE_BYTES` of a counter.
const UNIT_BYTES: u64 = 3;
/// Children have the order of their ranks.
const ORDERING_EXPLICIT: u64 = 3;

/// Makes numbers that are the same in each export of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct StableIds {
    hash: u64,
}

impl StableIds {
    /// The numbers of what `name` identifies.
    pub(super) fn new(name: &str) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325 }.below(name)
    }

    /// The numbers of a part.
    pub(super) fn below(self, name: &str) -> Self {
        // FNV-1a. The zero byte separates names.
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        Self { hash: name.as_bytes().iter().chain(&[0]).fold(self.hash, step) }
    }

    /// The number of a track.
    pub(super) fn track(self, name: &str) -> u64 {
        self.below(name).hash.max(1)
    }

    /// The number of a sequence of packets.
    pub(super) fn sequence(self, name: &str) -> u32 {
        let hash = self.below(name).hash;
        ((hash >> 32) as u32 ^ hash as u32).max(1)
    }
}

/// A track to be described.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrackSpec<'a> {
    pub(super) uuid: u64,
    pub(super) name: &'a str,
    /// Shown on hover; empty for none.
    pub(super) description: &'a str,
    /// Place among its siblings; the least is first.
    pub(super) rank: u64,
    pub(super) is_counter: bool,
}

/// Describes a process. Children are shown by their ranks.
pub(super) fn process_packet(sequence: u32, uuid: u64, pid: u64, name: &str) -> Message {
    let mut process = Message::new();
    process.uint(1, pid).str(6, name);
    let mut track = Message::new();
    track.uint(descriptor::UUID, uuid).message(descriptor::PROCESS, &process);
    track.uint(descriptor::CHILD_ORDERING, ORDERING_EXPLICIT);
    describe(sequence, &track)
}

/// Describes a thread of a process.
pub(super) fn thread_packet(sequence: u32, uuid: u64, (pid, tid): (u64, u64), name: Option<&str>) -> Message {
    let mut thread = Message::new();
    thread.uint(1, pid).uint(2, tid);
    if let Some(name) = name {
        thread.str(5, name);
    }
    let mut track = Message::new();
    track.uint(descriptor::UUID, uuid).message(descriptor::THREAD, &thread);
    describe(sequence, &track)
}

/// Describes a track below another one, or at the top.
pub(super) fn track_packet(sequence: u32, parent: Option<u64>, spec: TrackSpec<'_>) -> Message {
    let mut track = Message::new();
    track.uint(descriptor::UUID, spec.uuid);
    if let Some(parent) = parent {
        track.uint(descriptor::PARENT_UUID, parent);
    }
    track.str(descriptor::NAME, spec.name);
    if !spec.description.is_empty() {
        track.str(descriptor::DESCRIPTION, spec.description);
    }
    if spec.is_counter {
        let mut counter = Message::new();
        counter.uint(3, UNIT_BYTES);
        track.message(descriptor::COUNTER, &counter);
    }
    track.uint(descriptor::CHILD_ORDERING, ORDERING_EXPLICIT);
    track.uint(descriptor::SIBLING_ORDER_RANK, spec.rank);
    describe(sequence, &track)
}

fn describe(sequence: u32, track: &Message) -> Message {
    let mut packet = new_packet(sequence);
    packet.message(packet::TRACK_DESCRIPTOR, track);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_on_run_and_name() {
        let (one, other) = (StableIds::new("run 1"), StableIds::new("run 2"));
        assert_eq!(one.track("Steps"), StableIds::new("run 1").track("Steps"));
        assert_ne!(one.track("Steps"), one.track("Phases"));
        assert_ne!(one.track("Steps"), other.track("Steps"));
        assert_ne!(one.sequence("a"), one.sequence("b"));
        assert_ne!(StableIds::new("ab").track("c"), StableIds::new("a").track("bc"));
    }
}
