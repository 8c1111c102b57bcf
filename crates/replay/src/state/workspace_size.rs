//! Sizes of the workspaces that PyTorch allocates for NVIDIA's libraries.

/// How strongly a size indicates a library's workspace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum WorkspaceSize {
    /// Hardly any tensor has this size.
    Distinctive,
    /// A power of two, which many tensors have.
    PowerOfTwo,
}

/// Recognises PyTorch's workspace for a cuBLAS handle: two buffers of 4 MiB and eight of 16 KiB,
/// or 32 MiB from Hopper on. That of cublasLt has 1 MiB.
pub(crate) fn workspace_size(bytes: u64) -> Option<WorkspaceSize> {
    match bytes {
        8_519_680 => Some(WorkspaceSize::Distinctive),
        0x10_0000 | 0x200_0000 => Some(WorkspaceSize::PowerOfTwo),
        _ => None,
    }
}
