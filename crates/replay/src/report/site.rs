//! Call sites and stack frames.

use gpumemtrace_format::FrameLink;
use schemars::JsonSchema;
use serde::Serialize;

use super::json_enum::json_enum;

/// A call site: the innermost frame outside frameworks and installed libraries.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Site {
    /// Identifies the call site; the same in every run.
    pub id: String,
    /// The path of the source file.
    pub file: Option<String>,
    /// The line in the source file.
    pub line: Option<u32>,
    /// The qualified name of the function.
    pub function: Option<String>,
    /// The shared library, for a site without Python frames.
    pub module: Option<String>,
    /// The return address in the shared library.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// True if an autograd thread allocated it in the backward pass, for the node that this line
    /// created.
    #[serde(skip_serializing_if = "is_false")]
    pub is_backward: bool,
    /// The stack with most of the reported bytes, innermost frame first; empty where the report
    /// shows none.
    pub stack: Vec<StackFrame>,
    /// Whether the order of native and Python frames is known; absent unless the stack has both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack_order: Option<StackOrder>,
    /// Return address of a native site; 0 for none.
    #[serde(skip)]
    pub(crate) address: u64,
}

/// Where a site is: file, line, function, library, offset, and whether in the backward pass.
pub(crate) type SitePlace = (Option<String>, Option<u32>, Option<String>, Option<String>, Option<u64>, bool);

impl Site {
    /// Orders sites by source, and is equal for the same place in other traces.
    pub(crate) fn place(&self) -> SitePlace {
        let Self { file, line, function, module, offset, is_backward, .. } = self.clone();
        (file, line, function, module, offset, is_backward)
    }
}

json_enum! {
    /// Whether the order of native and Python frames in a stack is known.
    enum StackOrder {
        /// Every native frame is between the right Python frames.
        Exact = "exact",
        /// Some native frames may be between other Python frames.
        Approximate = "approximate",
    }
}

json_enum! {
    /// The language of a frame.
    enum FrameKind {
        /// A frame of interpreted Python code.
        Python = "python",
        /// Machine code of a library.
        Native = "native",
    }
}

/// One frame of a stack.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct StackFrame {
    /// The language of the frame.
    pub kind: FrameKind,
    /// The path of the source file.
    pub file: Option<String>,
    /// The line in the source file.
    pub line: Option<u32>,
    /// The qualified name of the function.
    pub function: Option<String>,
    /// The shared library of a native frame.
    pub module: Option<String>,
    /// The return address in the shared library.
    pub offset: Option<u64>,
    /// True if it was inlined into the next frame, which has the same offset.
    #[serde(skip_serializing_if = "is_false")]
    pub is_inlined: bool,
    /// True for user code: neither a framework nor an installed library
    /// (`crate::callsite::code_origin`).
    #[serde(skip_serializing_if = "is_false")]
    pub is_own: bool,
    /// Return address of a native frame; 0 for none.
    #[serde(skip)]
    pub(crate) address: u64,
    /// How a Python frame was called.
    #[serde(skip)]
    pub(crate) link: FrameLink,
}

impl StackFrame {
    /// True for the marker between the frames of an autograd thread and those of the forward line
    /// it works for.
    pub fn is_backward(&self) -> bool {
        self.link == FrameLink::Backward
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}
