//! Sites and stacks for people: short file names, the source line itself where it can be read, own lines marked.

use std::collections::HashMap;
use std::fmt::Write as _;

use gpumemtrace_replay::origin::{Origin, origin_of};
use gpumemtrace_replay::report::{FrameKind, Site, StackFrame};
use gpumemtrace_replay::sections::{called, place};

use crate::output::Style;

/// Most frames shown of a stack.
const MAX_FRAMES: usize = 24;
/// Largest source file that is read for its lines, in bytes.
const MAX_SOURCE_BYTES: u64 = 8 << 20;

/// Reads source files once.
#[derive(Default)]
pub(crate) struct Sites {
    sources: HashMap<String, Option<Vec<String>>>,
}

impl Sites {
    /// The line a site stands on, without its indentation.
    pub(crate) fn source_line(&mut self, site: &Site) -> Option<String> {
        let (file, line) = (site.file.as_ref()?, site.line?);
        let lines = self.sources.entry(file.clone()).or_insert_with(|| {
            let facts = std::fs::metadata(file).ok()?;
            if !facts.is_file() || facts.len() > MAX_SOURCE_BYTES {
                return None;
            }
            let text = String::from_utf8_lossy(&std::fs::read(file).ok()?).into_owned();
            Some(text.lines().map(str::to_owned).collect())
        });
        let text = lines.as_ref()?.get((line as usize).checked_sub(1)?)?.trim();
        let printable: String = text.chars().filter(|c| !c.is_control()).take(160).collect();
        (!printable.is_empty()).then_some(printable)
    }
}

/// `train.py:41 in hook()`.
pub(crate) fn short(site: &Site) -> String {
    let mut shown = site.clone();
    shown.file = shown.file.map(|file| short_file(&file));
    place(&shown)
}

/// Relative to the current directory, or from the library folder on.
fn short_file(file: &str) -> String {
    for folder in ["/site-packages/", "/dist-packages/"] {
        if let Some(at) = file.rfind(folder) {
            return file[at + folder.len()..].to_owned();
        }
    }
    let here = std::env::current_dir().ok();
    let relative = here
        .and_then(|here| std::path::Path::new(file).strip_prefix(here).ok().map(|p| p.display().to_string()));
    relative.unwrap_or_else(|| file.to_owned())
}

/// The stack, innermost first, with the user's own lines marked.
pub(crate) fn write_stack(out: &mut String, stack: &[StackFrame], indent: &str, style: Style) {
    for frame in stack.iter().take(MAX_FRAMES) {
        let text = frame_text(frame);
        let is_own = frame.file.as_deref().is_some_and(|file| origin_of(file) == Origin::User);
        let line = if is_own { format!("> {text}") } else { style.dim(&format!("  {text}")) };
        let _ = writeln!(out, "{indent}{line}");
    }
    if stack.len() > MAX_FRAMES {
        let _ = writeln!(out, "{indent}  ... {} more frames", stack.len() - MAX_FRAMES);
    }
}

fn frame_text(frame: &StackFrame) -> String {
    match frame.kind {
        FrameKind::Native => {
            let module = frame.module.as_deref().unwrap_or("unknown module");
            frame.offset.map_or_else(|| module.to_owned(), |offset| format!("{module}+{offset:#x}"))
        }
        FrameKind::Python => {
            let file = frame.file.as_deref().map_or_else(|| "unknown file".to_owned(), short_file);
            let line = frame.line.map_or_else(|| "?".to_owned(), |line| line.to_string());
            let function = frame.function.as_deref().map_or_else(|| "unknown function".to_owned(), called);
            format!("{file}:{line} in {function}")
        }
    }
}
