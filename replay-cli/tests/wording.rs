//! Every sentence of the outputs is there, short, and made by the command.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use gpumemtrace_synthetic::Synthetic;
use serde_json::Value;
use tempfile::TempDir;

/// The keys of sentences.
const SENTENCES: [&str; 4] = ["summary", "why", "action", "message"];
/// The longest sentence, in words. A size counts as one word.
const MAX_WORDS: usize = 25;

/// A training with a leak, a spike and an out-of-memory error, on a small GPU.
fn troubled() -> Synthetic {
    let mut run = Synthetic::train(60, |run, step, train| {
        let kept = run.frame(train, "/work/train.py", "log", 31);
        run.alloc(kept, 4 << 20);
        if step == 50 {
            let once = run.frame(train, "/work/train.py", "evaluate", 90);
            let block = run.alloc(once, 600 << 20);
            run.release(block, once);
        }
    });
    let line = run.frame(gpumemtrace_format::NodeId::NONE, "/work/train.py", "big", 77);
    run.oom(line, 300 << 20);
    run.oom(line, 40 << 30);
    run.meta.set_number("device.0.total_bytes", 1 << 30);
    run.meta.set_list("mode", vec!["started".to_owned()]);
    run.meta.set_text("attached", "late");
    run
}

fn run(folder: &TempDir, arguments: &[&str]) -> Value {
    let mut command = Command::cargo_bin("gpumemtrace").expect("our own binary");
    command.env("GPUMEMTRACE_CACHE", "off").current_dir(folder.path()).args(arguments);
    let output = command.output().expect("it starts");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// All sentences of a document, with their paths. `why` is also a word in `at` and in reasons,
/// which are enums.
fn sentences(value: &Value, path: &str, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                let path = format!("{path}.{key}");
                let is_word =
                    path.ends_with(".at.why") || path.ends_with("unresolved.why") || path.contains("reasons");
                match member.as_str() {
                    Some(text) if SENTENCES.contains(&key.as_str()) && !is_word => {
                        found.push((path, text.to_owned()));
                    }
                    _ => sentences(member, &path, found),
                }
            }
        }
        Value::Array(members) => members.iter().for_each(|member| sentences(member, path, found)),
        _ => {}
    }
}

#[test]
fn no_sentence_is_empty_or_too_long() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.trace"), troubled().file(100)).unwrap();
    fs::write(folder.path().join("cut.trace"), troubled().file_without_end(100)).unwrap();
    let short = Synthetic::train(2, |_, _, _| {});
    fs::write(folder.path().join("short.trace"), short.file(100)).unwrap();
    fs::write(
        folder.path().join("budget.toml"),
        "[leaks]\ncount = 0\n[[site]]\nmatch = 'gone.py'\npeak = 1\n",
    )
    .unwrap();
    let mut found = Vec::new();
    for arguments in [
        &["replay", "run.trace", "--json"][..],
        &["replay", "run.trace", "--oom", "--json"],
        &["replay", "run.trace", "--top", "1", "--json"],
        &["replay", "run.trace", "--site", "train.py:31", "--json"],
        &["replay", "cut.trace", "--json"],
        &["compare", "run.trace", "short.trace", "--json"],
        &["compare", "cut.trace", "short.trace", "--json"],
        &["check", "short.trace", "--budget", "budget.toml", "--json"],
        &["check", "cut.trace", "--budget", "budget.toml", "--json"],
    ] {
        sentences(&run(&folder, arguments), arguments[0], &mut found);
    }
    for (path, text) in &found {
        assert!(!text.trim().is_empty(), "{path} is empty");
        let words = text.split_whitespace().filter(|word| !is_unit(word)).count();
        assert!(words <= MAX_WORDS, "{path}: {text}");
        assert!(!text.ends_with('.'), "{path} has a full stop: {text}");
    }
    for key in SENTENCES {
        let of_key = found.iter().filter(|(path, _)| path.ends_with(&format!(".{key}"))).count();
        assert!(of_key >= 2, "too few sentences under {key}");
    }
}

fn is_unit(word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_alphanumeric());
    ["B", "KiB", "MiB", "GiB", "bytes"].contains(&word)
}

fn source_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            source_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The string literals of Rust code, without comments, attributes and test modules.
fn string_literals(code: &str) -> Vec<String> {
    let code = code.split("#[cfg(test)]").next().unwrap_or_default();
    let mut literals = Vec::new();
    for line in code.lines().map(str::trim_start) {
        if line.starts_with("//") || line.starts_with("#[") || line.starts_with("assert") {
            continue;
        }
        let mut rest = line;
        while let Some((_, after)) = rest.split_once('"') {
            let end = after.find('"').unwrap_or(after.len());
            literals.push(after[..end].to_owned());
            rest = after.get(end + 1..).unwrap_or_default();
        }
    }
    literals
}

/// The analyses return typed values. Exceptions are errors of parsers, texts for the schema, and
/// panics.
#[test]
fn analyses_contain_no_prose() {
    const EXCEPTIONS: [&str; 5] = [
        "budget/mod.rs",
        "budget/size.rs",
        "budget/pattern.rs",
        "timeline/time_spec.rs",
        "pass/stream_filter.rs",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/replay/src");
    let mut files = Vec::new();
    source_files(&root, &mut files);
    assert!(files.len() > 80, "{}", files.len());
    let mut prose = Vec::new();
    let is_test = |file: &&PathBuf| {
        file.ends_with("tests.rs") || file.components().any(|part| part.as_os_str() == "tests")
    };
    for file in files.iter().filter(|file| !is_test(file)) {
        let name = file.strip_prefix(&root).unwrap().display().to_string();
        if EXCEPTIONS.contains(&name.as_str()) {
            continue;
        }
        let code = fs::read_to_string(file).unwrap();
        let allowed = ["reason = ", "unreachable!", "expect(", "schemars", "\"description\": "];
        let lines: Vec<&str> =
            code.lines().filter(|line| !allowed.iter().any(|word| line.contains(word))).collect();
        let is_prose =
            |text: &String| text.split(' ').filter(|word| word.len() > 1).count() >= 4 && !text.contains('`');
        prose.extend(
            string_literals(&lines.join("\n")).into_iter().filter(is_prose).map(|text| (name.clone(), text)),
        );
    }
    assert!(prose.is_empty(), "{prose:#?}");
}
