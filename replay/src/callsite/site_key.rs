//! What makes two sites the same, and the id that a site has in every run.

use gpumemtrace_format::NodeId;

/// Longest stack shown: a cycle of parents (only a damaged or hostile file has one) ends here.
pub(crate) const MAX_FRAMES: usize = 4096;

/// In place of a function's name: what stands between a thread of autograd's and the forward line that it works for.
pub(super) const BACKWARD: &str = "<backward>";

/// What makes two sites the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum SiteKey {
    Python {
        file: Option<String>,
        line: Option<u32>,
        function: Option<String>,
        /// What the backward pass does for it.
        is_backward: bool,
    },
    Native {
        module: String,
        offset: u64,
    },
    Unknown,
}

/// A frame of a native stack.
#[derive(Clone, Debug)]
pub(crate) struct NativeFrame {
    pub(crate) node: NodeId,
    /// Return address; 0 where the node is not defined.
    pub(crate) address: u64,
    /// Path, and the return address in it, where the module is known.
    pub(crate) module: Option<(String, u64)>,
}

impl NativeFrame {
    pub(crate) fn path(&self) -> Option<&str> {
        self.module.as_ref().map(|(path, _)| path.as_str())
    }
}

/// The same line has the same id in every run: FNV-1a over its parts.
pub(crate) fn stable_id(key: &SiteKey) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    match key {
        SiteKey::Python { file, line, function, is_backward } => {
            add(file.as_deref().unwrap_or("").as_bytes());
            add(&line.unwrap_or(0).to_le_bytes());
            add(function.as_deref().unwrap_or("").as_bytes());
            if *is_backward {
                add(BACKWARD.as_bytes());
            }
        }
        SiteKey::Native { module, offset } => {
            add(module.as_bytes());
            add(&offset.to_le_bytes());
        }
        SiteKey::Unknown => add(b"unknown"),
    }
    format!("{hash:016x}")
}
