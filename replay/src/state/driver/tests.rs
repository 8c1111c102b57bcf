//! What each way of giving memory out does to the totals.

use super::*;
use gpumemtrace_format::{ApiId, NodeId, ThreadId};

const STACK: StackId = StackId(0);

fn event(kind: EventKind, addr: u64, size: u64, aux: [u64; 2]) -> Event {
    Event {
        seq: 0,
        time_ns: 0,
        thread: ThreadId(1),
        kind,
        device: 0,
        api: ApiId(0),
        flags: 0,
        result: 0,
        in_flight: false,
        addr,
        size,
        aux,
        python_stack: NodeId::NONE,
        native_stack: NodeId::NONE,
        detail: None,
    }
}

fn run(driver: &mut DriverState, kind: EventKind, addr: u64, size: u64, aux: [u64; 2]) -> Vec<DriverChange> {
    driver.event(&event(kind, addr, size, aux), STACK);
    driver.changes.clone()
}

#[test]
fn a_piece_lives_until_it_is_released_and_unmapped_whichever_comes_last() {
    for unmap_first in [false, true] {
        let mut driver = DriverState::default();
        assert_eq!(run(&mut driver, EventKind::PHYS_CREATE, 0, 100, [7, 1]).len(), 1);
        assert_eq!(run(&mut driver, EventKind::MAP, 0x1000, 100, [7, 0]), []);
        assert_eq!(driver.ranges().len(), 1);
        let mut ends = [(EventKind::PHYS_RELEASE, 0, 0), (EventKind::UNMAP, 0x1000, 100)];
        if unmap_first {
            ends.reverse();
        }
        assert_eq!(run(&mut driver, ends[0].0, ends[0].1, ends[0].2, [7, 0]), []);
        assert_eq!(run(&mut driver, ends[1].0, ends[1].1, ends[1].2, [7, 0]).len(), 1);
        assert!(driver.ranges().is_empty());
    }
}

#[test]
fn a_handle_that_is_used_again_is_another_piece() {
    let mut driver = DriverState::default();
    run(&mut driver, EventKind::PHYS_CREATE, 0, 100, [7, 1]);
    run(&mut driver, EventKind::MAP, 0x1000, 100, [7, 0]);
    run(&mut driver, EventKind::PHYS_RELEASE, 0, 0, [7, 0]);
    let second = run(&mut driver, EventKind::PHYS_CREATE, 0, 200, [7, 1]);
    let gone = run(&mut driver, EventKind::UNMAP, 0x1000, 100, [0, 0]);
    let (DriverChange::Alloc { key: new, .. }, DriverChange::Free { key: old, .. }) = (second[0], gone[0])
    else {
        panic!("{second:?} {gone:?}")
    };
    assert_ne!(new, old);
}

#[test]
fn failed_calls_null_frees_and_reservations_change_nothing() {
    let mut driver = DriverState::default();
    let mut failed = event(EventKind::DEVICE_ALLOC, 0, 512, [0; 2]);
    failed.result = 2;
    driver.event(&failed, STACK);
    assert_eq!((driver.changes.len(), driver.failed_calls), (0, 1));
    assert_eq!(run(&mut driver, EventKind::DEVICE_FREE, 0, 0, [0; 2]), []);
    assert_eq!(run(&mut driver, EventKind::VA_RESERVE, 0x1000, 1 << 40, [0; 2]), []);
    assert_eq!(driver.unmatched_frees, 0);
}

/// Bytes in a place after so many events.
fn held(
    driver: &mut DriverState,
    totals: &mut PlaceTotals,
    steps: &[(EventKind, u64, u64, [u64; 2])],
) -> u64 {
    for (kind, addr, size, aux) in steps {
        driver.event(&event(*kind, *addr, *size, *aux), STACK);
        for change in &driver.changes {
            totals.apply(change);
        }
    }
    totals.of(MemoryPlace::Device(0))
}

#[test]
fn a_context_takes_its_own_blocks_with_it_and_no_others() {
    let (mut driver, mut totals) = (DriverState::default(), PlaceTotals::default());
    let primary = 0x100;
    let other = 0x200;
    let made = [
        (EventKind::CONTEXT_CREATE, 0, 0, [other, 0]),
        (EventKind::DEVICE_ALLOC, 0x1000, 10, [primary, 0]),
        (EventKind::DEVICE_ALLOC, 0x2000, 20, [other, 0]),
        (EventKind::ARRAY_ALLOC, 0x3000, 40, [other, 0]),
        (EventKind::ASYNC_ALLOC, 0x4000, 80, [0, 0]),
        (EventKind::HOST_ALLOC, 0x5000, 160, [0, other]),
    ];
    assert_eq!(held(&mut driver, &mut totals, &made), 150);
    assert_eq!(held(&mut driver, &mut totals, &[(EventKind::CONTEXT_DESTROY, 0, 0, [other, 0])]), 90);
    assert_eq!(totals.of(MemoryPlace::Host), 0);
    assert_eq!(
        held(&mut driver, &mut totals, &[(EventKind::PRIMARY_RELEASE, 0, 0, [0, 0])]),
        90,
        "not the last"
    );
    assert_eq!(
        held(&mut driver, &mut totals, &[(EventKind::PRIMARY_RELEASE, 0, 0, [0, 1])]),
        80,
        "a pool outlives it"
    );
    assert_eq!(driver.ranges().len(), 1);
    assert_eq!(driver.unmatched_frees, 0);
}

#[test]
fn a_graphs_memory_is_held_from_the_first_launch_until_nobody_can_launch_it() {
    let (mut driver, mut totals) = (DriverState::default(), PlaceTotals::default());
    let (graph, exec) = (0x100, 0x200);
    let node = (EventKind::GRAPH_ALLOC_NODE, 0x1000, 10, [graph, 1]);
    let defined = [node, (EventKind::GRAPH_INSTANTIATE, 0, 0, [exec, graph])];
    assert_eq!(held(&mut driver, &mut totals, &defined), 0, "a node costs nothing");
    assert_eq!(held(&mut driver, &mut totals, &[(EventKind::GRAPH_LAUNCH, 0, 0, [exec, 0])]), 10);
    let trim = (EventKind::GRAPH_TRIM, 0, 0, [0, 0]);
    assert_eq!(held(&mut driver, &mut totals, &[trim]), 10, "it is live");
    assert_eq!(held(&mut driver, &mut totals, &[(EventKind::ASYNC_FREE, 0x1000, 0, [0, 0])]), 10, "kept");
    assert_eq!(held(&mut driver, &mut totals, &[trim]), 0);
    let again = [(EventKind::GRAPH_LAUNCH, 0, 0, [exec, 0]), (EventKind::GRAPH_DESTROY, 0, 0, [graph, 0])];
    assert_eq!(held(&mut driver, &mut totals, &again), 10);
    assert_eq!(
        held(&mut driver, &mut totals, &[(EventKind::GRAPH_EXEC_DESTROY, 0, 0, [exec, 0])]),
        10,
        "live"
    );
    assert_eq!(held(&mut driver, &mut totals, &[(EventKind::DEVICE_FREE, 0x1000, 0, [0, 0])]), 0, "orphaned");
    assert_eq!((driver.unmatched_frees, driver.ranges().len()), (0, 0));
}

#[test]
fn a_launch_that_was_captured_runs_nothing() {
    let mut driver = DriverState::default();
    run(&mut driver, EventKind::GRAPH_ALLOC_NODE, 0x1000, 10, [1, 1]);
    run(&mut driver, EventKind::GRAPH_INSTANTIATE, 0, 0, [2, 1]);
    let mut launch = event(EventKind::GRAPH_LAUNCH, 0, 0, [2, 0]);
    launch.flags = FLAG_CAPTURED;
    driver.event(&launch, STACK);
    assert_eq!(driver.changes, []);
}

#[test]
fn what_belongs_to_others_is_never_added_to_a_device() {
    let (mut driver, mut totals) = (DriverState::default(), PlaceTotals::default());
    let opened = [
        (EventKind::FOREIGN_OPEN, 0x1000, 10, [1, 7]),
        (EventKind::FOREIGN_OPEN, 0x1000, 10, [1, 7]),
        (EventKind::EXTERNAL_IMPORT, 0, 20, [0x50, 1]),
        (EventKind::EXTERNAL_MAP, 0x2000, 20, [0x50, 0]),
        (EventKind::PHYS_IMPORT, 0, 0, [0x60, 1]),
        (EventKind::MAP, 0x3000, 40, [0x60, 0]),
    ];
    assert_eq!(held(&mut driver, &mut totals, &opened), 0);
    assert_eq!(totals.of(MemoryPlace::Foreign), 70);
    let closed = [
        (EventKind::FOREIGN_CLOSE, 0x1000, 0, [0, 0]),
        (EventKind::DEVICE_FREE, 0x2000, 0, [0, 0]),
        (EventKind::EXTERNAL_DESTROY, 0, 0, [0x50, 0]),
        (EventKind::UNMAP, 0x3000, 40, [0, 0]),
        (EventKind::PHYS_RELEASE, 0, 0, [0x60, 0]),
    ];
    held(&mut driver, &mut totals, &closed);
    assert_eq!(totals.of(MemoryPlace::Foreign), 10, "opened twice");
    held(&mut driver, &mut totals, &[(EventKind::FOREIGN_CLOSE, 0x1000, 0, [0, 0])]);
    assert_eq!((totals.of(MemoryPlace::Foreign), driver.unmatched_frees), (0, 0));
}

#[test]
fn a_retained_handle_needs_a_release_of_its_own_even_under_another_number() {
    for second in [7, 8] {
        let (mut driver, mut totals) = (DriverState::default(), PlaceTotals::default());
        let made = [
            (EventKind::PHYS_CREATE, 0, 100, [7, 1]),
            (EventKind::MAP, 0x1000, 100, [7, 0]),
            (EventKind::PHYS_RETAIN, 0x1040, 0, [second, 0]),
            (EventKind::PHYS_RELEASE, 0, 0, [7, 0]),
            (EventKind::UNMAP, 0x1000, 100, [0, 0]),
        ];
        assert_eq!(held(&mut driver, &mut totals, &made), 100);
        assert_eq!(held(&mut driver, &mut totals, &[(EventKind::PHYS_RELEASE, 0, 0, [second, 0])]), 0);
        assert_eq!(driver.unmatched_frees, 0);
    }
}

#[test]
fn multicast_objects_and_arrays_to_be_mapped_hold_nothing() {
    let mut driver = DriverState::default();
    assert_eq!(run(&mut driver, EventKind::MULTICAST_CREATE, 0, 100, [9, 2]), []);
    assert_eq!(run(&mut driver, EventKind::MAP, 0x1000, 100, [9, 0]), []);
    assert!(driver.ranges().is_empty());
    assert_eq!(run(&mut driver, EventKind::UNMAP, 0x1000, 100, [0, 0]), []);
    assert_eq!(run(&mut driver, EventKind::PHYS_RELEASE, 0, 0, [9, 0]), []);
    let mut array = event(EventKind::ARRAY_ALLOC, 0x2000, 100, [0; 2]);
    array.flags = FLAG_UNBACKED;
    driver.event(&array, STACK);
    assert_eq!(driver.changes, []);
    assert_eq!(run(&mut driver, EventKind::ARRAY_FREE, 0x2000, 0, [0; 2]), []);
    assert_eq!(driver.unmatched_frees, 0);
}
