//! The text of a new budget file, with a comment on each value.

use std::fmt::Write as _;

use gpumemtrace_replay::budget::{BudgetDraft, BudgetQuantity};

use super::check::explain_unknown;
use crate::terminal::units::format_bytes;

const HEAD: &str = "\
# Memory budget. `gpumemtrace check TRACE --budget FILE` exits with code 3 if a run exceeds a limit.
# Sizes are bytes, or text such as \"1.5 GiB\". A limit may have its own tolerance, and may pass if
# the trace does not contain the value:
# live = { limit = \"1.5 GiB\", tolerance = \"2%\", if_unknown = \"pass\" }.
# By default, an unknown value fails.

# How far each limit in bytes may be exceeded, except those of leaks: a share of the limit, or bytes.
tolerance = \"1%\"
";

const SITES: &str = "
# Call sites, summed over all that match: FILE, FILE:LINE, FILE:FIRST-LAST, FILE:FUNCTION or
# FUNCTION; * matches any text. peak: bytes at the peak of the GPU. bytes_per_step: bytes allocated
# in the median step, freed or not. Also: retained (live at the end of the last step),
# allocations_per_step, tolerance and if_unknown (for all of these).
";

/// The text of the file.
pub(crate) fn write_budget_file(draft: &BudgetDraft) -> String {
    let mut out = HEAD.to_owned();
    let mut open_table = "";
    for (quantity, value) in &draft.values {
        let (table, key) = quantity.name().split_once('.').unwrap_or(("", quantity.name()));
        if table != open_table {
            let _ = writeln!(out, "\n[{table}]");
            open_table = table;
        }
        match (value, quantity) {
            // Counts have no tolerance, so an exact count would fail often.
            (Ok(value), BudgetQuantity::StepAllocations) => {
                let _ = writeln!(out, "# {}", describe(*quantity, draft.is_metal));
                let _ = writeln!(out, "# {key} = {value}");
            }
            (Err(_), BudgetQuantity::StepAllocations) => {}
            (Ok(value), BudgetQuantity::LeaksCount) => {
                let _ = writeln!(out, "# {}\n{key} = {value}", describe(*quantity, draft.is_metal));
            }
            (Ok(value), _) => {
                let _ = writeln!(out, "# {}", describe(*quantity, draft.is_metal));
                let _ = writeln!(out, "{key} = {value}  # {}", format_bytes(*value));
            }
            (Err(why), _) => {
                let _ = writeln!(out, "# {}", describe(*quantity, draft.is_metal));
                let _ = writeln!(out, "# {key} = ...  unknown: {}", explain_unknown(*why));
            }
        }
    }
    out.push_str(SITES);
    for site in &draft.sites {
        // A basic string of TOML has the escapes of JSON.
        let _ = writeln!(out, "\n[[site]]\nmatch = {}", serde_json::Value::from(&*site.pattern));
        let _ = writeln!(out, "peak = {}  # {}", site.peak_bytes, format_bytes(site.peak_bytes));
        if let Some(bytes) = site.bytes_per_step {
            let _ = writeln!(out, "bytes_per_step = {bytes}  # {}", format_bytes(bytes));
        }
    }
    out
}

fn describe(quantity: BudgetQuantity, is_metal: bool) -> &'static str {
    match quantity {
        BudgetQuantity::PeakLive if is_metal => "Peak of buffers in Metal heaps.",
        BudgetQuantity::PeakLive => "Peak allocated memory (torch.cuda.max_memory_allocated()).",
        BudgetQuantity::PeakReserved if is_metal => "Peak of Metal heaps.",
        BudgetQuantity::PeakReserved => "Peak reserved memory (torch.cuda.max_memory_reserved()).",
        BudgetQuantity::PeakDevice if is_metal => "Peak of the memory that Metal handed to the process.",
        BudgetQuantity::PeakDevice => "Peak of the memory that the driver handed to the process.",
        BudgetQuantity::GapBytes => "Reserved and not requested, at the peak of reserved memory.",
        BudgetQuantity::LeaksCount => "The number of leaking call sites.",
        BudgetQuantity::LeaksBytesPerStep => "The growth of all leaks in one step.",
        BudgetQuantity::StepPeak => "Peak allocated memory of the median step.",
        BudgetQuantity::StepBytes => "Allocated in the median step, freed or not.",
        BudgetQuantity::StepAllocations => {
            "Allocations in the median step. Counts have no tolerance, so this one is off."
        }
    }
}
