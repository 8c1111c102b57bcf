//! Sites and frames, as `--json` prints them.

use gpumemtrace_format::FrameLink;
use serde::Serialize;

/// A user line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Site {
    /// The same in every run.
    pub id: String,
    /// Source file.
    pub file: Option<String>,
    /// Line in it.
    pub line: Option<u32>,
    /// Qualified name.
    pub function: Option<String>,
    /// Shared library, where there is no Python frame.
    pub module: Option<String>,
    /// Return address in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// The line did it in the forward pass only indirectly: a thread of autograd's did, in the backward pass, for the node that
    /// the line had created.
    #[serde(rename = "backward", skip_serializing_if = "is_false")]
    pub is_backward: bool,
    /// Innermost first; the stack that holds most of what is reported.
    pub stack: Vec<StackFrame>,
    /// Where native frames stand among Python frames: `exact` or `approximate`. Only where there are both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack_order: Option<&'static str>,
    /// Return address of a native site; 0 for none.
    #[serde(skip)]
    pub(crate) address: u64,
}

/// Python or native.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FrameKind {
    /// Interpreted.
    Python,
    /// Machine code.
    Native,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StackFrame {
    /// Python or native.
    pub kind: FrameKind,
    /// Source file.
    pub file: Option<String>,
    /// Line in it.
    pub line: Option<u32>,
    /// Qualified name.
    pub function: Option<String>,
    /// Shared library.
    pub module: Option<String>,
    /// Return address in it.
    pub offset: Option<u64>,
    /// Was inlined into the next frame, which has the same offset.
    #[serde(rename = "inlined", skip_serializing_if = "is_false")]
    pub is_inlined: bool,
    /// Neither framework nor installed library (see `crate::callsite::code_origin`).
    #[serde(rename = "own", skip_serializing_if = "is_false")]
    pub is_own: bool,
    /// Return address of a native frame; 0 for none.
    #[serde(skip)]
    pub(crate) address: u64,
    /// How a Python frame came to be under its caller.
    #[serde(skip)]
    pub(crate) link: FrameLink,
}

impl StackFrame {
    /// True for what stands between the frames of a backward thread and those of the forward line that it works for.
    pub fn is_backward(&self) -> bool {
        self.link == FrameLink::Backward
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}
