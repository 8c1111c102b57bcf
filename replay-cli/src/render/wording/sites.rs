//! Sites, frames and ranks as text.

use gpumemtrace_format::source_path::file_name;
use gpumemtrace_replay::report::{FrameKind, RankRow, Site, StackFrame};

use crate::terminal::escape::escape_text;
use crate::terminal::paths::short_file;

/// Longest name of a native function, in characters. Names of templates can fill many lines.
const MAX_NAME_CHARS: usize = 120;

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
fn format_native_frame(
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

/// [`format_site`] with short paths and without the parameters of native functions.
pub(crate) fn short_site(site: &Site) -> String {
    short_site_in_file(site, site.file.as_deref().map(short_file))
}

/// [`short_site`] with another name of its file.
pub(crate) fn short_site_in_file(site: &Site, file: Option<String>) -> String {
    let mut shown = site.clone();
    shown.file = file;
    if let Some(module) = &shown.module {
        shown.module = Some(file_name(module).to_owned());
        shown.function = shown.function.as_deref().map(shorten_function);
    }
    escape_text(&format_site(&shown))
}

/// A function name without its parameters, cut at [`MAX_NAME_CHARS`].
fn shorten_function(function: &str) -> String {
    let name = strip_parameters(function);
    match name.char_indices().nth(MAX_NAME_CHARS) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_owned(),
    }
}

fn strip_parameters(function: &str) -> &str {
    // Compilers mark functions that they split or copied.
    let plain = function.split_once(" [clone ").map_or(function, |(plain, _)| plain);
    let plain = plain.strip_suffix(" const").unwrap_or(plain);
    if !plain.ends_with(')') {
        return function;
    }
    let mut depth = 0;
    for (at, c) in plain.char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if at > 0 { &plain[..at] } else { function };
        }
    }
    function
}

/// `train.py:41 in hook()`, or the known part of a native frame.
pub(crate) fn format_frame(frame: &StackFrame) -> String {
    let text = match frame.kind {
        FrameKind::Native => {
            let module = frame.module.as_deref().map_or("unknown module", file_name);
            let function = frame.function.as_deref().map(shorten_function);
            let file = frame.file.as_deref().map(short_file);
            let inlined = if frame.is_inlined { " [inlined]" } else { "" };
            format!(
                "{}{inlined}",
                format_native_frame(module, frame.offset, function.as_deref(), file.as_deref(), frame.line)
            )
        }
        FrameKind::Python if frame.is_backward() => "(backward pass of the forward call below)".to_owned(),
        FrameKind::Python => {
            let file = frame.file.as_deref().map_or_else(|| "unknown file".to_owned(), short_file);
            let line = frame.line.map_or_else(|| "?".to_owned(), |line| line.to_string());
            let function =
                frame.function.as_deref().map_or_else(|| "unknown function".to_owned(), format_function);
            format!("{file}:{line} in {function}")
        }
    };
    escape_text(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_names_lose_their_parameters() {
        for (function, name) in [
            ("malloc", "malloc"),
            ("pool::Arena<double>::grow(unsigned long, char const*)", "pool::Arena<double>::grow"),
            ("at::(anonymous namespace)::f(int (*)(long)) const", "at::(anonymous namespace)::f"),
            ("at::f(long) [clone .isra.0] [clone .cold]", "at::f"),
            ("Node::operator()(int)", "Node::operator()"),
            ("(odd)", "(odd)"),
            ("odd)", "odd)"),
            ("core::ptr::read", "core::ptr::read"),
        ] {
            assert_eq!(shorten_function(function), name);
        }
        assert_eq!(shorten_function(&"é".repeat(200)).chars().count(), MAX_NAME_CHARS + 3);
    }
}
