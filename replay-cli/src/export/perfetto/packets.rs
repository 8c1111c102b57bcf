//! Packets of a Perfetto trace, with the numbers of the fields that we write.
//!
//! Schema: <https://github.com/google/perfetto/tree/main/protos/perfetto/trace>. A trace is one
//! message with the repeated field 1, so the packets can be written one after the other.

use std::io::{self, Write};

use crate::export::protobuf::Message;

/// The numbers of fields of `TracePacket`.
pub(super) mod packet {
    pub(in super::super) const CLOCK_SNAPSHOT: u32 = 6;
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SEQUENCE_ID: u32 = 10;
    pub(in super::super) const TRACK_EVENT: u32 = 11;
    pub(in super::super) const INTERNED_DATA: u32 = 12;
    pub(in super::super) const SEQUENCE_FLAGS: u32 = 13;
    pub(in super::super) const PROFILE_PACKET: u32 = 37;
    pub(super) const TIMESTAMP_CLOCK: u32 = 58;
    pub(in super::super) const TRACK_DESCRIPTOR: u32 = 60;
}

/// The values of the enum `BuiltinClock`.
pub(super) mod builtin_clock {
    pub(in super::super) const REALTIME: u64 = 1;
    pub(in super::super) const MONOTONIC: u64 = 3;
    pub(in super::super) const MONOTONIC_COARSE: u64 = 4;
}

/// The interned data of the sequence begins anew.
pub(super) const FLAG_STATE_CLEARED: u64 = 1;
/// The packet needs the interned data of its sequence.
pub(super) const FLAG_NEEDS_STATE: u64 = 2;

/// Writes the packets of one trace.
pub(super) struct PacketWriter<'a> {
    out: &'a mut dyn Write,
    /// Key and length of a packet.
    head: Message,
}

impl<'a> PacketWriter<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, head: Message::new() }
    }

    pub(super) fn write(&mut self, packet: &Message) -> io::Result<()> {
        self.head.clear();
        self.out.write_all(self.head.bytes(1, packet.as_bytes()).as_bytes())
    }
}

/// A packet of a sequence, without a time.
pub(super) fn new_packet(sequence: u32) -> Message {
    let mut packet = Message::new();
    packet.uint(packet::SEQUENCE_ID, u64::from(sequence));
    packet
}

/// A packet of a sequence at a moment of the wall clock, in nanoseconds since the Unix epoch.
pub(super) fn packet_at(sequence: u32, unix_ns: u64) -> Message {
    let mut packet = new_packet(sequence);
    packet.uint(packet::TIMESTAMP, unix_ns).uint(packet::TIMESTAMP_CLOCK, builtin_clock::REALTIME);
    packet
}
