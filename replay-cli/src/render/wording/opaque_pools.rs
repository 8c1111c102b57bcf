//! Sentences about memory that another framework divides into blocks of its own.

use gpumemtrace_replay::report::{OpaquePool, PoolFramework};

use crate::terminal::units::format_bytes;

/// The name of a framework with a pool of its own.
pub(crate) const fn framework_name(framework: PoolFramework) -> &'static str {
    match framework {
        PoolFramework::Xla => "XLA (JAX)",
        PoolFramework::TensorFlow => "TensorFlow",
        PoolFramework::OnnxRuntime => "ONNX Runtime",
        PoolFramework::Rmm => "RMM",
        PoolFramework::CuPy => "CuPy",
        PoolFramework::LlamaCpp => "llama.cpp",
        PoolFramework::TensorRt => "TensorRT",
        PoolFramework::TritonServer => "Triton Inference Server",
    }
}

/// Says whose a pool is, and that leaks in it are not visible.
pub(crate) fn describe_opaque_pool(pool: &OpaquePool) -> String {
    let framework =
        pool.framework.map(|framework| format!(", {}", framework_name(framework))).unwrap_or_default();
    format!(
        "GPU {}: {} is a pool of {}{framework}, which serves its own blocks; leaks inside are not visible",
        pool.device,
        format_bytes(pool.bytes),
        pool.owner,
    )
}

/// How to make the blocks of a pool visible.
pub(crate) const fn pool_remedy(framework: Option<PoolFramework>) -> &'static str {
    match framework {
        Some(PoolFramework::Xla) => {
            "set XLA_PYTHON_CLIENT_PREALLOCATE=false and XLA_PYTHON_CLIENT_ALLOCATOR=platform (or cuda_async)"
        }
        Some(PoolFramework::TensorFlow) => "set TF_GPU_ALLOCATOR=cuda_malloc_async",
        Some(PoolFramework::OnnxRuntime) => {
            "set the CUDA provider's arena_extend_strategy to kSameAsRequested; growth of the arena then shows"
        }
        Some(PoolFramework::Rmm) => {
            "call rmm.mr.set_current_device_resource(rmm.mr.CudaMemoryResource()) at the start"
        }
        Some(PoolFramework::CuPy) => "call cupy.cuda.set_allocator(None) at the start",
        Some(PoolFramework::TritonServer) => "start it with --cuda-memory-pool-byte-size=DEVICE:0",
        Some(PoolFramework::LlamaCpp | PoolFramework::TensorRt) => {
            "no setting is known; use the framework's own statistics"
        }
        None => "no setting is known for this library; look for one that turns its memory pool off",
    }
}
