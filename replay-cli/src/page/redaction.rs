//! A page for strangers: without host, arguments and directories.
//!
//! Facts about the process are left out of the report before anything is worded. Directories are
//! cut from the finished texts, so that no list of places that name a file can be incomplete: from
//! the JSON of the report, from the page's data and from its summary.

use gpumemtrace_replay::Report;
use serde_json::Value;

/// Folders behind which a path names a package or a module of Python.
const PACKAGE_FOLDERS: &[&str] = &["/site-packages/", "/dist-packages/"];

/// Leaves out host and arguments, and shortens the names of the traces. Of a command, the program
/// and its script stay.
pub(crate) fn redact_processes(report: &mut Report) {
    let ranks = report.ranks.iter_mut().flat_map(|ranks| &mut ranks.rows);
    ranks.for_each(|rank| rank.host = None);
    for info in &mut report.traces {
        info.host = None;
        info.path = file_name(&info.path).to_owned();
        if let Some(command) = &mut info.command {
            command.truncate(2);
            for word in command.iter_mut() {
                *word = file_name(word).to_owned();
            }
            // The second word may be an option, or code after `-c`.
            let is_script = |word: &String| has_extension(word, "py");
            command.retain({
                let mut is_program = true;
                move |word| std::mem::take(&mut is_program) || is_script(word)
            });
        }
    }
}

/// The texts of JSON with all directories cut.
pub(super) fn redact_json(json: &[u8]) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(json) else { return Vec::new() };
    redact_value(&mut value);
    serde_json::to_vec(&value).unwrap_or_default()
}

fn redact_value(value: &mut Value) {
    match value {
        Value::String(text) => *text = redact_text(text),
        Value::Array(items) => items.iter_mut().for_each(redact_value),
        Value::Object(fields) => fields.values_mut().for_each(redact_value),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A text in which the absolute paths lack their directories.
pub(super) fn redact_text(text: &str) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, path, after)) = split_at_path(rest) {
        redacted.push_str(before);
        redacted.push_str(shorten(path));
        rest = after;
    }
    redacted + rest
}

/// The text before the first absolute path, the path, and the text after it.
fn split_at_path(text: &str) -> Option<(&str, &str, &str)> {
    let is_in_name = |c: char| c.is_alphanumeric() || "_.-~+@>)]".contains(c);
    let mut previous = None;
    for (at, c) in text.char_indices() {
        let rest = &text[at..];
        let is_unix = c == '/' && !previous.is_some_and(is_in_name);
        let is_windows = c.is_ascii_alphabetic()
            && !previous.is_some_and(is_in_name)
            && (rest[1..].starts_with(":\\") || rest[1..].starts_with(":/"));
        previous = Some(c);
        if !is_unix && !is_windows {
            continue;
        }
        let head = if is_windows { 2 } else { 0 };
        let length = rest[head..].find(ends_path).map_or(rest.len(), |end| head + end);
        let path = &rest[..length];
        if path[head..].chars().filter(|c| is_separator(*c)).count() > 1 {
            return Some((&text[..at], path, &rest[length..]));
        }
    }
    None
}

fn is_separator(c: char) -> bool {
    matches!(c, '/' | '\\')
}

fn ends_path(c: char) -> bool {
    c.is_whitespace() || "\"'`:;,()[]{}<>|=".contains(c)
}

/// The part of a path that names a package's file, else its last part.
fn shorten(path: &str) -> &str {
    let behind = |folder: &&str| path.rfind(*folder).map(|at| &path[at + folder.len()..]);
    PACKAGE_FOLDERS.iter().find_map(behind).unwrap_or_else(|| file_name(path))
}

fn file_name(path: &str) -> &str {
    path.rsplit(is_separator).find(|part| !part.is_empty()).unwrap_or(path)
}

fn has_extension(name: &str, extension: &str) -> bool {
    std::path::Path::new(name).extension().is_some_and(|found| found == extension)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_cut_wherever_a_path_stands() {
        for (text, redacted) in [
            ("leak at /home/me/secret/train.py:7 in fit()", "leak at train.py:7 in fit()"),
            ("File \"/home/me/x/train.py\", line 3", "File \"train.py\", line 3"),
            ("/v/lib/python3.12/site-packages/torch/nn/modules/linear.py", "torch/nn/modules/linear.py"),
            ("C:\\Users\\me\\x\\train.py:7", "train.py:7"),
            ("memory=/home/me/a.py, and /home/me/b.py", "memory=a.py, and b.py"),
            ("/home/me/runs/", "runs"),
            ("4.00 MiB/step, 3/4 and a/b.py, torch/nn/x.py", "4.00 MiB/step, 3/4 and a/b.py, torch/nn/x.py"),
            ("/root and /", "/root and /"),
        ] {
            assert_eq!(redact_text(text), redacted);
        }
        let json = br#"{"file":"/home/me/a.py","list":["/home/me/b.py",3,null]}"#;
        assert_eq!(redact_json(json), br#"{"file":"a.py","list":["b.py",3,null]}"#);
    }
}
