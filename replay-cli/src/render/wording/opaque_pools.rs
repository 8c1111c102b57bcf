//! Sentences about memory that another framework divides into blocks of its own.

use gpumemtrace_replay::report::PoolFramework;

use crate::terminal::units::format_bytes;

/// The name of a framework with a pool of its own.
const fn framework_name(framework: PoolFramework) -> &'static str {
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

/// A clause that says whose a pool is.
pub(super) fn describe_opaque_pool(
    device: u32,
    owner: &str,
    framework: Option<PoolFramework>,
    bytes: u64,
) -> String {
    let framework = framework.map(|framework| format!(", {}", framework_name(framework))).unwrap_or_default();
    let bytes = format_bytes(bytes);
    format!("{bytes} on GPU {device} are a pool of {owner}{framework}, which serves its own blocks from it")
}

/// How to make the blocks of a pool visible, as a sentence.
pub(super) const fn pool_remedy(framework: Option<PoolFramework>) -> &'static str {
    match framework {
        Some(PoolFramework::Xla) => {
            "Set XLA_PYTHON_CLIENT_PREALLOCATE=false and XLA_PYTHON_CLIENT_ALLOCATOR=platform (or cuda_async)."
        }
        Some(PoolFramework::TensorFlow) => "Set TF_GPU_ALLOCATOR=cuda_malloc_async.",
        Some(PoolFramework::OnnxRuntime) => {
            "Set the CUDA provider's arena_extend_strategy to kSameAsRequested; growth of the arena then shows."
        }
        Some(PoolFramework::Rmm) => {
            "Call rmm.mr.set_current_device_resource(rmm.mr.CudaMemoryResource()) at the start."
        }
        Some(PoolFramework::CuPy) => "Call cupy.cuda.set_allocator(None) at the start.",
        Some(PoolFramework::TritonServer) => "Start it with --cuda-memory-pool-byte-size=DEVICE:0.",
        Some(PoolFramework::LlamaCpp | PoolFramework::TensorRt) => {
            "No setting is known; use the framework's own statistics."
        }
        None => "No setting is known for this library; look for one that turns its memory pool off.",
    }
}
