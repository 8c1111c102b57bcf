//! The frames and stacks of events, from their fields.

use super::builder::Fields;
use super::frame_texts::{BACKWARD_MARK, FrameText, is_python, parse_profiler_frame, parse_traceback_frame};
use super::stacks::SnapshotFrame;
use super::{SnapshotBuilder, TextId, TextTable, TorchFrame, TorchSnapshot, TorchStack, Value, keys};

/// Frames of a forward call that are kept, innermost first. Events may share one list.
const MAX_FORWARD_FRAMES: usize = 512;

impl SnapshotBuilder {
    pub(super) fn frame(&mut self, fields: Fields<'_>) -> TorchFrame {
        let frame = SnapshotFrame {
            file: fields.get(keys::FILENAME).as_text().unwrap_or(keys::EMPTY),
            name: fields.get(keys::NAME).as_text().unwrap_or(keys::EMPTY),
            line: u32::try_from(fields.number(keys::LINE)).unwrap_or(0),
        };
        let snapshot = &mut self.snapshot;
        if frame.file != keys::NO_FILE {
            return snapshot.stacks.intern_frame(frame);
        }
        let name = snapshot.texts.get(frame.name).to_owned();
        let Some((file, line, name)) = parse_profiler_frame(&name) else {
            // A built-in function or a module: no frame of Python.
            return snapshot.stacks.intern_frame(SnapshotFrame { file: keys::EMPTY, ..frame });
        };
        // The profiler shortens paths to those below the folder of packages.
        let folder = match file {
            _ if file.starts_with("torch/") => "site-packages/",
            _ if file.starts_with("torch\\") => "site-packages\\",
            _ => "",
        };
        let named = intern_frame_text(&mut snapshot.texts, (&format!("{folder}{file}"), line, name));
        snapshot.stacks.intern_frame(named)
    }

    /// The stack of an event. In anomaly mode, an event of a backward pass has the frames of the
    /// forward call. They are its callers if it has no Python frames of its own.
    pub(super) fn stack_of_event(&mut self, fields: Fields<'_>) -> Option<TorchStack> {
        let own = fields.get(keys::FRAMES).as_stack();
        let Value::TextList(lines) = fields.get(keys::FORWARD_FRAMES) else { return own };
        if own.is_some_and(|own| self.has_python_frames(own)) {
            return own;
        }
        let Some(forward) = self.forward_stack(lines) else { return own };
        if let Some(known) = self.forward.merged.get(&(own, forward)) {
            return Some(*known);
        }
        let TorchSnapshot { stacks, texts, .. } = &mut self.snapshot;
        let mark = stacks.intern_frame(intern_frame_text(texts, BACKWARD_MARK));
        let own_frames = own.into_iter().flat_map(|own| stacks.frames(own));
        let frames = own_frames.chain([mark]).chain(stacks.frames(forward));
        let frames: Vec<Value> = frames.map(Value::Frame).collect();
        self.forward.merged_frames += frames.len();
        let merged = stacks.intern_values(&frames)?;
        self.forward.merged.insert((own, forward), merged);
        Some(merged)
    }

    fn has_python_frames(&mut self, stack: TorchStack) -> bool {
        let TorchSnapshot { stacks, texts, .. } = &self.snapshot;
        *self.forward.has_python.entry(stack).or_insert_with(|| {
            stacks.frames(stack).any(|frame| {
                let SnapshotFrame { file, name, .. } = stacks.frame(frame);
                is_python(texts.get(file), texts.get(name))
            })
        })
    }

    /// The stack in the lines of `forward_frames`, innermost first.
    fn forward_stack(&mut self, lines: u32) -> Option<TorchStack> {
        if let Some(known) = self.forward.stacks.get(&lines) {
            return *known;
        }
        let TorchSnapshot { stacks, texts, .. } = &mut self.snapshot;
        let mut frames = Vec::new();
        for line in self.text_lists.get(lines).iter().rev().take(MAX_FORWARD_FRAMES) {
            let line = TextId(*line);
            let frame = *self.forward.frames.entry(line).or_insert_with(|| {
                let text = texts.get(line).to_owned();
                let frame = intern_frame_text(texts, parse_traceback_frame(&text)?);
                Some(stacks.intern_frame(frame))
            });
            frames.extend(frame.map(Value::Frame));
        }
        let stack = stacks.intern_values(&frames);
        self.forward.stacks.insert(lines, stack);
        stack
    }
}

fn intern_frame_text(texts: &mut TextTable, (file, line, name): FrameText<'_>) -> SnapshotFrame {
    SnapshotFrame { file: texts.intern(file), name: texts.intern(name), line }
}
