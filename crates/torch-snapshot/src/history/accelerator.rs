//! The kind of device that a snapshot is of.
//!
//! PyTorch's builds for AMD and Intel GPUs, and torch_npu for Ascend NPUs, write snapshots of the
//! same form, without a name of the device. The libraries on the stacks show it. NPUs also differ
//! in sizes: torch_npu adds 32 bytes to each request (`round_size` in
//! [NPUCachingAllocator.cpp](https://github.com/Ascend/pytorch/blob/master/torch_npu/csrc/core/npu/NPUCachingAllocator.cpp)),
//! unless CANN is 9.1 or later.

use gpumemtrace_format::source_path::with_slashes;

use crate::values::{BlockRecord, EndBlockState, SegmentRecord, TorchSnapshot};

/// What torch_npu adds to a request before it rounds.
const NPU_PADDING_BYTES: u64 = 32;
const MIN_BLOCK_BYTES: u64 = 512;
/// Segments of small blocks. Their blocks have no bytes beyond the rounded request.
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// Blocks that show that requests are padded, if the stacks do not name the device.
const MIN_PADDED_BLOCKS: u64 = 3;

/// The kind of a device, if it is not a GPU of NVIDIA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Accelerator {
    /// AMD GPUs; the allocator is the code of CUDA's.
    Rocm,
    /// Intel GPUs; the allocator rounds like CUDA's.
    Xpu,
    /// Ascend NPUs; the allocator may pad each request.
    Npu,
}

impl Accelerator {
    /// The name in the metadata of the trace.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rocm => "rocm",
            Self::Xpu => "xpu",
            Self::Npu => "npu",
        }
    }

    /// The accelerator that this frame belongs to.
    fn of_frame(file: &str, name: &str) -> Option<Self> {
        let file = with_slashes(file);
        let is_any = |namespaces: &[&str], files: &[&str]| {
            namespaces.iter().any(|part| name.contains(part)) || files.iter().any(|part| file.contains(part))
        };
        if is_any(&["c10_npu::", "at_npu::"], &["/torch_npu/", "libtorch_npu.", "libascendcl."]) {
            Some(Self::Npu)
        } else if is_any(&["c10::xpu::", "at::xpu::"], &["/torch/xpu/", "libtorch_xpu.", "libc10_xpu."]) {
            Some(Self::Xpu)
        } else if is_any(&["c10::hip::", "at::hip::"], &["libtorch_hip.", "libc10_hip.", "libamdhip64."]) {
            Some(Self::Rocm)
        } else {
            None
        }
    }
}

/// The accelerator of a snapshot; `None` for CUDA, and if nothing shows another. Then what is added
/// to each request.
pub(super) fn find_accelerator(snapshot: &TorchSnapshot) -> (Option<Accelerator>, u64) {
    let mut frames = snapshot.stacks.all_frames();
    let named = frames.find_map(|frame| {
        Accelerator::of_frame(snapshot.texts.get(frame.file), snapshot.texts.get(frame.name))
    });
    let (padded, plain) = count_padded(&snapshot.segments);
    let has_divisions = !snapshot.settings.roundup_divisions.is_empty();
    let is_padded = padded > plain;
    match named.or(snapshot.has_npu_events.then_some(Accelerator::Npu)) {
        Some(Accelerator::Npu) if is_padded || padded + plain == 0 => {
            (Some(Accelerator::Npu), NPU_PADDING_BYTES)
        }
        Some(accelerator) => (Some(accelerator), 0),
        None if padded >= MIN_PADDED_BLOCKS && plain == 0 && !has_divisions => {
            (Some(Accelerator::Npu), NPU_PADDING_BYTES)
        }
        None => (None, 0),
    }
}

/// The small blocks at the end that are padded and those that are not. Only requests of whole units
/// show it: these are one unit larger.
fn count_padded(segments: &[SegmentRecord]) -> (u64, u64) {
    let small = segments.iter().filter(|segment| segment.bytes == SMALL_SEGMENT_BYTES);
    let blocks = small.flat_map(|segment| &segment.blocks);
    let mut counts = (0, 0);
    for block in blocks.filter(|block| block.state != EndBlockState::Inactive) {
        let BlockRecord { size, requested: Some(requested), .. } = *block else { continue };
        if requested == 0 || !requested.is_multiple_of(MIN_BLOCK_BYTES) {
            continue;
        }
        match size.checked_sub(requested) {
            Some(MIN_BLOCK_BYTES) => counts.0 += 1,
            Some(0) => counts.1 += 1,
            _ => {}
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_on_the_stack_names_the_accelerator() {
        use Accelerator::{Npu, Rocm, Xpu};
        for (file, name, accelerator) in [
            ("/v/site-packages/torch_npu/npu/utils.py", "f", Some(Npu)),
            ("??", "c10_npu::NPUCachingAllocator::DeviceCachingAllocator::malloc(int)", Some(Npu)),
            ("/v/site-packages/torch/xpu/memory.py", "f", Some(Xpu)),
            (r"C:\v\site-packages\torch\xpu\memory.py", "f", Some(Xpu)),
            ("??", "c10::xpu::XPUCachingAllocator::malloc(void**)", Some(Xpu)),
            ("/v/torch/lib/libtorch_hip.so", "at::native::mm", Some(Rocm)),
            ("/v/site-packages/torch/cuda/memory.py", "f", None),
            ("??", "c10::cuda::CUDACachingAllocator::malloc()", None),
        ] {
            assert_eq!(Accelerator::of_frame(file, name), accelerator, "{file} {name}");
        }
    }
}
