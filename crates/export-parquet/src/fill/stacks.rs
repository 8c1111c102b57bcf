//! The table of stacks, with the names of native functions.

use std::collections::BTreeMap;

use gpumemtrace_cli::export::ExportRun;
use gpumemtrace_cli::symbolize::Resolver;
use gpumemtrace_format::source_path;
use gpumemtrace_replay::report::{FrameKind, Site, StackFrame};

use super::text;
use crate::file::cell::Text;
use crate::file::frames::FrameCell;
use crate::folder::PartitionFolder;
use crate::tables::stacks::StackRow;

/// Stacks that are named at a time: a named stack is much larger than its row.
const STACKS_AT_ONCE: usize = 1024;

/// Writes the table `stacks`. Returns the call sites, without their stacks, by number.
pub(crate) fn write_stacks(
    run: &ExportRun,
    stacks: &[(u32, Option<u32>)],
    resolver: &mut Resolver,
    folder: &mut PartitionFolder<'_>,
) -> anyhow::Result<BTreeMap<u32, Site>> {
    let mut table = folder.begin::<StackRow>()?;
    let mut sites = BTreeMap::new();
    for stacks in stacks.chunks(STACKS_AT_ONCE) {
        let numbers: Vec<u32> = stacks.iter().map(|(stack, _)| *stack).collect();
        let named = run.sites_of_stacks(&numbers, resolver);
        for ((stack, site), mut named) in stacks.iter().zip(named) {
            table.push(StackRow {
                stack: i64::from(*stack),
                site: site.map(i64::from),
                site_id: Text::from(named.id.as_str()),
                folded: Text::from(folded(&named.stack)),
                frames: named.stack.iter().map(frame_cell).collect(),
            });
            if let Some(site) = site {
                named.stack = Vec::new();
                sites.entry(*site).or_insert(named);
            }
        }
    }
    table.finish()?;
    Ok(sites)
}

fn frame_cell(frame: &StackFrame) -> FrameCell {
    FrameCell {
        function: if frame.is_backward() { Some(BACKWARD) } else { text(frame.function.as_ref()) },
        file: text(frame.file.as_ref().or(frame.module.as_ref())),
        line: frame.line.map(i64::from),
    }
}

/// The name of the marker between the frames of an autograd thread and those of the forward line.
const BACKWARD: Text = Text::from_static("(backward)");

/// The frames in one line, outermost first.
fn folded(frames: &[StackFrame]) -> String {
    let mut line = String::new();
    for frame in frames.iter().rev() {
        if !line.is_empty() {
            line.push(';');
        }
        // In this form, `;` separates frames and a line ends a stack.
        line.extend(frame_name(frame).chars().map(|c| match c {
            ';' => ':',
            c if c.is_control() => ' ',
            c => c,
        }));
    }
    line
}

/// `function (train.py:12)`, or what is known of it.
fn frame_name(frame: &StackFrame) -> String {
    if frame.is_backward() {
        return "(backward)".to_owned();
    }
    let file_name = |path: &String| source_path::file_name(path).to_owned();
    let file = frame.file.as_ref().map(file_name);
    let source = match (file, frame.line) {
        (Some(file), Some(line)) => Some(format!("{file}:{line}")),
        (file, _) => file,
    };
    let module = frame.module.as_ref().map(file_name);
    let place = match (source, module, frame.offset) {
        (Some(source), ..) => source,
        (None, Some(module), Some(offset)) => format!("{module}+{offset:#x}"),
        (None, Some(module), None) => module,
        (None, None, _) => match frame.kind {
            FrameKind::Python => "unknown file".to_owned(),
            FrameKind::Native => "unknown module".to_owned(),
        },
    };
    match &frame.function {
        Some(function) => format!("{function} ({place})"),
        None => place,
    }
}
