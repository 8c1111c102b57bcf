//! Heap profiles: the live blocks by stack at some moments of the run.
//!
//! Each device has a sequence of packets of its own, because readers keep the totals of a stack per
//! sequence, and would mix those of two devices.

use std::io;

use gpumemtrace_replay::report::Site;
use gpumemtrace_replay::{AllocatorState, DeviceHistory, KeyframeReason, RunHistory};

use crate::export::protobuf::Message;

use super::clock::FileClock;
use super::heap_totals::{HeapTotals, StackTotals};
use super::packets::{FLAG_NEEDS_STATE, FLAG_STATE_CLEARED, PacketWriter, new_packet, packet, packet_at};
use super::run_tracks::RunTracks;
use super::stack_table::StackTable;

/// Size of a packet after which another one begins.
const PACKET_BYTES: usize = 1 << 18;

/// Writes the profiles of all devices. Returns the number of moments in the window for which the
/// history has no state.
pub(super) fn write_heap_profiles(
    packets: &mut PacketWriter<'_>,
    tracks: &RunTracks,
    history: &RunHistory,
    clock: FileClock,
) -> io::Result<()> {
    for device in &history.devices {
        let states = profiled_states(device, tracks.window_ns);
        if !states.is_empty() {
            DeviceProfile::new(tracks, device).write(packets, clock, &history.stacks, &states)?;
        }
    }
    Ok(())
}

/// The states that become profiles, by time: the last of each moment.
fn profiled_states(device: &DeviceHistory, (begin_ns, end_ns): (u64, u64)) -> Vec<&AllocatorState> {
    let mut states: Vec<&AllocatorState> = Vec::new();
    for state in &device.states {
        let is_profiled = match state.why {
            KeyframeReason::Peak
            | KeyframeReason::End
            | KeyframeReason::OutOfMemory
            | KeyframeReason::Mark => true,
            KeyframeReason::PeakReserved | KeyframeReason::LargestGap | KeyframeReason::Interval => false,
        };
        if is_profiled && (begin_ns..=end_ns).contains(&state.time_ns) {
            if states.last().is_some_and(|last| last.time_ns == state.time_ns) {
                states.pop();
            }
            states.push(state);
        }
    }
    states
}

/// The profiles of one device.
struct DeviceProfile<'a> {
    tracks: &'a RunTracks,
    device: &'a DeviceHistory,
    heap_name: String,
    sequence: u32,
    /// Number of profile packets written.
    packets: u64,
}

impl<'a> DeviceProfile<'a> {
    fn new(tracks: &'a RunTracks, device: &'a DeviceHistory) -> Self {
        let layer = if device.has_torch { "tensors" } else { "driver" };
        let heap_name = format!("gpu{} {layer}", device.ordinal);
        let sequence = tracks.ids.sequence(&heap_name);
        Self { tracks, device, heap_name, sequence, packets: 0 }
    }

    fn write(
        mut self,
        packets: &mut PacketWriter<'_>,
        clock: FileClock,
        stacks: &[(Site, usize)],
        states: &[&AllocatorState],
    ) -> io::Result<()> {
        let numbers = self.write_stacks(packets, stacks, states)?;
        let mut totals = HeapTotals::new(&self.device.blocks, &numbers);
        for state in states {
            let unix_ns = self.tracks.clock.unix_ns(state.time_ns);
            let changed = totals.advance(state);
            self.write_dump(packets, (unix_ns, clock.monotonic_ns(unix_ns)), &changed)?;
        }
        Ok(())
    }

    /// Writes the stacks of this device. Returns the number of each stack of the history.
    fn write_stacks(
        &self,
        packets: &mut PacketWriter<'_>,
        stacks: &[(Site, usize)],
        states: &[&AllocatorState],
    ) -> io::Result<Vec<usize>> {
        let mut is_used = vec![false; stacks.len()];
        let in_states = states.iter().flat_map(|state| state.blocks().map(|(_, _, stack)| stack));
        for stack in self.device.blocks.rows.iter().map(|row| row.stack).chain(in_states) {
            is_used[stack as usize] = true;
        }
        let mut table = StackTable::default();
        let mut numbers = vec![0; stacks.len()];
        let mut data = Message::new();
        let mut flags = FLAG_STATE_CLEARED;
        let used = stacks.iter().zip(&is_used).enumerate().filter(|(_, (_, is_used))| **is_used);
        for (index, ((site, _), _)) in used {
            numbers[index] = table.add(site, &mut data) as usize;
            if data.as_bytes().len() >= PACKET_BYTES {
                packets.write(&self.data_packet(&data, flags))?;
                data.clear();
                flags = FLAG_NEEDS_STATE;
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
        changed: &[(usize, StackTotals)],
    ) -> io::Result<()> {
        let mut samples = Message::new();
        let mut changed = changed.iter().peekable();
        loop {
            while let Some((stack, totals)) = changed.next_if(|_| samples.as_bytes().len() < PACKET_BYTES) {
                samples.message(2, &sample(*stack, *totals));
            }
            let mut dump = Message::new();
            dump.uint(1, self.tracks.pid).uint(3, 1).uint(9, monotonic_ns).str(11, &self.heap_name);
            dump.append(&samples);
            samples.clear();
            let mut profile = Message::new();
            profile.message(5, &dump).uint(6, u64::from(changed.peek().is_some())).uint(7, self.packets);
            let mut packet = packet_at(self.sequence, unix_ns);
            packet.uint(packet::SEQUENCE_FLAGS, FLAG_NEEDS_STATE).message(packet::PROFILE_PACKET, &profile);
            packets.write(&packet)?;
            self.packets += 1;
            if changed.peek().is_none() {
                return Ok(());
            }
        }
    }
}

fn sample(stack: usize, totals: StackTotals) -> Message {
    let mut sample = Message::new();
    sample.uint(1, stack as u64);
    sample.uint(2, totals.allocated.bytes).uint(3, totals.freed.bytes);
    sample.uint(5, totals.allocated.blocks).uint(6, totals.freed.blocks);
    sample
}
