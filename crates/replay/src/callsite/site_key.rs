//! The identity of call sites, within a run and across runs.

/// Limit of the frames of a stack: a cycle of parents, possible only in a damaged or hostile file,
/// ends here.
pub(crate) const MAX_FRAMES: usize = 4096;

/// The function name of the pseudo frame between an autograd thread and its forward line.
pub(super) const BACKWARD: &str = "<backward>";

/// The content of a call site. Sites with equal keys are one site.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum SiteKey {
    Python {
        file: Option<String>,
        line: Option<u32>,
        function: Option<String>,
        /// True for the backward pass of this line.
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
    /// Return address; 0 if the node is not defined.
    pub(crate) address: u64,
    /// Path of the module and offset of the return address in it, if the module is known.
    pub(crate) module: Option<(String, u64)>,
}

impl NativeFrame {
    pub(crate) fn path(&self) -> Option<&str> {
        self.module.as_ref().map(|(path, _)| path.as_str())
    }
}

/// An id that is equal in every run: the FNV-1a hash of the key.
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
