//! Heap profiles: what each stack allocated and freed up to some moments of the run.
//!
//! Each device has a sequence of packets of its own, because readers keep the totals of a stack per
//! sequence, and would mix those of two devices.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use crate::symbolize::Resolver;
use gpumemtrace_replay::report::BlockLayer;

use crate::export::ExportRun;
use crate::export::protobuf::Message;

use super::clock::FileClock;
use super::heap_dumps::{DeviceHeap, HeapMoments, StackTotals, read_heaps};
use super::packets::{FLAG_NEEDS_STATE, FLAG_STATE_CLEARED, PacketWriter, new_packet, packet, packet_at};
use super::run_tracks::RunTracks;
use super::stack_table::InternedStacks;

/// Size of a packet after which another one begins.
const PACKET_BYTES: usize = 1 << 18;

/// Writes the profiles of all devices. Returns the number of marks and errors without one.
pub(super) fn write_heap_profiles(
    packets: &mut PacketWriter<'_>,
    tracks: &RunTracks,
    (run, resolver): (&mut ExportRun, &mut Resolver),
    (moments, clock): (&HeapMoments, FileClock),
) -> anyhow::Result<u64> {
    let heaps = read_heaps(run, moments)?;
    for (ordinal, heap) in &heaps {
        HeapWriter::new(tracks, *ordinal, heap).write(packets, clock, (run, resolver))?;
    }
    Ok(heaps.values().map(|heap| heap.omitted).sum())
}

/// Writes the profiles of one device.
struct HeapWriter<'a> {
    tracks: &'a RunTracks,
    heap: &'a DeviceHeap,
    heap_name: String,
    sequence: u32,
    /// Number of profile packets written.
    packets: u64,
}

impl<'a> HeapWriter<'a> {
    fn new(tracks: &'a RunTracks, ordinal: u8, heap: &'a DeviceHeap) -> Self {
        let layer = if heap.layer == BlockLayer::Torch { "tensors" } else { "driver" };
        let heap_name = format!("gpu{ordinal} {layer}");
        let sequence = tracks.ids.sequence(&heap_name);
        Self { tracks, heap, heap_name, sequence, packets: 0 }
    }

    fn write(
        mut self,
        packets: &mut PacketWriter<'_>,
        clock: FileClock,
        (run, resolver): (&ExportRun, &mut Resolver),
    ) -> io::Result<()> {
        let numbers = self.write_stacks(packets, (run, resolver))?;
        let mut known: HashMap<u32, StackTotals> = HashMap::new();
        let mut totals: BTreeMap<u64, StackTotals> = BTreeMap::new();
        for dump in &self.heap.dumps {
            let mut changed = BTreeSet::new();
            for (stack, now) in &dump.changed {
                let before = known.insert(*stack, *now).unwrap_or_default();
                // Several stacks may have equal frames.
                totals.entry(numbers[stack]).or_default().add_growth(before, *now);
                changed.insert(numbers[stack]);
            }
            let samples: Vec<_> = changed.into_iter().map(|number| (number, totals[&number])).collect();
            let unix_ns = self.tracks.clock.unix_ns(dump.time_ns);
            self.write_dump(packets, (unix_ns, clock.monotonic_ns(unix_ns)), &samples)?;
        }
        Ok(())
    }

    /// Writes the stacks of this device. Returns the number of each stack.
    fn write_stacks(
        &self,
        packets: &mut PacketWriter<'_>,
        (run, resolver): (&ExportRun, &mut Resolver),
    ) -> io::Result<HashMap<u32, u64>> {
        let stacks: BTreeSet<u32> =
            self.heap.dumps.iter().flat_map(|dump| dump.changed.keys().copied()).collect();
        let stacks: Vec<u32> = stacks.into_iter().collect();
        let mut table = InternedStacks::default();
        let mut numbers = HashMap::new();
        let mut data = Message::new();
        let mut flags = FLAG_STATE_CLEARED;
        // Sites hold the text of all their frames, so not all at once.
        for some in stacks.chunks(1024) {
            for (stack, site) in some.iter().zip(run.sites_of_stacks(some, resolver)) {
                numbers.insert(*stack, table.add(&site, &mut data));
                if data.as_bytes().len() >= PACKET_BYTES {
                    packets.write(&self.data_packet(&data, flags))?;
                    data.clear();
                    flags = FLAG_NEEDS_STATE;
                }
            }
        }
        packets.write(&self.data_packet(&data, flags))?;
        Ok(numbers)
    }

    fn data_packet(&self, data: &Message, flags: u64) -> Message {
        let mut packet = new_packet(self.sequence);
        packet.uint(packet::SEQUENCE_FLAGS, flags).message(packet::INTERNED_DATA, data);
        packet
    }

    /// Writes one profile, at a time on the wall clock and on the clock of profiles.
    fn write_dump(
        &mut self,
        packets: &mut PacketWriter<'_>,
        (unix_ns, monotonic_ns): (u64, u64),
        samples: &[(u64, StackTotals)],
    ) -> io::Result<()> {
        let mut rest = samples.iter().peekable();
        loop {
            let mut encoded = Message::new();
            while let Some((stack, totals)) = rest.next_if(|_| encoded.as_bytes().len() < PACKET_BYTES) {
                encoded.message(2, &sample(*stack, *totals));
            }
            let mut dump = Message::new();
            dump.uint(1, self.tracks.pid).uint(3, 1).uint(9, monotonic_ns).str(11, &self.heap_name);
            dump.append(&encoded);
            let is_continued = rest.peek().is_some();
            let mut profile = Message::new();
            profile.message(5, &dump).uint(6, u64::from(is_continued)).uint(7, self.packets);
            let mut packet = packet_at(self.sequence, unix_ns);
            packet.uint(packet::SEQUENCE_FLAGS, FLAG_NEEDS_STATE).message(packet::PROFILE_PACKET, &profile);
            packets.write(&packet)?;
            self.packets += 1;
            if !is_continued {
                return Ok(());
            }
        }
    }
}

fn sample(stack: u64, totals: StackTotals) -> Message {
    let mut sample = Message::new();
    sample.uint(1, stack);
    sample.uint(2, totals.allocated.bytes).uint(3, totals.freed.bytes);
    sample.uint(5, totals.allocated.blocks).uint(6, totals.freed.blocks);
    sample
}
