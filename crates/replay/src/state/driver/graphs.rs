//! Memory of CUDA graphs.
//!
//! An allocation node takes no memory until an executable instance of its graph is launched. Its
//! block is then live until a free node, a call or the next launch (with auto-free) frees it. The
//! device keeps the memory behind the node for the next launch. It releases the memory when it is
//! trimmed, or when the block is not live and no graph or instance can launch the node.
//!
//! An instance is its graph as of instantiation, and a graph only grows. An instance is therefore
//! stored as a length, and graph and instances share one list of steps while any of them exists.
//!
//! A graph that is moved into another one gives it its steps. Cloned graphs have no memory nodes,
//! and an update of an instance changes none of them.
//!
//! These are the rules of the simulated driver (`simgpu`); they are untested on a real device. A
//! real driver may share memory between nodes that are never live together, and then hold less. It
//! may also give two nodes of a graph one address; the second one is then taken for the first.

use gpumemtrace_format::{Event, EventKind};

use super::MemoryPlace;
use crate::util::ids::StackId;
use crate::util::seeded_map::{SeededMap, SeededSet};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`: each launch first frees the graph's blocks.
const AUTO_FREE_ON_LAUNCH: u64 = 1;

/// True for all events of graphs.
pub(super) fn is_graph_event(kind: EventKind) -> bool {
    (EventKind::GRAPH_ALLOC_NODE.0..=EventKind::GRAPH_TRIM.0).contains(&kind.0)
        || kind == EventKind::GRAPH_CHILD
}

/// True for events that add a node. They apply during stream capture too.
pub(super) fn is_node_event(kind: EventKind) -> bool {
    matches!(kind, EventKind::GRAPH_ALLOC_NODE | EventKind::GRAPH_FREE_NODE)
}

/// A node of a graph, with the address that it allocates or frees.
#[derive(Clone, Copy, Debug)]
enum GraphStep {
    Alloc(u64),
    Free(u64),
}

/// An allocation node and the memory behind it.
#[derive(Clone, Copy, Debug)]
struct GraphNode {
    /// The list that it was added to.
    list: u64,
    place: MemoryPlace,
    bytes: u64,
    stack: StackId,
    /// Number of graphs and instances that can launch the node.
    owners: u32,
    /// The device holds memory for the node.
    has_memory: bool,
    /// The block is allocated to the program.
    is_live: bool,
}

/// The steps of a graph and its instances.
#[derive(Debug, Default)]
struct GraphSteps {
    steps: Vec<GraphStep>,
    /// Addresses that the steps free.
    freed: SeededSet<u64>,
    /// Number of graphs and instances that share the list.
    references: u32,
}

/// An executable graph: the first `len` steps of a list.
#[derive(Clone, Copy, Debug)]
struct GraphInstance {
    list: u64,
    len: usize,
    has_auto_free: bool,
}

/// A change of the memory that the device holds for a node.
#[derive(Clone, Copy, Debug)]
pub(super) enum GraphEffect {
    /// The device allocated memory for the node at `addr`.
    Alloc { addr: u64, place: MemoryPlace, bytes: u64, stack: StackId },
    /// The device released the memory of the node at `addr`.
    Release { addr: u64, place: MemoryPlace },
}

/// The effects of one event.
#[derive(Debug, Default)]
pub(super) struct GraphOutcome {
    /// Changes of node memory, in order.
    pub(super) effects: Vec<GraphEffect>,
    /// Addresses of blocks outside of graphs that a launch freed.
    pub(super) frees: Vec<u64>,
}

/// The graphs of a process and their memory.
#[derive(Debug, Default)]
pub(super) struct GraphMemory {
    /// Key in `lists` by graph handle.
    list_of_graph: SeededMap<u64, u64>,
    lists: SeededMap<u64, GraphSteps>,
    next_list: u64,
    instances: SeededMap<u64, GraphInstance>,
    /// Allocation nodes by the address of their block.
    nodes: SeededMap<u64, GraphNode>,
}

impl GraphMemory {
    /// Applies an event for which [`is_graph_event`] is true. `place` is that of a new allocation
    /// node.
    pub(super) fn on_event(&mut self, event: &Event, place: MemoryPlace, stack: StackId) -> GraphOutcome {
        let mut outcome = GraphOutcome::default();
        let [handle, graph] = event.aux;
        match event.kind {
            EventKind::GRAPH_ALLOC_NODE => self.add_node(event, place, stack),
            EventKind::GRAPH_FREE_NODE => {
                let list = self.list_of_graph(handle);
                if let Some(list) = self.lists.get_mut(&list)
                    && list.freed.insert(event.addr)
                {
                    list.steps.push(GraphStep::Free(event.addr));
                }
            }
            EventKind::GRAPH_CHILD => self.move_child(handle, graph),
            EventKind::GRAPH_INSTANTIATE => {
                self.instantiate(handle, graph, event.size & AUTO_FREE_ON_LAUNCH != 0);
            }
            EventKind::GRAPH_LAUNCH => self.launch(handle, &mut outcome),
            EventKind::GRAPH_DESTROY => {
                if let Some(list) = self.list_of_graph.remove(&handle) {
                    self.drop_reference(list, usize::MAX, &mut outcome.effects);
                }
            }
            EventKind::GRAPH_EXEC_DESTROY => {
                if let Some(GraphInstance { list, len, .. }) = self.instances.remove(&handle) {
                    self.drop_reference(list, len, &mut outcome.effects);
                }
            }
            EventKind::GRAPH_TRIM => {
                let place = MemoryPlace::of_device(event.device);
                let idle = self.nodes.iter_mut().filter(|(_, node)| node.place == place && !node.is_live);
                for (&addr, node) in idle.filter(|(_, node)| node.has_memory) {
                    node.has_memory = false;
                    outcome.effects.push(GraphEffect::Release { addr, place });
                }
            }
            _ => {}
        }
        outcome
    }

    fn add_node(&mut self, event: &Event, place: MemoryPlace, stack: StackId) {
        let list = self.list_of_graph(event.aux[0]);
        // The graph is captured again, with the same memory nodes.
        if self.nodes.get(&event.addr).is_some_and(|node| node.list == list) {
            return;
        }
        let node =
            GraphNode { list, place, bytes: event.size, stack, owners: 1, has_memory: false, is_live: false };
        self.nodes.insert(event.addr, node);
        if let Some(list) = self.lists.get_mut(&list) {
            list.steps.push(GraphStep::Alloc(event.addr));
        }
    }

    fn instantiate(&mut self, instance: u64, graph: u64, has_auto_free: bool) {
        let list = self.list_of_graph(graph);
        let Some(steps) = self.lists.get_mut(&list) else { return };
        steps.references += 1;
        let len = steps.steps.len();
        for addr in allocated_addresses(&steps.steps) {
            if let Some(node) = self.nodes.get_mut(&addr) {
                node.owners += 1;
            }
        }
        self.instances.insert(instance, GraphInstance { list, len, has_auto_free });
    }

    /// Frees a live block by its address; `None` if no graph allocated it.
    pub(super) fn free(&mut self, addr: u64) -> Option<Vec<GraphEffect>> {
        let node = self.nodes.get_mut(&addr).filter(|node| node.is_live)?;
        node.is_live = false;
        let mut effects = Vec::new();
        self.remove_orphan(addr, &mut effects);
        Some(effects)
    }

    /// The key of a graph's list, which is created on first use.
    fn list_of_graph(&mut self, graph: u64) -> u64 {
        *self.list_of_graph.entry(graph).or_insert_with(|| {
            self.next_list += 1;
            self.lists.insert(self.next_list, GraphSteps { references: 1, ..GraphSteps::default() });
            self.next_list
        })
    }

    /// Moves the steps of a graph to the end of another one, which owns its nodes from then on.
    fn move_child(&mut self, parent: u64, child: u64) {
        let Some(list) = self.list_of_graph.remove(&child) else { return };
        let Some(moved) = self.lists.get_mut(&list) else { return };
        // Instances of the child keep its list.
        let (steps, freed) = if moved.references == 1 {
            let moved = self.lists.remove(&list).unwrap_or_default();
            (moved.steps, moved.freed)
        } else {
            moved.references -= 1;
            (moved.steps.clone(), moved.freed.clone())
        };
        let parent = self.list_of_graph(parent);
        if let Some(list) = self.lists.get_mut(&parent) {
            list.steps.extend(steps);
            list.freed.extend(freed);
        }
    }

    fn launch(&mut self, instance: u64, outcome: &mut GraphOutcome) {
        let Some(GraphInstance { list, len, has_auto_free }) = self.instances.get(&instance).copied() else {
            return;
        };
        let steps = self.lists.get(&list).map_or_else(Vec::new, |list| list.steps[..len].to_vec());
        if has_auto_free {
            for addr in allocated_addresses(&steps) {
                if let Some(node) = self.nodes.get_mut(&addr) {
                    node.is_live = false;
                }
            }
        }
        for step in steps {
            match step {
                GraphStep::Alloc(addr) => {
                    let Some(node) = self.nodes.get_mut(&addr) else { continue };
                    node.is_live = true;
                    if !std::mem::replace(&mut node.has_memory, true) {
                        let GraphNode { place, bytes, stack, .. } = *node;
                        outcome.effects.push(GraphEffect::Alloc { addr, place, bytes, stack });
                    }
                }
                GraphStep::Free(addr) => match self.free(addr) {
                    Some(effects) => outcome.effects.extend(effects),
                    None => outcome.frees.push(addr),
                },
            }
        }
    }

    /// Drops the reference of a destroyed graph or instance, which had the first `len` steps.
    fn drop_reference(&mut self, list: u64, len: usize, effects: &mut Vec<GraphEffect>) {
        let Some(shared) = self.lists.get_mut(&list) else { return };
        let addresses = allocated_addresses(&shared.steps[..len.min(shared.steps.len())]);
        shared.references -= 1;
        if shared.references == 0 {
            self.lists.remove(&list);
        }
        for addr in addresses {
            if let Some(node) = self.nodes.get_mut(&addr) {
                node.owners = node.owners.saturating_sub(1);
            }
            self.remove_orphan(addr, effects);
        }
    }

    /// Removes a node that is not live and that nothing can launch.
    fn remove_orphan(&mut self, addr: u64, effects: &mut Vec<GraphEffect>) {
        let Some(node) = self.nodes.get(&addr).filter(|node| node.owners == 0 && !node.is_live) else {
            return;
        };
        if node.has_memory {
            effects.push(GraphEffect::Release { addr, place: node.place });
        }
        self.nodes.remove(&addr);
    }
}

fn allocated_addresses(steps: &[GraphStep]) -> Vec<u64> {
    let addresses = steps.iter().filter_map(|step| match step {
        GraphStep::Alloc(addr) => Some(*addr),
        GraphStep::Free(_) => None,
    });
    addresses.collect()
}
