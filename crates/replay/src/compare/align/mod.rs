//! Pairs the lines of two runs by sequence alignment.
//!
//! Two lines can be a pair only within one function (by qualified name) of one file
//! ([`crate::compare::files`]), or, for native code, of one library. Pairs of a function keep the
//! order of its lines. Among all such pairings, the one with the highest score is chosen:
//!
//! - A pair scores [`PAIR`], and [`SAME_CALLEES`] more if both lines allocate through the same
//!   innermost functions. Lines without a common innermost function are a pair only at the same
//!   position in their function.
//! - Of the amounts at the peak, retained, and allocated per step, each adds [`SAME_BYTES`] if
//!   its bytes are equal and not 0, and [`SAME_BLOCKS`] if its number of blocks is.
//! - The *shift* of a pair is its new position minus its old one, both counted from the first
//!   line of the function. A pair with another shift than the pair before it scores
//!   [`NEW_SHIFT`]. Before the first pair, the shift is 0.
//!
//! Lines that moved because code was inserted above them stay paired, even if their amounts
//! changed. An inserted line does not shift all pairs below it by one.
//!
//! Equal lines at the start and end of a function are paired first. The rest costs O(old lines x
//! new lines). Above [`MAX_CELLS`] for one function, or [`MAX_CELLS_IN_ALL`] for the run, only
//! lines at equal positions are paired; generated code may have thousands of lines.
//! `align::tests` checks insertions, moves and growth, also with random lines.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::files::{self, FunctionsByFile};
use crate::util::block_totals::BlockTotals;

/// Cells of the alignment table of one function.
const MAX_CELLS: usize = 4 << 20;
/// Cells of all tables: about half a minute of work, which only a hostile trace needs.
const MAX_CELLS_IN_ALL: usize = 256 << 20;
const PAIR: i32 = 20;
const SAME_CALLEES: i32 = 5;
const SAME_BYTES: i32 = 10;
const SAME_BLOCKS: i32 = 5;
const NEW_SHIFT: i32 = -15;

/// Indexes of the same line in both runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinePair {
    pub(crate) before: usize,
    pub(crate) after: usize,
}

impl LinePair {
    fn swapped(self) -> Self {
        Self { before: self.after, after: self.before }
    }
}

/// The properties of a line that alignment compares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AlignLine {
    /// Source file of a Python line.
    pub file: Option<String>,
    /// Library of native code.
    pub module: Option<String>,
    /// Qualified name of the function.
    pub function: Option<String>,
    /// The line stands for its work in the backward pass.
    pub is_backward: bool,
    /// Line number relative to the first line of the function. For native code without line
    /// numbers, the address.
    pub position: Option<i64>,
    /// Innermost functions that allocated on behalf of the line.
    pub callees: BTreeSet<String>,
    /// Amounts at the peak, retained, and allocated per step.
    pub amounts: [BlockTotals; 3],
}

/// Pairs the lines of two runs. The result is sorted by the line of the run before.
pub(crate) fn align_lines(before: &[AlignLine], after: &[AlignLine]) -> Vec<LinePair> {
    let pairs = files::pair_files(&functions_by_file(before), &functions_by_file(after));
    let numbers = |side: fn(&(&'_ str, &'_ str)) -> String| -> HashMap<String, usize> {
        pairs.iter().map(side).zip(0..).collect()
    };
    let (old_files, new_files) = (numbers(|pair| pair.0.to_owned()), numbers(|pair| pair.1.to_owned()));
    let old = lines_by_function(before, &old_files);
    let new = lines_by_function(after, &new_files);
    let mut cells_left = MAX_CELLS_IN_ALL;
    let mut aligned = Vec::new();
    for (function, old) in &old {
        let Some(new) = new.get(function) else { continue };
        let old_lines: Vec<&AlignLine> = old.iter().map(|index| &before[*index]).collect();
        let new_lines: Vec<&AlignLine> = new.iter().map(|index| &after[*index]).collect();
        let pairs = align_function(&old_lines, &new_lines, &mut cells_left);
        aligned.extend(
            pairs.into_iter().map(|pair| LinePair { before: old[pair.before], after: new[pair.after] }),
        );
    }
    aligned.sort_unstable();
    aligned
}

fn functions_by_file(lines: &[AlignLine]) -> FunctionsByFile<'_> {
    let mut files = FunctionsByFile::new();
    for line in lines {
        if let Some(file) = &line.file {
            let functions = files.entry(file).or_default();
            functions.extend(line.function.as_deref());
        }
    }
    files
}

/// A function that may occur in both runs. Lines of different functions are never paired.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct AlignedFunction<'a> {
    /// Number of a file that both runs have. `None` for native code and unknown stacks.
    file: Option<usize>,
    module: Option<String>,
    name: Option<&'a str>,
    is_backward: bool,
}

/// Indexes of lines by function, in order of position. Lines of files that only one run has are
/// omitted.
fn lines_by_function<'a>(
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
            module: line.module.as_deref().map(library_name),
            name: line.function.as_deref(),
            is_backward: line.is_backward,
        };
        functions.entry(key).or_default().push(index);
    }
    for indexes in functions.values_mut() {
        indexes.sort_by_key(|index| (lines[*index].position, *index));
    }
    functions
}

/// The name of a library without folder and version: `libfoo.so` for `/usr/lib/libfoo.so.13.1`.
fn library_name(path: &str) -> String {
    let name = files::file_name(path);
    match name.split_once(".so.") {
        Some((stem, _)) => format!("{stem}.so"),
        None => name,
    }
}

/// The score of a pair, without that of its shift. `None` if the two cannot be a pair.
fn score_pair(one: &AlignLine, other: &AlignLine) -> Option<i32> {
    let is_related = one.callees == other.callees || !one.callees.is_disjoint(&other.callees);
    if !is_related && one.position != other.position {
        return None;
    }
    let mut score = PAIR + if one.callees == other.callees { SAME_CALLEES } else { 0 };
    for (one, other) in one.amounts.iter().zip(&other.amounts) {
        score += if one.bytes > 0 && one.bytes == other.bytes { SAME_BYTES } else { 0 };
        score += if one.blocks > 0 && one.blocks == other.blocks { SAME_BLOCKS } else { 0 };
    }
    Some(score)
}

fn shift(one: &AlignLine, other: &AlignLine) -> i64 {
    other.position.unwrap_or(0).saturating_sub(one.position.unwrap_or(0))
}

/// Pairs the lines of one function. The result is the same if the runs are swapped.
fn align_function(old: &[&AlignLine], new: &[&AlignLine], cells_left: &mut usize) -> Vec<LinePair> {
    let is_equal = |one: &&AlignLine, other: &&AlignLine| {
        one.position == other.position && one.callees == other.callees && one.amounts == other.amounts
    };
    let prefix = old.iter().zip(new).take_while(|(one, other)| is_equal(one, other)).count();
    let (old_rest, new_rest) = (&old[prefix..], &new[prefix..]);
    let suffix = old_rest
        .iter()
        .rev()
        .zip(new_rest.iter().rev())
        .take_while(|(one, other)| is_equal(one, other))
        .count();
    let (old_rest, new_rest) = (&old_rest[..old_rest.len() - suffix], &new_rest[..new_rest.len() - suffix]);
    let mut pairs: Vec<LinePair> = (0..prefix).map(|at| LinePair { before: at, after: at }).collect();
    let cells = old_rest.len().saturating_mul(new_rest.len());
    let is_affordable = cells <= MAX_CELLS.min(*cells_left);
    *cells_left -= if is_affordable { cells } else { 0 };
    let between = if !is_affordable {
        pair_equal_positions(old_rest, new_rest)
    } else if compare_runs(old_rest, new_rest) == Ordering::Greater {
        find_best_pairs(new_rest, old_rest).into_iter().map(LinePair::swapped).collect()
    } else {
        find_best_pairs(old_rest, new_rest)
    };
    pairs.extend(
        between.into_iter().map(|pair| LinePair { before: pair.before + prefix, after: pair.after + prefix }),
    );
    pairs.extend((1..=suffix).rev().map(|at| LinePair { before: old.len() - at, after: new.len() - at }));
    pairs
}

/// A total order of the runs of a function, so that ties are broken alike if the runs are swapped.
fn compare_runs(old: &[&AlignLine], new: &[&AlignLine]) -> Ordering {
    let key = |lines: &[&AlignLine]| {
        let line_key =
            |line: &&AlignLine| (line.position, line.amounts.map(|held| (held.bytes, held.blocks)));
        lines.iter().map(line_key).collect::<Vec<_>>()
    };
    old.len().cmp(&new.len()).then_with(|| key(old).cmp(&key(new)))
}

fn pair_equal_positions(old: &[&AlignLine], new: &[&AlignLine]) -> Vec<LinePair> {
    let positions: HashMap<Option<i64>, usize> = new.iter().map(|line| line.position).zip(0..).collect();
    let mut pairs: Vec<LinePair> = Vec::new();
    for (before, line) in old.iter().enumerate() {
        let keeps_order = |after: &&usize| pairs.last().is_none_or(|last| last.after < **after);
        if let Some(&after) = positions.get(&line.position).filter(keeps_order) {
            pairs.push(LinePair { before, after });
        }
    }
    pairs
}

/// A cell of the alignment table: the best alignment that ends with this pair.
#[derive(Clone, Copy)]
struct AlignCell {
    /// Score of the pair and all pairs before it.
    score: i32,
    /// Index of the cell of the pair before it, or [`START`].
    previous: u32,
}

/// Score of an alignment, and the index of the cell of its last pair.
type ScoredCell = (i32, u32);

/// Stands for the cell before the first pair.
const START: u32 = u32::MAX;

/// The pairs in order with the highest total score, by dynamic programming over all cells.
fn find_best_pairs(old: &[&AlignLine], new: &[&AlignLine]) -> Vec<LinePair> {
    let columns = new.len();
    let mut cells: Vec<Option<AlignCell>> = vec![None; old.len() * columns];
    // The best cell of the rows above, by column and by shift.
    let mut above: Vec<Option<ScoredCell>> = vec![None; columns];
    let mut by_shift: HashMap<i64, ScoredCell> = HashMap::new();
    let mut last: Option<ScoredCell> = None;
    for (row, one) in old.iter().enumerate() {
        // The best cell above and to the left.
        let mut above_left: Option<ScoredCell> = None;
        for (column, other) in new.iter().enumerate() {
            let index = (row * columns + column) as u32;
            if let Some(pair_score) = score_pair(one, other) {
                let shift_of_pair = shift(one, other);
                let start = (if shift_of_pair == 0 { 0 } else { NEW_SHIFT }, START);
                let after_any = above_left.map(|(score, cell)| (score + NEW_SHIFT, cell));
                // With equal shifts, the cell above is also to the left.
                let after_same_shift = by_shift
                    .get(&shift_of_pair)
                    .copied()
                    .filter(|(_, cell)| *cell as usize / columns < row && *cell as usize % columns < column);
                let (score, previous) = [Some(start), after_any, after_same_shift]
                    .into_iter()
                    .flatten()
                    .max_by_key(|(score, _)| *score)
                    .unwrap_or(start);
                let cell = AlignCell { score: score + pair_score, previous };
                cells[index as usize] = Some(cell);
                if last.is_none_or(|(highest, _)| cell.score >= highest) {
                    last = Some((cell.score, index));
                }
            }
            above_left = above_left.max(above[column]);
        }
        for (column, other) in new.iter().enumerate() {
            let index = row * columns + column;
            if let Some(cell) = cells[index] {
                let scored = (cell.score, index as u32);
                above[column] = above[column].max(Some(scored));
                let best_of_shift = by_shift.entry(shift(one, other)).or_insert(scored);
                *best_of_shift = (*best_of_shift).max(scored);
            }
        }
    }
    let mut pairs = Vec::new();
    let mut index = last.map_or(START, |(_, cell)| cell);
    while index != START {
        pairs.push(LinePair { before: index as usize / columns, after: index as usize % columns });
        index = cells[index as usize].map_or(START, |cell| cell.previous);
    }
    pairs.reverse();
    pairs
}

#[cfg(test)]
mod tests;
