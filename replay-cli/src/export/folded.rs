//! Folded stacks: one line per stack, for flame graph tools (flamegraph.pl, inferno, speedscope).
//!
//! A line is `root;...;leaf N`, with N bytes. Readers split it at its last space and at semicolons,
//! and know no escape. So a semicolon in a name becomes a colon, and control characters are written
//! out, such as `\n`.

use std::collections::BTreeMap;
use std::io::Write;

use super::stacks::{DeviceStacks, NamedStacks, StackWeight, ViewerFrame, collect_stacks};
use super::{ExportFormat, ExportJob, Exporter};
use crate::terminal::escape::escape_text;

#[derive(clap::Args)]
pub(crate) struct FoldedExporter {
    /// What the number of each stack counts
    #[arg(long, value_enum, default_value_t)]
    weight: StackWeight,
}

impl ExportFormat for FoldedExporter {
    const NAME: &'static str = "folded";
    const HELP: &'static str = "Folded stacks for flame graph tools, one line per stack";
    const EXAMPLE: &'static str = "folded run.trace --weight leaked -o - | flamegraph.pl > leaks.svg";
    const SUFFIX: &'static str = ".folded";
}

impl Exporter for FoldedExporter {
    fn shows_leaks(&self) -> bool {
        self.weight == StackWeight::Leaked
    }

    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut lines = FoldedLines::default();
        let mut devices = 0;
        for index in 0..job.runs.len() {
            let run = &mut job.runs[index];
            let of_run = collect_stacks(run, index, &job.report, false)?.devices;
            devices += of_run.len();
            for device in of_run {
                let amounts = device.by_stack(self.weight);
                let stacks = NamedStacks::new(run, amounts.keys().copied(), &mut job.resolver);
                for (stack, amount) in &amounts {
                    lines.add(&device, stacks.frames(*stack), amount.bytes);
                }
            }
        }
        if lines.lines.is_empty() {
            job.notes.push(match self.weight {
                // Leaks may not have been judged.
                StackWeight::Leaked => "the report names no leak: the file is empty".to_owned(),
                weight => format!("no memory was {}: the file is empty", weight.title()),
            });
        }
        lines.write(devices > 1, out)
    }
}

/// Bytes by device and by the text of a stack. Different stacks may have equal text.
#[derive(Debug, Default)]
struct FoldedLines {
    lines: BTreeMap<(usize, u8, String), (String, u64)>,
}

impl FoldedLines {
    fn add(&mut self, device: &DeviceStacks, frames: &[ViewerFrame], bytes: u64) {
        let key = (device.run, device.device, fold_frames(frames));
        let (_, sum_bytes) = self.lines.entry(key).or_insert_with(|| (device.name.clone(), 0));
        *sum_bytes = sum_bytes.saturating_add(bytes);
    }

    /// With `has_device_frames`, the outermost frame is the device.
    fn write(&self, has_device_frames: bool, out: &mut dyn Write) -> anyhow::Result<()> {
        for ((.., stack), (device, bytes)) in &self.lines {
            if has_device_frames {
                write!(out, "{};", fold_frame(device))?;
            }
            writeln!(out, "{stack} {bytes}")?;
        }
        Ok(())
    }
}

fn fold_frames(frames: &[ViewerFrame]) -> String {
    let mut stack = frames.iter().map(|frame| fold_frame(&frame.with_place())).collect::<Vec<_>>().join(";");
    // Readers would take a number at the end of the innermost name for a second value.
    if let Some((_, last)) = stack.rsplit_once(' ')
        && last.parse::<f64>().is_ok()
    {
        stack.push('_');
    }
    stack
}

/// The text of a frame without the separators of the format.
fn fold_frame(text: &str) -> String {
    let text = escape_text(text).replace(';', ":");
    // Readers drop empty frames, and comments begin with a number sign.
    match text.trim() {
        "" => "(no name)".to_owned(),
        name if name.starts_with('#') => format!("_{name}"),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(function: &str) -> ViewerFrame {
        ViewerFrame::label(function)
    }

    #[test]
    fn separators_in_names_do_not_split_a_line() {
        let frames = [frame("a;b\nc"), frame(" "), frame("# d"), frame("e 12")];
        assert_eq!(fold_frames(&frames), "a:b\\nc;(no name);_# d;e 12_");
    }

    proptest! {
        #[test]
        fn any_name_is_one_frame_of_one_line(names in prop::collection::vec(any::<String>(), 1..5), bytes: u64) {
            let frames: Vec<ViewerFrame> = names.iter().map(|name| frame(name)).collect();
            let line = format!("{} {bytes}", fold_frames(&frames));
            prop_assert_eq!(line.lines().count(), 1);
            let (stack, value) = line.rsplit_once(' ').unwrap();
            prop_assert_eq!(value.parse::<u64>().unwrap(), bytes);
            prop_assert_eq!(stack.split(';').filter(|name| !name.is_empty()).count(), names.len());
            let last = stack.rsplit_once(' ').map(|(_, last)| last);
            prop_assert!(last.is_none_or(|last| last.parse::<f64>().is_err()));
        }
    }
}
