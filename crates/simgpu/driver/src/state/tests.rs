//! Tests of the whole state: several devices, pinned memory, contexts and graphs.

use super::device::BlockOrigin;
use super::graph::{Exec, Graph, MemoryStep, Node};
use super::location::MemoryKind;
use super::pages::fake::NoPages;
use super::*;

const MIB: u64 = 1 << 20;

fn state(devices: u32) -> DriverState {
    let config = Config::read(|name| match name {
        "SIMGPU_MEM" => Some("64M".to_owned()),
        "SIMGPU_DEVICES" => Some(devices.to_string()),
        "SIMGPU_CONTEXT_BYTES" => Some("4M".to_owned()),
        _ => None,
    });
    DriverState::new(&config, Box::new(NoPages::default())).unwrap()
}

#[test]
fn block_is_freed_on_its_own_device() {
    let mut state = state(2);
    let (device, pages) = state.device_and_pages(1).unwrap();
    let addr = device.alloc(pages, MIB, BlockOrigin::Direct, 1).unwrap();
    assert_eq!(state.free(addr).unwrap().0, 1);
    assert_eq!(state.free(0x1234).map(|_| ()), Err(INVALID_VALUE));
}

#[test]
fn registered_and_pinned_memory_have_separate_frees() {
    let mut state = state(1);
    let pinned = state.host_alloc(100, 0, 1).unwrap();
    state.host_register(0x1000, 0x1000, 0, 1).unwrap();
    assert_eq!(state.host_register(0x1800, 0x1000, 0, 1), Err(HOST_MEMORY_ALREADY_REGISTERED));
    assert_eq!(state.host_free(0x1000).map(|_| ()), Err(INVALID_VALUE));
    assert_eq!(state.host_unregister(pinned).map(|_| ()), Err(HOST_MEMORY_NOT_REGISTERED));
    assert!(state.host_free(pinned).is_ok() && state.host_unregister(0x1000).is_ok());
}

#[test]
fn context_charges_and_returns_its_bytes() {
    let mut state = state(1);
    let handle = {
        let (handle, context) = state.primary(0).unwrap();
        context.active = true;
        handle
    };
    state.charge_context(0).unwrap();
    let (device, pages) = state.device_and_pages(0).unwrap();
    device.alloc(pages, MIB, BlockOrigin::Direct, handle).unwrap();
    state.host_alloc(64, 0, handle).unwrap();
    assert_eq!(state.devices[0].used, 6 * MIB);
    assert_eq!(state.end_context(handle).unwrap().len(), 2);
    assert_eq!((state.devices[0].used, state.host.len()), (0, 0));
    assert_eq!(state.end_context(handle), Ok(vec![]), "ending it twice changes nothing");
}

fn graph_with(state: &mut DriverState, sizes: &[u64], freed: bool) -> Exec {
    let mut graph = Graph::default();
    for (at, &size) in sizes.iter().enumerate() {
        let addr = state.device(0).unwrap().reserve_graph_span(size, MemoryKind::Device).unwrap();
        let step = MemoryStep::Alloc { window: 0, addr };
        graph.nodes.insert(2 * at as u64, Node::memory(vec![], step));
        if freed {
            graph.nodes.insert(2 * at as u64 + 1, Node::memory(vec![], MemoryStep::Free { addr }));
        }
    }
    Exec { graph, auto_free: false }
}

#[test]
fn launch_out_of_memory_leaves_no_live_block() {
    let mut state = state(1);
    let exec = graph_with(&mut state, &[40 * MIB, 40 * MIB], false);
    state.graphs.execs.insert(9, exec);
    assert_eq!(state.launch(9, 1), Err(OUT_OF_MEMORY));
    assert_eq!((state.devices[0].blocks.len(), state.devices[0].used, state.devices[0].slack), (0, 0, 0));
}

#[test]
fn graph_that_frees_its_blocks_launches_again() {
    let mut state = state(1);
    let exec = graph_with(&mut state, &[20 * MIB, 20 * MIB], true);
    state.graphs.execs.insert(9, exec);
    for _ in 0..3 {
        assert_eq!(state.launch(9, 1).map(|steps| steps.len()), Ok(4));
    }
    assert_eq!(state.devices[0].used, 40 * MIB);
}

#[test]
fn auto_free_allows_next_launch() {
    let mut state = state(1);
    let mut exec = graph_with(&mut state, &[MIB], false);
    state.graphs.execs.insert(8, exec.clone());
    assert!(state.launch(8, 1).is_ok());
    assert_eq!(state.launch(8, 1), Err(INVALID_VALUE));
    exec.auto_free = true;
    state.graphs.execs.insert(8, exec);
    assert!(state.launch(8, 1).is_ok());
}

#[test]
fn module_globals_keep_their_address() {
    let mut state = state(1);
    let first = state.global(0, 1, b"seed").unwrap();
    assert_eq!(state.global(0, 1, b"seed"), Ok(first));
    assert_ne!(state.global(0, 2, b"seed"), Ok(first));
}

#[test]
fn pool_of_host_memory_is_charged_to_no_device() {
    let mut state = state(1);
    let [host, managed] =
        [(1, 2, 0), (2, 1, 0)].map(|(kind, place, id)| Location::new(kind, place, id).unwrap());
    for (location, size) in [(host, 3 * MIB), (managed, 5 * MIB)] {
        let pool = state.pools_of(location).unwrap().default;
        let (window, pages) = state.window_and_pages(location.window()).unwrap();
        let addr = window.alloc_from_pool(pages, size, pool, 1).unwrap();
        assert_eq!((state.device_of(addr), state.block(addr).unwrap().memory), (None, location.memory()));
    }
    assert_eq!((state.devices[0].used, state.off_device_bytes()), (0, (3 * MIB, 5 * MIB)));
}

#[test]
fn managed_pool_does_not_replace_the_pool_of_its_device() {
    let mut state = state(1);
    let (device, managed) = (Location::of_device(0), Location::new(2, 1, 0).unwrap());
    let before = state.pools_of(device).unwrap().current;
    let pool = state.handle();
    state.window(managed.window()).unwrap().pools.insert(pool, pool::Pool::new(managed));
    state.set_current_pool(managed, pool).unwrap();
    assert_eq!(
        (state.pools_of(device).unwrap().current, state.pools_of(managed).unwrap().current),
        (before, pool)
    );
    state.destroy_pool(pool).unwrap();
    let left = state.pools_of(managed).unwrap();
    assert_eq!(left.current, left.default);
    assert_eq!(state.destroy_pool(left.default), Err(INVALID_VALUE));
}
