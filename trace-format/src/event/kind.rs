//! What an event can be.
//!
//! Constraint: traces outlive versions. Consequence: a kind is a number that never changes its meaning; a reader that does not
//! know one counts it and passes it over. 1 to 63 are calls of the driver, 64 to 95 PyTorch's allocator, 96 to 199 what the
//! program says, from 200 on records that only a ring holds.

/// `Event::aux[1]` of a [`EventKind::MEMORY_SAMPLE`]: the driver was asked by the program.
pub const WITNESS_PROGRAM: u64 = 0;
/// The driver was asked by the recorder, right after a call that takes memory.
pub const WITNESS_RECORDER: u64 = 1;
/// NVML was asked: `size` is what this process uses, with its contexts and its code; aux0 is 0.
pub const WITNESS_NVML: u64 = 2;

/// `Event::aux[1]` of a [`EventKind::TORCH_MEMORY`]: `torch.mps` was asked.
pub const TORCH_MPS: u64 = 1;
/// A number of a [`EventKind::TORCH_MEMORY`] that PyTorch did not give.
pub const NOT_TOLD: u64 = u64::MAX;

/// What happened. A plain number, because a reader must carry kinds that were invented after it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventKind(pub u8);

impl EventKind {
    /// No event: a call that turned out to concern no memory. Never stored.
    pub const NONE: Self = Self(0);
    /// Device memory handed out (`cuMemAlloc`, `cuMemAllocPitch`). aux0 = context.
    pub const DEVICE_ALLOC: Self = Self(1);
    /// Device or managed memory given back (`cuMemFree`). `size` is 0: the driver is not told it.
    pub const DEVICE_FREE: Self = Self(2);
    /// Managed memory; given back by [`Self::DEVICE_FREE`]. aux0 = attach flags, aux1 = context. Where it lies, no call tells.
    pub const MANAGED_ALLOC: Self = Self(3);
    /// Page-locked host memory. aux0 = flags, aux1 = context.
    pub const HOST_ALLOC: Self = Self(4);
    /// Page-locked host memory given back.
    pub const HOST_FREE: Self = Self(5);
    /// Stream-ordered allocation. aux0 = stream, aux1 = pool (0 = the device's current pool).
    pub const ASYNC_ALLOC: Self = Self(8);
    /// Stream-ordered free. aux0 = stream.
    pub const ASYNC_FREE: Self = Self(9);
    /// Virtual addresses reserved. Not memory: a reservation may exceed the device.
    pub const VA_RESERVE: Self = Self(10);
    /// Virtual addresses given back.
    pub const VA_FREE: Self = Self(11);
    /// Physical memory created. addr = 0, aux0 = handle, aux1 = location type | id << 32.
    pub const PHYS_CREATE: Self = Self(12);
    /// One reference to physical memory dropped. aux0 = handle. The bytes stay while a mapping stays.
    pub const PHYS_RELEASE: Self = Self(13);
    /// Memory mapped at addr. aux0 = handle, aux1 = offset in it.
    pub const MAP: Self = Self(14);
    /// Mapping removed.
    pub const UNMAP: Self = Self(15);
    /// The program's own host memory page-locked. aux0 = flags, aux1 = context.
    pub const HOST_REGISTER: Self = Self(6);
    /// That undone.
    pub const HOST_UNREGISTER: Self = Self(7);
    /// An array or mipmapped array. addr = its handle (no address), aux0 = context, aux1 = levels. See [`super::FLAG_ESTIMATED`].
    pub const ARRAY_ALLOC: Self = Self(16);
    /// An array given back. addr = its handle.
    pub const ARRAY_FREE: Self = Self(17);
    /// Memory of Metal marked as dispensable, or not (`setPurgeableState:`). addr = where it lies (0: not known), size = its bytes,
    /// aux0 = what was asked for (2 non-volatile, 3 volatile, 4 empty), aux1 = what was before. What is empty still is the object's.
    pub const PURGEABLE: Self = Self(18);
    /// A memory pool made. size = its limit (0: none), aux0 = pool, aux1 = location type | id << 32.
    pub const POOL_CREATE: Self = Self(20);
    /// A pool destroyed; blocks in it live on until they are freed. aux0 = pool.
    pub const POOL_DESTROY: Self = Self(21);
    /// A pool told to keep at most `size` bytes. aux0 = pool.
    pub const POOL_TRIM: Self = Self(22);
    /// An attribute of a pool set. size = value, aux0 = pool, aux1 = attribute.
    pub const POOL_SET: Self = Self(23);
    /// The program asked for an attribute of a pool: a sample of what the pool holds. Fields as in [`Self::POOL_SET`].
    pub const POOL_GET: Self = Self(24);
    /// The pool that a device (or another place) allocates from. aux0 = pool, aux1 = location type | id << 32.
    pub const POOL_USE: Self = Self(25);
    /// A pool made visible to other processes. aux0 = pool, aux1 = handle type.
    pub const POOL_EXPORT: Self = Self(26);
    /// Another process's pool opened. aux0 = pool, aux1 = handle type.
    pub const POOL_IMPORT: Self = Self(27);
    /// One more reference to the physical memory mapped at addr. aux0 = handle.
    pub const PHYS_RETAIN: Self = Self(28);
    /// Physical memory made visible to other processes. aux0 = handle, aux1 = handle type.
    pub const PHYS_EXPORT: Self = Self(29);
    /// A handle from elsewhere. aux0 = handle, aux1 = handle type. Its size shows when it is mapped.
    pub const PHYS_IMPORT: Self = Self(30);
    /// Who may reach mapped memory. aux0 = number of descriptors, aux1 = location type | id << 32 of the first.
    pub const ACCESS: Self = Self(31);
    /// Physical memory mapped into or unmapped from sparse arrays. aux0 = stream, aux1 = number of changes.
    pub const MAP_ARRAY: Self = Self(32);
    /// A multicast object: a handle that holds no memory. aux0 = handle, aux1 = number of devices.
    pub const MULTICAST_CREATE: Self = Self(33);
    /// A device joins it. aux0 = handle.
    pub const MULTICAST_ADD: Self = Self(34);
    /// Memory bound to it; addr = address, or 0 for a handle in aux1. aux0 = handle.
    pub const MULTICAST_BIND: Self = Self(35);
    /// Memory unbound. aux0 = handle, aux1 = offset.
    pub const MULTICAST_UNBIND: Self = Self(36);
    /// Memory at addr made visible to other processes.
    pub const FOREIGN_EXPORT: Self = Self(37);
    /// Memory of another process opened at addr. aux0 = flags or pool, aux1 = context. Not this process's memory.
    pub const FOREIGN_OPEN: Self = Self(38);
    /// That closed.
    pub const FOREIGN_CLOSE: Self = Self(39);
    /// Memory of another API imported. aux0 = external handle, aux1 = handle type. Not this process's memory.
    pub const EXTERNAL_IMPORT: Self = Self(40);
    /// Imported memory mapped: addr = address (or handle of a mipmapped array), aux0 = external handle, aux1 = offset.
    pub const EXTERNAL_MAP: Self = Self(41);
    /// Imported memory let go. aux0 = external handle.
    pub const EXTERNAL_DESTROY: Self = Self(42);
    /// Graphics resources made usable. aux0 = stream, aux1 = how many.
    pub const GRAPHICS_MAP: Self = Self(43);
    /// That undone. aux0 = stream, aux1 = how many.
    pub const GRAPHICS_UNMAP: Self = Self(44);
    /// Where a graphics resource is mapped. aux0 = resource. Not counted as memory of this process.
    pub const GRAPHICS_POINTER: Self = Self(45);
    /// A graph's node that allocates, added or captured: no memory yet. aux0 = graph, aux1 = node (0: captured).
    pub const GRAPH_ALLOC_NODE: Self = Self(46);
    /// A graph's node that frees addr. aux0 = graph, aux1 = node (0: captured).
    pub const GRAPH_FREE_NODE: Self = Self(47);
    /// A graph made launchable. size = flags, aux0 = executable graph, aux1 = graph.
    pub const GRAPH_INSTANTIATE: Self = Self(48);
    /// An executable graph launched: its memory nodes run. aux0 = executable graph, aux1 = stream.
    pub const GRAPH_LAUNCH: Self = Self(49);
    /// An executable graph sent to the device ahead of its launch. Fields as in [`Self::GRAPH_LAUNCH`].
    pub const GRAPH_UPLOAD: Self = Self(50);
    /// An executable graph destroyed. aux0 = executable graph.
    pub const GRAPH_EXEC_DESTROY: Self = Self(51);
    /// A graph destroyed. aux0 = graph.
    pub const GRAPH_DESTROY: Self = Self(52);
    /// The device's idle graph memory given back.
    pub const GRAPH_TRIM: Self = Self(53);
    /// A context made. aux0 = context.
    pub const CONTEXT_CREATE: Self = Self(54);
    /// A context destroyed, and with it every block that was allocated in it. aux0 = context.
    pub const CONTEXT_DESTROY: Self = Self(55);
    /// The device's primary context taken. aux0 = context.
    pub const PRIMARY_RETAIN: Self = Self(56);
    /// The device's primary context let go. aux1 = 1 when it ended, and with it every block that was allocated in it.
    pub const PRIMARY_RELEASE: Self = Self(57);
    /// A green context made. aux0 = context.
    pub const GREEN_CREATE: Self = Self(58);
    /// A green context destroyed. aux0 = context, aux1 = 1 when the device's primary context ended with it.
    pub const GREEN_DESTROY: Self = Self(59);
    /// A limit of the context set, which may make it larger. size = value, aux0 = limit.
    pub const CONTEXT_LIMIT: Self = Self(60);
    /// Code loaded, which takes device memory that no call tells. aux0 = module or library.
    pub const MODULE_LOAD: Self = Self(61);
    /// Code unloaded. aux0 = module or library.
    pub const MODULE_UNLOAD: Self = Self(62);
    /// What the driver says of a device's memory, whoever uses it (`cuMemGetInfo`). size = bytes in use, aux0 = bytes in
    /// all, aux1 = who was asked: [`WITNESS_PROGRAM`] and the others.
    pub const MEMORY_SAMPLE: Self = Self(63);
    /// A block handed to a tensor by PyTorch's native allocator. `size` is the block (rounded) size,
    /// aux0 = allocated bytes after, aux1 = reserved bytes after, both of the device.
    pub const BLOCK_ALLOC: Self = Self(64);
    /// A block requested back. Same fields; `size` positive.
    pub const BLOCK_FREE: Self = Self(65);
    /// PyTorch gave up: `size` is what was asked for, aux0 = allocated, aux1 = reserved. With a detail: addr = bytes that
    /// the driver said were free.
    pub const BLOCK_OOM: Self = Self(66);
    /// A block that was requested back earlier is free now: no stream uses it any more. `size` = bytes that had been
    /// asked for, aux0 = stream, aux1 = pool, as in the kinds below.
    pub const BLOCK_FREE_COMPLETED: Self = Self(67);
    /// PyTorch's allocator took a segment from the driver.
    pub const SEGMENT_ALLOC: Self = Self(68);
    /// It gave one back.
    pub const SEGMENT_FREE: Self = Self(69);
    /// It mapped memory at the end of an expandable segment.
    pub const SEGMENT_MAP: Self = Self(70);
    /// It took some away again.
    pub const SEGMENT_UNMAP: Self = Self(71);
    /// The program asked for a snapshot of the allocator. `size` = bytes of active blocks.
    pub const TORCH_SNAPSHOT: Self = Self(72);
    /// The program named a block.
    pub const TORCH_ANNOTATE: Self = Self(73);
    /// Where our part of PyTorch's allocator stands from here on: aux0 is a [`super::TrackerState`]. Until the first such event
    /// nothing is known of PyTorch.
    pub const TRACKER: Self = Self(74);
    /// A mark made by the program. aux0 = [`super::MARK_STEP`]: a step begins; [`super::MARK_NAMED`]: a moment with a
    /// name, which is aux1.
    pub const MARK: Self = Self(96);
    /// An NVTX range begins. aux0 = its name: the [`crate::CodeId`] of a definition that is a name and nothing else. aux1 = 1 if
    /// it is one that another thread may end ([`Self::RANGE_END`] is not recorded for such).
    pub const RANGE_BEGIN: Self = Self(97);
    /// The innermost open NVTX range of the thread ends.
    pub const RANGE_END: Self = Self(98);
    /// A phase of the program begins, on all threads. aux0 = its name, as of [`Self::RANGE_BEGIN`]. aux1 = the thread that began it
    /// and will end it, 0 if that is the event's own: what begins before the recording is recorded by who starts that.
    pub const PHASE_BEGIN: Self = Self(99);
    /// The phase that this thread began last ends.
    pub const PHASE_END: Self = Self(100);
    /// What PyTorch said of its own memory when it was asked. `size` = bytes of tensors, aux0 = bytes that the driver held for the
    /// process by PyTorch's own account, aux1 = who was asked: [`TORCH_MPS`]. [`NOT_TOLD`] where there was no answer.
    pub const TORCH_MEMORY: Self = Self(101);
    /// The program has looked who holds its blocks. aux0 = what it says of the look, in JSON: the [`crate::CodeId`] of a definition
    /// that is a text and nothing else.
    pub const HOLDERS: Self = Self(110);
    /// Of the look before it: who holds blocks of one site, or why that is not known. `addr` = one of the blocks, `size` = bytes
    /// of all of them, aux0 = its name, in JSON, as of [`Self::HOLDERS`], aux1 = how many they are.
    pub const HOLDER: Self = Self(111);
    /// In a ring only: head of a code definition. See [`crate::ring`].
    pub const CODE_DEF: Self = Self(200);
    /// In a ring only: 56 payload bytes of the code definition before it.
    pub const CODE_DATA: Self = Self(201);
    /// In a ring only: one Python frame of the stack tree.
    pub const PY_NODE_DEF: Self = Self(202);
    /// In a ring only: one native frame of the stack tree.
    pub const NATIVE_NODE_DEF: Self = Self(203);
    /// In a ring only: the [`super::Detail`] of the event in the next record.
    pub const DETAIL: Self = Self(204);

    /// All kinds that stand for something the program did, with the name `dump` and the report use.
    pub const NAMED: &[(Self, &str)] = &[
        (Self::DEVICE_ALLOC, "device_alloc"),
        (Self::DEVICE_FREE, "device_free"),
        (Self::MANAGED_ALLOC, "managed_alloc"),
        (Self::HOST_ALLOC, "host_alloc"),
        (Self::HOST_FREE, "host_free"),
        (Self::HOST_REGISTER, "host_register"),
        (Self::HOST_UNREGISTER, "host_unregister"),
        (Self::ASYNC_ALLOC, "async_alloc"),
        (Self::ASYNC_FREE, "async_free"),
        (Self::VA_RESERVE, "va_reserve"),
        (Self::VA_FREE, "va_free"),
        (Self::PHYS_CREATE, "phys_create"),
        (Self::PHYS_RELEASE, "phys_release"),
        (Self::MAP, "map"),
        (Self::UNMAP, "unmap"),
        (Self::ARRAY_ALLOC, "array_alloc"),
        (Self::ARRAY_FREE, "array_free"),
        (Self::PURGEABLE, "purgeable"),
        (Self::POOL_CREATE, "pool_create"),
        (Self::POOL_DESTROY, "pool_destroy"),
        (Self::POOL_TRIM, "pool_trim"),
        (Self::POOL_SET, "pool_set"),
        (Self::POOL_GET, "pool_get"),
        (Self::POOL_USE, "pool_use"),
        (Self::POOL_EXPORT, "pool_export"),
        (Self::POOL_IMPORT, "pool_import"),
        (Self::PHYS_RETAIN, "phys_retain"),
        (Self::PHYS_EXPORT, "phys_export"),
        (Self::PHYS_IMPORT, "phys_import"),
        (Self::ACCESS, "access"),
        (Self::MAP_ARRAY, "map_array"),
        (Self::MULTICAST_CREATE, "multicast_create"),
        (Self::MULTICAST_ADD, "multicast_add"),
        (Self::MULTICAST_BIND, "multicast_bind"),
        (Self::MULTICAST_UNBIND, "multicast_unbind"),
        (Self::FOREIGN_EXPORT, "foreign_export"),
        (Self::FOREIGN_OPEN, "foreign_open"),
        (Self::FOREIGN_CLOSE, "foreign_close"),
        (Self::EXTERNAL_IMPORT, "external_import"),
        (Self::EXTERNAL_MAP, "external_map"),
        (Self::EXTERNAL_DESTROY, "external_destroy"),
        (Self::GRAPHICS_MAP, "graphics_map"),
        (Self::GRAPHICS_UNMAP, "graphics_unmap"),
        (Self::GRAPHICS_POINTER, "graphics_pointer"),
        (Self::GRAPH_ALLOC_NODE, "graph_alloc_node"),
        (Self::GRAPH_FREE_NODE, "graph_free_node"),
        (Self::GRAPH_INSTANTIATE, "graph_instantiate"),
        (Self::GRAPH_LAUNCH, "graph_launch"),
        (Self::GRAPH_UPLOAD, "graph_upload"),
        (Self::GRAPH_EXEC_DESTROY, "graph_exec_destroy"),
        (Self::GRAPH_DESTROY, "graph_destroy"),
        (Self::GRAPH_TRIM, "graph_trim"),
        (Self::CONTEXT_CREATE, "context_create"),
        (Self::CONTEXT_DESTROY, "context_destroy"),
        (Self::PRIMARY_RETAIN, "primary_retain"),
        (Self::PRIMARY_RELEASE, "primary_release"),
        (Self::GREEN_CREATE, "green_create"),
        (Self::GREEN_DESTROY, "green_destroy"),
        (Self::CONTEXT_LIMIT, "context_limit"),
        (Self::MODULE_LOAD, "module_load"),
        (Self::MODULE_UNLOAD, "module_unload"),
        (Self::MEMORY_SAMPLE, "memory_sample"),
        (Self::BLOCK_ALLOC, "block_alloc"),
        (Self::BLOCK_FREE, "block_free"),
        (Self::BLOCK_OOM, "oom"),
        (Self::BLOCK_FREE_COMPLETED, "block_free_completed"),
        (Self::SEGMENT_ALLOC, "segment_alloc"),
        (Self::SEGMENT_FREE, "segment_free"),
        (Self::SEGMENT_MAP, "segment_map"),
        (Self::SEGMENT_UNMAP, "segment_unmap"),
        (Self::TORCH_SNAPSHOT, "torch_snapshot"),
        (Self::TORCH_ANNOTATE, "torch_annotate"),
        (Self::TRACKER, "tracker"),
        (Self::MARK, "mark"),
        (Self::RANGE_BEGIN, "range_begin"),
        (Self::RANGE_END, "range_end"),
        (Self::PHASE_BEGIN, "phase_begin"),
        (Self::PHASE_END, "phase_end"),
        (Self::TORCH_MEMORY, "torch_memory"),
        (Self::HOLDERS, "holders"),
        (Self::HOLDER, "holder"),
    ];

    /// The kind's name, if this version knows it.
    pub fn name(self) -> Option<&'static str> {
        Self::NAMED.iter().find(|(kind, _)| *kind == self).map(|(_, name)| *name)
    }

    /// True for records that only carry definitions from the hook to the writer.
    pub fn is_definition(self) -> bool {
        (Self::CODE_DEF.0..=Self::DETAIL.0).contains(&self.0)
    }

    /// True for the driver's own calls, which may be seen in flight.
    pub fn is_driver_call(self) -> bool {
        (1..64).contains(&self.0)
    }

    /// True where the event's place in the order is taken *before* the call: what gives memory back. Everything else is
    /// placed after the call, so an address is always freed before it is handed out again, whatever the threads do. (The
    /// launch of a graph does both; what it frees of its own nobody else can be given.)
    pub fn is_ordered_before_call(self) -> bool {
        matches!(
            self,
            Self::DEVICE_FREE
                | Self::HOST_FREE
                | Self::ASYNC_FREE
                | Self::VA_FREE
                | Self::PHYS_RELEASE
                | Self::UNMAP
                | Self::HOST_UNREGISTER
                | Self::ARRAY_FREE
                | Self::POOL_DESTROY
                | Self::POOL_TRIM
                | Self::MULTICAST_UNBIND
                | Self::FOREIGN_CLOSE
                | Self::EXTERNAL_DESTROY
                | Self::GRAPHICS_UNMAP
                | Self::GRAPH_EXEC_DESTROY
                | Self::GRAPH_DESTROY
                | Self::GRAPH_TRIM
                | Self::CONTEXT_DESTROY
                | Self::PRIMARY_RELEASE
                | Self::GREEN_DESTROY
                | Self::MODULE_UNLOAD
        )
    }
}

impl std::fmt::Debug for EventKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "kind_{}", self.0),
        }
    }
}
