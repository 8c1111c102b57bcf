//! Counters, slices and instants.

use crate::export::protobuf::Message;

use super::packets::{packet, packet_at};

/// The numbers of fields of `TrackEvent`.
pub(super) mod event {
    pub(in super::super) const CATEGORY_IIDS: u32 = 3;
    pub(in super::super) const DEBUG_ANNOTATIONS: u32 = 4;
    pub(super) const TYPE: u32 = 9;
    pub(in super::super) const NAME_IID: u32 = 10;
    pub(super) const TRACK_UUID: u32 = 11;
    pub(in super::super) const CATEGORIES: u32 = 22;
    pub(in super::super) const NAME: u32 = 23;
    pub(super) const COUNTER_VALUE: u32 = 30;
    pub(in super::super) const DOUBLE_COUNTER_VALUE: u32 = 44;
    pub(in super::super) const FLOW_IDS: u32 = 47;
    pub(in super::super) const TERMINATING_FLOW_IDS: u32 = 48;
}

/// The kind of a track event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventType {
    SliceBegin = 1,
    SliceEnd = 2,
    Instant = 3,
    Counter = 4,
}

/// A track event without a name.
pub(super) fn new_event(kind: EventType, track: u64) -> Message {
    let mut event = Message::new();
    event.uint(event::TYPE, kind as u64).uint(event::TRACK_UUID, track);
    event
}

/// The packet of a track event.
pub(super) fn event_packet(sequence: u32, unix_ns: u64, event: &Message) -> Message {
    let mut packet = packet_at(sequence, unix_ns);
    packet.message(packet::TRACK_EVENT, event);
    packet
}

/// A value of a counter, in bytes.
pub(super) fn counter_packet(sequence: u32, unix_ns: u64, track: u64, bytes: u64) -> Message {
    let mut event = new_event(EventType::Counter, track);
    // Damaged traces may sum up to more than the format holds.
    event.int(event::COUNTER_VALUE, i64::try_from(bytes).unwrap_or(i64::MAX));
    event_packet(sequence, unix_ns, &event)
}

/// Attaches a text to an event, shown when it is selected.
pub(super) fn add_text(event: &mut Message, name: &str, text: &str) {
    let mut annotation = Message::new();
    annotation.str(10, name).str(6, text);
    event.message(event::DEBUG_ANNOTATIONS, &annotation);
}

/// Attaches a number to an event, shown when it is selected.
pub(super) fn add_number(event: &mut Message, name: &str, number: u64) {
    let mut annotation = Message::new();
    annotation.str(10, name).uint(3, number);
    event.message(event::DEBUG_ANNOTATIONS, &annotation);
}
