//! Launches a graph: runs its memory nodes.
//!
//! A failed launch changes nothing, so everything that can fail is checked before the first change.

use std::collections::BTreeMap;

use super::DriverState;
use super::device::BlockOrigin;
use super::graph::{Exec, MemoryStep};
use crate::result_code::{ApiResult, INVALID_HANDLE, INVALID_VALUE};

impl DriverState {
    /// Runs the memory nodes of a graph; returns their allocations and frees, in order.
    pub(crate) fn launch(&mut self, exec: u64, context: u64) -> ApiResult<Vec<MemoryStep>> {
        let exec = self.graphs.execs.get(&exec).ok_or(INVALID_HANDLE)?.clone();
        self.check_launch(&exec)?;
        self.charge_launch(&exec)?;
        let mut ran = Vec::new();
        if exec.auto_free {
            for (window, addr) in exec.graph.allocations() {
                let (device, pages) = self.window_and_pages(window)?;
                if device.blocks.contains_key(&addr) {
                    device.free(pages, addr)?;
                    ran.push(MemoryStep::Free { addr });
                }
            }
        }
        for step in exec.graph.steps() {
            match step {
                MemoryStep::Alloc { window, addr } => {
                    let (device, pages) = self.window_and_pages(window)?;
                    device.run_graph_alloc(pages, addr, context)?;
                }
                MemoryStep::Free { addr } => drop(self.free(addr)?),
            }
            ran.push(step);
        }
        Ok(ran)
    }

    /// Checks that allocation nodes are not live and that freed blocks are.
    fn check_launch(&self, exec: &Exec) -> ApiResult {
        let own: Vec<u64> = exec.graph.allocations().into_iter().map(|(_, addr)| addr).collect();
        let mut changed = BTreeMap::new();
        for step in exec.graph.steps() {
            let (MemoryStep::Alloc { addr, .. } | MemoryStep::Free { addr }) = step;
            let live = changed.get(&addr).copied().unwrap_or_else(|| {
                let block = self.block(addr);
                let freed_first = exec.auto_free && own.contains(&addr);
                block.is_some_and(|block| {
                    !freed_first
                        && !matches!(
                            block.home,
                            BlockOrigin::Array | BlockOrigin::Mipmapped | BlockOrigin::Ipc
                        )
                })
            });
            let allocates = matches!(step, MemoryStep::Alloc { .. });
            if live == allocates {
                return Err(INVALID_VALUE);
            }
            changed.insert(addr, allocates);
        }
        Ok(())
    }

    /// Charges the memory of all nodes, or of none.
    fn charge_launch(&mut self, exec: &Exec) -> ApiResult {
        let mut charged = Vec::new();
        for (window, addr) in exec.graph.allocations() {
            let (device, pages) = self.window_and_pages(window)?;
            match device.charge_graph_span(pages, addr) {
                Ok(true) => charged.push((window, addr)),
                Ok(false) => {}
                Err(rc) => {
                    for (window, addr) in charged {
                        let (device, pages) = self.window_and_pages(window)?;
                        device.uncharge_graph_span(pages, addr);
                    }
                    return Err(rc);
                }
            }
        }
        Ok(())
    }
}
