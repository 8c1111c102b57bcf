//! Graphs: their memory nodes, and the calls that run those nodes.
//!
//! Adding a node allocates nothing: the allocation happens at each launch of an instance of the
//! graph. The hooks record nodes, instances and launches, and the analysis combines them.

use std::ffi::{c_char, c_int, c_ulonglong, c_void};

use gpumemtrace_format::{ApiId, Event, EventKind, FLAG_CAPTURED};
use gpumemtrace_recorder::Draft;

use super::driver_hooks;
use crate::cuda::hooked_call::{read_field, read_out, read_pool_location};
use crate::cuda::queries::capturing_graph;

/// The driver API's `CU_GRAPH_NODE_TYPE_GRAPH`, `CU_GRAPH_NODE_TYPE_MEM_ALLOC` and
/// `CU_GRAPH_NODE_TYPE_MEM_FREE`.
const GRAPH: u32 = 4;
const MEM_ALLOC: u32 = 10;
const MEM_FREE: u32 = 11;

/// CUDA_MEM_ALLOC_NODE_PARAMS: pool properties (allocation type at 0, location at 8), bytes at 104,
/// address (out) at 112.
const NODE_ALLOCATION_TYPE: usize = 0;
const NODE_LOCATION: usize = 8;
const NODE_BYTES: usize = 104;
const NODE_ADDRESS: usize = 112;
/// CUDA_CHILD_GRAPH_NODE_PARAMS: graph at 0, ownership at 8.
const CHILD_GRAPH: usize = 0;
const CHILD_OWNERSHIP: usize = 8;
/// `CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE`. A child that is not moved is cloned, and may not contain
/// memory nodes.
const MOVE: u32 = 1;
/// CUgraphNodeParams: type at 0, the parameters of that type at 16.
const NODE_PARAMS_UNION: usize = 16;

fn fill_alloc_node(draft: &mut Draft, params: *const c_void) {
    let place = read_pool_location(params, NODE_LOCATION, read_field(params, NODE_ALLOCATION_TYPE));
    draft.device = place.device;
    draft.flags |= place.flags;
    draft.size = read_field(params, NODE_BYTES);
}

/// Fills the event for a node of any type. A node that does not change the graph's memory is no
/// event.
fn fill_node(draft: &mut Draft, graph: u64, params: *const c_void) {
    draft.aux[0] = graph;
    match read_field::<u32>(params, 0) {
        MEM_ALLOC => fill_alloc_node(draft, params.wrapping_byte_add(NODE_PARAMS_UNION)),
        MEM_FREE => {
            draft.kind = EventKind::GRAPH_FREE_NODE;
            draft.addr = read_field(params, NODE_PARAMS_UNION);
        }
        GRAPH if read_field::<u32>(params, NODE_PARAMS_UNION + CHILD_OWNERSHIP) == MOVE => {
            draft.kind = EventKind::GRAPH_CHILD;
            draft.aux[1] = read_field(params, NODE_PARAMS_UNION + CHILD_GRAPH);
        }
        _ => draft.kind = EventKind::NONE,
    }
}

fn fill_node_results(event: &mut Event, node: *const u64, params: *const c_void) {
    if event.kind != EventKind::GRAPH_CHILD {
        event.aux[1] = read_out(node);
    }
    if event.kind == EventKind::GRAPH_ALLOC_NODE {
        event.addr = read_field(params, NODE_PARAMS_UNION + NODE_ADDRESS);
    }
}

/// Fills a launch. On a captured stream nothing runs: the launch becomes a node.
fn fill_launch(draft: &mut Draft, exec: u64, stream: u64, per_thread: bool) {
    draft.aux = [exec, stream];
    if capturing_graph(stream, per_thread).is_some() {
        draft.flags |= FLAG_CAPTURED;
    }
}

driver_hooks! { family 6;
    cuGraphAddMemAllocNode since 11_040 = "cuGraphAddMemAllocNode"
    (node: *mut u64, graph: u64, after_nodes: *const u64, count: usize, params: *mut c_void) => GRAPH_ALLOC_NODE {
        before |draft| { fill_alloc_node(draft, params); draft.aux[0] = graph }
        after |event| { event.aux[1] = read_out(node); event.addr = read_field(params, NODE_ADDRESS) }
    }

    cuGraphAddMemFreeNode since 11_040 = "cuGraphAddMemFreeNode"
    (node: *mut u64, graph: u64, after_nodes: *const u64, count: usize, dptr: u64) => GRAPH_FREE_NODE {
        before |draft| { draft.addr = dptr; draft.aux[0] = graph }
        after |event| { event.aux[1] = read_out(node) }
    }

    cuGraphAddNode since 12_020 = "cuGraphAddNode"
    (node: *mut u64, graph: u64, after_nodes: *const u64, count: usize, params: *mut c_void) => GRAPH_ALLOC_NODE {
        before |draft| { fill_node(draft, graph, params) }
        after |event| { fill_node_results(event, node, params) }
    }

    cuGraphAddNode_v2 since 12_030, cuGraphAddNode_v3 since 13_040 = "cuGraphAddNode"
    (node: *mut u64, graph: u64, after_nodes: *const u64, edges: *const c_void, count: usize, params: *mut c_void) => GRAPH_ALLOC_NODE {
        before |draft| { fill_node(draft, graph, params) }
        after |event| { fill_node_results(event, node, params) }
    }

    cuGraphInstantiate since 10_000, cuGraphInstantiate_v2 since 11_000 = "cuGraphInstantiate"
    (exec: *mut u64, graph: u64, error_node: *mut u64, log: *mut c_char, log_bytes: usize) => GRAPH_INSTANTIATE {
        before |draft| { draft.aux[1] = graph }
        after |event| { event.aux[0] = read_out(exec) }
    }

    cuGraphInstantiateWithFlags since 11_040 = "cuGraphInstantiateWithFlags"
    (exec: *mut u64, graph: u64, flags: c_ulonglong) => GRAPH_INSTANTIATE {
        before |draft| { draft.size = flags; draft.aux[1] = graph }
        after |event| { event.aux[0] = read_out(exec) }
    }

    // CUDA_GRAPH_INSTANTIATE_PARAMS: flags at 0.
    cuGraphInstantiateWithParams since 12_000, cuGraphInstantiateWithParams_ptsz since 12_000 per_thread = "cuGraphInstantiateWithParams"
    (exec: *mut u64, graph: u64, params: *mut c_void) => GRAPH_INSTANTIATE {
        before |draft| { draft.size = read_field(params, 0); draft.aux[1] = graph }
        after |event| { event.aux[0] = read_out(exec) }
    }

    cuGraphUpload since 11_010, cuGraphUpload_ptsz since 11_010 per_thread = "cuGraphUpload"
    (exec: u64, stream: u64) => GRAPH_UPLOAD {
        before |draft| { draft.aux = [exec, stream] }
    }

    cuGraphLaunch since 10_000, cuGraphLaunch_ptsz since 10_000 per_thread = "cuGraphLaunch"
    (exec: u64, stream: u64) => GRAPH_LAUNCH {
        before |draft| { fill_launch(draft, exec, stream, PER_THREAD) }
    }

    cuGraphExecDestroy since 10_000 = "cuGraphExecDestroy"
    (exec: u64) => GRAPH_EXEC_DESTROY {
        before |draft| { draft.aux[0] = exec }
    }

    cuGraphDestroy since 10_000 = "cuGraphDestroy"
    (graph: u64) => GRAPH_DESTROY {
        before |draft| { draft.aux[0] = graph }
    }

    cuDeviceGraphMemTrim since 11_040 = "cuDeviceGraphMemTrim"
    (device: c_int) => GRAPH_TRIM {
        before |draft| { draft.device = device as u8 }
    }
}
