//! Graphs: built by capture or node by node, instantiated, launched.

use std::fmt::Write as _;

use crate::api::streams::key_of;
use crate::entry::{current, exports, logged, with_state};
use crate::ffi::{In, Out};
use crate::log::LogRecord;
use crate::result_code::{ApiResult, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::state::DriverState;
use crate::state::graph::{Exec, Graph, MemoryStep, Node, kind};
use crate::state::location::{Location, log_ordinal};

const AUTO_FREE_ON_LAUNCH: u64 = 1;

fn add_node(state: &mut DriverState, out: Out<u64>, graph: u64, node: Node) -> ApiResult {
    out.check()?;
    let handle = state.handle();
    state.graphs.add(graph, handle, node)?;
    out.put(handle)
}

fn plain_node(out: Out<u64>, graph: u64, dependencies: In<u64>, count: u64, kind: u32) -> ApiResult {
    with_state(|state| {
        let dependencies = dependencies.list(count as usize)?;
        add_node(state, out, graph, Node::plain(kind, dependencies))
    })
}

fn instantiate(api: &'static str, out: Out<u64>, graph: u64, flags: u64) -> ApiResult {
    let mut asked = LogRecord::for_size(flags);
    asked.push_hex_field("graph", graph);
    logged(api, asked, |state, record| {
        out.check()?;
        let graph = state.graphs.made.get(&graph).ok_or(INVALID_HANDLE)?.clone();
        for (window, addr) in graph.allocations() {
            state.window(window)?.share_graph_span(addr);
        }
        let handle = state.handle();
        record.push_hex_field("exec", handle);
        state.graphs.execs.insert(handle, Exec { graph, auto_free: flags & AUTO_FREE_ON_LAUNCH != 0 });
        out.put(handle)
    })
}

fn upload(api: &'static str, exec: u64, stream: u64) -> ApiResult {
    let mut asked = LogRecord::default().with_stream(stream);
    asked.push_hex_field("exec", exec);
    logged(api, asked, |state, _| state.graphs.execs.get(&exec).map(|_| ()).ok_or(INVALID_HANDLE))
}

fn launch(api: &'static str, exec: u64, stream: u64, per_thread: bool) -> ApiResult {
    let mut asked = LogRecord::default().with_stream(stream);
    asked.push_hex_field("exec", exec);
    logged(api, asked, |state, record| {
        let current = current(state)?;
        let key = key_of(state, current, stream, per_thread)?;
        if !state.graphs.execs.contains_key(&exec) {
            return Err(INVALID_HANDLE);
        }
        if state.captured_work(key, kind::GRAPH)? {
            record.push_field("captured", 1);
            return Ok(());
        }
        for step in state.launch(exec, current.context)? {
            let _ = match step {
                MemoryStep::Alloc { window, addr } => {
                    let window = state.window(window)?;
                    let size = window.graph_span_size(addr);
                    match window.graph_span_memory(addr).log_name() {
                        Some(name) => write!(record.extra, " alloc={addr:#x}:{size}:{name}"),
                        None => write!(record.extra, " alloc={addr:#x}:{size}"),
                    }
                }
                MemoryStep::Free { addr } => write!(record.extra, " free={addr:#x}"),
            };
        }
        Ok(())
    })
}

fn node_list(out: Out<u64>, count: Out<u64>, nodes: &[u64]) -> ApiResult {
    let room = if out.check().is_ok() { count.current()? } else { 0 };
    out.put_all(nodes.iter().copied().take(room as usize));
    count.put(if out.check().is_ok() { room.min(nodes.len() as u64) } else { nodes.len() as u64 })
}

fn find_node(state: &DriverState, node: u64) -> ApiResult<&Node> {
    state.graphs.made.values().find_map(|graph| graph.nodes.get(&node)).ok_or(INVALID_HANDLE)
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`: pool properties (88 bytes), access descriptors, size, result.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllocNodeParams {
    kind: u32,
    handle_types: u32,
    location_type: u32,
    location_id: i32,
    rest: [u64; 9],
    access: u64,
    access_count: u64,
    size: u64,
    addr: u64,
}

fn add_alloc_node(
    state: &mut DriverState,
    out: Out<u64>,
    graph: u64,
    dependencies: Vec<u64>,
    location: Location,
    size: u64,
) -> ApiResult<u64> {
    if location.named_device().is_some_and(|device| device >= state.config.devices) {
        return Err(INVALID_DEVICE);
    }
    if !state.graphs.made.contains_key(&graph) {
        return Err(INVALID_HANDLE);
    }
    let window = location.window();
    let addr = state.window(window)?.reserve_graph_span(size, location.memory())?;
    add_node(state, out, graph, Node::memory(dependencies, MemoryStep::Alloc { window, addr }))?;
    Ok(addr)
}

// `CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE`.
const MOVE: u32 = 1;

/// Adds a copy of a graph. It may not contain memory nodes.
fn clone_child(out: Out<u64>, graph: u64, dependencies: In<u64>, count: u64, child: u64) -> ApiResult {
    with_state(|state| {
        if !state.graphs.made.get(&child).ok_or(INVALID_HANDLE)?.steps().is_empty() {
            return Err(NOT_SUPPORTED);
        }
        let dependencies = dependencies.list(count as usize)?;
        add_node(state, out, graph, Node::plain(kind::GRAPH, dependencies))
    })
}

/// Moves a graph into another one. From then on its handle cannot be instantiated, destroyed or
/// moved again.
fn move_child(
    api: &'static str,
    out: Out<u64>,
    graph: u64,
    dependencies: In<u64>,
    count: u64,
    child: u64,
) -> ApiResult {
    let mut asked = LogRecord::default();
    asked.push_hex_field("graph", graph);
    asked.push_hex_field("child", child);
    logged(api, asked, |state, _| {
        let dependencies = dependencies.list(count as usize)?;
        if graph == child || !state.graphs.made.contains_key(&graph) {
            return Err(INVALID_VALUE);
        }
        out.check()?;
        let steps = state.graphs.made.remove(&child).ok_or(INVALID_HANDLE)?.steps();
        add_node(state, out, graph, Node { steps, ..Node::plain(kind::GRAPH, dependencies) })
    })
}

/// `CUgraphNodeParams`: the type at 0, a union of 232 bytes at 16, here as words.
type NodeParams = [u64; 32];

fn add_any_node(
    api: &'static str,
    out: Out<u64>,
    graph: u64,
    dependencies: In<u64>,
    count: u64,
    params: Out<NodeParams>,
) -> ApiResult {
    let [first, _, child, ownership, ..] = params.current()?;
    let node_kind = first as u32;
    if node_kind == kind::GRAPH {
        return if ownership as u32 == MOVE {
            move_child(api, out, graph, dependencies, count, child)
        } else {
            clone_child(out, graph, dependencies, count, child)
        };
    }
    if node_kind != kind::MEM_ALLOC && node_kind != kind::MEM_FREE {
        return plain_node(out, graph, dependencies, count, node_kind);
    }
    let mut asked = LogRecord::default();
    asked.push_hex_field("graph", graph);
    logged(api, asked, |state, record| {
        let dependencies = dependencies.list(count as usize)?;
        let mut words = params.current()?;
        if node_kind == kind::MEM_FREE {
            record.addr = words[2];
            let node = Node::memory(dependencies, MemoryStep::Free { addr: words[2] });
            return add_node(state, out, graph, node);
        }
        // In the union: pool properties from word 2 (location at byte 8), size at byte 120, address
        // at byte 128.
        let location = Location::new(words[2] as u32, words[3] as u32, (words[3] >> 32) as i32)?;
        record.device = log_ordinal(location.window());
        record.push_memory(location.memory());
        record.size = words[15];
        record.addr = add_alloc_node(state, out, graph, dependencies, location, words[15])?;
        words[16] = record.addr;
        params.put(words)
    })
}

exports! {
    plain 10000 cuGraphCreate(out: Out<u64>, _flags: u32) {
        with_state(|state| {
            out.check()?;
            let handle = state.handle();
            state.graphs.made.insert(handle, Graph::default());
            out.put(handle)
        })
    }
    memory 10000 cuGraphDestroy(graph: u64) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("graph", graph);
        logged(API, asked, |state, _| {
            let graph = state.graphs.made.remove(&graph).ok_or(INVALID_HANDLE)?;
            state.drop_allocations(graph.allocations());
            Ok(())
        })
    }
    plain 10000 cuGraphClone(out: Out<u64>, graph: u64) {
        with_state(|state| {
            out.check()?;
            let graph = state.graphs.made.get(&graph).ok_or(INVALID_HANDLE)?.clone();
            // As on a device, a graph with memory nodes cannot become a child graph.
            if !graph.steps().is_empty() {
                return Err(NOT_SUPPORTED);
            }
            let handle = state.handle();
            state.graphs.made.insert(handle, graph);
            out.put(handle)
        })
    }
    plain 10000 cuGraphGetNodes(graph: u64, out: Out<u64>, count: Out<u64>) {
        with_state(|state| {
            let graph = state.graphs.made.get(&graph).ok_or(INVALID_HANDLE)?;
            node_list(out, count, &graph.nodes.keys().copied().collect::<Vec<_>>())
        })
    }
    plain 10000 cuGraphGetRootNodes(graph: u64, out: Out<u64>, count: Out<u64>) {
        with_state(|state| {
            let graph = state.graphs.made.get(&graph).ok_or(INVALID_HANDLE)?;
            let roots = graph.nodes.iter().filter(|(_, node)| node.dependencies.is_empty());
            node_list(out, count, &roots.map(|(&handle, _)| handle).collect::<Vec<_>>())
        })
    }
    plain 10000 cuGraphNodeGetType(node: u64, out: Out<u32>) {
        with_state(|state| out.put(find_node(state, node)?.kind))
    }
    plain 10000 cuGraphNodeGetDependencies(node: u64, out: Out<u64>, count: Out<u64>) {
        with_state(|state| node_list(out, count, &find_node(state, node)?.dependencies))
    }
    plain 12030 cuGraphNodeGetDependencies_v2(node: u64, out: Out<u64>, _edges: Out<u64>, count: Out<u64>) {
        with_state(|state| node_list(out, count, &find_node(state, node)?.dependencies))
    }
    plain 10000 cuGraphDestroyNode(node: u64) {
        with_state(|state| {
            let graph = state.graphs.made.values_mut().find(|graph| graph.nodes.contains_key(&node)).ok_or(INVALID_HANDLE)?;
            if graph.nodes.get(&node).is_some_and(|node| !node.steps.is_empty()) {
                return Err(NOT_SUPPORTED);
            }
            graph.nodes.remove(&node);
            Ok(())
        })
    }
    plain 10000 cuGraphAddDependencies(_graph: u64, _from: In<u64>, _to: In<u64>, _count: u64) { Ok(()) }
    plain 10000 cuGraphAddEmptyNode(out: Out<u64>, graph: u64, dependencies: In<u64>, count: u64) {
        plain_node(out, graph, dependencies, count, kind::EMPTY)
    }
    plain 10000 cuGraphAddKernelNode_v2(out: Out<u64>, graph: u64, dependencies: In<u64>, count: u64, _params: In<u8>) {
        plain_node(out, graph, dependencies, count, kind::KERNEL)
    }
    plain 10000 cuGraphAddMemcpyNode(out: Out<u64>, graph: u64, dependencies: In<u64>, count: u64, _params: In<u8>, _context: u64) {
        plain_node(out, graph, dependencies, count, kind::MEMCPY)
    }
    plain 10000 cuGraphAddMemsetNode(out: Out<u64>, graph: u64, dependencies: In<u64>, count: u64, _params: In<u8>, _context: u64) {
        plain_node(out, graph, dependencies, count, kind::MEMSET)
    }
    plain 10000 cuGraphAddHostNode(out: Out<u64>, graph: u64, dependencies: In<u64>, count: u64, _params: In<u8>) {
        plain_node(out, graph, dependencies, count, kind::HOST)
    }
    plain 10000 cuGraphAddChildGraphNode(out: Out<u64>, graph: u64, dependencies: In<u64>, count: u64, child: u64) {
        clone_child(out, graph, dependencies, count, child)
    }
    plain 11010 cuGraphAddEventRecordNode(out: Out<u64>, graph: u64, dependencies: In<u64>, count: u64, _event: u64) {
        plain_node(out, graph, dependencies, count, kind::EVENT_RECORD)
    }
    memory 11040 cuGraphAddMemAllocNode(out: Out<u64>, graph: u64, dependencies: In<u64>, count: u64, params: Out<AllocNodeParams>) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("graph", graph);
        logged(API, asked, |state, record| {
            let mut params_now = params.current()?;
            record.size = params_now.size;
            let location = Location::new(params_now.kind, params_now.location_type, params_now.location_id)?;
            record.device = log_ordinal(location.window());
            record.push_memory(location.memory());
            let dependencies = dependencies.list(count as usize)?;
            record.addr = add_alloc_node(state, out, graph, dependencies, location, params_now.size)?;
            params_now.addr = record.addr;
            params.put(params_now)
        })
    }
    memory 11040 cuGraphAddMemFreeNode(out: Out<u64>, graph: u64, dependencies: In<u64>, count: u64, addr: u64) {
        let mut asked = LogRecord::for_address(addr);
        asked.push_hex_field("graph", graph);
        logged(API, asked, |state, _| {
            let dependencies = dependencies.list(count as usize)?;
            add_node(state, out, graph, Node::memory(dependencies, MemoryStep::Free { addr }))
        })
    }
    memory 12020 cuGraphAddNode(out: Out<u64>, graph: u64, dependencies: In<u64>, count: u64, params: Out<NodeParams>) {
        add_any_node(API, out, graph, dependencies, count, params)
    }
    memory 12030 cuGraphAddNode_v2(
        out: Out<u64>, graph: u64, dependencies: In<u64>, _edges: In<u64>, count: u64, params: Out<NodeParams>,
    ) {
        add_any_node(API, out, graph, dependencies, count, params)
    }
    memory 13040 cuGraphAddNode_v3(
        out: Out<u64>, graph: u64, dependencies: In<u64>, _edges: In<u64>, count: u64, params: Out<NodeParams>,
    ) {
        add_any_node(API, out, graph, dependencies, count, params)
    }
    plain 12030 cuGraphConditionalHandleCreate(out: Out<u64>, graph: u64, _context: u64, _default: u32, _flags: u32) {
        with_state(|state| {
            if !state.graphs.made.contains_key(&graph) {
                return Err(INVALID_HANDLE);
            }
            // The device would choose the branch; no kernel runs here.
            debug_assert_eq!(kind::CONDITIONAL, 13);
            out.put(state.handle())
        })
    }
    memory 10000 cuGraphInstantiate(out: Out<u64>, graph: u64, _node: Out<u64>, _text: Out<u8>, _size: u64) {
        instantiate(API, out, graph, 0)
    }
    memory 11000 cuGraphInstantiate_v2(out: Out<u64>, graph: u64, _node: Out<u64>, _text: Out<u8>, _size: u64) {
        instantiate(API, out, graph, 0)
    }
    memory 11040 cuGraphInstantiateWithFlags(out: Out<u64>, graph: u64, flags: u64) { instantiate(API, out, graph, flags) }
    memory 12000 cuGraphInstantiateWithParams(out: Out<u64>, graph: u64, params: In<u64>) {
        instantiate(API, out, graph, params.get().unwrap_or(0))
    }
    memory 12000 cuGraphInstantiateWithParams_ptsz(out: Out<u64>, graph: u64, params: In<u64>) {
        instantiate(API, out, graph, params.get().unwrap_or(0))
    }
    memory 10000 cuGraphExecDestroy(exec: u64) {
        let mut asked = LogRecord::default();
        asked.push_hex_field("exec", exec);
        logged(API, asked, |state, _| {
            let exec = state.graphs.execs.remove(&exec).ok_or(INVALID_HANDLE)?;
            state.drop_allocations(exec.graph.allocations());
            Ok(())
        })
    }
    memory 10000 cuGraphLaunch(exec: u64, stream: u64) { launch(API, exec, stream, false) }
    memory 10000 cuGraphLaunch_ptsz(exec: u64, stream: u64) { launch(API, exec, stream, true) }
    memory 11010 cuGraphUpload(exec: u64, stream: u64) { upload(API, exec, stream) }
    memory 11010 cuGraphUpload_ptsz(exec: u64, stream: u64) { upload(API, exec, stream) }
    plain 12000 cuGraphExecGetFlags(exec: u64, out: Out<u64>) {
        with_state(|state| out.put(u64::from(state.graphs.execs.get(&exec).ok_or(INVALID_HANDLE)?.auto_free)))
    }
    plain 11030 cuGraphDebugDotPrint(_graph: u64, _path: crate::ffi::Text, _flags: u32) { Ok(()) }
    plain 11030 cuUserObjectCreate(out: Out<u64>, _object: u64, _destroy: u64, _count: u32, _flags: u32) {
        with_state(|state| out.put(state.handle()))
    }
    plain 11030 cuUserObjectRetain(_object: u64, _count: u32) { Ok(()) }
    plain 11030 cuUserObjectRelease(_object: u64, _count: u32) { Ok(()) }
    plain 11030 cuGraphRetainUserObject(_graph: u64, _object: u64, _count: u32, _flags: u32) { Ok(()) }
    plain 11030 cuGraphReleaseUserObject(_graph: u64, _object: u64, _count: u32) { Ok(()) }
    memory 11040 cuDeviceGraphMemTrim(device: u32) {
        logged(API, LogRecord::default(), |state, record| {
            record.device = device as i32;
            let (device, pages) = state.device_and_pages(device)?;
            record.push_field("freed", device.trim_graphs(pages));
            Ok(())
        })
    }
    plain 11040 cuDeviceGetGraphMemAttribute(device: u32, attribute: u32, out: Out<u64>) {
        with_state(|state| {
            let device = state.device(device)?;
            let value = [device.graph_used, device.graph_reserved].concat().get(attribute as usize).copied();
            out.put(value.ok_or(INVALID_VALUE)?)
        })
    }
    plain 11040 cuDeviceSetGraphMemAttribute(device: u32, attribute: u32, _value: In<u64>) {
        with_state(|state| {
            let device = state.device(device)?;
            match attribute {
                1 => device.graph_used[1] = device.graph_used[0],
                3 => device.graph_reserved[1] = device.graph_reserved[0],
                _ => return Err(INVALID_VALUE),
            }
            Ok(())
        })
    }
}
