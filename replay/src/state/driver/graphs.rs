//! Memory of graphs.
//!
//! A node that allocates costs nothing until an executable instance of its graph is launched; then its block is live until a
//! node, a call or the next launch (with the flag for it) frees it. The device keeps the memory behind a node for the next
//! launch, until it is trimmed, or until no graph and no instance can launch the node any more and its block is not live.
//!
//! An instance is its graph as it was when it was made, and a graph only grows. Consequence: an instance is a length, and the
//! steps are kept once, for as long as the graph or any instance of it can launch them.
//!
//! These are the rules of the simulated driver. That real ones keep to them has not been verified on a device: they may share
//! memory between nodes that are never live at the same time, and then hold less.

use gpumemtrace_format::{Event, EventKind};

use super::MemoryPlace;
use crate::callsite::symbols::StackId;
use crate::util::seeded_map::SeededMap;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE_ON_LAUNCH: u64 = 1;

/// True for calls about graphs.
pub(super) fn concerns(kind: EventKind) -> bool {
    (EventKind::GRAPH_ALLOC_NODE.0..=EventKind::GRAPH_TRIM.0).contains(&kind.0)
}

/// True for nodes, which come by capture too.
pub(super) fn is_node(kind: EventKind) -> bool {
    matches!(kind, EventKind::GRAPH_ALLOC_NODE | EventKind::GRAPH_FREE_NODE)
}

#[derive(Clone, Copy, Debug)]
enum GraphStep {
    Alloc(u64),
    Free(u64),
}

/// The memory behind an allocating node.
#[derive(Clone, Copy, Debug)]
struct GraphNode {
    place: MemoryPlace,
    bytes: u64,
    stack: StackId,
    /// Graphs and instances that can launch it.
    owners: u32,
    /// The device holds memory for it.
    charged: bool,
    /// Its block is the program's.
    live: bool,
}

/// The steps of a graph, and how many graphs and instances they are.
#[derive(Debug, Default)]
struct GraphSteps {
    steps: Vec<GraphStep>,
    holders: u32,
}

/// An executable graph: the first steps of a list.
#[derive(Clone, Copy, Debug)]
struct GraphInstance {
    list: u64,
    len: usize,
    auto_free: bool,
}

/// What happened to the device's memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum GraphEffect {
    /// The device took memory for a node.
    Charge { addr: u64, place: MemoryPlace, bytes: u64, stack: StackId },
    /// The device gave it back.
    Uncharge { addr: u64, place: MemoryPlace },
}

/// What an event did.
#[derive(Debug, Default)]
pub(super) struct GraphOutcome {
    /// To memory of graphs.
    pub(super) effects: Vec<GraphEffect>,
    /// Addresses of other blocks that a launch freed.
    pub(super) frees: Vec<u64>,
}

/// All graphs.
#[derive(Debug, Default)]
pub(super) struct GraphMemory {
    /// Handle of a graph to its list.
    list_of_graph: SeededMap<u64, u64>,
    lists: SeededMap<u64, GraphSteps>,
    next_list: u64,
    instances: SeededMap<u64, GraphInstance>,
    nodes: SeededMap<u64, GraphNode>,
}

impl GraphMemory {
    /// Takes an event of a kind that [`concerns`] graphs.
    pub(super) fn event(&mut self, event: &Event, stack: StackId) -> GraphOutcome {
        let mut outcome = GraphOutcome::default();
        let [handle, of] = event.aux;
        match event.kind {
            EventKind::GRAPH_ALLOC_NODE => {
                let place = MemoryPlace::of(event.device);
                let node =
                    GraphNode { place, bytes: event.size, stack, owners: 1, charged: false, live: false };
                self.nodes.insert(event.addr, node);
                self.add(handle, GraphStep::Alloc(event.addr));
            }
            EventKind::GRAPH_FREE_NODE => self.add(handle, GraphStep::Free(event.addr)),
            EventKind::GRAPH_INSTANTIATE => {
                let auto_free = event.size & AUTO_FREE_ON_LAUNCH != 0;
                let list = self.list_of(of);
                let Some(steps) = self.lists.get_mut(&list) else { return outcome };
                steps.holders += 1;
                let len = steps.steps.len();
                for addr in allocations(&steps.steps) {
                    if let Some(node) = self.nodes.get_mut(&addr) {
                        node.owners += 1;
                    }
                }
                self.instances.insert(handle, GraphInstance { list, len, auto_free });
            }
            EventKind::GRAPH_LAUNCH => self.launch(handle, &mut outcome),
            EventKind::GRAPH_DESTROY => {
                if let Some(list) = self.list_of_graph.remove(&handle) {
                    self.let_go(list, usize::MAX, &mut outcome.effects);
                }
            }
            EventKind::GRAPH_EXEC_DESTROY => {
                if let Some(GraphInstance { list, len, .. }) = self.instances.remove(&handle) {
                    self.let_go(list, len, &mut outcome.effects);
                }
            }
            EventKind::GRAPH_TRIM => {
                let place = MemoryPlace::of(event.device);
                let idle = self.nodes.iter_mut().filter(|(_, node)| node.place == place && !node.live);
                for (&addr, node) in idle.filter(|(_, node)| node.charged) {
                    node.charged = false;
                    outcome.effects.push(GraphEffect::Uncharge { addr, place });
                }
            }
            _ => {}
        }
        outcome
    }

    /// The program frees a block by its address; `None` if it is not a graph's.
    pub(super) fn free(&mut self, addr: u64) -> Option<Vec<GraphEffect>> {
        let node = self.nodes.get_mut(&addr).filter(|node| node.live)?;
        node.live = false;
        let mut effects = Vec::new();
        self.drop_if_orphaned(addr, &mut effects);
        Some(effects)
    }

    /// The list of a graph; a new one for a graph that is met for the first time.
    fn list_of(&mut self, graph: u64) -> u64 {
        *self.list_of_graph.entry(graph).or_insert_with(|| {
            self.next_list += 1;
            self.lists.insert(self.next_list, GraphSteps { steps: Vec::new(), holders: 1 });
            self.next_list
        })
    }

    fn add(&mut self, graph: u64, step: GraphStep) {
        let list = self.list_of(graph);
        if let Some(list) = self.lists.get_mut(&list) {
            list.steps.push(step);
        }
    }

    fn launch(&mut self, instance: u64, outcome: &mut GraphOutcome) {
        let Some(GraphInstance { list, len, auto_free }) = self.instances.get(&instance).copied() else {
            return;
        };
        let steps = self.lists.get(&list).map_or_else(Vec::new, |list| list.steps[..len].to_vec());
        if auto_free {
            for addr in allocations(&steps) {
                if let Some(node) = self.nodes.get_mut(&addr) {
                    node.live = false;
                }
            }
        }
        for step in steps {
            match step {
                GraphStep::Alloc(addr) => {
                    let Some(node) = self.nodes.get_mut(&addr) else { continue };
                    node.live = true;
                    if !std::mem::replace(&mut node.charged, true) {
                        let GraphNode { place, bytes, stack, .. } = *node;
                        outcome.effects.push(GraphEffect::Charge { addr, place, bytes, stack });
                    }
                }
                GraphStep::Free(addr) => match self.free(addr) {
                    Some(effects) => outcome.effects.extend(effects),
                    None => outcome.frees.push(addr),
                },
            }
        }
    }

    /// A graph or an instance, which had so many of a list's steps, is gone.
    fn let_go(&mut self, list: u64, len: usize, effects: &mut Vec<GraphEffect>) {
        let Some(held) = self.lists.get_mut(&list) else { return };
        let addresses = allocations(&held.steps[..len.min(held.steps.len())]);
        held.holders -= 1;
        if held.holders == 0 {
            self.lists.remove(&list);
        }
        for addr in addresses {
            if let Some(node) = self.nodes.get_mut(&addr) {
                node.owners = node.owners.saturating_sub(1);
            }
            self.drop_if_orphaned(addr, effects);
        }
    }

    fn drop_if_orphaned(&mut self, addr: u64, effects: &mut Vec<GraphEffect>) {
        let Some(node) = self.nodes.get(&addr).filter(|node| node.owners == 0 && !node.live) else { return };
        if node.charged {
            effects.push(GraphEffect::Uncharge { addr, place: node.place });
        }
        self.nodes.remove(&addr);
    }
}

fn allocations(steps: &[GraphStep]) -> Vec<u64> {
    let addresses = steps.iter().filter_map(|step| match step {
        GraphStep::Alloc(addr) => Some(*addr),
        GraphStep::Free(_) => None,
    });
    addresses.collect()
}
