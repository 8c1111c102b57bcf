//! All that the simulated driver knows, as plain data behind one lock.
//!
//! The ground-truth log must order calls as the state changed -> one lock covers every device, and the log line is written under it.
//! Nothing in here is `unsafe` or knows of C; the exported functions in `api` translate.

pub(crate) mod device;
pub(crate) mod foreign;
pub(crate) mod graph;
mod launch;
pub(crate) mod pages;
pub(crate) mod pool;
pub(crate) mod space;
pub(crate) mod vmm;

use std::collections::BTreeMap;
use std::time::Instant;

use crate::config::Config;
use crate::rc::{
    Answer, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_DEVICE, INVALID_HANDLE,
    INVALID_VALUE, OUT_OF_MEMORY,
};
use device::{Block, Device};
use foreign::Foreign;
use graph::{Graphs, MemoryStep, Node};
use pages::Pages;
use vmm::{Refund, Vmm};

/// Address window of each device, and of all reservations; smaller ones are tried when the host refuses.
const DEVICE_WINDOW: u64 = 4 << 40;
const VMM_WINDOW: u64 = 16 << 40;
/// The part of a device's window where module globals lie; they are not charged.
const GLOBALS: u64 = 64 << 20;
/// Each module global gets this much: its size is in the device code, which is never read.
pub(crate) const GLOBAL_SIZE: u64 = 64 << 10;

/// A context; the primary one of a device exists from the start and is active while retained.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: u32,
    pub(crate) primary: bool,
    pub(crate) retains: u32,
    pub(crate) active: bool,
    pub(crate) flags: u32,
}

/// Names a stream: the special handles 1 (legacy) and 2 (per thread) exist once per context, others by their handle alone.
pub(crate) type StreamKey = (u64, u64);

/// A stream.
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

/// An event.
#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) flags: u32,
    pub(crate) recorded: Option<Instant>,
    pub(crate) done: Option<Instant>,
    /// The capture it was last recorded in, with the nodes it stands for.
    pub(crate) captured: Option<(u64, Vec<u64>)>,
}

/// Pinned host memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostBlock {
    pub(crate) size: u64,
    pub(crate) flags: u32,
    /// Registered by the program, which keeps owning it.
    pub(crate) registered: bool,
    pub(crate) context: u64,
}

/// The state of the driver in this process.
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) pages: Box<dyn Pages>,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: BTreeMap<u64, Context>,
    pub(crate) streams: BTreeMap<StreamKey, Stream>,
    pub(crate) events: BTreeMap<u64, Event>,
    pub(crate) host: BTreeMap<u64, HostBlock>,
    pub(crate) vmm: Option<Vmm>,
    pub(crate) graphs: Graphs,
    pub(crate) foreign: Foreign,
    /// Green contexts, by handle: their device.
    pub(crate) greens: BTreeMap<u64, u32>,
    /// Pairs of devices (from, to) between which access was enabled.
    pub(crate) peers: Vec<(u32, u32)>,
    globals: Vec<BTreeMap<(u64, Vec<u8>), u64>>,
    globals_base: Vec<u64>,
    next_handle: u64,
}

impl State {
    /// Reserves the address windows and sets up the devices.
    pub(crate) fn new(config: &Config, mut pages: Box<dyn Pages>) -> Answer<Self> {
        let mut state = Self {
            devices: Vec::new(),
            contexts: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            host: BTreeMap::new(),
            vmm: None,
            graphs: Graphs::default(),
            foreign: Foreign::default(),
            greens: BTreeMap::new(),
            peers: Vec::new(),
            globals: Vec::new(),
            globals_base: Vec::new(),
            // Handles look like small heap pointers: never 0, 1 or 2, which mean something as a stream.
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
            state.devices.push(Device::new(config.memory, base, len - GLOBALS, pool));
            state.globals.push(BTreeMap::new());
            state.globals_base.push(base + len - GLOBALS);
            let context = state.handle();
            let primary = Context { device, primary: true, retains: 0, active: false, flags: 0 };
            state.contexts.insert(context, primary);
        }
        state.pages = pages;
        Ok(state)
    }

    /// A handle that no object has had.
    pub(crate) fn handle(&mut self) -> u64 {
        self.next_handle += 0x40;
        self.next_handle
    }

    /// A device by its ordinal.
    pub(crate) fn device(&mut self, ordinal: u32) -> Answer<&mut Device> {
        self.devices.get_mut(ordinal as usize).ok_or(INVALID_DEVICE)
    }

    /// A device together with the host's pages, which most of its changes need.
    pub(crate) fn device_and_pages(&mut self, ordinal: u32) -> Answer<(&mut Device, &mut dyn Pages)> {
        let device = self.devices.get_mut(ordinal as usize).ok_or(INVALID_DEVICE)?;
        Ok((device, self.pages.as_mut()))
    }

    /// The device in whose window an address lies.
    pub(crate) fn device_of(&self, addr: u64) -> Option<u32> {
        self.devices.iter().position(|device| device.owns(addr)).map(|at| at as u32)
    }

    /// Frees a block by its address, wherever its bytes came from.
    pub(crate) fn free(&mut self, addr: u64) -> Answer<(u32, Block)> {
        let ordinal = self.device_of(addr).ok_or(INVALID_VALUE)?;
        let (device, pages) = self.device_and_pages(ordinal)?;
        Ok((ordinal, device.free(pages, addr)?))
    }

    /// The device that has a pool.
    pub(crate) fn pool_device(&self, pool: u64) -> Answer<u32> {
        let found = self.devices.iter().position(|device| device.pools.contains_key(&pool));
        found.map(|at| at as u32).ok_or(INVALID_HANDLE)
    }

    /// Virtual memory management, with its address window reserved at first use.
    pub(crate) fn vmm(&mut self) -> Answer<&mut Vmm> {
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

    /// Hands the bytes of buried handles back to their devices.
    pub(crate) fn refund(&mut self, refunds: impl IntoIterator<Item = Refund>) {
        for refund in refunds {
            if let Some(device) = self.devices.get_mut(refund.device as usize) {
                device.refund(refund.bytes);
            }
        }
    }

    /// The pinned block that contains an address.
    pub(crate) fn host_block_at(&self, addr: u64) -> Option<(u64, HostBlock)> {
        let (&start, &block) = self.host.range(..=addr).next_back()?;
        (addr - start < block.size).then_some((start, block))
    }

    /// Allocates pinned memory.
    pub(crate) fn host_alloc(&mut self, size: u64, flags: u32, context: u64) -> Answer<u64> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let addr = self.pages.map_host(size).ok_or(OUT_OF_MEMORY)?;
        self.host.insert(addr, HostBlock { size, flags, registered: false, context });
        Ok(addr)
    }

    /// Frees pinned memory by its first address.
    pub(crate) fn host_free(&mut self, addr: u64) -> Answer<HostBlock> {
        let block = *self.host.get(&addr).filter(|block| !block.registered).ok_or(INVALID_VALUE)?;
        self.host.remove(&addr);
        self.pages.unmap_host(addr, block.size);
        Ok(block)
    }

    /// Pins memory of the program's own.
    pub(crate) fn host_register(&mut self, addr: u64, size: u64, flags: u32, context: u64) -> Answer {
        let end = addr.checked_add(size).filter(|&end| addr != 0 && end > addr).ok_or(INVALID_VALUE)?;
        let before = self.host.range(..end).next_back();
        if before.is_some_and(|(&start, block)| start + block.size > addr) {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.host.insert(addr, HostBlock { size, flags, registered: true, context });
        Ok(())
    }

    /// Ends that.
    pub(crate) fn host_unregister(&mut self, addr: u64) -> Answer<HostBlock> {
        let block =
            *self.host.get(&addr).filter(|block| block.registered).ok_or(HOST_MEMORY_NOT_REGISTERED)?;
        self.host.remove(&addr);
        Ok(block)
    }

    /// Whether `addr..addr + size` is device memory that a copy may touch.
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

    /// Address of a module's global variable on a device; the same module and name give the same address.
    pub(crate) fn global(&mut self, device: u32, module: u64, name: &[u8]) -> Answer<u64> {
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

    /// The context of a handle while it is active.
    pub(crate) fn active_context(&self, handle: u64) -> Option<&Context> {
        self.contexts.get(&handle).filter(|context| context.active)
    }

    /// The primary context of a device.
    pub(crate) fn primary(&mut self, device: u32) -> Answer<(u64, &mut Context)> {
        let found = self.contexts.iter_mut().find(|(_, context)| context.primary && context.device == device);
        found.map(|(&handle, context)| (handle, context)).ok_or(INVALID_DEVICE)
    }

    /// Charges the context's own bytes when it comes to life.
    pub(crate) fn charge_context(&mut self, device: u32) -> Answer {
        let bytes = self.config.context_bytes;
        let (device, pages) = self.device_and_pages(device)?;
        device.charge(pages, bytes)?;
        device.slack += bytes;
        Ok(())
    }

    /// Ends a context: its blocks are freed and its own bytes returned; the addresses of the blocks.
    pub(crate) fn end_context(&mut self, handle: u64) -> Answer<Vec<u64>> {
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
                Err(_) => drop(self.host.remove(&addr)),
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

    /// Notes work on a stream: a node if it is capturing.
    pub(crate) fn captured_work(
        &mut self,
        key: StreamKey,
        kind: u32,
        step: Option<MemoryStep>,
    ) -> Answer<bool> {
        let Some(capture) = self.streams.get(&key).and_then(|stream| stream.capture) else {
            return Ok(false);
        };
        let Some(graph) = self.graphs.captures.get(&capture).map(|capture| capture.graph) else {
            return Ok(false);
        };
        let handle = self.handle();
        let Some(stream) = self.streams.get_mut(&key) else { return Ok(false) };
        let dependencies = std::mem::replace(&mut stream.tail, vec![handle]);
        self.graphs.add(graph, handle, Node { kind, dependencies, step })?;
        Ok(true)
    }

    /// Forgets a graph; its allocation nodes lose an owner.
    pub(crate) fn drop_allocations(&mut self, allocations: Vec<(u32, u64)>) {
        for (ordinal, addr) in allocations {
            if let Ok((device, pages)) = self.device_and_pages(ordinal) {
                device.disown_graph_span(pages, addr);
            }
        }
    }
}

#[cfg(test)]
mod tests;
