//! Graphs: their memory nodes, and the calls that make those nodes run.
//!
//! Constraint: a node allocates nothing when it is added, but each time an instance of its graph is launched. Consequence:
//! nodes, instances and launches are recorded, and the reader puts them together.

use std::ffi::{c_char, c_int, c_ulonglong, c_void};

use gpumemtrace_format::{ApiId, Event, EventKind, FLAG_CAPTURED};
use gpumemtrace_recorder::Draft;

use super::{Word, entry_points, first_id};
use crate::cuda::hooked_call::{NOT_INITIALIZED, after, before, field, location, out};
use crate::cuda::queries::captured_into;

/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC` and `_FREE`.
const MEM_ALLOC: u32 = 10;
const MEM_FREE: u32 = 11;

/// CUDA_MEM_ALLOC_NODE_PARAMS: pool properties (location at 8), bytes at 104, address (out) at 112.
const NODE_LOCATION: usize = 8;
const NODE_BYTES: usize = 104;
const NODE_ADDRESS: usize = 112;
/// CUgraphNodeParams: type at 0, the parameters of that type at 16.
const UNION: usize = 16;

fn describe_node(draft: &mut Draft, params: *const c_void) {
    draft.device = location(params, NODE_LOCATION).1;
    draft.size = field(params, NODE_BYTES);
}

/// A node of any type: no event unless it allocates or frees.
fn describe_any_node(draft: &mut Draft, graph: Word, params: *const c_void) {
    draft.aux[0] = graph;
    match field::<u32>(params, 0) {
        MEM_ALLOC => describe_node(draft, params.wrapping_byte_add(UNION)),
        MEM_FREE => {
            draft.kind = EventKind::GRAPH_FREE_NODE;
            draft.addr = field(params, UNION);
        }
        _ => draft.kind = EventKind::NONE,
    }
}

fn complete_any_node(event: &mut Event, node: *const Word, params: *const c_void) {
    event.aux[1] = out(node);
    if event.kind == EventKind::GRAPH_ALLOC_NODE {
        event.addr = field(params, UNION + NODE_ADDRESS);
    }
}

/// A launch on a captured stream becomes a node, and nothing runs.
fn describe_launch(draft: &mut Draft, exec: Word, stream: Word, per_thread: bool) {
    draft.aux = [exec, stream];
    if captured_into(stream, per_thread).is_some() {
        draft.flags |= FLAG_CAPTURED;
    }
}

entry_points! { family 6;
    cuGraphAddMemAllocNode since 11_040 = "cuGraphAddMemAllocNode"
    (node: *mut Word, graph: Word, after_nodes: *const Word, count: usize, params: *mut c_void) => GRAPH_ALLOC_NODE {
        before |draft| { describe_node(draft, params); draft.aux[0] = graph }
        after |event| { event.aux[1] = out(node); event.addr = field(params, NODE_ADDRESS) }
    }

    cuGraphAddMemFreeNode since 11_040 = "cuGraphAddMemFreeNode"
    (node: *mut Word, graph: Word, after_nodes: *const Word, count: usize, dptr: Word) => GRAPH_FREE_NODE {
        before |draft| { draft.addr = dptr; draft.aux[0] = graph }
        after |event| { event.aux[1] = out(node) }
    }

    cuGraphAddNode since 12_020 = "cuGraphAddNode"
    (node: *mut Word, graph: Word, after_nodes: *const Word, count: usize, params: *mut c_void) => GRAPH_ALLOC_NODE {
        before |draft| { describe_any_node(draft, graph, params) }
        after |event| { complete_any_node(event, node, params) }
    }

    cuGraphAddNode_v2 since 12_030, cuGraphAddNode_v3 since 13_040 = "cuGraphAddNode"
    (node: *mut Word, graph: Word, after_nodes: *const Word, edges: *const c_void, count: usize, params: *mut c_void) => GRAPH_ALLOC_NODE {
        before |draft| { describe_any_node(draft, graph, params) }
        after |event| { complete_any_node(event, node, params) }
    }

    cuGraphInstantiate since 10_000, cuGraphInstantiate_v2 since 11_000 = "cuGraphInstantiate"
    (exec: *mut Word, graph: Word, error_node: *mut Word, log: *mut c_char, log_bytes: usize) => GRAPH_INSTANTIATE {
        before |draft| { draft.aux[1] = graph }
        after |event| { event.aux[0] = out(exec) }
    }

    cuGraphInstantiateWithFlags since 11_040 = "cuGraphInstantiateWithFlags"
    (exec: *mut Word, graph: Word, flags: c_ulonglong) => GRAPH_INSTANTIATE {
        before |draft| { draft.size = flags; draft.aux[1] = graph }
        after |event| { event.aux[0] = out(exec) }
    }

    // CUDA_GRAPH_INSTANTIATE_PARAMS: flags at 0.
    cuGraphInstantiateWithParams since 12_000, cuGraphInstantiateWithParams_ptsz since 12_000 per_thread = "cuGraphInstantiateWithParams"
    (exec: *mut Word, graph: Word, params: *mut c_void) => GRAPH_INSTANTIATE {
        before |draft| { draft.size = field(params, 0); draft.aux[1] = graph }
        after |event| { event.aux[0] = out(exec) }
    }

    cuGraphUpload since 11_010, cuGraphUpload_ptsz since 11_010 per_thread = "cuGraphUpload"
    (exec: Word, stream: Word) => GRAPH_UPLOAD {
        before |draft| { draft.aux = [exec, stream] }
    }

    cuGraphLaunch since 10_000, cuGraphLaunch_ptsz since 10_000 per_thread = "cuGraphLaunch"
    (exec: Word, stream: Word) => GRAPH_LAUNCH {
        before |draft| { describe_launch(draft, exec, stream, PER_THREAD) }
    }

    cuGraphExecDestroy since 10_000 = "cuGraphExecDestroy"
    (exec: Word) => GRAPH_EXEC_DESTROY {
        before |draft| { draft.aux[0] = exec }
    }

    cuGraphDestroy since 10_000 = "cuGraphDestroy"
    (graph: Word) => GRAPH_DESTROY {
        before |draft| { draft.aux[0] = graph }
    }

    cuDeviceGraphMemTrim since 11_040 = "cuDeviceGraphMemTrim"
    (device: c_int) => GRAPH_TRIM {
        before |draft| { draft.device = device as u8 }
    }
}
