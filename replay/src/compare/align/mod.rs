//! Which line of one run is which line of the other.
//!
//! Definition. Lines may be the same only within one function (by its qualified name) of one file ([`crate::compare::files`]), or,
//! where native code asked, within one function of one library. Within a function the order of lines is kept, and of all
//! ways to pair them that keep it, the one that is worth most is taken:
//!
//! - A pair is worth 20, and 5 more if both lines reach the allocation through the same innermost functions. If these have
//!   nothing in common, the two are a pair only where they stand at the same place of the function.
//! - What both hold or allocate alike counts for it: of the bytes at the peak, what is retained and what is allocated in a step,
//!   10 for equal bytes and 5 for an equal number of blocks, unless it is nothing.
//! - A pair whose *shift* (the line in the new run minus that in the old, each counted from the first line of its function) is not
//!   that of the pair before it costs 15; the shift is 0 before the first pair.
//!
//! So lines that all moved because code was inserted above them are the same lines, also where what they hold has changed, and a
//! line that was inserted between others does not make each of them look like its neighbour.
//!
//! Constraint: a function may have thousands of lines that allocate (generated code). Consequence: equal beginnings and ends
//! are paired first; a table that would have more than `MAX_CELLS`, or `MAX_CELLS_IN_ALL` with those before it, is not made:
//! there only equal places are pairs.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::files::{self, FunctionsByFile};
use crate::util::block_totals::BlockTotals;

/// Largest table of one function.
const MAX_CELLS: usize = 4 << 20;
/// Largest tables of all functions together: half a minute, which only a hostile file has.
const MAX_CELLS_IN_ALL: usize = 256 << 20;
const PAIR: i32 = 20;
const SAME_BELOW: i32 = 5;
const SAME_BYTES: i32 = 10;
const SAME_BLOCKS: i32 = 5;
const NEW_SHIFT: i32 = -15;

/// A line, as far as it is told from others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AlignLine {
    /// Source file of a Python line.
    pub file: Option<String>,
    /// Library of native code.
    pub module: Option<String>,
    /// Qualified name.
    pub function: Option<String>,
    /// What its backward pass does.
    pub is_backward: bool,
    /// The line, from the first line of its function on; of native code without names the address.
    pub place: Option<i64>,
    /// The innermost functions that allocated for it.
    pub below: BTreeSet<String>,
    /// At the peak, retained, in a step.
    pub amounts: [BlockTotals; 3],
}

/// Pairs of indexes, ascending in the first.
pub(crate) fn align(before: &[AlignLine], after: &[AlignLine]) -> Vec<(usize, usize)> {
    let pairs = files::pair(&files_of(before), &files_of(after));
    let numbers = |side: fn(&(&'_ str, &'_ str)) -> String| -> HashMap<String, usize> {
        pairs.iter().map(side).zip(0..).collect()
    };
    let (old_files, new_files) = (numbers(|pair| pair.0.to_owned()), numbers(|pair| pair.1.to_owned()));
    let old = functions(before, &old_files);
    let new = functions(after, &new_files);
    let mut room = MAX_CELLS_IN_ALL;
    let mut aligned = Vec::new();
    for (function, old) in &old {
        let Some(new) = new.get(function) else { continue };
        let lines = (of(before, old), of(after, new));
        aligned.extend(
            in_order(&lines.0, &lines.1, &mut room).into_iter().map(|(one, other)| (old[one], new[other])),
        );
    }
    aligned.sort_unstable();
    aligned
}

fn of<'a>(lines: &'a [AlignLine], indexes: &[usize]) -> Vec<&'a AlignLine> {
    indexes.iter().map(|index| &lines[*index]).collect()
}

fn files_of(lines: &[AlignLine]) -> FunctionsByFile<'_> {
    let mut files = FunctionsByFile::new();
    for line in lines {
        if let Some(file) = &line.file {
            let functions = files.entry(file).or_default();
            functions.extend(line.function.as_deref());
        }
    }
    files
}

/// Where a line stands: a file both runs have, a library, or nowhere; the function; and the pass.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct AlignedFunction<'a> {
    file: Option<usize>,
    module: Option<String>,
    name: Option<&'a str>,
    is_backward: bool,
}

/// Lines by function, in their order. Those of a file that only one run has are left out.
fn functions<'a>(
    lines: &'a [AlignLine],
    files: &HashMap<String, usize>,
) -> BTreeMap<AlignedFunction<'a>, Vec<usize>> {
    let mut functions: BTreeMap<AlignedFunction<'a>, Vec<usize>> = BTreeMap::new();
    for (index, line) in lines.iter().enumerate() {
        let file = match (&line.module, &line.file) {
            (None, Some(file)) => match files.get(file) {
                Some(number) => Some(*number),
                None => continue,
            },
            _ => None,
        };
        let key = AlignedFunction {
            file,
            module: line.module.as_deref().map(library),
            name: line.function.as_deref(),
            is_backward: line.is_backward,
        };
        functions.entry(key).or_default().push(index);
    }
    for indexes in functions.values_mut() {
        indexes.sort_by_key(|index| (lines[*index].place, *index));
    }
    functions
}

/// A library without its folder and version: `libfoo.so.13.1` is `libfoo.so`.
fn library(path: &str) -> String {
    let name = files::name(path);
    match name.split_once(".so.") {
        Some((stem, _)) => format!("{stem}.so"),
        None => name,
    }
}

/// What a pair is worth, its shift aside. `None` where the two cannot be the same.
fn worth(one: &AlignLine, other: &AlignLine) -> Option<i32> {
    let is_related = one.below == other.below || !one.below.is_disjoint(&other.below);
    if !is_related && one.place != other.place {
        return None;
    }
    let mut worth = PAIR + if one.below == other.below { SAME_BELOW } else { 0 };
    for (one, other) in one.amounts.iter().zip(&other.amounts) {
        worth += if one.bytes > 0 && one.bytes == other.bytes { SAME_BYTES } else { 0 };
        worth += if one.blocks > 0 && one.blocks == other.blocks { SAME_BLOCKS } else { 0 };
    }
    Some(worth)
}

fn shift(one: &AlignLine, other: &AlignLine) -> i64 {
    other.place.unwrap_or(0).saturating_sub(one.place.unwrap_or(0))
}

/// Pairs of one function. Whichever run is asked first, they are the same.
fn in_order(old: &[&AlignLine], new: &[&AlignLine], room: &mut usize) -> Vec<(usize, usize)> {
    let same = |one: &&AlignLine, other: &&AlignLine| {
        one.place == other.place && one.below == other.below && one.amounts == other.amounts
    };
    let begin = old.iter().zip(new).take_while(|(one, other)| same(one, other)).count();
    let (old_rest, new_rest) = (&old[begin..], &new[begin..]);
    let end =
        old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(one, other)| same(one, other)).count();
    let (old_rest, new_rest) = (&old_rest[..old_rest.len() - end], &new_rest[..new_rest.len() - end]);
    let mut pairs: Vec<(usize, usize)> = (0..begin).map(|at| (at, at)).collect();
    let cells = old_rest.len().saturating_mul(new_rest.len());
    let has_room = cells <= MAX_CELLS.min(*room);
    *room -= if has_room { cells } else { 0 };
    let between = if !has_room {
        at_equal_places(old_rest, new_rest)
    } else if order(old_rest, new_rest) == Ordering::Greater {
        best(new_rest, old_rest).into_iter().map(|(one, other)| (other, one)).collect()
    } else {
        best(old_rest, new_rest)
    };
    pairs.extend(between.into_iter().map(|(one, other)| (one + begin, other + begin)));
    pairs.extend((1..=end).rev().map(|at| (old.len() - at, new.len() - at)));
    pairs
}

fn order(old: &[&AlignLine], new: &[&AlignLine]) -> Ordering {
    let key = |lines: &[&AlignLine]| {
        let held = |line: &&AlignLine| (line.place, line.amounts.map(|held| (held.bytes, held.blocks)));
        lines.iter().map(held).collect::<Vec<_>>()
    };
    old.len().cmp(&new.len()).then_with(|| key(old).cmp(&key(new)))
}

fn at_equal_places(old: &[&AlignLine], new: &[&AlignLine]) -> Vec<(usize, usize)> {
    let places: HashMap<Option<i64>, usize> = new.iter().map(|line| line.place).zip(0..).collect();
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for (index, line) in old.iter().enumerate() {
        if let Some(other) =
            places.get(&line.place).filter(|other| pairs.last().is_none_or(|last| last.1 < **other))
        {
            pairs.push((index, *other));
        }
    }
    pairs
}

/// The best way to end with a pair: what all is worth, and the pair before it.
#[derive(Clone, Copy)]
struct AlignStep {
    worth: i32,
    before: u32,
}

const START: u32 = u32::MAX;

/// The pairs that keep the order and are worth most together.
fn best(old: &[&AlignLine], new: &[&AlignLine]) -> Vec<(usize, usize)> {
    let columns = new.len();
    let mut ways: Vec<Option<AlignStep>> = vec![None; old.len() * columns];
    // The best of all pairs of the rows above, by column; and the best with each shift.
    let mut above: Vec<Option<(i32, u32)>> = vec![None; columns];
    let mut by_shift: HashMap<i64, (i32, u32)> = HashMap::new();
    let mut last: Option<(i32, u32)> = None;
    for (row, one) in old.iter().enumerate() {
        let mut until = None;
        for (column, other) in new.iter().enumerate() {
            let cell = (row * columns + column) as u32;
            if let Some(worth) = worth(one, other) {
                let moved = shift(one, other);
                let start = (if moved == 0 { 0 } else { NEW_SHIFT }, START);
                let any = until.map(|(worth, before)| (worth + NEW_SHIFT, before));
                // Of one shift, an earlier line of the one is an earlier line of the other.
                let same = by_shift.get(&moved).copied().filter(|(_, before)| {
                    *before as usize / columns < row && *before as usize % columns < column
                });
                let (so_far, before) =
                    [Some(start), any, same].into_iter().flatten().max_by_key(|way| way.0).unwrap_or(start);
                let way = AlignStep { worth: so_far + worth, before };
                ways[cell as usize] = Some(way);
                if last.is_none_or(|(most, _)| way.worth >= most) {
                    last = Some((way.worth, cell));
                }
            }
            until = larger(until, above[column]);
        }
        for (column, other) in new.iter().enumerate() {
            let cell = row * columns + column;
            if let Some(way) = ways[cell] {
                above[column] = larger(above[column], Some((way.worth, cell as u32)));
                let of_shift = by_shift.entry(shift(one, other)).or_insert((way.worth, cell as u32));
                *of_shift = (*of_shift).max((way.worth, cell as u32));
            }
        }
    }
    let mut pairs = Vec::new();
    let mut at = last.map_or(START, |(_, cell)| cell);
    while at != START {
        pairs.push((at as usize / columns, at as usize % columns));
        at = ways[at as usize].map_or(START, |way| way.before);
    }
    pairs.reverse();
    pairs
}

fn larger(one: Option<(i32, u32)>, other: Option<(i32, u32)>) -> Option<(i32, u32)> {
    one.max(other)
}

#[cfg(test)]
mod tests;
