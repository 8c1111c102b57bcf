//! The state of the simulated driver: plain data behind one lock.
//!
//! One lock covers all devices, because the log must have calls in the order of their changes. The
//! modules here use no `unsafe` (except `pages`) and no C types; `api` translates.

pub(crate) mod device;
pub(crate) mod foreign;
pub(crate) mod graph;
mod launch;
pub(crate) mod location;
pub(crate) mod pages;
pub(crate) mod pool;
pub(crate) mod space;
pub(crate) mod vmm;
mod windows;

use std::collections::BTreeMap;
use std::time::Instant;

use crate::config::Config;
use crate::result_code::{
    ApiResult, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_DEVICE, INVALID_VALUE,
    OUT_OF_MEMORY,
};
use device::Device;
use foreign::Foreign;
use graph::{Graphs, Node};
use location::Location;
use pages::Pages;
use vmm::{Refund, Vmm};

/// Size of each address window (devices, reservations); halved if the host refuses.
const DEVICE_WINDOW: u64 = 4 << 40;
const VMM_WINDOW: u64 = 16 << 40;
/// Size of the window part for module globals, which are not charged.
const GLOBALS: u64 = 64 << 20;
/// Bytes per module global: real sizes are in the device code, which is never read.
pub(crate) const GLOBAL_SIZE: u64 = 64 << 10;

/// A context. Each device's primary context always exists and is active while retained.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: u32,
    pub(crate) primary: bool,
    pub(crate) retains: u32,
    pub(crate) active: bool,
    pub(crate) flags: u32,
}

/// A stream: handles 1 (legacy) and 2 (per thread) exist per context, all others are global.
pub(crate) type StreamKey = (u64, u64);

#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) context: u64,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) busy_until: Option<Instant>,
    pub(crate) capture: Option<u64>,
    /// The nodes that the next captured call depends on.
    pub(crate) tail: Vec<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) flags: u32,
    /// The stream of its last record.
    pub(crate) stream: Option<StreamKey>,
    pub(crate) recorded: Option<Instant>,
    pub(crate) done: Option<Instant>,
    /// The capture of its last record, with the nodes it depends on.
    pub(crate) captured: Option<(u64, Vec<u64>)>,
}

/// Pinned or registered host memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostBlock {
    pub(crate) size: u64,
    pub(crate) flags: u32,
    /// Registered: the program owns the memory.
    pub(crate) registered: bool,
    pub(crate) context: u64,
}

/// The pools of one location.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocationPools {
    pub(crate) default: u64,
    pub(crate) current: u64,
}

/// The driver's state in this process.
pub(crate) struct DriverState {
    pub(crate) config: Config,
    pub(crate) pages: Box<dyn Pages>,
    pub(crate) devices: Vec<Device>,
    /// Host and managed memory of pools and graphs; created at first use.
    off_device: BTreeMap<u32, Device>,
    /// The default and current pool of each location that is no device.
    off_device_pools: BTreeMap<Location, LocationPools>,
    pub(crate) contexts: BTreeMap<u64, Context>,
    pub(crate) streams: BTreeMap<StreamKey, Stream>,
    pub(crate) events: BTreeMap<u64, Event>,
    pub(crate) host: BTreeMap<u64, HostBlock>,
    /// Bytes of all blocks in `host`.
    host_bytes: u64,
    pub(crate) vmm: Option<Vmm>,
    pub(crate) graphs: Graphs,
    pub(crate) foreign: Foreign,
    /// Devices of green contexts, by handle.
    pub(crate) greens: BTreeMap<u64, u32>,
    /// Enabled peer accesses: (from, to) devices.
    pub(crate) peers: Vec<(u32, u32)>,
    globals: Vec<BTreeMap<(u64, Vec<u8>), u64>>,
    globals_base: Vec<u64>,
    next_handle: u64,
}

impl DriverState {
    /// Reserves the address windows and creates the devices.
    pub(crate) fn new(config: &Config, mut pages: Box<dyn Pages>) -> ApiResult<Self> {
        let mut state = Self {
            devices: Vec::new(),
            off_device: BTreeMap::new(),
            off_device_pools: BTreeMap::new(),
            contexts: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            host: BTreeMap::new(),
            host_bytes: 0,
            vmm: None,
            graphs: Graphs::default(),
            foreign: Foreign::default(),
            greens: BTreeMap::new(),
            peers: Vec::new(),
            globals: Vec::new(),
            globals_base: Vec::new(),
            // Handles resemble heap pointers; 0, 1 and 2 are special streams.
            next_handle: 0x5100_0000_0000,
            config: config.clone(),
            pages: Box::new(pages::HostPages::default()),
        };
        for device in 0..config.devices {
            let (base, len) =
                [DEVICE_WINDOW, 1 << 40, config.memory.saturating_mul(4), config.memory + GLOBALS]
                    .into_iter()
                    .filter(|&len| len >= config.memory + GLOBALS)
                    .find_map(|len| Some((pages.reserve(len)?, len)))
                    .ok_or(OUT_OF_MEMORY)?;
            let pool = state.handle();
            state.devices.push(Device::new(device, config.memory, base, len - GLOBALS, pool));
            state.globals.push(BTreeMap::new());
            state.globals_base.push(base + len - GLOBALS);
            let context = state.handle();
            let primary = Context { device, primary: true, retains: 0, active: false, flags: 0 };
            state.contexts.insert(context, primary);
        }
        state.pages = pages;
        Ok(state)
    }

    /// Returns a new, unique handle.
    pub(crate) fn handle(&mut self) -> u64 {
        self.next_handle += 0x40;
        self.next_handle
    }

    /// Returns a device by ordinal.
    pub(crate) fn device(&mut self, ordinal: u32) -> ApiResult<&mut Device> {
        self.devices.get_mut(ordinal as usize).ok_or(INVALID_DEVICE)
    }

    /// Returns a device together with the host's pages.
    pub(crate) fn device_and_pages(&mut self, ordinal: u32) -> ApiResult<(&mut Device, &mut dyn Pages)> {
        let device = self.devices.get_mut(ordinal as usize).ok_or(INVALID_DEVICE)?;
        Ok((device, self.pages.as_mut()))
    }

    /// Returns the device with an address in its window.
    pub(crate) fn device_of(&self, addr: u64) -> Option<u32> {
        self.devices.iter().position(|device| device.owns(addr)).map(|at| at as u32)
    }

    /// Returns virtual memory management; the first call reserves its address window.
    pub(crate) fn vmm(&mut self) -> ApiResult<&mut Vmm> {
        if self.vmm.is_none() {
            let total: u64 = self.devices.iter().map(|device| device.capacity).sum();
            let (base, len) = [VMM_WINDOW, DEVICE_WINDOW, 1 << 40, total.saturating_mul(4)]
                .into_iter()
                .find_map(|len| Some((self.pages.reserve(len)?, len)))
                .ok_or(OUT_OF_MEMORY)?;
            self.vmm = Some(Vmm::new(base, len));
        }
        self.vmm.as_mut().ok_or(OUT_OF_MEMORY)
    }

    /// Credits freed memory to its devices.
    pub(crate) fn refund(&mut self, refunds: impl IntoIterator<Item = Refund>) {
        for refund in refunds {
            if let Some(device) = self.devices.get_mut(refund.device as usize) {
                device.refund(refund.bytes);
            }
        }
    }

    /// Returns the pinned block that contains an address.
    pub(crate) fn host_block_at(&self, addr: u64) -> Option<(u64, HostBlock)> {
        let (&start, &block) = self.host.range(..=addr).next_back()?;
        (addr - start < block.size).then_some((start, block))
    }

    pub(crate) fn host_alloc(&mut self, size: u64, flags: u32, context: u64) -> ApiResult<u64> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let addr = self.pages.map_host(size).ok_or(OUT_OF_MEMORY)?;
        self.host.insert(addr, HostBlock { size, flags, registered: false, context });
        self.host_bytes += size;
        Ok(addr)
    }

    /// Frees pinned memory by its first address.
    pub(crate) fn host_free(&mut self, addr: u64) -> ApiResult<HostBlock> {
        let block = *self.host.get(&addr).filter(|block| !block.registered).ok_or(INVALID_VALUE)?;
        self.forget_host_block(addr);
        self.pages.unmap_host(addr, block.size);
        Ok(block)
    }

    /// Registers memory of the program as pinned.
    pub(crate) fn host_register(&mut self, addr: u64, size: u64, flags: u32, context: u64) -> ApiResult {
        let end = addr.checked_add(size).filter(|&end| addr != 0 && end > addr).ok_or(INVALID_VALUE)?;
        let before = self.host.range(..end).next_back();
        if before.is_some_and(|(&start, block)| start + block.size > addr) {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.host.insert(addr, HostBlock { size, flags, registered: true, context });
        self.host_bytes += size;
        Ok(())
    }

    /// Unregisters memory of the program.
    pub(crate) fn host_unregister(&mut self, addr: u64) -> ApiResult<HostBlock> {
        let block =
            *self.host.get(&addr).filter(|block| block.registered).ok_or(HOST_MEMORY_NOT_REGISTERED)?;
        self.forget_host_block(addr);
        Ok(block)
    }

    fn forget_host_block(&mut self, addr: u64) {
        self.host_bytes -= self.host.remove(&addr).map_or(0, |block| block.size);
    }

    /// Returns whether device memory may be copied; `None` if it is host memory.
    pub(crate) fn device_range(&self, addr: u64, size: u64) -> Option<bool> {
        if let Some(ordinal) = self.device_of(addr) {
            let device = &self.devices[ordinal as usize];
            let inside =
                device.block_at(addr).is_some_and(|(start, block)| size <= block.span - (addr - start));
            let global = addr >= self.globals_base[ordinal as usize];
            return Some(inside || global);
        }
        let vmm = self.vmm.as_ref().filter(|vmm| vmm.owns(addr))?;
        Some(vmm.accessible(addr, size))
    }

    /// Returns the address of a module global; equal module and name give equal addresses.
    pub(crate) fn global(&mut self, device: u32, module: u64, name: &[u8]) -> ApiResult<u64> {
        let base = *self.globals_base.get(device as usize).ok_or(INVALID_DEVICE)?;
        let known = &mut self.globals[device as usize];
        if let Some(&addr) = known.get(&(module, name.to_vec())) {
            return Ok(addr);
        }
        let addr = base + known.len() as u64 * GLOBAL_SIZE;
        if addr + GLOBAL_SIZE > base + GLOBALS || !self.pages.commit(addr, GLOBAL_SIZE) {
            return Err(OUT_OF_MEMORY);
        }
        known.insert((module, name.to_vec()), addr);
        Ok(addr)
    }

    /// Returns an active context by handle.
    pub(crate) fn active_context(&self, handle: u64) -> Option<&Context> {
        self.contexts.get(&handle).filter(|context| context.active)
    }

    /// Returns the primary context of a device.
    pub(crate) fn primary(&mut self, device: u32) -> ApiResult<(u64, &mut Context)> {
        let found = self.contexts.iter_mut().find(|(_, context)| context.primary && context.device == device);
        found.map(|(&handle, context)| (handle, context)).ok_or(INVALID_DEVICE)
    }

    /// Charges the memory of a new context.
    pub(crate) fn charge_context(&mut self, device: u32) -> ApiResult {
        let bytes = self.config.context_bytes;
        let (device, pages) = self.device_and_pages(device)?;
        device.charge(pages, bytes)?;
        device.slack += bytes;
        Ok(())
    }

    /// Destroys a context and frees its memory; returns the addresses of its blocks.
    pub(crate) fn end_context(&mut self, handle: u64) -> ApiResult<Vec<u64>> {
        let bytes = self.config.context_bytes;
        let context = self.contexts.get_mut(&handle).ok_or(INVALID_VALUE)?;
        if !context.active {
            return Ok(Vec::new());
        }
        context.active = false;
        context.retains = 0;
        let ordinal = context.device;
        if !context.primary {
            self.contexts.remove(&handle);
        }
        self.streams.retain(|_, stream| stream.context != handle);
        let pinned: Vec<u64> =
            self.host.iter().filter(|(_, block)| block.context == handle).map(|(&addr, _)| addr).collect();
        let mut ended = Vec::new();
        for addr in pinned {
            match self.host_free(addr) {
                Ok(_) => ended.push(addr),
                Err(_) => self.forget_host_block(addr),
            }
        }
        let (device, pages) = self.device_and_pages(ordinal)?;
        device.refund(bytes);
        device.slack -= bytes;
        ended.extend(device.free_context(pages, handle));
        let blocks = &self.devices[ordinal as usize].blocks;
        self.foreign.opened.retain(|addr, _| blocks.contains_key(addr));
        Ok(ended)
    }

    /// Adds a node for work on a stream, if the stream is capturing.
    pub(crate) fn captured_work(&mut self, key: StreamKey, kind: u32) -> ApiResult<bool> {
        self.captured_node(key, |_| Ok(Node::plain(kind, Vec::new())))
    }

    /// Adds the node that `make` returns, if the stream is capturing. `make` gets the node in its
    /// place if the capture repeats an earlier one, and then returns an equal node.
    pub(crate) fn captured_node(
        &mut self,
        key: StreamKey,
        make: impl FnOnce((&mut Self, Option<&Node>)) -> ApiResult<Node>,
    ) -> ApiResult<bool> {
        let Some(id) = self.streams.get(&key).and_then(|stream| stream.capture) else { return Ok(false) };
        let Some(capture) = self.graphs.captures.get_mut(&id) else { return Ok(false) };
        let graph = capture.graph;
        let (handle, node) = if let Some(expected) = &mut capture.expected {
            let next = expected.pop_front();
            let old = next.and_then(|node| self.graphs.made.get(&graph)?.nodes.get(&node).cloned());
            let made = make((self, old.as_ref()));
            let is_same = |node: &Node, old: &Node| (node.kind, &node.steps) == (old.kind, &old.steps);
            match (next, old, made) {
                (Some(handle), Some(old), Ok(node)) if is_same(&node, &old) => (handle, node),
                (.., made) => {
                    // Another number, order or memory of nodes: the recapture fails at once.
                    if let Some(capture) = self.graphs.captures.get_mut(&id) {
                        capture.spoiled = true;
                    }
                    return Err(made.err().unwrap_or(INVALID_VALUE));
                }
            }
        } else {
            let node = make((self, None))?;
            (self.handle(), node)
        };
        let Some(stream) = self.streams.get_mut(&key) else { return Ok(false) };
        let dependencies = std::mem::replace(&mut stream.tail, vec![handle]);
        self.graphs.add(graph, handle, Node { dependencies, ..node })?;
        Ok(true)
    }

    /// Drops a graph's references to its allocation nodes.
    pub(crate) fn drop_allocations(&mut self, allocations: Vec<(u32, u64)>) {
        for (window, addr) in allocations {
            if let Ok((device, pages)) = self.window_and_pages(window) {
                device.disown_graph_span(pages, addr);
            }
        }
    }
}

#[cfg(test)]
mod tests;
