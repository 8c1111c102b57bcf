//! Tests of one device: capacity, pools, graph memory and destroyed contexts.

use super::*;
use crate::state::pages::fake::NoPages;

const MIB: u64 = 1 << 20;

fn device(capacity: u64) -> (Device, NoPages) {
    (Device::new(0, capacity, 1 << 40, 1 << 40, 7), NoPages::default())
}

#[test]
fn small_and_large_requests_are_rounded() {
    let (mut dev, mut pages) = device(64 * MIB);
    dev.alloc(&mut pages, 1, BlockOrigin::Direct, 1).unwrap();
    assert_eq!(dev.used, 64 << 10);
    dev.alloc(&mut pages, MIB, BlockOrigin::Direct, 1).unwrap();
    assert_eq!(dev.used, (64 << 10) + 2 * MIB);
}

#[test]
fn capacity_is_exact_and_failed_request_charges_nothing() {
    let (mut dev, mut pages) = device(4 * MIB);
    let first = dev.alloc(&mut pages, 4 * MIB, BlockOrigin::Direct, 1).unwrap();
    assert_eq!(dev.alloc(&mut pages, 1, BlockOrigin::Direct, 1), Err(OUT_OF_MEMORY));
    assert_eq!(dev.used, 4 * MIB);
    dev.free(&mut pages, first).unwrap();
    assert_eq!((dev.used, pages.committed), (0, 0));
    assert_eq!(dev.alloc(&mut pages, 2 * MIB, BlockOrigin::Direct, 1), Ok(first), "the address comes back");
}

#[test]
fn interior_foreign_and_doubly_freed_pointers_are_refused() {
    let (mut dev, mut pages) = device(64 * MIB);
    let addr = dev.alloc(&mut pages, 4 * MIB, BlockOrigin::Direct, 1).unwrap();
    for wrong in [addr + 512, addr - 1, 0x10] {
        assert_eq!(dev.free(&mut pages, wrong).map(|_| ()), Err(INVALID_VALUE));
    }
    assert!(dev.free(&mut pages, addr).is_ok());
    assert_eq!(dev.free(&mut pages, addr).map(|_| ()), Err(INVALID_VALUE));
}

#[test]
fn zero_bytes_and_sizes_near_64_bits_are_refused() {
    let (mut dev, mut pages) = device(64 * MIB);
    assert_eq!(dev.alloc(&mut pages, 0, BlockOrigin::Direct, 1), Err(INVALID_VALUE));
    assert_eq!(dev.alloc(&mut pages, u64::MAX, BlockOrigin::Direct, 1), Err(OUT_OF_MEMORY));
    assert_eq!(dev.alloc_from_pool(&mut pages, u64::MAX, 7, 1), Err(OUT_OF_MEMORY));
    assert_eq!(dev.used, 0);
}

#[test]
fn pool_keeps_chunk_until_device_is_full() {
    let (mut dev, mut pages) = device(64 * MIB);
    let addr = dev.alloc_from_pool(&mut pages, MIB, 7, 1).unwrap();
    assert_eq!(dev.used, CHUNK);
    dev.free(&mut pages, addr).unwrap();
    assert_eq!(dev.used, CHUNK, "freed blocks stay in the pool");
    dev.alloc(&mut pages, 60 * MIB, BlockOrigin::Direct, 1).unwrap();
    assert_eq!(dev.used, 60 * MIB, "need takes the empty chunk");
}

#[test]
fn pool_on_nearly_full_device_takes_smaller_chunk() {
    let (mut dev, mut pages) = device(8 * MIB);
    dev.alloc_from_pool(&mut pages, 3 * MIB, 7, 1).unwrap();
    assert_eq!(dev.used, 4 * MIB);
}

#[test]
fn destroyed_pool_keeps_live_blocks_only() {
    let (mut dev, mut pages) = device(256 * MIB);
    dev.pools.insert(9, Pool::new(Location::of_device(0)));
    let addr = dev.alloc_from_pool(&mut pages, MIB, 9, 1).unwrap();
    dev.destroy_pool(&mut pages, 9).unwrap();
    assert_eq!(dev.used, CHUNK);
    assert_eq!(dev.alloc_from_pool(&mut pages, MIB, 9, 1), Err(INVALID_HANDLE));
    dev.free(&mut pages, addr).unwrap();
    assert_eq!((dev.used, dev.pools.contains_key(&9)), (0, false));
    assert_eq!(dev.destroy_pool(&mut pages, 7), Err(INVALID_VALUE), "the default pool stays");
}

#[test]
fn graph_node_is_charged_at_launch() {
    let (mut dev, mut pages) = device(64 * MIB);
    let addr = dev.reserve_graph_span(4 * MIB, MemoryKind::Device).unwrap();
    assert_eq!(dev.used, 0);
    dev.run_graph_alloc(&mut pages, addr, 1).unwrap();
    assert_eq!(dev.used, 4 * MIB);
    assert_eq!(
        dev.run_graph_alloc(&mut pages, addr, 1),
        Err(INVALID_VALUE),
        "still live from the last launch"
    );
    dev.free(&mut pages, addr).unwrap();
    assert_eq!(dev.used, 4 * MIB, "graph memory is kept for the next launch");
    dev.run_graph_alloc(&mut pages, addr, 1).unwrap();
    dev.disown_graph_span(&mut pages, addr);
    assert_eq!(dev.used, 4 * MIB, "live memory outlives its graph");
    dev.free(&mut pages, addr).unwrap();
    assert_eq!((dev.used, pages.committed), (0, 0));
}

#[test]
fn graph_trim_keeps_live_nodes() {
    let (mut dev, mut pages) = device(64 * MIB);
    let [live, idle] = [0; 2].map(|_| dev.reserve_graph_span(2 * MIB, MemoryKind::Device).unwrap());
    dev.run_graph_alloc(&mut pages, live, 1).unwrap();
    dev.run_graph_alloc(&mut pages, idle, 1).unwrap();
    dev.free(&mut pages, idle).unwrap();
    assert_eq!(dev.trim_graphs(&mut pages), 2 * MIB);
    assert_eq!((dev.used, dev.graph_reserved[0], dev.graph_used[0]), (2 * MIB, 2 * MIB, 2 * MIB));
}

#[test]
fn destroyed_context_frees_only_its_own_blocks() {
    let (mut dev, mut pages) = device(64 * MIB);
    dev.alloc(&mut pages, MIB, BlockOrigin::Direct, 1).unwrap();
    dev.alloc(&mut pages, MIB, BlockOrigin::Array, 2).unwrap();
    dev.alloc(&mut pages, MIB, BlockOrigin::Managed, 2).unwrap();
    assert_eq!(dev.free_context(&mut pages, 2).len(), 2);
    assert_eq!((dev.blocks.len(), dev.used), (1, 2 * MIB));
}
