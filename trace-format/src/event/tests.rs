//! The ring form of events, and their names.

use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_record_comes_back_from_its_words(
        seq: u64, time_ns: u64, addr: u64, size: u64, aux: [u64; 2], py: u32, native: u32,
        kind in 1u8..200, device: u8, api: u8, flags: u8, result: u16, in_flight: bool, tid: u32,
    ) {
        let event = Event {
            seq, time_ns, thread: ThreadId(tid), kind: EventKind(kind), device, api: ApiId(api), flags, result,
            in_flight, addr, size, aux, python_stack: NodeId(py), native_stack: NodeId(native),
        };
        prop_assert_eq!(Event::from_words(&event.to_words(), ThreadId(tid)), Some(event));
    }
}

#[test]
fn an_empty_slot_is_no_event() {
    assert_eq!(Event::from_words(&[0; RECORD_WORDS], ThreadId(1)), None);
}

#[test]
fn every_named_kind_is_found_by_its_name_once() {
    for (kind, name) in EventKind::NAMED {
        assert_eq!(kind.name(), Some(*name));
        assert_eq!(EventKind::NAMED.iter().filter(|(_, n)| n == name).count(), 1, "{name}");
        assert!(!kind.is_definition());
    }
}
