//! Short names of call sites: `train.py:31 in log()`, with folders only where two files have the
//! same name.

use std::collections::{BTreeSet, HashMap};

use gpumemtrace_format::source_path::{file_name, with_slashes};
use gpumemtrace_replay::report::Site;

use crate::render::wording::sites::short_site_in_file;
use crate::terminal::paths::path_in_package;

/// The shortest distinct names of the files of a page.
pub(super) struct Labels {
    short_files: HashMap<String, String>,
}

impl Labels {
    pub(super) fn new(sites: &[&Site]) -> Self {
        let files: BTreeSet<&str> = sites.iter().filter_map(|site| site.file.as_deref()).collect();
        let short_files = files.iter().map(|file| ((*file).to_owned(), shortest_suffix(file, &files)));
        Self { short_files: short_files.collect() }
    }

    /// The name of a site.
    pub(super) fn label_of(&self, site: &Site) -> String {
        let file = site.file.as_ref().and_then(|file| self.short_files.get(file));
        short_site_in_file(site, file.cloned())
    }

    /// The name of a file; of one that no call site of the page has, without its folders.
    pub(super) fn short_file(&self, file: &str) -> String {
        self.short_files.get(file).cloned().unwrap_or_else(|| self.short_file_of_frame(file))
    }

    /// The name of a file in a stack: files of packages keep the path in their package.
    pub(super) fn short_file_of_frame(&self, file: &str) -> String {
        match (path_in_package(file), self.short_files.get(file)) {
            (Some(path), _) => path.to_owned(),
            (None, Some(short)) => short.clone(),
            (None, None) => file_name(file).to_owned(),
        }
    }
}

/// The fewest last components of a path that no other file ends with.
fn shortest_suffix(file: &str, files: &BTreeSet<&str>) -> String {
    let with_slashes = with_slashes(file);
    let cuts = with_slashes.rmatch_indices('/').map(|(at, _)| at + 1);
    let is_distinct = |from: &usize| {
        let suffix = &file[*from..];
        let ends_with = |other: &&&str| {
            other
                .strip_suffix(suffix)
                .is_some_and(|before| before.is_empty() || before.ends_with(['/', '\\']))
        };
        files.iter().filter(ends_with).count() == 1
    };
    file[cuts.into_iter().find(is_distinct).unwrap_or(0)..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_as_few_folders_as_they_need() {
        let files: BTreeSet<&str> =
            ["/a/model.py", "/a/x/train.py", "/b/x/train.py", "/b/strain.py", "cell"].into_iter().collect();
        let short: Vec<String> = files.iter().map(|file| shortest_suffix(file, &files)).collect();
        assert_eq!(short, ["model.py", "a/x/train.py", "strain.py", "b/x/train.py", "cell"]);
        let files: BTreeSet<&str> =
            [r"C:\a\train.py", r"C:\b\train.py", r"C:\b\net.py"].into_iter().collect();
        let short: Vec<String> = files.iter().map(|file| shortest_suffix(file, &files)).collect();
        assert_eq!(short, [r"a\train.py", "net.py", r"b\train.py"]);
    }
}
