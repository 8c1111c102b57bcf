//! Memory of graphs: addresses are reserved when a node is created, memory is charged at the first
//! launch and kept for later ones.

use super::{BlockOrigin, Device, DeviceBlock, LARGE_STEP, SMALL_STEP, direct_span};
use crate::result_code::{ApiResult, INVALID_VALUE, OUT_OF_MEMORY};
use crate::state::location::MemoryKind;
use crate::state::pages::Pages;

/// Memory of one allocation node, until it is not live and no graph can launch it.
#[derive(Debug, Clone, Copy)]
pub(super) struct GraphSpan {
    size: u64,
    span: u64,
    memory: MemoryKind,
    owners: u32,
    charged: bool,
}

fn raise(counter: &mut [u64; 2], by: u64) {
    counter[0] += by;
    counter[1] = counter[1].max(counter[0]);
}

impl Device {
    /// Reserves addresses for an allocation node; nothing is charged.
    pub(crate) fn reserve_graph_span(&mut self, size: u64, memory: MemoryKind) -> ApiResult<u64> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let span = direct_span(size).ok_or(OUT_OF_MEMORY)?;
        let align = if span >= LARGE_STEP { LARGE_STEP } else { SMALL_STEP };
        let addr = self.space.take(span, align).ok_or(OUT_OF_MEMORY)?;
        self.graph_spans.insert(addr, GraphSpan { size, span, memory, owners: 1, charged: false });
        Ok(addr)
    }

    /// Returns the bytes that an allocation node requested.
    pub(crate) fn graph_span_size(&self, addr: u64) -> u64 {
        self.graph_spans.get(&addr).map_or(0, |span| span.size)
    }

    /// Returns the kind of memory of an allocation node.
    pub(crate) fn graph_span_memory(&self, addr: u64) -> MemoryKind {
        self.graph_spans.get(&addr).map_or(MemoryKind::Device, |span| span.memory)
    }

    /// Adds a graph that can launch this node.
    pub(crate) fn share_graph_span(&mut self, addr: u64) {
        if let Some(span) = self.graph_spans.get_mut(&addr) {
            span.owners += 1;
        }
    }

    /// Removes a graph that can launch this node.
    pub(crate) fn disown_graph_span(&mut self, pages: &mut dyn Pages, addr: u64) {
        if let Some(span) = self.graph_spans.get_mut(&addr) {
            span.owners -= 1;
            self.drop_graph_span_if_orphaned(pages, addr);
        }
    }

    /// Charges a node's memory before it runs; returns whether that was new.
    pub(crate) fn charge_graph_span(&mut self, pages: &mut dyn Pages, addr: u64) -> ApiResult<bool> {
        let node = *self.graph_spans.get(&addr).ok_or(INVALID_VALUE)?;
        if node.charged {
            return Ok(false);
        }
        self.charge(pages, node.span)?;
        if !pages.commit(addr, node.span) {
            self.refund(node.span);
            return Err(OUT_OF_MEMORY);
        }
        raise(&mut self.graph_reserved, node.span);
        self.slack += node.span - node.size;
        if let Some(node) = self.graph_spans.get_mut(&addr) {
            node.charged = true;
        }
        Ok(true)
    }

    /// Runs a node: charges its memory and makes its block live. Fails if the block is still live.
    pub(crate) fn run_graph_alloc(&mut self, pages: &mut dyn Pages, addr: u64, context: u64) -> ApiResult {
        if self.blocks.contains_key(&addr) {
            return Err(INVALID_VALUE);
        }
        self.charge_graph_span(pages, addr)?;
        let node = *self.graph_spans.get(&addr).ok_or(INVALID_VALUE)?;
        raise(&mut self.graph_used, node.span);
        self.blocks.insert(
            addr,
            DeviceBlock {
                size: node.size,
                span: node.span,
                charge: 0,
                home: BlockOrigin::Graph,
                memory: node.memory,
                context,
                id: super::new_block_id(),
            },
        );
        Ok(())
    }

    /// Frees the memory of nodes that are not live (`cuDeviceGraphMemTrim`).
    pub(crate) fn trim_graphs(&mut self, pages: &mut dyn Pages) -> u64 {
        let idle: Vec<u64> =
            self.graph_spans.keys().copied().filter(|addr| !self.blocks.contains_key(addr)).collect();
        idle.into_iter().map(|addr| self.uncharge_graph_span(pages, addr)).sum()
    }

    /// Frees the memory of one node, if it is not live.
    pub(crate) fn uncharge_graph_span(&mut self, pages: &mut dyn Pages, addr: u64) -> u64 {
        let Some(node) = self.graph_spans.get_mut(&addr).filter(|node| node.charged) else { return 0 };
        node.charged = false;
        let span = node.span;
        self.slack -= span - node.size;
        pages.decommit(addr, span);
        self.refund(span);
        self.graph_reserved[0] -= span;
        span
    }

    pub(super) fn drop_graph_span_if_orphaned(&mut self, pages: &mut dyn Pages, addr: u64) {
        let orphaned = self.graph_spans.get(&addr).is_some_and(|node| node.owners == 0);
        if orphaned && !self.blocks.contains_key(&addr) {
            self.uncharge_graph_span(pages, addr);
            if let Some(node) = self.graph_spans.remove(&addr) {
                self.space.give_back(addr, node.span);
            }
        }
    }
}
