//! Which returned segments are requests of their own.

use gpumemtrace_format::event::Detail;
use gpumemtrace_format::{Event, EventKind};

use super::*;
use crate::tests::run::walked;

fn requests_of(events: &[(EventKind, u32)]) -> Vec<Request> {
    requests_in_pools(events, &[])
}

/// As `requests_of`, with the pool of each event; those that are left out have the default pool.
fn requests_in_pools(events: &[(EventKind, u32)], pools: &[u64]) -> Vec<Request> {
    let mut reader = RequestReader::new(0);
    let mut found = Vec::new();
    for (number, (kind, stack)) in events.iter().enumerate() {
        let event = Event {
            device: 0,
            addr: number as u64 + 1,
            aux: [0, pools.get(number).copied().unwrap_or(0)],
            result: if *kind == EventKind::DEVICE_ALLOC { OUT_OF_MEMORY } else { 0 },
            detail: Some(Detail {
                requested_bytes: 100,
                stream: 7,
                pool: pools.get(number).copied().unwrap_or(0),
            }),
            ..Event::new(*kind)
        };
        found.extend(reader.on_event(&walked(&event, 0, *stack)).iter().map(|timed| timed.request));
    }
    found.extend(reader.finish().iter().map(|timed| timed.request));
    found
}

/// The first block of a run.
const ALLOC: Request = Request::Alloc { block: RecordedBlock(0), requested_bytes: 100, stream: 7, pool: 0 };

const RELEASE: Request = Request::ReleaseCached { only_pool: None };

#[test]
fn segments_returned_before_a_second_attempt_are_no_request() {
    use EventKind as Kind;
    // The driver refused memory, or the new segment has the stack of the returned one.
    let refused =
        [(Kind::DEVICE_ALLOC, 1), (Kind::SEGMENT_FREE, 2), (Kind::SEGMENT_ALLOC, 1), (Kind::BLOCK_ALLOC, 1)];
    assert_eq!(requests_of(&refused), [ALLOC]);
    let same_stack =
        [(Kind::SEGMENT_FREE, 1), (Kind::SEGMENT_FREE, 1), (Kind::SEGMENT_ALLOC, 1), (Kind::BLOCK_ALLOC, 1)];
    assert_eq!(requests_of(&same_stack), [ALLOC]);
    let failed = [(Kind::SEGMENT_FREE, 1), (Kind::BLOCK_OOM, 1)];
    assert_eq!(requests_of(&failed), [Request::Fail { requested_bytes: 100, stream: 7, pool: 0 }]);
}

#[test]
fn other_returned_segments_are_one_request() {
    use EventKind as Kind;
    let before_alloc =
        [(Kind::SEGMENT_FREE, 1), (Kind::SEGMENT_FREE, 1), (Kind::SEGMENT_ALLOC, 2), (Kind::BLOCK_ALLOC, 2)];
    assert_eq!(requests_of(&before_alloc), [RELEASE, ALLOC]);
    // The block needed no segment, so the stack says nothing.
    assert_eq!(requests_of(&[(Kind::SEGMENT_FREE, 1), (Kind::BLOCK_ALLOC, 1)]), [RELEASE, ALLOC]);
    assert_eq!(requests_of(&[(Kind::SEGMENT_UNMAP, 1)]), [RELEASE], "at the end of the run");
}

#[test]
fn events_of_other_devices_are_none() {
    let event = Event { device: 1, ..Event::new(EventKind::BLOCK_ALLOC) };
    let walked = walked(&event, 0, 0);
    let mut reader = RequestReader::new(0);
    assert!(reader.on_event(&walked).is_empty() && reader.without_detail == 0);
}

#[test]
fn pools_of_returned_segments_have_ended() {
    use EventKind as Kind;
    let returned = [(Kind::SEGMENT_FREE, 1), (Kind::SEGMENT_FREE, 1), (Kind::BLOCK_FREE, 2)];
    let end = |pool| Request::EndPool { pool };
    let free = Request::Free { block: None, is_immediate: false };
    assert_eq!(requests_in_pools(&returned, &[0, 5]), [end(5), RELEASE, free]);
    let of_one = Request::ReleaseCached { only_pool: Some(5) };
    assert_eq!(requests_in_pools(&returned, &[5, 5]), [end(5), of_one, free]);
    assert_eq!(requests_in_pools(&returned, &[6, 5]), [end(5), end(6), RELEASE, free]);
    // Also where the segments were returned for a second attempt.
    let retried = [(Kind::SEGMENT_FREE, 1), (Kind::SEGMENT_ALLOC, 1), (Kind::BLOCK_ALLOC, 1)];
    assert_eq!(requests_in_pools(&retried, &[5]), [end(5), ALLOC]);
}

#[test]
fn first_request_of_a_private_pool_begins_it_until_a_graph_was_captured() {
    use EventKind as Kind;
    let events = [
        (Kind::BLOCK_ALLOC, 1),
        (Kind::BLOCK_ALLOC, 1),
        (Kind::GRAPH_INSTANTIATE, 1),
        (Kind::BLOCK_ALLOC, 1),
        (Kind::BLOCK_ALLOC, 1),
    ];
    let found = requests_in_pools(&events, &[5, 5, 0, 5, 0]);
    let begins: Vec<_> = found.iter().map(|request| *request == Request::BeginPool).collect();
    assert_eq!(begins, [true, false, false, true, false, false]);
}
