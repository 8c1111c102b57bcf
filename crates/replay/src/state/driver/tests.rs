//! The effect of each kind of driver allocation on the totals.

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
    driver.on_driver_call(&event(kind, addr, size, aux), STACK);
    driver.changes.clone()
}

#[test]
fn physical_memory_is_freed_by_the_last_of_release_and_unmap() {
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
fn reused_handle_is_a_new_piece() {
    let mut driver = DriverState::default();
    run(&mut driver, EventKind::PHYS_CREATE, 0, 100, [7, 1]);
    run(&mut driver, EventKind::MAP, 0x1000, 100, [7, 0]);
    run(&mut driver, EventKind::PHYS_RELEASE, 0, 0, [7, 0]);
    let second = run(&mut driver, EventKind::PHYS_CREATE, 0, 200, [7, 1]);
    let freed = run(&mut driver, EventKind::UNMAP, 0x1000, 100, [0, 0]);
    let (DriverChange::Alloc { key: new, .. }, DriverChange::Free { key: old, .. }) = (second[0], freed[0])
    else {
        panic!("{second:?} {freed:?}")
    };
    assert_ne!(new, old);
}

#[test]
fn failed_calls_null_frees_and_reservations_change_nothing() {
    let mut driver = DriverState::default();
    let mut failed = event(EventKind::DEVICE_ALLOC, 0, 512, [0; 2]);
    failed.result = 2;
    driver.on_driver_call(&failed, STACK);
    assert_eq!((driver.changes.len(), driver.failed_calls), (0, 1));
    assert_eq!(run(&mut driver, EventKind::DEVICE_FREE, 0, 0, [0; 2]), []);
    assert_eq!(run(&mut driver, EventKind::VA_RESERVE, 0x1000, 1 << 40, [0; 2]), []);
    assert_eq!(driver.unmatched_frees, 0);
}

/// Applies events given as kind, address, size and aux; returns the bytes on device 0.
fn bytes_after(
    driver: &mut DriverState,
    totals: &mut PlaceTotals,
    events: &[(EventKind, u64, u64, [u64; 2])],
) -> u64 {
    for (kind, addr, size, aux) in events {
        driver.on_driver_call(&event(*kind, *addr, *size, *aux), STACK);
        for change in &driver.changes {
            totals.apply(change);
        }
    }
    totals.bytes_in(MemoryPlace::Device(0))
}

#[test]
fn destroyed_context_frees_its_own_blocks_only() {
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
    assert_eq!(bytes_after(&mut driver, &mut totals, &made), 150);
    assert_eq!(bytes_after(&mut driver, &mut totals, &[(EventKind::CONTEXT_DESTROY, 0, 0, [other, 0])]), 90);
    assert_eq!(totals.bytes_in(MemoryPlace::Host), 0);
    assert_eq!(
        bytes_after(&mut driver, &mut totals, &[(EventKind::PRIMARY_RELEASE, 0, 0, [0, 0])]),
        90,
        "the context has other references"
    );
    assert_eq!(
        bytes_after(&mut driver, &mut totals, &[(EventKind::PRIMARY_RELEASE, 0, 0, [0, 1])]),
        80,
        "a pool outlives its context"
    );
    assert_eq!(driver.ranges().len(), 1);
    assert_eq!(driver.unmatched_frees, 0);
}

#[test]
fn graph_memory_is_held_from_first_launch_until_no_graph_can_launch_it() {
    let (mut driver, mut totals) = (DriverState::default(), PlaceTotals::default());
    let (graph, exec) = (0x100, 0x200);
    let node = (EventKind::GRAPH_ALLOC_NODE, 0x1000, 10, [graph, 1]);
    let defined = [node, (EventKind::GRAPH_INSTANTIATE, 0, 0, [exec, graph])];
    assert_eq!(bytes_after(&mut driver, &mut totals, &defined), 0, "a node alone has no memory");
    assert_eq!(bytes_after(&mut driver, &mut totals, &[(EventKind::GRAPH_LAUNCH, 0, 0, [exec, 0])]), 10);
    let trim = (EventKind::GRAPH_TRIM, 0, 0, [0, 0]);
    assert_eq!(bytes_after(&mut driver, &mut totals, &[trim]), 10, "trim keeps live blocks");
    assert_eq!(
        bytes_after(&mut driver, &mut totals, &[(EventKind::ASYNC_FREE, 0x1000, 0, [0, 0])]),
        10,
        "kept for the next launch"
    );
    assert_eq!(bytes_after(&mut driver, &mut totals, &[trim]), 0);
    let again = [(EventKind::GRAPH_LAUNCH, 0, 0, [exec, 0]), (EventKind::GRAPH_DESTROY, 0, 0, [graph, 0])];
    assert_eq!(bytes_after(&mut driver, &mut totals, &again), 10);
    assert_eq!(
        bytes_after(&mut driver, &mut totals, &[(EventKind::GRAPH_EXEC_DESTROY, 0, 0, [exec, 0])]),
        10,
        "live"
    );
    assert_eq!(
        bytes_after(&mut driver, &mut totals, &[(EventKind::DEVICE_FREE, 0x1000, 0, [0, 0])]),
        0,
        "orphaned"
    );
    assert_eq!((driver.unmatched_frees, driver.ranges().len()), (0, 0));
}

#[test]
fn moved_graph_gives_its_nodes_to_the_other_graph() {
    let (mut driver, mut totals) = (DriverState::default(), PlaceTotals::default());
    let (parent, child, exec) = (0x100, 0x200, 0x300);
    let made = [
        (EventKind::GRAPH_ALLOC_NODE, 0x1000, 10, [child, 1]),
        (EventKind::GRAPH_ALLOC_NODE, 0x2000, 20, [parent, 2]),
        (EventKind::GRAPH_CHILD, 0, 0, [parent, child]),
        (EventKind::GRAPH_INSTANTIATE, 0, 0, [exec, parent]),
        (EventKind::GRAPH_LAUNCH, 0, 0, [exec, 0]),
        (EventKind::ASYNC_FREE, 0x1000, 0, [0, 0]),
        (EventKind::ASYNC_FREE, 0x2000, 0, [0, 0]),
        (EventKind::GRAPH_EXEC_DESTROY, 0, 0, [exec, 0]),
    ];
    assert_eq!(bytes_after(&mut driver, &mut totals, &made), 30, "the parent can launch both nodes");
    assert_eq!(bytes_after(&mut driver, &mut totals, &[(EventKind::GRAPH_DESTROY, 0, 0, [parent, 0])]), 0);
    assert_eq!(driver.unmatched_frees, 0);
}

#[test]
fn graph_that_is_captured_again_keeps_its_nodes() {
    let (mut driver, mut totals) = (DriverState::default(), PlaceTotals::default());
    let (graph, exec) = (0x100, 0x200);
    let capture = [
        (EventKind::GRAPH_ALLOC_NODE, 0x1000, 10, [graph, 0]),
        (EventKind::GRAPH_ALLOC_NODE, 0x2000, 20, [graph, 0]),
        (EventKind::GRAPH_FREE_NODE, 0x2000, 0, [graph, 0]),
    ];
    let launch =
        [(EventKind::GRAPH_INSTANTIATE, 0, 0, [exec, graph]), (EventKind::GRAPH_LAUNCH, 0, 0, [exec, 0])];
    assert_eq!(bytes_after(&mut driver, &mut totals, &capture), 0);
    assert_eq!(bytes_after(&mut driver, &mut totals, &launch), 30);
    assert_eq!(bytes_after(&mut driver, &mut totals, &capture), 30, "its blocks are live");
    let end = [
        (EventKind::ASYNC_FREE, 0x1000, 0, [0, 0]),
        (EventKind::GRAPH_LAUNCH, 0, 0, [exec, 0]),
        (EventKind::ASYNC_FREE, 0x1000, 0, [0, 0]),
        (EventKind::GRAPH_EXEC_DESTROY, 0, 0, [exec, 0]),
    ];
    assert_eq!(bytes_after(&mut driver, &mut totals, &end), 30, "the graph can launch them again");
    assert_eq!(bytes_after(&mut driver, &mut totals, &[(EventKind::GRAPH_DESTROY, 0, 0, [graph, 0])]), 0);
    assert_eq!(driver.unmatched_frees, 0);
}

#[test]
fn captured_launch_allocates_nothing() {
    let mut driver = DriverState::default();
    run(&mut driver, EventKind::GRAPH_ALLOC_NODE, 0x1000, 10, [1, 1]);
    run(&mut driver, EventKind::GRAPH_INSTANTIATE, 0, 0, [2, 1]);
    let mut launch = event(EventKind::GRAPH_LAUNCH, 0, 0, [2, 0]);
    launch.flags = FLAG_CAPTURED;
    driver.on_driver_call(&launch, STACK);
    assert_eq!(driver.changes, []);
}

#[test]
fn foreign_memory_is_never_added_to_a_device() {
    let (mut driver, mut totals) = (DriverState::default(), PlaceTotals::default());
    let opened = [
        (EventKind::FOREIGN_OPEN, 0x1000, 10, [1, 7]),
        (EventKind::FOREIGN_OPEN, 0x1000, 10, [1, 7]),
        (EventKind::EXTERNAL_IMPORT, 0, 20, [0x50, 1]),
        (EventKind::EXTERNAL_MAP, 0x2000, 20, [0x50, 0]),
        (EventKind::PHYS_IMPORT, 0, 0, [0x60, 1]),
        (EventKind::MAP, 0x3000, 40, [0x60, 0]),
    ];
    assert_eq!(bytes_after(&mut driver, &mut totals, &opened), 0);
    assert_eq!(totals.bytes_in(MemoryPlace::Foreign), 70);
    let closed = [
        (EventKind::FOREIGN_CLOSE, 0x1000, 0, [0, 0]),
        (EventKind::DEVICE_FREE, 0x2000, 0, [0, 0]),
        (EventKind::EXTERNAL_DESTROY, 0, 0, [0x50, 0]),
        (EventKind::UNMAP, 0x3000, 40, [0, 0]),
        (EventKind::PHYS_RELEASE, 0, 0, [0x60, 0]),
    ];
    bytes_after(&mut driver, &mut totals, &closed);
    assert_eq!(totals.bytes_in(MemoryPlace::Foreign), 10, "opened twice");
    bytes_after(&mut driver, &mut totals, &[(EventKind::FOREIGN_CLOSE, 0x1000, 0, [0, 0])]);
    assert_eq!((totals.bytes_in(MemoryPlace::Foreign), driver.unmatched_frees), (0, 0));
}

#[test]
fn retained_handle_needs_its_own_release_under_any_handle() {
    for second in [7, 8] {
        let (mut driver, mut totals) = (DriverState::default(), PlaceTotals::default());
        let made = [
            (EventKind::PHYS_CREATE, 0, 100, [7, 1]),
            (EventKind::MAP, 0x1000, 100, [7, 0]),
            (EventKind::PHYS_RETAIN, 0x1040, 0, [second, 0]),
            (EventKind::PHYS_RELEASE, 0, 0, [7, 0]),
            (EventKind::UNMAP, 0x1000, 100, [0, 0]),
        ];
        assert_eq!(bytes_after(&mut driver, &mut totals, &made), 100);
        assert_eq!(bytes_after(&mut driver, &mut totals, &[(EventKind::PHYS_RELEASE, 0, 0, [second, 0])]), 0);
        assert_eq!(driver.unmatched_frees, 0);
    }
}

#[test]
fn multicast_objects_and_unbacked_arrays_have_no_memory() {
    let mut driver = DriverState::default();
    assert_eq!(run(&mut driver, EventKind::MULTICAST_CREATE, 0, 100, [9, 2]), []);
    assert_eq!(run(&mut driver, EventKind::MAP, 0x1000, 100, [9, 0]), []);
    assert!(driver.ranges().is_empty());
    assert_eq!(run(&mut driver, EventKind::UNMAP, 0x1000, 100, [0, 0]), []);
    assert_eq!(run(&mut driver, EventKind::PHYS_RELEASE, 0, 0, [9, 0]), []);
    let mut array = event(EventKind::ARRAY_ALLOC, 0x2000, 100, [0; 2]);
    array.flags = FLAG_UNBACKED;
    driver.on_driver_call(&array, STACK);
    assert_eq!(driver.changes, []);
    assert_eq!(run(&mut driver, EventKind::ARRAY_FREE, 0x2000, 0, [0; 2]), []);
    assert_eq!(driver.unmatched_frees, 0);
}
