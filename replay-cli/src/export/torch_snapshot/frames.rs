//! The stacks of a snapshot: lists of frames with file, line and name.

use std::collections::{BTreeSet, HashMap};
use std::io;

use gpumemtrace_replay::report::{FrameKind, Site, StackFrame};
use gpumemtrace_torch_snapshot::BACKWARD_FRAME;

use super::value_writer::{SharedValue, ValueWriter};

/// The frames of all stacks that a snapshot needs. Equal frames are kept once.
#[derive(Default)]
pub(super) struct FrameTable {
    /// File, line and name.
    frames: Vec<(String, u32, String)>,
    /// Frames of each stack, innermost first.
    stacks: HashMap<u32, Vec<u32>>,
}

impl FrameTable {
    /// Takes the frames of stacks from their sites, which are in the same order.
    pub(super) fn new(stacks: &BTreeSet<u32>, sites: &[Site]) -> Self {
        let mut table = Self::default();
        let mut numbers = HashMap::new();
        for (stack, site) in stacks.iter().zip(sites) {
            let frames = site.stack.iter().map(|frame| {
                let frame = snapshot_frame(frame);
                *numbers.entry(frame).or_insert_with_key(|frame| {
                    table.frames.push(frame.clone());
                    table.frames.len() as u32 - 1
                })
            });
            let frames = frames.collect();
            table.stacks.insert(*stack, frames);
        }
        table
    }

    /// Writes the frames of a stack; an empty list if it is unknown.
    pub(super) fn write_stack(&self, stack: Option<u32>, out: &mut dyn ValueWriter) -> io::Result<()> {
        let frames = stack.and_then(|stack| Some((stack, self.stacks.get(&stack)?)));
        let Some((stack, frames)) = frames else {
            out.begin_list()?;
            return out.end_list();
        };
        out.shared(SharedValue::Stack(stack), &mut |out| {
            out.begin_list()?;
            for frame in frames {
                out.shared(SharedValue::Frame(*frame), &mut |out| self.write_frame(*frame, out))?;
            }
            out.end_list()
        })
    }

    fn write_frame(&self, frame: u32, out: &mut dyn ValueWriter) -> io::Result<()> {
        let (file, line, name) = &self.frames[frame as usize];
        out.begin_dict()?;
        out.key("filename")?;
        out.text(file)?;
        out.key("line")?;
        out.unsigned(u64::from(*line))?;
        out.key("name")?;
        out.text(name)?;
        out.end_dict()
    }
}

/// File, line and name of a frame. As in PyTorch, a file without a name is `??` and an unknown line
/// is 0.
fn snapshot_frame(frame: &StackFrame) -> (String, u32, String) {
    let file = frame.file.as_deref().or(frame.module.as_deref()).unwrap_or("??");
    let name = match (&frame.function, frame.kind, frame.offset) {
        _ if frame.is_backward() => BACKWARD_FRAME.to_owned(),
        (Some(function), ..) => function.clone(),
        (None, FrameKind::Native, Some(offset)) => format!("+{offset:#x}"),
        _ => "??".to_owned(),
    };
    (file.to_owned(), frame.line.unwrap_or(0), name)
}
