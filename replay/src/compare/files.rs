//! Which file of one run is which file of the other.
//!
//! Definition. Two files may be the same if their names are (digits in names that Python makes up, such as
//! `<ipython-input-12-...>`, do not count). Of those, the pair whose paths end in more equal components goes first, then the one
//! with more functions in common. What is left over in both (a script that was renamed) is paired if at least half of the
//! functions of both together are in both, and no other file fits as well.
//!
//! Constraint: a checkout or an environment lies elsewhere, and a run may have a thousand files called `__init__.py`. Consequence:
//! paths that are equal are paired before anything is weighed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Files by path, each with the functions that were seen in it.
pub(crate) type FunctionsByFile<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Most pairs of one name that are weighed.
const MAX_PAIRS: usize = 1 << 20;
/// Most files of one run among which a renamed one is looked for.
const MAX_RENAMED: usize = 1 << 10;

/// The pairs, by path.
pub(crate) fn pair<'a>(before: &FunctionsByFile<'a>, after: &FunctionsByFile<'a>) -> Vec<(&'a str, &'a str)> {
    let same = before.keys().filter(|path| after.contains_key(*path));
    let mut pairs: Vec<(&str, &str)> = same.map(|path| (*path, *path)).collect();
    let (mut old, mut new) = (left(before, &pairs, |pair| pair.0), left(after, &pairs, |pair| pair.1));
    let mut by_name: HashMap<String, (Vec<&str>, Vec<&str>)> = HashMap::new();
    for path in &old {
        by_name.entry(name(path)).or_default().0.push(path);
    }
    for path in &new {
        by_name.entry(name(path)).or_default().1.push(path);
    }
    for (old, new) in by_name.values().filter(|(old, new)| old.len() * new.len() <= MAX_PAIRS) {
        let mut weighed = Vec::new();
        for (one, other) in all(old, new) {
            let common = before[one].intersection(&after[other]).count();
            weighed.push((common_tail(one, other), common, one, other));
        }
        // Of equals the first by path, whichever run is asked first.
        weighed.sort_by_key(|(tail, common, one, other)| {
            (std::cmp::Reverse((*tail, *common)), *one.min(other), *one.max(other))
        });
        let mut taken: (BTreeSet<&str>, BTreeSet<&str>) = Default::default();
        for (_, _, one, other) in weighed {
            if !taken.0.contains(one) && !taken.1.contains(other) {
                taken.0.insert(one);
                taken.1.insert(other);
                pairs.push((one, other));
            }
        }
    }
    old = left(before, &pairs, |pair| pair.0);
    new = left(after, &pairs, |pair| pair.1);
    pairs.extend(renamed(before, after, &old, &new));
    pairs
}

fn left<'a>(
    files: &FunctionsByFile<'a>,
    pairs: &[(&'a str, &'a str)],
    side: fn(&(&'a str, &'a str)) -> &'a str,
) -> Vec<&'a str> {
    let paired: BTreeSet<&str> = pairs.iter().map(side).collect();
    files.keys().copied().filter(|path| !paired.contains(path)).collect()
}

fn all<'a>(old: &[&'a str], new: &[&'a str]) -> impl Iterator<Item = (&'a str, &'a str)> {
    old.iter().flat_map(|one| new.iter().map(move |other| (*one, *other)))
}

fn renamed<'a>(
    before: &FunctionsByFile<'a>,
    after: &FunctionsByFile<'a>,
    old: &[&'a str],
    new: &[&'a str],
) -> Vec<(&'a str, &'a str)> {
    if old.len().max(new.len()) > MAX_RENAMED {
        return Vec::new();
    }
    // In millionths, so that equals are equal.
    let likeness = |one: &str, other: &str| {
        let common = before[one].intersection(&after[other]).count();
        let both = before[one].union(&after[other]).count().max(1);
        if common * 2 >= both { common * 1_000_000 / both } else { 0 }
    };
    let best = |of: &dyn Fn(&str) -> usize, among: &[&'a str]| {
        let most = among.iter().map(|path| of(path)).max().filter(|most| *most > 0)?;
        let mut best = among.iter().filter(|path| of(path) == most);
        best.next().copied().filter(|_| best.next().is_none())
    };
    let pairs = old.iter().filter_map(|one| {
        let other = best(&|other| likeness(one, other), new)?;
        let back = best(&|one| likeness(one, other), old)?;
        (back == *one).then_some((*one, other))
    });
    pairs.collect()
}

/// The last component; of a name that Python makes up without its digits.
pub(crate) fn name(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    let Some(made_up) = name.strip_prefix('<') else { return name.to_owned() };
    // The hash of a cell stands behind its number.
    let made_up = made_up.split_once(|c: char| c.is_ascii_digit()).map_or(made_up, |(begin, _)| begin);
    format!("<{made_up}")
}

/// How many components two paths have in common from the end.
fn common_tail(one: &str, other: &str) -> usize {
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
        let mut there = pair(&before, &after);
        there.sort_unstable();
        let mut back: Vec<_> = pair(&after, &before).into_iter().map(|(one, other)| (other, one)).collect();
        back.sort_unstable();
        assert_eq!(there, back, "either way the same");
        there
    }

    #[test]
    fn a_checkout_elsewhere_is_the_same_by_its_longest_common_tail() {
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
    }

    #[test]
    fn of_equal_tails_the_functions_tell() {
        assert_eq!(
            pairs(&[("/a/net.py", &["f", "g"])], &[("/b/net.py", &["h"]), ("/c/net.py", &["f", "h"])]),
            [("/a/net.py", "/c/net.py")]
        );
    }

    #[test]
    fn cells_and_renamed_scripts_are_found_and_strangers_are_not() {
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
            "nobody knows which"
        );
    }
}
