//! Opaque pools: large driver memory that another framework divides into blocks of its own.
//!
//! JAX takes three quarters of a device in one block and serves its arrays from it. No recorded
//! call shows these arrays, so growth inside the block is invisible and must not be called healthy.
//! [`find_opaque_pools`] lists such memory by its owner: what [`crate::state::pool_uses`] found,
//! unless it was requested by or for PyTorch's allocator. All pools of an owner must have
//! [`LARGE_BLOCK`] bytes and [`MIN_SHARE`] of the device.
//!
//! Blocks of `cudaMallocAsync` are recorded one by one, so a pool of the driver is not opaque,
//! however large its reserve is. `tests/driver_memory.rs` has each case.

use gpumemtrace_format::NO_DEVICE;
use gpumemtrace_format::source_path::with_slashes;

use crate::callsite::module_owner::UNKNOWN;
use crate::pass::Analysis;
use crate::report::{OpaquePool, PoolFramework, Site};
use crate::state::attribution::TORCH_ALLOCATOR;
use crate::state::pool_uses::LARGE_BLOCK;
use crate::util::ids::StackId;

/// Least share of the device that all pools of an owner have.
const MIN_SHARE: f64 = 0.1;

/// Names of libraries (prefixes of the file name) and Python packages of the known frameworks.
const FRAMEWORKS: [(PoolFramework, &[&str], &[&str]); 8] = [
    (
        PoolFramework::Xla,
        &["xla_cuda_plugin", "xla_extension", "libxla", "libjax", "libpjrt", "_XLAC"],
        &["jax", "jaxlib", "jax_plugins", "torch_xla"],
    ),
    (
        PoolFramework::TensorFlow,
        &["libtensorflow", "_pywrap_tensorflow", "_pywrap_tf"],
        &["tensorflow", "keras"],
    ),
    (PoolFramework::OnnxRuntime, &["libonnxruntime", "onnxruntime_pybind11_state"], &["onnxruntime"]),
    (PoolFramework::Rmm, &["librmm"], &["rmm"]),
    (PoolFramework::CuPy, &[], &["cupy", "cupy_backends"]),
    (PoolFramework::LlamaCpp, &["libggml", "libllama"], &["llama_cpp"]),
    (PoolFramework::TensorRt, &["libnvinfer"], &["tensorrt"]),
    (PoolFramework::TritonServer, &["libtritonserver"], &[]),
];

/// The opaque pools of all devices with a known ordinal, by device and falling size, one per owner.
/// Empty for Metal, and for a part of the run that one stream belongs to.
pub(crate) fn find_opaque_pools(analysis: &Analysis) -> Vec<OpaquePool> {
    if analysis.is_metal() || analysis.stream.is_some() {
        return Vec::new();
    }
    let mut stacks: Vec<(u8, StackId, u64)> =
        analysis.pool_uses.pools(analysis.end_ns).filter(|(device, ..)| *device != NO_DEVICE).collect();
    stacks.sort_unstable_by_key(|(device, stack, bytes)| (*device, std::cmp::Reverse(*bytes), *stack));
    let mut pools: Vec<OpaquePool> = Vec::new();
    for (device, stack, bytes) in stacks {
        let Some(owner) = foreign_owner(analysis, device, stack) else { continue };
        let of_owner = |pool: &&mut OpaquePool| pool.device == u32::from(device) && pool.owner == owner;
        if let Some(pool) = pools.iter_mut().find(of_owner) {
            pool.bytes = pool.bytes.saturating_add(bytes);
            continue;
        }
        let site = analysis.symbols.site(analysis.symbols.stack_info(stack).site, Some(stack));
        let framework = framework_of(&owner, &site);
        pools.push(OpaquePool { device: u32::from(device), owner, framework, bytes, site });
    }
    pools.retain(|pool| {
        let capacity = analysis.capacity(pool.device as u8).unwrap_or(0);
        pool.bytes >= LARGE_BLOCK && pool.bytes as f64 >= MIN_SHARE * capacity as f64
    });
    pools.sort_by_key(|pool| (pool.device, std::cmp::Reverse(pool.bytes)));
    pools
}

/// The library that requested memory from this stack. `None` if it was for PyTorch's allocator, or
/// may have been: without native stacks, PyTorch's requests have an unknown owner too.
fn foreign_owner(analysis: &Analysis, device: u8, stack: StackId) -> Option<String> {
    let (_, state) = analysis.devices.iter().find(|(ordinal, _)| *ordinal == device)?;
    let native = analysis.symbols.stack_info(stack).native;
    let owner = analysis.owners.name(analysis.owners.known(native));
    let is_torch = owner.starts_with(TORCH_ALLOCATOR)
        || state.requested_segments(stack)
        || owner == UNKNOWN && analysis.meta.text("torch").is_some();
    (!is_torch).then(|| owner.to_owned())
}

/// The framework of a pool by its library, else by the innermost known Python package on the stack.
fn framework_of(owner: &str, site: &Site) -> Option<PoolFramework> {
    let by_library =
        FRAMEWORKS.iter().find(|(_, libraries, _)| libraries.iter().any(|prefix| owner.starts_with(prefix)));
    let by_package = || {
        site.stack.iter().filter_map(|frame| frame.file.as_deref()).find_map(|file| {
            let file = with_slashes(file);
            let (_, path) =
                file.split_once("/site-packages/").or_else(|| file.split_once("/dist-packages/"))?;
            let package = path.split('/').next()?;
            FRAMEWORKS.iter().find(|(_, _, packages)| packages.contains(&package))
        })
    };
    by_library.or_else(by_package).map(|(framework, ..)| *framework)
}
