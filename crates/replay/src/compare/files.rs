//! Pairs the source files of two runs, which may have been recorded from different checkouts.
//!
//! Equal paths are pairs. Of the rest, files of equal name are paired: first those with the
//! longest common tail of path components, then those with more functions in common. In generated
//! names such as `<ipython-input-12-...>`, digits do not count. Files that remain in both runs
//! may have been renamed. Two of them are a pair if the functions in both are at least half of
//! all functions of the two, and no other file matches as well.
//!
//! Comparing files of one name costs O(n^2), up to [`MAX_PAIRS`]; a run may have a thousand files
//! called `__init__.py`. The tests below check each rule, in both directions.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpumemtrace_format::source_path::{self, with_slashes};

/// Files by path, each with the functions that occur in the trace.
pub(crate) type FunctionsByFile<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Pairs of files of one name that are compared. Of more, none are.
const MAX_PAIRS: usize = 1 << 20;
/// Unpaired files of one run among which renamed ones are searched.
const MAX_RENAMED: usize = 1 << 10;

/// Pairs files of both runs. Returns their paths.
pub(crate) fn pair_files<'a>(
    before: &FunctionsByFile<'a>,
    after: &FunctionsByFile<'a>,
) -> Vec<(&'a str, &'a str)> {
    let in_both = before.keys().filter(|path| after.contains_key(*path));
    let mut pairs: Vec<(&str, &str)> = in_both.map(|path| (*path, *path)).collect();
    let (mut old, mut new) =
        (unpaired(before, &pairs, |pair| pair.0), unpaired(after, &pairs, |pair| pair.1));
    let mut by_name: HashMap<String, (Vec<&str>, Vec<&str>)> = HashMap::new();
    for path in &old {
        by_name.entry(file_name(path)).or_default().0.push(path);
    }
    for path in &new {
        by_name.entry(file_name(path)).or_default().1.push(path);
    }
    for (old, new) in by_name.values().filter(|(old, new)| old.len() * new.len() <= MAX_PAIRS) {
        let mut candidates: Vec<CandidatePair<'_>> = all_pairs(old, new)
            .map(|(one, other)| CandidatePair {
                before: one,
                after: other,
                common_components: common_tail(one, other),
                common_functions: before[one].intersection(&after[other]).count(),
            })
            .collect();
        candidates.sort_by_key(CandidatePair::rank);
        let mut paired: (BTreeSet<&str>, BTreeSet<&str>) = Default::default();
        for CandidatePair { before, after, .. } in candidates {
            if !paired.0.contains(before) && !paired.1.contains(after) {
                paired.0.insert(before);
                paired.1.insert(after);
                pairs.push((before, after));
            }
        }
    }
    old = unpaired(before, &pairs, |pair| pair.0);
    new = unpaired(after, &pairs, |pair| pair.1);
    pairs.extend(pair_renamed(before, after, &old, &new));
    pairs
}

/// Two files of equal name.
struct CandidatePair<'a> {
    before: &'a str,
    after: &'a str,
    /// Equal path components, counted from the end.
    common_components: usize,
    common_functions: usize,
}

impl<'a> CandidatePair<'a> {
    /// Orders the best pair first. Equals are ordered by path, in the same way if the runs are
    /// swapped.
    fn rank(&self) -> (std::cmp::Reverse<(usize, usize)>, &'a str, &'a str) {
        let quality = std::cmp::Reverse((self.common_components, self.common_functions));
        (quality, self.before.min(self.after), self.before.max(self.after))
    }
}

/// The files of one run that are in no pair.
fn unpaired<'a>(
    files: &FunctionsByFile<'a>,
    pairs: &[(&'a str, &'a str)],
    side: fn(&(&'a str, &'a str)) -> &'a str,
) -> Vec<&'a str> {
    let paired: BTreeSet<&str> = pairs.iter().map(side).collect();
    files.keys().copied().filter(|path| !paired.contains(path)).collect()
}

fn all_pairs<'a>(old: &[&'a str], new: &[&'a str]) -> impl Iterator<Item = (&'a str, &'a str)> {
    old.iter().flat_map(|one| new.iter().map(move |other| (*one, *other)))
}

/// Pairs files by their functions, if each is the other's only best match.
fn pair_renamed<'a>(
    before: &FunctionsByFile<'a>,
    after: &FunctionsByFile<'a>,
    old: &[&'a str],
    new: &[&'a str],
) -> Vec<(&'a str, &'a str)> {
    if old.len().max(new.len()) > MAX_RENAMED {
        return Vec::new();
    }
    // Jaccard index in millionths, as an integer so that ties are exact. Below one half: 0.
    let similarity = |one: &str, other: &str| {
        let common = before[one].intersection(&after[other]).count();
        let all = before[one].union(&after[other]).count().max(1);
        if common * 2 >= all { common * 1_000_000 / all } else { 0 }
    };
    let only_best = |score: &dyn Fn(&str) -> usize, among: &[&'a str]| {
        let highest = among.iter().map(|path| score(path)).max().filter(|highest| *highest > 0)?;
        let mut best = among.iter().filter(|path| score(path) == highest);
        best.next().copied().filter(|_| best.next().is_none())
    };
    let pairs = old.iter().filter_map(|one| {
        let other = only_best(&|other| similarity(one, other), new)?;
        let back = only_best(&|one| similarity(one, other), old)?;
        (back == *one).then_some((*one, other))
    });
    pairs.collect()
}

/// The last component of a path. A generated name such as `<ipython-input-12-ab34>` is cut at its
/// first digit.
pub(crate) fn file_name(path: &str) -> String {
    let name = source_path::file_name(path);
    let Some(generated) = name.strip_prefix('<') else { return name.to_owned() };
    let stem = generated.split_once(|c: char| c.is_ascii_digit()).map_or(generated, |(stem, _)| stem);
    format!("<{stem}")
}

/// Number of equal components of two paths, counted from the end.
fn common_tail(one: &str, other: &str) -> usize {
    let (one, other) = (with_slashes(one), with_slashes(other));
    one.rsplit('/').zip(other.rsplit('/')).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files<'a>(all: &[(&'a str, &[&'a str])]) -> FunctionsByFile<'a> {
        all.iter().map(|(path, functions)| (*path, functions.iter().copied().collect())).collect()
    }

    fn pairs<'a>(
        before: &[(&'a str, &[&'a str])],
        after: &[(&'a str, &[&'a str])],
    ) -> Vec<(&'a str, &'a str)> {
        let (before, after) = (files(before), files(after));
        let mut forward = pair_files(&before, &after);
        forward.sort_unstable();
        let mut swapped: Vec<_> =
            pair_files(&after, &before).into_iter().map(|(one, other)| (other, one)).collect();
        swapped.sort_unstable();
        assert_eq!(forward, swapped, "the order of the runs does not matter");
        forward
    }

    #[test]
    fn files_of_another_checkout_are_paired_by_their_longest_common_tail() {
        let main: &[&str] = &["<module>"];
        assert_eq!(
            pairs(
                &[("/a/one/model.py", main), ("/a/two/model.py", main), ("/a/train.py", main)],
                &[("/b/c/one/model.py", main), ("/b/c/two/model.py", main), ("train.py", main)],
            ),
            [
                ("/a/one/model.py", "/b/c/one/model.py"),
                ("/a/train.py", "train.py"),
                ("/a/two/model.py", "/b/c/two/model.py")
            ]
        );
        assert_eq!(
            pairs(
                &[("/a/one/model.py", main), ("/a/two/model.py", main)],
                &[(r"D:\b\two\model.py", main), (r"D:\b\one\model.py", main)],
            ),
            [("/a/one/model.py", r"D:\b\one\model.py"), ("/a/two/model.py", r"D:\b\two\model.py")]
        );
    }

    #[test]
    fn equal_tails_are_decided_by_common_functions() {
        assert_eq!(
            pairs(&[("/a/net.py", &["f", "g"])], &[("/b/net.py", &["h"]), ("/c/net.py", &["f", "h"])]),
            [("/a/net.py", "/c/net.py")]
        );
    }

    #[test]
    fn notebook_cells_and_renamed_scripts_are_paired_and_unrelated_files_are_not() {
        let (cell, again) = ("<ipython-input-3-ab12>", "<ipython-input-17-9f>");
        assert_eq!(pairs(&[(cell, &["f"])], &[(again, &["g"])]), [(cell, again)]);
        let old: &[&str] = &["<module>", "main", "train"];
        assert_eq!(
            pairs(&[("/a/train.py", old)], &[("/a/train_new.py", old)]),
            [("/a/train.py", "/a/train_new.py")]
        );
        assert_eq!(pairs(&[("/a/x.py", old)], &[("/a/y.py", &["<module>", "eval", "load"])]), []);
        assert_eq!(
            pairs(&[("/a/x.py", old)], &[("/a/y.py", old), ("/a/z.py", old)]),
            [],
            "two equally good candidates"
        );
    }
}
