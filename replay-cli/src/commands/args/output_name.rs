//! Default names of outputs, after the input that they are made of.

use std::path::{Path, PathBuf};

use crate::exit::UsageError;
use crate::trace::find::is_pattern;

/// `run.trace` as `run.html`, and the folder `archive.v2` as `archive.v2.html`, each beside the
/// input. `.` and `..` have the names of the folders that they stand for. The extension has no dot
/// at its start.
///
/// # Errors
///
/// The input has no name of its own (a pattern, `/`), or it is the file that would be written.
pub(crate) fn default_output(input: &Path, extension: &str) -> Result<PathBuf, UsageError> {
    let refuse = |why: &str| UsageError(format!("{} {why}; name the output with --output", input.display()));
    if is_pattern(input) {
        return Err(refuse("is a pattern"));
    }
    if !input.is_dir() {
        let output = input.with_extension(extension);
        return if output == input { Err(refuse("would be overwritten by the output")) } else { Ok(output) };
    }
    let has_name = input.file_name().is_some();
    let real = if has_name { input.to_owned() } else { input.canonicalize().unwrap_or_default() };
    let mut name = real.file_name().ok_or_else(|| refuse("is a folder without a name"))?.to_owned();
    name.push(".");
    name.push(extension);
    Ok(match (has_name, input == Path::new(".")) {
        (true, _) => input.with_file_name(name),
        (false, true) => Path::new("..").join(name),
        (false, false) => input.join("..").join(name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_beside_their_input() {
        let parent = tempfile::tempdir().unwrap();
        let path = |name: &str| parent.path().join(name);
        for folder in ["archive.v2", "traces/deep", "run[1]"] {
            std::fs::create_dir_all(path(folder)).unwrap();
        }
        let real = |input: &Path, name: &str| default_output(input, "html").unwrap() == path(name);
        assert!(real(&path("run.trace"), "run.html"));
        assert!(real(&path("run.rank0.trace"), "run.rank0.html"));
        assert!(real(&path("archive.v2"), "archive.v2.html"));
        assert!(real(&path("archive.v2/"), "archive.v2.html"));
        assert!(real(&path("traces/."), "traces.html"));
        assert!(real(&path("run[1]"), "run[1].html"));
        let above = default_output(&path("traces/deep/.."), "html").unwrap();
        assert_eq!(above, path("traces/deep/../../traces.html"));
        let here = std::env::current_dir().unwrap();
        let name = format!("../{}.html", here.file_name().unwrap().to_str().unwrap());
        assert_eq!(default_output(Path::new("."), "html").unwrap(), Path::new(&name));
    }

    #[test]
    fn inputs_without_a_name_need_a_named_output() {
        for (input, extension, why) in [
            ("none/run.rank?.trace", "folded", "is a pattern"),
            ("*.trace", "parquet", "is a pattern"),
            ("/", "html", "is a folder without a name"),
            ("snapshot.pickle", "pickle", "would be overwritten"),
        ] {
            let UsageError(refused) = default_output(Path::new(input), extension).unwrap_err();
            assert!(refused.starts_with(input) && refused.contains(why), "{refused}");
            assert!(refused.ends_with("; name the output with --output"), "{refused}");
        }
    }
}
