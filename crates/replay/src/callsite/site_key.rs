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

/// An id that is equal in every run: a hash of the parts.
#[must_use]
pub fn stable_id(parts: &[&[u8]]) -> String {
    // FNV-1a. The last byte is in no UTF-8 text, so it separates the parts.
    let bytes = parts.iter().flat_map(|part| part.iter().chain(&[0xff]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// The id of a call site.
pub(crate) fn site_id(key: &SiteKey) -> String {
    match key {
        SiteKey::Python { file, line, function, is_backward } => {
            let line = line.unwrap_or(0).to_le_bytes();
            let (file, function) = (file.as_deref().unwrap_or(""), function.as_deref().unwrap_or(""));
            let parts = [file.as_bytes(), &line, function.as_bytes(), BACKWARD.as_bytes()];
            stable_id(if *is_backward { &parts } else { &parts[..3] })
        }
        SiteKey::Native { module, offset } => stable_id(&[module.as_bytes(), &offset.to_le_bytes()]),
        SiteKey::Unknown => stable_id(&[b"unknown"]),
    }
}
