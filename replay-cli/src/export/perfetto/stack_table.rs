//! The stacks of a heap profile as interned data.
//!
//! Readers know frames by their name and address. So stacks with the same frames are one stack
//! here: readers would take two with separate totals for one with falling totals.

use gpumemtrace_replay::report::{FrameKind, Site, StackFrame};

use crate::export::protobuf::Message;
use crate::render::wording::sites::format_frame;
use crate::terminal::paths::short_file;

use super::numbering::Numbering;

/// The numbers of fields of `InternedData`.
mod interned {
    pub(super) const FUNCTION_NAMES: u32 = 5;
    pub(super) const FRAMES: u32 = 6;
    pub(super) const CALLSTACKS: u32 = 7;
    pub(super) const BUILD_IDS: u32 = 16;
    pub(super) const MAPPING_PATHS: u32 = 17;
    pub(super) const SOURCE_PATHS: u32 = 18;
    pub(super) const MAPPINGS: u32 = 19;
}

/// The name of the one frame of a stack without frames.
const NO_STACK: &str = "(no stack)";
/// The name of the marker between the frames of an autograd thread and those of the forward call.
const BACKWARD_PASS: &str = "(backward pass)";
/// Number of the empty build ID, which every mapping has.
const BUILD_ID: u64 = 1;

/// A frame by the numbers of its parts.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ProfileFrameKey {
    name: u64,
    mapping: u64,
    /// Line of a Python frame, offset of a native one.
    place: u64,
}

/// Numbers stacks and everything they consist of.
#[derive(Debug, Default)]
pub(super) struct InternedStacks {
    names: Numbering<String>,
    mappings: Numbering<String>,
    sources: Numbering<String>,
    frames: Numbering<ProfileFrameKey>,
    stacks: Numbering<Vec<u64>>,
}

impl InternedStacks {
    /// The number of a stack, from 1. What is new is added to `data`, which is `InternedData`.
    pub(super) fn add(&mut self, site: &Site, data: &mut Message) -> u64 {
        // The bottom frame is first.
        let mut frames: Vec<u64> = site.stack.iter().rev().map(|frame| self.frame(frame, data)).collect();
        if frames.is_empty() {
            frames.push(self.placeless_frame(NO_STACK, data));
        }
        let (number, is_new) = self.stacks.number(frames.clone());
        if is_new {
            let mut stack = Message::new();
            stack.uint(1, number);
            for frame in frames {
                stack.uint(2, frame);
            }
            data.message(interned::CALLSTACKS, &stack);
        }
        number
    }

    fn frame(&mut self, frame: &StackFrame, data: &mut Message) -> u64 {
        if frame.is_backward() {
            return self.placeless_frame(BACKWARD_PASS, data);
        }
        let (mapping, place, kind) = match frame.kind {
            FrameKind::Python => {
                (frame.file.as_deref(), u64::from(frame.line.unwrap_or(0)), KIND_INTERPRETED)
            }
            FrameKind::Native => (frame.module.as_deref(), frame.offset.unwrap_or(0), KIND_NATIVE),
        };
        let name = self.name(&frame_name(frame), data);
        let mapping = self.mapping(mapping.unwrap_or("(unknown)"), data);
        let (number, is_new) = self.frames.number(ProfileFrameKey { name, mapping, place });
        if is_new {
            let mut message = Message::new();
            message.uint(1, number).uint(2, name).uint(3, mapping).uint(4, place);
            if let Some(file) = &frame.file {
                message.uint(5, self.source(file, data));
            }
            if let Some(line) = frame.line {
                message.uint(6, u64::from(line));
            }
            message.uint(7, kind);
            data.message(interned::FRAMES, &message);
        }
        number
    }

    /// A frame that stands for no code.
    fn placeless_frame(&mut self, name: &str, data: &mut Message) -> u64 {
        let name = self.name(name, data);
        let mapping = self.mapping("", data);
        let (number, is_new) = self.frames.number(ProfileFrameKey { name, mapping, place: 0 });
        if is_new {
            let mut message = Message::new();
            message.uint(1, number).uint(2, name).uint(3, mapping).uint(4, 0);
            data.message(interned::FRAMES, &message);
        }
        number
    }

    fn name(&mut self, name: &str, data: &mut Message) -> u64 {
        number_text(&mut self.names, name, (interned::FUNCTION_NAMES, data))
    }

    fn source(&mut self, file: &str, data: &mut Message) -> u64 {
        number_text(&mut self.sources, file, (interned::SOURCE_PATHS, data))
    }

    fn mapping(&mut self, path: &str, data: &mut Message) -> u64 {
        let (number, is_new) = self.mappings.number(path.to_owned());
        if is_new {
            if number == 1 {
                data.message(interned::BUILD_IDS, &interned_text(BUILD_ID, ""));
            }
            // The path has the number of its mapping.
            data.message(interned::MAPPING_PATHS, &interned_text(number, path));
            let mut mapping = Message::new();
            mapping.uint(1, number).uint(2, BUILD_ID).uint(7, number);
            data.message(interned::MAPPINGS, &mapping);
        }
        number
    }
}

/// The values of the enum `Frame.Kind`.
const KIND_NATIVE: u64 = 1;
const KIND_INTERPRETED: u64 = 3;

/// The number of a text, which is added to `data` if it is new.
fn number_text(numbers: &mut Numbering<String>, text: &str, (field, data): (u32, &mut Message)) -> u64 {
    let (number, is_new) = numbers.number(text.to_owned());
    if is_new {
        data.message(field, &interned_text(number, text));
    }
    number
}

fn interned_text(number: u64, text: &str) -> Message {
    let mut message = Message::new();
    message.uint(1, number).str(2, text);
    message
}

/// `forward (model.py:41)`, or the known part of it. Readers sum up frames by name.
fn frame_name(frame: &StackFrame) -> String {
    match (&frame.function, &frame.file) {
        (Some(function), Some(file)) => {
            let line = frame.line.map(|line| format!(":{line}")).unwrap_or_default();
            format!("{function} ({}{line})", short_file(file))
        }
        (Some(function), None) => function.clone(),
        (None, _) => format_frame(frame),
    }
}
