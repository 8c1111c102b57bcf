//! How far the reserved memory of a simulated run depends on the addresses of a real driver.

use std::path::{Path, PathBuf};

use gpumemtrace_whatif::{ReservedRange, WhatIfRows};

use crate::commands::whatif::recorded_run::{RecordedRun, RecordedRunArgs};
use crate::render::wording::whatif::describe_range;
use crate::terminal::escape::escape_text;
use crate::terminal::stderr::print_message;

/// Random orders of addresses that are tried for each trace.
const ORDERS: u32 = 16;

/// Prints the range for each trace in which addresses may decide. The report has already named
/// traces that cannot be read.
pub(super) fn print_address_ranges(traces: &[PathBuf], here: &Path) {
    for trace in traces {
        if let Ok(Some(range)) = range_of_trace(trace) {
            let shown = trace.strip_prefix(here).unwrap_or(trace).display().to_string();
            print_message(format_args!(
                "gpumemtrace: {}: peak reserved on a real GPU: {}",
                escape_text(&shown),
                describe_range(&range)
            ));
        }
    }
}

/// `None` if no address can decide, and if the model does not reserve what the run reserved.
pub(in crate::commands) fn range_of_trace(trace: &Path) -> anyhow::Result<Option<ReservedRange>> {
    let mut run = RecordedRun::open(trace, &RecordedRunArgs::default())?;
    let WhatIfRows { base, .. } = run.predict(Vec::new(), ORDERS)?;
    let is_equal = base.row.peak_reserved_bytes == Some(run.peak_reserved_bytes);
    Ok(base.row.peak_reserved_range.filter(|_| is_equal))
}
