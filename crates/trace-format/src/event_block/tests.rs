use super::*;
use crate::event::{Detail, Event};
use crate::ids::{ApiId, NodeId, ThreadId};
use proptest::collection::vec;
use proptest::prelude::*;
use std::ops::ControlFlow;

/// Few addresses, kinds and details, so that rows refer to each other; now and then any number at
/// all.
fn any_event() -> impl Strategy<Value = Event> {
    let number = || prop_oneof![4 => 0u64..5, 1 => any::<u64>()];
    let kind = prop_oneof![
        4 => prop::sample::select(vec![64u8, 65]),
        1 => prop::sample::select(vec![1u8, 2, 8, 9, 66, 67, 96]),
        1 => any::<u8>(),
    ];
    let numbers = (any::<u64>(), number(), number(), number(), [number(), number()]);
    let bytes = (kind, 0u8..3, any::<u8>(), 0u8..64);
    let detail = proptest::option::of([number(), number(), number()]);
    let stack = || prop_oneof![4 => 0u32..4, 1 => any::<u32>()];
    (numbers, bytes, any::<u16>(), any::<bool>(), 0u32..4, stack(), stack(), detail).prop_map(
        |(
            (seq, time, addr, size, aux),
            (kind, device, api, flags),
            result,
            in_flight,
            thread,
            py,
            nat,
            detail,
        )| Event {
            seq,
            time_ns: time,
            thread: ThreadId(thread),
            kind: EventKind(kind),
            device,
            api: ApiId(api),
            flags,
            result,
            in_flight,
            addr,
            size,
            aux,
            python_stack: NodeId(py),
            native_stack: NodeId(nat),
            detail: detail.map(|[requested_bytes, stream, pool]| Detail { requested_bytes, stream, pool }),
        },
    )
}

proptest! {
    #[test]
    fn rows_round_trip_with_times_rounded_down(
        events in vec(any_event(), 0..300), shift in 0u8..12, each in any::<prop::sample::Index>(),
    ) {
        let encoded = encode(&events, shift);
        prop_assert!(encoded.split_offsets.is_sorted());
        let expected: Vec<Event> = events
            .iter()
            .map(|event| Event { time_ns: event.time_ns >> shift << shift, ..*event })
            .collect();
        prop_assert_eq!(&decode(&encoded.payload).unwrap(), &expected);
        let mut chunks = Vec::new();
        let in_chunks = EventDecoder::default().decode(&encoded.payload, 1, &mut |events| {
            chunks.push(events);
            ControlFlow::Continue(Vec::new())
        });
        prop_assert_eq!((in_chunks, chunks.concat()), (Ok(()), expected));

        // A truncated payload is refused unless whole columns are missing, which read as zeros:
        // only the checksum of the block detects that.
        let truncated = decode(&encoded.payload[..each.index(encoded.payload.len())]);
        prop_assert!(truncated.is_err() || truncated.unwrap().len() == events.len());
    }

    #[test]
    fn torch_blocks_round_trip_all_with_a_detail_or_none(
        events in vec(any_event(), 0..300), is_free in vec(any::<bool>(), 300), has_details: bool,
    ) {
        let kind = |is_free: &bool| if *is_free { EventKind::BLOCK_FREE } else { EventKind::BLOCK_ALLOC };
        let detail = |event: &Event| has_details.then(|| event.detail.unwrap_or_default());
        let events: Vec<Event> = events
            .iter()
            .zip(&is_free)
            .map(|(event, is_free)| Event { kind: kind(is_free), detail: detail(event), ..*event })
            .collect();
        prop_assert_eq!(decode(&encode(&events, 0).payload).unwrap(), events);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
        let _ = decode(&bytes);
    }
}

fn block(kind: EventKind, addr: u64) -> Event {
    let detail = Some(Detail { requested_bytes: 700, stream: 5, pool: 9 });
    Event { addr, size: 1024, device: 1, detail, ..Event::new(kind) }
}

#[test]
fn free_in_the_block_of_its_allocation_stores_only_an_age() {
    let events = [
        block(EventKind::BLOCK_ALLOC, 0x7f00_0000_0000),
        block(EventKind::BLOCK_ALLOC, 0x7f00_1234_5600),
        block(EventKind::BLOCK_FREE, 0x7f00_0000_0000),
    ];
    let alone = encode(&events[..2], 0).payload.len();
    // Its kind, its flags, its age with the head of that column, and a byte or two of the aux
    // columns.
    assert!(encode(&events, 0).payload.len() < alone + 20);
    let mut other = events;
    other[2].size = 512;
    assert_eq!(decode(&encode(&other, 0).payload).unwrap(), other);
}

#[test]
fn age_beyond_the_allocations_is_refused() {
    let events = [block(EventKind::BLOCK_ALLOC, 4096), block(EventKind::BLOCK_FREE, 4096)];
    let sound = encode(&events, 0).payload;
    // Id, length, count, the age itself.
    let age = sound.windows(4).position(|bytes| bytes == [AGE, 2, 1, 1]).unwrap() + 3;
    assert!(decode(&sound).is_ok());
    let mut broken = sound;
    broken[age] = 2;
    assert_eq!(decode(&broken), Err(crate::wire::WireError::Range));
}

#[test]
fn allocation_at_a_freed_address_stores_a_reuse() {
    let at = |kind, addr: u64| block(kind, 0x7f00_0000_0000 + (addr << 16));
    let (alloc, free) = (EventKind::BLOCK_ALLOC, EventKind::BLOCK_FREE);
    let mut events = [
        at(alloc, 1),
        at(alloc, 22_222),
        at(free, 22_222),
        at(free, 1),
        // The address of the last free but one.
        at(alloc, 22_222),
        // That allocation is live: no REUSE.
        at(alloc, 22_222),
    ];
    let reuse = [REUSE, 5, 4, 0, 0, 2, 0];
    let sound = encode(&events, 0).payload;
    let at_column = sound.windows(reuse.len()).position(|bytes| bytes == reuse).expect("a column");
    assert_eq!(decode(&sound).unwrap(), events);
    let mut broken = sound;
    broken[at_column + 5] = 3;
    assert_eq!(decode(&broken), Err(crate::wire::WireError::Range));
    events[4].addr += 1 << 16;
    assert_eq!(decode(&encode(&events, 0).payload).unwrap(), events);
}
