//! Where PyTorch's `TraceEntry` and autograd's `Node` have their fields, by release. Written by `scripts/generate/torch-abi` from the headers in the wheels.

/// Offsets in bytes.
#[derive(Debug)]
pub(super) struct Layout {
    /// Release of PyTorch, without the patch number.
    pub(super) release: &'static str,
    /// `action_`, 32 bits.
    pub(super) action: usize,
    /// `device_`, of which one byte is read.
    pub(super) device: usize,
    /// `addr_`, 64 bits.
    pub(super) addr: usize,
    /// `stream_`, a pointer.
    pub(super) stream: usize,
    /// `size_`, 64 bits.
    pub(super) size: usize,
    /// `mempool_`, two times 64 bits; newer releases only.
    pub(super) pool: Option<usize>,
    /// How many actions there are, counted from `ALLOC` = 0.
    pub(super) actions: u32,
}

#[rustfmt::skip]
pub(super) static LAYOUTS: &[Layout] = &[
    // begin of what scripts/generate/torch-abi writes
    Layout { release: "2.2", action: 0, device: 4, addr: 8, stream: 32, size: 40, pool: None, actions: 9 },
    Layout { release: "2.3", action: 0, device: 4, addr: 8, stream: 32, size: 40, pool: None, actions: 9 },
    Layout { release: "2.4", action: 0, device: 4, addr: 8, stream: 32, size: 40, pool: None, actions: 9 },
    Layout { release: "2.5", action: 0, device: 4, addr: 8, stream: 32, size: 40, pool: None, actions: 9 },
    Layout { release: "2.6", action: 0, device: 4, addr: 8, stream: 32, size: 40, pool: None, actions: 9 },
    Layout { release: "2.7", action: 0, device: 4, addr: 8, stream: 32, size: 40, pool: None, actions: 9 },
    Layout { release: "2.8", action: 0, device: 4, addr: 8, stream: 32, size: 40, pool: Some(48), actions: 9 },
    Layout { release: "2.9", action: 0, device: 4, addr: 8, stream: 32, size: 40, pool: Some(48), actions: 9 },
    Layout { release: "2.10", action: 0, device: 4, addr: 8, stream: 32, size: 40, pool: Some(48), actions: 9 },
    Layout { release: "2.11", action: 0, device: 4, addr: 8, stream: 32, size: 40, pool: Some(48), actions: 9 },
    Layout { release: "2.12", action: 0, device: 4, addr: 8, stream: 32, size: 40, pool: Some(48), actions: 9 },
    Layout { release: "2.13", action: 0, device: 4, addr: 8, stream: 32, size: 40, pool: Some(48), actions: 9 },
    Layout { release: "2.14", action: 0, device: 4, addr: 8, stream: 32, size: 40, pool: Some(48), actions: 10 },
    Layout { release: "2.15", action: 0, device: 4, addr: 8, stream: 32, size: 40, pool: Some(48), actions: 10 },
    // end of what scripts/generate/torch-abi writes
];

/// A node of autograd's graph. Offsets in bytes.
#[derive(Debug)]
pub(super) struct Node {
    /// Release of PyTorch, without the patch number.
    pub(super) release: &'static str,
    /// `sequence_nr_`, 64 bits.
    pub(super) number: usize,
    /// `thread_id_`, 64 bits: who created it.
    pub(super) thread: usize,
}

#[rustfmt::skip]
pub(super) static NODES: &[Node] = &[
    // begin of what scripts/generate/torch-abi writes
    Node { release: "2.1", number: 24, thread: 48 },
    Node { release: "2.2", number: 24, thread: 48 },
    Node { release: "2.3", number: 24, thread: 48 },
    Node { release: "2.4", number: 24, thread: 48 },
    Node { release: "2.5", number: 24, thread: 48 },
    Node { release: "2.6", number: 24, thread: 48 },
    Node { release: "2.7", number: 24, thread: 48 },
    Node { release: "2.8", number: 24, thread: 48 },
    Node { release: "2.9", number: 24, thread: 48 },
    Node { release: "2.10", number: 24, thread: 48 },
    Node { release: "2.11", number: 24, thread: 48 },
    Node { release: "2.12", number: 24, thread: 48 },
    Node { release: "2.13", number: 16, thread: 40 },
    Node { release: "2.14", number: 16, thread: 40 },
    Node { release: "2.15", number: 16, thread: 40 },
    // end of what scripts/generate/torch-abi writes
];
