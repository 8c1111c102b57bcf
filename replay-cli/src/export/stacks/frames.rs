//! Frames as viewers of stacks show them.

use crate::symbolize::Resolver;
use gpumemtrace_format::source_path::file_name;
use gpumemtrace_replay::report::{FrameKind, Site, StackFrame};

use crate::export::ExportRun;
use crate::terminal::paths::{normalize_path, path_in_package};

/// The function of a stack without frames.
const NO_STACK: &str = "(no stack)";
/// The frame between those of an autograd thread and those of the forward call it works for.
const BACKWARD: &str = "(backward pass)";
const UNKNOWN_FUNCTION: &str = "(unknown function)";

/// A frame with everything that viewers show of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ViewerFrame {
    /// The function, or for a native address without a name `libfoo.so+0x12`.
    pub(crate) function: String,
    /// The source file. From the folder of installed packages on, if it lies in one.
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
    /// The library of a native frame.
    pub(crate) module: Option<String>,
    pub(crate) origin: FrameOrigin,
}

/// What a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum FrameOrigin {
    /// Python code of the user.
    User,
    /// Python code of an installed package or the standard library.
    Library,
    /// Machine code of a library.
    Native,
    /// Not a function: a marker, or the device.
    Label,
}

impl ViewerFrame {
    fn of(frame: &StackFrame) -> Self {
        if frame.is_backward() {
            return Self::label(BACKWARD);
        }
        let is_native = matches!(frame.kind, FrameKind::Native);
        let file = frame.file.as_deref().map(normalize_path);
        let place = || {
            let module = frame.module.as_deref().map_or("unknown module", file_name);
            frame.offset.map_or_else(|| module.to_owned(), |offset| format!("{module}+{offset:#x}"))
        };
        let function = match &frame.function {
            Some(function) => function.clone(),
            None if is_native => place(),
            None => UNKNOWN_FUNCTION.to_owned(),
        };
        Self {
            function,
            file: file.map(|file| path_in_package(&file).unwrap_or(&file).to_owned()),
            line: frame.line,
            module: frame.module.clone(),
            origin: match () {
                () if is_native => FrameOrigin::Native,
                () if frame.is_own => FrameOrigin::User,
                () => FrameOrigin::Library,
            },
        }
    }

    /// A frame that is not a function.
    pub(crate) fn label(name: &str) -> Self {
        Self { function: name.to_owned(), file: None, line: None, module: None, origin: FrameOrigin::Label }
    }

    /// `function (file:line)`, or the known part of it.
    pub(crate) fn with_place(&self) -> String {
        let Self { function, file, line, .. } = self;
        match (file, line, &self.module) {
            (Some(file), Some(line), _) => format!("{function} ({file}:{line})"),
            (Some(file), None, _) => format!("{function} ({file})"),
            (None, _, Some(module)) if !function.starts_with(file_name(module)) => {
                format!("{function} ({})", file_name(module))
            }
            (None, _, _) => function.clone(),
        }
    }
}

/// The stacks of a run by number, each with its frames, outermost first.
#[derive(Debug, Default)]
pub(crate) struct NamedStacks {
    /// Ordered by their numbers.
    stacks: Vec<(u32, Vec<ViewerFrame>)>,
}

impl NamedStacks {
    /// Names the frames of stacks; numbers may repeat.
    pub(crate) fn new(
        run: &ExportRun,
        stacks: impl IntoIterator<Item = u32>,
        resolver: &mut Resolver,
    ) -> Self {
        let mut numbers: Vec<u32> = stacks.into_iter().collect();
        numbers.sort_unstable();
        numbers.dedup();
        let sites = run.sites_of_stacks(&numbers, resolver);
        Self { stacks: numbers.into_iter().zip(sites.iter().map(frames_of_site)).collect() }
    }

    /// The frames of a stack, outermost first; never empty.
    pub(crate) fn frames(&self, stack: u32) -> &[ViewerFrame] {
        let found = self.stacks.binary_search_by_key(&stack, |(number, _)| *number);
        found.map_or(&[], |at| &self.stacks[at].1)
    }
}

fn frames_of_site(site: &Site) -> Vec<ViewerFrame> {
    let mut frames: Vec<ViewerFrame> = site.stack.iter().rev().map(ViewerFrame::of).collect();
    if frames.is_empty() {
        frames.push(ViewerFrame::label(NO_STACK));
    }
    frames
}
