//! Sites, frames and ranks as text.

use gpumemtrace_replay::report::{RankRow, Site};

/// `train.py:41 in hook()`; of a native site `grow (pool.cpp:41)`, or the known part of it, down to
/// `libpool.so+0x1234`.
pub(crate) fn format_site(site: &Site) -> String {
    match (&site.file, &site.module) {
        (file, Some(module)) => {
            format_native_frame(module, site.offset, site.function.as_deref(), file.as_deref(), site.line)
        }
        (Some(file), None) => {
            let line = site.line.map_or_else(|| "?".to_owned(), |line| line.to_string());
            let function = site
                .function
                .as_deref()
                .map(|name| format!(" in {}", format_function(name)))
                .unwrap_or_default();
            let backward = if site.is_backward { " (backward)" } else { "" };
            format!("{file}:{line}{function}{backward}")
        }
        (None, None) => "<no Python frame>".to_owned(),
    }
}

/// `f` as `f()`; `<module>` stays.
pub(crate) fn format_function(function: &str) -> String {
    if function.ends_with('>') { function.to_owned() } else { format!("{function}()") }
}

/// `grow (pool.cpp:41)`, or the known part of it, down to `libpool.so+0x1234`.
pub(crate) fn format_native_frame(
    module: &str,
    offset: Option<u64>,
    function: Option<&str>,
    file: Option<&str>,
    line: Option<u32>,
) -> String {
    let offset = offset.map(|offset| format!("+{offset:#x}")).unwrap_or_default();
    let source = file.map(|file| line.map_or_else(|| file.to_owned(), |line| format!("{file}:{line}")));
    match (function, source) {
        (Some(function), Some(source)) => format!("{function} ({source})"),
        (Some(function), None) => format!("{function} ({module})"),
        (None, Some(source)) => format!("{module}{offset} ({source})"),
        (None, None) => format!("{module}{offset}"),
    }
}

/// `rank 3`, else `GPU 1`, else the process.
pub(crate) fn format_rank(row: &RankRow, rows: &[RankRow]) -> String {
    let has_more_devices = rows.iter().any(|other| other.trace == row.trace && other.device != row.device);
    match (row.rank, row.pid) {
        (Some(rank), _) if has_more_devices => format!("rank {rank}, GPU {}", row.device),
        (Some(rank), _) => format!("rank {rank}"),
        (None, _) if rows.iter().all(|other| other.trace == row.trace) => format!("GPU {}", row.device),
        (None, Some(pid)) => format!("process {pid}, GPU {}", row.device),
        (None, None) => format!("trace {}, GPU {}", row.trace + 1, row.device),
    }
}
