//! Stream capture and graphs.
//!
//! Nothing runs during a capture: allocations become nodes, and blocking calls fail and invalidate
//! the capture. A capture stores its thread and mode. A launch replays only a graph's memory nodes.

use std::collections::{BTreeMap, VecDeque};

use crate::result_code::{ApiResult, INVALID_HANDLE, STREAM_CAPTURE_UNSUPPORTED};

/// How strictly a capture (or a thread) treats blocking calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaptureMode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl CaptureMode {
    /// Converts the header's number.
    pub(crate) fn from_raw(raw: u32) -> Option<Self> {
        [Self::Global, Self::ThreadLocal, Self::Relaxed].get(raw as usize).copied()
    }
}

/// Node types, as in the public header.
pub(crate) mod kind {
    pub(crate) const KERNEL: u32 = 0;
    pub(crate) const MEMCPY: u32 = 1;
    pub(crate) const MEMSET: u32 = 2;
    pub(crate) const HOST: u32 = 3;
    pub(crate) const GRAPH: u32 = 4;
    pub(crate) const EMPTY: u32 = 5;
    pub(crate) const EVENT_RECORD: u32 = 7;
    pub(crate) const MEM_ALLOC: u32 = 10;
    pub(crate) const MEM_FREE: u32 = 11;
    pub(crate) const CONDITIONAL: u32 = 13;
}

/// The effect of a memory node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryStep {
    /// `window` is a device, or the window of host and managed memory.
    Alloc {
        window: u32,
        addr: u64,
    },
    Free {
        addr: u64,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) kind: u32,
    pub(crate) dependencies: Vec<u64>,
    /// The step of a memory node, or those of a child graph that was moved into this node.
    pub(crate) steps: Vec<MemoryStep>,
}

impl Node {
    /// A node that neither allocates nor frees.
    pub(crate) fn plain(kind: u32, dependencies: Vec<u64>) -> Self {
        Self { kind, dependencies, steps: Vec::new() }
    }

    /// An allocation or free node.
    pub(crate) fn memory(dependencies: Vec<u64>, step: MemoryStep) -> Self {
        let kind = match step {
            MemoryStep::Alloc { .. } => kind::MEM_ALLOC,
            MemoryStep::Free { .. } => kind::MEM_FREE,
        };
        Self { kind, dependencies, steps: vec![step] }
    }
}

/// A graph: its nodes in creation order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: BTreeMap<u64, Node>,
}

impl Graph {
    /// Returns the memory nodes, in order.
    pub(crate) fn steps(&self) -> Vec<MemoryStep> {
        self.nodes.values().flat_map(|node| node.steps.iter().copied()).collect()
    }

    /// Returns (window, address) of the allocation nodes.
    pub(crate) fn allocations(&self) -> Vec<(u32, u64)> {
        self.steps()
            .into_iter()
            .filter_map(|step| match step {
                MemoryStep::Alloc { window, addr } => Some((window, addr)),
                MemoryStep::Free { .. } => None,
            })
            .collect()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Exec {
    pub(crate) graph: Graph,
    pub(crate) auto_free: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Capture {
    pub(crate) origin: (u64, u64),
    pub(crate) thread: i32,
    pub(crate) mode: CaptureMode,
    pub(crate) graph: u64,
    pub(crate) spoiled: bool,
    /// The nodes that a recapture has not reached, in creation order; `None` for other captures.
    pub(crate) expected: Option<VecDeque<u64>>,
}

/// All graphs and running captures.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    pub(crate) made: BTreeMap<u64, Graph>,
    pub(crate) execs: BTreeMap<u64, Exec>,
    pub(crate) captures: BTreeMap<u64, Capture>,
}

impl Graphs {
    /// Checks a blocking call of a thread: refuses it, and invalidates every capture it endangers.
    pub(crate) fn unsafe_call(&mut self, thread: i32, mode: CaptureMode) -> ApiResult {
        let mut endangered = false;
        for capture in self.captures.values_mut() {
            let hit = match mode {
                CaptureMode::Relaxed => false,
                CaptureMode::ThreadLocal => capture.thread == thread && capture.mode != CaptureMode::Relaxed,
                CaptureMode::Global => {
                    capture.mode == CaptureMode::Global
                        || (capture.thread == thread && capture.mode != CaptureMode::Relaxed)
                }
            };
            if hit {
                capture.spoiled = true;
                endangered = true;
            }
        }
        if endangered { Err(STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Adds a node to a graph.
    pub(crate) fn add(&mut self, graph: u64, handle: u64, node: Node) -> ApiResult {
        self.made.get_mut(&graph).ok_or(INVALID_HANDLE)?.nodes.insert(handle, node);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_capture(mode: CaptureMode) -> Graphs {
        let capture = Capture { origin: (0, 9), thread: 1, mode, graph: 5, spoiled: false, expected: None };
        Graphs { captures: BTreeMap::from([(3, capture)]), ..Graphs::default() }
    }

    #[test]
    fn global_capture_is_invalidated_by_any_strict_thread() {
        let mut graphs = with_capture(CaptureMode::Global);
        assert_eq!(graphs.unsafe_call(2, CaptureMode::Relaxed), Ok(()));
        assert_eq!(graphs.unsafe_call(2, CaptureMode::ThreadLocal), Ok(()));
        assert!(!graphs.captures[&3].spoiled);
        assert_eq!(graphs.unsafe_call(2, CaptureMode::Global), Err(STREAM_CAPTURE_UNSUPPORTED));
        assert!(graphs.captures[&3].spoiled);
    }

    #[test]
    fn thread_local_capture_is_invalidated_by_own_thread_only() {
        let mut graphs = with_capture(CaptureMode::ThreadLocal);
        assert_eq!(graphs.unsafe_call(2, CaptureMode::Global), Ok(()));
        assert_eq!(graphs.unsafe_call(1, CaptureMode::ThreadLocal), Err(STREAM_CAPTURE_UNSUPPORTED));
    }

    #[test]
    fn relaxed_capture_is_never_invalidated() {
        let mut graphs = with_capture(CaptureMode::Relaxed);
        assert_eq!(graphs.unsafe_call(1, CaptureMode::Global), Ok(()));
    }
}
