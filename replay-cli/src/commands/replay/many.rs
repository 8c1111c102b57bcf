//! The report of more traces than fit into memory together: that of `summarize`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{ReplayArgs, has_finding};
use crate::commands::summarize::read::{is_summary, summarize_files};
use crate::commands::summarize::{name_unreadable, print_fleet};
use crate::exit::{CliExit, UnreadableInput, UsageError};
use crate::render::text::SECTIONS;
use crate::render::{FLEET_RENDERERS, find_format, select_format};
use crate::terminal::format::format_number;
use crate::terminal::stderr::print_message;
use crate::terminal::style::Style;
use crate::trace::many::MAX_TOGETHER;

pub(super) fn run(args: &ReplayArgs, files: &[PathBuf], style: Style) -> anyhow::Result<CliExit> {
    let count = format_number(files.len() as u64);
    if let Some(option) = first_option_of_a_report(args) {
        return Err(UsageError(format!(
            "{option} takes at most {MAX_TOGETHER} traces, and these are {count}: name some of them, or choose \
             ranks with --rank"
        ))
        .into());
    }
    // A summary does not have what --fail-on judges.
    if let Some(path) = files.iter().find(|path| is_summary(path)) {
        let name = path.display();
        let why = format!("{name} is a summary of traces, which gpumemtrace summarize reads");
        return Err(UnreadableInput(why).into());
    }
    let fails = AtomicBool::new(false);
    let summary = summarize_files(files, &args.reading, args.jobs, &|report, analyses| {
        fails.fetch_or(has_finding(args, report, analyses), Ordering::Relaxed);
    })?;
    name_unreadable(&summary)?;
    print_message(format_args!(
        "gpumemtrace: summarized {count} traces; for the report of one, run gpumemtrace replay TRACE"
    ));
    let format = args.format.and_then(|format| find_format(FLEET_RENDERERS, format.name()));
    let exit = print_fleet(&summary, select_format(FLEET_RENDERERS, format, args.json), style)?;
    Ok(if fails.into_inner() { CliExit::Findings } else { exit })
}

/// The first option given that a summary cannot honour.
fn first_option_of_a_report(args: &ReplayArgs) -> Option<String> {
    let section = SECTIONS.iter().find(|row| args.sections.asked.contains(&row.section));
    let given = [("--at", !args.at.is_empty()), ("--blocks", args.blocks), ("--stacks", args.stacks)];
    let option = given.into_iter().find_map(|(option, is_given)| is_given.then_some(option));
    section
        .map(|row| format!("--{}", row.flag))
        .or(option.or_else(|| args.filters.first_given()).map(str::to_owned))
}
