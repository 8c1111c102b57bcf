use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn record_round_trips(
        seq: u64, time_ns: u64, addr: u64, size: u64, aux: [u64; 2], py: u32, native: u32,
        kind in 1u8..200, device: u8, api: u8, flags in 0u8..64, result: u16, in_flight: bool, tid: u32,
    ) {
        let event = Event {
            seq, time_ns, thread: ThreadId(tid), kind: EventKind(kind), device, api: ApiId(api), flags, result,
            in_flight, addr, size, aux, python_stack: NodeId(py), native_stack: NodeId(native), detail: None,
        };
        prop_assert_eq!(Event::from_words(&event.to_words(), ThreadId(tid)), Some(event));
    }
}

proptest! {
    #[test]
    fn detail_round_trips_in_event_record_or_own_record(
        addr in 0u64..1 << 48, size in 0u64..1 << 48, rounding in 0u64..1 << 25, stream in number(), high in number(),
        low in number(), unknown_pool: bool,
    ) {
        let pool = if unknown_pool { NO_POOL } else { (high & 0xffff_ffff) << 32 | low & 0xffff_ffff };
        let detail = Detail { requested_bytes: size.saturating_sub(rounding), stream, pool };
        let event = Event {
            seq: 1, time_ns: 2, thread: ThreadId(3), kind: EventKind::BLOCK_FREE, device: 4, api: ApiId(0),
            flags: FLAG_FREED_AT_ONCE, result: 0, in_flight: false, addr, size, aux: [size, addr], python_stack: NodeId(5),
            native_stack: NodeId(6), detail: Some(detail),
        };
        let read = Event::from_words(&event.to_words(), ThreadId(3));
        match event.separate_detail_record() {
            None => prop_assert_eq!(read, Some(event)),
            Some(apart) => {
                prop_assert_eq!(read, Some(Event { detail: None, ..event }));
                prop_assert_eq!(Detail::from_words(&apart), detail);
            }
        }
    }
}

/// Like streams and pool ids, and at the limits of the packed fields.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0u64), 0u64..10, Just(0x7ffe), Just(0x7fff), Just(0x8000), 0u64..1 << 48, any::<u64>()]
}

#[test]
fn typical_detail_fits_in_event_record() {
    let detail = Detail { requested_bytes: 4004, stream: 0x7f12_3456_7890, pool: 3 << 32 };
    let event = Event {
        kind: EventKind::BLOCK_ALLOC,
        addr: 0x7f00_0000_0000,
        size: 4096,
        aux: [1 << 36, 1 << 37],
        detail: Some(detail),
        ..Event::from_words(&[0, 0, 0, 0, 0, 0, 0, 1 << 48 | 64], ThreadId(1)).unwrap()
    };
    assert_eq!(event.separate_detail_record(), None);
    assert_eq!(Event::from_words(&event.to_words(), ThreadId(1)), Some(event));
}

#[test]
fn empty_record_is_no_event() {
    assert_eq!(Event::from_words(&[0; RECORD_WORDS], ThreadId(1)), None);
}

#[test]
fn kind_names_are_unique() {
    for (kind, name) in EventKind::NAMED {
        assert_eq!(kind.name(), Some(*name));
        assert_eq!(EventKind::NAMED.iter().filter(|(_, n)| n == name).count(), 1, "{name}");
        assert!(!kind.is_ring_only());
    }
}
