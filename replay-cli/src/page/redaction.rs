//! A page for strangers: without host, arguments and directories.
//!
//! Facts about the process are left out of the report before anything is worded. Directories are
//! cut from the finished texts, so that no list of places that name a file can be incomplete: from
//! the JSON of the report, from the page's data and from its summary. First go the paths that the
//! report names as such, which may hold any character; then whatever looks like an absolute path.

use std::collections::BTreeSet;

use gpumemtrace_format::source_path::file_name;
use gpumemtrace_replay::Report;
use serde_json::Value;

use crate::terminal::paths::path_in_package;

/// Keys of the JSON report whose texts are paths.
const PATH_KEYS: &[&str] = &["file", "module", "path"];

/// Leaves out host, labels and arguments, and shortens the names of the traces. Of a command, the
/// program and its script stay.
pub(crate) fn redact_processes(report: &mut Report) {
    let ranks = report.ranks.iter_mut().flat_map(|ranks| &mut ranks.rows);
    ranks.for_each(|rank| rank.host = None);
    for info in &mut report.traces {
        info.host = None;
        info.labels.clear();
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

/// Cuts the directories from all texts of a page: O(paths times bytes).
pub(super) struct Redaction {
    /// The paths that the report names, longest first.
    paths: Vec<String>,
}

impl Redaction {
    /// For the page of a report in JSON.
    pub(super) fn of_report(json: &[u8]) -> Self {
        let mut found = BTreeSet::new();
        if let Ok(report) = serde_json::from_slice(json) {
            collect_paths(&report, &mut found);
        }
        let mut paths: Vec<String> = found.into_iter().collect();
        paths.sort_by_key(|path| std::cmp::Reverse(path.len()));
        Self { paths }
    }

    /// The texts of JSON with all directories cut.
    pub(super) fn json(&self, json: &[u8]) -> Vec<u8> {
        // Known paths are searched in all texts at once.
        let mut text = String::from_utf8_lossy(json).into_owned();
        for path in &self.paths {
            let [path, short] = [path.as_str(), shorten(path)].map(quoted_inside);
            text = text.replace(&path, &short);
        }
        let Ok(mut value) = serde_json::from_str::<Value>(&text) else { return Vec::new() };
        redact_value(&mut value);
        serde_json::to_vec(&value).unwrap_or_default()
    }

    /// A text with all directories cut.
    pub(super) fn text(&self, text: &str) -> String {
        let known = self.paths.iter().fold(text.to_owned(), |text, path| text.replace(path, shorten(path)));
        redact_text(&known)
    }
}

/// A text as it stands between the quotation marks of JSON.
fn quoted_inside(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

fn collect_paths(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect_paths(item, found)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(path) if PATH_KEYS.contains(&key.as_str()) && shorten(path) != path => {
                        found.insert(path.clone());
                    }
                    value => collect_paths(value, found),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
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
fn redact_text(text: &str) -> String {
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
        // `/folder`, and `\\\\host\\share` of Windows.
        let begins = c == '/' || rest.starts_with("\\\\");
        let is_rooted = begins && !previous.is_some_and(is_in_name);
        let is_windows = c.is_ascii_alphabetic()
            && !previous.is_some_and(is_in_name)
            && (rest[1..].starts_with(":\\") || rest[1..].starts_with(":/"));
        previous = Some(c);
        if !is_rooted && !is_windows {
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
    let path = path.trim_end_matches(is_separator);
    path_in_package(path).unwrap_or_else(|| file_name(path))
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
            (r"\\host\share\train.py:7", "train.py:7"),
            ("4.00 MiB/step, 3/4 and a/b.py, torch/nn/x.py", "4.00 MiB/step, 3/4 and a/b.py, torch/nn/x.py"),
            ("/root and /", "/root and /"),
        ] {
            assert_eq!(redact_text(text), redacted);
        }
        let json =
            br#"{"file":"/home/me and you/a.py","list":["at /home/me and you/a.py:7","/b/c.py",3,null]}"#;
        let redaction = Redaction::of_report(json);
        assert_eq!(redaction.json(json), br#"{"file":"a.py","list":["at a.py:7","c.py",3,null]}"#);
        let relative =
            br#"{"file":"secret/a.py","path":"D:\\x y\\run.trace","note":"D:\\x y\\run.trace is open"}"#;
        let redaction = Redaction::of_report(relative);
        assert_eq!(
            redaction.json(relative),
            br#"{"file":"a.py","note":"run.trace is open","path":"run.trace"}"#
        );
        assert_eq!(redaction.text("secret/a.py:3 in fit()"), "a.py:3 in fit()");
    }
}
