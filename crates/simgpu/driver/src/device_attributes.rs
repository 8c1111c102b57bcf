//! Values of `cuDeviceGetAttribute`: those of an H100-class card.
//!
//! Programs choose launch sizes and code paths by them. Nothing is launched, so most values need
//! only be consistent with each other. The limits of a multiprocessor are exact, since PyTorch
//! sizes the workspaces of reductions by them.

use crate::config::Config;
use crate::result_code::{ApiResult, INVALID_VALUE};

/// PCI bus number of device 0; others count up.
pub(crate) const FIRST_BUS: u32 = 0x17;

/// What a multiprocessor can hold, by compute capability.
struct MultiprocessorLimits {
    threads: i32,
    blocks: i32,
    /// Shared memory in KiB.
    shared: i32,
    /// Shared memory of a block that opts in to more, in KiB.
    shared_opt_in: i32,
}

impl MultiprocessorLimits {
    /// Sources: "Technical Specifications per Compute Capability" in NVIDIA's CUDA C++ Programming
    /// Guide, and `cuda/__device/arch_traits.h` of NVIDIA's CCCL.
    const fn of(compute: (u32, u32)) -> Self {
        let (threads, blocks, shared, shared_opt_in) = match compute {
            (0..=5, _) | (6, 0 | 2) => (2048, 32, 64, 48),
            (6, _) => (2048, 32, 96, 48),
            (7, 5) => (1024, 16, 64, 64),
            (7, _) => (2048, 32, 96, 96),
            (8, 6 | 8) => (1536, 16, 100, 99),
            (8, 7) => (1536, 16, 164, 163),
            (8, 9) => (1536, 24, 100, 99),
            (8, _) => (2048, 32, 164, 163),
            (11, _) => (1536, 24, 228, 227),
            (9 | 10, _) => (2048, 32, 228, 227),
            _ => (1536, 24, 100, 99),
        };
        Self { threads, blocks, shared, shared_opt_in }
    }
}

/// Returns the value of one attribute.
// One line per attribute, in the header's order.
#[allow(clippy::match_same_arms)]
pub(crate) fn attribute(config: &Config, device: u32, attribute: u32) -> ApiResult<i32> {
    let modern = config.compute.0 >= 9;
    let limits = MultiprocessorLimits::of(config.compute);
    Ok(match attribute {
        1 => 1024,        // MAX_THREADS_PER_BLOCK
        2 | 3 => 1024,    // MAX_BLOCK_DIM_X, _Y
        4 => 64,          // MAX_BLOCK_DIM_Z
        5 => i32::MAX,    // MAX_GRID_DIM_X
        6 | 7 => 65535,   // MAX_GRID_DIM_Y, _Z
        8 => 48 << 10,    // MAX_SHARED_MEMORY_PER_BLOCK
        9 => 64 << 10,    // TOTAL_CONSTANT_MEMORY
        10 => 32,         // WARP_SIZE
        11 => i32::MAX,   // MAX_PITCH
        12 | 82 => 65536, // MAX_REGISTERS_PER_BLOCK, _PER_MULTIPROCESSOR
        13 => 1_755_000,  // CLOCK_RATE in kHz
        14 => 512,        // TEXTURE_ALIGNMENT
        15 => 1,          // GPU_OVERLAP
        16 => {
            let usual = if modern { 132 } else { 108 };
            config.multiprocessors.unwrap_or(usual) as i32
        } // MULTIPROCESSOR_COUNT
        17 | 18 => 0,     // KERNEL_EXEC_TIMEOUT, INTEGRATED
        19 => 1,          // CAN_MAP_HOST_MEMORY
        20 => 0,          // COMPUTE_MODE: default
        21 => 131_072,    // MAXIMUM_TEXTURE1D_WIDTH
        22 => 131_072,    // MAXIMUM_TEXTURE2D_WIDTH
        23 => 65536,      // MAXIMUM_TEXTURE2D_HEIGHT
        24..=26 => 16384, // MAXIMUM_TEXTURE3D_*
        27 | 28 => 32768, // MAXIMUM_TEXTURE2D_LAYERED_*
        29 => 2048,       // MAXIMUM_TEXTURE2D_LAYERED_LAYERS
        30 => 512,        // SURFACE_ALIGNMENT
        31 | 32 => 1,     // CONCURRENT_KERNELS, ECC_ENABLED
        33 => (FIRST_BUS + device) as i32, // PCI_BUS_ID
        34 | 50 => 0,     // PCI_DEVICE_ID, PCI_DOMAIN_ID
        35 => 0,          // TCC_DRIVER
        36 => 2_619_000,  // MEMORY_CLOCK_RATE in kHz
        37 => 5120,       // GLOBAL_MEMORY_BUS_WIDTH
        38 => 50 << 20,   // L2_CACHE_SIZE
        39 => limits.threads, // MAX_THREADS_PER_MULTIPROCESSOR
        40 => 3,          // ASYNC_ENGINE_COUNT
        41 => 1,          // UNIFIED_ADDRESSING
        42..=74 => 32768, // limits of textures and surfaces
        75 => config.compute.0 as i32, // COMPUTE_CAPABILITY_MAJOR
        76 => config.compute.1 as i32, // COMPUTE_CAPABILITY_MINOR
        77 => 32768,      // MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH
        78..=80 => 1,     // STREAM_PRIORITIES, GLOBAL_L1, LOCAL_L1
        81 => limits.shared << 10, // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        83 => 1,          // MANAGED_MEMORY
        84 => 0,          // MULTI_GPU_BOARD
        85 => device as i32, // MULTI_GPU_BOARD_GROUP_ID
        86 => 0,          // HOST_NATIVE_ATOMIC_SUPPORTED
        87 => 2,          // SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO
        88 => 0,          // PAGEABLE_MEMORY_ACCESS
        89 | 90 => 1,     // CONCURRENT_MANAGED_ACCESS, COMPUTE_PREEMPTION
        91 => 1,          // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        92..=94 => 0,     // stream memory operations, first version
        95 | 96 => 1,     // COOPERATIVE_LAUNCH, _MULTI_DEVICE
        97 => limits.shared_opt_in << 10, // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        98 => 0,          // CAN_FLUSH_REMOTE_WRITES
        99 => 1,          // HOST_REGISTER_SUPPORTED
        100 | 101 => 0,   // PAGEABLE_..._HOST_PAGE_TABLES, DIRECT_MANAGED_MEM_ACCESS
        102 => 1,         // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        103..=105 => 0,   // handles that another process could import
        106 => limits.blocks, // MAX_BLOCKS_PER_MULTIPROCESSOR
        107 => 0,         // GENERIC_COMPRESSION_SUPPORTED
        108 => 32 << 20,  // MAX_PERSISTING_L2_CACHE_SIZE
        109 => 128 << 20, // MAX_ACCESS_POLICY_WINDOW_SIZE
        110 => 0,         // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
        111 => 1 << 10,   // RESERVED_SHARED_MEMORY_PER_BLOCK
        112 => 1,         // SPARSE_CUDA_ARRAY_SUPPORTED
        113 => 0,         // READ_ONLY_HOST_REGISTER_SUPPORTED
        114 => 0,         // TIMELINE_SEMAPHORE_INTEROP_SUPPORTED
        115 => 1,         // MEMORY_POOLS_SUPPORTED
        116..=119 => 0,   // GPU_DIRECT_RDMA_*, MEMPOOL_SUPPORTED_HANDLE_TYPES
        120 => i32::from(modern), // CLUSTER_LAUNCH
        121 => 0,         // DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED
        122 | 123 => 0,   // CAN_USE_64_BIT_STREAM_MEM_OPS, ..._WAIT_VALUE_NOR
        124..=129 => 0,   // DMA_BUF, IPC_EVENT, MEM_SYNC_DOMAIN, TENSOR_MAP, FABRIC and others
        130 => -1,        // NUMA_CONFIG, NUMA_ID and what follows
        131..=160 => 0,
        _ => return Err(INVALID_VALUE),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compute_capability_is_configurable() {
        let config = Config::read(|name| (name == "SIMGPU_CC").then(|| "8.6".to_owned()));
        assert_eq!((attribute(&config, 0, 75), attribute(&config, 0, 76)), (Ok(8), Ok(6)));
        assert_eq!(attribute(&config, 0, 9999), Err(INVALID_VALUE));
    }

    #[test]
    fn limits_of_a_multiprocessor_follow_the_capability() {
        let limits = |capability: &str| {
            let config = Config::read(|name| (name == "SIMGPU_CC").then(|| capability.to_owned()));
            [39, 106, 81, 97].map(|which| attribute(&config, 0, which).unwrap())
        };
        assert_eq!(limits("7.5"), [1024, 16, 64 << 10, 64 << 10]);
        assert_eq!(limits("8.0"), [2048, 32, 164 << 10, 163 << 10]);
        assert_eq!(limits("8.9"), [1536, 24, 100 << 10, 99 << 10]);
        assert_eq!(limits("9.0"), [2048, 32, 228 << 10, 227 << 10]);
        assert_eq!(limits("12.0"), [1536, 24, 100 << 10, 99 << 10]);
    }
}
