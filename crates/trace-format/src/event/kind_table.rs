//! The table of event kinds: one row each.

use super::kind::{EventKind, EventKindRow, event_kinds};

event_kinds! {
    // Calls of the driver. A failed call (`result` other than 0) moved no memory.
    DRIVER_CALLS 1..=63 => {
        1 DEVICE_ALLOC "device_alloc"
            "Device memory allocated (`cuMemAlloc`, `cuMemAllocPitch`)"
            addr "device address" size "bytes requested; pitched: pitch * height" aux0 "context";
        2 DEVICE_FREE "device_free" before_call
            "Device or managed memory freed (`cuMemFree`, which takes no size)"
            addr "device address";
        3 MANAGED_ALLOC "managed_alloc"
            "Managed memory allocated; freed by `device_free`. No call says where it resides"
            addr "address" size "bytes" aux0 "attach flags" aux1 "context";
        4 HOST_ALLOC "host_alloc"
            "Page-locked host memory allocated"
            addr "host address" size "bytes" aux0 "flags" aux1 "context";
        5 HOST_FREE "host_free" before_call
            "Page-locked host memory freed"
            addr "host address";
        6 HOST_REGISTER "host_register"
            "Host memory of the program page-locked"
            addr "host address" size "bytes" aux0 "flags" aux1 "context";
        7 HOST_UNREGISTER "host_unregister" before_call
            "Host memory of the program unlocked"
            addr "host address";
        8 ASYNC_ALLOC "async_alloc"
            "Stream-ordered allocation"
            addr "device address" size "bytes" aux0 "stream" aux1 "pool; 0: the device's current pool";
        9 ASYNC_FREE "async_free" before_call
            "Stream-ordered free"
            addr "device address" aux0 "stream";
        10 VA_RESERVE "va_reserve"
            "Virtual addresses reserved. Not memory: reservations may exceed the device"
            addr "address" size "bytes";
        11 VA_FREE "va_free" before_call
            "Virtual addresses released"
            addr "address" size "bytes";
        12 PHYS_CREATE "phys_create"
            "Physical memory created"
            size "bytes" aux0 "handle" aux1 "location type, id << 32";
        13 PHYS_RELEASE "phys_release" before_call
            "One reference to physical memory dropped. Mappings keep the memory alive"
            aux0 "handle";
        14 MAP "map"
            "Physical memory mapped"
            addr "address" size "bytes" aux0 "handle" aux1 "offset in the physical memory";
        15 UNMAP "unmap" before_call
            "Mapping removed"
            addr "address" size "bytes";
        16 ARRAY_ALLOC "array_alloc"
            "Array or mipmapped array created. The size may be an estimate (FLAGS bit 0)"
            addr "the array's handle, not an address" size "bytes" aux0 "context" aux1 "mipmap levels";
        17 ARRAY_FREE "array_free" before_call
            "Array destroyed"
            addr "the array's handle";
        18 PURGEABLE "purgeable"
            "Metal: purgeable state set (`setPurgeableState:`). Empty memory still belongs to its object"
            addr "address; 0: unknown" size "bytes of the buffer, texture or heap"
            aux0 "requested: 2 non-volatile, 3 volatile, 4 empty" aux1 "before, 1 to 4";
        19 POOL_KNOWN "pool_known"
            "Default or current pool of a location found by the program"
            aux0 "pool" aux1 "location type, allocation type << 16, id << 32";
        20 POOL_CREATE "pool_create"
            "Memory pool created"
            size "limit; 0: none" aux0 "pool" aux1 "location type, allocation type << 16, id << 32";
        21 POOL_DESTROY "pool_destroy" before_call
            "Memory pool destroyed. Its blocks live until they are freed"
            aux0 "pool";
        22 POOL_TRIM "pool_trim" before_call
            "Memory pool trimmed"
            size "bytes to keep at most" aux0 "pool";
        23 POOL_SET "pool_set"
            "Attribute of a pool set"
            size "value" aux0 "pool" aux1 "attribute";
        24 POOL_GET "pool_get"
            "Attribute of a pool read by the program: a sample of what the pool holds"
            size "value" aux0 "pool" aux1 "attribute";
        25 POOL_USE "pool_use"
            "Current pool of a device, or of another location, set"
            aux0 "pool" aux1 "location type, allocation type << 16, id << 32";
        26 POOL_EXPORT "pool_export"
            "Pool exported to other processes"
            aux0 "pool" aux1 "handle type";
        27 POOL_IMPORT "pool_import"
            "Pool of another process opened"
            aux0 "pool" aux1 "handle type";
        28 PHYS_RETAIN "phys_retain"
            "One more reference to the physical memory that is mapped at an address"
            addr "an address in the mapping" aux0 "handle";
        29 PHYS_EXPORT "phys_export"
            "Physical memory exported to other processes"
            aux0 "handle" aux1 "handle type";
        30 PHYS_IMPORT "phys_import"
            "Handle imported. The size shows when it is mapped"
            aux0 "handle" aux1 "handle type";
        31 ACCESS "access"
            "Access rights of mapped memory set"
            addr "address" size "bytes" aux0 "number of descriptors"
            aux1 "first location: type, id << 32";
        32 MAP_ARRAY "map_array"
            "Physical memory mapped into sparse arrays, or unmapped"
            aux0 "stream" aux1 "number of changes";
        33 MULTICAST_CREATE "multicast_create"
            "Multicast object created: a handle without memory"
            size "bytes" aux0 "handle" aux1 "number of devices";
        34 MULTICAST_ADD "multicast_add"
            "Device added to a multicast object"
            aux0 "handle";
        35 MULTICAST_BIND "multicast_bind"
            "Memory bound to a multicast object"
            addr "address, or 0" size "bytes" aux0 "handle" aux1 "handle of the memory, or 0";
        36 MULTICAST_UNBIND "multicast_unbind" before_call
            "Memory unbound from a multicast object"
            size "bytes" aux0 "handle" aux1 "offset";
        37 FOREIGN_EXPORT "foreign_export"
            "Memory exported to other processes"
            addr "address";
        38 FOREIGN_OPEN "foreign_open"
            "Memory of another process opened. Not memory of this process"
            addr "address in this process" size "bytes; 0: unknown" aux0 "flags, or pool"
            aux1 "context; 0 from a pool";
        39 FOREIGN_CLOSE "foreign_close" before_call
            "Memory of another process closed"
            addr "address in this process";
        40 EXTERNAL_IMPORT "external_import"
            "Memory of another API imported. Not memory of this process"
            size "bytes" aux0 "external handle" aux1 "handle type";
        41 EXTERNAL_MAP "external_map"
            "Imported memory mapped"
            addr "address, or handle of an array" size "bytes; 0 for an array" aux0 "external handle"
            aux1 "offset";
        42 EXTERNAL_DESTROY "external_destroy" before_call
            "Imported memory released"
            aux0 "external handle";
        43 GRAPHICS_MAP "graphics_map"
            "Graphics resources mapped"
            aux0 "stream" aux1 "number of resources";
        44 GRAPHICS_UNMAP "graphics_unmap" before_call
            "Graphics resources unmapped"
            aux0 "stream" aux1 "number of resources";
        45 GRAPHICS_POINTER "graphics_pointer"
            "Address of a mapped graphics resource. Not counted as memory of this process"
            addr "address" size "bytes" aux0 "resource";
        46 GRAPH_ALLOC_NODE "graph_alloc_node"
            "Allocation node added to a graph, or captured. No memory yet"
            addr "address" size "bytes" aux0 "graph"
            aux1 "node; captured: the pool, 0 is the device's current pool";
        47 GRAPH_FREE_NODE "graph_free_node"
            "Free node added to a graph, or captured"
            addr "address" aux0 "graph" aux1 "node; 0: captured";
        48 GRAPH_INSTANTIATE "graph_instantiate"
            "Graph instantiated"
            size "flags" aux0 "executable graph" aux1 "graph";
        49 GRAPH_LAUNCH "graph_launch"
            "Executable graph launched: its memory nodes run"
            aux0 "executable graph" aux1 "stream";
        50 GRAPH_UPLOAD "graph_upload"
            "Executable graph uploaded ahead of its launch"
            aux0 "executable graph" aux1 "stream";
        51 GRAPH_EXEC_DESTROY "graph_exec_destroy" before_call
            "Executable graph destroyed"
            aux0 "executable graph";
        52 GRAPH_DESTROY "graph_destroy" before_call
            "Graph destroyed"
            aux0 "graph";
        53 GRAPH_TRIM "graph_trim" before_call
            "Idle graph memory of the device released";
        54 CONTEXT_CREATE "context_create"
            "Context created"
            aux0 "context";
        55 CONTEXT_DESTROY "context_destroy" before_call
            "Context destroyed, with every block that was allocated in it"
            aux0 "context";
        56 PRIMARY_RETAIN "primary_retain"
            "Primary context of the device retained"
            aux0 "context";
        57 PRIMARY_RELEASE "primary_release" before_call
            "Primary context of the device released. If it ended, so did every block allocated in it"
            aux1 "1: the context ended";
        58 GREEN_CREATE "green_create"
            "Green context created"
            aux0 "green context";
        59 GREEN_DESTROY "green_destroy" before_call
            "Green context destroyed"
            aux0 "green context" aux1 "1: the primary context ended with it";
        60 CONTEXT_LIMIT "context_limit"
            "Limit of the context set, which may make it larger"
            size "value" aux0 "limit";
        61 MODULE_LOAD "module_load"
            "Code loaded. It takes device memory that no call reports"
            aux0 "module or library";
        62 MODULE_UNLOAD "module_unload" before_call
            "Code unloaded"
            aux0 "module or library";
        63 MEMORY_SAMPLE "memory_sample"
            "Memory in use on the device, by all processes (`cuMemGetInfo`) or by this one (NVML)"
            addr "next seq when the recorder's query began; 0: unknown" size "bytes in use" aux0 "bytes in total; 0 from NVML"
            aux1 "0: call of the program, 1: call of the recorder, 2: NVML";
    }
    // PyTorch's caching allocator, or ours in its place.
    TORCH_ALLOCATOR 64..=95 => {
        64 BLOCK_ALLOC "block_alloc"
            "Block allocated for a tensor"
            addr "device address" size "bytes of the block (rounded)"
            aux0 "allocated bytes of the device after it" aux1 "reserved bytes of the device after it";
        65 BLOCK_FREE "block_free"
            "Block freed by its tensor"
            addr "device address" size "bytes of the block (rounded)"
            aux0 "allocated bytes of the device after it" aux1 "reserved bytes of the device after it";
        66 BLOCK_OOM "oom"
            "Allocation failed: PyTorch raised an out-of-memory error"
            addr "with a detail: bytes that the driver reported as free" size "bytes requested"
            aux0 "allocated bytes of the device" aux1 "reserved bytes of the device";
        67 BLOCK_FREE_COMPLETED "block_free_completed"
            "Block that was freed earlier is available again: no stream uses it any more"
            addr "device address" size "bytes that were requested" aux0 "stream" aux1 "pool";
        68 SEGMENT_ALLOC "segment_alloc"
            "Segment allocated from the driver"
            addr "device address" size "bytes" aux0 "stream" aux1 "pool";
        69 SEGMENT_FREE "segment_free"
            "Segment returned to the driver"
            addr "device address" size "bytes" aux0 "stream" aux1 "pool";
        70 SEGMENT_MAP "segment_map"
            "Expandable segment grown"
            addr "device address" size "bytes" aux0 "stream" aux1 "pool";
        71 SEGMENT_UNMAP "segment_unmap"
            "Expandable segment shrunk"
            addr "device address" size "bytes" aux0 "stream" aux1 "pool";
        72 TORCH_SNAPSHOT "torch_snapshot"
            "Snapshot of the allocator taken by the program"
            size "bytes of active blocks" aux1 "pool";
        73 TORCH_ANNOTATE "torch_annotate"
            "Block annotated by the program"
            addr "device address" size "bytes that were requested" aux0 "stream" aux1 "pool";
        74 TRACKER "tracker"
            "State of the recorder's allocator tracker from here on; unknown before the first such event"
            aux0 "state, see below";
        75 BLOCK_LABEL "block_label"
            "Live block labelled: a category of PyTorch or a text of the program. A later label replaces it"
            addr "device address" aux0 "label, a code id";
    }
    // What the program and the Python package report.
    PROGRAM 96..=159 => {
        96 MARK "mark"
            "Mark of the program"
            aux0 "1: a step begins; 2: a named moment" aux1 "of 2: its name, a code id";
        97 RANGE_BEGIN "range_begin"
            "NVTX range begins"
            aux0 "name, a code id"
            aux1 "1: another thread may end it, and its end is not recorded";
        98 RANGE_END "range_end"
            "Innermost open NVTX range of the thread ends";
        99 PHASE_BEGIN "phase_begin"
            "Phase begins, on all threads"
            aux0 "name, a code id"
            aux1 "thread that began it before the recording and will end it; 0: the event's own";
        100 PHASE_END "phase_end"
            "Phase that this thread began last ends";
        101 TORCH_MEMORY "torch_memory"
            "PyTorch's own memory counters, as it reported them"
            size "bytes of tensors" aux0 "bytes that PyTorch counts as held from the driver"
            aux1 "source; 1: `torch.mps`";
        110 HOLDERS "holders"
            "Scan for the objects that hold blocks (see below)"
            aux0 "summary in JSON, a code id";
        111 HOLDER "holder"
            "Result of the scan before it, for blocks of one call site"
            addr "address of one of the blocks" size "bytes of all of them" aux0 "holder in JSON, a code id"
            aux1 "number of blocks";
    }
    // More calls of the driver. None of them frees memory that a later call may reuse.
    MORE_DRIVER_CALLS 160..=199 => {
        160 GRAPH_CHILD "graph_child"
            "Graph moved into another one, which then owns its nodes"
            aux0 "graph" aux1 "child graph";
        161 MANAGED_PREFETCH "managed_prefetch"
            "Managed memory moved ahead of its use, on the program's request"
            addr "first address" size "bytes of all ranges" aux0 "stream"
            aux1 "target: location type, id << 32; 0: several";
        162 MANAGED_DISCARD "managed_discard"
            "Contents of managed memory given up by the program. The memory stays allocated"
            addr "first address" size "bytes of all ranges" aux0 "stream";
    }
}

impl EventKind {
    /// True for calls of the driver, which a reader may find in flight.
    pub fn is_driver_call(self) -> bool {
        DRIVER_CALLS.contains(&self.0) || MORE_DRIVER_CALLS.contains(&self.0)
    }
}
