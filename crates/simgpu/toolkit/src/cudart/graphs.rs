//! Runtime functions for graphs; each forwards to the driver.

use simgpu_common::{In, Out};

use super::{context, runtime};
use crate::driver::ok;

/// `cudaMemAllocNodeParams`: pool properties, access descriptors, size, result; as in the driver.
type AllocNodeParams = u64;

runtime! {
    cudaGraphCreate(out: u64, flags: u32) { ok((context()?.graph_create)(out, flags)) }
    cudaGraphDestroy(graph: u64) { ok((context()?.graph_destroy)(graph)) }
    // CUDA 11 had a place for error texts; since 12 the third argument is the flags.
    cudaGraphInstantiate(out: u64, graph: u64, flags: u64) { ok((context()?.graph_instantiate)(out, graph, flags)) }
    cudaGraphInstantiateWithFlags(out: u64, graph: u64, flags: u64) { ok((context()?.graph_instantiate)(out, graph, flags)) }
    cudaGraphInstantiateWithParams(out: u64, graph: u64, params: In<u64>) {
        ok((context()?.graph_instantiate)(out, graph, params.get()?))
    }
    cudaGraphExecDestroy(exec: u64) { ok((context()?.graph_exec_destroy)(exec)) }
    cudaGraphLaunch(exec: u64, stream: u64) { ok((context()?.graph_launch)(exec, stream)) }
    cudaGraphUpload(_exec: u64, _stream: u64) { Ok(()) }
    cudaGraphGetNodes(graph: u64, nodes: u64, count: u64) { ok((context()?.graph_nodes)(graph, nodes, count)) }
    cudaGraphGetRootNodes(graph: u64, nodes: u64, count: u64) { ok((context()?.graph_roots)(graph, nodes, count)) }
    cudaGraphNodeGetType(node: u64, out: u64) { ok((context()?.graph_node_type)(node, out)) }
    cudaGraphNodeGetDependencies__cuda12(node: u64, nodes: u64, count: u64) {
        ok((context()?.graph_dependencies)(node, nodes, 0, count))
    }
    cudaGraphNodeGetDependencies_v2(node: u64, nodes: u64, edges: u64, count: u64) {
        ok((context()?.graph_dependencies)(node, nodes, edges, count))
    }
    cudaGraphNodeGetDependencies(node: u64, nodes: u64, edges: u64, count: u64) {
        ok((context()?.graph_dependencies)(node, nodes, edges, count))
    }
    cudaGraphAddEmptyNode(out: u64, graph: u64, nodes: u64, count: u64) {
        ok((context()?.graph_add_empty)(out, graph, nodes, count))
    }
    cudaGraphAddMemAllocNode(out: u64, graph: u64, nodes: u64, count: u64, params: AllocNodeParams) {
        ok((context()?.graph_add_alloc)(out, graph, nodes, count, params))
    }
    cudaGraphAddMemFreeNode(out: u64, graph: u64, nodes: u64, count: u64, addr: u64) {
        ok((context()?.graph_add_free)(out, graph, nodes, count, addr))
    }
    // `cudaGraphAddNode_v2` exists only in CUDA 12; in 13 the plain name takes the edges.
    cudaGraphAddNode__cuda12(out: u64, graph: u64, nodes: u64, count: u64, params: u64) {
        ok((context()?.graph_add_node)(out, graph, nodes, 0, count, params))
    }
    cudaGraphAddNode_v2(out: u64, graph: u64, nodes: u64, edges: u64, count: u64, params: u64) {
        ok((context()?.graph_add_node)(out, graph, nodes, edges, count, params))
    }
    cudaGraphAddNode(out: u64, graph: u64, nodes: u64, edges: u64, count: u64, params: u64) {
        ok((context()?.graph_add_node)(out, graph, nodes, edges, count, params))
    }
    cudaGraphConditionalHandleCreate(out: u64, graph: u64, default: u32, flags: u32) {
        let driver = context()?;
        let mut current = 0;
        ok((driver.ctx_current)(&raw mut current))?;
        ok((driver.graph_conditional)(out, graph, current, default, flags))
    }
    cudaGraphDebugDotPrint(_graph: u64, _path: u64, _flags: u32) { Ok(()) }
    cudaUserObjectCreate(out: Out<u64>, object: u64, _destroy: u64, _count: u32, _flags: u32) { out.put(object) }
    cudaUserObjectRetain(_object: u64, _count: u32) { Ok(()) }
    cudaUserObjectRelease(_object: u64, _count: u32) { Ok(()) }
    cudaGraphRetainUserObject(_graph: u64, _object: u64, _count: u32, _flags: u32) { Ok(()) }
    cudaGraphReleaseUserObject(_graph: u64, _object: u64, _count: u32) { Ok(()) }
}
